//! Generates Rust from the `.proto` files, without a protobuf compiler.

use std::error::Error;

/// Every `.proto` file, relative to the crate.
const FILES: [&str; 3] = ["csi/v1/csi.proto", "node/v1/node.proto", "pluginregistration/v1/api.proto"];

/// Messages that the command line prints as JSON, field by field.
const PRINTED: [&str; 2] = ["holdfast.node.v1.StoreRequests", "holdfast.node.v1.VolumeStats"];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, ["."])?;
    let derive = "#[derive(serde::Serialize)]";
    PRINTED
        .iter()
        .fold(tonic_prost_build::configure(), |builder, message| builder.type_attribute(message, derive))
        .compile_fds(descriptors)?;
    Ok(())
}
