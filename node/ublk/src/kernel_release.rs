//! The running kernel's release, and the releases with known faults.

use std::fmt;
use std::ops::Range;

/// The release string of a kernel (`uname -r`), for example `6.17.0-1015-azure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRelease(String);

/// Upstream releases whose `ADD_DEV` can oops.
const BROKEN_UPSTREAM: [&str; 2] = ["6.18.4", "6.18.5"];
/// Ubuntu's builds of 6.17.0, from the changelogs of its packages (`docs/kernels.md`): for each flavour the
/// first one with `529d4d632788`, and the first one with `011af85ccd87` and `47bdf1d29cae` (none yet of
/// `vmware`). Those in between have the fault of [`BROKEN_UPSTREAM`].
const UBUNTU_6_17: [(&str, (u32, u32)); 10] = [
    (GENERIC, (24, 41)),
    ("aws", (1014, 1020)),
    ("azure", (1014, 1021)),
    ("azure-fde", (1011, 1018)),
    ("gcp", (1014, 1021)),
    ("nvidia", (1022, 1031)),
    ("oem", (1021, 1029)),
    ("oracle", (1013, 1019)),
    ("realtime", (1012, 1018)),
    ("vmware", (1003, u32::MAX)),
];
/// The same of 6.8.0, and of 6.8.1 for `realtime`: the first build with `e58f5142f883`, and the first one
/// with `80bdfbb3545b`, which the last builds of `oem` and `realtime` lack. `azure-fde` and `vmware` are
/// younger than a fix if the number is that of their first build.
const UBUNTU_6_8: [(&str, (u32, u32)); 15] = [
    (GENERIC, (50, 98)),
    ("lowlatency", (50, 98)),
    ("aws", (1020, 1046)),
    ("azure", (1019, 1046)),
    ("azure-fde", (1022, 1046)),
    ("gcp", (1019, 1047)),
    ("gke", (1015, 1043)),
    (EARLY_BUILDS_UNKNOWN, (1021, 1030)),
    ("ibm", (1017, 1044)),
    ("nvidia", (1019, 1046)),
    ("nvidia-lowlatency", (1019, 1046)),
    ("oem", (1018, u32::MAX)),
    ("oracle", (1017, 1043)),
    ("realtime", (1013, u32::MAX)),
    ("vmware", (1000, 1000)),
];
/// The flavour of [`UBUNTU_6_8`] of which no changelog of the builds before the first listed one was found.
const EARLY_BUILDS_UNKNOWN: &str = "gkeop";
/// Ubuntu's builds of 6.14.0: for each flavour the first one with `80bdfbb3545b`.
const UBUNTU_6_14: [(&str, u32); 8] = [
    (GENERIC, 32),
    ("aws", 1013),
    ("azure", 1012),
    ("azure-fde", 1012),
    ("gcp", 1016),
    ("nvidia", 1010),
    ("oem", 1012),
    ("oracle", 1013),
];
const GENERIC: &str = "generic";
/// The first build number of the flavours that Ubuntu numbers on their own, as `aws`; all others have that of
/// `generic`.
const FIRST_OF_FLAVOUR: u32 = 1000;
/// Upstream releases whose driver compares the pid that a server passes with its pid in the host's namespace:
/// from `c2c8089f325e` (6.17, stable release 6.16.1) to `47bdf1d29cae`, which translates it first (6.19,
/// stable release 6.18.8).
const COMPARES_PIDS: Range<(u32, u32, u32)> = (6, 16, 1)..(6, 18, 8);
/// Upstream releases that count each device against `ublks_max`, also those of root: from `403ebc877832`
/// (6.3) to `80bdfbb3545b` (6.15, stable releases 6.12.31 and 6.14.9).
const COUNTS_ALL_DEVICES: [Range<(u32, u32, u32)>; 2] = [(6, 3, 0)..(6, 12, 31), (6, 13, 0)..(6, 14, 9)];
/// Ranges of upstream releases whose `ublk_ctrl_start_recovery` dereferences a null pointer on its second
/// call (CVE-2024-46735). 6.5 is the first release that Holdfast runs on; `e58f5142f883` adds the check
/// (6.11, and the stable releases 6.10.10 and 6.6.51).
const CRASHES_IN_RECOVERY: [Range<(u32, u32, u32)>; 2] = [(6, 5, 0)..(6, 6, 51), (6, 7, 0)..(6, 10, 10)];
/// The first series whose driver tears down a server's devices correctly in all cases that affect recovery.
const TEARDOWN_FIXED_SINCE: (u32, u32) = (7, 1);
/// The first series with `FUSE_NOTIFY_RESEND`.
const RESENDS_FUSE_REQUESTS_SINCE: (u32, u32) = (6, 9);
/// The first series whose io_uring releases a registered file when no request uses it. Earlier ones wait for
/// all requests sent before, whatever files they use (`7029acd8a950`, Linux 6.13, gives each file its own
/// count).
const FREES_FILES_SINCE: (u32, u32) = (6, 13);

