//! The contents of a bucket, for all volumes: its objects, and the model's unpacked form of them.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use holdfast_format::compose::Composition;
use holdfast_format::index::RunHead;
use holdfast_format::manifest::Manifest;
use holdfast_format::segment::FrameIndex;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Block, Lineage, RunId, SegmentId};

use super::frames::{BlockStamps, UnpackedFrames};
use super::indexes::StoredIndexes;
use super::objects::BucketObjects;
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

/// Objects, with their indexes. Ids of segments and runs are unique across volumes.
#[derive(Clone, Default)]
pub(super) struct Stored {
    pub(super) objects: BucketObjects,
    pub(super) indexes: StoredIndexes,
    frames: UnpackedFrames,
}

impl Stored {
    /// Stores a segment or a run. For an upload, its seal captured `cut`.
    pub(super) fn put(&mut self, key: &str, body: &Bytes, cut: Option<&Rc<CapturedContent>>) {
        if let Some(before) = self.objects.get_past(key) {
            Invariant::NeverForeignBytes.check(before == body, || format!("{key} changes"));
            if self.objects.get(key).is_err() {
                // It arrived late, after a sweep deleted it.
                self.objects.insert(key, body.clone());
            }
            return;
        }
        match ObjectKey::parse(key) {
            Some(ObjectKey::Run(_, id)) => self.add_run(id, body),
            Some(ObjectKey::Segment(_, id)) => self.add_segment(id, body, cut),
            Some(
                ObjectKey::Log(..)
                | ObjectKey::Checkpoint(..)
                | ObjectKey::TruncationMarker(..)
                | ObjectKey::Snapshot(..)
                | ObjectKey::Forgotten(..)
                | ObjectKey::Origin(..)
                | ObjectKey::PrefetchList(..),
            )
            | None => panic!("{key} is no segment"),
        }
        self.objects.insert(key, body.clone());
    }

    /// Adds the segment of an upload, or of a merge that relocates frames.
    fn add_segment(&mut self, id: SegmentId, body: &Bytes, cut: Option<&Rc<CapturedContent>>) {
        let index = FrameIndex::decode(&body[index_range(body)]).expect("writers send whole segments");
        self.indexes.add_segment(id, index, cut.map(Rc::clone));
    }

    fn add_run(&mut self, id: RunId, body: &Bytes) {
        let head = RunHead::decode_alone(&body[index_range(body)]).expect("writers send whole runs");
        self.indexes.add_run(id, head, body);
    }

    /// Reads one block as of `state`.
    pub(super) fn read_block(&self, state: &Manifest, block: Block) -> BlockStamps {
        let plan = self.indexes.composition(state.runs(), block);
        self.stamps(state.lineage(), block, &plan)
    }

    /// Returns the stamps of one block, as composed.
    pub(super) fn stamps(&self, lineage: &Lineage, block: Block, plan: &Composition) -> BlockStamps {
        let mut read = BlockStamps::default();
        for piece in &plan.pieces {
            let key = lineage.segment_key(piece.segment);
            let Ok(body) = self.objects.get(&key) else {
                Invariant::NothingReferencedIsMissing.broken(&format!("{key} is not there"))
            };
            let stamps = self.frames.stamps(block, piece, body);
            for (bit, stamp) in (0..).zip(stamps).filter(|(bit, _)| piece.visible.contains(*bit)) {
                read[bit as usize] = stamp;
            }
        }
        read
    }
}

/// Returns the location of the index in a segment or a run, according to its last bytes.
fn index_range(body: &[u8]) -> Range<usize> {
    let trailer = &body[body.len() - 16..];
    let length = u32::from_le_bytes(trailer[4..8].try_into().expect("4 bytes")) as usize;
    let at = u64::from_le_bytes(trailer[8..].try_into().expect("8 bytes")) as usize;
    at..at + length
}
