//! Writes `crds/*.yaml` from the types of the crate.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, content) in holdfast_crds::generated_files() {
        std::fs::write(directory.join(name), content)?;
    }
    Ok(())
}
