//! A ublk device, for the control plane.
//!
//! ```text
//!        add            queues armed, start
//! (none) ---> DEAD ------------------------> LIVE <-----------------------.
//!               ^                             | |                         |
//!               |            stop             | | last use of the         | queues armed,
//!               '-----------------------------' | char device gone        | end_recovery
//!   DEAD --delete--> (none)                     v                         |
//!                                           QUIESCED ---start_recovery----'
//! ```
//!
//! The kernel numbers devices and hands out the lowest free number, so a number does not identify the owner.
//! Each device carries a tag that its server chose (`ublksrv_flags`); the kernel stores and returns it. A
//! [`Device`] is created only for a device with the tag that the caller expects; devices with other tags are
//! neither stopped nor deleted.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_ring::KernelErrno;
use libublk::sys;

use crate::command::{self, ControlCommand};
use crate::control_thread::{CommandSubject, run_within};
use crate::features::has_batches;
use crate::lost_device::{LOST_AFTER, looks_lost};
use crate::{
    CharDevice, ControlError, DeviceInfo, DeviceLimit, DeviceSpec, DeviceState, Features, ForeignFeatures,
    Holders, KERNEL_SECTORS_PER_SECTOR, SECTOR_BYTES, Transport, block_path,
};

const CLASSES: &str = "/sys/class";
const CHAR_CLASS: &str = "/sys/class/ublk-char";
/// Initial and maximum delay before retrying a command that the kernel answers with `EBUSY`.
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));
/// Maximum wait for the kernel to start a device, which may include reading a partition table from it.
const START_WITHIN: Duration = Duration::from_secs(60);
/// Maximum wait for the kernel to notice that all queues of a device are armed.
const END_RECOVERY_WITHIN: Duration = Duration::from_secs(10);
/// Maximum wait for the answer of a command that waits for no other process.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Maximum wait for the kernel to remove a device from its users: their requests end first.
const STOP_WITHIN: Duration = Duration::from_secs(60);
/// Maximum wait for a deletion, which ends when the last program has closed the device.
const DELETE_WITHIN: Duration = Duration::from_secs(1);
/// Time between two scans of the open files of all processes; a scan costs a system call per file.
const SCAN_EVERY: Duration = Duration::from_millis(250);
/// Maximum wait for programs that open a device briefly, as udev does.
const UNUSED_WITHIN: Duration = Duration::from_secs(2);

/// Properties that identify a caller's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Tag with which it was added.
    pub tag: u64,
    /// Maximum size in sectors of 4096 bytes; a device that has not grown yet is smaller.
    pub sectors: u64,
}

/// A device that exists in the kernel. Dropping this value changes nothing there.
///
/// All functions block and belong on a control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    id: u32,
    tag: u64,
    queues: u16,
    depth: u16,
    max_io_bytes: u32,
    transport: Transport,
    has_batches: bool,
}

