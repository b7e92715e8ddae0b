//! The workspace's dependency arrows and the licences of all dependencies, read from cargo itself.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

const PLUGIN: &str = "kubectl-holdfast";
/// Dependencies restricted to the listed packages of the workspace. `*` ends a prefix.
const ONLY: &[(&str, &[&str])] = &[
    ("io-uring", &["holdfast-ring", "holdfast-ublk", "holdfast-fuse"]),
    ("libublk", &["holdfast-ublk"]),
    ("aws-*", &["holdfast-s3"]),
    (
        "kube",
        &["holdfast-cluster", "holdfast-crds", "holdfast-operator", "holdfast-node", "holdfast-csi", PLUGIN],
    ),
    (
        "k8s-openapi",
        &["holdfast-cluster", "holdfast-crds", "holdfast-operator", "holdfast-node", "holdfast-csi", PLUGIN],
    ),
    (
        "holdfast-crds",
        &["holdfast-cluster", "holdfast-operator", "holdfast-node", "holdfast-csi", "holdfast-lab", PLUGIN],
    ),
    ("holdfast-cluster", &["holdfast-operator", "holdfast-node", "holdfast-csi"]),
    ("holdfast-proto", &["holdfast-node", "holdfast-csi", "holdfast-operator", "holdfast-lab"]),
    (
        "holdfast-format",
        &[
            "holdfast-engine",
            "holdfast-background",
            "holdfast-log",
            "holdfast-memory",
            "holdfast-node",
            "holdfast-operator",
            "holdfast-serve",
            "holdfast-sim",
        ],
    ),
    ("holdfast-engine", &["holdfast-background", "holdfast-node", "holdfast-serve", "holdfast-sim"]),
    ("holdfast-background", &["holdfast-node", "holdfast-serve", "holdfast-sim"]),
    ("holdfast-ring", &["holdfast-ublk", "holdfast-fuse", "holdfast-node", "holdfast-serve"]),
    ("holdfast-memory", &["holdfast-node", "holdfast-serve", "holdfast-sim"]),
    ("holdfast-ublk", &["holdfast-fuse", "holdfast-node", "holdfast-serve"]),
    ("holdfast-fuse", &["holdfast-node", "holdfast-serve"]),
    ("holdfast-serve", &["holdfast-node"]),
    ("holdfast-service", &["holdfast-cluster", "holdfast-csi", "holdfast-node", "holdfast-operator"]),
    ("holdfast-node", &[]),
    ("holdfast-sim", &[]),
    ("holdfast-operator", &[]),
    ("holdfast-lab", &["holdfast-scenarios", "holdfast-bench", "holdfast-e2e"]),
    ("holdfast-scenarios", &["holdfast-bench", "holdfast-e2e"]),
    ("holdfast-bench", &["holdfast-e2e"]),
    ("indicatif", &["holdfast-lab"]),
    ("holdfast-e2e", &[]),
    ("holdfast-start", &[]),
];

/// Folders of the workspace, and the folders that their crates may depend on.
const FOLDERS: &[(&str, &[&str])] = &[
    ("crds", &[]),
    ("proto", &[]),
    ("node", &["crds", "proto"]),
    ("operator", &["crds", "node", "proto"]),
    ("csi", &["crds", "node", "proto"]),
    ("e2e", &["crds", "proto"]),
];

/// The harness, which uses the programs like a user.
const HARNESS: &[&str] =
    &["holdfast-lab", "holdfast-scenarios", "holdfast-bench", "holdfast-e2e", "holdfast-start"];
/// Crates of the workspace that the harness may use: those visible to users.
const SEEN_BY_USERS: &[&str] = &["holdfast-crds", "holdfast-proto"];

/// All permitted dependencies of the planner: checksums, compression, errors. It has no threads, clock, files
/// or sockets, so this list has nothing that does I/O, reads the time or runs anything.
const BELOW_ENGINE: &[&str] = &[
    "arrayvec",
    "blake3",
    "cfg-if",
    "constant_time_eq",
    "cpufeatures",
    "holdfast-engine",
    "holdfast-format",
    "holdfast-types",
    // Macros, which are not part of the program.
    "proc-macro2",
    "quote",
    "syn",
    "thiserror",
    "thiserror-impl",
    "unicode-ident",
    "xxhash-rust",
    "zstd",
    "zstd-safe",
    "zstd-sys",
];

