//! The checked-in YAML is what the types generate.

use std::path::Path;

#[test]
fn yaml_is_what_the_types_generate() {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, content) in holdfast_crds::generated_files() {
        for directory in holdfast_crds::GENERATED_DIRECTORIES {
            let path = crate_directory.join(directory).join(&name);
            let stored = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                stored == content,
                "{} is out of date: run `cargo run -p holdfast-crds --bin generate-crds`",
                path.display()
            );
        }
    }
}
