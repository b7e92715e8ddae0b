//! Runs: indexes over frames, and a volume's list of them.
//!
//! A run of level 0 is one segment with its own index. A run of a higher level is an object created by
//! merging neighbours of the list; the frames stay in their segments. Byte layouts are drawn at the head
//! of `entry`, `page` and `head`, and in `docs/formats/index-run.md`.
//!
//! Owns: the definition of a run, how runs are merged ([`merge`]) and when ([`policy`]). Does not own: the
//! list, which is the manifest's; reading and storing.

mod entry;
mod head;
pub mod merge;
mod page;
pub mod policy;
pub mod relocate;
#[cfg(test)]
mod tests;
mod writer;

use std::ops::{Deref, Range};
use std::sync::Arc;

use holdfast_types::{Lineage, Place, PlacedId, RunId};

pub use entry::IndexEntry;
pub use head::{RunHead, SegmentObject, TRAILER_BYTES, trailer};
pub use page::RunPage;

use crate::chunk_ranges::ChunkRanges;
use crate::segment::SegmentRef;
use crate::wire::{self, DecodeError, Reader};

/// Location of a merged run, and the chunks that it has entries for.
///
/// `u64 place, u128 ulid, u8 level, u64 bytes, u64 head offset, u32 head bytes, u64 sectors,
/// chunk ranges`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRef {
    /// Its name.
    pub id: RunId,
    /// The level of its inputs or the next higher one; at least 1.
    pub level: u8,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Byte offset of the head's envelope in the object.
    pub head_offset: u64,
    /// Length of the head's envelope in bytes.
    pub head_bytes: u32,
    /// Sectors visible through its entries, including zeros.
    pub sectors: u64,
    /// The chunks it has entries for.
    pub chunks: ChunkRanges,
}

impl RunRef {
    /// Returns the bytes of the head's envelope in the object.
    pub fn head_range(&self) -> Range<u64> {
        self.head_offset..self.head_offset + u64::from(self.head_bytes)
    }

    /// Minimum bytes of an encoded reference.
    pub(crate) const MIN_BYTES: usize = wire::ID_BYTES + 33;
    /// Maximum bytes.
    pub(crate) const MAX_BYTES: usize = Self::MIN_BYTES + ChunkRanges::MAX_RANGE_BYTES;

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        wire::put_id(self.id.0, out);
        out.push(self.level);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.head_offset.to_le_bytes());
        out.extend_from_slice(&self.head_bytes.to_le_bytes());
        out.extend_from_slice(&self.sectors.to_le_bytes());
        self.chunks.put(out);
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = RunId(fields.id()?);
        let level = fields.u8()?;
        if level == 0 {
            return Err(fields.bad("level of a run", 0));
        }
        let (bytes, head_offset, head_bytes) = (fields.u64()?, fields.u64()?, fields.u32()?);
        if head_offset.checked_add(u64::from(head_bytes)).is_none_or(|end| end > bytes) {
            return Err(fields.bad("run head offset", head_offset));
        }
        let sectors = fields.u64()?;
        Ok(Self { id, level, bytes, head_offset, head_bytes, sectors, chunks: ChunkRanges::take(fields)? })
    }
}

/// A run of a volume's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// Level 0: a segment with its own index.
    Segment(Arc<SegmentRef>),
    /// Level 1 and above.
    Merged(Arc<RunRef>),
}

/// A volume's runs, newest first, and the volumes that own their objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runs {
    lineage: Arc<Lineage>,
    list: Arc<[Run]>,
}

impl Runs {
    /// Creates this list of a volume.
    pub fn new(lineage: Arc<Lineage>, list: impl Into<Arc<[Run]>>) -> Self {
        Self { lineage, list: list.into() }
    }

    /// Creates another list of the same volume.
    #[must_use]
    pub fn with(&self, list: impl Into<Arc<[Run]>>) -> Self {
        Self::new(Arc::clone(&self.lineage), list)
    }

    /// Returns the volume, and its ancestors.
    pub fn lineage(&self) -> &Lineage {
        &self.lineage
    }

    /// Returns true if `other` is the same list in memory, or a copy of its handle.
    #[inline]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.list, &other.list) && Arc::ptr_eq(&self.lineage, &other.lineage)
    }

    /// Returns the number of runs at the head of this list, if the rest of it is the list `older`.
    pub fn added_since(&self, older: &Self) -> Option<usize> {
        let added = self.len().checked_sub(older.len())?;
        let is_same = self.lineage == older.lineage && self[added..] == older[..];
        is_same.then_some(added)
    }
}

impl Deref for Runs {
    type Target = [Run];

    fn deref(&self) -> &[Run] {
        &self.list
    }
}

impl Run {
    /// Minimum bytes of an encoded run.
    pub(crate) const MIN_BYTES: usize = 1 + SegmentRef::MIN_BYTES;

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Segment(segment) => {
                out.push(0);
                segment.put(out);
            }
            Self::Merged(run) => {
                out.push(1);
                run.put(out);
            }
        }
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match fields.u8()? {
            0 => Ok(Self::Segment(Arc::new(SegmentRef::take(fields)?))),
            1 => Ok(Self::Merged(Arc::new(RunRef::take(fields)?))),
            other => Err(fields.bad("kind of a run", u64::from(other))),
        }
    }

    /// Returns its object's name, which is unique in a volume.
    pub fn id(&self) -> PlacedId {
        match self {
            Self::Segment(segment) => segment.id.0,
            Self::Merged(run) => run.id.0,
        }
    }

    /// Returns the chunks that it may have entries for.
    pub fn chunk_ranges(&self) -> &ChunkRanges {
        match self {
            Self::Segment(segment) => &segment.chunks,
            Self::Merged(run) => &run.chunks,
        }
    }

    /// Returns its figures for the choice of merges.
    pub fn shape(&self) -> policy::Shape {
        match self {
            Self::Segment(segment) => policy::Shape { level: 0, sectors: segment.sectors },
            Self::Merged(run) => policy::Shape { level: run.level, sectors: run.sectors },
        }
    }
}

/// Neighbours of a volume's list to merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergePlan {
    /// Its kind.
    pub kind: policy::MergeKind,
    /// The place in the output's name.
    pub place: Place,
    /// The output's level.
    pub level: u8,
    /// The inputs, newest first.
    pub inputs: Runs,
    /// True if the oldest input is the oldest run of the list, so that zeros hide nothing.
    pub is_oldest: bool,
}
