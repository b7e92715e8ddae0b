//! The root file system of the test machines.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cache::{Cache, fingerprint};
use crate::command::{as_root, output};
use crate::pins::{GUEST_PACKAGES, GUEST_SUITE, NODE_PACKAGES, SYSTEMD_PACKAGES, SYSTEMD_SUITE};
use crate::setup::apt::{self, KEYRING};
use crate::setup::kernel::{GuestKernel, SHARE};

/// Size of the image; it is sparse, and machines write to a snapshot of it.
const SIZE: &str = "2G";
/// Expected time to create one.
pub(super) const EXPECTED: Duration = Duration::from_secs(90);

/// The same for [`UserSpace::Systemd`].
pub(super) const SYSTEMD_EXPECTED: Duration = Duration::from_secs(60);

/// Contents of a root file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserSpace {
    /// The tools of tests on devices and volumes.
    Plain,
    /// The same, and a container runtime.
    Containers,
    /// A common Debian stable setup: systemd, udev, LVM, md, multipath, btrfs.
    Systemd,
}

/// Debian units that are useless for tests, and cost time on an emulated machine.
const MASKED: &[&str] = &[
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty-static.service",
    "getty@.service",
    "ldconfig.service",
    "mdcheck_continue.timer",
    "mdcheck_start.timer",
    "serial-getty@.service",
    "systemd-hwdb-update.service",
    "systemd-journal-catalog-update.service",
    "systemd-journal-flush.service",
    "systemd-logind.service",
    "systemd-pstore.service",
];

impl UserSpace {
    fn suite(self) -> &'static str {
        match self {
            Self::Plain | Self::Containers => GUEST_SUITE,
            Self::Systemd => SYSTEMD_SUITE,
        }
    }

    fn packages(self) -> String {
        let packages = match self {
            Self::Plain => GUEST_PACKAGES.to_vec(),
            Self::Containers => [GUEST_PACKAGES, NODE_PACKAGES].concat(),
            Self::Systemd => SYSTEMD_PACKAGES.to_vec(),
        };
        packages.join(",")
    }

    /// Returns a script that completes the tree in `$1`; empty if the packages are sufficient.
    fn completion(self) -> String {
        match self {
            Self::Plain | Self::Containers => String::new(),
            Self::Systemd => format!(
                "set -e; cd \"$1\"; units=etc/systemd/system\n\
                 printf '%s' '{}' > $units/{AGENT}\n\
                 mkdir -p $units/multi-user.target.wants; ln -s ../{AGENT} $units/multi-user.target.wants/\n\
                 for unit in {}; do ln -sf /dev/null $units/$unit; done\n\
                 : > etc/machine-id; touch etc/.updated var/.updated\n",
                agent_unit(),
                MASKED.join(" ")
            ),
        }
    }
}

/// The agent's unit. It is started last: once it responds, everything that starts with the host is running.
const AGENT: &str = "holdfast-agent.service";

/// The test itself ends the programs that it started: no limit and no signal of systemd must interfere.
fn agent_unit() -> String {
    format!(
        "[Service]\nExecStart={SHARE}/bin/holdfast-e2e guest-agent\nKillMode=process\nTasksMax=infinity\n\
         OOMPolicy=continue\n"
    )
}

/// Creates an ext4 image with the guest's packages and the kernel's modules.
///
/// # Errors
/// If a package cannot be downloaded or the image cannot be created.
pub fn prepare(cache: &Cache, kernel: &GuestKernel, user_space: UserSpace) -> Result<PathBuf> {
    let (suite, packages, completion) = (user_space.suite(), user_space.packages(), user_space.completion());
    let key = format!("root-{suite}-{}-{}", fingerprint(&[&packages, &*completion].concat()), kernel.release);
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
                .args((!completion.is_empty()).then(|| format!("--customize-hook={completion}")))
                .arg(suite)
                .arg(&tree)
                .arg(format!("deb [signed-by={KEYRING}] {} {suite} main", apt::mirror()?)),
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
        // The tree belongs to root, so it is removed as root, even if the image was not created.
        output(as_root("rm").args(["-rf", "--one-file-system"]).arg(&tree))?;
        made?;
        Ok(fs::write(dir.join("packages"), &packages)?)
    })?;
    Ok(dir.join("root.ext4"))
}
