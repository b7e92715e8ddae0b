//! Identities: volumes, writers, positions in a volume's log.

use std::fmt;

/// A volume's name in the object store; it never changes and is never reused.
///
/// 1 to 63 of `a-z 0-9 -`, first and last a letter or digit: safe as a key part, a file name and a label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(String);

/// A string that cannot be a [`VolumeId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "volume id {0:?} is not valid: use 1 to 63 of a-z, 0-9 and '-', beginning and ending with a letter or digit"
)]
pub struct InvalidVolumeId(pub String);

impl VolumeId {
    /// Returns the id as used in keys and paths.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for VolumeId {
    type Error = InvalidVolumeId;

    fn try_from(text: String) -> Result<Self, InvalidVolumeId> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = text.as_bytes();
        let ends = bytes.first().is_some_and(|b| plain(*b)) && bytes.last().is_some_and(|b| plain(*b));
        if ends && bytes.len() <= 63 && bytes.iter().all(|b| plain(*b) || *b == b'-') {
            Ok(Self(text))
        } else {
            Err(InvalidVolumeId(text))
        }
    }
}

impl std::str::FromStr for VolumeId {
    type Err = InvalidVolumeId;

    fn from_str(text: &str) -> Result<Self, InvalidVolumeId> {
        Self::try_from(text.to_owned())
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The writer's fencing number; each attach increases it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// Returns the epoch of the next attach.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A position in a volume's log. The record that creates the volume is [`Seq::FIRST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

impl Seq {
    /// The seq of the record that creates a volume.
    pub const FIRST: Self = Self(1);

    /// Returns the next position.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Parses a position from its form in keys, 20 digits. A sign is rejected: it would allow a second key.
    pub(crate) fn parse_padded(text: &str) -> Option<Self> {
        let is_padded = text.len() == 20 && text.bytes().all(|byte| byte.is_ascii_digit());
        is_padded.then(|| text.parse().ok().map(Self)).flatten()
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// 128 random bits that identify one attach attempt of one writer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Nonce(pub [u8; 16]);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// 128 bits, in the text form of a UUID, that identify a requested snapshot. A volume creates one snapshot
/// for each, regardless of repeated requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotUid(pub [u8; 16]);

/// A string that cannot be a [`SnapshotUid`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("snapshot uid {0:?} is not valid: use a UUID, as in 0189f7e0-5c2b-7cc3-9d1e-0242ac120002")]
pub struct InvalidSnapshotUid(pub String);

impl std::str::FromStr for SnapshotUid {
    type Err = InvalidSnapshotUid;

    fn from_str(text: &str) -> Result<Self, InvalidSnapshotUid> {
        let invalid = || InvalidSnapshotUid(text.to_owned());
        let groups: Vec<usize> = text.split('-').map(str::len).collect();
        let digits: String = text.split('-').collect();
        if groups != [8, 4, 4, 4, 12] || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(invalid());
        }
        let bits = u128::from_str_radix(&digits, 16).map_err(|_digits_were_checked| invalid())?;
        Ok(Self(bits.to_be_bytes()))
    }
}

impl fmt::Display for SnapshotUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:032x}", u128::from_be_bytes(self.0));
        let groups = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
        f.write_str(&groups.join("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_uid_is_a_uuid() {
        let text = "0189f7e0-5c2b-7cc3-9d1e-0242ac120002";
        let uid: SnapshotUid = text.parse().unwrap();
        assert_eq!((uid.0[0], uid.0[15], uid.to_string().as_str()), (1, 2, text));
        for bad in
            ["", "0189f7e05c2b7cc39d1e0242ac120002", "+189f7e0-5c2b-7cc3-9d1e-0242ac120002", &text[1..]]
        {
            let refused = bad.parse::<SnapshotUid>().expect_err(bad);
            assert!(refused.to_string().contains("use a UUID"));
        }
    }

    #[test]
    fn a_volume_id_is_refused_with_the_rule_it_breaks() {
        for bad in ["", "-a", "a-", "A", "a/b", "a.b", &"x".repeat(64)] {
            let refused = VolumeId::try_from(bad.to_owned()).expect_err(bad);
            assert!(refused.to_string().contains("1 to 63"));
        }
        assert_eq!("vol-1".parse::<VolumeId>().unwrap().as_str(), "vol-1");
    }
}