/// The configuration of cargo-deny, which contains the list of licences.
const DENY: &str = include_str!("../../deny.toml");

struct Package {
    name: String,
    licence: String,
    local: bool,
    /// Its top-level folder in the workspace.
    folder: String,
    /// True if a dependency, or a feature of its own, enables the feature `simulation`.
    simulates: bool,
    /// True if one enables devices without the driver.
    fakes: bool,
    /// Direct dependencies that are linked into it or run during its build, by name.
    named: BTreeSet<String>,
    /// The same, resolved, by package id.
    resolved: Vec<String>,
}

fn packages() -> BTreeMap<String, Package> {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(out.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&out.stderr));
    let metadata: Value = serde_json::from_slice(&out.stdout).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let root = text(&metadata["workspace_root"]);
    let folder = |manifest: &Value| {
        let path = text(manifest).strip_prefix(&root).unwrap_or_default().to_owned();
        path.split('/').nth(1).unwrap_or_default().to_owned()
    };
    let mut packages = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let named = dependencies.filter(|one| one["kind"] != "dev").map(|one| text(&one["name"])).collect();
        let asks_for = |feature: &str| {
            let asks = |features: &Value| {
                let is_requested = |one: &Value| one.as_str().is_some_and(|name| name.ends_with(feature));
                features.as_array().unwrap().iter().any(is_requested)
            };
            package["dependencies"].as_array().unwrap().iter().any(|one| asks(&one["features"]))
                || package["features"].as_object().unwrap().values().any(asks)
        };
        let local = package["source"].is_null();
        packages.insert(
            text(&package["id"]),
            Package {
                name: text(&package["name"]),
                licence: text(&package["license"]),
                local,
                folder: folder(&package["manifest_path"]),
                simulates: asks_for("simulation"),
                fakes: local && asks_for("fake"),
                named,
                resolved: Vec::new(),
            },
        );
    }
    for node in metadata["resolve"]["nodes"].as_array().unwrap() {
        let resolved = node["deps"].as_array().unwrap().iter().filter(|dependency| {
            let kinds = dependency["dep_kinds"].as_array().unwrap();
            kinds.iter().any(|kind| kind["kind"].is_null())
        });
        let resolved = resolved.map(|dependency| text(&dependency["pkg"])).collect();
        packages.get_mut(node["id"].as_str().unwrap()).unwrap().resolved = resolved;
    }
    packages
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

