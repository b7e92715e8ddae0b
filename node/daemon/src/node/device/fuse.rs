//! Devices without ublk: FUSE connections, each with a loop device.
//!
//! Owns: the order of operations on connections, loop devices and the keeper.
//! Does not own: communication with the keeper (`kept_connections.rs`).
//! Runs on: threads that may block, but never on requests of the daemon's own devices: operations that may
//! wait for those run in a separate process ([`LoopCommand`](holdfast_fuse::LoopCommand)).
//! Invariants: the keeper holds a connection from before its device is bound until after it is cleared.
//! On failure: a failed attach leaves nothing behind; a detach may be retried.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_engine::limit::MAX_IO_BYTES;
use holdfast_fuse::{DEPTH, FUSE_PATH, FuseConnection, FuseQueue, LOOP_CONTROL_PATH, LoopDevice, file_name};
use holdfast_serve::{OpenQueues, VolumeQueue};
use holdfast_service::chain;
use holdfast_types::SECTOR_BYTES;
use holdfast_ublk::{
    ControlError, Device, DeviceInfo, DeviceSpec, DeviceState, Expected, ForeignFeatures, Holders,
    KernelRelease, LOOP_IDS, Transport, Unsupported,
};

use super::kept_connections::{KeeperStart, KeptConnections};
use crate::node::QUEUE_DEPTH;
use crate::node::ring::lock::RingLocks;

/// The command of the daemon's own program that binds or clears a loop device.
pub(crate) const LOOP_DEVICE: &str = "loop-device";
/// The program of this process, even after an upgrade has replaced its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Limits of the kernel for a request, in seconds (Linux 6.15 and newer), each with the refusal if it is not
/// 0. Source: `init_server_timeout` of `fs/fuse/inode.c`; either is enough for an abort of the connection.
const REQUEST_TIMEOUTS: [(&str, &str); 2] = [
    (
        "/proc/sys/fs/fuse/default_request_timeout",
        "it aborts the connection of a volume whose request waits longer, for example for the daemon or the \
         store; set the sysctl fs.fuse.default_request_timeout to 0",
    ),
    (
        "/proc/sys/fs/fuse/max_request_timeout",
        "it aborts the connection of a volume whose request waits longer, for example for the daemon or the \
         store; set the sysctl fs.fuse.max_request_timeout to 0",
    ),
];
const MAX_PARTITIONS: &str = "/sys/module/loop/parameters/max_part";
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum wait for programs that open a device briefly, such as udev.
const UNUSED_WITHIN: Duration = Duration::from_secs(2);
const CLEARED_WITHIN: Duration = Duration::from_secs(1);
// A device of this version has the same shape for each transport; longer requests are split.
const _: () = assert!(DEPTH == QUEUE_DEPTH && holdfast_fuse::protocol::MAX_IO_BYTES <= MAX_IO_BYTES);

/// Checks that the kernel can serve devices over FUSE.
///
/// # Errors
/// [`Unsupported::NoFuse`], [`Unsupported::Release`].
pub(crate) fn probe() -> Result<(), Unsupported> {
    let release = KernelRelease::running().map_err(Unsupported::Release)?;
    let opens = |path| OpenOptions::new().read(true).write(true).open(path).is_ok();
    let lack = if !release.resends_fuse_requests() {
        "it does not send requests again to a restarted daemon (FUSE_NOTIFY_RESEND); boot Linux 6.9 or newer"
    } else if !opens(FUSE_PATH) {
        "/dev/fuse cannot be opened; load the module fuse"
    } else if !opens(LOOP_CONTROL_PATH) {
        "/dev/loop-control cannot be opened; load the module loop"
    } else if is_positive(std::fs::read_to_string(MAX_PARTITIONS)) {
        "the module loop reads partitions of each device, which waits for the daemon; load it with max_part=0"
    } else if let Some(lack) = request_timeout(|path| std::fs::read_to_string(path)) {
        lack
    } else {
        return Ok(());
    };
    Err(Unsupported::NoFuse { release, lack })
}

/// Checks that a daemon of this configuration could add a device now.
///
/// # Errors
/// Those of [`probe`]; [`Unsupported::NoKeeper`].
pub(crate) fn check(run_dir: &Path, starts: KeeperStart) -> Result<(), Unsupported> {
    FuseDevices::new(run_dir, starts, RingLocks::without_rings(run_dir)).check()
}

