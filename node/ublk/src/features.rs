//! Features of the kernel's ublk driver, and the transports that they enable.

use libublk::sys;

use crate::{DriverCrash, KernelRelease};

/// The driver's control device.
pub const CONTROL_PATH: &str = "/dev/ublk-control";

/// Transports by which requests and their data reach the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// The request's own pages, as a registered buffer of the ring.
    ZeroCopy,
    /// Through buffers of the queue, copied by reads and writes of the character device.
    UserCopy,
    /// Through one buffer per tag, which the kernel fills and empties as part of the queue's commands: no
    /// system call moves data. For a server that must see each byte.
    KernelCopy,
    /// Without the driver: requests for a FUSE file below a loop device.
    Fuse,
}

impl Transport {
    /// All transports.
    pub const ALL: [Self; 4] = [Self::ZeroCopy, Self::UserCopy, Self::KernelCopy, Self::Fuse];

    /// Returns the name used in configuration and status.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::UserCopy => "user-copy",
            Self::KernelCopy => "kernel-copy",
            Self::Fuse => "fuse",
        }
    }

    /// Returns the driver features that the transport needs.
    pub(crate) const fn flags(self) -> u64 {
        match self {
            Self::ZeroCopy => (sys::UBLK_F_SUPPORT_ZERO_COPY | sys::UBLK_F_AUTO_BUF_REG) as u64,
            Self::UserCopy => sys::UBLK_F_USER_COPY as u64,
            Self::KernelCopy | Self::Fuse => 0,
        }
    }

    /// Returns the transport of a ublk device with these flags; `None` if it moves data in another way.
    /// Without a flag the kernel copies (`ublk_need_map_io` in `drivers/block/ublk_drv.c`).
    pub(crate) const fn of_device(flags: u64) -> Option<Self> {
        if flags & Self::ZeroCopy.flags() == Self::ZeroCopy.flags() {
            return Some(Self::ZeroCopy);
        }
        if flags & Self::UserCopy.flags() != 0 {
            return Some(Self::UserCopy);
        }
        if flags & Self::ZeroCopy.flags() != 0 { None } else { Some(Self::KernelCopy) }
    }
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Transport {
    type Err = Unsupported;

    fn from_str(name: &str) -> Result<Self, Unsupported> {
        Self::ALL
            .into_iter()
            .find(|transport| transport.name() == name)
            .ok_or_else(|| Unsupported::UnknownTransport { name: name.to_owned() })
    }
}

/// Reasons why this node cannot serve devices, or not with the requested transport.
#[derive(Debug, thiserror::Error)]
pub enum Unsupported {
    /// A ublk device can crash this kernel.
    #[error("kernel {release} can crash {crash}; update the kernel")]
    BrokenKernel {
        /// The running kernel.
        release: KernelRelease,
        /// The fault.
        crash: DriverCrash,
    },
    /// The running kernel's release could not be read.
    #[error("the kernel release could not be read")]
    Release(#[source] std::io::Error),
    /// `/dev/ublk-control` does not exist.
    #[error("{CONTROL_PATH} does not exist; load the ublk_drv module (Linux 6.12 or newer)")]
    NoDriver,
    /// `/dev/ublk-control` exists, but it cannot be opened, or a command cannot be sent to it.
    #[error("{CONTROL_PATH} cannot be used; run as root with access to the device")]
    NoAccess(#[source] std::io::Error),
    /// The driver does not know GET_FEATURES (before 6.5).
    #[error("the ublk driver of kernel {release} does not report its features; boot Linux 6.12 or newer")]
    NoFeatures {
        /// The running kernel.
        release: KernelRelease,
    },
    /// The driver lacks a feature that every device needs.
    #[error("the ublk driver of kernel {release} lacks {missing}")]
    MissingFeature {
        /// The running kernel.
        release: KernelRelease,
        /// The names of the missing features, as in `linux/ublk_cmd.h`.
        missing: FeatureNames,
    },
    /// The kernel lacks FUSE, loop devices, or a way to keep requests across a restart.
    #[error("kernel {release} cannot serve devices by FUSE: {lack}")]
    NoFuse {
        /// The running kernel.
        release: KernelRelease,
        /// The missing part, and the fix.
        lack: &'static str,
    },
    /// The keeper, the process that holds the FUSE connections, does not run.
    #[error(
        "devices without ublk need the keeper at {}, and {found}. Without it, requests would fail whenever the daemon exits; \
         start the keeper (holdfast-node keeper; node.withoutUblk.enabled of the chart), or load ublk_drv", socket.display()
    )]
    NoKeeper {
        /// Its socket.
        socket: std::path::PathBuf,
        /// State of the keeper.
        found: &'static str,
    },
    /// No transport has this name.
    #[error("transport {name:?} is unknown; use \"zero-copy\", \"user-copy\", \"kernel-copy\" or \"fuse\"")]
    UnknownTransport {
        /// The given name.
        name: String,
    },
}

