use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_types::{Epoch, Place, RunId, SectorRange, SegmentId, Seq};

use super::super::core::tests::{NONCE, core};
use super::super::data_path::{DataPath, WriteGate};
use super::*;
use crate::action::Action;
use crate::event::{Errno, Op, RequestId};

fn id(name: u8) -> SegmentId {
    SegmentId::new(Place::until(Seq(100)), 1, [name; 10])
}

/// The place of the first merge of the writer.
const FIRST: Place = Place::from_stored(Place::first_merge(Epoch(1)).stored() + 1024);

fn output(place: Place) -> RunRef {
    RunRef {
        id: RunId::new(place, 1, [200; 10]),
        level: 1,
        bytes: 100,
        head_offset: 0,
        head_bytes: 50,
        sectors: 5,
        chunks: ChunkRanges::around([(0, 1)]),
    }
}

fn ids(names: &[u8]) -> Vec<PlacedId> {
    names.iter().map(|name| id(*name).0).collect()
}

#[test]
fn every_event_in_every_state() {
    use {MergeEvent as E, Merging as S};
    let running = S::Running(ids(&[2, 1]), FIRST);
    let stored = S::Stored(ids(&[2, 1]), Box::new(output(FIRST)));
    let states = [S::Idle, running.clone(), stored.clone()];
    // The next state from each of `states`; `None` if the event cannot happen.
    let table = [
        (E::Chosen(ids(&[2, 1]), FIRST), [Some(running), None, None]),
        (E::Stored(Box::new(output(FIRST))), [None, Some(stored), None]),
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
        let chunks = ChunkRanges::around([(0, 1)]);
        SegmentRef { id: id(*name), bytes: 900, index_offset: 100, index_bytes: 500, sectors: 5, chunks }
    };
    let segments = segments.iter().map(segment).collect();
    let (chunks, invalidated, generation) = (ChunkSet::default(), SideSet::NONE, 1);
    let (closed, snapshots) = (Place::default(), SnapshotChange::default());
    let body =
        Body::Change { segments, chunks, invalidated, generation, merges, closed, snapshots, sectors: None };
    Record { volume, seq, epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body }
}

/// Returns a core whose volume has `segments` segments of a few entries, from seq 2 on.
fn with_segments(segments: u8) -> Core<Vec<u8>> {
    let mut core = core(1);
    let manifest = core.manifest.as_mut().unwrap();
    for name in 1..=segments {
        manifest.apply(&record(manifest, &[name], vec![])).unwrap();
    }
    core
}

/// Returns the merges that it requests.
fn requested_merges(merger: &mut Merger, core: &Core<Vec<u8>>) -> Vec<MergePlan> {
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
    let plans = requested_merges(&mut merger, &core);
    let [plan] = &plans[..] else { panic!("{plans:?}") };
    assert_eq!(plan.place, FIRST);
    assert_eq!((plan.kind, plan.inputs.len(), plan.level, plan.is_oldest), (MergeKind::Level, 8, 1, true));
    assert_eq!((plan.inputs[0].id(), plan.inputs[7].id()), (id(8).0, id(1).0));
    for name in 9..30 {
        commit(&mut merger, &mut core, &[name], vec![]);
        assert_eq!(requested_merges(&mut merger, &core), []);
    }
}

/// Regression: the merge of the base takes hours, during which the list grew with every commit.
#[test]
fn levels_are_merged_while_the_base_is() {
    let mut core = with_segments(4);
    let mut merger = Merger::idle();
    let run = |level, sectors, name| {
        let id = RunId::new(FIRST, 1, [name; 10]);
        RunRef { id, level, sectors, ..output(FIRST) }
    };
    // The base, and half as much above it.
    for (names, output) in [([2, 1], run(2, 100, 201)), ([4, 3], run(2, 50, 202))] {
        let merge = Merge { newest: id(names[0]).0, oldest: id(names[1]).0, output };
        commit(&mut merger, &mut core, &[], vec![merge]);
    }
    let plans = requested_merges(&mut merger, &core);
    assert_eq!((plans[0].kind, plans[0].inputs.len(), plans[0].is_oldest), (MergeKind::Base, 2, true));
    for name in 11..19 {
        assert_eq!(requested_merges(&mut merger, &core), []);
        commit(&mut merger, &mut core, &[name], vec![]);
    }
    let plans = requested_merges(&mut merger, &core);
    assert_eq!((plans[0].kind, plans[0].inputs.len(), plans[0].is_oldest), (MergeKind::Level, 8, false));
    // One record carries both.
    merger.merged(MergeKind::Level, Box::new(run(1, 8, 203)));
    merger.merged(MergeKind::Base, Box::new(run(2, 150, 204)));
    let merges = merger.take(core.manifest.as_ref().unwrap());
    commit(&mut merger, &mut core, &[19], merges);
    assert_eq!((core.manifest.unwrap().runs().len(), merger.carried(), merger.dropped()), (3, 4, 0));
}