/// Returns the refusal of a kernel with a limit for each request, according to its parameters.
fn request_timeout(read: impl Fn(&str) -> io::Result<String>) -> Option<&'static str> {
    let mut limits = REQUEST_TIMEOUTS.into_iter().filter(|(path, _)| is_positive(read(path)));
    limits.next().map(|(_, lack)| lack)
}

/// Returns true if a parameter of the kernel exists and is not 0.
fn is_positive(parameter: io::Result<String>) -> bool {
    parameter.is_ok_and(|number| number.trim() != "0")
}

/// The devices of this host that are loop devices on FUSE files.
#[derive(Clone)]
pub(in crate::node) struct FuseDevices(Arc<FuseInner>);

struct FuseInner {
    connections: KeptConnections,
    rings: RingLocks,
}

impl FuseDevices {
    /// Creates the set of devices whose connections the keeper of a run directory holds.
    pub(in crate::node) fn new(run_dir: &Path, starts: KeeperStart, rings: RingLocks) -> Self {
        Self(Arc::new(FuseInner { connections: KeptConnections::new(run_dir, starts), rings }))
    }

    /// Checks that a device can be added. Fails if the kernel lacks a part, or if a keeper run by another
    /// process does not serve or is about to exit.
    ///
    /// # Errors
    /// Those of [`probe`]; [`Unsupported::NoKeeper`].
    pub(in crate::node) fn check(&self) -> Result<(), Unsupported> {
        probe()?;
        self.0.connections.check()
    }

    /// Makes the keeper close connections whose device was never bound, or is gone.
    pub(in crate::node) fn sweep(&self) {
        let swept = self.0.connections.keeper().list().and_then(|tags| {
            let bound = LoopDevice::list()?;
            let unbound = tags.into_iter().filter(|tag| bound.iter().all(|device| device.tag != *tag));
            unbound.into_iter().try_for_each(|tag| self.0.connections.keeper().drop(tag))
        });
        if let Err(error) = swept {
            tracing::warn!(%error, "connections of FUSE without a device were not closed");
        }
    }

    /// Returns the ids of all loop devices on our files.
    pub(in crate::node) fn list(&self) -> Result<Vec<u32>, ControlError> {
        let devices = LoopDevice::list().map_err(file("/sys/block", "read"))?;
        Ok(devices.into_iter().map(|device| LOOP_IDS + device.number).collect())
    }

    pub(in crate::node) fn look(&self, id: u32) -> Result<DeviceInfo, ControlError> {
        let device = loop_device(id)?;
        let is_ours = self.0.connections.get(device.tag).is_some();
        let state = if is_ours {
            DeviceState::Live
        } else if self.is_kept(device.tag)? {
            DeviceState::Quiesced
        } else {
            // Its connection has ended: its requests get no response.
            DeviceState::Dead
        };
        Ok(info(id, state, device.tag))
    }

    /// Returns true if the keeper has a connection, or another server runs, which may have it.
    fn is_kept(&self, tag: u64) -> Result<bool, ControlError> {
        let is_listed =
            || self.0.connections.keeper().list().map(|tags| tags.contains(&tag)).map_err(self.unreachable());
        // That server may have replaced the keeper before it exited, so the keeper is asked again.
        Ok(is_listed()? || self.other_server_lives()? || is_listed()?)
    }

    fn other_server_lives(&self) -> Result<bool, ControlError> {
        self.0.rings.others_exist().map_err(file(self.0.rings.dir(), "read"))
    }

    pub(in crate::node) fn find(&self, id: u32, expected: &Expected) -> Result<Device, ControlError> {
        let info = self.look(id)?;
        let sectors = match info.state {
            DeviceState::Dead => expected.sectors,
            DeviceState::Live | DeviceState::Quiesced | DeviceState::FailIo => sectors_of(loop_device(id)?)?,
        };
        Device::of(&info, sectors, expected)
    }

