//! The head of the table's file: the volume that it belongs to, and the form of its pages.
//!
//! ```text
//! 0      4  magic "HFMV"
//! 4      4  version: 1, or 2 for a volume with a spill file
//! 8      8  pages
//! 16    16  the first 128 bits of BLAKE3 over the volume id
//! 32     4  slabs: the limit of the volume
//! 36     1  codec of the pages it writes: 0 lz4, 1 zstd
//! 37     3  zeros
//! 40     8  nonce of the attach
//! 48    16  version 1: the first 128 bits of BLAKE3 over bytes 0 to 47
//! 48     8  version 2: pages that the spill file may have
//! 56    16  version 2: the first 128 bits of BLAKE3 over bytes 0 to 55
//!           up to 4096: zeros
//! 4096      the table: a little-endian word for each page (`word.rs`)
//! ```
//! A release that knows only version 1 would take a page in the spill file for damage, so it must refuse the
//! table. The head is written before the record that adds the volume to the node, and again when the volume
//! grows: until that write is complete, the record has the head's content.

use holdfast_types::VolumeId;

use crate::PageCodec;

/// Bytes before the table.
pub const HEAD_BYTES: usize = 4096;

const MAGIC: [u8; 4] = *b"HFMV";
/// Version of a table without a spill file.
const VERSION: u32 = 1;
/// Version of a table with a spill file.
const SPILL_VERSION: u32 = 2;
/// Offset of the checksum, or in version 2 of the pages of the spill file.
const SUM_AT: usize = 48;
/// Offset of the checksum in version 2.
const SPILL_SUM_AT: usize = 56;

/// The head of a volume's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableHead {
    /// Pages of the volume.
    pub pages: u64,
    /// Maximum number of its slabs.
    pub slabs: u32,
    /// Codec of the pages that the volume writes.
    pub codec: PageCodec,
    /// Number that differs between attaches.
    pub nonce: u64,
    /// Maximum number of pages of its spill file; 0 if the volume has none.
    pub spill_pages: u64,
}

/// Reason why a table cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// The file is truncated, or not a table.
    #[error("the file is not the table of a memory volume")]
    NotATable,
    /// Another version of the program wrote the table.
    #[error(
        "the table has version {0}, this daemon knows {VERSION} and {SPILL_VERSION}: run the version that wrote it, or restart the host"
    )]
    Version(u32),
    /// Its checksum is wrong.
    #[error("the checksum of the table's head is wrong")]
    Checksum,
    /// The table belongs to another volume.
    #[error("the table belongs to another volume")]
    OtherVolume,
    /// The codec is unknown.
    #[error("the table names codec {0}, which this daemon does not know")]
    Codec(u8),
}

impl TableHead {
    /// Encodes the head of the table of `volume`.
    #[must_use]
    pub fn encode(&self, volume: &VolumeId) -> [u8; HEAD_BYTES] {
        let Self { pages, slabs, codec, nonce, spill_pages } = self;
        let (version, sum_at) = match spill_pages {
            0 => (VERSION, SUM_AT),
            1.. => (SPILL_VERSION, SPILL_SUM_AT),
        };
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        bytes[8..16].copy_from_slice(&pages.to_le_bytes());
        bytes[16..32].copy_from_slice(&hash(volume.as_str().as_bytes()));
        bytes[32..36].copy_from_slice(&slabs.to_le_bytes());
        bytes[36] = match codec {
            PageCodec::Lz4 => 0,
            PageCodec::Zstd => 1,
        };
        bytes[40..48].copy_from_slice(&nonce.to_le_bytes());
        bytes[SUM_AT..SPILL_SUM_AT].copy_from_slice(&spill_pages.to_le_bytes());
        let sum = hash(&bytes[..sum_at]);
        bytes[sum_at..sum_at + 16].copy_from_slice(&sum);
        bytes
    }

    /// Decodes the head of the table of `volume`.
    ///
    /// # Errors
    /// [`HeadError`].
    pub fn decode(bytes: &[u8], volume: &VolumeId) -> Result<Self, HeadError> {
        let head = bytes.get(..HEAD_BYTES).ok_or(HeadError::NotATable)?;
        if !head.starts_with(&MAGIC) {
            return Err(HeadError::NotATable);
        }
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let u64_at = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (sum_at, spill_pages) = match u32_at(4) {
            VERSION => (SUM_AT, 0),
            SPILL_VERSION => (SPILL_SUM_AT, u64_at(SUM_AT)),
            other => return Err(HeadError::Version(other)),
        };
        if head[sum_at..sum_at + 16] != hash(&head[..sum_at]) {
            return Err(HeadError::Checksum);
        }
        if head[16..32] != hash(volume.as_str().as_bytes()) {
            return Err(HeadError::OtherVolume);
        }
        let codec = match head[36] {
            0 => PageCodec::Lz4,
            1 => PageCodec::Zstd,
            other => return Err(HeadError::Codec(other)),
        };
        Ok(Self { pages: u64_at(8), slabs: u32_at(32), codec, nonce: u64_at(40), spill_pages })
    }
}

/// Returns the first 128 bits of BLAKE3.
fn hash(bytes: &[u8]) -> [u8; 16] {
    let hash = blake3::hash(bytes);
    std::array::from_fn(|at| hash.as_bytes()[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: TableHead =
        TableHead { pages: 1 << 18, slabs: 4096, codec: PageCodec::Zstd, nonce: 7, spill_pages: 0 };

    #[test]
    fn a_head_reads_as_it_was_written() {
        let volume = "scratch".parse().unwrap();
        for (codec, spill_pages) in [(PageCodec::Lz4, 0), (PageCodec::Zstd, 0), (PageCodec::Lz4, 1 << 17)] {
            let head = TableHead { codec, spill_pages, ..HEAD };
            assert_eq!(TableHead::decode(&head.encode(&volume), &volume), Ok(head));
        }
    }

    /// An older release would take spilled pages for damage, but can read a table without a spill file.
    #[test]
    fn only_a_table_with_a_spill_file_has_the_newer_version() {
        let volume: VolumeId = "scratch".parse().unwrap();
        let version = |spill_pages| TableHead { spill_pages, ..HEAD }.encode(&volume)[4..8].to_vec();
        assert_eq!([version(0), version(1)], [vec![1, 0, 0, 0], vec![2, 0, 0, 0]]);
    }

    #[test]
    fn a_damaged_head_is_refused() {
        let volume: VolumeId = "scratch".parse().unwrap();
        let good = HEAD.encode(&volume);
        let spills = TableHead { spill_pages: 9, ..HEAD }.encode(&volume);
        for (good, version, sum_at) in [(good, 1, SUM_AT), (spills, 2, SPILL_SUM_AT)] {
            for at in 0..sum_at + 16 {
                let mut bad = good;
                bad[at] ^= 4;
                let expected = match at {
                    0..4 => HeadError::NotATable,
                    4..8 => HeadError::Version(version ^ (4 << (8 * (at - 4)))),
                    _ => HeadError::Checksum,
                };
                assert_eq!(TableHead::decode(&bad, &volume), Err(expected), "byte {at}");
            }
        }
        assert_eq!(TableHead::decode(&good[..4095], &volume), Err(HeadError::NotATable));
        assert_eq!(TableHead::decode(&good, &"other".parse().unwrap()), Err(HeadError::OtherVolume));
    }
}
