//! A ublk device as the control plane sees it.
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

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_ring::Errno;
use libublk::sys;

use crate::command::{self, Command};
use crate::lost_device::{LOST_AFTER, looks_lost};
use crate::{
    CharDevice, ControlError, DeviceSpec, Features, KERNEL_SECTORS_PER_SECTOR, SECTOR_BYTES, Transport,
};

const CHAR_CLASS: &str = "/sys/class/ublk-char";
/// How long recovery waits between two looks, at first and at most.
const RECOVERY_POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// The kernel's word on what a device can do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// Added but not started, or stopped: there is no `/dev/ublkbN`.
    Dead,
    /// Serving.
    Live,
    /// Its server has gone; requests wait for a successor.
    Quiesced,
    /// Its server has gone and requests fail. Devices added here never get there.
    FailIo,
}

impl std::fmt::Display for DeviceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dead => "DEAD",
            Self::Live => "LIVE",
            Self::Quiesced => "QUIESCED",
            Self::FailIo => "FAIL_IO",
        })
    }
}

/// What the kernel says about a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The number in `/dev/ublkbN`.
    pub id: u32,
    /// What it can do now.
    pub state: DeviceState,
    /// How many queues it has.
    pub queues: u16,
    /// How many requests a queue holds.
    pub depth: u16,
    /// The most bytes a read or write request covers.
    pub max_io_bytes: u32,
    /// How data is moved; `None` if the device was made by a program that moves it in another way.
    pub transport: Option<Transport>,
    /// The process that serves it, or served it last. -1 if none.
    pub server_pid: i32,
}

/// A device that exists in the kernel. Dropping this value changes nothing there.
///
/// All functions block and belong on a control thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    id: u32,
    queues: u16,
    depth: u16,
    max_io_bytes: u32,
    transport: Transport,
}

impl Device {
    /// Adds a device and sets its parameters. It can be deleted, or opened, armed and started.
    ///
    /// # Errors
    /// [`ControlError::Invalid`] and [`ControlError::Unsupported`] before anything was done;
    /// [`ControlError::IdTaken`]; [`ControlError::Command`], after which no device is left behind.
    pub fn add(features: &Features, spec: &DeviceSpec) -> Result<Self, ControlError> {
        spec.validate()?;
        features.check(spec.transport)?;
        let wanted = spec.id.unwrap_or(u32::MAX);
        let command = |name, code, device| Command { name, code, device, data: 0 };
        let asked = sys::ublksrv_ctrl_dev_info {
            nr_hw_queues: spec.queues,
            queue_depth: spec.depth,
            max_io_buf_bytes: spec.max_io_bytes,
            dev_id: wanted,
            flags: features.device_flags(spec.transport),
            ..Default::default()
        };
        let added = command::exchange(command("ADD_DEV", sys::UBLK_U_CMD_ADD_DEV, wanted), asked).map_err(
            |error| match (spec.id, &error) {
                (Some(id), ControlError::Command { source: Errno::EEXIST, .. }) => {
                    ControlError::IdTaken { id }
                }
                _ => error,
            },
        )?;
        let &DeviceSpec { queues, depth, max_io_bytes, transport, id: _, sectors: _ } = spec;
        let device = Self { id: added.dev_id, queues, depth, max_io_bytes, transport };
        let set = command("SET_PARAMS", sys::UBLK_U_CMD_SET_PARAMS, device.id);
        if let Err(error) = command::exchange(set, spec.params()) {
            device.delete()?;
            return Err(error);
        }
        Ok(device)
    }

    /// Takes up a device that exists, for example one to recover.
    ///
    /// # Errors
    /// [`ControlError::NotFound`]; [`ControlError::Invalid`] for a device with another transport than
    /// ours.
    pub fn find(id: u32) -> Result<Self, ControlError> {
        let DeviceInfo { queues, depth, max_io_bytes, transport, .. } = Self::info_of(id)?;
        let transport = transport
            .ok_or(ControlError::Invalid { field: "transport", rule: "must be zero copy or user copy" })?;
        Ok(Self { id, queues, depth, max_io_bytes, transport })
    }