/// The first series on which devices use batches. Linux 7.0 introduced batches (`e2723e6ce602`), but only a
/// later release fixed their recovery (`3f3850785594`).
const BATCHES_SINCE: (u32, u32) = (7, 3);
/// See [`KernelRelease::recovers_each_queue`].
const RECOVERS_EACH_QUEUE_SINCE: (u32, u32) = (6, 15);

/// Faults of the ublk driver that crash the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverCrash {
    /// Adding a device can crash the host, or the release does not show that it cannot.
    OnAdd,
    /// Recovering a device can crash the host if an earlier daemon died during the recovery (CVE-2024-46735).
    OnRecovery,
}

impl fmt::Display for DriverCrash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OnAdd => "when a ublk device is added",
            Self::OnRecovery => "when a daemon ends while it recovers a ublk device (CVE-2024-46735)",
        })
    }
}

impl KernelRelease {
    /// Wraps a release string, without surrounding whitespace.
    #[must_use]
    pub fn new(release: &str) -> Self {
        Self(release.trim().to_owned())
    }

    /// Reads the release of the running kernel.
    ///
    /// # Errors
    /// If `/proc/sys/kernel/osrelease` cannot be read.
    pub fn running() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| Self::new(&text))
    }

    /// Returns true if a FUSE server can make the kernel resend requests that an earlier server did not
    /// answer (`FUSE_NOTIFY_RESEND`, Linux 6.9).
    #[must_use]
    pub fn resends_fuse_requests(&self) -> bool {
        self.series().is_some_and(|series| series >= RESENDS_FUSE_REQUESTS_SINCE)
    }

    /// Returns true if devices are added with batches (`UBLK_F_BATCH_IO`), provided that the driver supports
    /// them.
    #[must_use]
    pub fn batches_requests(&self) -> bool {
        self.series().is_some_and(|series| series >= BATCHES_SINCE)
    }

    /// Returns true if a daemon may exit after arming some but not all queues of a device in a recovery.
    /// Before Linux 6.15 the next START_USER_RECOVERY assumes that each queue has a server once one is armed,
    /// and dereferences a null pointer (`ublk_queue_reinit`).
    #[must_use]
    pub fn recovers_each_queue(&self) -> bool {
        self.series().is_some_and(|series| series >= RECOVERS_EACH_QUEUE_SINCE)
    }

    /// Returns the fault that prevents serving devices on this kernel.
    #[must_use]
    pub fn crash(&self) -> Option<DriverCrash> {
        let upstream = self.0.split(['-', '+', '~']).next().unwrap_or_default();
        if BROKEN_UPSTREAM.contains(&upstream) || self.may_be_broken_build() {
            return Some(DriverCrash::OnAdd);
        }
        (self.recovery_crashes() == Some(true)).then_some(DriverCrash::OnRecovery)
    }

    /// Returns true if the release, a distribution's build of an affected upstream release, does not show
    /// whether [`DriverCrash::OnRecovery`] is fixed.
    #[must_use]
    pub fn may_crash_on_recovery(&self) -> bool {
        self.recovery_crashes().is_none()
    }

    /// Returns `None` for an affected release with a distribution's build number, which may have the fix.
    fn recovery_crashes(&self) -> Option<bool> {
        let Some(version) = self.version() else { return Some(false) };
        let (major, minor, patch) = version;
        if !CRASHES_IN_RECOVERY.iter().any(|affected| affected.contains(&version)) {
            return Some(false);
        }
        if let Some(("6.8.0" | "6.8.1", build, flavour)) = self.build()
            && let Some((fixed, _)) = of_flavour(&UBUNTU_6_8, flavour)
        {
            return (build >= fixed || flavour != EARLY_BUILDS_UNKNOWN).then_some(build < fixed);
        }
        match self.build() {
            // Ubuntu and its derivatives number their own builds, not upstream's stable releases.
            _ if self.0.contains(&format!("-0{major}0{minor}")) => Some(true),
            // The last builds of Ubuntu and Debian are older than the fix.
            _ if self.0.starts_with("6.5.0-") => Some(true),
            Some((_, build, _)) if build >= FIRST_OF_FLAVOUR => None,
            _ if self.0.ends_with("-pve") || patch == 0 && self.0.contains('-') => None,
            _ => Some(true),
        }
    }

    /// Returns true if the driver may refuse a server in its own PID namespace: START_DEV and
    /// END_USER_RECOVERY answer `EINVAL`.
    #[must_use]
    pub fn compares_pids_of_namespaces(&self) -> bool {
        let is_fixed = matches!(self.build(), Some(("6.17.0", build, flavour))
            if of_6_17(build, flavour).is_some_and(|(_, fixed)| build >= fixed));
        self.version().is_some_and(|version| COMPARES_PIDS.contains(&version)) && !is_fixed
    }

    /// Returns true if the kernel may limit the number of all devices of the host (`ublks_max`), not only of
    /// those that unprivileged programs add.
    #[must_use]
    pub fn counts_all_devices(&self) -> bool {
        let is_fixed = match self.build() {
            Some(("6.8.0" | "6.8.1", build, flavour)) => {
                of_flavour(&UBUNTU_6_8, flavour).is_some_and(|(_, fixed)| build >= fixed)
            }
            Some(("6.14.0", build, flavour)) => {
                of_flavour(&UBUNTU_6_14, flavour).is_some_and(|fixed| build >= fixed)
            }
            _ => false,
        };
        !is_fixed
            && self
                .version()
                .is_some_and(|version| COUNTS_ALL_DEVICES.iter().any(|counts| counts.contains(&version)))
    }

    /// Splits a release like `6.17.0-1015-azure` into release, build number and flavour.
    fn build(&self) -> Option<(&str, u32, &str)> {
        let (release, rest) = self.0.split_once('-')?;
        let (build, flavour) = rest.split_once('-')?;
        // Ubuntu's builds of upstream releases begin with 0, as `6.8.0-060800-generic`.
        if build.starts_with('0') {
            return None;
        }
        Some((release, build.parse().ok()?, flavour))
    }

    /// Returns true if a ring of this kernel keeps an unregistered file until all earlier requests have
    /// ended, including those on other files.
    pub(crate) fn keeps_registered_files(&self) -> bool {
        self.series().is_none_or(|series| series < FREES_FILES_SINCE)
    }

    /// Returns the first two numbers of the version.
    fn series(&self) -> Option<(u32, u32)> {
        self.version().map(|(major, minor, _)| (major, minor))
    }

    /// Returns the version; 0 instead of a missing third number.
    fn version(&self) -> Option<(u32, u32, u32)> {
        let mut numbers = self.0.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
        let mut number = || numbers.next().flatten();
        Some((number()?, number()?, number().unwrap_or_default()))
    }

    /// Returns true for a build of Ubuntu that has the fault of [`BROKEN_UPSTREAM`], or may have it.
    fn may_be_broken_build(&self) -> bool {
        let Some((release, build, flavour)) = self.build() else { return false };
        match (release, of_6_17(build, flavour)) {
            ("6.17.0", Some((broken, fixed))) => (broken..fixed).contains(&build),
            // No changelog of other flavours was found, nor of 6.18.
            ("6.17.0", None) => true,
            ("6.18.0", _) => build >= FIRST_OF_FLAVOUR || without_page_size(flavour) == GENERIC,
            _ => false,
        }
    }

    /// Returns true if the driver has the three teardown fixes that recovery needs (845db023a8ae,
    /// 0842186d2c4e and f7700a4415af in Linux): Linux 7.1 or newer. `None` if the release contains no
    /// version.
    #[must_use]
    pub fn is_teardown_fixed(&self) -> Option<bool> {
        self.series().map(|series| series >= TEARDOWN_FIXED_SINCE)
    }
}

