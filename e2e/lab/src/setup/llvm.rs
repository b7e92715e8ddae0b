//! llvm-cov and llvm-profdata of the version that matches the compiler's profiles.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::command::{as_root, output};
use crate::pins::GUEST_SUITE;
use crate::setup::apt::{self, KEYRING};

/// LLVM's programs, with their own libraries and loader: their suite is newer than the host's.
#[derive(Debug)]
pub struct Llvm {
    dir: PathBuf,
}

impl Llvm {
    /// Downloads them for the LLVM version of `rustc`.
    ///
    /// # Errors
    /// If rustc reports no LLVM version, or the suite does not have it.
    pub fn prepare(cache: &Cache) -> Result<Self> {
        let rustc = output(Command::new("rustc").arg("-vV"))?;
        let version = rustc.lines().find_map(|line| line.strip_prefix("LLVM version: "));
        let major = version.and_then(|version| version.split('.').next()).context("rustc names no LLVM")?;
        let key = format!("llvm-{major}-{GUEST_SUITE}");
        let dir = cache.entry(&key, Duration::from_secs(40), |dir| {
            let tree = dir.join("tree");
            let made = extract(major, &tree).and_then(|()| keep(major, &tree, dir));
            // The tree belongs to root, so it is removed as root, complete or not.
            output(as_root("rm").args(["-rf", "--one-file-system"]).arg(&tree))?;
            made
        })?;
        Ok(Self { dir })
    }

    /// Returns one of the programs.
    pub fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.dir.join("ld-linux-x86-64.so.2"));
        command.arg("--library-path").arg(&self.dir).arg(self.dir.join(name));
        command
    }
}

/// Unpacks the package and all its dependencies; none of their programs is run.
fn extract(major: &str, tree: &Path) -> Result<()> {
    output(
        as_root("mmdebstrap")
            .args(["--mode=root", "--variant=extract", "--quiet"])
            .args([
                "--aptopt=Acquire::Languages \"none\"",
                "--aptopt=Acquire::Check-Valid-Until \"false\"",
                "--dpkgopt=path-exclude=/usr/share/*",
            ])
            .arg(format!("--include=llvm-{major}"))
            .arg(GUEST_SUITE)
            .arg(tree)
            .arg(format!("deb [signed-by={KEYRING}] {} {GUEST_SUITE} main", apt::mirror()?)),
    )
    .with_context(|| format!("fetch LLVM {major} from Debian {GUEST_SUITE}"))
    .map(drop)
}

/// Copies the two programs and all of their libraries.
fn keep(major: &str, tree: &Path, dir: &Path) -> Result<()> {
    for program in ["llvm-cov", "llvm-profdata"] {
        fs::copy(tree.join(format!("usr/lib/llvm-{major}/bin/{program}")), dir.join(program))
            .with_context(|| format!("LLVM {major} without {program}"))?;
    }
    for entry in fs::read_dir(tree.join("usr/lib/x86_64-linux-gnu")).context("no libraries were unpacked")? {
        let entry = entry?;
        let is_library = entry.file_name().to_string_lossy().contains(".so");
        if is_library && fs::metadata(entry.path()).is_ok_and(|file| file.is_file()) {
            fs::copy(entry.path(), dir.join(entry.file_name()))?;
        }
    }
    Ok(())
}