#[test]
fn a_due_merge_waits_for_the_log_without_being_lost() {
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
    assert_eq!(requested_merges(&mut merger, &core).len(), 1);
}

#[test]
fn nothing_is_merged_once_the_device_is_gone() {
    let mut core = with_segments(8);
    core.lifecycle = Lifecycle::Detaching;
    assert_eq!(requested_merges(&mut Merger::idle(), &core), []);
}

/// Regression: a merge with damaged inputs was repeated in full after each commit.
#[test]
fn a_damaged_run_is_not_merged_again() {
    let mut core = with_segments(20);
    let mut merger = Merger::idle();
    assert_eq!(requested_merges(&mut merger, &core)[0].inputs.len(), 16);
    merger.failed(MergeKind::Level, id(10).0);
    let plans = requested_merges(&mut merger, &core);
    assert_eq!((plans[0].inputs[0].id(), plans[0].inputs.len()), (id(20).0, 10), "those above it");
    merger.failed(MergeKind::Level, id(15).0);
    let plans = requested_merges(&mut merger, &core);
    assert_eq!((plans[0].inputs[0].id(), plans[0].inputs.len()), (id(9).0, 9), "those below it");
    merger.failed(MergeKind::Level, id(5).0);
    assert_eq!(requested_merges(&mut merger, &core), []);
    commit(&mut merger, &mut core, &[21], vec![]);
    assert_eq!(requested_merges(&mut merger, &core), []);
}

/// Returns a merger with a stored merge of eight segments.
fn stored(core: &Core<Vec<u8>>) -> Merger {
    let mut merger = Merger::idle();
    assert_eq!(requested_merges(&mut merger, core).len(), 1);
    merger.merged(MergeKind::Level, Box::new(output(FIRST)));
    merger
}

#[test]
fn a_merge_is_carried_once() {
    let core = with_segments(8);
    let manifest = core.manifest.as_ref().unwrap();
    let mut merger = stored(&core);
    assert_eq!(merger.closed(manifest), FIRST);
    assert_eq!((merger.take(manifest).len(), merger.take(manifest)), (1, vec![]));
    assert_eq!((merger.closed(manifest), merger.dropped()), (FIRST.next(), 0));
}

/// A sweep deletes closed objects: the place of a merge stays open until a record carries it, or it failed.
#[test]
fn a_merge_in_progress_keeps_its_place_open() {
    let mut core = with_segments(20);
    let mut merger = Merger::idle();
    let closed = |merger: &mut Merger, core: &Core<Vec<u8>>| merger.closed(core.manifest.as_ref().unwrap());
    assert_eq!(closed(&mut merger, &core), FIRST);
    for place in [FIRST, FIRST.next()] {
        assert_eq!(requested_merges(&mut merger, &core)[0].place, place);
        assert_eq!(closed(&mut merger, &core), place);
        merger.failed(MergeKind::Level, id(1).0);
        assert_eq!(closed(&mut merger, &core), place.next());
    }
    // The process crashed. Its successor continues from the log.
    let mut merger = Merger::idle();
    let mut body = record(core.manifest.as_ref().unwrap(), &[21], vec![]);
    let Body::Change { closed: until, .. } = &mut body.body else { unreachable!() };
    *until = FIRST.next().next();
    core.manifest.as_mut().unwrap().apply(&body).unwrap();
    // The crashed process may have begun more merges since its last record.
    let first = Place::from_stored(FIRST.next().next().stored() + 1024);
    assert_eq!(closed(&mut merger, &core), first);
    assert_eq!(requested_merges(&mut merger, &core)[0].place, first);
    assert_eq!(closed(&mut merger, &core), first);
}

