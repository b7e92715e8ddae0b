//! Boot files of test machines, and their accelerator.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::kernel::{GuestKernel, PROBE, PROBE_ANSWER};
use crate::cache::Cache;
use crate::process::LoggedProcess;
use crate::report;
use crate::wait::until;

/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";
/// Maximum wait for a kernel to report its boot under KVM; it takes one second.
const PROBE_LIMIT: Duration = Duration::from_secs(20);

/// Executor of the machine's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accelerator {
    /// The processor.
    Kvm,
    /// QEMU's translator: available everywhere, several times slower.
    Tcg,
}

/// Boot files of every machine.
#[derive(Debug, Clone)]
pub struct BootFiles {
    /// The uncompressed kernel.
    pub vmlinux: PathBuf,
    /// The initramfs.
    pub initramfs: PathBuf,
    /// The root file system; machines write to a snapshot of it.
    pub root_fs: PathBuf,
    /// Executor of the machine's instructions.
    pub accelerator: Accelerator,
    /// Maximum processors with which the kernel boots under the emulator.
    pub emulated_processors: u32,
}

impl Accelerator {
    /// Tests, once for each kernel and host, if KVM actually boots the kernel: a `/dev/kvm` that can be
    /// opened does not guarantee it.
    ///
    /// # Errors
    /// If the result cannot be cached.
    pub fn probe(cache: &Cache, kernel: &GuestKernel) -> Result<Self> {
        let host = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let key = format!("accelerator-{}-on-{}", kernel.release, host.trim());
        let dir = cache.entry(&key, Duration::from_secs(2), |dir| {
            let boots = boots_under_kvm(kernel, &dir.join("console"));
            let name = if boots { "kvm" } else { "tcg" };
            report::step(format_args!("test machines run under {name}"));
            Ok(fs::write(dir.join("name"), name)?)
        })?;
        let name = fs::read_to_string(dir.join("name")).context("read the accelerator's name")?;
        Ok(if name == "kvm" { Self::Kvm } else { Self::Tcg })
    }
}

fn boots_under_kvm(kernel: &GuestKernel, console: &Path) -> bool {
    if fs::File::options().read(true).write(true).open("/dev/kvm").is_err() {
        return false;
    }
    let mut qemu = Command::new(QEMU);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-machine", "q35", "-accel", "kvm", "-cpu", "host", "-m", "512"])
        .arg("-kernel")
        .arg(&kernel.vmlinux)
        .arg("-initrd")
        .arg(&kernel.initramfs)
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 {PROBE}")])
        .args(["-serial", "stdio"]);
    let Ok(mut qemu) = LoggedProcess::spawn("kvm-probe", &qemu, console) else {
        return false;
    };
    let answered = until("the kernel to boot under KVM", PROBE_LIMIT, || {
        if fs::read_to_string(console).is_ok_and(|text| text.contains(PROBE_ANSWER)) {
            return Ok(Some(true));
        }
        Ok(qemu.ended()?.map(|_| false))
    });
    answered.unwrap_or(false)
}
