//! The checked-in YAML matches the types, and the group does not shadow standard kinds.

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

/// `kubectl get volumesnapshots` takes the group that sorts first. In the group `holdfast.dev`, our kind
/// would shadow the standard one in a cluster that has both.
#[test]
fn the_standard_snapshots_come_before_ours() {
    for definition in holdfast_crds::definitions() {
        assert_eq!(definition.spec.group, holdfast_crds::GROUP);
    }
    assert!(holdfast_crds::GROUP > "snapshot.storage.k8s.io");
}
