use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_types::{Epoch, RunId, SegmentId};

use super::super::core::tests::{NONCE, core};
use super::*;
use crate::chunk_set::ChunkSet;
use crate::fence::Fence;
use crate::record::{Body, Record};
use crate::sector_map::SideSet;
use crate::segment::SegmentRef;

fn id(name: u8) -> SegmentId {
    SegmentId::new(Seq(100), 1, [name; 10])
}

fn output(place: u64) -> RunRef {
    RunRef {
        id: RunId::new(Seq(place), 1, [200; 10]),
        level: 1,
        bytes: 100,
        head_offset: 0,
        head_bytes: 50,
        entries: 5,
        chunks: Fence::around([(0, 1)]),
    }
}

fn merge(place: u64) -> Box<Merge> {
    Box::new(Merge { newest: id(2).0, oldest: id(1).0, output: output(place) })
}

#[test]
fn every_event_in_every_state() {
    use {MergeEvent as E, Merging as S};
    let running = S::Running(id(2).0, id(1).0);
    let stored = S::Stored(merge(9));
    let states = [S::Idle, running.clone(), stored.clone()];
    // The state after it, from each of `states`; none where the event cannot happen.
    let table = [
        (E::Chosen(id(2).0, id(1).0), [Some(running), None, None]),
        (E::Stored(Box::new(output(9))), [None, Some(stored), None]),
        (E::Failed, [None, Some(S::Idle), None]),
        (E::Taken, [None, None, Some(S::Idle)]),
    ];
    for (event, row) in table {
        for (state, expected) in states.iter().zip(row) {
            let next = catch_unwind(AssertUnwindSafe(|| state.clone().next(event.clone()))).ok();
            assert_eq!(next, expected, "{event:?} in {state:?}");
        }
    }
}

/// A core whose volume has `segments` segments of a few entries.
fn with_segments(segments: u8) -> Core<Vec<u8>> {
    let mut core = core(1);
    let manifest = core.manifest.as_mut().unwrap();
    for name in 1..=segments {
        let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
        let chunks = Fence::around([(0, 1)]);
        let segment = SegmentRef { id: id(name), bytes: 900, index_offset: 100, index_bytes: 500, chunks };
        let (invalidated, generation) = (SideSet::NONE, 1);
        let body = Body::Change {
            segments: vec![segment],
            chunks: ChunkSet::default(),
            invalidated,
            generation,
            merges: vec![],
        };
        let record = Record { volume, seq, epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body };
        manifest.apply(&record).unwrap();
    }
    core
}

#[test]
fn one_merge_is_made_at_a_time_and_tried_again_after_a_commit() {
    let (core, out) = (with_segments(8), &mut Vec::new());
    let mut merger = Merger::idle();
    merger.advance(&core, out);
    let [Action::Merge(plan)] = &out[..] else { panic!("{out:?}") };
    assert_eq!(plan.place, Seq(10 + 1 + 64));
    assert_eq!((plan.inputs.len(), plan.level, plan.is_oldest), (8, 1, true));
    assert_eq!((plan.inputs[0].id(), plan.inputs[7].id()), (id(8).0, id(1).0));
    merger.committed();
    merger.advance(&core, out);
    assert_eq!(out.len(), 1);
    merger.failed();
    merger.advance(&core, out);
    assert_eq!(out.len(), 1, "it is tried again after the next commit");
    merger.committed();
    merger.advance(&core, out);
    assert_eq!(out.len(), 2);
}

#[test]
fn nothing_is_merged_once_the_device_is_gone() {
    let (mut core, out) = (with_segments(8), &mut Vec::new());
    core.lifecycle = Lifecycle::Detaching;
    let mut merger = Merger::idle();
    merger.committed();
    merger.advance(&core, out);
    assert!(out.is_empty());
}

#[test]
fn a_merge_is_carried_up_to_its_place_and_once() {
    for (next, is_carried) in [(8, true), (9, true), (10, false)] {
        let mut merger = Merger { state: Merging::Stored(merge(9)), is_due: false, carried: 0 };
        assert_eq!(merger.take(Seq(next)).is_some(), is_carried, "by record {next}");
        assert_eq!(merger.take(Seq(next)), None);
    }
}