    pub(in crate::node) fn add(&self, spec: &DeviceSpec) -> Result<Device, ControlError> {
        let tag = spec.tag;
        let opened = FuseConnection::open_device().map_err(file(FUSE_PATH, "opened"))?;
        let connection = FuseConnection::new(opened, file_name(tag), spec.sectors * SECTOR_BYTES);
        self.0
            .connections
            .keep(tag, &connection)
            .map_err(self.unreachable())
            .inspect_err(|_| self.0.connections.forget(tag))?;
        let bound = connection
            .mount()
            .and_then(|mount| LoopDevice::bind(own_program(LOOP_DEVICE), &connection, mount, tag));
        match bound {
            Ok(bound) => {
                let expected = Expected { tag, sectors: spec.sectors };
                Device::of(&info(LOOP_IDS + bound.number, DeviceState::Live, tag), spec.sectors, &expected)
            }
            Err(source) => {
                self.0.connections.forget(tag);
                // If it is bound, its requests fail from here on.
                drop(connection);
                self.clear_unserved(tag);
                Err(file(LOOP_CONTROL_PATH, "bound to a file of FUSE")(source))
            }
        }
    }

    /// Clears the device with this tag, which was never exposed to any program.
    fn clear_unserved(&self, tag: u64) {
        let cleared = LoopDevice::list().and_then(|devices| {
            let mut ours = devices.into_iter().filter(|device| device.tag == tag);
            ours.try_for_each(|device| {
                device.clear(own_program(LOOP_DEVICE), false)?;
                if device.await_cleared(CLEARED_WITHIN)? {
                    Self::restore_queue(LOOP_IDS + device.number);
                }
                Ok(())
            })
        });
        if let Err(error) = cleared {
            tracing::warn!(%error, "a loop device that was never served stays; the next start clears it");
        }
    }

    pub(in crate::node) fn open(&self, device: Device) -> Result<OpenQueues, ControlError> {
        let connection = self.0.connections.get(device.tag());
        let connection = connection.ok_or(ControlError::NotFound { id: device.id() })?;
        Ok(Box::new(move |_ring, owner| Ok(vec![VolumeQueue::Fuse(FuseQueue::open(connection, owner)?)])))
    }

    pub(in crate::node) fn sectors(&self, device: Device) -> Result<u64, ControlError> {
        sectors_of(of_tag(device)?)
    }

    /// Returns the tag of a device, without a question to the keeper.
    pub(in crate::node) fn tag(&self, id: u32) -> Result<u64, ControlError> {
        Ok(loop_device(id)?.tag)
    }

    /// Cancels a clearing of the device that another program has requested: the kernel would clear it once
    /// the last program has closed it.
    pub(in crate::node) fn keep(&self, device: Device) -> Result<(), ControlError> {
        let bound = of_tag(device)?;
        if !bound.awaits_clear().map_err(file(bound.path(), "checked"))? {
            return Ok(());
        }
        bound.keep_bound(own_program(LOOP_DEVICE)).map_err(file(bound.path(), "kept"))?;
        // The kernel may have cleared the device before the cancellation.
        of_tag(device)?;
        log_kept(bound);
        Ok(())
    }

    /// Makes the kernel grow the file, and the loop device with it.
    pub(in crate::node) fn resize(&self, device: Device, sectors: u64) -> Result<(), ControlError> {
        let connection = self.0.connections.get(device.tag());
        let connection = connection.ok_or(ControlError::NotFound { id: device.id() })?;
        let bound = of_tag(device)?;
        connection.grow(sectors * SECTOR_BYTES).map_err(file(FUSE_PATH, "used to grow a device"))?;
        bound.grow(own_program(LOOP_DEVICE)).map_err(file(bound.path(), "grown"))?;
        let found = sectors_of(bound)?;
        if found == sectors {
            return Ok(());
        }
        let seen = io::Error::other(format!("it has {found} sectors, not {sectors}"));
        Err(file(bound.path(), "grown")(seen))
    }

    /// Resets the attributes of a loop device to the kernel's defaults, unless a program has bound it since.
    pub(in crate::node) fn restore_queue(id: u32) {
        let restored = id.checked_sub(LOOP_IDS).map(|number| {
            let program = own_program(LOOP_DEVICE);
            LoopDevice::restore_queue(number, program)
        });
        if let Some(Err(error)) = restored {
            // The next attach with this number sets them, too.
            tracing::warn!(%error, device = id, "a loop device that is free keeps the attributes of its queue");
        }
    }

