//! kublk: the kernel's own ublk server from its selftests, used as a reference for figures.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::Cache;
use crate::command::output;
use crate::pins::GUEST_SUITE;
use crate::setup::apt::AptRoot;
use crate::setup::kernel::GuestKernel;

/// Builds a static kublk from the source of the kernel's own version.
///
/// # Errors
/// If the source package is unavailable or the compiler fails.
pub fn prepare(cache: &Cache, kernel: &GuestKernel) -> Result<PathBuf> {
    let version = kernel.release.split('.').take(2).collect::<Vec<_>>().join(".");
    let dir = cache.entry(&format!("kublk-{version}"), Duration::from_secs(60), |dir| {
        let scratch = tempfile::tempdir_in(dir).context("make a directory for the source")?;
        let root = scratch.path();
        let package = format!("linux-source-{version}");
        AptRoot::new(&kernel.suite)?.unpack(&[&package, "linux-libc-dev"], root)?;
        AptRoot::new(GUEST_SUITE)?.unpack(&["liburing-dev"], root)?;
        let tests = format!("{package}/tools/testing/selftests");
        output(
            Command::new("tar")
                .arg("-C")
                .arg(root)
                .arg("-xJf")
                .arg(root.join(format!("usr/src/{package}.tar.xz")))
                .args([format!("{tests}/ublk"), format!("{tests}/kselftest.h")]),
        )?;
        compile(&root.join(tests).join("ublk"), &root.join("usr"), &dir.join("kublk"))
    })?;
    Ok(dir.join("kublk"))
}

fn compile(source: &Path, usr: &Path, to: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(source).with_context(|| format!("list {}", source.display()))? {
        let path = entry?.path();
        // A separate program in the same directory.
        let other = path.file_stem().is_some_and(|stem| stem == "metadata_size");
        if path.extension().is_some_and(|kind| kind == "c") && !other {
            files.push(path);
        }
    }
    let mut gcc = Command::new("gcc");
    gcc.args(["-D_GNU_SOURCE", "-O3", "-w", "-static", "-I"])
        .arg(usr.join("include"))
        .arg("-I")
        .arg(usr.join("include/x86_64-linux-gnu"))
        .arg("-o")
        .arg(to)
        .args(files)
        .arg("-L")
        .arg(usr.join("lib/x86_64-linux-gnu"))
        .args(["-luring", "-lpthread", "-lm"]);
    output(&mut gcc).map(drop)
}
