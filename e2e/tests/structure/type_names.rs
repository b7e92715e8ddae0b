//! Names of types: one name, one type.
//!
//! Each name has one definition for a reader to find. Names defined in several files are on a list: each with
//! the number of its files and the reason why it may stay, which the test checks.

use std::collections::BTreeMap;

use crate::figure;
use crate::source::crates;

/// Reasons why several files may define a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Exemption {
    /// At most one definition is visible outside its file.
    Private,
    /// At most one belongs to the product: the others belong to the harness, which uses no internal type.
    Harness,
    /// At most one belongs to the product: the others are models of the simulation, or of the harness.
    Model,
    /// Each program has its own, and none sees that of another.
    Program,
}
use Exemption::{Harness, Model, Private, Program};

/// Names defined in several files, with the number of files.
const SEVERAL: &[(&str, usize, Exemption)] = &[
    ("Answer", 5, Model),
    ("Attach", 2, Private),
    ("Bench", 2, Private),
    ("Blocks", 3, Private),
    ("Call", 2, Model),
    ("Case", 2, Model),
    ("Claim", 2, Harness),
    ("Closed", 2, Private),
    ("Cluster", 2, Harness),
    ("Command", 4, Program),
    ("Content", 2, Model),
    ("Control", 2, Harness),
    ("ControlPlane", 2, Harness),
    ("Counts", 2, Private),
    ("Crash", 2, Model),
    ("Cut", 2, Model),
    ("Daemon", 2, Private),
    ("Death", 2, Model),
    ("Device", 2, Model),
    ("DeviceInfo", 2, Model),
    ("DeviceState", 2, Model),
    ("Devices", 2, Model),
    ("Disk", 3, Private),
    ("Ended", 2, Private),
    ("Endpoint", 2, Private),
    ("Entry", 4, Private),
    ("Fault", 2, Harness),
    ("Faults", 2, Model),
    ("Figure", 2, Harness),
    ("FileSystem", 2, Private),
    ("Fingerprint", 2, Private),
    ("Handoff", 2, Program),
    ("Holder", 2, Private),
    ("Inner", 2, Private),
    ("Instance", 2, Private),
    ("Job", 3, Model),
    ("Kernel", 3, Model),
    ("Kind", 2, Harness),
    ("Known", 2, Private),
    ("Labels", 2, Private),
    ("Lane", 2, Harness),
    ("LastRun", 2, Private),
    ("Layer", 2, Harness),
    ("Ledger", 2, Private),
    ("Listed", 2, Private),
    ("Message", 2, Private),
    ("Metrics", 2, Program),
    ("Named", 2, Private),
    ("NewVolume", 2, Harness),
    ("Node", 3, Model),
    ("Object", 3, Private),
    ("Objects", 2, Model),
    ("Options", 2, Private),
    ("Owner", 2, Model),
    ("Part", 2, Harness),
    ("Parts", 3, Private),
    ("Place", 2, Private),
    ("Plan", 3, Private),
    ("Preflight", 2, Program),
    ("Process", 3, Model),
    ("Profile", 2, Harness),
    ("Program", 2, Harness),
    ("Queue", 2, Private),
    ("Readiness", 3, Program),
    ("Record", 2, Private),
    ("Refused", 2, Model),
    ("Relocation", 2, Private),
    ("Replay", 2, Private),
    ("Reply", 2, Harness),
    ("Report", 2, Private),
    ("Request", 4, Model),
    ("Room", 2, Private),
    ("Row", 2, Private),
    ("Run", 2, Private),
    ("Runs", 2, Private),
    ("Scenario", 2, Harness),
    ("Schedule", 2, Private),
    ("Seen", 3, Private),
    ("Sent", 2, Private),
    ("Served", 3, Harness),
    ("Settings", 4, Program),
    ("Shown", 2, Private),
    ("Slot", 3, Private),
    ("Snapshot", 2, Model),
    ("Socket", 2, Harness),
    ("Source", 2, Private),
    ("Space", 2, Private),
    ("Stage", 4, Private),
    ("State", 2, Private),
    ("Store", 3, Harness),
    ("Subject", 2, Private),
    ("Sweeps", 2, Private),
    ("Task", 2, Private),
    ("Tasks", 2, Model),
    ("Terms", 2, Model),
    ("Turn", 3, Private),
    ("Unfit", 2, Program),
    ("Unit", 2, Private),
    ("Verdict", 2, Private),
    ("Violation", 2, Model),
    ("Volume", 2, Private),
    ("Work", 2, Private),
    ("World", 2, Harness),
    ("Writer", 2, Private),
    ("Writers", 2, Model),
    ("Written", 3, Private),
];

