use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_types::{Epoch, RunId, SectorRange, SegmentId, Seq};

use super::super::core::tests::{NONCE, core};
use super::super::data_path::{DataPath, Gate};
use super::*;
use crate::action::Action;
use crate::chunk_set::ChunkSet;
use crate::event::{Errno, Op, RequestId};
use crate::fence::Fence;
use crate::sector_map::{Side, SideSet};
use crate::segment::SegmentRef;
use crate::snapshot::SnapshotChange;

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

fn ids(names: &[u8]) -> Vec<PlacedId> {
    names.iter().map(|name| id(*name).0).collect()
}

#[test]
fn every_event_in_every_state() {
    use {MergeEvent as E, Merging as S};
    let running = S::Running(ids(&[2, 1]));
    let stored = S::Stored(ids(&[2, 1]), Box::new(output(9)));
    let states = [S::Idle, running.clone(), stored.clone()];
    // The state after it, from each of `states`; none where the event cannot happen.
    let table = [
        (E::Chosen(ids(&[2, 1])), [Some(running), None, None]),
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

fn record(manifest: &Manifest, segments: &[u8], merges: Vec<Merge>) -> Record {
    let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
    let segment = |name: &u8| {
        let chunks = Fence::around([(0, 1)]);
        SegmentRef { id: id(*name), bytes: 900, index_offset: 100, index_bytes: 500, chunks }
    };
    let segments = segments.iter().map(segment).collect();
    let (chunks, invalidated, generation) = (ChunkSet::default(), SideSet::NONE, 1);
    let snapshots = SnapshotChange::default();
    let body = Body::Change { segments, chunks, invalidated, generation, merges, snapshots };
    Record { volume, seq, epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body }
}

/// A core whose volume has `segments` segments of a few entries, at seq 2 and behind.
fn with_segments(segments: u8) -> Core<Vec<u8>> {
    let mut core = core(1);
    let manifest = core.manifest.as_mut().unwrap();
    for name in 1..=segments {
        manifest.apply(&record(manifest, &[name], vec![])).unwrap();
    }
    core
}

/// The merges that it asks for.
fn asked(merger: &mut Merger, core: &Core<Vec<u8>>) -> Vec<MergePlan> {
    let mut out = Vec::new();
    merger.advance(core, true, &mut out);
    let plan = |action| {
        let Action::Merge(plan) = action else { panic!("{action:?}") };
        *plan
    };
    out.into_iter().map(plan).collect()
}

fn commit(merger: &mut Merger, core: &mut Core<Vec<u8>>, names: &[u8], merges: Vec<Merge>) {
    let manifest = core.manifest.as_mut().unwrap();
    let record = record(manifest, names, merges);
    manifest.apply(&record).unwrap();
    merger.won(&record);
}

#[test]
fn a_level_is_merged_once_at_a_time() {
    let mut core = with_segments(8);
    let mut merger = Merger::idle();
    let plans = asked(&mut merger, &core);
    let [plan] = &plans[..] else { panic!("{plans:?}") };
    assert_eq!(plan.place, Seq(10 + 1 + (1 << 20)));
    assert_eq!((plan.kind, plan.inputs.len(), plan.level, plan.is_oldest), (MergeKind::Level, 8, 1, true));
    assert_eq!((plan.inputs[0].id(), plan.inputs[7].id()), (id(8).0, id(1).0));
    for name in 9..30 {
        commit(&mut merger, &mut core, &[name], vec![]);
        assert_eq!(asked(&mut merger, &core), []);
    }
}

/// The merge of the base takes hours: the list grew by every commit meanwhile.
#[test]
fn levels_are_merged_while_the_base_is() {
    let mut core = with_segments(4);
    let mut merger = Merger::idle();
    let run = |level, entries, name| {
        let id = RunId::new(Seq(100), 1, [name; 10]);
        RunRef { id, level, entries, ..output(100) }
    };
    // The base, and half as much above it.
    for (names, output) in [([2, 1], run(2, 100, 201)), ([4, 3], run(2, 50, 202))] {
        let merge = Merge { newest: id(names[0]).0, oldest: id(names[1]).0, output };
        commit(&mut merger, &mut core, &[], vec![merge]);
    }
    let plans = asked(&mut merger, &core);
    assert_eq!((plans[0].kind, plans[0].inputs.len(), plans[0].is_oldest), (MergeKind::Base, 2, true));
    for name in 11..19 {
        assert_eq!(asked(&mut merger, &core), []);
        commit(&mut merger, &mut core, &[name], vec![]);
    }
    let plans = asked(&mut merger, &core);
    assert_eq!((plans[0].kind, plans[0].inputs.len(), plans[0].is_oldest), (MergeKind::Level, 8, false));
    // One record carries both.
    merger.merged(MergeKind::Level, Box::new(run(1, 8, 203)));
    merger.merged(MergeKind::Base, Box::new(run(2, 150, 204)));
    let merges = merger.take(core.manifest.as_ref().unwrap());
    commit(&mut merger, &mut core, &[19], merges);
    assert_eq!((core.manifest.unwrap().runs().len(), merger.carried(), merger.dropped()), (3, 4, 0));
}

#[test]
fn a_due_merge_waits_for_the_log_and_is_not_forgotten() {
    let (mut core, out) = (with_segments(8), &mut Vec::new());
    let mut merger = Merger::idle();
    merger.advance(&core, false, out);
    let manifest = core.manifest.take();
    merger.advance(&core, true, out);
    core.manifest = manifest;
    core.lifecycle = Lifecycle::Recovering { detach: false };
    merger.advance(&core, true, out);
    assert_eq!(*out, []);
    core.lifecycle = Lifecycle::Serving;
    assert_eq!(asked(&mut merger, &core).len(), 1);
}

#[test]
fn nothing_is_merged_once_the_device_is_gone() {
    let mut core = with_segments(8);
    core.lifecycle = Lifecycle::Detaching;
    assert_eq!(asked(&mut Merger::idle(), &core), []);
}

/// A merge whose inputs were damaged was made again in full after each commit.
#[test]
fn a_damaged_run_takes_part_in_no_other_merge() {
    let mut core = with_segments(20);
    let mut merger = Merger::idle();
    assert_eq!(asked(&mut merger, &core)[0].inputs.len(), 16);
    merger.failed(MergeKind::Level, id(10).0);
    let plans = asked(&mut merger, &core);
    assert_eq!((plans[0].inputs[0].id(), plans[0].inputs.len()), (id(20).0, 10), "those above it");
    merger.failed(MergeKind::Level, id(15).0);
    let plans = asked(&mut merger, &core);
    assert_eq!((plans[0].inputs[0].id(), plans[0].inputs.len()), (id(9).0, 9), "those below it");
    merger.failed(MergeKind::Level, id(5).0);
    assert_eq!(asked(&mut merger, &core), []);
    commit(&mut merger, &mut core, &[21], vec![]);
    assert_eq!(asked(&mut merger, &core), []);
}

/// A merger with a stored merge of eight segments into a run for this place.
fn stored(core: &Core<Vec<u8>>, place: u64) -> Merger {
    let mut merger = Merger::idle();
    assert_eq!(asked(&mut merger, core).len(), 1);
    merger.merged(MergeKind::Level, Box::new(output(place)));
    merger
}

#[test]
fn a_merge_is_carried_up_to_its_place_and_once() {
    let core = with_segments(8);
    // The next record is 11.
    for (place, is_carried) in [(12, true), (11, true), (10, false)] {
        let mut merger = stored(&core, place);
        let manifest = core.manifest.as_ref().unwrap();
        assert_eq!(merger.take(manifest).len(), usize::from(is_carried), "for place {place}");
        assert_eq!(merger.take(manifest), []);
        assert_eq!((merger.carried(), merger.dropped()), (0, u64::from(!is_carried)));
    }
}

/// A record cannot carry it: that would end the process when the log took the record.
#[test]
fn a_merge_of_runs_that_the_list_lost_is_dropped() {
    let core = with_segments(8);
    for (newest, oldest) in [(8, 1), (5, 3), (2, 1), (8, 7)] {
        let mut manifest = core.manifest.clone().unwrap();
        let mut merger = stored(&core, 100);
        let other = RunRef { id: RunId::new(Seq(100), 1, [199; 10]), ..output(100) };
        let merge = Merge { newest: id(newest).0, oldest: id(oldest).0, output: other };
        manifest.apply(&record(&manifest, &[9], vec![merge])).unwrap();
        assert_eq!((merger.take(&manifest), merger.dropped()), (vec![], 1), "{newest} to {oldest}");
    }
}

#[test]
fn merges_count_as_carried_once_their_record_is_in_the_log() {
    let mut core = with_segments(8);
    let mut merger = stored(&core, 100);
    let merges = merger.take(core.manifest.as_ref().unwrap());
    assert_eq!(merger.carried(), 0);
    commit(&mut merger, &mut core, &[9], merges);
    assert_eq!(merger.carried(), 1);
}

/// A sweep deletes what a merge replaced. A read that was planned before the merge failed for it.
#[test]
fn a_read_planned_before_a_merge_is_planned_again() {
    let (id, range) = (RequestId(0), SectorRange::new(0, 1));
    let gate = Gate { is_open: true, holds_active: false };
    let mut core = with_segments(2);
    let (mut data, mut out) = (DataPath::new(4, core.map.pages()), Vec::new());
    let failed = |data: &mut DataPath, core: &mut Core<Vec<u8>>| {
        let (mut out, result) = (Vec::new(), Err(Errno::EIO));
        let request = data.requests.cold_read_completed(id, result).unwrap();
        data.read_ended(id, request, core, &mut out);
        let runs = |action: &Action| {
            let Action::ReadCold { runs, .. } = action else { return None };
            Some(runs.len())
        };
        let planned = out.iter().find_map(runs);
        assert_eq!(out.contains(&Action::Complete { id, result }), planned.is_none(), "{out:?}");
        planned
    };
    data.requests.begin(id, Op::Read, range, Side::A);
    data.plan(id, &mut core, gate, &mut out);
    assert!(matches!(&out[..], [Action::ReadCold { runs, .. }] if runs.len() == 2), "{out:?}");
    let merge = Merge { newest: ids(&[2])[0], oldest: ids(&[1])[0], output: output(9) };
    let merging = record(core.manifest.as_ref().unwrap(), &[], vec![merge]);
    core.follow(&merging);
    assert_eq!(failed(&mut data, &mut core), Some(1), "it reads what the runs were merged into");
    let commit = record(core.manifest.as_ref().unwrap(), &[3], vec![]);
    core.follow(&commit);
    assert_eq!(failed(&mut data, &mut core), None, "nothing it names was merged since");
}
