//! Sends single control commands directly to the driver.
//!
//! `docs/adr/0001-ublk-control.md` explains why this module does not use `libublk`.
#![allow(unsafe_code)] // an entry that names memory, and its payload

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use holdfast_ring::KernelErrno;
use io_uring::squeue::Entry128;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, types};
use libublk::sys;

use crate::ControlError;
use crate::control_thread::{CommandSubject, run_within};
use crate::device_spec::Params;
use crate::features::CONTROL_PATH;

/// Words of the largest payload, `struct ublk_params`.
const PAYLOAD_WORDS: usize = 16;
/// User data of the completions of a command and of its cancellation.
const COMMAND: u64 = 1;
const CANCEL: u64 = 2;
/// Maximum wait for the kernel to cancel a command.
const CANCELLED_WITHIN: Duration = Duration::from_secs(5);

/// One command to the control device, in the terms of `struct ublksrv_ctrl_cmd`.
#[derive(Clone, Copy)]
pub(crate) struct ControlCommand {
    /// The name without `UBLK_U_CMD_`, for errors.
    pub(crate) name: &'static str,
    pub(crate) code: u32,
    pub(crate) device: u32,
    /// The inline argument.
    pub(crate) data: u64,
}

struct Channel {
    control: File,
    ring: IoUring<Entry128, cqueue::Entry>,
    /// Memory that a command points to; on the heap so that it can outlive a broken ring.
    payload: Box<[u64; PAYLOAD_WORDS]>,
}

thread_local! {
    /// The ring of each thread that sends commands: creating a ring is expensive.
    static CHANNEL: RefCell<Option<Channel>> = const { RefCell::new(None) };
}

/// A structure that commands carry: plain integers, so that every bit pattern is a valid value.
pub(crate) trait Payload: Copy + Send + 'static {}

impl Payload for sys::ublksrv_ctrl_dev_info {}
impl Payload for Params {}
impl Payload for sys::ublk_params {}
/// The bits of GET_FEATURES.
impl Payload for u64 {}

/// Sends a command without payload and waits at most `limit` for its answer. After that it cancels the
/// command, if the kernel waits interruptibly.
pub(crate) fn send(command: ControlCommand, limit: Duration) -> Result<(), ControlError> {
    let work = move || with_channel(|channel| channel.send(command, 0, Some(limit)));
    run_within(CommandSubject::Device(command.device), command.name, limit + CANCELLED_WITHIN, work, drop)?
}

/// Sends a command with a payload, waits at most `limit` for its answer and returns the payload as the kernel
/// changed it. `late` receives an answer that comes after `limit`.
pub(crate) fn exchange<P: Payload>(
    subject: CommandSubject,
    command: ControlCommand,
    payload: P,
    limit: Duration,
    late: impl FnOnce(Result<P, ControlError>) + Send + 'static,
) -> Result<P, ControlError> {
    run_within(subject, command.name, limit, move || exchange_here(command, payload), late)?
}

fn exchange_here<P: Payload>(command: ControlCommand, payload: P) -> Result<P, ControlError> {
    const {
        assert!(
            size_of::<P>() <= PAYLOAD_WORDS * 8 && align_of::<P>() <= 8,
            "the payload fits the channel's memory"
        )
    };
    with_channel(|channel| {
        let room = channel.payload.as_mut_ptr().cast::<P>();
        // SAFETY: the channel owns the room, which is large and aligned enough: see the assertion above.
        unsafe { room.write(payload) };
        channel.send(command, size_of::<P>() as u16, None)?;
        // SAFETY: as above; the kernel has finished with it, and a `Payload` has no invalid bit patterns.
        Ok(unsafe { room.read() })
    })
}

fn with_channel<T>(run: impl FnOnce(&mut Channel) -> Result<T, ControlError>) -> Result<T, ControlError> {
    CHANNEL.with_borrow_mut(|slot| {
        let channel = match slot {
            Some(channel) => channel,
            None => slot.insert(Channel::open().map_err(ControlError::Channel)?),
        };
        let outcome = run(channel);
        if matches!(outcome, Err(ControlError::Channel(_))) {
            // The kernel may still hold the payload's address: leak the memory and the ring.
            std::mem::forget(slot.take());
        }
        outcome
    })
}

