//! The root file system of the test machines.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::{Cache, fingerprint};
use crate::command::{as_root, output};
use crate::pins::{GUEST_PACKAGES, GUEST_SUITE, NODE_PACKAGES};
use crate::setup::apt::{self, KEYRING};
use crate::setup::kernel::Kernel;

/// Room in the image; it is sparse, and machines write to a snapshot of it.
const SIZE: &str = "2G";
/// Time it takes to make one.
pub(super) const EXPECTED: Duration = Duration::from_secs(90);

/// Contents of a root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserSpace {
    /// The tools of tests on devices and volumes.
    Plain,
    /// The same, and a container runtime.
    Containers,
}

/// Makes an ext4 image with the guest's packages and the kernel's modules.
///
/// # Errors
/// If a package cannot be fetched or the image cannot be made.
pub fn prepare(cache: &Cache, kernel: &Kernel, user_space: UserSpace) -> Result<PathBuf> {
    let more = match user_space {
        UserSpace::Plain => &[],
        UserSpace::Containers => NODE_PACKAGES,
    };
    let packages = [GUEST_PACKAGES, more].concat().join(",");
    let key = format!("root-{GUEST_SUITE}-{}-{}", fingerprint(&packages), kernel.release);
    let dir = cache.entry(&key, EXPECTED, |dir| {
        let tree = dir.join("tree");
        let made = output(
            as_root("mmdebstrap")
                .args(["--mode=root", "--variant=minbase", "--quiet"])
                .args([
                    "--aptopt=Acquire::Languages \"none\"",
                    "--aptopt=Acquire::Check-Valid-Until \"false\"",
                    "--dpkgopt=path-exclude=/usr/share/doc/*",
                    "--dpkgopt=path-exclude=/usr/share/man/*",
                    "--dpkgopt=path-exclude=/usr/share/locale/*",
                ])
                .arg(format!("--include={packages}"))
                .arg("--customize-hook=mkdir -p \"$1/usr/lib/modules\"")
                .arg(format!("--customize-hook=cp -r '{}' \"$1/usr/lib/modules/\"", kernel.modules.display()))
                .arg(format!("--customize-hook=chroot \"$1\" depmod {}", kernel.release))
                .arg(GUEST_SUITE)
                .arg(&tree)
                .arg(format!("deb [signed-by={KEYRING}] {} {GUEST_SUITE} main", apt::mirror()?)),
        )
        .context("make the guest's root file system")
        .and_then(|_| {
            let image = dir.join("root.ext4");
            output(Command::new("truncate").args(["-s", SIZE]).arg(&image))?;
            output(
                as_root("/sbin/mke2fs")
                    .args(["-q", "-t", "ext4", "-O", "^has_journal"])
                    .args(["-E", "lazy_itable_init=1", "-d"])
                    .arg(&tree)
                    .arg(&image),
            )
        });
        // The tree belongs to root, so it is removed as root, whether the image was made or not.
        output(as_root("rm").args(["-rf", "--one-file-system"]).arg(&tree))?;
        made?;
        Ok(fs::write(dir.join("packages"), &packages)?)
    })?;
    Ok(dir.join("root.ext4"))
}
