//! Names of types: one name, one type.
//!
//! Each name has one definition for a reader to find. Names that several programs define are on a list, each
//! with the number of its files and the reason why it may stay: it means the same in each of them.

use std::collections::{BTreeMap, BTreeSet};

use crate::figure;
use crate::source::crates;

/// Names that several programs define, each for itself: the number of files, and the meaning that they share.
/// No program sees the definition of another.
const SEVERAL: &[(&str, usize, &str)] = &[
    ("Command", 4, "the subcommands of a program"),
    ("Metrics", 2, "the metrics that a program exports"),
    ("Preflight", 2, "the arguments of the subcommand `preflight`"),
    ("Readiness", 3, "the answer of a program at `/readyz`"),
    ("Settings", 3, "the command line of a program"),
    ("World", 2, "everything that a test drives: processes in the harness, models in the simulation"),
];

/// Returns the files that define each name.
fn definitions() -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for read in crates() {
        for module in &read.modules {
            for name in types(&module.words) {
                found.entry(name).or_default().insert(module.file.clone());
            }
        }
    }
    found
}

/// Returns the types that a module defines. Those in a function or an implementation are not items of the
/// module.
fn types(words: &[String]) -> Vec<String> {
    let mut depth = 0;
    let mut found = Vec::new();
    for pair in words.windows(2) {
        let [word, name] = pair else { continue };
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "struct" | "enum" | "trait" | "type" if depth == 0 => found.push(name.clone()),
            _ => {}
        }
    }
    found
}

/// Returns true if no two of the files are in one crate.
fn are_in_separate_crates(files: &BTreeSet<String>) -> bool {
    let crates: BTreeSet<Option<&str>> = files.iter().map(|file| file.split("/src/").next()).collect();
    crates.len() == files.len()
}

#[test]
fn each_name_has_one_type() {
    let found = definitions();
    let mut wrong = Vec::new();
    for (name, files) in found.iter().filter(|(_, files)| files.len() > 1) {
        let paths = files.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        match SEVERAL.iter().find(|(listed, ..)| listed == name) {
            None => wrong.push(format!("{name} is defined in {paths}: rename all but one")),
            Some(&(_, count, _)) if files.len() != count => {
                let is = files.len();
                wrong.push(format!("{name} is defined in {is} files, the list says {count}: {paths}"));
            }
            Some(_) if !are_in_separate_crates(files) => {
                wrong.push(format!("{name} is defined twice in one crate: {paths}"));
            }
            Some(_) => {}
        }
    }
    figure("type_names_twice", SEVERAL.len());
    for (name, ..) in SEVERAL {
        if found.get(*name).is_none_or(|files| files.len() < 2) {
            wrong.push(format!("{name} is the name of one type now: take it from the list"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn types_of_a_module_are_its_items() {
    let words =
        crate::source::words("pub(crate) struct A; impl B { type C = u8; } enum D { E } pub trait F {}");
    assert_eq!(types(&words), ["A", "D", "F"]);
}
