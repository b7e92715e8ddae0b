//! The kernel's device number.

use std::path::Path;

use rustix::fs::{FileType, major, minor, stat};
use tonic::Status;

/// The kernel's device number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl DeviceNumber {
    /// Returns the number of the device with this node.
    ///
    /// # Errors
    /// `UNAVAILABLE`: it is not a device, or does not exist.
    pub(super) fn of(path: &Path) -> Result<Self, Status> {
        let gone = |why: &str| Status::unavailable(format!("{} is not a device: {why}", path.display()));
        let found = stat(path).map_err(|errno| gone(&errno.to_string()))?;
        let kind = FileType::from_raw_mode(found.st_mode);
        if kind.is_block_device() || kind.is_char_device() {
            Ok(Self { major: major(found.st_rdev), minor: minor(found.st_rdev) })
        } else {
            Err(gone(&format!("{kind:?}")))
        }
    }
}
