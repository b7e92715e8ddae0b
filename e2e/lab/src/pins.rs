//! All versions that this harness depends on.
//!
//! Cache keys include these names, so a changed pin triggers a new build and never reuses old files.

use anyhow::{Context, Result};

/// The distribution that builds a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// Debian: cloud kernels. It drops old releases; the fallback is the newest release of the same series,
    /// then the newest of the same major version.
    Debian,
    /// Ubuntu. Its archive keeps all releases; the fallback is the newest release of the same series.
    Ubuntu,
}

/// A release of a distribution's kernel, and its suites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPin {
    /// The distribution.
    pub distribution: Distribution,
    /// Suites that may contain its series, the most likely first.
    pub suites: &'static [&'static str],
    /// The preferred release, as printed by `uname -r`.
    pub release: &'static str,
    /// Maximum processors with which it boots under the emulator.
    pub emulated_processors: u32,
}

impl KernelPin {
    /// Returns the pinned kernel of a series, such as `6.12`, or the kernel of a release of Ubuntu, such as
    /// `6.8.0-1070-aws`.
    ///
    /// # Errors
    /// If no kernel of that series is pinned.
    pub fn of(name: &str) -> Result<Self> {
        if name.contains('-') {
            // A command plays few kernels.
            let release = String::leak(name.to_owned());
            return Ok(KERNELS.iter().find(|kernel| kernel.release == name).copied().unwrap_or(Self {
                distribution: Distribution::Ubuntu,
                suites: UBUNTU_SUITES,
                release,
                emulated_processors: 1,
            }));
        }
        KERNELS.iter().find(|kernel| kernel.series() == name).copied().with_context(|| {
            let known: Vec<&str> = KERNELS.iter().map(Self::series).collect();
            format!("no kernel {name:?}; there are {}, and all releases of Ubuntu", known.join(", "))
        })
    }

    /// Returns its name after the `@` of a lane: see [`KernelPin::of`].
    #[must_use]
    pub fn name(&self) -> &'static str {
        if KERNELS.contains(self) { self.series() } else { self.release }
    }

    /// Returns the first two numbers of its version, as in `6.12`.
    #[must_use]
    pub fn series(&self) -> &'static str {
        let second = self.release.find('.').map_or(0, |first| first + 1);
        let end = self.release[second..].find('.').map_or(self.release.len(), |length| second + length);
        &self.release[..end]
    }

    /// Returns true if the series is this one, or newer.
    #[must_use]
    pub fn is_at_least(&self, major: u32, minor: u32) -> bool {
        let mut numbers = self.series().split('.').map(|number| number.parse().unwrap_or(0));
        (numbers.next(), numbers.next()) >= (Some(major), Some(minor))
    }

    /// Returns what follows the numbers of the release, such as `-cloud-amd64`: names of other builds of the
    /// same configuration end in it.
    #[must_use]
    pub fn flavour(&self) -> &'static str {
        let letter =
            |at: &(usize, &str)| self.release[at.0 + 1..].starts_with(|c: char| c.is_ascii_alphabetic());
        self.release.match_indices('-').find(letter).map_or("", |(at, _)| &self.release[at..])
    }
}

/// Default kernel of the test machines.
pub const KERNEL: KernelPin = KernelPin {
    distribution: Distribution::Debian,
    suites: &["trixie-backports", "sid"],
    release: "7.3.4+deb13-cloud-amd64",
    emulated_processors: u32::MAX,
};
/// An older one.
pub const OLDER_KERNEL: KernelPin = KernelPin {
    distribution: Distribution::Debian,
    suites: &["sid", "trixie-backports"],
    release: "7.2.13+deb14-cloud-amd64",
    emulated_processors: u32::MAX,
};
/// The long-term kernel of Debian stable: user copy only, and a different recovery. Emulated, it dies in its
/// first second with more than one processor.
pub const LTS_KERNEL: KernelPin = KernelPin {
    distribution: Distribution::Debian,
    suites: &["trixie", "bookworm-backports"],
    release: "6.12.117+deb13-cloud-amd64",
    emulated_processors: 1,
};
/// The long-term kernel of Debian 12, on which no volume is served: it has no ublk, and its FUSE cannot
/// resend requests. For the experiment `nvme-tcp`.
pub const OLD_KERNEL: KernelPin = KernelPin {
    distribution: Distribution::Debian,
    suites: &["bookworm"],
    release: "6.1.0-50-cloud-amd64",
    emulated_processors: 1,
};
/// The kernel of Ubuntu 24.04, and its newer ones, as most recently released; the last is also that of 26.04.
pub const UBUNTU_KERNELS: [KernelPin; 5] = [
    ubuntu("6.8.0-151-generic"),
    ubuntu("6.11.0-29-generic"),
    ubuntu("6.14.0-37-generic"),
    ubuntu("6.17.0-42-generic"),
    ubuntu("7.0.0-44-generic"),
];
/// Suites with all releases of Ubuntu's kernels since 6.8.
const UBUNTU_SUITES: &[&str] = &["noble-updates", "resolute-updates", "noble"];
/// All kernels on which volumes are served.
pub const KERNELS: &[KernelPin] = &[
    KERNEL,
    OLDER_KERNEL,
    LTS_KERNEL,
    UBUNTU_KERNELS[0],
    UBUNTU_KERNELS[1],
    UBUNTU_KERNELS[2],
    UBUNTU_KERNELS[3],
    UBUNTU_KERNELS[4],
];