/// A definition of a type.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Definition {
    file: String,
    /// True if another file may use it.
    is_exported: bool,
}

/// Returns all definitions by name, for each name at most one per file.
fn definitions() -> BTreeMap<String, Vec<Definition>> {
    let mut found: BTreeMap<String, BTreeMap<String, bool>> = BTreeMap::new();
    for read in crates() {
        for module in &read.modules {
            for (name, leaves) in types(&module.words) {
                *found.entry(name).or_default().entry(module.file.clone()).or_default() |= leaves;
            }
        }
    }
    let all = |files: BTreeMap<String, bool>| {
        files.into_iter().map(|(file, is_exported)| Definition { file, is_exported }).collect()
    };
    found.into_iter().map(|(name, files)| (name, all(files))).collect()
}

/// Returns the types that a module defines, and if each is visible outside. Those in a function or an
/// implementation are not items of the module.
fn types(words: &[String]) -> Vec<(String, bool)> {
    let (mut depth, mut before) = (0, "");
    let mut found = Vec::new();
    for pair in words.windows(2) {
        let [word, name] = pair else { continue };
        match word.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            "struct" | "enum" | "trait" | "type" if depth == 0 => {
                found.push((name.clone(), matches!(before, "pub" | ")")));
            }
            _ => {}
        }
        before = word;
    }
    found
}

impl Exemption {
    fn is_justified(self, definitions: &[Definition]) -> bool {
        let most_one = |counts: fn(&Definition) -> bool| {
            definitions.iter().filter(|definition| counts(definition)).count() <= 1
        };
        match self {
            Private => most_one(|one| one.is_exported),
            Harness => most_one(|one| !one.file.starts_with("e2e/")),
            Model => most_one(|one| !one.file.starts_with("e2e/") && !one.file.starts_with("node/sim/")),
            Program => {
                let programs = definitions.iter().map(|one| one.file.split("/src/").next());
                let mut programs: Vec<Option<&str>> = programs.collect();
                programs.sort_unstable();
                programs.windows(2).all(|two| two[0] != two[1])
            }
        }
    }
}

#[test]
fn each_name_has_one_type() {
    let found = definitions();
    let mut wrong = Vec::new();
    for (name, files) in found.iter().filter(|(_, files)| files.len() > 1) {
        let paths: Vec<&str> = files.iter().map(|one| one.file.as_str()).collect();
        match SEVERAL.iter().find(|(listed, ..)| listed == name) {
            None => wrong.push(format!("{name} is defined in {}: rename all but one", paths.join(", "))),
            Some(&(_, count, because)) => {
                if files.len() != count {
                    let is = files.len();
                    wrong.push(format!(
                        "{name} is defined in {is} files, the list says {count}: {}",
                        paths.join(", ")
                    ));
                }
                if !because.is_justified(files) {
                    wrong.push(format!("{name} is not {because:?} alone: {files:?}"));
                }
            }
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
    let found: Vec<String> =
        types(&words).into_iter().map(|(name, leaves)| format!("{name} {leaves}")).collect();
    assert_eq!(found, ["A true", "D false", "F true"]);
}
