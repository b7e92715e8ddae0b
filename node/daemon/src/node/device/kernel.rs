//! The host's devices, with and without ublk, as used by attach, detach and recovery.
//!
//! Owns: the daemon's only access to the kernel's control commands. Tests replace it by a fake kernel.
//! Runs on: threads that may block.
//! Invariants: a device is identified by its tag, never by its number alone ([`super::tag`]).

use std::io;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use holdfast_service::chain;
use holdfast_ublk::{
    ControlError, Device, DeviceInfo, DeviceLimit, DeviceSpec, DeviceState, Expected, Features,
    KernelRelease, LOOP_IDS, Queue, QueueSpec, Transport, Unsupported, flush_from_outside,
};

use super::fuse::FuseDevices;
use super::kept_connections::KeeperStart;
use super::udev::{UDEV, Udev};
use crate::node::TransportChoice;
use crate::node::ring::lock::RingLocks;
use holdfast_serve::{OpenQueues, QueueShare, VolumeQueue};

/// The command of the daemon's own program that flushes a block device.
pub(crate) const FLUSH_DEVICE: &str = "flush-device";
/// The program of this process, even after an upgrade has replaced its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Maximum wait for the flush of a lost device.
const FLUSH_WITHIN: Duration = Duration::from_secs(5);

/// The kernel's operations on devices. Each function blocks.
pub(in crate::node) trait Devices: Send + Sync {
    /// Returns the transport of new devices.
    fn transport(&self, choice: TransportChoice) -> Result<Transport, Unsupported>;
    /// Returns the ids of all devices of the host.
    fn list(&self) -> Result<Vec<u32>, ControlError>;
    /// Returns the maximum number of queues of a new device: each has at least two of the daemon's
    /// processors. A processor that goes offline as the last one of its queue waits for that queue's
    /// requests, and a starting daemon then waits for the processor (`docs/kernels.md`).
    fn max_queues(&self) -> u16;
    /// Returns the description of any device.
    fn look(&self, id: u32) -> Result<DeviceInfo, ControlError>;
    /// Returns the device with this id, if it is the expected one.
    fn find(&self, id: u32, expected: &Expected) -> Result<Device, ControlError>;
    /// Adds a device.
    fn add(&self, spec: &DeviceSpec) -> Result<Device, ControlError>;
    /// Opens the character device of a device for its queues, shared by this many ring threads: each gets its
    /// [`QueueShare`], in their order. A device without ublk has one queue.
    fn open(&self, device: Device, threads: u16) -> Result<Vec<OpenQueues>, ControlError>;
    /// Starts a device with armed queues.
    fn start(&self, device: Device) -> Result<(), ControlError>;
    /// Returns true if a device served over this transport can be resized.
    fn can_resize(&self, transport: Transport) -> Result<bool, Unsupported>;
    /// Returns the size of a device, in sectors.
    fn sectors(&self, device: Device) -> Result<u64, ControlError>;
    /// Changes the size of a started device, in sectors.
    fn resize(&self, device: Device, sectors: u64) -> Result<(), ControlError>;
    /// Waits until the last server of a device is gone, and makes the kernel accept new queues. Once for each
    /// device and daemon.
    fn start_recovery(&self, device: Device, within: Duration) -> Result<(), ControlError>;
    /// Runs a separate process that flushes a device lost by the kernel, which may free it.
    fn flush_from_outside(&self, id: u32) -> io::Result<()>;
    /// Releases the queued requests, once the queues are armed.
    fn end_recovery(&self, device: Device) -> Result<(), ControlError>;
    /// Cancels a removal of a device in use that another program has requested.
    fn keep(&self, device: Device) -> Result<(), ControlError>;
    /// Removes the block device.
    fn stop(&self, device: Device) -> Result<(), ControlError>;
    /// Removes the block device unless it is in use.
    fn stop_unused(&self, device: Device) -> Result<(), ControlError>;
    /// Removes the device.
    fn delete(&self, device: Device) -> Result<(), ControlError>;
    /// Resets the attributes of a deleted device's number to the kernel's defaults.
    fn restore_number(&self, device: Device);
    /// Checks that a device without ublk can be added.
    fn check_fuse(&self) -> Result<(), Unsupported>;
    /// Returns the number of devices without ublk that this process serves and whose connection no keeper
    /// currently has: an exit of this process fails their requests. It does not block.
    fn unkept_devices(&self) -> usize;
}

