//! The checked-in code is what the `.proto` files generate.

#[path = "../examples/generate-proto.rs"]
#[expect(dead_code, reason = "the example's main is not called here")]
mod generator;

use std::fs;
use std::path::Path;

#[test]
fn generated_code_is_current() {
    let fresh = tempfile::tempdir().unwrap();
    generator::generate(fresh.path()).unwrap();
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gen");
    for entry in fs::read_dir(fresh.path()).unwrap() {
        let name = entry.unwrap().file_name();
        let same = fs::read(fresh.path().join(&name)).unwrap()
            == fs::read(checked_in.join(&name)).unwrap_or_default();
        assert!(same, "{name:?} is stale: run `cargo run -p holdfast-proto --example generate-proto`");
    }
}