impl Channel {
    fn open() -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open(CONTROL_PATH)?;
        let ring = IoUring::builder().build(4)?;
        Ok(Self { control, ring, payload: Box::new([0; PAYLOAD_WORDS]) })
    }

    /// Sends a command and waits for its completion. After `limit` it cancels the command, which ends it if
    /// the kernel waits interruptibly.
    fn send(
        &mut self,
        command: ControlCommand,
        payload_bytes: u16,
        limit: Option<Duration>,
    ) -> Result<(), ControlError> {
        let ControlCommand { name, code, device, data } = command;
        let argument = sys::ublksrv_ctrl_cmd {
            dev_id: device,
            queue_id: u16::MAX,
            len: payload_bytes,
            addr: if payload_bytes > 0 { self.payload.as_mut_ptr() as u64 } else { 0 },
            data: [data],
            ..Default::default()
        };
        let control = types::Fd(self.control.as_raw_fd());
        let entry = opcode::UringCmd80::new(control, code).cmd(encode(&argument)).build().user_data(COMMAND);
        self.push(&entry);
        let begin = Instant::now();
        let mut was_cancelled = false;
        loop {
            let left = limit.filter(|_| !was_cancelled).map(|limit| limit.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                was_cancelled = true;
                self.push(&opcode::AsyncCancel::new(COMMAND).build().user_data(CANCEL).into());
                continue;
            }
            let entered = match left.map(Timespec::from) {
                Some(left) => self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left)),
                None => self.ring.submit_and_wait(1),
            };
            match entered {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)
                    ) => {}
                Err(error) => return Err(ControlError::Channel(error)),
            }
            // Skips answers to cancellations, of this command or of an earlier one: such an answer may come
            // after the command's own.
            let Some(completion) = self.ring.completion().find(|it| it.user_data() == COMMAND) else {
                continue;
            };
            let errno = match completion.result() {
                0.. => return Ok(()),
                negative => KernelErrno::new(negative.wrapping_neg()),
            };
            // `ECANCELED` means that the kernel had not begun the command.
            if was_cancelled && errno == KernelErrno::EINTR {
                let waited_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Err(ControlError::TimedOut { id: device, command: name, waited_ms });
            }
            return Err(ControlError::Command { id: device, command: name, source: errno });
        }
    }

    fn push(&mut self, entry: &Entry128) {
        // SAFETY: the only address in an entry is that of `payload`, which lives until the completion has
        // been seen, or is leaked by `with_channel`.
        unsafe { self.ring.submission().push(entry) }.expect("an empty queue has room for one entry");
    }
}

/// Encodes the argument as the 80 command bytes of a large entry.
///
/// ```text
/// 0        4          6     8        16       24             26    28        32
/// +--------+----------+-----+--------+--------+--------------+-----+---------+- - -
/// | dev_id | queue_id | len |  addr  |  data  | dev_path_len | pad | reserved| 0
/// +--------+----------+-----+--------+--------+--------------+-----+---------+- - -
/// ```
fn encode(argument: &sys::ublksrv_ctrl_cmd) -> [u8; 80] {
    let &sys::ublksrv_ctrl_cmd { dev_id, queue_id, len, addr, data: [data], dev_path_len, pad, reserved } =
        argument;
    let mut bytes = [0; 80];
    bytes[0..4].copy_from_slice(&dev_id.to_ne_bytes());
    bytes[4..6].copy_from_slice(&queue_id.to_ne_bytes());
    bytes[6..8].copy_from_slice(&len.to_ne_bytes());
    bytes[8..16].copy_from_slice(&addr.to_ne_bytes());
    bytes[16..24].copy_from_slice(&data.to_ne_bytes());
    bytes[24..26].copy_from_slice(&dev_path_len.to_ne_bytes());
    bytes[26..28].copy_from_slice(&pad.to_ne_bytes());
    bytes[28..32].copy_from_slice(&reserved.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::encode;
    use libublk::sys;

    #[test]
    fn the_argument_has_the_layout_of_the_kernel_header() {
        let bytes = encode(&sys::ublksrv_ctrl_cmd {
            dev_id: 0x0403_0201,
            queue_id: 0x0605,
            len: 0x0807,
            addr: 0x100f_0e0d_0c0b_0a09,
            data: [0x1817_1615_1413_1211],
            dev_path_len: 0x1a19,
            pad: 0,
            reserved: 0,
        });
        let expected: Vec<u8> = (1..=26).chain(std::iter::repeat_n(0, 54)).collect();
        assert_eq!(bytes.as_slice(), expected);
        assert_eq!(size_of::<sys::ublksrv_ctrl_cmd>(), 32);
    }
}