/// A record must not carry it: the process would panic when the log accepted the record.
#[test]
fn a_merge_of_runs_that_the_list_lost_is_dropped() {
    let core = with_segments(8);
    for (newest, oldest) in [(8, 1), (5, 3), (2, 1), (8, 7)] {
        let mut manifest = core.manifest.clone().unwrap();
        let mut merger = stored(&core);
        let other = RunRef { id: RunId::new(FIRST, 1, [199; 10]), ..output(FIRST) };
        let merge = Merge { newest: id(newest).0, oldest: id(oldest).0, output: other };
        manifest.apply(&record(&manifest, &[9], vec![merge])).unwrap();
        assert_eq!((merger.take(&manifest), merger.dropped()), (vec![], 1), "{newest} to {oldest}");
    }
}

#[test]
fn merges_count_as_carried_with_a_logged_record() {
    let mut core = with_segments(8);
    let mut merger = stored(&core);
    let merges = merger.take(core.manifest.as_ref().unwrap());
    assert_eq!(merger.carried(), 0);
    commit(&mut merger, &mut core, &[9], merges);
    assert_eq!(merger.carried(), 1);
}

/// Regression: a sweep deletes objects replaced by a merge, and a read planned before the merge failed.
#[test]
fn a_read_planned_before_a_merge_is_planned_again() {
    let (id, range) = (RequestId(0), SectorRange::new(0, 1));
    let gate = WriteGate { is_open: true, holds_active: false, is_held: false };
    let mut core = with_segments(2);
    let (mut data, mut out) = (DataPath::new(4, core.map.pages()), Vec::new());
    let failed = |data: &mut DataPath, core: &mut Core<Vec<u8>>| {
        let (mut out, result) = (Vec::new(), Err(Errno::EIO));
        let request = data.requests.cold_read_completed(id, result).unwrap();
        data.read_ended(id, request, false, core, &mut out);
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
    let merge = Merge { newest: ids(&[2])[0], oldest: ids(&[1])[0], output: output(FIRST) };
    let merging = record(core.manifest.as_ref().unwrap(), &[], vec![merge]);
    core.follow(&merging);
    assert_eq!(failed(&mut data, &mut core), Some(1), "it reads what the runs were merged into");
    let commit = record(core.manifest.as_ref().unwrap(), &[3], vec![]);
    core.follow(&commit);
    assert_eq!(failed(&mut data, &mut core), None, "nothing it names was merged since");
}

/// Applies the record that carries the merger's merges, with the place that it closes.
fn carry(merger: &mut Merger, core: &mut Core<Vec<u8>>) {
    let merges = merger.take(core.manifest.as_ref().unwrap());
    assert!(!merges.is_empty());
    commit_closing(merger, core, &[], merges);
}

fn commit_closing(merger: &mut Merger, core: &mut Core<Vec<u8>>, names: &[u8], merges: Vec<Merge>) {
    let manifest = core.manifest.as_mut().unwrap();
    let mut record = record(manifest, names, merges);
    let Body::Change { closed, .. } = &mut record.body else { unreachable!() };
    *closed = merger.closed(manifest);
    manifest.apply(&record).unwrap();
    merger.won(&record);
}

/// Regression: a discard whose commit is the eighth of a level is part of that level's merge. That waited
/// for the next commit, which an idle volume never creates: the list stayed, and so did the used space.
#[test]
fn a_discard_that_fills_a_level_is_merged_at_once() {
    let mut core = with_segments(7);
    let mut merger = Merger::idle();
    let manifest = core.manifest.as_mut().unwrap();
    let mut discard = record(manifest, &[8], vec![]);
    let Body::Change { segments, .. } = &mut discard.body else { unreachable!() };
    segments[0].sectors = 1 << 20;
    manifest.apply(&discard).unwrap();
    merger.won(&discard);
    let plans = requested_merges(&mut merger, &core);
    let [plan] = &plans[..] else { panic!("{plans:?}") };
    let zeros = if plan.is_oldest { 0 } else { 1 << 20 };
    let run = RunRef { sectors: zeros, ..output(plan.place) };
    merger.merged(plan.kind, Box::new(run));
    assert!(
        merger.wants_record(core.manifest.as_ref().unwrap().runs()),
        "the volume is idle: {:?} is never carried",
        plan.kind
    );
}

/// The same with an older run below the level: a discard of 4 GiB covers all of it.
#[test]
fn a_discard_above_an_older_run_is_merged_at_once() {
    let mut core = with_segments(2);
    let mut merger = Merger::idle();
    let id_of = |name| RunId::new(FIRST, 1, [name; 10]);
    let base = RunRef { id: id_of(201), level: 2, sectors: 1000, ..output(FIRST) };
    commit(&mut merger, &mut core, &[], vec![Merge { newest: id(2).0, oldest: id(1).0, output: base }]);
    for name in 3..=9 {
        commit(&mut merger, &mut core, &[name], vec![]);
    }
    assert_eq!(requested_merges(&mut merger, &core), []);
    let manifest = core.manifest.as_mut().unwrap();
    let mut discard = record(manifest, &[10], vec![]);
    let Body::Change { segments, .. } = &mut discard.body else { unreachable!() };
    segments[0].sectors = 1 << 20;
    manifest.apply(&discard).unwrap();
    merger.won(&discard);
    // The volume is idle from here on, without commits.
    for _ in 0..4 {
        for plan in requested_merges(&mut merger, &core) {
            let id = RunId::new(plan.place, 1, [210; 10]);
            let zeros = if plan.is_oldest { 0 } else { 1 << 20 };
            merger.merged(
                plan.kind,
                Box::new(RunRef { id, level: plan.level, sectors: zeros, ..output(plan.place) }),
            );
        }
        if merger.wants_record(core.manifest.as_ref().unwrap().runs()) {
            carry(&mut merger, &mut core);
        }
    }
    assert_eq!(core.manifest.unwrap().runs().len(), 1, "what the discard hides is still named");
}

/// ADR 10: the next record closes the places of merges that a crashed process did not carry. Regression:
/// the next process gave its first merge the same place. So each process that crashed during a merge added
/// its relocated data, which no sweep deleted.
#[test]
fn the_next_record_closes_places_of_a_dead_process() {
    let mut core = with_segments(8);
    let mut ended = Merger::idle();
    let left = requested_merges(&mut ended, &core)[0].place;
    for name in 9..12 {
        let mut next = Merger::idle();
        requested_merges(&mut next, &core);
        commit_closing(&mut next, &mut core, &[name], vec![]);
    }
    assert!(core.manifest.unwrap().is_passed(left));
}

/// A process restarts during the merge of the base. The next one restarts its places from that of the base,
/// below the merges that records carried since. Regression: the objects replaced by those merges stayed until
/// as many merges were made again, permanently on an idle volume.
#[test]
fn objects_replaced_by_merges_are_deleted_after_a_restart() {
    let mut core = with_segments(4);
    let mut merger = Merger::idle();
    let run = |place, level, sectors, name| {
        let id = RunId::new(place, 1, [name; 10]);
        RunRef { id, level, sectors, ..output(place) }
    };
    for (names, output) in [([2, 1], run(FIRST, 2, 100_000, 201)), ([4, 3], run(FIRST, 2, 50_000, 202))] {
        let merge = Merge { newest: id(names[0]).0, oldest: id(names[1]).0, output };
        commit(&mut merger, &mut core, &[], vec![merge]);
    }
    assert_eq!(requested_merges(&mut merger, &core)[0].kind, MergeKind::Base);
    // Hours pass: eight merges of level 1 become one of level 2.
    let (mut name, mut replaced) = (10u8, Vec::new());
    while replaced.len() < 9 {
        name += 1;
        commit_closing(&mut merger, &mut core, &[name], vec![]);
        for plan in requested_merges(&mut merger, &core) {
            merger.merged(MergeKind::Level, Box::new(run(plan.place, plan.level, 10, 100 + name)));
            replaced.push(plan.place);
            carry(&mut merger, &mut core);
        }
    }
    let last = replaced.pop().unwrap();
    assert!(core.manifest.as_ref().unwrap().runs().iter().any(|run| run.id().place == last));
    // The daemon restarts. Its successor merges the base, and the volume is idle.
    let mut merger = Merger::idle();
    while let [plan] = &requested_merges(&mut merger, &core)[..] {
        merger.merged(plan.kind, Box::new(run(plan.place, plan.level, 150_000, 250)));
        assert!(merger.wants_record(core.manifest.as_ref().unwrap().runs()));
        carry(&mut merger, &mut core);
    }
    let manifest = core.manifest.unwrap();
    let left: Vec<Place> = replaced.into_iter().filter(|place| !manifest.is_passed(*place)).collect();
    assert_eq!(left, [], "of {} runs in the list", manifest.runs().len());
}
