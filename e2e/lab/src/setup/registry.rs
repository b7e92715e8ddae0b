//! Programs from the Rust registry that figures compare volumes with.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use crate::cache::Cache;
use crate::command::show;
use crate::pins::{TRUENO_UBLK, ZEROFS};

/// A program with its package and version.
#[derive(Debug, Clone, Copy)]
pub(super) struct RegistryProgram {
    /// Name of the package and of its program.
    name: &'static str,
    version: &'static str,
    /// Time of the build on two quiet cores.
    expected: Duration,
}

/// Another compressed ramdisk on ublk.
pub(super) const TRUENO: RegistryProgram =
    RegistryProgram { name: "trueno-ublk", version: TRUENO_UBLK, expected: Duration::from_secs(400) };
/// A file system in an object store that serves block devices by NBD.
pub(super) const ZERO_FS: RegistryProgram =
    RegistryProgram { name: "zerofs", version: ZEROFS, expected: Duration::from_secs(300) };

impl RegistryProgram {
    /// Builds it as released by its authors: from the registry, with the versions of its own lock file.
    ///
    /// # Errors
    /// If the registry does not have it or the compiler fails.
    pub(super) fn prepare(self, cache: &Cache) -> Result<PathBuf> {
        let Self { name, version, expected } = self;
        let dir = cache.entry(&format!("{name}-{version}"), expected, |dir| {
            let target = tempfile::tempdir_in(dir)?;
            let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
            show(
                Command::new(cargo)
                    .args(["install", name, "--version", version, "--locked", "--root"])
                    .arg(dir)
                    .arg("--target-dir")
                    .arg(target.path()),
            )
        })?;
        Ok(dir.join("bin").join(name))
    }
}
