//! Numbers and paths of block devices, of ublk and without it.

use std::path::PathBuf;

/// Ids of devices that are no ublk devices begin here: `/dev/loopN` has this plus N. Those of ublk devices
/// are below, as [`DeviceSpec::id`](crate::DeviceSpec::id) must be.
pub const LOOP_IDS: u32 = 1 << 31;

/// The path of the block device with an id.
#[must_use]
pub fn block_path(id: u32) -> PathBuf {
    PathBuf::from(match id.checked_sub(LOOP_IDS) {
        Some(number) => format!("/dev/loop{number}"),
        None => format!("/dev/ublkb{id}"),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::ControlError;

    /// The kernel numbers both from 0: a loop device would be taken for the ublk device of its number.
    #[test]
    fn a_loop_device_is_no_ublk_device() {
        assert_eq!(block_path(3), Path::new("/dev/ublkb3"));
        assert_eq!(block_path(LOOP_IDS + 3), Path::new("/dev/loop3"));
        let gone = ControlError::NotFound { id: LOOP_IDS + 3 }.to_string();
        assert_eq!(gone, "device /dev/loop3 does not exist");
    }
}
