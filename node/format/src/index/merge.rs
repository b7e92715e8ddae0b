//! Merges neighbouring runs into one with equivalent content.
//!
//! Owns: the order and selection of entries, the bytes of the output. Does not own: reading inputs and
//! storing the output; the caller feeds the requested pages.
//! Memory: the fed but unused pages, the pages of output, the indexes of level 0, the heads of the others,
//! and the frames to move.
//! Invariant: a block composed from a list has the same bytes after neighbours of the list are replaced by
//! their merge, and the same content key unless frames of it were combined into others.
//!
//! Frames that are no longer visible are omitted from the output, and stay in their segments. If little of
//! a segment is still visible, the merge *relocates* the rest: the visible parts of its frames go to new
//! segments, which the output names. The old segment is then unreferenced, and a sweep deletes it. The same
//! combines small segments once there are many. A *survey* finds the visible parts: a merge without output
//! ([`RunMerge::survey`]).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use holdfast_types::{Mask, RunId, SegmentId};

use super::RunRef;
use super::entry::IndexEntry;
use super::head::{RunHead, SegmentObject};
use super::page::RunPage;
use super::relocate::{
    FEW_SMALL, MAX_RELOCATED, MAX_SMALL, MAX_SMALL_BYTES, MovedFrames, MovedPart, Relocation, SMALL_BYTES,
    SPARSE_PERCENT,
};
use super::writer::RunWriter;
use crate::segment::FrameIndex;

/// One run to merge.
#[derive(Debug, Clone)]
pub enum Input {
    /// A segment with its own index.
    Segment(SegmentObject, Arc<FrameIndex>),
    /// A merged run, whose pages are fed.
    Merged(Arc<RunHead>),
}

/// Result of a step of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MergeStep {
    /// The merge continues once this page was fed; it requests the pages of an input in order.
    NeedsPage {
        /// The input, by its index in the list.
        input: usize,
        /// Its page.
        page: usize,
    },
    /// A page of output was added.
    Wrote,
    /// The merge continues once these frames are stored in a separate segment ([`RunMerge::moved`]).
    Move(MovedFrames),
    /// All inputs were read: call `close`.
    Ended,
}

/// A merge in progress.
#[derive(Debug)]
pub struct RunMerge {
    /// Newest first.
    cursors: Vec<Cursor>,
    drops_zeros: bool,
    writer: RunWriter,
    /// The entries of the block in progress.
    group: Vec<IndexEntry>,
    /// In a survey: the frame bytes of each segment, in total and still visible.
    live: Option<BTreeMap<SegmentId, (u64, u64)>>,
    relocation: Relocation,
}

impl RunMerge {
    /// Creates the merge of `inputs`: neighbours of a list, newest first. If the oldest input `is_oldest` of
    /// the list, zeros are omitted, because they hide nothing.
    pub fn new(inputs: impl IntoIterator<Item = Input>, is_oldest: bool) -> Self {
        let cursors = inputs.into_iter().map(Cursor::new).collect();
        let (writer, group, relocation) = (RunWriter::default(), Vec::new(), Relocation::default());
        Self { cursors, drops_zeros: is_oldest, writer, group, live: None, relocation }
    }

    /// Creates a merge without output, which finds sparse segments.
    pub fn survey(inputs: impl IntoIterator<Item = Input>) -> Self {
        Self { live: Some(BTreeMap::new()), ..Self::new(inputs, true) }
    }