#[test]
fn arrows_point_one_way() {
    let packages = packages();
    let mut wrong = Vec::new();
    for package in packages.values().filter(|package| package.local) {
        for dependency in &package.named {
            let rules = ONLY.iter().filter(|(pattern, _)| matches(pattern, dependency));
            for (_, allowed) in rules {
                if !allowed.contains(&package.name.as_str()) {
                    wrong.push(format!("{} must not depend on {dependency}", package.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn folders_point_one_way() {
    let packages = packages();
    let folders: BTreeMap<&str, &str> = packages
        .values()
        .filter(|package| package.local)
        .map(|package| (package.name.as_str(), package.folder.as_str()))
        .collect();
    let mut wrong = Vec::new();
    for package in packages.values().filter(|package| package.local) {
        let from = package.folder.as_str();
        let (_, allowed) = FOLDERS.iter().find(|(folder, _)| *folder == from).unwrap();
        for dependency in &package.named {
            if let Some(to) = folders.get(dependency.as_str())
                && *to != from
                && !allowed.contains(to)
            {
                wrong.push(format!("{} ({from}/) must not depend on {dependency} ({to}/)", package.name));
            }
        }
    }
    // For `cargo e2e bench house`.
    println!("figure arrows_up {}", wrong.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_harness_uses_nothing_internal() {
    let packages = packages();
    let local: BTreeSet<&str> =
        packages.values().filter(|one| one.local).map(|one| one.name.as_str()).collect();
    for name in HARNESS {
        let package = packages.values().find(|package| package.name == *name).unwrap();
        for dependency in package.named.iter().filter(|dependency| local.contains(dependency.as_str())) {
            let fits = [HARNESS, SEEN_BY_USERS].iter().any(|known| known.contains(&dependency.as_str()));
            assert!(fits, "{name} must not depend on {dependency}");
        }
    }
}

/// Planted bugs and deaths at crash points are for the simulation, which is never shipped.
#[test]
fn only_the_simulation_asks_for_its_engine_feature() {
    let packages = packages();
    let asking: Vec<&str> =
        packages.values().filter(|package| package.simulates).map(|p| p.name.as_str()).collect();
    assert_eq!(asking, ["holdfast-sim"]);
}

/// Devices without the driver are for the counts of `node/serve/examples`, which are never shipped.
#[test]
fn only_the_example_of_the_ring_thread_has_fake_devices() {
    let packages = packages();
    let asking: Vec<&str> =
        packages.values().filter(|package| package.fakes).map(|p| p.name.as_str()).collect();
    assert_eq!(asking, ["holdfast-serve"]);
}

#[test]
fn the_engine_does_no_io() {
    let packages = packages();
    let (engine, _) = packages.iter().find(|(_, package)| package.name == "holdfast-engine").unwrap();
    let mut seen = BTreeSet::new();
    let mut open = vec![engine.clone()];
    while let Some(id) = open.pop() {
        if seen.insert(id.clone()) {
            open.extend(packages[&id].resolved.iter().cloned());
        }
    }
    let below: BTreeSet<&str> = seen.iter().map(|id| packages[id].name.as_str()).collect();
    let wrong: Vec<&&str> = below.iter().filter(|name| !BELOW_ENGINE.contains(name)).collect();
    assert!(wrong.is_empty(), "below holdfast-engine: {wrong:?}");
}

#[test]
fn every_licence_is_allowed() {
    let packages = packages();
    let wrong: Vec<String> = packages
        .values()
        .filter(|package| !allowed(&package.licence))
        .map(|package| format!("{}: {:?}", package.name, package.licence))
        .collect();
    assert!(wrong.is_empty(), "licences not in the list:\n{}", wrong.join("\n"));
}

/// Returns true if an SPDX expression can be satisfied with licences of the list. A slash is an old form of
/// OR.
fn allowed(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let value = parse_or(&mut rest);
    value && rest.is_empty()
}

/// Returns true if the licence is in the list of `deny.toml`.
fn is_listed(licence: &str) -> bool {
    let (_, list) = DENY.split_once("\nallow = [").unwrap();
    let (list, _) = list.split_once(']').unwrap();
    list.split(',').any(|one| one.trim() == format!("{licence:?}"))
}

fn parse_or(words: &mut &[&str]) -> bool {
    let mut value = parse_and(words);
    while let ["OR", rest @ ..] = *words {
        *words = rest;
        value |= parse_and(words);
    }
    value
}

fn parse_and(words: &mut &[&str]) -> bool {
    let mut value = parse_licence(words);
    while let ["AND", rest @ ..] = *words {
        *words = rest;
        value &= parse_licence(words);
    }
    value
}

fn parse_licence(words: &mut &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let value = parse_or(words);
            let closed = matches!(words.first(), Some(&")"));
            *words = words.get(1..).unwrap_or_default();
            value && closed
        }
        [name, "WITH", exception, rest @ ..] => {
            *words = rest;
            is_listed(&format!("{name} WITH {exception}"))
        }
        [name, rest @ ..] => {
            *words = rest;
            // "or any later version" of a permitted licence includes that licence.
            is_listed(name.trim_end_matches('+'))
        }
        [] => false,
    }
}

#[test]
fn licence_expressions_are_understood() {
    assert!(allowed("MIT OR GPL-3.0"));
    assert!(allowed("MIT/Apache-2.0"));
    assert!(allowed("(MIT OR GPL-2.0) AND Unicode-3.0"));
    assert!(allowed("Apache-2.0 WITH LLVM-exception"));
    assert!(!allowed("MIT AND GPL-3.0"));
    assert!(!allowed("GPL-3.0"));
    assert!(!allowed(""));
    assert!(!allowed("(MIT"));
}