/// The running kernel, and the host's udev.
pub(in crate::node) struct Kernel {
    udev: Udev,
    fuse: FuseDevices,
}

impl Kernel {
    /// Returns the devices of this host, for a daemon with this run directory. Nothing is written yet.
    pub(in crate::node) fn of_this_host(run_dir: &Path, keeper: KeeperStart, rings: RingLocks) -> Self {
        Self { udev: Udev::new(Path::new(UDEV)), fuse: FuseDevices::new(run_dir, keeper, rings) }
    }

    /// Closes connections of devices without ublk that an earlier daemon never bound.
    pub(in crate::node) fn sweep_connections(&self) {
        self.fuse.sweep();
    }

    /// Installs the udev rules early, so that the first attach does not wait for them, and removes old marks.
    pub(in crate::node) fn prepare_udev(&self) {
        if let Err(error) = self.udev.install() {
            tracing::warn!(
                error = chain(&error),
                "the rules for udev were not written; the next attach tries again"
            );
        }
        self.udev.sweep(|id| if id < LOOP_IDS { Ok(Device::look(id)?.tag) } else { self.fuse.tag(id) });
    }
}

impl Devices for Kernel {
    fn transport(&self, choice: TransportChoice) -> Result<Transport, Unsupported> {
        choice.among(Features::probe(), || self.fuse.check())
    }

    fn list(&self) -> Result<Vec<u32>, ControlError> {
        Ok([Device::list()?, self.fuse.list()?].concat())
    }

    fn max_queues(&self) -> u16 {
        let recovers_each = KernelRelease::running().is_ok_and(|release| release.recovers_each_queue());
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        if recovers_each { u16::try_from(cpus / 2).unwrap_or(u16::MAX).max(1) } else { 1 }
    }

    fn look(&self, id: u32) -> Result<DeviceInfo, ControlError> {
        if id < LOOP_IDS { Device::look(id) } else { self.fuse.look(id) }
    }

    fn find(&self, id: u32, expected: &Expected) -> Result<Device, ControlError> {
        if id < LOOP_IDS { Device::find(id, expected) } else { self.fuse.find(id, expected) }
    }

    fn add(&self, spec: &DeviceSpec) -> Result<Device, ControlError> {
        let device = if spec.transport == Transport::Fuse {
            // The rules name its file: they apply as soon as it is bound.
            self.udev.install()?;
            self.udev.await_rules();
            self.fuse.add(spec)?
        } else {
            add_ublk(spec)?
        };
        if let Err(error) = self.udev.mark(device.id(), spec.tag) {
            // If it stays, the next start finds it by its tag.
            let _deleted = self.delete(device);
            return Err(error);
        }
        Ok(device)
    }

    fn open(&self, device: Device, threads: u16) -> Result<Vec<OpenQueues>, ControlError> {
        if is_fuse(device) {
            return Ok(vec![self.fuse.open(device)?]);
        }
        let char_device = Arc::new(device.open_char()?);
        let open = |share: QueueShare| {
            let char_device = Arc::clone(&char_device);
            let opens: OpenQueues = Box::new(move |ring, owner| {
                let mut queues = Vec::new();
                for queue_id in share.queues(device.queues()) {
                    match Queue::open(ring, &device, &char_device, QueueSpec { owner, queue_id }) {
                        Ok(queue) => queues.push(queue),
                        Err(error) => {
                            queues.into_iter().try_for_each(|queue: Queue<_>| queue.close(ring))?;
                            return Err(error);
                        }
                    }
                }
                Ok(queues.into_iter().map(VolumeQueue::Ublk).collect())
            });
            opens
        };
        Ok(QueueShare::each(threads).map(open).collect())
    }

