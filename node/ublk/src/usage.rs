//! Users of a block device, as far as a kernel without TRY_STOP_DEV shows them.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::ControlError;

const BLOCK_DEVICES: &str = "/sys/block";

/// True if the device is mounted or below another device: those open it exclusively.
pub(crate) fn is_claimed(device: &Path) -> Result<bool, ControlError> {
    match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device) {
        Ok(_exclusive) => Ok(false),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(true),
        // It was stopped before.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => Ok(false),
        Err(source) => Err(failed(device, "opened")(source)),
    }
}

/// True if a loop device lies on the device: it does not open it exclusively.
pub(crate) fn is_below_loop(device: &Path) -> Result<bool, ControlError> {
    is_backing(Path::new(BLOCK_DEVICES), device)
}

fn is_backing(block_devices: &Path, device: &Path) -> Result<bool, ControlError> {
    let entries = fs::read_dir(block_devices).map_err(failed(block_devices, "opened"))?;
    for entry in entries.flatten() {
        let path = entry.path().join("loop/backing_file");
        match fs::read_to_string(&path) {
            Ok(backing) if Path::new(backing.trim_end()) == device => return Ok(true),
            Ok(_) => {}
            // It is not a loop device, or has gone.
            Err(error)
                if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(source) => return Err(failed(&path, "opened")(source)),
        }
    }
    Ok(false)
}

fn failed(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> ControlError {
    let path = PathBuf::from(path);
    move |source| ControlError::File { path, action, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loop device does not claim what it lies on, so a detach took the device from below it.
    #[test]
    fn a_device_below_a_loop_device_is_in_use() {
        let block_devices = tempfile::tempdir().unwrap();
        for (name, backing) in [("loop0", "/var/image\n"), ("loop1", "/dev/ublkb1\n")] {
            fs::create_dir_all(block_devices.path().join(name).join("loop")).unwrap();
            fs::write(block_devices.path().join(name).join("loop/backing_file"), backing).unwrap();
        }
        fs::create_dir(block_devices.path().join("ublkb1")).unwrap();
        let is_used = |device| is_backing(block_devices.path(), Path::new(device)).unwrap();
        assert!(is_used("/dev/ublkb1"));
        assert!(!is_used("/dev/ublkb10") && !is_used("/dev/ublkb"));
    }

    #[test]
    fn a_device_that_is_gone_is_not_claimed() {
        assert!(!is_claimed(Path::new("/dev/ublkb-none")).unwrap());
    }
}