    /// Returns the volume's own segments to relocate, each with its visible bytes, after the survey: the
    /// sparsest, and if there are many small ones, the smallest, both up to a maximum.
    pub fn to_relocate(&self) -> Vec<(SegmentId, u64)> {
        let live = self.live.iter().flatten().map(|(id, (bytes, live))| (*id, *bytes, *live));
        let own = live.filter(|(id, ..)| id.0.owner == 0);
        let (mut sparse, mut others): (Vec<_>, Vec<_>) =
            own.partition(|(_, bytes, live)| live.saturating_mul(100) < bytes.saturating_mul(SPARSE_PERCENT));
        sparse.sort_by(|(_, bytes, live), (_, other_bytes, other_live)| {
            (u128::from(*live) * u128::from(*other_bytes))
                .cmp(&(u128::from(*other_live) * u128::from(*bytes)))
        });
        others.extend(sparse.split_off(sparse.len().min(MAX_RELOCATED)));
        others.retain(|(_, bytes, _)| *bytes < SMALL_BYTES);
        if others.len() <= FEW_SMALL {
            others.clear();
        }
        others.sort_by_key(|(_, bytes, _)| *bytes);
        let mut all_bytes = 0;
        let small = others.into_iter().take(MAX_SMALL).take_while(|(_, _, live)| {
            all_bytes += live;
            all_bytes <= MAX_SMALL_BYTES
        });
        sparse.into_iter().chain(small).map(|(id, _, live)| (id, live)).collect()
    }

    /// Relocates these segments, each with its group ([`groups`]).
    ///
    /// [`groups`]: super::relocate::groups
    #[must_use]
    pub fn relocating(mut self, groups: HashMap<SegmentId, u32>) -> Self {
        self.relocation.groups = groups;
        self
    }

    /// Records that moved frames are stored in `segment`, with this `index`.
    ///
    /// # Panics
    /// If one of their blocks is not in `index`.
    pub fn moved(&mut self, ordinal: u32, segment: SegmentObject, index: Arc<FrameIndex>) {
        self.writer.set_segment(ordinal, segment, index);
    }

    /// Merges until an output page is full or another input page is needed.
    pub fn advance(&mut self) -> MergeStep {
        let before = self.writer.ready();
        loop {
            if let Some(full) = self.relocation.full.pop_front() {
                return MergeStep::Move(full);
            }
            let mut lacking = self.cursors.iter().enumerate();
            if let Some((input, page)) = lacking.find_map(|(at, cursor)| Some((at, cursor.lacks_page()?))) {
                return MergeStep::NeedsPage { input, page };
            }
            let Some(block) = self.cursors.iter().filter_map(|cursor| Some(cursor.next()?.0)).min() else {
                if self.relocation.close() {
                    continue;
                }
                return MergeStep::Ended;
            };
            self.merge_at(block);
            if (self.writer.is_full() || self.relocation.is_full())
                && let Some(ordinal) = self.writer.awaited()
            {
                self.relocation.fill_ordinal(ordinal);
            }
            if self.writer.ready() > before {
                return MergeStep::Wrote;
            }
        }
    }

    /// Feeds the page that `input` needs, or the one after the last fed.
    ///
    /// # Panics
    /// If all its pages were fed.
    pub fn feed(&mut self, input: usize, page: RunPage) {
        let cursor = &mut self.cursors[input];
        assert!(cursor.fed < cursor.pages(), "only existing pages are fed");
        cursor.fed += 1;
        cursor.fresh.push_back(page);
    }

    /// Merges the entries of `block`, and of later ones if all inputs have zeros there.
    fn merge_at(&mut self, block: u32) {
        let (mut missing, mut zero) = (Mask::FULL, Mask::EMPTY);
        let mut blocks = u32::MAX;
        self.group.clear();
        for cursor in &mut self.cursors {
            let Some((at, run)) = cursor.next() else { continue };
            if at != block {
                blocks = blocks.min(at - block);
                continue;
            }
            blocks = blocks.min(run);
            let covered = missing;
            for nth in 0..cursor.group() {
                let entry = cursor.entry(nth).expect("the group has it");
                let visible = entry.visible.intersect(covered);
                missing = missing.minus(visible);
                if visible.is_empty() {
                    continue;
                }
                if entry.is_zero() {
                    zero = zero.union(visible);
                    continue;
                }
                let object = cursor.object(entry.segment);
                let part = MovedPart { from: object.id, frame: entry.frame, visible };
                if let Some(live) = &mut self.live {
                    let bytes = u64::from(entry.frame.stored) * u64::from(visible.count());
                    live.entry(object.id).or_insert((object.index_offset, 0)).1 +=
                        bytes.div_ceil(u64::from(entry.frame.mask.count()));
                } else if !self.relocation.take(part, self.group.len()) {
                    let segment = cursor.ordinal(entry.segment, &mut self.writer);
                    self.group.push(IndexEntry { visible, segment, ..entry });
                }
            }
        }
        self.relocation.end_block(&mut self.writer, &mut self.group);
        if !zero.is_empty() && !self.drops_zeros && self.live.is_none() {
            // A partial mask applies to a single block.
            self.group.push(IndexEntry::zero(block, blocks, zero));
        }
        self.writer.push(&self.group);
        for cursor in &mut self.cursors {
            if cursor.next().is_some_and(|(at, _)| at == block) {
                cursor.skip(blocks);
            }
        }
    }

