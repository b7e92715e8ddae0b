//! Tag that distinguishes our devices from all other devices of the host.
//!
//! The kernel gives a device the lowest free number, so a recorded number may belong to another device by the
//! time it is read. Each device is added with a tag, which the kernel keeps:
//!
//! ```text
//! 63        56 55                     32 31                                0
//! +-----------+-------------------------+----------------------------------+
//! | layout    | installation            | volume and epoch                 |
//! +-----------+-------------------------+----------------------------------+
//! ```
//!
//! *Layout* is a constant. It changes with this layout, or when a device must be served differently, so that
//! no version takes over a device that it cannot serve. *Installation* and *volume and epoch* are parts of
//! BLAKE3 hashes. An epoch belongs to one attach, so the device of an earlier attach of a volume has another
//! tag.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use holdfast_types::VolumeId;

use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::local::file::random;
use crate::node::local::record_file::replace_exact;

/// The first byte of every tag.
const LAYOUT: u8 = 0xb1;
/// Bits below the installation's part.
const VOLUME_BITS: u32 = 32;
/// The file in the state directory that holds the installation's identity.
const FILE: &str = "installation";

/// Identity of one state directory: devices of other ones on the same host are not ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) struct Installation([u8; 16]);

/// Tag that identifies a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::node) struct DeviceTag(pub(in crate::node) u64);

impl fmt::Display for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Installation {
    /// Reads the identity of a state directory, or creates it.
    pub(in crate::node) fn of(state_dir: &Path) -> Result<Self, NodeError> {
        if let Some(known) = Self::read(state_dir)? {
            return Ok(known);
        }
        let identity = random();
        replace_exact(&state_dir.join(FILE), &identity, 0o600)?;
        Ok(Self(identity))
    }

    /// Reads the identity of a state directory, if it has one.
    pub(in crate::node) fn read(state_dir: &Path) -> Result<Option<Self>, NodeError> {
        let path = state_dir.join(FILE);
        match fs::read(&path) {
            Ok(bytes) => {
                let identity = bytes.as_slice().try_into().map_err(|_other_length| NodeError::Damaged {
                    path,
                    source: LocalDamage::Length { found: bytes.len(), expected: size_of::<Self>() },
                })?;
                Ok(Some(Self(identity)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(file(&path, "read")(error)),
        }
    }

    /// Returns the tag of the device added by an attach of a volume.
    pub(in crate::node) fn tag(self, volume: &VolumeId, epoch: u64) -> DeviceTag {
        let hash =
            blake3::keyed_hash(&self.key(), &[&epoch.to_le_bytes()[..], volume.as_str().as_bytes()].concat());
        let [a, b, c, d, ..] = *hash.as_bytes();
        DeviceTag(self.prefix() << VOLUME_BITS | u64::from(u32::from_be_bytes([a, b, c, d])))
    }

    /// Returns true if a daemon of this installation added the device.
    pub(in crate::node) fn made(self, tag: u64) -> bool {
        tag >> VOLUME_BITS == self.prefix()
    }

    fn prefix(self) -> u64 {
        let [a, b, c, ..] = self.key();
        u64::from(u32::from_be_bytes([LAYOUT, a, b, c]))
    }

    fn key(self) -> [u8; 32] {
        *blake3::hash(&self.0).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_attach_has_a_tag_of_its_own() {
        let (ours, other) = (Installation([1; 16]), Installation([2; 16]));
        let [x, y]: [VolumeId; 2] = ["x", "y"].map(|name| name.parse().unwrap());
        let tags = [ours.tag(&x, 1), ours.tag(&x, 2), ours.tag(&y, 1), other.tag(&x, 1)];
        for (at, tag) in tags.iter().enumerate() {
            assert!(!tags[..at].contains(tag), "{tags:x?}");
        }
        assert!(tags[..3].iter().all(|tag| ours.made(tag.0) && !other.made(tag.0)));
        assert!(!ours.made(tags[3].0) && !ours.made(0));
        assert_eq!(ours.tag(&x, 1), tags[0]);
    }

    #[test]
    fn an_installation_keeps_its_identity() {
        let dir = tempfile::tempdir().unwrap();
        let first = Installation::of(dir.path()).unwrap();
        assert_eq!(Installation::of(dir.path()).unwrap(), first);
        assert_ne!(Installation::of(tempfile::tempdir().unwrap().path()).unwrap(), first);
        fs::write(dir.path().join(FILE), b"short").unwrap();
        assert!(Installation::of(dir.path()).is_err());
    }
}
