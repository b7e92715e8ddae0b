//! Prefetch lists: the blocks of a snapshot that one of its forks read first.
//!
//! Payload inside the envelope (`wire`):
//! ```text
//! u8 length + text volume id, u64 seq     the snapshot
//! u32 n, n x (u32 first block, u32 blocks)    extents, in the order of the first reads
//! ```
//! A list is a hint: a wrong one costs reads of the store, and never changes the content of a volume.

use std::ops::Range;

use holdfast_types::{Block, Seq, SnapshotName};

use crate::fork::take_volume;
use crate::limit::{MAX_PREFETCH_BLOCKS, MAX_SECTORS};
use crate::wire::{self, DecodeError, Kind, Reader};

const WHAT: &str = "prefetch list";
/// Bytes of an encoded extent.
const EXTENT_BYTES: usize = 8;

/// Blocks to prefetch for a fork of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefetchList {
    /// The snapshot.
    pub snapshot: SnapshotName,
    /// Block numbers, in the order of the first reads.
    extents: Vec<Range<u64>>,
}

impl PrefetchList {
    /// Maximum bytes of the encoded list.
    pub const MAX_ENCODED_BYTES: usize =
        wire::ENVELOPE_BYTES + 256 + 8 + 4 + MAX_PREFETCH_BLOCKS * EXTENT_BYTES;

    /// Creates the list of the first [`MAX_PREFETCH_BLOCKS`] of `blocks`.
    pub fn new(snapshot: SnapshotName, blocks: impl IntoIterator<Item = Block>) -> Self {
        let mut extents: Vec<Range<u64>> = Vec::new();
        for Block(block) in blocks.into_iter().take(MAX_PREFETCH_BLOCKS) {
            match extents.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                Some(_) | None => extents.push(block..block + 1),
            }
        }
        Self { snapshot, extents }
    }

    /// Returns the blocks, in the order of the first reads.
    pub fn blocks(&self) -> impl Iterator<Item = Block> {
        self.extents.iter().flat_map(Range::clone).map(Block)
    }

    /// Encodes the list.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        wire::put_text(&mut payload, self.snapshot.volume.as_str());
        payload.extend_from_slice(&self.snapshot.seq.0.to_le_bytes());
        let count = u32::try_from(self.extents.len()).expect("MAX_PREFETCH_BLOCKS fits");
        payload.extend_from_slice(&count.to_le_bytes());
        for Range { start, end } in &self.extents {
            let fields =
                [*start, end - start].map(|field| u32::try_from(field).expect("blocks have 32 bits"));
            fields.iter().for_each(|field| payload.extend_from_slice(&field.to_le_bytes()));
        }
        wire::enclose(Kind::PrefetchList, &payload)
    }

    /// Decodes a list.
    ///
    /// # Errors
    /// The first violation of the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Reader::new(WHAT, wire::open(Kind::PrefetchList, WHAT, bytes)?);
        let snapshot = SnapshotName { volume: take_volume(&mut fields)?, seq: Seq(fields.u64()?) };
        let (count, mut blocks) = (fields.count(EXTENT_BYTES)?, 0);
        let mut extents = Vec::with_capacity(count);
        for _ in 0..count {
            let (first, length) = (u64::from(fields.u32()?), u64::from(fields.u32()?));
            blocks += length;
            let end = first + length;
            if length == 0 || end > MAX_SECTORS / holdfast_types::BLOCK_SECTORS {
                return Err(fields.bad("length of an extent", length));
            }
            if blocks > MAX_PREFETCH_BLOCKS as u64 {
                return Err(fields.bad("number of blocks", blocks));
            }
            extents.push(first..end);
        }
        fields.end()?;
        Ok(Self { snapshot, extents })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(blocks: impl IntoIterator<Item = u64>) -> PrefetchList {
        let snapshot = SnapshotName { volume: "image".parse().unwrap(), seq: Seq(7) };
        PrefetchList::new(snapshot, blocks.into_iter().map(Block))
    }

    #[test]
    fn a_list_survives_its_encoding_in_the_order_of_its_reads() {
        let blocks = [9, 10, 11, 3, 4, (1 << 32) - 1, 0];
        let list = list(blocks);
        assert_eq!(list.extents.len(), 4);
        let decoded = PrefetchList::decode(&list.encode()).unwrap();
        assert_eq!(decoded, list);
        assert_eq!(decoded.blocks().map(|block| block.0).collect::<Vec<_>>(), blocks);
    }

    #[test]
    fn the_longest_list_fits_its_limit() {
        let most = list((0..u64::MAX).step_by(2));
        assert_eq!(most.blocks().count(), MAX_PREFETCH_BLOCKS);
        assert!(most.encode().len() <= PrefetchList::MAX_ENCODED_BYTES);
    }

    #[test]
    fn fields_beyond_their_limits_are_refused() {
        let encoded = |extents: &[(u32, u32)]| {
            let mut payload = Vec::new();
            wire::put_text(&mut payload, "image");
            payload.extend_from_slice(&7u64.to_le_bytes());
            payload.extend_from_slice(&(extents.len() as u32).to_le_bytes());
            for (first, length) in extents {
                payload.extend_from_slice(&first.to_le_bytes());
                payload.extend_from_slice(&length.to_le_bytes());
            }
            wire::enclose(Kind::PrefetchList, &payload)
        };
        let field = |extents: &[(u32, u32)]| match PrefetchList::decode(&encoded(extents)) {
            Err(DecodeError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(&[(3, 0)]), "length of an extent");
        assert_eq!(field(&[(u32::MAX, 2)]), "length of an extent");
        let most = MAX_PREFETCH_BLOCKS as u32;
        assert_eq!(field(&[(0, most), (9, 1)]), "number of blocks");
        assert_eq!(field(&[(0, u32::MAX), (0, u32::MAX)]), "number of blocks");
        assert!(PrefetchList::decode(&encoded(&[(0, most)])).is_ok());
    }
}