impl Unsupported {
    /// Returns true if the kernel has no usable ublk driver. If false, it may have a driver that this process
    /// cannot access.
    #[must_use]
    pub const fn is_without_ublk(&self) -> bool {
        match self {
            Self::BrokenKernel { .. }
            | Self::NoDriver
            | Self::NoFeatures { .. }
            | Self::MissingFeature { .. } => true,
            Self::Release(_)
            | Self::NoAccess(_)
            | Self::NoFuse { .. }
            | Self::NoKeeper { .. }
            | Self::UnknownTransport { .. } => false,
        }
    }
}

/// The names of driver features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureNames(u64);

/// Features of a device whose requests must be fetched or answered differently from [`Queue`](crate::Queue).
///
/// Features unknown to this version do not count, because the kernel sets some of them on every device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignFeatures(u64);

const FOREIGN: u64 = (sys::UBLK_F_NEED_GET_DATA
    | sys::UBLK_F_UNPRIVILEGED_DEV
    | sys::UBLK_F_ZONED
    | sys::UBLK_F_USER_RECOVERY_FAIL_IO
    | sys::UBLK_F_INTEGRITY
    | sys::UBLK_F_SHMEM_ZC) as u64;

impl ForeignFeatures {
    /// Returns the foreign features among a device's flags.
    #[must_use]
    pub const fn among(flags: u64) -> Self {
        Self(flags & FOREIGN)
    }

    /// Returns true if the device has none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Display for ForeignFeatures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_names(self.0, f)
    }
}

const FEATURE_NAMES: [(u32, &str); 17] = [
    (sys::UBLK_F_SUPPORT_ZERO_COPY, "SUPPORT_ZERO_COPY"),
    (sys::UBLK_F_AUTO_BUF_REG, "AUTO_BUF_REG"),
    (sys::UBLK_F_USER_COPY, "USER_COPY"),
    (sys::UBLK_F_USER_RECOVERY, "USER_RECOVERY"),
    (sys::UBLK_F_USER_RECOVERY_REISSUE, "USER_RECOVERY_REISSUE"),
    (sys::UBLK_F_CMD_IOCTL_ENCODE, "CMD_IOCTL_ENCODE"),
    (sys::UBLK_F_QUIESCE, "QUIESCE"),
    (sys::UBLK_F_UPDATE_SIZE, "UPDATE_SIZE"),
    (sys::UBLK_F_NO_AUTO_PART_SCAN, "NO_AUTO_PART_SCAN"),
    (sys::UBLK_F_SAFE_STOP_DEV, "SAFE_STOP_DEV"),
    (sys::UBLK_F_NEED_GET_DATA, "NEED_GET_DATA"),
    (sys::UBLK_F_UNPRIVILEGED_DEV, "UNPRIVILEGED_DEV"),
    (sys::UBLK_F_ZONED, "ZONED"),
    (sys::UBLK_F_USER_RECOVERY_FAIL_IO, "USER_RECOVERY_FAIL_IO"),
    (sys::UBLK_F_BATCH_IO, "BATCH_IO"),
    (sys::UBLK_F_INTEGRITY, "INTEGRITY"),
    (sys::UBLK_F_SHMEM_ZC, "SHMEM_ZC"),
];

impl std::fmt::Display for FeatureNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_names(self.0, f)
    }
}

fn write_names(bits: u64, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let mut separator = "";
    for (_, name) in FEATURE_NAMES.into_iter().filter(|&(bit, _)| bits & u64::from(bit) != 0) {
        write!(f, "{separator}{name}")?;
        separator = ", ";
    }
    Ok(())
}

/// Features that a device needs to outlive its daemon.
const REQUIRED: u64 =
    (sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE | sys::UBLK_F_CMD_IOCTL_ENCODE) as u64;
/// Features that devices use if the driver supports them. Without a partition scan, starting a device reads
/// nothing from it, so attaching a volume fetches nothing, and the host's kernel parses no table written by a
/// tenant.
const WELCOME: u64 = (sys::UBLK_F_QUIESCE | sys::UBLK_F_UPDATE_SIZE | sys::UBLK_F_NO_AUTO_PART_SCAN) as u64;

