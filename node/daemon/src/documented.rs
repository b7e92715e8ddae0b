//! The user documentation, for tests that compare it with the daemon.

use std::fs;
use std::path::Path;

/// Returns the page at `path` of the repository.
pub(crate) fn page(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Returns the texts between back quotes in a page.
fn quoted(page: &str) -> impl Iterator<Item = &str> {
    page.lines().filter(|line| !line.starts_with("```")).flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// Returns every page, with its path.
pub(crate) fn pages() -> Vec<(String, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let listed = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().file_name());
    let all = listed.map(|name| format!("docs/{}", name.to_str().unwrap()));
    let all = all.chain(["README.md", "CHANGELOG.md"].map(str::to_owned));
    all.filter(|path| path.ends_with(".md")).map(|path| (path.clone(), page(&path))).collect()
}

#[test]
fn architecture_names_what_there_is() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = page("docs/architecture.md");
    // A bare file name belongs to the formats, the engine, the daemon or the ring thread.
    let places = [
        "",
        "node/format/src",
        "node/engine/src",
        "node/daemon/src",
        "node/daemon/src/node",
        "node/serve/src",
    ];
    let is_path = |word: &&str| {
        let first = word.split('/').next().unwrap_or_default();
        word.ends_with(".rs") || (word.contains('/') && root.join(first).is_dir())
    };
    for path in quoted(&page).filter(is_path).filter(|word| !word.contains('*')) {
        assert!(places.iter().any(|place| root.join(place).join(path).exists()), "there is no {path}");
    }
    let data_plane = root.join("node/daemon/src/node");
    for topic in ["", "device", "local", "ring", "store", "volume"] {
        for entry in fs::read_dir(data_plane.join(topic)).unwrap() {
            let file = Path::new(topic).join(entry.unwrap().file_name());
            // A file that only lists the modules of a topic is described by their entries.
            let is_index = topic.is_empty() && data_plane.join(&file).with_extension("").is_dir();
            let is_described = is_index || quoted(&page).any(|word| Path::new(word) == file);
            assert!(
                is_described || file.extension().is_none_or(|extension| extension != "rs"),
                "docs/architecture.md does not name {}",
                file.display()
            );
        }
    }
}

#[test]
fn architecture_says_which_crates_know_which() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = page("docs/architecture.md");
    let mut described = Vec::new();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let [_, path, _, knows, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else { continue };
        let path = path.trim_matches('`');
        let Ok(manifest) = fs::read_to_string(root.join(path).join("Cargo.toml")) else { continue };
        let manifest: toml::Table = manifest.parse().unwrap();
        let used = manifest.get("dependencies").into_iter().flat_map(|all| all.as_table().unwrap().keys());
        let used: Vec<&str> = used.filter_map(|name| name.strip_prefix("holdfast-")).collect();
        let expected = if used.is_empty() { "nothing".to_owned() } else { used.join(", ") };
        let knows = if knows.starts_with("nothing") { "nothing" } else { knows };
        assert_eq!(knows, expected, "{path}");
        described.push(path);
    }
    let workspace: toml::Table = fs::read_to_string(root.join("Cargo.toml")).unwrap().parse().unwrap();
    for member in workspace["workspace"]["members"].as_array().unwrap() {
        let member = member.as_str().unwrap();
        assert!(described.contains(&member), "docs/architecture.md does not name {member}");
    }
}