    fn start(&self, device: Device) -> Result<(), ControlError> {
        if is_fuse(device) {
            // A FUSE device was bound when it was added.
            return Ok(());
        }
        self.udev.await_rules();
        device.start()?;
        match device.tune() {
            // The device serves all the same, only slower.
            Err(error @ ControlError::NotEnded { .. }) => {
                tracing::warn!(
                    device = device.id(),
                    error = &error as &dyn std::error::Error,
                    "the device keeps its scheduler"
                );
                Ok(())
            }
            tuned => tuned,
        }
    }

    fn can_resize(&self, transport: Transport) -> Result<bool, Unsupported> {
        match transport {
            Transport::ZeroCopy | Transport::UserCopy | Transport::KernelCopy => {
                Ok(Features::of_existing_devices()?.can_resize())
            }
            Transport::Fuse => Ok(true),
        }
    }

    fn sectors(&self, device: Device) -> Result<u64, ControlError> {
        if is_fuse(device) { self.fuse.sectors(device) } else { device.sectors() }
    }

    fn resize(&self, device: Device, sectors: u64) -> Result<(), ControlError> {
        if is_fuse(device) {
            return self.fuse.resize(device, sectors);
        }
        device.resize(sectors)
    }

    fn start_recovery(&self, device: Device, within: Duration) -> Result<(), ControlError> {
        if is_fuse(device) {
            self.fuse.start_recovery(device)?;
        } else {
            device.start_recovery(within)?;
        }
        // An earlier version did not set one.
        if let Err(error) = self.udev.mark(device.id(), device.tag()) {
            tracing::warn!(
                device = device.id(),
                error = chain(&error),
                "a recovered device has no mark for udev"
            );
        }
        Ok(())
    }

    fn flush_from_outside(&self, id: u32) -> io::Result<()> {
        let mut flusher = Command::new(OWN_PROGRAM);
        flusher.arg(FLUSH_DEVICE).arg(format!("/dev/ublkb{id}"));
        flush_from_outside(flusher, FLUSH_WITHIN)
    }

    fn end_recovery(&self, device: Device) -> Result<(), ControlError> {
        if is_fuse(device) {
            // Opening the queue made the kernel send its requests again.
            return Ok(());
        }
        // An earlier call may have succeeded after its caller stopped waiting.
        match device.info()?.state {
            DeviceState::Live => Ok(()),
            DeviceState::Dead | DeviceState::Quiesced | DeviceState::FailIo => device.end_recovery(),
        }
    }

    fn keep(&self, device: Device) -> Result<(), ControlError> {
        if is_fuse(device) { self.fuse.keep(device) } else { Ok(()) }
    }

    fn stop(&self, device: Device) -> Result<(), ControlError> {
        if is_fuse(device) { self.fuse.stop(device) } else { device.stop() }
    }

    fn stop_unused(&self, device: Device) -> Result<(), ControlError> {
        if is_fuse(device) {
            return self.fuse.stop_unused(device);
        }
        device.stop_unused(&Features::of_existing_devices()?)
    }

    fn delete(&self, device: Device) -> Result<(), ControlError> {
        self.udev.unmark(device.id(), device.tag());
        if is_fuse(device) { self.fuse.delete(device) } else { device.delete() }
    }

    fn restore_number(&self, device: Device) {
        if is_fuse(device) {
            FuseDevices::restore_queue(device.id());
        }
    }

    fn check_fuse(&self) -> Result<(), Unsupported> {
        self.fuse.check()
    }

    fn unkept_devices(&self) -> usize {
        self.fuse.unkept()
    }
}

/// Adds a ublk device. If the kernel allows no more, it raises the kernel's limit first.
fn add_ublk(spec: &DeviceSpec) -> Result<Device, ControlError> {
    let features = Features::probe()?;
    let refused = match Device::add(&features, spec) {
        Err(refused @ ControlError::TooManyDevices { .. }) => refused,
        added => return added,
    };
    match DeviceLimit::raise() {
        Ok(devices) => {
            tracing::info!(path = DeviceLimit::PATH, devices, "raised the kernel's limit of ublk devices");
            Device::add(&features, spec)
        }
        Err(error) => {
            tracing::warn!(error = chain(&error), "the kernel's limit of ublk devices was not raised");
            Err(refused)
        }
    }
}

/// Returns true for a device without ublk.
fn is_fuse(device: Device) -> bool {
    device.transport() == Transport::Fuse
}
