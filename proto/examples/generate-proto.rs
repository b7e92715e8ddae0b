//! Writes `proto/src/gen/*.rs` from the `.proto` files of the crate.

use std::error::Error;
use std::path::Path;

/// Interfaces to generate, as paths from the crate's directory.
const SOURCES: [&str; 2] = ["csi/v1/csi.proto", "node/v1/node.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    generate(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gen"))
}

/// Generates the code of every interface into `directory`.
pub(crate) fn generate(directory: &Path) -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let descriptors = protox::compile(SOURCES.map(|source| root.join(source)), [root])?;
    tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .out_dir(directory)
        .compile_fds(descriptors)?;
    Ok(())
}