    /// Returns the number of output bytes that can be taken.
    pub fn ready(&self) -> usize {
        self.writer.ready()
    }

    /// Takes the next `length` bytes of the output, or all that are ready.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        self.writer.take(length)
    }

    /// Adds the end of the output, after [`MergeStep::Ended`]: the last bytes to take.
    pub fn close(&mut self, id: RunId, level: u8) -> (RunRef, RunHead) {
        self.writer.close(id, level)
    }
}

/// A position in an input.
#[derive(Debug)]
struct Cursor {
    input: Input,
    /// Output ordinals of its segments, for those with an entry in the output.
    ordinals: Vec<Option<u32>>,
    /// Pages that were fed and not used up.
    fresh: VecDeque<RunPage>,
    /// Number of pages fed.
    fed: usize,
    /// The next entry, in the first fresh page or the segment's index.
    at: usize,
    /// Blocks of that entry that were merged.
    skipped: u32,
}

impl Cursor {
    fn new(input: Input) -> Self {
        let segments = match &input {
            Input::Segment(..) => 1,
            Input::Merged(head) => head.segments().len(),
        };
        let ordinals = vec![None; segments];
        Self { input, ordinals, fresh: VecDeque::new(), fed: 0, at: 0, skipped: 0 }
    }

    fn pages(&self) -> usize {
        match &self.input {
            Input::Segment(..) => 0,
            Input::Merged(head) => head.pages(),
        }
    }

    /// Returns the page that is needed for the next entry, if it is missing.
    fn lacks_page(&self) -> Option<usize> {
        (self.fresh.is_empty() && self.fed < self.pages()).then_some(self.fed)
    }

    /// Returns the `nth` entry after the next.
    fn entry(&self, nth: usize) -> Option<IndexEntry> {
        match &self.input {
            Input::Segment(_, index) => index.frames().get(self.at + nth).map(IndexEntry::of),
            Input::Merged(_) => self.fresh.front()?.entries().get(self.at + nth).copied(),
        }
    }

    /// Returns the next block, and the number of blocks in the same state.
    fn next(&self) -> Option<(u32, u32)> {
        let frame = self.entry(0)?.frame;
        Some((frame.block + self.skipped, frame.run - self.skipped))
    }

    /// Returns the number of entries of the next block.
    fn group(&self) -> usize {
        let first = self.entry(0).map(|entry| entry.frame.block);
        (0..).take_while(|nth| self.entry(*nth).is_some_and(|entry| Some(entry.frame.block) == first)).count()
    }

    /// Returns the output ordinal of the segment with this input ordinal.
    fn ordinal(&mut self, segment: u32, writer: &mut RunWriter) -> u32 {
        let object = self.object(segment);
        *self.ordinals[segment as usize].get_or_insert_with(|| writer.add_segment(Some(object)))
    }

    /// Returns the segment with this input ordinal.
    fn object(&self, segment: u32) -> SegmentObject {
        match &self.input {
            Input::Segment(object, _) => *object,
            Input::Merged(head) => head.segments()[segment as usize],
        }
    }

    /// Advances by `blocks` blocks, at most those in the same state as the next one.
    fn skip(&mut self, blocks: u32) {
        let Some((_, run)) = self.next() else { return };
        if blocks < run {
            self.skipped += blocks;
            return;
        }
        self.at += self.group();
        self.skipped = 0;
        if self.fresh.front().is_some_and(|page| page.entries().len() == self.at) {
            self.fresh.pop_front();
            self.at = 0;
        }
    }
}
