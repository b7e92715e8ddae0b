//! Numbers and paths of block devices, with and without ublk.

use std::path::PathBuf;

/// First id of devices without ublk: `/dev/loopN` has this id plus N. Ids of ublk devices are smaller, see
/// [`DeviceSpec::id`](crate::DeviceSpec::id).
pub const LOOP_IDS: u32 = 1 << 31;

/// Returns the path of the block device with this id.
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
