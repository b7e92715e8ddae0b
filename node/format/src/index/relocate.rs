//! The sectors that a merge moves out of sparse segments.
//!
//! Sectors are moved in the order of blocks, and a block's sectors come from several segments. The sectors
//! that go to the same new segment become one frame there. A fully visible frame that is not combined with
//! others is copied in its stored form; for any other frame, hidden sectors are omitted. The positions of
//! moved frames are thus known only once their new segment is stored, and the entries that name them wait
//! until then (`writer.rs`).
//!
//! Old segments are relocated in groups, so that the frames of a new segment come from a few old segments,
//! and from one stretch of each.

use std::collections::{BTreeMap, HashMap, VecDeque};

use holdfast_types::{Mask, SECTOR_BYTES, SegmentId};

use super::entry::IndexEntry;
use super::writer::RunWriter;
use crate::segment::Frame;
use crate::wire;

/// A segment is relocated if less than this share of it is visible. In a model of uniform random overwrites,
/// a share of 40 % uploads up to 1.4 times the written data, and stores 1.7 times the live data
/// (`docs/adr/0010-relocation.md`).
pub(super) const SPARSE_PERCENT: u64 = 40;
/// Maximum segments that a merge relocates, which bounds its duration.
pub(super) const MAX_RELOCATED: usize = 4096;
/// A segment with fewer bytes of frames is small.
pub(super) const SMALL_BYTES: u64 = 128 << 10;
/// Number of small segments up to which a run keeps them. Its head names each segment, and a cold read needs
/// the whole head, so commits of a few sectors each must not accumulate.
pub(super) const FEW_SMALL: usize = 1024;
/// Maximum small segments that a merge relocates, each read with a request of its own, and their maximum
/// bytes.
pub(super) const MAX_SMALL: usize = 1 << 18;
pub(super) const MAX_SMALL_BYTES: u64 = 1 << 30;
/// Number of old segments whose frames go to the same new segments; if more than [`MAX_RELOCATED`] are
/// relocated, more, until these are full: groups share the memory of the parts that wait.
const GROUP: usize = 64;
/// Size at which a new segment, which is built in memory, is stored.
const NEW_BYTES: u64 = 16 << 20;
/// Maximum parts waiting in all new segments, at about 100 bytes of memory each.
const MAX_WAITING: usize = 1 << 18;

/// The part of a frame that is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedPart {
    /// The segment that holds the frame.
    pub from: SegmentId,
    /// The frame there.
    pub frame: Frame,
    /// The visible sectors; newer frames hide the others. Never empty.
    pub visible: Mask,
}

/// The content of a new segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedFrames {
    /// Ordinal of the new segment in the output.
    pub ordinal: u32,
    /// Ascending by block. Those of one block have no sector in common, and become one frame.
    pub parts: Vec<MovedPart>,
    /// Memory for combining the parts into frames.
    bytes: u64,
}

/// Returns true if these parts are one frame in its stored form.
pub fn is_as_stored(parts: &[MovedPart]) -> bool {
    matches!(parts, [only] if only.visible == only.frame.mask)
}

/// Returns the sectors of the frame that these parts form.
pub fn mask_of(parts: &[MovedPart]) -> Mask {
    parts.iter().fold(Mask::EMPTY, |mask, part| mask.union(part.visible))
}

fn memory_of(parts: &[MovedPart]) -> u64 {
    if is_as_stored(parts) {
        return u64::from(parts[0].frame.stored);
    }
    u64::from(mask_of(parts).count()) * SECTOR_BYTES
}

/// Checksum of the locations of frames.
pub type Fingerprint = [u8; 16];

impl MovedFrames {
    /// Returns a checksum that is equal for the same parts in the same order, because each merge sees the
    /// same part of a frame.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut places = Vec::with_capacity(self.parts.len() * (wire::ID_BYTES + 8));
        for MovedPart { from, frame, visible: _ } in &self.parts {
            wire::put_id(from.0, &mut places);
            places.extend_from_slice(&frame.offset.to_le_bytes());
        }
        wire::checksum(&places)
    }
}