    /// Returns true once a device is cleared and reset to the kernel's defaults; waits for at most `within`.
    fn is_cleared(device: Device, bound: LoopDevice, within: Duration) -> Result<bool, ControlError> {
        let is_cleared = bound.await_cleared(within).map_err(file(bound.path(), "checked"))?;
        if is_cleared {
            Self::restore_queue(device.id());
        }
        Ok(is_cleared)
    }

    /// Takes over the connection. The last server's rings must be gone.
    pub(in crate::node) fn start_recovery(&self, device: Device) -> Result<(), ControlError> {
        let (id, tag) = (device.id(), device.tag());
        let bound = of_tag(device)?;
        let len_bytes = sectors_of(bound)? * SECTOR_BYTES;
        let open = |file| FuseConnection::new(file, file_name(tag), len_bytes);
        let taken = self.0.connections.take(tag, open).map_err(self.unreachable())?;
        taken.ok_or(ControlError::NotFound { id })?;
        // The kernel finishes the device's requests first, which wait for this recovery.
        let kept = bound.awaits_clear().and_then(|awaits| {
            if awaits {
                bound.start_keep_bound(own_program(LOOP_DEVICE))?;
                tracing::warn!(
                    device = %bound.path().display(),
                    "a program asked the kernel to detach the device of a volume (`losetup --detach`); the daemon asks the kernel \
                     to cancel that, which Linux 6.19 and newer refuse for a mounted device"
                );
            }
            Ok(())
        });
        if let Err(error) = kept {
            tracing::warn!(device = id, %error, "it is unknown whether a program asked the kernel to detach the device");
        }
        Ok(())
    }

    /// Clears the device regardless of its users: their requests fail.
    pub(in crate::node) fn stop(&self, device: Device) -> Result<(), ControlError> {
        let bound = of_tag(device)?;
        // From here on only the ring uses the connection.
        self.0.connections.forget(device.tag());
        bound.clear(own_program(LOOP_DEVICE), false).map_err(file(bound.path(), "cleared"))
    }

