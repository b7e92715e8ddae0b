//! The checked-in YAML is what the types generate.

use std::path::Path;

#[test]
fn yaml_is_what_the_types_generate() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, content) in holdfast_crds::generated_files() {
        let stored = std::fs::read_to_string(directory.join(&name)).unwrap_or_default();
        assert!(
            stored == content,
            "crds/{name} is out of date: run `cargo run -p holdfast-crds --bin generate-crds`"
        );
    }
}