/// Returns the group of each segment to relocate, given with its visible bytes, independent of which segments
/// are unreadable.
pub fn groups(mut segments: Vec<(SegmentId, u64)>) -> HashMap<SegmentId, u32> {
    segments.sort_unstable();
    let (mut number, mut count, mut bytes) = (0, 0, 0_u64);
    let are_few = segments.len() <= MAX_RELOCATED;
    let group = |(id, live)| {
        if count >= GROUP && (are_few || bytes >= NEW_BYTES) {
            (number, count, bytes) = (number + 1, 0, 0);
        }
        (count, bytes) = (count + 1, bytes.saturating_add(live));
        (id, number)
    };
    segments.into_iter().map(group).collect()
}

/// A part of the block in progress.
#[derive(Debug)]
struct TakenPart {
    group: u32,
    /// Number of the block's newer entries, not counting those of moved parts.
    newer: usize,
    part: MovedPart,
}

/// The relocation of a merge.
#[derive(Debug, Default)]
pub(super) struct Relocation {
    /// Number of the group of each segment to relocate.
    pub(super) groups: HashMap<SegmentId, u32>,
    /// The parts of the block in progress, newest first.
    block: Vec<TakenPart>,
    /// New segments by group.
    open: BTreeMap<u32, MovedFrames>,
    /// Number of parts in these segments.
    waiting: usize,
    /// New segments that are ready to be stored.
    pub(super) full: VecDeque<MovedFrames>,
}

impl Relocation {
    /// Takes a part if its segment is relocated. `newer` is the number of newer entries of its block that
    /// remain.
    pub(super) fn take(&mut self, part: MovedPart, newer: usize) -> bool {
        let Some(group) = self.groups.get(&part.from) else { return false };
        self.block.push(TakenPart { group: *group, newer, part });
        true
    }

    /// Adds the taken parts of a block to new segments, and their entries to the block's `entries`, each
    /// at the position of its newest part: if all frames stay unchanged, so does the block's content key.
    pub(super) fn end_block(&mut self, writer: &mut RunWriter, entries: &mut Vec<IndexEntry>) {
        let mut taken = std::mem::take(&mut self.block);
        let mut added = Vec::new();
        while let Some(&TakenPart { group, newer, .. }) = taken.first() {
            let new = || MovedFrames { ordinal: writer.add_segment(None), parts: Vec::new(), bytes: 0 };
            let open = self.open.entry(group).or_insert_with(new);
            let start = open.parts.len();
            let of_group = taken.extract_if(.., |taken| taken.group == group);
            open.parts.extend(of_group.map(|taken| taken.part));
            let parts = &open.parts[start..];
            open.bytes += memory_of(parts);
            added.push((newer, IndexEntry::awaited(&parts[0].frame, mask_of(parts), open.ordinal)));
            self.waiting += parts.len();
            if open.bytes >= NEW_BYTES {
                self.fill(group);
            }
        }
        added.into_iter().rev().for_each(|(newer, entry)| entries.insert(newer, entry));
    }

    /// Returns true if no more parts may wait.
    pub(super) fn is_full(&self) -> bool {
        self.waiting >= MAX_WAITING
    }

    /// Completes the new segment with this ordinal, if it is not stored yet.
    pub(super) fn fill_ordinal(&mut self, ordinal: u32) {
        if let Some((&group, _)) = self.open.iter().find(|(_, open)| open.ordinal == ordinal) {
            self.fill(group);
        }
    }

    fn fill(&mut self, group: u32) {
        let full = self.open.remove(&group).expect("it is open");
        self.waiting -= full.parts.len();
        self.full.push_back(full);
    }

    /// Ends the relocation. Returns true if some segments are left to store.
    pub(super) fn close(&mut self) -> bool {
        self.waiting = 0;
        self.full.extend(std::mem::take(&mut self.open).into_values());
        !self.full.is_empty()
    }
}