impl Device {
    /// Adds a device and sets its parameters. Next: delete it, or open, arm and start it.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] and [`ControlError::Unsupported`] before any command was sent;
    /// [`ControlError::IdTaken`]; [`ControlError::TooManyDevices`]; [`ControlError::Command`], after deleting
    /// the device again.
    pub fn add(features: &Features, spec: &DeviceSpec) -> Result<Self, ControlError> {
        spec.validate()?;
        features.check(spec.transport)?;
        let requested_id = spec.id.unwrap_or(u32::MAX);
        let command = |name, code, device| ControlCommand { name, code, device, data: 0 };
        let flags = features.device_flags(spec.transport, spec.queues, spec.depth);
        let request = sys::ublksrv_ctrl_dev_info {
            nr_hw_queues: spec.queues,
            queue_depth: spec.depth,
            max_io_buf_bytes: spec.max_io_bytes,
            dev_id: requested_id,
            flags,
            ublksrv_flags: spec.tag,
            ..Default::default()
        };
        let &DeviceSpec {
            queues: _,
            depth,
            max_io_bytes,
            transport,
            tag,
            id: _,
            sectors: _,
            max_zero_bytes: _,
        } = spec;
        let new = move |added: sys::ublksrv_ctrl_dev_info| {
            // The kernel gives a device at most as many queues as the host may have CPUs.
            let (id, queues) = (added.dev_id, added.nr_hw_queues);
            let has_batches = has_batches(flags);
            Self { id, tag, queues, depth, max_io_bytes, transport, has_batches }
        };
        let unwanted = move |added: Result<_, ControlError>| {
            // The caller has stopped waiting. If the deletion fails, the next start finds the device by its
            // tag.
            let _deleted = added.map(|added| new(added).delete());
        };
        let add = command("ADD_DEV", sys::UBLK_U_CMD_ADD_DEV, requested_id);
        let added = command::exchange(CommandSubject::New(tag), add, request, ANSWER_WITHIN, unwanted);
        let device = added.map(new).map_err(|error| match (spec.id, &error) {
            (Some(id), ControlError::Command { source: KernelErrno::EEXIST, .. }) => {
                ControlError::IdTaken { id }
            }
            (_, ControlError::Command { source, .. }) if source.number() == libc::EACCES => too_many(error),
            _ => error,
        })?;
        let set = command("SET_PARAMS", sys::UBLK_U_CMD_SET_PARAMS, device.id);
        let unwanted = move |_set| {
            let _deleted = device.delete();
        };
        let subject = CommandSubject::Device(device.id);
        if let Err(error) = command::exchange(subject, set, spec.params(), ANSWER_WITHIN, unwanted) {
            if !matches!(error, ControlError::NotEnded { .. }) {
                // If the deletion fails, the next start finds the device by its tag.
                let _deleted = device.delete();
            }
            return Err(error);
        }
        Ok(device)
    }

    /// Finds an existing device, for example to recover it. Its queues, depth, request size and transport are
    /// the kernel's values; another version may have chosen them.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; those of [`of`](Self::of).
    pub fn find(id: u32, expected: &Expected) -> Result<Self, ControlError> {
        let info = Self::look(id)?;
        // The size is queried last, because its answer waits for other commands about the device.
        if info.tag == expected.tag && info.state != DeviceState::Dead {
            return Self::of(&info, Self::sectors_of(id)?, expected);
        }
        Self::of(&info, expected.sectors, expected)
    }

    /// Returns the device with this description, if it is the expected one.
    ///
    /// # Errors
    /// [`ControlError::NotOurs`] for another tag; [`ControlError::Foreign`] and [`ControlError::Invalid`] for
    /// a device that cannot be served; [`ControlError::Resized`] for a larger one.
    pub fn of(info: &DeviceInfo, sectors: u64, expected: &Expected) -> Result<Self, ControlError> {
        let &DeviceInfo { id, queues, depth, max_io_bytes, transport, tag, has_batches, foreign, .. } = info;
        if tag != expected.tag {
            return Err(ControlError::NotOurs { id, found: tag });
        }
        if !foreign.is_empty() {
            return Err(ControlError::Foreign { id, foreign });
        }
        let transport = transport.ok_or(ControlError::Invalid {
            field: "transport",
            rule: "must be zero copy, user copy or kernel copy",
        })?;
        if has_batches && transport == Transport::KernelCopy {
            let rule = "must be zero copy or user copy for a device with batches of requests";
            return Err(ControlError::Invalid { field: "transport", rule });
        }
        if sectors > expected.sectors {
            return Err(ControlError::Resized { id, found: sectors, expected: expected.sectors });
        }
        Ok(Self { id, tag, queues, depth, max_io_bytes, transport, has_batches })
    }

    /// Returns the ids of all ublk devices of this machine, sorted.
    ///
    /// # Errors
    /// [`ControlError::File`] if sysfs cannot be read.
    pub fn list() -> Result<Vec<u32>, ControlError> {
        let entries = match fs::read_dir(CHAR_CLASS) {
            Ok(entries) => entries,
            // The driver is not loaded.
            Err(error) if error.kind() == ErrorKind::NotFound && Path::new(CLASSES).is_dir() => {
                return Ok(Vec::new());
            }
            Err(source) => {
                let path = PathBuf::from(CHAR_CLASS);
                return Err(ControlError::File { path, action: "opened", source });
            }
        };
        let mut ids: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// Returns the number in `/dev/ublkbN`, or for a loop device [`LOOP_IDS`](crate::LOOP_IDS) plus its
    /// number.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// Returns the tag with which the device was added.
    #[must_use]
    pub const fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the number of queues.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.queues
    }

