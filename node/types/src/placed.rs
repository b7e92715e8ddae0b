//! Ids of objects that are added to a volume by a log record: the place that the record may stand at, and a
//! ULID.

use std::fmt;

use crate::Seq;

/// 48 bits of milliseconds since 1970 and 80 random bits, sortable by time.
/// Source: <https://github.com/ulid/spec>.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ulid(pub u128);

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl Ulid {
    /// Length of the text form.
    const TEXT_LEN: usize = 26;

    /// A new one from the wall clock (milliseconds since 1970) and random bytes.
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        let mut low = [0u8; 16];
        low[6..].copy_from_slice(&random);
        Self((u128::from(unix_ms) << 80) | u128::from_be_bytes(low))
    }

    /// The one whose text form is `text`, if it is one.
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

impl fmt::Display for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for digit in (0..Self::TEXT_LEN).rev() {
            let index = (self.0 >> (digit * 5)) & 31;
            fmt::Write::write_char(f, char::from(CROCKFORD[index as usize]))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Ulid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Name of an object that a log record adds to its volume, `<place:020>-<ulid>` in a key of its owner.
///
/// Only a record at its place or before it may add the object: once the log has passed the place, an object
/// that no manifest names will never be named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacedId {
    /// Number of forks between the volume that names the object and the one that owns it; zero: its own.
    pub owner: u8,
    /// The last seq whose record may add the object.
    pub place: Seq,
    /// Tells it from others of that place.
    pub ulid: Ulid,
}

impl PlacedId {
    fn new(place: Seq, unix_ms: u64, random: [u8; 10]) -> Self {
        Self { owner: 0, place, ulid: Ulid::new(unix_ms, random) }
    }

    fn parse(text: &str) -> Option<Self> {
        let (place, ulid) = text.split_once('-')?;
        Some(Self { owner: 0, place: Seq::parse_padded(place)?, ulid: Ulid::parse(ulid)? })
    }
}

impl fmt::Display for PlacedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:020}-{}", self.place.0, self.ulid)
    }
}

/// Defines the names of two kinds of objects that must not be mistaken for each other.
macro_rules! placed_ids {
    ($($(#[$doc:meta])+ $name:ident,)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub PlacedId);

        impl $name {
            /// A new id for `place`, from the wall clock (milliseconds since 1970) and random bytes.
            pub fn new(place: Seq, unix_ms: u64, random: [u8; 10]) -> Self {
                Self(PlacedId::new(place, unix_ms, random))
            }

            /// The last seq whose record may add the object.
            pub const fn place(self) -> Seq {
                self.0.place
            }

            /// The object's id in a volume that is so many forks behind; `None` if no volume is.
            pub fn inherited(self, forks: u8) -> Option<Self> {
                Some(Self(PlacedId { owner: self.0.owner.checked_add(forks)?, ..self.0 }))
            }

            /// The id whose text form is `text`, if it is one.
            pub fn parse(text: &str) -> Option<Self> {
                PlacedId::parse(text).map(Self)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    )+};
}

placed_ids! {
    /// A segment's name.
    SegmentId,
    /// The name of an index run.
    RunId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_their_text_and_sort_by_place_and_time() {
        let early = SegmentId::new(Seq(9), 2, [0xff; 10]);
        let later = SegmentId::new(Seq(10), 1, [0; 10]);
        let latest = SegmentId::new(Seq(10), 2, [0; 10]);
        assert!(early < later && later < latest);
        assert!(early.to_string() < later.to_string() && later.to_string() < latest.to_string());
        assert_eq!(early.to_string(), "00000000000000000009-0000000002ZZZZZZZZZZZZZZZZ");
        assert_eq!(SegmentId::parse(&latest.to_string()), Some(latest));
        let ulid = "00000000000000000000000000";
        for foreign in
            [ulid, "9-00000000000000000000000000", "00000000000000000009-8ZZZZZZZZZZZZZZZZZZZZZZZZZ"]
        {
            assert_eq!(RunId::parse(foreign), None, "{foreign}");
        }
    }
}
