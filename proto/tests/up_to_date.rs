//! The checked-in Rust is what the `.proto` files generate.
//!
//! With `HOLDFAST_GENERATE=1` in the environment the files are written instead of compared.

use std::path::Path;

/// Messages that the command line prints as JSON, field by field.
const PRINTED: [&str; 2] = ["holdfast.node.v1.StoreRequests", "holdfast.node.v1.VolumeStats"];

/// Every `.proto` file, relative to the crate.
const FILES: [&str; 3] = ["csi/v1/csi.proto", "node/v1/node.proto", "pluginregistration/v1/api.proto"];

#[test]
fn generated_code_is_what_the_proto_files_generate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checked_in = root.join("src/gen");
    let fresh = tempfile::tempdir().expect("a temporary directory");
    let descriptors = protox::compile(FILES, [root]).expect("the proto files compile");
    let plain = tonic_prost_build::configure();
    let derive = "#[derive(serde::Serialize)]";
    PRINTED
        .iter()
        .fold(plain, |builder, message| builder.type_attribute(message, derive))
        .out_dir(fresh.path())
        .compile_fds(descriptors)
        .expect("the descriptors generate");

    let write = std::env::var("HOLDFAST_GENERATE").is_ok_and(|value| value == "1");
    let mut stale = Vec::new();
    for entry in std::fs::read_dir(fresh.path()).expect("the directory lists") {
        let name = entry.expect("an entry").file_name();
        let content = std::fs::read(fresh.path().join(&name)).expect("a generated file");
        // Types of google.protobuf come from prost-types.
        if content.is_empty() || name.to_string_lossy().starts_with("google.") {
            continue;
        }
        if write {
            std::fs::write(checked_in.join(&name), &content).expect("the file is written");
        } else if std::fs::read(checked_in.join(&name)).ok().as_ref() != Some(&content) {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "proto/src/gen is out of date ({stale:?}): run `HOLDFAST_GENERATE=1 cargo test -p holdfast-proto --test up_to_date`"
    );
}
