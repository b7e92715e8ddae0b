//! A volume in the reference store, with segments and merged runs.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of several tests")]

use std::sync::Arc;

use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::index::merge::{Input, MergeStep};
use holdfast_format::index::{self, Run, RunRef, SegmentObject};
use holdfast_format::record::{Body, Merge, Record};
use holdfast_format::segment::{FrameIndex, SegmentBuilder, SegmentRef};
use holdfast_format::side::SideSet;
use holdfast_format::snapshot::SnapshotChange;
use holdfast_log::{CreateOutcome, Creation, create_record, provision, read_manifest};
use holdfast_objects::{MemoryStore, ObjectStore, ReadyParts};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Block, Epoch, Mask, Nonce, Place, RunId, SegmentId, Seq, VolumeId};

pub(crate) const NONCE: Nonce = Nonce([3; 16]);

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[7]
    };
    (0..len).map(|_| next()).collect()
}

/// The volume.
pub(crate) struct Stored {
    pub(crate) store: MemoryStore,
    pub(crate) volume: VolumeId,
    /// Its segments, and those of the volume that it was forked from.
    pub(crate) segments: Vec<(SegmentRef, FrameIndex)>,
    /// Epoch of the newest attach.
    pub(crate) epoch: u64,
}

impl Stored {
    /// Creates the volume in `store`, and attaches it with the record at `attach`.
    pub(crate) async fn attached(store: MemoryStore, volume: &str, creation: Creation, attach: u64) -> Self {
        let mut stored = Self { store, volume: volume.parse().unwrap(), segments: Vec::new(), epoch: 0 };
        let sectors = provision(&stored.store, &stored.volume, creation).await.unwrap();
        stored.attach(attach, sectors).await;
        stored
    }

    pub(crate) async fn attach(&mut self, seq: u64, sectors: u64) {
        self.epoch += 1;
        self.record(seq, Body::Attach { sectors, node: "n".to_owned(), displaced: None }).await;
    }

    /// Releases the volume as its writer: the record has the root.
    pub(crate) async fn detach(&self, seq: u64) {
        let manifest = read_manifest(&self.store, &self.volume).await.unwrap();
        assert_eq!(manifest.seq(), Seq(seq - 1));
        self.record(seq, Body::detach(&manifest)).await;
    }

    pub(crate) async fn record(&self, seq: u64, body: Body) {
        let record = Record {
            volume: self.volume.clone(),
            seq: Seq(seq),
            epoch: Epoch(self.epoch),
            nonce: NONCE,
            unix_ms: 0,
            body,
        };
        assert_eq!(create_record(&self.store, &record).await.unwrap(), CreateOutcome::Created);
    }

    /// Commits noise; a mask of 0 means a sector of zeros.
    pub(crate) async fn commit(&mut self, seq: u64, frames: &[(u64, u32)]) {
        let mut builder = SegmentBuilder::default();
        for (block, mask) in frames {
            let bytes = match mask {
                0 => vec![0; 4096],
                mask => noise(seq * 10_000 + block, mask.count_ones() as usize * 4096),
            };
            builder.push(Block(*block), Mask((*mask).max(1)), &bytes);
        }
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(seq)), seq, [0; 10]));
        let at = segment.index_offset as usize;
        let index = FrameIndex::decode(&object[at..at + segment.index_bytes as usize]).unwrap();
        let key = ObjectKey::Segment(self.volume.clone(), segment.id).to_string();
        self.store.put_segment(&key, &mut ReadyParts::new([object.into()])).await.unwrap();
        self.record(
            seq,
            Body::Change {
                segments: vec![segment.clone()],
                chunks: ChunkSet::default(),
                invalidated: SideSet::NONE,
                generation: 1,
                merges: vec![],
                closed: Place::default(),
                snapshots: SnapshotChange::default(),
                sectors: None,
            },
        )
        .await;
        self.segments.push((segment, index));
    }

    /// Merges `count` runs of the list after the `newest` ones, with the record at `seq`.
    pub(crate) async fn merge(&self, seq: u64, newest: usize, count: usize) -> RunRef {
        let manifest = read_manifest(&self.store, &self.volume).await.unwrap();
        let mut place = Place::first_merge(manifest.epoch());
        while manifest.is_passed(place) {
            place = place.next();
        }
        let list = manifest.runs();
        let inputs = &list[newest..newest + count];
        let input = |run: &Run| {
            let Run::Segment(segment) = run else { panic!("it is of level 0") };
            let (_, index) =
                self.segments.iter().find(|(other, _)| other.id.0.ulid == segment.id.0.ulid).unwrap();
            Input::Segment(SegmentObject::from(&**segment), Arc::new(index.clone()))
        };
        let mut merge = index::merge::RunMerge::new(inputs.iter().map(input), newest + count == list.len());
        while merge.advance() != MergeStep::Ended {}
        let (output, _head) = merge.close(RunId::new(place, seq, [0; 10]), 1);
        let key = ObjectKey::Run(self.volume.clone(), output.id).to_string();
        let object = merge.take(usize::MAX);
        self.store.put_segment(&key, &mut ReadyParts::new([object.into()])).await.unwrap();
        let (newest, oldest) = (inputs[0].id(), inputs[count - 1].id());
        let merges = vec![Merge { newest, oldest, output: output.clone() }];
        let body = Body::Change {
            segments: vec![],
            chunks: ChunkSet::default(),
            invalidated: SideSet::NONE,
            generation: 1,
            merges,
            closed: place.next(),
            snapshots: SnapshotChange::default(),
            sectors: None,
        };
        self.record(seq, body).await;
        output
    }
}
