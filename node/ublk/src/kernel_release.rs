//! Which kernel runs, and whether it is one of those that must not be touched.

use std::fmt;

/// The release string of a kernel (`uname -r`), for example `6.17.0-1015-azure`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRelease(String);

/// Upstream releases whose `ADD_DEV` can oops.
const BROKEN_UPSTREAM: [&str; 2] = ["6.18.4", "6.18.5"];
/// Distribution builds with the same fault backported.
const BROKEN_BUILDS: [&str; 3] = ["6.17.0-1015-azure", "6.17.0-1018-azure", "6.17.0-1017-aws"];

impl KernelRelease {
    /// Takes a release string as it is.
    #[must_use]
    pub fn new(release: &str) -> Self {
        Self(release.trim().to_owned())
    }

    /// The running kernel's.
    ///
    /// # Errors
    /// If `/proc/sys/kernel/osrelease` cannot be read.
    pub fn running() -> std::io::Result<Self> {
        std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| Self::new(&text))
    }

    /// Whether adding a ublk device is known to crash this kernel.
    #[must_use]
    pub fn is_known_broken(&self) -> bool {
        let upstream = self.0.split(['-', '+', '~']).next().unwrap_or_default();
        BROKEN_UPSTREAM.contains(&upstream) || BROKEN_BUILDS.contains(&self.0.as_str())
    }
}

impl fmt::Display for KernelRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::KernelRelease;

    #[test]
    fn exactly_the_broken_kernels_are_refused() {
        for broken in [
            "6.18.4",
            "6.18.5",
            "6.18.5-arch1-1",
            "6.18.4+deb14-cloud-amd64\n",
            "6.17.0-1015-azure",
            "6.17.0-1018-azure",
            "6.17.0-1017-aws",
        ] {
            assert!(KernelRelease::new(broken).is_known_broken(), "{broken}");
        }
        for good in ["6.18.6", "6.18.44", "6.17.0-1015-aws", "6.17.0-1017-azure", "7.2.13+deb14-cloud-amd64"]
        {
            assert!(!KernelRelease::new(good).is_known_broken(), "{good}");
        }
    }
}
