//! The images, compared with the programs run in them.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its helpers too

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use holdfast_lab::images;

/// Start of a command line in the CSI driver, followed by the name of the program.
const COMMAND_LINE: &str = "CommandLine::new([\"";

/// Regression: `stat` was missing: kubelets had no statistics of claims, and no test had run the image.
#[test]
fn each_program_run_by_the_csi_driver_is_included() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../csi/src/node");
    let mut run = BTreeSet::new();
    for entry in fs::read_dir(directory).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        let product = source.split("#[cfg(test)]").next().unwrap();
        let lines = product.split(COMMAND_LINE).skip(1);
        run.extend(lines.map(|rest| rest.split('"').next().unwrap().to_owned()));
    }
    assert!(run.len() > 8 && run.contains("mkfs.ext4"), "the command lines were not found: {run:?}");
    let csi = images::ALL.iter().find(|recipe| recipe.name == "holdfast-csi").unwrap();
    let installed: BTreeSet<&str> = csi.tools.iter().map(|path| path.rsplit('/').next().unwrap()).collect();
    let missing: Vec<&String> = run.iter().filter(|name| !installed.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?} are not in the image (FILE_SYSTEM_TOOLS)");
}
