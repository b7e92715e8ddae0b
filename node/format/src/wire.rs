//! Little-endian fields, and the envelope of every stored structure.
//!
//! ```text
//! 0   4  magic "HFST"
//! 4   2  format version (1)
//! 6   2  kind (see `Kind`)
//! 8   4  payload length in bytes
//! 12  4  zero
//! 16 16  BLAKE3-128 of bytes 0..16 and the payload; for a page of the map and its journal XXH3-128
//!        (little-endian), for the page or BLAKE3-128 as an earlier version wrote it
//! 32     payload
//! ```
//! Invariant: nothing is decoded before its checksum, kind and version were verified.

use holdfast_types::{Place, PlacedId, Ulid};

/// Bytes before a payload.
pub const ENVELOPE_BYTES: usize = 32;
/// Bytes before the checksum.
const SUM_AT: usize = 16;
/// The one version written and read.
const VERSION: u16 = 1;
const MAGIC: [u8; 4] = *b"HFST";

/// Returns true if `bytes` begin like every stored structure. If false, Holdfast did not write them.
pub fn begins_as_ours(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

/// The structure in an envelope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// A log record.
    Record = 1,
    /// A checkpoint of a log.
    Checkpoint = 2,
    /// The index of a segment.
    SegmentIndex = 3,
    /// A slot of the durable map's header.
    MapHeader = 4,
    /// A slot of a page of the durable map.
    MapPage = 5,
    /// A node's record of an attached volume.
    Attached = 6,
    /// A page of an index run.
    RunPage = 7,
    /// The head of an index run.
    RunHead = 8,
    /// A unit of the durable map's journal.
    MapJournal = 9,
    /// The labels of a snapshot.
    Origin = 10,
    /// The prefetch list of a snapshot.
    PrefetchList = 11,
}

