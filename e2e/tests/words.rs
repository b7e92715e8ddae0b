//! The word list of CONTRIBUTING.md, against the code and the documents.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::fs;
use std::path::{Path, PathBuf};

/// Pages and directories that are read.
const READ_FROM: &[&str] = &[
    "CHANGELOG.md",
    "HACKING.md",
    "README.md",
    "SECURITY.md",
    "charts",
    "crds",
    "csi",
    "docs",
    "e2e/bench",
    "e2e/lab/src",
    "e2e/scenarios",
    "e2e/src",
    "node",
    "operator",
    "proto",
];

/// The CSI specification's own words.
const NOT_OURS: &[&str] = &["csi.proto", "csi.v1.rs"];

/// File types that are read.
const READ: &[&str] = &["md", "proto", "rs", "toml", "yaml"];

/// The phrases of the word list, each as its words.
fn listed() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let rows = page.lines().skip_while(|line| *line != "| not | but |").skip(2);
    let phrases = rows.take_while(|line| line.starts_with('|')).map(|line| line.split('|').nth(1).unwrap());
    phrases.flat_map(|cell| cell.split(',').map(words)).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Lower-case words of a text, also those that form an identifier in snake or camel case.
fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for char in text.chars() {
        if !char.is_ascii_alphanumeric() || (char.is_ascii_uppercase() && after_lower) {
            words.push(String::new());
        }
        if char.is_ascii_alphanumeric() {
            words.last_mut().unwrap().push(char.to_ascii_lowercase());
        }
        after_lower = char.is_ascii_lowercase();
    }
    words.retain(|word| !word.is_empty());
    words
}

/// All files of the types read in `path`, which may be one of them.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else if path.extension().is_some_and(|extension| READ.iter().any(|read| extension == *read))
        && !NOT_OURS.iter().any(|name| path.ends_with(name))
    {
        found.push(path.to_owned());
    }
}

#[test]
fn no_listed_word_is_used() {
    let listed = listed();
    assert!(listed.len() > 40, "the table of CONTRIBUTING.md was not found: {listed:?}");
    let mut found = Vec::new();
    for path in READ_FROM {
        let mut read = Vec::new();
        files(&root().join(path), &mut read);
        assert!(!read.is_empty(), "nothing to read in {path}");
        for file in read {
            let text = fs::read_to_string(&file).unwrap();
            for (line, text) in (1..).zip(text.lines()) {
                let words = words(text);
                let used =
                    listed.iter().filter(|phrase| words.windows(phrase.len()).any(|at| at == **phrase));
                found.extend(used.map(|phrase| format!("{}:{line}: {}", file.display(), phrase.join(" "))));
            }
        }
    }
    assert!(found.is_empty(), "CONTRIBUTING.md, Language, has better words:\n{}", found.join("\n"));
}

#[test]
fn words_are_found_in_identifiers() {
    assert_eq!(words("fn let_go(NotTakenUp: u8)"), ["fn", "let", "go", "not", "taken", "up", "u8"]);
}
