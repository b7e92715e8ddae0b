//! Errors of devices and queues.

use std::io;
use std::path::PathBuf;

use holdfast_ring::{KernelErrno, RingError};

use crate::{DeviceState, ForeignFeatures, Holders, LOOP_IDS, Unsupported, block_path};

/// The kernel's limit of the number of ublk devices, a parameter of the driver's module.
pub(crate) const UBLKS_MAX: &str = "/sys/module/ublk_drv/parameters/ublks_max";

/// Errors of control operations on a device.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A field of the [`DeviceSpec`](crate::DeviceSpec) is invalid; no command was sent.
    #[error("{field}: {rule}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// The rule that it violates.
        rule: &'static str,
    },
    /// The kernel lacks a feature that the device needs.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// A device with this id already exists.
    #[error("{} already exists", DeviceSubject(*.id))]
    IdTaken {
        /// The requested id.
        id: u32,
    },
    /// The host has as many devices as the kernel allows.
    #[error(
        "the kernel allows no further ublk device: the limit of all devices of this host is {devices}; raise {}",
        UBLKS_MAX
    )]
    TooManyDevices {
        /// The limit.
        devices: u32,
    },
    /// No device has this id.
    #[error("{} does not exist", DeviceSubject(*.id))]
    NotFound {
        /// The requested id.
        id: u32,
    },
    /// The device with this id belongs to another program or another volume.
    #[error("{} is a different device: its tag is {found:#018x}", DeviceSubject(*.id))]
    NotOurs {
        /// The requested id.
        id: u32,
        /// The tag it carries.
        found: u64,
    },
    /// The device was added by a program that uses another protocol with the kernel.
    #[error(
        "{} was added with {foreign}, which this version does not support; start the version that added it",
        DeviceSubject(*.id)
    )]
    Foreign {
        /// The device.
        id: u32,
        /// The unknown features.
        foreign: ForeignFeatures,
    },
    /// The device is larger than the caller expects.
    #[error("{} has {found} sectors, more than {expected}", DeviceSubject(*.id))]
    Resized {
        /// The device.
        id: u32,
        /// Its size in sectors of 4096 bytes.
        found: u64,
        /// The size that the caller expects.
        expected: u64,
    },
    /// The device is mounted, below another device, or opened by a program.
    #[error("{} is in use by {holders}", DeviceSubject(*.id))]
    InUse {
        /// The device.
        id: u32,
        /// Its users.
        holders: Holders,
    },
    /// A command did not end in time and was cancelled.
    #[error("{}: {command} did not end within {waited_ms} ms", DeviceSubject(*.id))]
    TimedOut {
        /// The device.
        id: u32,
        /// The command, as in `linux/ublk_cmd.h`.
        command: &'static str,
        /// Time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The kernel has not answered a command. No other command about the device is sent until it has.
    #[error(
        "{}: {command} has not ended for {seconds} s; the ublk driver of kernel {kernel} may be stuck (its log says more). \
         The other volumes of this node are served; if this does not end by itself, restart this host",
        DeviceSubject(*.id)
    )]
    NotEnded {
        /// The device; `u32::MAX` before the kernel has chosen an id.
        id: u32,
        /// The command, as in `linux/ublk_cmd.h`.
        command: &'static str,
        /// Seconds since it was sent.
        seconds: u64,
        /// The running kernel.
        kernel: String,
    },
    /// The kernel refused a command.
    #[error("{}: {command} failed", DeviceSubject(*.id))]
    Command {
        /// The device; `u32::MAX` before the kernel has chosen an id.
        id: u32,
        /// The command, as in `linux/ublk_cmd.h`.
        command: &'static str,
        /// The kernel's answer.
        #[source]
        source: KernelErrno,
    },
    /// The kernel compared this process's pid with its pid in the host's namespace.
    #[error(
        "ublk device {id}: {command} was refused because this process runs in a PID namespace of its own. The device is not \
         served. Run it in the host's (`hostPID: true` for a pod), or use kernel 6.19 or newer"
    )]
    PidNamespace {
        /// The device.
        id: u32,
        /// The command, as in `linux/ublk_cmd.h`.
        command: &'static str,
    },
    /// Another process did not release the device for recovery in time.
    #[error("{} is {state} and still held by another process after {waited_ms} ms", DeviceSubject(*.id))]
    StillHeld {
        /// The device.
        id: u32,
        /// Its state at the end of the wait.
        state: DeviceState,
        /// Time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The server has exited, but the kernel never finishes its teardown: a kernel bug that affects only
    /// devices without FUA. [`flush_from_outside`](crate::flush_from_outside) may help, once; after that only
    /// a restart of the host helps.
    #[error(
        "the kernel has lost ublk device {id}: its server ended and the kernel does not release it. All I/O on the device \
         waits; restart this host, which keeps what was flushed"
    )]
    KernelLostDevice {
        /// The device.
        id: u32,
    },
    /// The control device or its ring could not be used.
    #[error("the ublk control device cannot be used")]
    Channel(#[source] io::Error),
    /// A file that belongs to the device could not be opened or written.
    #[error("{path} cannot be {action}")]
    File {
        /// The file.
        path: PathBuf,
        /// "opened" or "written".
        action: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// A device in a message.
struct DeviceSubject(u32);

impl std::fmt::Display for DeviceSubject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            u32::MAX => f.write_str("a new ublk device"),
            id if id < LOOP_IDS => write!(f, "ublk device {id}"),
            id => write!(f, "device {}", block_path(id).display()),
        }
    }
}

/// Errors of opening and closing a queue.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The ring has no room for the queue, or failed.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// A FUSE connection accepts no message because it has ended.
    #[error("the device's FUSE connection has ended")]
    Connection(#[source] io::Error),
    /// Memory could not be mapped.
    #[error("{what} of queue {queue_id} cannot be mapped")]
    Map {
        /// The memory to map.
        what: &'static str,
        /// The queue.
        queue_id: u16,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}
