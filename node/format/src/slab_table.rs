//! The table of the slab: the content key of each slot in the node's file of fetched blocks, and its
//! checksum.
//!
//! ```text
//! head     0  4  magic "HFBT"        4  4  version        8  4088  zeros
//! entries  4096 + 32 * slot, for each slot: 0 16 content key    16 16 proof; all zeros: none
//! ```
//! Neither the slab nor its table is ever synced, and they are not written atomically: the process or the
//! host may crash between any two writes, and a version without tables may write the slab. An entry is
//! therefore never trusted. It only states the expected content of the slot: the proof covers the key and the
//! whole block.
//! Invariant: no block is returned before its proof was verified (3 in `docs/invariants.md`).

use crate::compose::ContentKey;

const MAGIC: &[u8; 4] = b"HFBT";
const VERSION: u32 = 1;
/// Bytes before the first entry.
pub const HEAD_BYTES: u64 = 4096;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 32;

/// Reason why a table was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SlabTableError {
    /// Not a table of a slab.
    #[error("the file does not begin like a table of the slab")]
    Magic,
    /// Written by an unsupported version.
    #[error("the table has version {found}; this program reads version {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
}

/// The first bytes of a table; zeros follow up to [`HEAD_BYTES`].
#[must_use]
pub fn head() -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(MAGIC);
    head[4..].copy_from_slice(&VERSION.to_le_bytes());
    head
}

/// Returns the entries of a table by their slots, in order. A truncated last entry is ignored.
///
/// # Errors
/// [`SlabTableError`]. The table is then unusable.
pub fn entries(table: &[u8]) -> Result<Vec<(u32, SlabEntry)>, SlabTableError> {
    let (magic, rest) = table.split_first_chunk::<4>().ok_or(SlabTableError::Magic)?;
    if magic != MAGIC {
        return Err(SlabTableError::Magic);
    }
    let found = u32::from_le_bytes(*rest.first_chunk().ok_or(SlabTableError::Magic)?);
    if found != VERSION {
        return Err(SlabTableError::Version { found });
    }
    let entries = table.get(HEAD_BYTES as usize..).unwrap_or_default().as_chunks::<ENTRY_BYTES>().0;
    Ok((0..).zip(entries).filter_map(|(slot, entry)| Some((slot, SlabEntry::decode(entry)?))).collect())
}

/// Returns the offset of a slot's entry in the table, in bytes.
#[must_use]
pub const fn offset_of(slot: u32) -> u64 {
    HEAD_BYTES + slot as u64 * ENTRY_BYTES as u64
}

/// The content that was written to a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlabEntry {
    /// Its key.
    pub key: ContentKey,
    /// Checksum of the key and the block.
    pub proof: [u8; 16],
}

impl SlabEntry {
    /// Returns the entry of a slot that has `block`, the content `key`.
    #[must_use]
    pub fn of(key: ContentKey, block: &[u8]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&key.0).update(block);
        let mut proof = [0; 16];
        proof.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self { key, proof }
    }

    /// Returns true if `block` is the entry's content.
    #[must_use]
    pub fn is_of(&self, block: &[u8]) -> bool {
        Self::of(self.key, block) == *self
    }

    /// Returns its stored form.
    #[must_use]
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        entry[..16].copy_from_slice(&self.key.0);
        entry[16..].copy_from_slice(&self.proof);
        entry
    }

    fn decode(entry: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (key, proof) = entry.split_first_chunk()?;
        let proof = *proof.first_chunk()?;
        (*entry != [0; ENTRY_BYTES]).then_some(Self { key: ContentKey(*key), proof })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> SlabEntry {
        SlabEntry::of(ContentKey([1; 16]), &[7; 4096])
    }

    fn table(entries: &[(u32, SlabEntry)]) -> Vec<u8> {
        let mut table = vec![0; offset_of(4) as usize];
        table[..8].copy_from_slice(&head());
        for (slot, entry) in entries {
            table[offset_of(*slot) as usize..][..ENTRY_BYTES].copy_from_slice(&entry.encode());
        }
        table
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let written = [(0, entry()), (3, SlabEntry::of(ContentKey([2; 16]), &[8; 4096]))];
        let mut table = table(&written);
        assert_eq!(entries(&table).unwrap(), written);
        table.truncate(offset_of(4) as usize - 1);
        assert_eq!(entries(&table).unwrap(), written[..1], "the last one is cut short");
        table.truncate(8);
        assert_eq!(entries(&table).unwrap(), []);
    }

    #[test]
    fn a_table_of_another_version_is_refused() {
        let mut table = table(&[]);
        table[4] = 2;
        assert_eq!(entries(&table), Err(SlabTableError::Version { found: 2 }));
        table[0] = 0;
        assert_eq!(entries(&table), Err(SlabTableError::Magic));
        assert_eq!(entries(&[]), Err(SlabTableError::Magic));
        assert_eq!(entries(&head()[..7]), Err(SlabTableError::Magic));
    }

    /// Each bit of an entry and of its block counts: an entry may be of a slot's earlier content, or torn.
    #[test]
    fn an_entry_proves_its_own_block_alone() {
        let block = vec![7; 4096];
        assert!(entry().is_of(&block));
        let mut other = block.clone();
        other[4095] ^= 1;
        assert!(!entry().is_of(&other));
        assert!(!entry().is_of(&block[1..]));
        for bit in 0..8 * ENTRY_BYTES {
            let mut stored = entry().encode();
            stored[bit / 8] ^= 1 << (bit % 8);
            assert!(!SlabEntry::decode(&stored).unwrap().is_of(&block), "bit {bit}");
        }
    }
}
