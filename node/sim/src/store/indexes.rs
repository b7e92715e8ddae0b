//! The indexes in the objects of a store, and the results of composing lists of runs.
//!
//! Owns: the checks of merges. A merge is equivalent to its inputs (invariant 28), and a due one is made
//! (21).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use holdfast_format::compose::{Composition, Layer, Piece, compose};
use holdfast_format::index::policy::{Shape, next_merge};
use holdfast_format::index::{Run, RunHead, RunPage, Runs};
use holdfast_format::record::{Body, Merge};
use holdfast_format::segment::{Frame, FrameIndex, SegmentRef};
use holdfast_types::{Block, Mask, PlacedId, RunId, SegmentId, VolumeId};

use super::frames::BlockStamps;
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

/// Maximum commits of one process while a merge is due and none is carried.
const MAX_COMMITS: u64 = 10;

#[derive(Clone)]
struct Segment {
    index: FrameIndex,
    /// `None` if a merge may have created it.
    cut: Option<Rc<CapturedContent>>,
}

#[derive(Clone)]
struct MergedRun {
    head: RunHead,
    pages: Vec<RunPage>,
}

/// The part of a run with a block's entries, with ids from the view of the reading volume.
enum KnownPart<'a> {
    Segment(SegmentId, &'a FrameIndex),
    Merged(Cow<'a, RunHead>, &'a RunPage),
}

/// Returns the id of an object from the view of its owner.
fn own_segment(id: SegmentId) -> SegmentId {
    SegmentId(PlacedId { owner: 0, ..id.0 })
}

fn own_run(id: RunId) -> RunId {
    RunId(PlacedId { owner: 0, ..id.0 })
}

/// Indexes of segments and runs, by their owner's ids.
#[derive(Clone, Default)]
pub(super) struct StoredIndexes {
    segments: BTreeMap<SegmentId, Segment>,
    runs: BTreeMap<RunId, MergedRun>,
}

impl StoredIndexes {
    pub(super) fn add_segment(&mut self, id: SegmentId, index: FrameIndex, cut: Option<Rc<CapturedContent>>) {
        self.segments.insert(id, Segment { index, cut });
    }

    /// Adds the run stored in `body`.
    pub(super) fn add_run(&mut self, id: RunId, head: RunHead, body: &[u8]) {
        let pages = (0..head.pages()).map(|page| {
            let Range { start, end } = head.page_range(page);
            head.page(page, &body[start as usize..end as usize]).expect("writers send whole runs")
        });
        let pages = pages.collect();
        self.runs.insert(id, MergedRun { head, pages });
    }

    /// Returns the content that the seal of a segment captured.
    pub(super) fn cut_of(&self, segment: SegmentId) -> Option<&Rc<CapturedContent>> {
        self.segments.get(&segment)?.cut.as_ref()
    }

    /// Returns true if the list names an object of `owner`: as a run, or as a segment of one.
    pub(super) fn names_object(&self, runs: &Runs, owner: &VolumeId, object: PlacedId, is_run: bool) -> bool {
        let lineage = runs.lineage();
        let is_it = |forks: u8, id: PlacedId| {
            lineage.owner(forks) == owner && PlacedId { owner: 0, ..id } == PlacedId { owner: 0, ..object }
        };
        runs.iter().any(|run| match run {
            Run::Segment(segment) => !is_run && is_it(segment.id.0.owner, segment.id.0),
            Run::Merged(run) if is_run => is_it(run.id.0.owner, run.id.0),
            Run::Merged(run) => {
                let head = &self.runs[&own_run(run.id)].head;
                let forks = run.id.0.owner;
                head.segments().iter().any(|segment| is_it(forks + segment.id.0.owner, segment.id.0))
            }
        })
    }

    pub(super) fn holds_run(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
    }

    /// Returns the composition of `block` by the list `runs`, newest first.
    pub(super) fn composition(&self, runs: &[Run], block: Block) -> Composition {
        let in_chunk = runs.iter().filter(|run| run.chunk_ranges().may_hold(block.chunk()));
        let known: Vec<KnownPart<'_>> = in_chunk.filter_map(|run| self.known_part(run, block)).collect();
        let layers = known.iter().map(|known| match known {
            KnownPart::Segment(id, index) => Layer::Segment(*id, index),
            KnownPart::Merged(head, page) => Layer::Merged(head, page),
        });
        compose(block, Mask::FULL, layers)
    }

