//! The files and functions named in docs/walkthrough.md.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::fs;
use std::path::Path;

/// Returns the words between back quotes, in order.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    page.split('`').skip(1).step_by(2)
}

/// Each row of the page names a file and then its functions, as in "`node/engine/src/volume.rs`: `handle`".
#[test]
fn walkthrough_names_files_and_their_functions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(root.join("docs/walkthrough.md")).unwrap();
    let (mut functions, mut missing) = (0, Vec::new());
    for row in page.lines().filter(|line| line.starts_with("| ") && line.contains(".rs`")) {
        let place = row.split('|').nth(2).unwrap();
        let mut text = String::new();
        for word in quoted(place) {
            if word.ends_with(".rs") {
                text = fs::read_to_string(root.join(word)).unwrap_or_default();
                if text.is_empty() {
                    missing.push(word.to_owned());
                }
            } else {
                functions += 1;
                let name = word.rsplit("::").next().unwrap();
                if !text.contains(&format!("fn {name}")) {
                    missing.push(format!("{word} in {place}"));
                }
            }
        }
    }
    assert!(functions > 40, "the tables were not found: {functions} functions");
    assert!(missing.is_empty(), "docs/walkthrough.md names what is not there: {missing:#?}");
}
