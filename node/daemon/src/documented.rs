//! The pages that users read, for tests of what they say of the daemon.

use std::fs;
use std::path::Path;

/// The page at `path` of the repository.
pub(crate) fn page(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Every page, with its path.
pub(crate) fn pages() -> Vec<(String, String)> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let listed = fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().file_name());
    let all = listed.map(|name| format!("docs/{}", name.to_str().unwrap()));
    let all = all.chain(["README.md", "CHANGELOG.md"].map(str::to_owned));
    all.filter(|path| path.ends_with(".md")).map(|path| (path.clone(), page(&path))).collect()
}
