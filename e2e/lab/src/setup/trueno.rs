//! trueno-ublk: another compressed ramdisk on ublk, used as a reference for memory volumes.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Cache;
use crate::command::show;
use crate::pins::TRUENO_UBLK;

/// Time of the build on two quiet cores.
const EXPECTED: Duration = Duration::from_secs(400);

/// Builds it as released by its authors: from the registry, with the versions of its own lock file.
///
/// # Errors
/// If the registry does not have it or the compiler fails.
pub fn prepare(cache: &Cache) -> Result<PathBuf> {
    let dir = cache.entry(&format!("trueno-ublk-{TRUENO_UBLK}"), EXPECTED, |dir| {
        let target = tempfile::tempdir_in(dir)?;
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        show(
            Command::new(cargo)
                .args(["install", "trueno-ublk", "--version", TRUENO_UBLK, "--locked", "--root"])
                .arg(dir)
                .arg("--target-dir")
                .arg(target.path()),
        )
    })?;
    Ok(dir.join("bin/trueno-ublk"))
}
