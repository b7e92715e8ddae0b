//! Devices that the kernel has lost: their server has exited, and the kernel never finishes its teardown.
//!
//! A device with a volatile cache and without FUA gets a forced write as a write and a flush. If a server
//! exits between the two for two requests at once, the kernel waits for a command that cannot end
//! (`docs/kernels.md`). The device stays LIVE and refuses recovery, and every process that uses it waits
//! until the host restarts. Devices that announce FUA are not affected.
//!
//! STOP_DEV, DEL_DEV and a change of the scheduler would also block while holding the device's mutex, so this
//! module sends none of them.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::{DeviceInfo, DeviceState};

/// Time for which a device must look lost. A correct kernel needs milliseconds to process the exit of a
/// server, and a few more for each request in flight on the server's disk.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// Returns true if a device that refuses recovery looks as if the kernel had lost it.
pub(crate) fn looks_lost(info: &DeviceInfo) -> bool {
    let attribute = format!("/sys/block/ublkb{}/queue/fua", info.id);
    fs::read_to_string(attribute).is_ok_and(|fua| is_of_a_lost_device(info, &fua))
}

fn is_of_a_lost_device(info: &DeviceInfo, fua: &str) -> bool {
    info.state == DeviceState::Live && info.server_pid == -1 && fua.trim() == "0"
}

/// Flushes a block device. On a lost device this may unblock the kernel, or never return: call it in a
/// separate process, see [`flush_from_outside`].
///
/// # Errors
/// If the device cannot be opened or flushed.
pub fn flush_device(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_data()
}

/// Starts `flusher`, a program that calls [`flush_device`], and waits at most `limit` for its exit. After
/// that it kills the flusher without waiting: it exits when the kernel returns from its system call.
///
/// # Errors
/// If `flusher` cannot be started or fails; [`io::ErrorKind::TimedOut`].
pub fn flush_from_outside(mut flusher: Command, limit: Duration) -> io::Result<()> {
    let mut flusher = flusher.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begin = Instant::now();
    loop {
        match flusher.try_wait()? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(io::Error::other(status.to_string())),
            None if begin.elapsed() < limit => sleep(POLL),
            None => {
                flusher.kill()?;
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ForeignFeatures;

    fn info(state: DeviceState, server_pid: i32) -> DeviceInfo {
        DeviceInfo {
            id: 3,
            state,
            queues: 1,
            depth: 16,
            max_io_bytes: 4096,
            transport: None,
            server_pid,
            tag: 0,
            has_batches: false,
            foreign: ForeignFeatures::among(0),
        }
    }

    #[test]
    fn only_a_live_device_without_server_and_fua_is_lost() {
        assert!(is_of_a_lost_device(&info(DeviceState::Live, -1), "0\n"));
        assert!(!is_of_a_lost_device(&info(DeviceState::Live, -1), "1\n"));
        assert!(!is_of_a_lost_device(&info(DeviceState::Live, 17), "0\n"));
        assert!(!is_of_a_lost_device(&info(DeviceState::Quiesced, -1), "0\n"));
    }

    #[test]
    fn a_flusher_that_hangs_is_not_waited_for() {
        let mut hangs = Command::new("sleep");
        hangs.arg("60");
        let begin = Instant::now();
        let error = flush_from_outside(hangs, Duration::from_millis(50)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() < Duration::from_secs(30));
        flush_from_outside(Command::new("true"), Duration::from_secs(30)).unwrap();
        assert!(flush_from_outside(Command::new("false"), Duration::from_secs(30)).is_err());
    }
}
