//! `cargo e2e images`: the images of a release.

use anyhow::{Result, ensure};
use holdfast_lab::architecture::Architecture;
use holdfast_lab::images::{self, VERSION};
use holdfast_lab::report;
use holdfast_lab::setup::{BuildProfile, Toolbox};

/// Bytes of a MB.
const MB: f64 = 1e6;

/// Builds the images into `images` of cargo's target directory and prints their properties.
///
/// # Errors
/// If one cannot be built, or exceeds its maximum size.
pub fn run() -> Result<()> {
    let toolbox = Toolbox::open()?;
    let directory = toolbox.target().join("images").join(Architecture::of_host()?.name());
    let mut too_large = Vec::new();
    for image in images::build(&toolbox, BuildProfile::Release, &directory)? {
        let megabytes = |bytes: u64| bytes as f64 / MB;
        report::line(format_args!(
            "{}:{VERSION} {}\n  {:.1} MB of files (at most {} MB), {:.1} MB to fetch: {}",
            image.recipe.name,
            image.written.digest,
            megabytes(image.written.unpacked_bytes),
            image.recipe.max_mb,
            megabytes(image.written.fetched_bytes),
            image.path.display()
        ));
        if image.written.unpacked_bytes > image.recipe.max_mb * 1_000_000 {
            too_large.push(image.recipe.name);
        }
    }
    ensure!(too_large.is_empty(), "larger than it may be: {}", too_large.join(", "));
    Ok(())
}