/// Returns what the list has for the flavour of a build.
fn of_flavour<T: Copy>(list: &[(&str, T)], flavour: &str) -> Option<T> {
    list.iter().find(|(name, _)| *name == without_page_size(flavour)).map(|(_, builds)| *builds)
}

/// Returns the entry of [`UBUNTU_6_17`] for a build.
fn of_6_17(build: u32, flavour: &str) -> Option<(u32, u32)> {
    of_flavour(&UBUNTU_6_17, if build < FIRST_OF_FLAVOUR { GENERIC } else { flavour })
}

/// Returns the flavour that a build with larger pages (`generic-64k`) shares its source and number with.
fn without_page_size(flavour: &str) -> &str {
    flavour.strip_suffix("-64k").unwrap_or(flavour)
}

impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{DriverCrash, KernelRelease};

    #[test]
    fn kernels_before_6_15_recover_all_queues_or_none() {
        for (release, recovers) in [
            ("6.12.117+deb13-cloud-amd64", false),
            ("6.14.11", false),
            ("6.15.0", true),
            ("7.3.4+deb13", true),
        ] {
            assert_eq!(KernelRelease::new(release).recovers_each_queue(), recovers, "{release}");
        }
    }

    /// Regression, found in review: builds with the backport that no crash had been reported of counted as
    /// good, and so did flavours whose builds are not known.
    #[test]
    fn kernels_that_may_be_broken_are_refused() {
        for broken in [
            "6.18.4",
            "6.18.5",
            "6.18.5-arch1-1",
            "6.18.4+deb14-cloud-amd64\n",
            "6.17.0-24-generic",
            "6.17.0-40-generic",
            "6.17.0-35-generic-64k",
            "6.17.0-35-lowlatency",
            "6.17.0-1014-aws",
            "6.17.0-1019-aws",
            "6.17.0-1014-azure",
            "6.17.0-1020-azure",
            "6.17.0-1011-azure-fde",
            "6.17.0-1017-azure-fde",
            "6.17.0-1014-gcp",
            "6.17.0-1020-gcp-64k",
            "6.17.0-1022-nvidia",
            "6.17.0-1030-nvidia",
            "6.17.0-1021-oem",
            "6.17.0-1028-oem",
            "6.17.0-1013-oracle",
            "6.17.0-1018-oracle",
            "6.17.0-1012-realtime",
            "6.17.0-1017-realtime",
            "6.17.0-1003-vmware",
            "6.17.0-1020-vmware",
            "6.17.0-1030-raspi",
            "6.17.0-1030-azure-nvidia",
            "6.18.0-9-generic",
            "6.18.0-1003-oracle",
        ] {
            assert_eq!(KernelRelease::new(broken).crash(), Some(DriverCrash::OnAdd), "{broken}");
        }
        for good in [
            "6.18.0",
            "6.18.6",
            "6.18.44",
            "6.18.0-1-default",
            "6.17.0-061700-generic",
            "6.17.0-23-generic",
            "6.17.0-41-generic",
            "6.17.0-41-generic-64k",
            "6.17.0-1013-aws",
            "6.17.0-1020-aws",
            "6.17.0-1013-azure",
            "6.17.0-1021-azure",
            "6.17.0-1010-azure-fde",
            "6.17.0-1018-azure-fde",
            "6.17.0-1013-gcp",
            "6.17.0-1021-gcp-64k",
            "6.17.0-1021-nvidia",
            "6.17.0-1031-nvidia",
            "6.17.0-1020-oem",
            "6.17.0-1029-oem",
            "6.17.0-1012-oracle",
            "6.17.0-1019-oracle",
            "6.17.0-1011-realtime",
            "6.17.0-1018-realtime",
            "6.17.0-1002-vmware",
            "6.14.0-35-generic",
            "7.2.13+deb14-cloud-amd64",
        ] {
            assert_eq!(KernelRelease::new(good).crash(), None, "{good}");
        }
    }

    /// Regression: kernels where a second START_USER_RECOVERY dereferences a null pointer were not refused.
    #[test]
    fn kernels_that_crash_in_a_recovery_are_refused() {
        let crashes = |release| {
            let release = KernelRelease::new(release);
            (release.crash() == Some(DriverCrash::OnRecovery), release.may_crash_on_recovery())
        };
        for broken in [
            "6.5.0",
            "6.6.50+",
            "6.7.12+bpo-amd64",
            "6.8.9-arch1-1",
            "6.8.0-060800-generic",
            "6.10.9",
            "6.5.0-45-generic",
            "6.5.0-1025-azure",
            "6.8.0-49-generic",
            "6.8.0-49-generic-64k",
            "6.8.0-49-lowlatency",
            "6.8.0-1019-aws",
            "6.8.0-1018-azure",
            "6.8.0-1018-gcp",
            "6.8.0-1014-gke",
            "6.8.0-1016-ibm",
            "6.8.0-1018-nvidia",
            "6.8.0-1018-nvidia-lowlatency",
            "6.8.0-1017-oem",
            "6.8.0-1016-oracle",
            "6.8.1-1012-realtime",
        ] {
            assert_eq!(crashes(broken), (true, false), "{broken}");
        }
        for unknown in ["6.8.0-1020-gkeop", "6.8.0-1015-raspi", "6.8.12-4-pve", "6.6.0-28.0.0.oe2403"] {
            assert_eq!(crashes(unknown), (false, true), "{unknown}");
        }
        for good in [
            "6.6.51-talos",
            "6.8.0-50-generic",
            "6.8.0-50-generic-64k",
            "6.8.0-50-lowlatency",
            "6.8.0-1020-aws",
            "6.8.0-1019-azure",
            "6.8.0-1022-azure-fde",
            "6.8.0-1019-gcp",
            "6.8.0-1015-gke",
            "6.8.0-1021-gkeop",
            "6.8.0-1017-ibm",
            "6.8.0-1019-nvidia",
            "6.8.0-1019-nvidia-lowlatency",
            "6.8.0-1018-oem",
            "6.8.0-1017-oracle",
            "6.8.1-1013-realtime",
            "6.8.0-1005-vmware",
            "6.10.10",
            "6.11.0-9-generic",
            "6.12.0-55.9.1.el10_0.x86_64",
            "6.12.117+deb13-cloud-amd64",
            "7.3.4",
            "custom",
        ] {
            assert_eq!(crashes(good), (false, false), "{good}");
        }
    }

    #[test]
    fn pids_are_compared_by_the_kernels_that_are_listed() {
        for (release, compares) in [
            ("6.16.0", false),
            ("6.16.1", true),
            ("6.16.12+deb14-amd64", true),
            ("6.17.0", true),
            ("6.17.0-40-generic", true),
            ("6.17.0-41-generic", false),
            ("6.17.0-1020-azure", true),
            ("6.17.0-1021-azure", false),
            ("6.17.0-1028-oem", true),
            ("6.17.0-1029-oem", false),
            ("6.17.0-1004-vmware", true),
            ("6.17.0-1030-raspi", true),
            ("6.18.7", true),
            ("6.18.8", false),
            ("6.18.44-generic", false),
            ("6.19.0", false),
            ("7.0.1", false),
            ("custom", false),
        ] {
            assert_eq!(KernelRelease::new(release).compares_pids_of_namespaces(), compares, "{release}");
        }
    }

    #[test]
    fn all_devices_count_before_linux_6_15() {
        for (release, counts) in [
            ("6.2.16", false),
            ("6.6.60", true),
            ("6.8.0-94-generic", true),
            ("6.8.0-100-generic", false),
            ("6.8.0-1045-aws", true),
            ("6.8.0-1046-aws", false),
            ("6.8.0-1030-gkeop", false),
            ("6.8.0-1032-oem", true),
            ("6.8.1-1015-realtime", true),
            ("6.8.0-1020-raspi", true),
            ("6.11.0-29-generic", true),
            ("6.12.30", true),
            ("6.12.31", false),
            ("6.12.117+deb13-cloud-amd64", false),
            ("6.14.0-29-generic", true),
            ("6.14.0-32-generic", false),
            ("6.14.0-1012-aws", true),
            ("6.14.0-1013-aws", false),
            ("6.14.8", true),
            ("6.14.9", false),
            ("6.15.0", false),
            ("7.3.4", false),
            ("custom", false),
        ] {
            assert_eq!(KernelRelease::new(release).counts_all_devices(), counts, "{release}");
        }
    }

    #[test]
    fn registered_files_are_kept_before_linux_6_13() {
        let keeps = |release| KernelRelease::new(release).keeps_registered_files();
        assert!(keeps("6.12.117+deb13-cloud-amd64") && keeps("6.8.0-50-generic") && keeps("unknown"));
        assert!(!keeps("6.13.0") && !keeps("7.3.4+deb13-cloud-amd64"));
    }

    #[test]
    fn the_teardown_is_fixed_since_linux_7_1() {
        for (release, fixed) in [
            ("6.18.44", Some(false)),
            ("7.0.13+deb13-cloud-amd64", Some(false)),
            ("7.1", Some(true)),
            ("7.1.0-rc3", Some(true)),
            ("7.10.2+deb14-amd64", Some(true)),
            ("10.0.1", Some(true)),
            ("custom", None),
        ] {
            assert_eq!(KernelRelease::new(release).is_teardown_fixed(), fixed, "{release}");
        }
    }
}
