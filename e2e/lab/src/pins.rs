//! Every version this harness relies on, in one place.
//!
//! Cache keys are made from these names, so a changed pin builds again and never reuses old files.

use anyhow::{Context, Result};

/// A release of Debian's cloud kernel, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPin {
    /// Suites that carry its series, the likeliest first.
    pub suites: &'static [&'static str],
    /// The first choice, as `uname -r` says it. Debian drops old ones; then the newest release of the same
    /// series is taken, or else the newest of the same major version.
    pub release: &'static str,
    /// The most processors with which it boots under the emulator.
    pub emulated_processors: u32,
}

impl KernelPin {
    /// The pinned kernel of this series.
    ///
    /// # Errors
    /// If there is none.
    pub fn of(series: &str) -> Result<Self> {
        KERNELS.iter().find(|kernel| kernel.series() == series).copied().with_context(|| {
            let known: Vec<&str> = KERNELS.iter().map(Self::series).collect();
            format!("no kernel {series:?}; there are {}", known.join(", "))
        })
    }

    /// The first two numbers of its version, as in `6.12`.
    #[must_use]
    pub fn series(&self) -> &'static str {
        let second = self.release.find('.').map_or(0, |first| first + 1);
        let end = self.release[second..].find('.').map_or(self.release.len(), |length| second + length);
        &self.release[..end]
    }
}

/// The kernel the test machines boot where nothing else is said.
pub const KERNEL: KernelPin = KernelPin {
    suites: &["trixie-backports", "sid"],
    release: "7.3.4+deb13-cloud-amd64",
    emulated_processors: u32::MAX,
};
/// An older one.
pub const OLDER_KERNEL: KernelPin = KernelPin {
    suites: &["sid", "trixie-backports"],
    release: "7.2.13+deb14-cloud-amd64",
    emulated_processors: u32::MAX,
};
/// The long-term kernel of Debian stable: user copy only, and a recovery of its own kind. Emulated, it dies
/// in its first second where it has more than one processor.
pub const LTS_KERNEL: KernelPin = KernelPin {
    suites: &["trixie", "bookworm-backports"],
    release: "6.12.117+deb13-cloud-amd64",
    emulated_processors: 1,
};
/// The long-term kernel of Debian 12, on which no volume is served: it has no ublk, and FUSE that cannot send
/// requests again. For the experiment `nvme-tcp`.
pub const OLD_KERNEL: KernelPin =
    KernelPin { suites: &["bookworm"], release: "6.1.0-50-cloud-amd64", emulated_processors: 1 };
/// All on which volumes are served.
pub const KERNELS: &[KernelPin] = &[KERNEL, OLDER_KERNEL, LTS_KERNEL];
/// Suite of the test machine's user space and of the programs that are unpacked on the host.
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
    "procps",
    "psmisc",
    "strace",
    "util-linux",
    "xfsprogs",
];
/// Packages that the root file system of a cluster's node has beside those.
pub const NODE_PACKAGES: &[&str] = &["containerd", "containernetworking-plugins", "iptables", "runc"];
/// Suite of the machine that is as people have it: Debian stable.
pub const SYSTEMD_SUITE: &str = "trixie";
/// Packages of that machine: systemd, udev, and the programs of a host that look at block devices by
/// themselves.
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
/// Suite of the packages in our images. Its C library must not be older than that of the machine that
/// compiles the programs.
pub const IMAGE_SUITE: &str = "trixie";
/// Packages in our images: programs for file systems, the libraries of these and of our programs.
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
/// Packages the host needs: the emulator, what makes its disk images, what the Rust build needs, and
/// valgrind, which counts instructions.
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
/// Version of Kubernetes; `e2e/lab/go/kubernetes/go.mod` pins the same one.
pub const KUBERNETES: &str = "1.36.3";
/// Version of the S3 server.
pub const VERSITYGW: &str = "1.8.0";
/// Version of the second S3 server (4.53), as the module proxy names it; `e2e/lab/go/seaweedfs/go.mod` pins
/// the same one.
pub const SEAWEEDFS: &str = "0.0.0-20261109003541-7506e5f91cd6";
/// Version of trueno-ublk, a compressed ramdisk on ublk that memory volumes are compared with.
pub const TRUENO_UBLK: &str = "0.3.1";
/// Version of helm, which renders and checks the chart.
pub const HELM: &str = "4.3.1";
/// Version of csi-sanity, the CSI project's own tests.
pub const CSI_SANITY: &str = "5.6.0";
/// The CSI project's sidecars and their versions; `e2e/lab/go/sidecars/go.mod` pins the same ones. The chart
/// asks for a later provisioner, whose library the module proxy does not serve.
pub const SIDECARS: &[(&str, &str)] =
    &[("csi-attacher", "4.13.0"), ("csi-provisioner", "6.3.0"), ("csi-resizer", "2.3.0")];
/// Version of the CSI project's snapshotter and snapshot controller, in the same module. The chart asks for
/// 8.7.0, whose requirements would raise those of all other sidecars.
pub const SNAPSHOTTER: &str = "8.6.0";
/// Version of Velero, a backup program; `e2e/lab/go/velero/go.mod` pins the same one.
pub const VELERO: &str = "1.18.3";
/// Version of its plugin for S3, in the same module.
pub const VELERO_PLUGIN: &str = "1.14.3";
/// Version of the cluster-autoscaler that the scenario `autoscaler` is for: the newest for [`KUBERNETES`].
pub const CLUSTER_AUTOSCALER: &str = "1.36.1";
/// Oldest Go that builds all these, as (major, minor).
pub const GO: (u32, u32) = (1, 26);
/// Debian packages that hold that Go, unpacked when the PATH's `go` is missing or too old.
pub const GO_PACKAGES: &[&str] = &["golang-1.26-go", "golang-1.26-src"];
/// Path of GOROOT, below the directory those packages are unpacked in.
pub const GO_ROOT: &str = "usr/lib/go-1.26";
