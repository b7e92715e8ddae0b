//! Writes the CRD YAML generated from this crate's types to `crds/` and to the chart.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let crate_directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, content) in holdfast_crds::generated_files() {
        for directory in holdfast_crds::GENERATED_DIRECTORIES {
            std::fs::write(crate_directory.join(directory).join(&name), &content)?;
        }
    }
    Ok(())
}
