//! The kernel's release, compared with the faults of `docs/kernels.md`.

use std::io;

use holdfast_ublk::{DeviceLimit, KernelRelease};

use super::Check;

const NEWEST: &str = "boot Linux 7.1 or newer";

pub(super) fn check(release: Result<&KernelRelease, &io::Error>) -> Check {
    const NAME: &str = "kernel";
    let release = match release {
        Ok(release) => release,
        Err(error) => {
            let found = format!("/proc/sys/kernel/osrelease cannot be read ({error})");
            return Check::fail(NAME, found, "mount /proc");
        }
    };
    if let Some(crash) = release.crash() {
        return Check::fail(
            NAME,
            format!("Linux {release} can crash {crash}. The daemon refuses to serve by ublk"),
            NEWEST,
        );
    }
    if release.may_crash_on_recovery() {
        let found = format!(
            "Linux {release} does not say whether it has the fix of CVE-2024-46735. Without it, the host crashes \
             when a daemon exits while it recovers a device"
        );
        return Check::warn(
            NAME,
            found,
            "take a build with that fix (of Ubuntu 24.04: 6.8.0-50 or newer), or boot Linux 7.1 or newer",
        );
    }
    match release.is_teardown_fixed() {
        Some(true) => {
            Check::pass(NAME, format!("Linux {release} has none of the faults that this version knows"))
        }
        Some(false) => {
            let found = format!(
                "Linux {release} has known faults in the teardown of a ublk server. After an exit of the daemon, \
                 its devices may be unrecoverable"
            );
            Check::warn(NAME, found, NEWEST)
        }
        None => {
            let found = format!("the release {release:?} names no version. Its faults are not known");
            Check::warn(NAME, found, "compare the kernel with docs/kernels.md")
        }
    }
}

/// Checks the kernel's limit of devices; `None` if it does not concern a daemon.
pub(super) fn check_device_limit(limit: Option<DeviceLimit>) -> Option<Check> {
    const NAME: &str = "ublk devices";
    let DeviceLimit { devices, can_be_raised } = limit?;
    let found = format!("the kernel allows {devices} devices to all programs of this host");
    if devices >= DeviceLimit::RAISED {
        return Some(Check::pass(NAME, found));
    }
    if can_be_raised {
        return Some(Check::pass(NAME, format!("{found}. The daemon raises that if it needs more")));
    }
    let found = format!("{found}, and {} cannot be written. Further attaches fail", DeviceLimit::PATH);
    let fix = format!(
        "set it on the host, for the next start with a line `options ublk_drv ublks_max={}` in /etc/modprobe.d; or boot \
         Linux 6.15 or newer",
        DeviceLimit::RAISED
    );
    Some(Check::warn(NAME, found, fix))
}

/// Checks the PID namespace; `release` is `None` if it is unreadable.
pub(super) fn check_pid_namespace(release: Option<&KernelRelease>, is_of_host: bool) -> Check {
    const NAME: &str = "PID namespace";
    const FIX: &str = "set hostPID: true in the pod, or run the daemon in the host's PID namespace";
    if is_of_host {
        return Check::pass(NAME, "the host's");
    }
    match release.filter(|release| release.compares_pids_of_namespaces()) {
        Some(release) => {
            let found = format!(
                "not the host's. Linux {release} refuses a ublk server in a separate one (EINVAL of START_DEV \
                 and END_USER_RECOVERY)"
            );
            Check::fail(NAME, found, FIX)
        }
        None => {
            let found = "not the host's. The daemon does not see a shutdown of the host, which may wait for its devices";
            Check::warn(NAME, found, FIX)
        }
    }
}
