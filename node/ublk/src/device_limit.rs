//! The kernel's limit of the number of ublk devices, a parameter of its module.
//!
//! *Runs on*: a control thread; it reads and writes sysfs.

use std::fs::{self, OpenOptions};
use std::path::Path;

use crate::error::UBLKS_MAX;
use crate::{ControlError, KernelRelease};

/// The kernel's limit of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimit {
    /// Maximum number of devices of the host.
    pub devices: u32,
    /// True if this process may raise it.
    pub can_be_raised: bool,
}

impl DeviceLimit {
    /// File of the limit.
    pub const PATH: &'static str = UBLKS_MAX;
    /// Number of devices that a raised limit allows: more than the ring threads of a node serve.
    pub const RAISED: u32 = 1 << 16;

    /// Returns the limit of the running kernel; `None` if it limits only devices of unprivileged programs, or
    /// is unknown.
    #[must_use]
    pub fn of_running_kernel() -> Option<Self> {
        Self::read(&KernelRelease::running().ok()?, Path::new(UBLKS_MAX))
    }

    /// Raises the limit of the running kernel. Returns the new one; the previous one if that is not lower.
    ///
    /// # Errors
    /// [`ControlError::File`] if it cannot be read or written.
    pub fn raise() -> Result<u32, ControlError> {
        raise(Path::new(UBLKS_MAX))
    }

    fn read(release: &KernelRelease, parameter: &Path) -> Option<Self> {
        if !release.counts_all_devices() {
            return None;
        }
        let devices = fs::read_to_string(parameter).ok()?.trim().parse().ok()?;
        // Opening it changes nothing.
        let can_be_raised = OpenOptions::new().write(true).open(parameter).is_ok();
        Some(Self { devices, can_be_raised })
    }
}

fn raise(parameter: &Path) -> Result<u32, ControlError> {
    let failed = |action| move |source| ControlError::File { path: parameter.to_owned(), action, source };
    let limit = fs::read_to_string(parameter).map_err(failed("opened"))?;
    if let Ok(devices) = limit.trim().parse::<u32>()
        && devices >= DeviceLimit::RAISED
    {
        return Ok(devices);
    }
    fs::write(parameter, DeviceLimit::RAISED.to_string()).map_err(failed("written"))?;
    Ok(DeviceLimit::RAISED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_all_devices_is_raised_and_never_lowered() {
        let dir = tempfile::tempdir().unwrap();
        let parameter = dir.path().join("ublks_max");
        let read = |release| DeviceLimit::read(&KernelRelease::new(release), &parameter);
        assert_eq!(read("6.8.0-60-generic"), None, "the driver is not loaded");
        raise(&parameter).unwrap_err();
        fs::write(&parameter, "64\n").unwrap();
        assert_eq!(read("6.8.0-60-generic"), Some(DeviceLimit { devices: 64, can_be_raised: true }));
        assert_eq!(read("7.3.4"), None, "it is about unprivileged programs");
        assert_eq!(raise(&parameter).unwrap(), DeviceLimit::RAISED);
        assert_eq!(read("6.8.0-60-generic").unwrap().devices, DeviceLimit::RAISED);
        fs::write(&parameter, "1000000\n").unwrap();
        assert_eq!(raise(&parameter).unwrap(), 1_000_000);
        assert_eq!(fs::read_to_string(&parameter).unwrap(), "1000000\n");
    }
}
