//! Identities: volumes, writers, positions in a volume's log, segments.

use std::fmt;

/// A volume's name in the object store; it never changes and is never used again.
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
    /// The id as it stands in keys and paths.
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

/// The writer's fencing number; it rises at every attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch of the next attach.
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

    /// The position after this one.
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
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

/// A segment's name: a ULID (48 bits of milliseconds since 1970, 80 random bits), sortable by time.
/// Source: <https://github.com/ulid/spec>.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u128);

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl SegmentId {
    /// Length of the text form.
    pub const TEXT_LEN: usize = 26;

    /// A new id from the wall clock (milliseconds since 1970) and random bytes.
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        let mut low = [0u8; 16];
        low[6..].copy_from_slice(&random);
        Self((u128::from(unix_ms) << 80) | u128::from_be_bytes(low))
    }

    /// The id whose text form is `text`, if it is one.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != Self::TEXT_LEN || text.as_bytes()[0] > b'7' {
            return None;
        }
        let mut value = 0u128;
        for byte in text.bytes() {
            let digit = CROCKFORD.iter().position(|c| *c == byte)?;
            value = (value << 5) | digit as u128;
        }
        Some(Self(value))
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in (0..Self::TEXT_LEN).rev() {
            let digit = (self.0 >> (place * 5)) & 31;
            fmt::Write::write_char(f, char::from(CROCKFORD[digit as usize]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_id_is_refused_with_the_rule_it_breaks() {
        for bad in ["", "-a", "a-", "A", "a/b", "a.b", &"x".repeat(64)] {
            let refused = VolumeId::try_from(bad.to_owned()).expect_err(bad);
            assert!(refused.to_string().contains("1 to 63"));
        }
        assert_eq!("vol-1".parse::<VolumeId>().unwrap().as_str(), "vol-1");
    }

    #[test]
    fn a_segment_id_survives_its_text_and_sorts_by_time() {
        let early = SegmentId::new(1, [0xff; 10]);
        let late = SegmentId::new(2, [0; 10]);
        assert!(early.to_string() < late.to_string());
        assert_eq!(SegmentId::parse(&late.to_string()), Some(late));
        assert_eq!(SegmentId::parse("8ZZZZZZZZZZZZZZZZZZZZZZZZZ"), None);
        assert_eq!(SegmentId::parse("short"), None);
    }
}