    /// Clears the device if no program has it open, and waits until it is cleared: a program that closes it
    /// first writes back, which is still served. If that takes too long, the device stays.
    pub(in crate::node) fn stop_unused(&self, device: Device) -> Result<(), ControlError> {
        let bound = of_tag(device)?;
        let begun = Instant::now();
        loop {
            let holders = Holders::of(&bound.path());
            if !holders.have_it_open() {
                match bound.clear(own_program(LOOP_DEVICE), true) {
                    Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                    Err(error) if error.kind() != io::ErrorKind::TimedOut => {
                        return Err(file(bound.path(), "cleared")(error));
                    }
                    Ok(()) | Err(_) => return self.await_cleared_or_keep(device, bound),
                }
            }
            if begun.elapsed() >= UNUSED_WITHIN {
                match self.keep(device) {
                    Err(gone @ ControlError::NotFound { .. }) => return Err(gone),
                    Err(error) => {
                        tracing::warn!(error = chain(&error), "a detach by another program may be pending")
                    }
                    Ok(()) => {}
                }
                return Err(ControlError::InUse { id: device.id(), holders });
            }
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until the kernel clears the device, which it does once the last program has closed it.
    fn await_cleared_or_keep(&self, device: Device, bound: LoopDevice) -> Result<(), ControlError> {
        if Self::is_cleared(device, bound, UNUSED_WITHIN)? {
            return Ok(());
        }
        bound.keep_bound(own_program(LOOP_DEVICE)).map_err(file(bound.path(), "kept"))?;
        // The kernel may have cleared the device before the cancellation.
        if Self::is_cleared(device, bound, Duration::ZERO)? {
            return Ok(());
        }
        Err(ControlError::InUse { id: device.id(), holders: Holders::of(&bound.path()) })
    }

    pub(in crate::node) fn delete(&self, device: Device) -> Result<(), ControlError> {
        self.0.connections.forget(device.tag());
        let bound = match of_tag(device) {
            Err(ControlError::NotFound { .. }) => {
                Self::restore_queue(device.id());
                return Ok(());
            }
            bound => bound?,
        };
        // The device was never served, or a program opened it during the clear.
        bound.clear(own_program(LOOP_DEVICE), false).map_err(file(bound.path(), "cleared"))?;
        if Self::is_cleared(device, bound, CLEARED_WITHIN)? {
            return Ok(());
        }
        let waited_ms = u64::try_from(CLEARED_WITHIN.as_millis()).unwrap_or(u64::MAX);
        Err(ControlError::TimedOut { id: device.id(), command: "LOOP_CLR_FD", waited_ms })
    }

    /// Returns the number of connections of this process that no keeper currently has.
    pub(in crate::node) fn unkept(&self) -> usize {
        self.0.connections.unkept()
    }

    fn unreachable(&self) -> impl FnOnce(io::Error) -> ControlError + use<> {
        file(self.0.connections.keeper().socket().to_owned(), "used")
    }
}

fn own_program(command: &str) -> Command {
    let mut program = Command::new(OWN_PROGRAM);
    program.arg(command);
    program
}

fn loop_device(id: u32) -> Result<LoopDevice, ControlError> {
    let number = id.checked_sub(LOOP_IDS);
    let number = number.ok_or(ControlError::NotFound { id })?;
    let found = LoopDevice::find(number).map_err(file("/sys/block", "read"))?;
    found.ok_or(ControlError::NotFound { id })
}

/// Returns the loop device of a device, if its file has the device's tag.
fn of_tag(device: Device) -> Result<LoopDevice, ControlError> {
    let id = device.id();
    let bound = loop_device(id)?;
    if bound.tag == device.tag() { Ok(bound) } else { Err(ControlError::NotFound { id }) }
}

fn log_kept(bound: LoopDevice) {
    tracing::warn!(
        device = %bound.path().display(),
        "a program asked the kernel to detach the device of a volume (`losetup --detach`); the device stays"
    );
}

fn sectors_of(device: LoopDevice) -> Result<u64, ControlError> {
    Ok(device.len_bytes().map_err(file(device.path(), "measured"))? / SECTOR_BYTES)
}

fn info(id: u32, state: DeviceState, tag: u64) -> DeviceInfo {
    DeviceInfo {
        id,
        state,
        queues: 1,
        depth: DEPTH,
        max_io_bytes: MAX_IO_BYTES,
        transport: Some(Transport::Fuse),
        server_pid: -1,
        tag,
        has_batches: false,
        foreign: ForeignFeatures::among(0),
    }
}

fn file(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(io::Error) -> ControlError {
    let path = path.into();
    move |source| ControlError::File { path, action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(run_dir: &tempfile::TempDir) -> FuseDevices {
        let rings = RingLocks::of_owner(run_dir.path());
        FuseDevices::new(run_dir.path(), KeeperStart::Outside, rings)
    }

    /// Regression: the binding waited for the partitions, which are read before requests are served.
    #[test]
    fn a_loop_module_that_reads_partitions_is_refused() {
        assert!(is_positive(Ok("15\n".to_owned())));
        assert!(!is_positive(Ok("0\n".to_owned())));
        assert!(!is_positive(Err(io::ErrorKind::NotFound.into())), "it is built in, or not loaded yet");
    }

    /// Regression, found in review: the kernel aborted the connections of volumes whose requests waited for a
    /// restarted daemon or for the store.
    #[test]
    fn a_kernel_with_a_limit_for_each_request_is_refused() {
        let set = |name: &'static str| {
            move |path: &str| match path.strip_prefix("/proc/sys/fs/fuse/") {
                Some(found) => Ok(if found == name { "60\n" } else { "0\n" }.to_owned()),
                None => Err(io::ErrorKind::NotFound.into()),
            }
        };
        for name in ["default_request_timeout", "max_request_timeout"] {
            let lack = request_timeout(set(name)).unwrap();
            assert!(lack.ends_with(&format!("set the sysctl fs.fuse.{name} to 0")), "{lack}");
        }
        assert_eq!(request_timeout(set("neither")), None);
        assert_eq!(request_timeout(|_| Err(io::ErrorKind::NotFound.into())), None, "an older kernel");
    }

    /// Regression: a restarted daemon took a device for dead, and cleared it, while another server had it.
    #[test]
    fn a_connection_may_be_with_another_server() {
        let run_dir = tempfile::tempdir().unwrap();
        let (old, new) = (RingLocks::of_owner(run_dir.path()), devices(&run_dir));
        assert!(!new.is_kept(1).unwrap(), "nothing has it");
        let lock = old.lock().unwrap();
        assert!(new.is_kept(1).unwrap());
        drop(lock);
        assert!(!new.is_kept(1).unwrap());
    }
}
