//! Ids of objects that a log record adds to a volume: the place, which bounds the records that may add the
//! object, and a ULID.

use std::fmt;

use crate::{Epoch, Seq};

/// 48 bits of milliseconds since 1970 and 80 random bits, sortable by time.
/// Source: <https://github.com/ulid/spec>.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ulid(pub u128);

const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl Ulid {
    /// Length of the text form.
    const TEXT_LEN: usize = 26;

    /// Creates a ULID from the wall clock (milliseconds since 1970) and random bytes.
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        let mut low = [0u8; 16];
        low[6..].copy_from_slice(&random);
        Self((u128::from(unix_ms) << 80) | u128::from_be_bytes(low))
    }

    /// Parses the text form of a ULID.
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

/// Bounds the log records that may add an object. Once the log has passed the place, an object that no
/// manifest names will never be named.
///
/// - The upload of a seal has the last seq whose record may add it.
/// - The output of a merge has a number among the merges of its writer, with bit 63 set: each record states
///   the numbers that no later record may add, because a merge may take hours and its output be replaced soon
///   after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Place(u64);

impl Place {
    const MERGE: u64 = 1 << 63;
    /// Maximum merges of one writer.
    const MERGES: u64 = 1 << 32;

    /// Returns the place of an object that no record after `seq` may add.
    pub const fn until(seq: Seq) -> Self {
        Self(seq.0 & !Self::MERGE)
    }

    /// Returns the place of the first merge of the writer of `epoch`.
    pub const fn first_merge(epoch: Epoch) -> Self {
        let epoch =
            if epoch.0 < Self::MERGE / Self::MERGES { epoch.0 } else { Self::MERGE / Self::MERGES - 1 };
        Self(Self::MERGE | (epoch * Self::MERGES))
    }

    /// Returns the place of the next merge.
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the last seq whose record may add the upload of a seal; `None` for a merge.
    pub fn seq(self) -> Option<Seq> {
        (self.0 & Self::MERGE == 0).then_some(Seq(self.0))
    }

    /// Creates the place from its form in stored objects.
    pub const fn from_stored(stored: u64) -> Self {
        Self(stored)
    }

    /// Returns the form in stored objects.
    pub const fn stored(self) -> u64 {
        self.0
    }
}

/// Name of an object that a log record adds to its volume, `<place:020>-<ulid>` in a key of its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlacedId {
    /// Number of forks between the volume that names the object and its owner; zero if they are the same.
    pub owner: u8,
    /// Bounds the records that may add it.
    pub place: Place,
    /// Distinguishes objects with the same place.
    pub ulid: Ulid,
}

impl PlacedId {
    fn new(place: Place, unix_ms: u64, random: [u8; 10]) -> Self {
        Self { owner: 0, place, ulid: Ulid::new(unix_ms, random) }
    }

    fn parse(text: &str) -> Option<Self> {
        let (place, ulid) = text.split_once('-')?;
        Some(Self { owner: 0, place: Place(Seq::parse_padded(place)?.0), ulid: Ulid::parse(ulid)? })
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
            /// Creates an id for `place`, from the wall clock (milliseconds since 1970) and random bytes.
            pub fn new(place: Place, unix_ms: u64, random: [u8; 10]) -> Self {
                Self(PlacedId::new(place, unix_ms, random))
            }

            /// Returns the place, which bounds the records that may add the object.
            pub const fn place(self) -> Place {
                self.0.place
            }

            /// Returns the object's id in a volume `forks` forks away; `None` if that is too far.
            pub fn inherited(self, forks: u8) -> Option<Self> {
                Some(Self(PlacedId { owner: self.0.owner.checked_add(forks)?, ..self.0 }))
            }

            /// Parses the text form of an id.
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
        let early = SegmentId::new(Place(9), 2, [0xff; 10]);
        let later = SegmentId::new(Place(10), 1, [0; 10]);
        let latest = SegmentId::new(Place(10), 2, [0; 10]);
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
        let merged = RunId::new(Place::first_merge(Epoch(3)).next(), 1, [0; 10]);
        assert_eq!(merged.to_string(), "09223372049739677697-00000000010000000000000000");
        assert_eq!(RunId::parse(&merged.to_string()), Some(merged));
    }

    #[test]
    fn places_of_merges_ascend_with_their_writers() {
        let [first, second] = [Epoch(7), Epoch(8)].map(Place::first_merge);
        assert!(Place::until(Seq(u64::MAX)) < first && first < first.next() && first.next() < second);
        assert_eq!((Place::until(Seq(5)).seq(), first.seq()), (Some(Seq(5)), None));
        let last = Place::first_merge(Epoch(u64::MAX));
        assert!(last > Place::first_merge(Epoch(1 << 30)) && last.seq().is_none());
    }
}