/// Maximum number of queues of a device with batches: the word of a command has 4 bits for the number of a
/// queue.
const MOST_QUEUES_WITH_BATCHES: u16 = 16;
/// Minimum depth of such a device: the driver keeps tags in a `kfifo`, which holds at least two.
const LEAST_DEPTH_WITH_BATCHES: u16 = 2;

/// Returns true if the queues of a device with these flags use batches.
pub(crate) const fn has_batches(flags: u64) -> bool {
    flags & sys::UBLK_F_BATCH_IO as u64 != 0
}

/// The features of the running kernel's ublk driver.
#[derive(Clone, Debug)]
pub struct Features {
    release: KernelRelease,
    bits: u64,
}

impl Features {
    /// Returns the features of a driver that reports these bits.
    ///
    /// # Errors
    /// [`Unsupported::MissingFeature`] if a feature is missing that every device needs.
    pub fn of(release: KernelRelease, bits: u64) -> Result<Self, Unsupported> {
        let features = Self { release, bits };
        features.require(REQUIRED)?;
        Ok(features)
    }

    /// Returns the running kernel.
    #[must_use]
    pub const fn release(&self) -> &KernelRelease {
        &self.release
    }

    /// Returns the raw feature bits (`UBLK_F_*` in `linux/ublk_cmd.h`).
    #[must_use]
    pub const fn bits(&self) -> u64 {
        self.bits
    }

    /// Returns the names of the features that this version knows.
    #[must_use]
    pub const fn names(&self) -> FeatureNames {
        FeatureNames(self.bits)
    }

    /// Returns true if a device can be started without a partition scan.
    #[must_use]
    pub const fn can_skip_partitions(&self) -> bool {
        self.bits & sys::UBLK_F_NO_AUTO_PART_SCAN as u64 != 0
    }

    /// Returns true if [`Device::quiesce`](crate::Device::quiesce) works on devices added here.
    #[must_use]
    pub const fn can_quiesce(&self) -> bool {
        self.bits & sys::UBLK_F_QUIESCE as u64 != 0
    }

    /// Returns true if the kernel can refuse to stop a device that a program has open.
    #[must_use]
    pub const fn can_stop_unused(&self) -> bool {
        self.bits & sys::UBLK_F_SAFE_STOP_DEV as u64 != 0
    }

    /// Returns true if [`Device::resize`](crate::Device::resize) works on devices added here.
    #[must_use]
    pub const fn can_resize(&self) -> bool {
        self.bits & sys::UBLK_F_UPDATE_SIZE as u64 != 0
    }

    /// Checks that the driver supports a transport.
    ///
    /// # Errors
    /// [`Unsupported::MissingFeature`] with the missing features.
    pub fn check(&self, transport: Transport) -> Result<(), Unsupported> {
        self.require(transport.flags())
    }

    /// Returns the fastest supported transport.
    ///
    /// # Errors
    /// The error for the slowest transport, if the driver supports no transport.
    pub fn best_transport(&self) -> Result<Transport, Unsupported> {
        match self.check(Transport::ZeroCopy) {
            Ok(()) => Ok(Transport::ZeroCopy),
            Err(_) => self.check(Transport::UserCopy).map(|()| Transport::UserCopy),
        }
    }

    /// Returns the flags for adding a device. With zero copy, requests whose pages the kernel cannot register
    /// are copied.
    pub(crate) fn device_flags(&self, transport: Transport, queues: u16, depth: u16) -> u64 {
        let can_batch = queues <= MOST_QUEUES_WITH_BATCHES && depth >= LEAST_DEPTH_WITH_BATCHES;
        let batches =
            if can_batch && self.release.batches_requests() { u64::from(sys::UBLK_F_BATCH_IO) } else { 0 };
        let welcome = match transport {
            Transport::ZeroCopy | Transport::UserCopy => WELCOME | Transport::UserCopy.flags() | batches,
            Transport::KernelCopy | Transport::Fuse => WELCOME,
        };
        REQUIRED | transport.flags() | (welcome & self.bits)
    }

