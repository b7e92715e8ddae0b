//! Frames that a merge moves out of segments of which little is left.
//!
//! Frames are taken in the order of blocks, and a block's frames come from several segments. A new segment
//! has one frame of a block at most, as every segment, so several are open at once. Old segments are
//! relocated in groups: the frames of a new segment come from few old ones, in a stretch of each.

use std::collections::{BTreeMap, HashMap, VecDeque};

use holdfast_types::{Mask, SegmentId};

use super::entry::Entry;
use super::writer::RunWriter;
use crate::safeguard::{Safeguard::NameMovedFrame, safeguard};
use crate::segment::Frame;
use crate::wire;

/// A segment is relocated when less than so much of it is named. Measured on uniform random overwrites: 40 %
/// uploads 1.4 times what is written, and stores 1.8 times what is live (`docs/adr/0010-relocation.md`).
pub(super) const SPARSE_PERCENT: u64 = 40;
/// Segments that a merge relocates at most. It bounds the time that a merge takes.
pub(super) const MAX_RELOCATED: usize = 4096;
/// Old segments whose frames go into the same new ones.
const GROUP: usize = 64;
/// Size from which a new segment is stored: it is made in memory.
const NEW_BYTES: u64 = 16 << 20;
/// Frames that wait in new segments, all together: some 150 bytes of memory each.
const MAX_WAITING: usize = 1 << 18;

/// A frame to move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedFrame {
    /// The segment that holds it.
    pub from: SegmentId,
    /// The frame there.
    pub frame: Frame,
    /// Byte offset in the new segment.
    pub offset: u64,
}

/// The frames of a new segment, lowest block first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedFrames {
    /// Ordinal of the new segment in the output.
    pub ordinal: u32,
    /// The frames, apart, one behind the other from byte 0 of the new segment.
    pub frames: Vec<MovedFrame>,
    /// Their bytes.
    pub bytes: u64,
}

/// Checksum of where frames lie.
pub type Fingerprint = [u8; 16];

impl MovedFrames {
    /// The same for the same frames in the same order.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut places = Vec::with_capacity(self.frames.len() * (wire::ID_BYTES + 8));
        for MovedFrame { from, frame, offset: _ } in &self.frames {
            wire::put_id(from.0, &mut places);
            places.extend_from_slice(&frame.offset.to_le_bytes());
        }
        wire::checksum(&places)
    }
}

/// The group of each segment to relocate. It does not depend on which of them cannot be read.
pub fn groups(mut sparse: Vec<SegmentId>) -> HashMap<SegmentId, u32> {
    sparse.sort_unstable();
    (0..).zip(sparse.chunks(GROUP)).flat_map(|(group, ids)| ids.iter().map(move |id| (*id, group))).collect()
}

/// The relocation of a merge.
#[derive(Debug, Default)]
pub(super) struct Relocation {
    /// Number of the group of each segment to relocate.
    pub(super) groups: HashMap<SegmentId, u32>,
    /// New segments by group; of a block's frames the first is in the first, and so on.
    open: BTreeMap<(u32, u32), MovedFrames>,
    /// Frames in those.
    waiting: usize,
    /// New segments that are to be stored.
    pub(super) full: VecDeque<MovedFrames>,
}

impl Relocation {
    /// Takes a frame of `from` along, if that is relocated. Returns its entry in the output.
    pub(super) fn take(
        &mut self,
        from: SegmentId,
        frame: &Frame,
        visible: Mask,
        writer: &mut RunWriter,
    ) -> Option<Entry> {
        let group = *self.groups.get(&from)?;
        let is_free =
            |open: &MovedFrames| open.frames.last().is_none_or(|last| last.frame.block < frame.block);
        let nth = (0..).find(|nth| self.open.get(&(group, *nth)).is_none_or(is_free));
        let key = (group, nth.expect("a block has few frames"));
        let new = || MovedFrames { ordinal: writer.add_segment(None), frames: Vec::new(), bytes: 0 };
        let open = self.open.entry(key).or_insert_with(new);
        let offset = open.bytes;
        open.frames.push(MovedFrame { from, frame: *frame, offset });
        open.bytes += u64::from(frame.stored);
        let entry = Entry {
            frame: Frame { offset: if safeguard(NameMovedFrame) { offset } else { frame.offset }, ..*frame },
            visible,
            segment: open.ordinal,
        };
        self.waiting += 1;
        if open.bytes >= NEW_BYTES {
            self.fill(key);
        } else if self.waiting >= MAX_WAITING
            && let Some((largest, _)) = self.open.iter().max_by_key(|(_, open)| open.frames.len())
        {
            self.fill(*largest);
        }
        Some(entry)
    }

    /// The new segment takes no more frames.
    fn fill(&mut self, key: (u32, u32)) {
        let full = self.open.remove(&key).expect("it is open");
        self.waiting -= full.frames.len();
        self.full.push_back(full);
    }

    /// All frames were taken. Returns true if some are left to store.
    pub(super) fn close(&mut self) -> bool {
        self.waiting = 0;
        self.full.extend(std::mem::take(&mut self.open).into_values());
        !self.full.is_empty()
    }
}