/// Reason why stored bytes were rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Fewer bytes than the structure requires.
    #[error("{what} is truncated: {have} bytes are left where {need} are needed")]
    Short {
        /// The structure.
        what: &'static str,
        /// Bytes left.
        have: usize,
        /// Bytes of the next field.
        need: usize,
    },
    /// Not one of Holdfast's structures.
    #[error("{0} does not begin with Holdfast's magic number")]
    Magic(&'static str),
    /// Written by an unsupported version.
    #[error("{what} has format version {found}; this program reads version {VERSION}: upgrade it")]
    Version {
        /// The structure.
        what: &'static str,
        /// Version found.
        found: u16,
    },
    /// A different structure than the requested one.
    #[error("{what} expected, but the structure has kind {found}")]
    Kind {
        /// The structure expected.
        what: &'static str,
        /// Kind found.
        found: u16,
    },
    /// The bytes changed since they were written.
    #[error("{0} fails its checksum")]
    Checksum(&'static str),
    /// A field has an invalid value.
    #[error("{what}: {field} cannot be {value}")]
    Field {
        /// The structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// Returns the first 128 bits of BLAKE3.
pub fn checksum(bytes: &[u8]) -> [u8; 16] {
    let mut short = [0; 16];
    short.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    short
}

/// Returns the checksum of a structure of `kind`: each flush writes pages of the map and its journal, so
/// theirs is fast for a few hundred bytes.
fn sum(kind: u16, head_and_payload: &[u8]) -> [u8; 16] {
    if [Kind::MapPage as u16, Kind::MapJournal as u16].contains(&kind) {
        xxhash_rust::xxh3::xxh3_128(head_and_payload).to_le_bytes()
    } else {
        checksum(head_and_payload)
    }
}

/// Encloses `payload` in an envelope.
///
/// # Panics
/// If the payload has 4 GiB or more.
pub fn enclose(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    enclose_at_end(&mut out, kind, payload.len(), |out| out.extend_from_slice(payload));
    out
}

/// Encloses the `length` bytes that `fill` appends in an envelope, at the end of `out`, without a copy.
///
/// # Panics
/// If `length` is 4 GiB or more, or `fill` appends a different number of bytes.
pub fn enclose_at_end(out: &mut Vec<u8>, kind: Kind, length: usize, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.reserve_exact(ENVELOPE_BYTES + length);
    let head = enclose_head(kind, length);
    // Placed directly before the payload while the checksum is computed over both.
    out.extend_from_slice(&head);
    out.extend_from_slice(&head);
    fill(out);
    let summed = &out[start + SUM_AT..];
    assert_eq!(summed.len(), SUM_AT + length);
    let sum = sum(kind as u16, summed);
    out[start + SUM_AT..start + ENVELOPE_BYTES].copy_from_slice(&sum);
}

fn enclose_head(kind: Kind, length: usize) -> [u8; SUM_AT] {
    let mut head = [0; SUM_AT];
    head[..4].copy_from_slice(&MAGIC);
    head[4..6].copy_from_slice(&VERSION.to_le_bytes());
    head[6..8].copy_from_slice(&(kind as u16).to_le_bytes());
    let length = u32::try_from(length).expect("a structure is smaller than 4 GiB");
    head[8..12].copy_from_slice(&length.to_le_bytes());
    head
}

/// Returns the length of the envelope at the front of `bytes`, with its payload. `None` if it is missing
/// or truncated.
pub fn enclosed_bytes(bytes: &[u8]) -> Option<usize> {
    let head = bytes.first_chunk::<SUM_AT>().filter(|head| begins_as_ours(*head))?;
    let (payload, _zero) = head[8..].split_first_chunk::<4>()?;
    let length = ENVELOPE_BYTES + u32::from_le_bytes(*payload) as usize;
    (length <= bytes.len()).then_some(length)
}

/// Returns the payload of an envelope; bytes after it are ignored. `what` names the structure in errors.
///
/// # Errors
/// [`DecodeError`]: no part of the payload may be used.
pub fn open<'a>(kind: Kind, what: &'static str, bytes: &'a [u8]) -> Result<&'a [u8], DecodeError> {
    let mut head = Reader::new(what, bytes);
    let magic = head.array::<4>()?;
    if magic != MAGIC {
        return Err(DecodeError::Magic(what));
    }
    let version = head.u16()?;
    let found = head.u16()?;
    let length = head.u32()? as usize;
    let _zero = head.u32()?;
    let stored = head.array::<16>()?;
    let payload = head.take(length)?;
    let summed = [&bytes[..SUM_AT], payload].concat();
    // Map pages of earlier versions have the same checksum as all other structures.
    if sum(found, &summed) != stored && checksum(&summed) != stored {
        return Err(DecodeError::Checksum(what));
    }
    if version != VERSION {
        return Err(DecodeError::Version { what, found: version });
    }
    if found != kind as u16 {
        return Err(DecodeError::Kind { what, found });
    }
    Ok(payload)
}

/// Reads fields from the front of a slice, little-endian. Each read fails with [`DecodeError::Short`] if
/// too few bytes are left.
pub struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

#[allow(clippy::missing_errors_doc)] // documented at the type
impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`; errors name the structure `what`.
    pub fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// Reads the next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (front, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Short {
            what: self.what,
            have: self.rest.len(),
            need: count,
        })?;
        self.rest = rest;
        Ok(front)
    }

    /// Reads the next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a number of 2 bytes.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Reads a number of 4 bytes.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Reads a number of 8 bytes.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reads a number of 16 bytes.
    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// Reads an id written by [`put_id`].
    pub fn id(&mut self) -> Result<PlacedId, DecodeError> {
        Ok(PlacedId { owner: self.u8()?, place: Place::from_stored(self.u64()?), ulid: Ulid(self.u128()?) })
    }

    /// Reads a count of items of at least `item_bytes` each; the remaining bytes must be able to hold them.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        let need = count.saturating_mul(item_bytes);
        if need > self.rest.len() {
            return Err(DecodeError::Short { what: self.what, have: self.rest.len(), need });
        }
        Ok(count)
    }

    /// Reads text of at most 255 bytes after a length byte.
    pub fn text(&mut self) -> Result<String, DecodeError> {
        let length = usize::from(self.u8()?);
        let bytes = self.take(length)?.to_vec();
        String::from_utf8(bytes).map_err(|error| DecodeError::Field {
            what: self.what,
            field: "text",
            value: error.utf8_error().valid_up_to() as u64,
        })
    }

    /// Returns the number of unread bytes.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the error for a `field` with an invalid value.
    pub fn bad(&self, field: &'static str, value: u64) -> DecodeError {
        DecodeError::Field { what: self.what, field, value }
    }

    /// Ends reading: remaining bytes are an error.
    pub fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::Field {
                what: self.what,
                field: "bytes after the end",
                value: self.rest.len() as u64,
            })
        }
    }
}

/// Bytes of an id.
pub const ID_BYTES: usize = 25;

/// Appends an id: u8 owner, u64 place, u128 ulid.
pub fn put_id(id: PlacedId, out: &mut Vec<u8>) {
    out.push(id.owner);
    out.extend_from_slice(&id.place.stored().to_le_bytes());
    out.extend_from_slice(&id.ulid.0.to_le_bytes());
}

/// Appends `text` after a length byte; longer text is truncated to 255 bytes.
pub fn put_text(out: &mut Vec<u8>, text: &str) {
    let end = (0..=text.len().min(255)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    out.push(u8::try_from(end).expect("cut to 255"));
    out.extend_from_slice(&text.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_is_noticed() {
        let whole = enclose(Kind::Record, b"payload");
        assert_eq!(open(Kind::Record, "record", &whole), Ok(&b"payload"[..]));
        for bit in 0..whole.len() * 8 {
            let mut altered = whole.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(open(Kind::Record, "record", &altered).is_err(), "bit {bit}");
        }
        for length in 0..whole.len() {
            assert!(open(Kind::Record, "record", &whole[..length]).is_err(), "cut at {length}");
        }
        assert_eq!(
            open(Kind::Checkpoint, "checkpoint", &whole),
            Err(DecodeError::Kind { what: "checkpoint", found: 1 })
        );
    }

    /// Regression: after an in-place upgrade the two slots of a page have different versions: the old one
    /// counted as damage, and the page was lost with it.
    #[test]
    fn a_map_page_of_an_earlier_version_is_read() {
        let mut page = enclose(Kind::MapPage, b"payload");
        assert_eq!(open(Kind::MapPage, "page", &page), Ok(&b"payload"[..]));
        let sum = checksum(&[&page[..SUM_AT], b"payload"].concat());
        assert_ne!(page[SUM_AT..ENVELOPE_BYTES], sum);
        page[SUM_AT..ENVELOPE_BYTES].copy_from_slice(&sum);
        assert_eq!(open(Kind::MapPage, "page", &page), Ok(&b"payload"[..]));
        page[ENVELOPE_BYTES] ^= 1;
        assert_eq!(open(Kind::MapPage, "page", &page), Err(DecodeError::Checksum("page")));
    }
}