    /// Returns the maximum number of requests in a queue.
    #[must_use]
    pub const fn depth(&self) -> u16 {
        self.depth
    }

    /// Returns the maximum length of a read or write request in bytes.
    #[must_use]
    pub const fn max_io_bytes(&self) -> u32 {
        self.max_io_bytes
    }

    /// Returns the transport of the data.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns true if the queues use batches (`UBLK_F_BATCH_IO`): few commands for many tags.
    #[must_use]
    pub const fn has_batches(&self) -> bool {
        self.has_batches
    }

    /// Returns the path of the block device, which exists between start and stop.
    #[must_use]
    pub fn block_path(&self) -> PathBuf {
        block_path(self.id)
    }

    /// Queries the kernel for the device.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub fn info(&self) -> Result<DeviceInfo, ControlError> {
        match Self::look(self.id) {
            // The device was deleted, and another program's device has its number.
            Ok(info) if info.tag != self.tag => Err(ControlError::NotFound { id: self.id }),
            answer => answer,
        }
    }

    /// Opens the character device for the queues.
    ///
    /// # Errors
    /// [`ControlError::File`]; its source is `EBUSY` while another process has the device open.
    pub fn open_char(&self) -> Result<CharDevice, ControlError> {
        CharDevice::open(self.id)
    }

    /// Starts an added device. Returns when every queue is armed and the block device exists, so the ring
    /// thread must be running; it may get requests (partition scan) before this returns.
    ///
    /// # Errors
    /// [`ControlError::Command`]; [`ControlError::TimedOut`] after a minute.
    pub fn start(&self) -> Result<(), ControlError> {
        self.send_within("START_DEV", sys::UBLK_U_CMD_START_DEV, own_pid(), START_WITHIN).map_err(named)
    }

    /// Prepares a device whose server has exited for new queues: waits at most `timeout` until the kernel has
    /// processed the exit. Next: open the character device, arm all queues, and call
    /// [`end_recovery`](Self::end_recovery).
    ///
    /// Call it once per process and device: kernels before 6.15 reset the queues in this command, and answer
    /// a second one with `EINVAL` until a queue is armed (without the fix of CVE-2024-46735 they crash, see
    /// [`KernelRelease::crash`](crate::KernelRelease::crash)). If an earlier process began the recovery and
    /// exited before it armed a queue, the device is ready for new queues.
    ///
    /// # Errors
    /// [`ControlError::StillHeld`] after `timeout`; [`ControlError::KernelLostDevice`] two seconds after
    /// that; [`ControlError::TimedOut`]; [`ControlError::NotFound`]; [`ControlError::Command`].
    pub fn start_recovery(&self, timeout: Duration) -> Result<(), ControlError> {
        self.info()?;
        let begin = Instant::now();
        let mut looks_lost_since = None;
        let mut pause = POLL.0;
        loop {
            let (code, left) = (sys::UBLK_U_CMD_START_USER_RECOVERY, timeout.saturating_sub(begin.elapsed()));
            match self.send_within("START_USER_RECOVERY", code, 0, left.max(Duration::from_secs(1))) {
                Err(ControlError::Command { source: KernelErrno::EBUSY, .. }) => {}
                Err(error @ ControlError::Command { source: KernelErrno::EINVAL, .. }) => {
                    if self.info()?.state != DeviceState::Quiesced {
                        return Err(error);
                    }
                    match self.open_char() {
                        Ok(_) => return Ok(()),
                        // The process that began the recovery still has it open.
                        Err(ControlError::File { source, .. })
                            if source.kind() == ErrorKind::ResourceBusy => {}
                        Err(error) => return Err(error),
                    }
                }
                outcome => return outcome,
            }
            if begin.elapsed() >= timeout {
                let info = self.info()?;
                if !looks_lost(&info) {
                    let waited_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                    return Err(ControlError::StillHeld { id: self.id, state: info.state, waited_ms });
                }
                if looks_lost_since.get_or_insert_with(Instant::now).elapsed() >= LOST_AFTER {
                    return Err(ControlError::KernelLostDevice { id: self.id });
                }
            }
            sleep(pause);
            pause = (pause * 2).min(POLL.1);
        }
    }

    /// Ends a recovery: the device is live again and the kernel hands out the waiting requests. Returns when
    /// every queue is armed, so the ring thread must be running.
    ///
    /// # Errors
    /// [`ControlError::Command`]; [`ControlError::TimedOut`] after ten seconds: a queue was not armed, or the
    /// kernel refused one of its tags. The call may be repeated.
    pub fn end_recovery(&self) -> Result<(), ControlError> {
        let code = sys::UBLK_U_CMD_END_USER_RECOVERY;
        match self.send_within("END_USER_RECOVERY", code, own_pid(), END_RECOVERY_WITHIN).map_err(named) {
            // An earlier command whose caller stopped waiting has ended the recovery.
            Err(ControlError::Command { source: KernelErrno::EBUSY, .. })
                if self.info()?.state == DeviceState::Live =>
            {
                Ok(())
            }
            ended => ended,
        }
    }

    /// Makes the kernel return idle tags so that the server can release the device, and waits at most
    /// `timeout` until each queue has an idle tag. Needs [`Features::can_quiesce`]. The device is quiesced
    /// only after the last user of its character device has closed it. With batches the kernel waits for no
    /// tag, and fails all later requests until the device is recovered.
    ///
    /// # Errors
    /// [`ControlError::Command`] with `EBUSY` if a queue had no idle tag in time. The device then starts no
    /// more requests; retry, or release it.
    pub fn quiesce(&self, timeout: Duration) -> Result<(), ControlError> {
        // Zero would mean no limit.
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        let within = timeout.saturating_add(ANSWER_WITHIN);
        self.send_within("QUIESCE_DEV", sys::UBLK_U_CMD_QUIESCE_DEV, timeout_ms.into(), within)
    }

    /// Removes the block device and fails its pending requests. The ring thread must be running: it gets
    /// [`QueueEvent::Aborted`](crate::QueueEvent::Aborted) for each tag, or with batches one
    /// [`BatchEvent::Aborted`](crate::BatchEvent::Aborted) per queue.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Command`].
    pub fn stop(&self) -> Result<(), ControlError> {
        self.info()?;
        self.send_within("STOP_DEV", sys::UBLK_U_CMD_STOP_DEV, 0, STOP_WITHIN)
    }

    /// Stops the device unless it is in use: mounted, below another device, or opened by a program.
    ///
    /// A kernel without TRY_STOP_DEV (`UBLK_F_SAFE_STOP_DEV`, 7.0) does not check this. On such a kernel this
    /// function checks the programs of this PID namespace; a program may still open the device between the
    /// check and the stop.
    ///
    /// # Errors
    /// [`ControlError::InUse`] after two seconds; [`ControlError::NotFound`]; [`ControlError::Command`].
    pub fn stop_unused(&self, features: &Features) -> Result<(), ControlError> {
        self.info()?;
        if features.can_stop_unused() {
            let code = sys::UBLK_U_CMD_TRY_STOP_DEV;
            let stopped =
                self.while_busy(UNUSED_WITHIN, || self.send_within("TRY_STOP_DEV", code, 0, STOP_WITHIN));
            return match stopped {
                Err(ControlError::Command { source: KernelErrno::EBUSY, .. }) => {
                    Err(ControlError::InUse { id: self.id, holders: Holders::of(&self.block_path()) })
                }
                // The device has no block device, but its armed tags must come back.
                Err(ControlError::Command { source: KernelErrno::ENODEV, .. }) => self.stop(),
                outcome => outcome,
            };
        }
        let (device, begin) = (self.block_path(), Instant::now());
        loop {
            let holders = Holders::of(&device);
            if !holders.have_it_open() && !is_claimed(&device)? {
                return self.stop();
            }
            if begin.elapsed() >= UNUSED_WITHIN {
                return Err(ControlError::InUse { id: self.id, holders });
            }
            sleep(SCAN_EVERY);
        }
    }

    /// Deletes the device after the last user of its character device has closed it: close its queues first,
    /// and keep the ring thread running.
    ///
    /// # Errors
    /// [`ControlError::TimedOut`] after a second: a program still has the stopped device open, and the kernel
    /// deletes the device once the program closes it. From then on the number may belong to another device:
    /// look for the tag, and do not call this again. [`ControlError::Command`]. It is no error if the device
    /// does not exist, or if its number belongs to another program's device.
    pub fn delete(&self) -> Result<(), ControlError> {
        match self.info() {
            Ok(_) => {}
            Err(ControlError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        match self.send_within("DEL_DEV", sys::UBLK_U_CMD_DEL_DEV, 0, DELETE_WITHIN) {
            Err(ControlError::NotFound { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    /// Changes the size of a started device to `sectors` of 4096 bytes.
    ///
    /// # Errors
    /// [`ControlError::Command`]; with `EOPNOTSUPP` on kernels before 6.16.
    pub fn resize(&self, sectors: u64) -> Result<(), ControlError> {
        if sectors == 0 || sectors > u64::MAX / SECTOR_BYTES {
            return Err(ControlError::Invalid {
                field: "sectors",
                rule: "must be at least 1 and fit 64 bits",
            });
        }
        if self.info()?.state == DeviceState::Dead {
            // Kernels before 7.0 dereference a null pointer here.
            return Err(self.refused("UPDATE_SIZE", KernelErrno::ENODEV));
        }
        let size = sectors * KERNEL_SECTORS_PER_SECTOR;
        self.send_within("UPDATE_SIZE", sys::UBLK_U_CMD_UPDATE_SIZE, size, ANSWER_WITHIN)
    }

    /// Queries the size of the device, in sectors of 4096 bytes.
    ///
    /// # Errors
    /// [`ControlError::Command`].
    pub fn sectors(&self) -> Result<u64, ControlError> {
        Self::sectors_of(self.id)
    }

    /// Turns off the I/O scheduler and writeback throttling. Call it right after [`start`](Self::start),
    /// while the ring thread is running and before the device is announced. It does not change a tuned
    /// device.
    ///
    /// # Errors
    /// [`ControlError::File`] with the attribute; [`ControlError::NotEnded`] if the kernel does not finish
    /// the change, for which it waits for all requests of the device.
    pub fn tune(&self) -> Result<(), ControlError> {
        let queue = PathBuf::from(format!("/sys/block/ublkb{}/queue", self.id));
        run_within(
            CommandSubject::Attributes(self.id),
            "a write to queue",
            ANSWER_WITHIN,
            move || tune(&queue),
            drop,
        )?
    }

    /// Queries the kernel for any device. The answer does not wait for other commands about it.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::NotOurs`] for an unprivileged device of another program,
    /// which the kernel does not describe without the path of its character device, even to root
    /// (`ublk_ctrl_uring_cmd_permission` in Linux, `drivers/block/ublk_drv.c`).
    pub fn look(id: u32) -> Result<DeviceInfo, ControlError> {
        let command =
            ControlCommand { name: "GET_DEV_INFO", code: sys::UBLK_U_CMD_GET_DEV_INFO, device: id, data: 0 };
        let room = sys::ublksrv_ctrl_dev_info::default();
        let answer = command::exchange(CommandSubject::Description(id), command, room, ANSWER_WITHIN, drop);
        let info = answer.map_err(|error| {
            if matches!(error, ControlError::Command { source: KernelErrno::EINVAL, .. }) {
                return ControlError::NotOurs { id, found: 0 };
            }
            not_found(id, error)
        })?;
        let state = match u32::from(info.state) {
            sys::UBLK_S_DEV_DEAD => DeviceState::Dead,
            sys::UBLK_S_DEV_LIVE => DeviceState::Live,
            sys::UBLK_S_DEV_QUIESCED => DeviceState::Quiesced,
            _ => DeviceState::FailIo,
        };
        Ok(DeviceInfo {
            id,
            state,
            queues: info.nr_hw_queues,
            depth: info.queue_depth,
            max_io_bytes: info.max_io_buf_bytes,
            transport: Transport::of_device(info.flags),
            server_pid: info.ublksrv_pid,
            tag: info.ublksrv_flags,
            has_batches: has_batches(info.flags),
            foreign: ForeignFeatures::among(info.flags),
        })
    }

    fn sectors_of(id: u32) -> Result<u64, ControlError> {
        let command =
            ControlCommand { name: "GET_PARAMS", code: sys::UBLK_U_CMD_GET_PARAMS, device: id, data: 0 };
        let room = sys::ublk_params { len: size_of::<sys::ublk_params>() as u32, ..Default::default() };
        let params = command::exchange(CommandSubject::Device(id), command, room, ANSWER_WITHIN, drop)
            .map_err(|error| not_found(id, error))?;
        Ok(params.basic.dev_sectors / KERNEL_SECTORS_PER_SECTOR)
    }

    /// Retries a command while the kernel answers `EBUSY`, for at most `timeout`.
    fn while_busy(
        &self,
        timeout: Duration,
        send: impl Fn() -> Result<(), ControlError>,
    ) -> Result<(), ControlError> {
        let begin = Instant::now();
        let mut pause = POLL.0;
        loop {
            match send() {
                Err(ControlError::Command { source: KernelErrno::EBUSY, .. })
                    if begin.elapsed() < timeout =>
                {
                    sleep(pause.min(timeout.saturating_sub(begin.elapsed())));
                    pause = (pause * 2).min(POLL.1);
                }
                outcome => return outcome,
            }
        }
    }

    fn send_within(
        &self,
        name: &'static str,
        code: u32,
        data: u64,
        limit: Duration,
    ) -> Result<(), ControlError> {
        command::send(ControlCommand { name, code, device: self.id, data }, limit)
            .map_err(|error| not_found(self.id, error))
    }

    const fn refused(&self, command: &'static str, source: KernelErrno) -> ControlError {
        ControlError::Command { id: self.id, command, source }
    }
}

/// Recognizes the limit of devices: `EACCES` may also come from a security module.
fn too_many(error: ControlError) -> ControlError {
    match (DeviceLimit::of_running_kernel(), Device::list()) {
        (Some(DeviceLimit { devices, .. }), Ok(existing)) if existing.len() >= devices as usize => {
            ControlError::TooManyDevices { devices }
        }
        _ => error,
    }
}

fn own_pid() -> u64 {
    std::process::id().into()
}

/// Inode of the host's PID namespace. Source: `PROC_PID_INIT_INO` in `linux/proc_ns.h`.
const HOST_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Names the cause of `EINVAL` for the server's pid. From 6.16.1 on kernels compare it with the opener's pid
/// in the host's namespace; `47bdf1d29cae` (6.18.8, 6.19) translates it first.
fn named(error: ControlError) -> ControlError {
    named_in(error, is_in_host_pid_namespace())
}

/// Returns true if this process is in the host's PID namespace.
#[must_use]
pub fn is_in_host_pid_namespace() -> bool {
    fs::metadata("/proc/self/ns/pid").is_ok_and(|namespace| namespace.ino() == HOST_PID_NAMESPACE)
}

fn named_in(error: ControlError, in_host_namespace: bool) -> ControlError {
    if let ControlError::Command { id, command, source: KernelErrno::EINVAL } = error
        && !in_host_namespace
    {
        return ControlError::PidNamespace { id, command };
    }
    error
}

/// Returns true if the device is mounted or below another device, both of which open it exclusively.
///
/// # Errors
/// [`ControlError::File`].
fn is_claimed(device: &Path) -> Result<bool, ControlError> {
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device) {
        Ok(_exclusive) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        // The device was already stopped.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => Ok(false),
        Err(source) => Err(ControlError::File { path: device.to_owned(), action: "opened", source }),
    }
}

fn exists(id: u32) -> bool {
    Path::new(CHAR_CLASS).join(format!("ublkc{id}")).exists()
}

/// Recognizes a device that does not exist: `ENODEV` alone may also mean that the device has no disk.
fn not_found(id: u32, error: ControlError) -> ControlError {
    if matches!(error, ControlError::Command { source: KernelErrno::ENODEV, .. }) && !exists(id) {
        return ControlError::NotFound { id };
    }
    error
}

fn tune(queue: &Path) -> Result<(), ControlError> {
    set_attribute(&queue.join("scheduler"), "none", |now| now == "none" || now.contains("[none]"))?;
    let throttling = queue.join("wbt_lat_usec");
    if throttling.exists() {
        set_attribute(&throttling, "0", |now| now == "0")?;
    }
    Ok(())
}

fn set_attribute(path: &Path, value: &str, is_set: impl Fn(&str) -> bool) -> Result<(), ControlError> {
    let failed = |action| move |source| ControlError::File { path: path.to_owned(), action, source };
    if is_set(fs::read_to_string(path).map_err(failed("opened"))?.trim()) {
        return Ok(());
    }
    fs::write(path, value).map_err(failed("written"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> DeviceInfo {
        DeviceInfo {
            id: 3,
            state: DeviceState::Quiesced,
            queues: 2,
            depth: 64,
            max_io_bytes: 512 << 10,
            transport: Some(Transport::UserCopy),
            server_pid: -1,
            tag: 7,
            has_batches: false,
            foreign: ForeignFeatures::among(0),
        }
    }

    /// Regression: a device was recovered, or deleted, by its number alone.
    #[test]
    fn only_a_device_with_expected_tag_and_size_is_taken() {
        let expected = Expected { tag: 7, sectors: 100 };
        let device = Device::of(&info(), 100, &expected).unwrap();
        assert_eq!((device.queues(), device.depth(), device.max_io_bytes()), (2, 64, 512 << 10));
        assert_eq!(device.transport(), Transport::UserCopy);

        let foreign = Device::of(&DeviceInfo { tag: 8, ..info() }, 100, &expected).unwrap_err();
        assert!(matches!(foreign, ControlError::NotOurs { id: 3, found: 8 }), "{foreign}");
        let resized = Device::of(&info(), 101, &expected).unwrap_err();
        assert!(matches!(resized, ControlError::Resized { found: 101, expected: 100, .. }), "{resized}");
        let other = Device::of(&DeviceInfo { transport: None, ..info() }, 100, &expected).unwrap_err();
        assert!(matches!(other, ControlError::Invalid { field: "transport", .. }), "{other}");
    }

    #[test]
    fn a_device_with_another_conversation_is_refused_by_name() {
        let zoned = ForeignFeatures::among(sys::UBLK_F_ZONED.into());
        let expected = Expected { tag: 7, sectors: 100 };
        let refused = Device::of(&DeviceInfo { foreign: zoned, ..info() }, 100, &expected).unwrap_err();
        assert!(refused.to_string().contains("ZONED"), "{refused}");
        let copied = DeviceInfo { transport: Some(Transport::KernelCopy), has_batches: true, ..info() };
        let refused = Device::of(&copied, 100, &expected).unwrap_err();
        assert!(refused.to_string().contains("device with batches"), "{refused}");
        // The kernel sets these on every device.
        let announced = sys::UBLK_F_PER_IO_DAEMON | sys::UBLK_F_SAFE_STOP_DEV;
        assert!(ForeignFeatures::among(announced.into()).is_empty());
    }

    /// Regression: some kernels refused a daemon in a pod without `hostPID`, with an error without a cause.
    #[test]
    fn a_pid_namespace_is_named_as_the_cause() {
        let refused = |source| ControlError::Command { id: 3, command: "END_USER_RECOVERY", source };
        let message = named_in(refused(KernelErrno::EINVAL), false).to_string();
        for part in ["ublk device 3", "END_USER_RECOVERY", "PID namespace", "hostPID: true"] {
            assert!(message.contains(part), "{message}");
        }
        for (errno, in_host_namespace) in [(KernelErrno::EINVAL, true), (KernelErrno::EBUSY, false)] {
            let other = named_in(refused(errno), in_host_namespace);
            assert!(matches!(other, ControlError::Command { .. }), "{other}");
        }
    }

    #[test]
    fn a_device_that_is_gone_is_not_claimed() {
        assert!(!is_claimed(Path::new("/dev/ublkb-none")).unwrap());
    }
}