    fn require(&self, wanted: u64) -> Result<(), Unsupported> {
        let missing = wanted & !self.bits;
        if missing == 0 {
            return Ok(());
        }
        Err(Unsupported::MissingFeature { release: self.release.clone(), missing: FeatureNames(missing) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Features, REQUIRED, Transport, has_batches, sys};
    use crate::KernelRelease;

    fn features(bits: u64) -> Features {
        Features { release: KernelRelease::new("6.8.0"), bits }
    }

    #[test]
    fn the_fastest_transport_is_chosen_and_refusals_name_the_lack() {
        let all = features(REQUIRED | Transport::ZeroCopy.flags() | Transport::UserCopy.flags());
        assert_eq!(all.best_transport().unwrap(), Transport::ZeroCopy);

        let old = features(REQUIRED | Transport::UserCopy.flags());
        assert_eq!(old.best_transport().unwrap(), Transport::UserCopy);
        let refusal = old.check(Transport::ZeroCopy).unwrap_err().to_string();
        assert_eq!(refusal, "the ublk driver of kernel 6.8.0 lacks SUPPORT_ZERO_COPY, AUTO_BUF_REG");

        assert!(features(REQUIRED).best_transport().unwrap_err().to_string().ends_with("lacks USER_COPY"));
    }

    /// A kernel that scans for partitions when a device starts can hang if the server exits meanwhile
    /// (`docs/kernels.md`).
    #[test]
    fn a_device_asks_for_no_partition_scan_where_it_can() {
        let with = |more: u32| {
            let known = REQUIRED | Transport::ZeroCopy.flags() | Transport::UserCopy.flags();
            features(known | u64::from(more)).device_flags(Transport::ZeroCopy, 1, 128)
        };
        let (scans, quiesces) = (sys::UBLK_F_NO_AUTO_PART_SCAN, sys::UBLK_F_QUIESCE);
        let either = u64::from(scans | quiesces);
        assert_eq!(with(scans) & either, u64::from(scans));
        // Linux before 7.0 refuses unknown flags.
        assert_eq!(with(quiesces) & either, u64::from(quiesces));
        let old = features(REQUIRED | Transport::UserCopy.flags());
        assert_eq!(old.device_flags(Transport::UserCopy, 1, 128), REQUIRED | Transport::UserCopy.flags());
    }

    /// Kernels that support batches but are not tested do not use them.
    #[test]
    fn batches_are_asked_for_where_they_are_tested() {
        let bits = REQUIRED | Transport::ZeroCopy.flags() | u64::from(sys::UBLK_F_BATCH_IO);
        let of = |release, transport, queues, depth| {
            let features = Features { release: KernelRelease::new(release), bits };
            has_batches(features.device_flags(transport, queues, depth))
        };
        assert!(of("7.3.4", Transport::ZeroCopy, 16, 2) && of("8.0.0", Transport::UserCopy, 1, 128));
        assert!(!of("7.2.9", Transport::ZeroCopy, 1, 128), "before 7.3");
        assert!(!of("7.3.4", Transport::ZeroCopy, 17, 128), "more queues than commands can name");
        assert!(!of("7.3.4", Transport::ZeroCopy, 1, 1), "the driver refuses it");
        assert!(!of("7.3.4", Transport::KernelCopy, 1, 128), "commands have addresses");
    }

    /// A device is recovered with its original transport, even if this version would choose another.
    #[test]
    fn the_flags_of_a_device_say_its_transport() {
        let all = features(REQUIRED | Transport::ZeroCopy.flags() | Transport::UserCopy.flags());
        for transport in [Transport::ZeroCopy, Transport::UserCopy, Transport::KernelCopy] {
            assert_eq!(Transport::of_device(all.device_flags(transport, 1, 128)), Some(transport));
        }
        let without_index = u64::from(sys::UBLK_F_SUPPORT_ZERO_COPY);
        assert_eq!(Transport::of_device(REQUIRED | without_index), None, "another program's way");
    }

    #[test]
    fn features_are_shown_by_their_names() {
        let more = u64::from(sys::UBLK_F_UPDATE_SIZE | sys::UBLK_F_NO_AUTO_PART_SCAN);
        let features = Features::of(KernelRelease::new("7.0.0"), REQUIRED | more).unwrap();
        let names = "USER_RECOVERY, USER_RECOVERY_REISSUE, CMD_IOCTL_ENCODE, UPDATE_SIZE, NO_AUTO_PART_SCAN";
        assert_eq!(features.names().to_string(), names);
        assert!(features.can_skip_partitions() && features.can_resize() && !features.can_quiesce());
        let refused = Features::of(KernelRelease::new("5.19.0"), more).unwrap_err().to_string();
        assert!(
            refused.ends_with("lacks USER_RECOVERY, USER_RECOVERY_REISSUE, CMD_IOCTL_ENCODE"),
            "{refused}"
        );
    }

    #[test]
    fn a_transport_is_known_by_the_name_it_prints() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse::<Transport>().unwrap(), transport);
        }
        assert!("zerocopy".parse::<Transport>().unwrap_err().to_string().contains("use \"zero-copy\""));
    }
}
