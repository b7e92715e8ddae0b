//! The documented list of invariants is the checked list.

use std::path::Path;

use holdfast_sim::Invariant;
use holdfast_sim::bug::Bug;

#[test]
fn every_invariant_and_every_bug_stands_in_the_document() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/invariants.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("| `")).collect();
    assert_eq!(rows.len(), Invariant::ALL.len());
    for (row, invariant) in rows.iter().zip(Invariant::ALL) {
        let begins = format!("| {} | `{invariant:?}` |", invariant.number());
        assert!(row.starts_with(&begins), "{row}\ndoes not begin with {begins}");
    }
    for bug in Bug::all() {
        let named: Vec<bool> = rows.iter().map(|row| row.contains(&format!("`{bug:?}`"))).collect();
        let said: Vec<bool> =
            Invariant::ALL.iter().map(|invariant| invariant.number() == bug.breaks()).collect();
        assert_eq!(named, said, "{bug:?} stands in the row of the invariant that it breaks");
    }
}