const fn ubuntu(release: &'static str) -> KernelPin {
    KernelPin { distribution: Distribution::Ubuntu, suites: UBUNTU_SUITES, release, emulated_processors: 1 }
}

/// Suite of the test machine's user space and of the programs unpacked on the host.
pub const GUEST_SUITE: &str = "forky";
/// Packages in the test machine's root file system.
pub const GUEST_PACKAGES: &[&str] = &[
    "bash",
    "btrfs-progs",
    "e2fsprogs",
    "fio",
    "iproute2",
    "jq",
    "kmod",
    "nbd-client",
    "procps",
    "psmisc",
    "qemu-utils",
    "strace",
    "util-linux",
    "xfsprogs",
];
/// Additional packages in the root file system of a cluster's node.
pub const NODE_PACKAGES: &[&str] = &["containerd", "containernetworking-plugins", "iptables", "runc"];
/// Suite of the machine with a common setup: Debian stable.
pub const SYSTEMD_SUITE: &str = "trixie";
/// Packages of that machine: systemd, udev, and host programs that scan block devices.
pub const SYSTEMD_PACKAGES: &[&str] = &[
    "bash",
    "btrfs-progs",
    "e2fsprogs",
    "fdisk",
    "iproute2",
    "jq",
    "kmod",
    "lvm2",
    "mdadm",
    "multipath-tools",
    "procps",
    "systemd",
    "systemd-sysv",
    "udev",
    "util-linux",
];
/// Suite of the packages in our images. Its C library must not be older than that of the build host.
pub const IMAGE_SUITE: &str = "trixie";
/// Packages in our images: programs for file systems, their libraries and those of our programs.
pub const IMAGE_PACKAGES: &[&str] = &[
    "base-files",
    "btrfs-progs",
    "ca-certificates",
    "coreutils",
    "e2fsprogs",
    "libblkid1",
    "libc6",
    "libcap2",
    "libcom-err2",
    "libext2fs2t64",
    "libgcc-s1",
    "libinih1",
    "liblzo2-2",
    "libmount1",
    "libpcre2-8-0",
    "libselinux1",
    "libudev1",
    "liburcu8t64",
    "libuuid1",
    "libzstd1",
    "mount",
    "util-linux",
    "xfsprogs",
    "zlib1g",
];
/// Packages required on the host: the emulator, tools for its disk images, requirements of the Rust build,
/// and valgrind, which counts instructions.
pub const HOST_PACKAGES: &[&str] = &[
    "binutils",
    "ca-certificates",
    "cpio",
    "debian-archive-keyring",
    "e2fsprogs",
    "gcc",
    "libc6-dev",
    "libclang-dev",
    "mmdebstrap",
    "protobuf-compiler",
    "qemu-system-x86",
    "util-linux",
    "valgrind",
    "xz-utils",
    "zstd",
];
/// Version of Kubernetes, also pinned in `e2e/lab/go/kubernetes/go.mod`.
pub const KUBERNETES: &str = "1.36.3";
/// Version of the S3 server.
pub const VERSITYGW: &str = "1.8.0";
/// Version of the second S3 server (4.53), as named on the module proxy, also pinned in
/// `e2e/lab/go/seaweedfs/go.mod`.
pub const SEAWEEDFS: &str = "0.0.0-20261109003541-7506e5f91cd6";
/// Version of trueno-ublk, a compressed ramdisk on ublk that memory volumes are compared with.
pub const TRUENO_UBLK: &str = "0.3.1";
/// Version of ZeroFS, a file system in an object store that the data plane is compared with: the newest one
/// of the Rust registry.
pub const ZEROFS: &str = "0.19.1";
/// Version of helm, which renders and checks the chart.
pub const HELM: &str = "4.3.1";
/// Version of csi-sanity, the CSI project's own tests.
pub const CSI_SANITY: &str = "5.6.0";
/// The CSI project's sidecars and their versions, also pinned in `e2e/lab/go/sidecars/go.mod`. The chart uses
/// a later provisioner, whose library is not on the module proxy.
pub const SIDECARS: &[(&str, &str)] =
    &[("csi-attacher", "4.13.0"), ("csi-provisioner", "6.3.0"), ("csi-resizer", "2.3.0")];
/// Version of the CSI project's snapshotter and snapshot controller, in the same module. The chart uses
/// 8.7.0, whose requirements would raise those of all other sidecars.
pub const SNAPSHOTTER: &str = "8.6.0";
/// Version of Velero, a backup program, also pinned in `e2e/lab/go/velero/go.mod`.
pub const VELERO: &str = "1.18.3";
/// Version of its plugin for S3, in the same module.
pub const VELERO_PLUGIN: &str = "1.14.3";
/// Version of the cluster-autoscaler for the scenario `autoscaler`: the newest for [`KUBERNETES`].
pub const CLUSTER_AUTOSCALER: &str = "1.36.1";
/// Minimum version of Go for all of these, as (major, minor).
pub const GO: (u32, u32) = (1, 26);
/// Debian packages of that Go, unpacked if the PATH's `go` is missing or too old.
pub const GO_PACKAGES: &[&str] = &["golang-1.26-go", "golang-1.26-src"];
/// Path of GOROOT, below the directory to which those packages are unpacked.
pub const GO_ROOT: &str = "usr/lib/go-1.26";
