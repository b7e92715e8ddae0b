//! Disk images of test machines: sparse files with ext4, created without mounting anything.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command::output;

/// Additional space in a share image, for the file system's own structures.
const SHARE_SLACK_BYTES: u64 = 32 << 20;

/// Creates an image with a copy of the directory `tree`.
///
/// # Errors
/// If the tree cannot be read or the image cannot be written.
pub fn share(image: &Path, tree: &Path) -> Result<()> {
    let used = output(Command::new("du").args(["-sb", "--"]).arg(tree))?;
    let used: u64 = used
        .split_whitespace()
        .next()
        .and_then(|bytes| bytes.parse().ok())
        .with_context(|| format!("du says {used:?}"))?;
    make(image, used + used / 8 + SHARE_SLACK_BYTES, Some(tree))
}

/// Creates an empty image of `size_bytes`.
///
/// # Errors
/// If it cannot be written.
pub fn empty(image: &Path, size_bytes: u64) -> Result<()> {
    make(image, size_bytes, None)
}

fn make(image: &Path, size_bytes: u64, tree: Option<&Path>) -> Result<()> {
    File::create(image)
        .and_then(|file| file.set_len(size_bytes))
        .with_context(|| format!("create {}", image.display()))?;
    let mut mke2fs = Command::new("/sbin/mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=1,nodiscard"]);
    if let Some(tree) = tree {
        mke2fs.args(["-O", "^has_journal", "-d"]).arg(tree);
    }
    output(mke2fs.arg(image)).map(drop)
}
