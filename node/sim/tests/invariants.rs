//! The documented list of invariants is the checked list.

use std::path::Path;

use holdfast_sim::Invariant;
use holdfast_sim::bug::Bug;

#[test]
fn every_invariant_and_bug_is_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/invariants.md");
    let text = std::fs::read_to_string(path).unwrap();
    let rows: Vec<&str> = text.lines().filter(|line| line.contains("| `")).collect();
    assert_eq!(rows.len(), Invariant::ALL.len());
    for (row, invariant) in rows.iter().zip(Invariant::ALL) {
        let prefix = format!("| {} | `{invariant:?}` |", invariant.number());
        assert!(row.starts_with(&prefix), "{row}\ndoes not begin with {prefix}");
    }
    for bug in Bug::all() {
        let named: Vec<bool> = rows.iter().map(|row| row.contains(&format!("`{bug:?}`"))).collect();
        let described: Vec<bool> =
            Invariant::ALL.iter().map(|invariant| invariant.number() == bug.invariant_number()).collect();
        assert_eq!(named, described, "{bug:?} stands in the row of the invariant that it breaks");
    }
}