    /// The ids of all ublk devices of this machine, sorted.
    ///
    /// # Errors
    /// [`ControlError::File`] if sysfs cannot be read.
    pub fn list() -> Result<Vec<u32>, ControlError> {
        let entries = fs::read_dir(CHAR_CLASS).map_err(|source| ControlError::File {
            path: PathBuf::from(CHAR_CLASS),
            action: "opened",
            source,
        })?;
        let mut ids: Vec<u32> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("ublkc")?.parse().ok())
            .collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The number in `/dev/ublkbN`.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// How many queues it has.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.queues
    }

    /// How many requests a queue holds.
    #[must_use]
    pub const fn depth(&self) -> u16 {
        self.depth
    }

    /// The most bytes a read or write request covers.
    #[must_use]
    pub const fn max_io_bytes(&self) -> u32 {
        self.max_io_bytes
    }

    /// How data is moved.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        self.transport
    }

    /// The path of the block device. It exists between start and stop.
    #[must_use]
    pub fn block_path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.id))
    }

    /// Asks the kernel about the device.
    ///
    /// # Errors
    /// [`ControlError::NotFound`].
    pub fn info(&self) -> Result<DeviceInfo, ControlError> {
        Self::info_of(self.id)
    }

    /// Opens the character device for the queues.
    ///
    /// # Errors
    /// [`ControlError::File`], with `EBUSY` as its source while another process has it open.
    pub fn open_char(&self) -> Result<CharDevice, ControlError> {
        CharDevice::open(self.id)
    }

    /// Starts an added device. Returns when every queue is armed and the block device is there, so the
    /// ring thread must be pumping; it may get requests (partition scan) before this returns.
    ///
    /// # Errors
    /// [`ControlError::Command`].
    pub fn start(&self) -> Result<(), ControlError> {
        self.send("START_DEV", sys::UBLK_U_CMD_START_DEV, own_pid())
    }

    /// Prepares a device whose server has gone for new queues: waits, at most `timeout`, until the
    /// kernel has seen the old server's end. Then open the character device, arm all queues, and call
    /// [`end_recovery`](Self::end_recovery).
    ///
    /// # Errors
    /// [`ControlError::StillHeld`] after `timeout`; [`ControlError::KernelLostDevice`] two seconds after that;
    /// [`ControlError::NotFound`]; [`ControlError::Command`].
    pub fn start_recovery(&self, timeout: Duration) -> Result<(), ControlError> {
        let begin = Instant::now();
        let mut looks_lost_since = None;
        let mut pause = RECOVERY_POLL.0;
        loop {
            match self.send("START_USER_RECOVERY", sys::UBLK_U_CMD_START_USER_RECOVERY, 0) {
                Err(ControlError::Command { source: Errno::EBUSY, .. }) => {}
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
            pause = (pause * 2).min(RECOVERY_POLL.1);
        }
    }

    /// Ends a recovery: the device is live again and the requests that waited are handed out. Returns
    /// when every queue is armed, so the ring thread must be pumping.
    ///
    /// # Errors
    /// [`ControlError::Command`].
    pub fn end_recovery(&self) -> Result<(), ControlError> {
        self.send("END_USER_RECOVERY", sys::UBLK_U_CMD_END_USER_RECOVERY, own_pid())
    }

    /// Asks the kernel to take idle tags back so that the server can let go of the device, waiting at
    /// most `timeout` for each queue to have an idle tag. Needs [`Features::can_quiesce`]. The device is
    /// quiesced only after the last use of its character device has gone.
    ///
    /// # Errors
    /// [`ControlError::Command`] with `EBUSY` if a queue had no idle tag in time: the device then starts
    /// no more requests; try again, or let go of it.
    pub fn quiesce(&self, timeout: Duration) -> Result<(), ControlError> {
        // Zero would mean to wait for ever.
        let timeout_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        self.send("QUIESCE_DEV", sys::UBLK_U_CMD_QUIESCE_DEV, timeout_ms.into())
    }

    /// Removes the block device, failing what is still asked of it. Only for a detach. The ring thread
    /// must be pumping; all tags come back as [`QueueEvent::Aborted`](crate::QueueEvent::Aborted).
    ///
    /// # Errors
    /// [`ControlError::Command`].
    pub fn stop(&self) -> Result<(), ControlError> {
        self.send("STOP_DEV", sys::UBLK_U_CMD_STOP_DEV, 0)
    }

    /// Removes the device. Waits until the last use of its character device has gone: close its queues
    /// first, and keep the ring thread pumping.
    ///
    /// # Errors
    /// [`ControlError::Command`]. A device that does not exist is not an error.
    pub fn delete(&self) -> Result<(), ControlError> {
        loop {
            match self.send("DEL_DEV", sys::UBLK_U_CMD_DEL_DEV, 0) {
                Err(ControlError::NotFound { .. }) => return Ok(()),
                // The wait for the last use was interrupted; the deletion goes on.
                Err(ControlError::Command { source: Errno::EINTR, .. }) => {}
                outcome => return outcome,
            }
        }
    }

    /// Changes the size of a started device, in sectors of 4096 bytes.
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
            // Kernels before 7.0 follow a null pointer here.
            return Err(self.refused("UPDATE_SIZE", Errno::ENODEV));
        }
        self.send("UPDATE_SIZE", sys::UBLK_U_CMD_UPDATE_SIZE, sectors * KERNEL_SECTORS_PER_SECTOR)
    }

    /// Turns off what stands between the block layer and the device: no I/O scheduler, no writeback
    /// throttling. Call it right after [`start`](Self::start), while the ring thread is pumping and
    /// before anyone is told of the device; a device that is tuned already is left alone.
    ///
    /// # Errors
    /// [`ControlError::File`] naming the attribute.
    pub fn tune(&self) -> Result<(), ControlError> {
        let queue = PathBuf::from(format!("/sys/block/ublkb{}/queue", self.id));
        set_attribute(&queue.join("scheduler"), "none", |now| now == "none" || now.contains("[none]"))?;
        let throttling = queue.join("wbt_lat_usec");
        if throttling.exists() {
            set_attribute(&throttling, "0", |now| now == "0")?;
        }
        Ok(())
    }

    fn info_of(id: u32) -> Result<DeviceInfo, ControlError> {
        let command =
            Command { name: "GET_DEV_INFO", code: sys::UBLK_U_CMD_GET_DEV_INFO, device: id, data: 0 };
        let info = command::exchange(command, sys::ublksrv_ctrl_dev_info::default())
            .map_err(|error| not_found(id, error))?;
        let transport =
            Transport::ALL.into_iter().find(|transport| info.flags & transport.flags() == transport.flags());
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
            transport,
            server_pid: info.ublksrv_pid,
        })
    }

    fn send(&self, name: &'static str, code: u32, data: u64) -> Result<(), ControlError> {
        command::send(Command { name, code, device: self.id, data })
            .map_err(|error| not_found(self.id, error))
    }

    const fn refused(&self, command: &'static str, source: Errno) -> ControlError {
        ControlError::Command { id: self.id, command, source }
    }
}

fn own_pid() -> u64 {
    std::process::id().into()
}

fn exists(id: u32) -> bool {
    Path::new(CHAR_CLASS).join(format!("ublkc{id}")).exists()
}

/// `ENODEV` is also the answer for a device that has no disk.
fn not_found(id: u32, error: ControlError) -> ControlError {
    if matches!(error, ControlError::Command { source: Errno::ENODEV, .. }) && !exists(id) {
        return ControlError::NotFound { id };
    }
    error
}

fn set_attribute(path: &Path, value: &str, is_set: impl Fn(&str) -> bool) -> Result<(), ControlError> {
    let failed = |action| move |source| ControlError::File { path: path.to_owned(), action, source };
    if is_set(fs::read_to_string(path).map_err(failed("opened"))?.trim()) {
        return Ok(());
    }
    fs::write(path, value).map_err(failed("written"))
}