    fn known_part(&self, run: &Run, block: Block) -> Option<KnownPart<'_>> {
        match run {
            Run::Segment(segment) => {
                Some(KnownPart::Segment(segment.id, &self.segments[&own_segment(segment.id)].index))
            }
            Run::Merged(merged) => {
                let MergedRun { head, pages } = &self.runs[&own_run(merged.id)];
                let page = &pages[head.page_of(block)?];
                let forks = merged.id.0.owner;
                let head = if forks == 0 {
                    Cow::Borrowed(head)
                } else {
                    Cow::Owned(head.clone().inherited(forks).expect("runs have a short lineage"))
                };
                Some(KnownPart::Merged(head, page))
            }
        }
    }

    /// Returns every block that `run` has an entry for.
    fn blocks_of(&self, run: &Run) -> Vec<u64> {
        let mut blocks = Vec::new();
        let mut add = |first: u32, count: u32| {
            blocks.extend(u64::from(first)..u64::from(first) + u64::from(count));
        };
        match run {
            Run::Segment(segment) => {
                for frame in self.segments[&own_segment(segment.id)].index.frames() {
                    add(frame.block, frame.run);
                }
            }
            Run::Merged(merged) => {
                for entry in self.runs[&own_run(merged.id)].pages.iter().flat_map(RunPage::entries) {
                    add(entry.frame.block, entry.frame.run);
                }
            }
        }
        blocks
    }

    /// Returns the frames of a composition, regardless of their location. Each equals the frame in the
    /// index of its segment.
    fn contents(&self, composition: &Composition) -> Vec<(Frame, Mask)> {
        let of_piece = |piece: &Piece| {
            let Piece { segment, frame, visible } = piece;
            let index = self.segments.get(&own_segment(*segment)).map(|segment| &segment.index);
            let stored = index.and_then(|index| index.find(Block(u64::from(frame.block))));
            Invariant::NothingReferencedIsMissing
                .check(stored == Some(frame), || format!("{segment} does not hold {frame:?}"));
            (Frame { offset: 0, ..*frame }, *visible)
        };
        composition.pieces.iter().map(of_piece).collect()
    }

    /// Checks that each block reads as before after the merges of `body`: the same frames with the same
    /// key, or frames that a merge combined, with the same stamps.
    pub(super) fn check_merges(
        &self,
        before: &[Run],
        after: &[Run],
        body: &Body,
        stamps: impl Fn(Block, &Composition) -> BlockStamps,
    ) {
        // The record also added its own segments.
        let is_own = |run: &&Run| segments_of(body).iter().any(|segment| segment.id.0 == run.id());
        let after: Vec<Run> = after.iter().filter(|run| !is_own(run)).cloned().collect();
        let is_old = |run: &&Run| before.iter().any(|other| other.id() == run.id());
        let is_new = |run: &&Run| after.iter().any(|other| other.id() == run.id());
        let concerned =
            before.iter().filter(|run| !is_new(run)).chain(after.iter().filter(|run| !is_old(run)));
        let blocks: BTreeSet<u64> = concerned.flat_map(|run| self.blocks_of(run)).collect();
        for block in blocks.into_iter().map(Block) {
            let (was, is) = (self.composition(before, block), self.composition(&after, block));
            let is_same = was.key == is.key && self.contents(&was) == self.contents(&is);
            let is_made = |piece: &Piece| piece.segment.place().seq().is_none();
            let is_equivalent =
                is_same || is.pieces.iter().any(is_made) && stamps(block, &was) == stamps(block, &is);
            Invariant::MergeSaysTheSame
                .check(is_equivalent, || format!("block {} reads otherwise since runs were merged", block.0));
        }
    }
}

/// The commits of a process while a merge was due.
#[derive(Clone, Default)]
pub(super) struct MergesDue {
    commits: u64,
}

impl MergesDue {
    /// Notes that `body` is in the log; before it, the list was `before`.
    pub(super) fn note_record(&mut self, before: &[Run], body: &Body) {
        if let Body::Attach { .. } = body {
            self.commits = 0;
        }
        // Only a snapshot: that gives no time for a merge.
        if segments_of(body).is_empty() && merges_of(body).is_empty() {
            return;
        }
        let shapes: Vec<Shape> = before.iter().map(Run::shape).collect();
        let is_due = merges_of(body).is_empty() && next_merge(&shapes, true).is_some();
        self.commits = if is_due { self.commits + 1 } else { 0 };
        Invariant::DepthIsBounded.check(self.commits <= MAX_COMMITS, || {
            format!("{} commits carried no merge, and {} runs are in the list", self.commits, before.len())
        });
    }
}

/// Returns the segments that a record adds.
pub(super) fn segments_of(body: &Body) -> &[SegmentRef] {
    match body {
        Body::Change { segments, .. } => segments,
        Body::Create { .. } | Body::Attach { .. } | Body::Detach { .. } | Body::Delete => &[],
    }
}

/// Returns the merges that a record carries.
pub(super) fn merges_of(body: &Body) -> &[Merge] {
    match body {
        Body::Change { merges, .. } => merges,
        Body::Create { .. } | Body::Attach { .. } | Body::Detach { .. } | Body::Delete => &[],
    }
}
