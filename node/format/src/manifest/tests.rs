use holdfast_types::{PlacedId, RunId, SegmentId, SnapshotUid};

use super::apply::LogError;
use super::*;
use crate::chunk_ranges::ChunkRanges;
use crate::index::{Run, RunRef};
use crate::limit::REMEMBERED_ATTACHES;
use crate::record::{Body, Merge, Record};
use crate::segment::SegmentRef;
use crate::snapshot::SnapshotChange;

fn volume() -> VolumeId {
    "v".parse().unwrap()
}

fn record(seq: u64, epoch: u64, body: Body) -> Record {
    let nonce = Nonce([epoch.to_le_bytes()[0]; 16]);
    Record { volume: volume(), seq: Seq(seq), epoch: Epoch(epoch), nonce, unix_ms: 0, body }
}

fn id(name: u8) -> SegmentId {
    SegmentId::new(Place::until(Seq(100)), 1, [name; 10])
}

fn segment(name: u8, chunks: Vec<(u32, u32)>) -> SegmentRef {
    SegmentRef {
        id: id(name),
        bytes: 10,
        index_offset: 0,
        index_bytes: 10,
        sectors: 5,
        chunks: ChunkRanges::around(chunks),
    }
}

fn commit(name: u8, chunks: Vec<(u32, u32)>) -> Body {
    let segments = vec![segment(name, chunks)];
    Body::Change {
        segments,
        chunks: ChunkSet::default(),
        invalidated: SideSet::NONE,
        generation: u64::from(name),
        merges: vec![],
        closed: Place::default(),
        snapshots: SnapshotChange::default(),
        sectors: None,
    }
}

fn attach(seq: u64, epoch: u64) -> Record {
    record(seq, epoch, Body::Attach { sectors: 1 << 20, node: "n".into(), displaced: None })
}

fn attached() -> Manifest {
    let mut manifest = Manifest::empty(volume());
    manifest.apply(&record(1, 0, Body::create(1 << 20))).unwrap();
    manifest.apply(&attach(2, 1)).unwrap();
    manifest
}

#[test]
fn runs_stand_newest_first_and_a_checkpoint_keeps_them() {
    let mut manifest = attached();
    manifest.apply(&record(3, 1, commit(1, vec![(0, 2)]))).unwrap();
    manifest.apply(&record(4, 1, commit(2, vec![(1, 1), (7, 1)]))).unwrap();
    let ranges: Vec<&[(u32, u32)]> = manifest.runs().iter().map(|run| run.chunk_ranges().ranges()).collect();
    assert_eq!(ranges, [&[(1, 1), (7, 1)][..], &[(0, 2)]]);
    let held: Vec<u64> = (0..9).filter(|chunk| manifest.may_hold(Chunk(*chunk))).collect();
    assert_eq!(held, [0, 1, 7]);
    let read = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).unwrap();
    assert_eq!(read.checkpointed(), Seq(4));
    assert_eq!(read, Manifest { checkpointed: Seq(4), ..manifest });
}

/// A replaced writer may have written data that never reached the log: detach and checkpoint do not hide it.
#[test]
fn a_replaced_writer_is_remembered() {
    let mut manifest = attached();
    manifest.apply(&attach(3, 2)).unwrap();
    assert!(!manifest.was_replaced(), "its own node came back");
    let displaced = Some(Displaced { epoch: Epoch(2), node: "n".into(), since_unix_ms: 0 });
    manifest.apply(&record(4, 3, Body::Attach { sectors: 1 << 20, node: "m".into(), displaced })).unwrap();
    manifest.apply(&record(5, 3, Body::Detach { root: None })).unwrap();
    manifest.apply(&attach(6, 4)).unwrap();
    assert!(manifest.was_replaced() && manifest.displaced().is_none());
    let read = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).unwrap();
    assert!(read.was_replaced() && read.is_attached());
}

#[test]
fn a_stale_writer_cannot_commit() {
    let mut manifest = attached();
    manifest.apply(&attach(3, 2)).unwrap();
    let stale = record(4, 1, commit(1, vec![(0, 1)]));
    assert_eq!(
        manifest.apply(&stale),
        Err(LogError::Epoch { seq: Seq(4), found: Epoch(1), current: Epoch(2) })
    );
    assert_eq!(manifest.seq(), Seq(3));
}

#[test]
fn gaps_second_creation_shrinking_and_life_after_death_are_refused() {
    let mut manifest = attached();
    assert!(matches!(manifest.apply(&attach(4, 2)), Err(LogError::Gap { .. })));
    assert!(matches!(manifest.apply(&record(3, 0, Body::create(1))), Err(LogError::CreatedTwice(_))));
    let small = record(3, 2, Body::Attach { sectors: 1, node: String::new(), displaced: None });
    assert!(matches!(manifest.apply(&small), Err(LogError::Shrunk { .. })));
    manifest.apply(&record(3, 0, Body::Delete)).unwrap();
    assert!(!manifest.exists());
    assert!(matches!(manifest.apply(&attach(4, 2)), Err(LogError::Deleted(_))));
}

#[test]
fn dirty_data_is_ours_only_while_every_later_attach_is() {
    let mut manifest = attached();
    let mine = Nonce([2; 16]);
    assert!(manifest.is_ours_since(Epoch(1), &[]));
    manifest.apply(&attach(3, 2)).unwrap();
    assert!(manifest.is_ours_since(Epoch(1), &[mine]));
    assert!(!manifest.is_ours_since(Epoch(1), &[]));
    manifest.apply(&attach(4, 3)).unwrap();
    assert!(!manifest.is_ours_since(Epoch(1), &[mine]));
}

#[test]
fn attaches_too_old_to_be_remembered_count_as_foreign() {
    let mut manifest = attached();
    for epoch in 2..REMEMBERED_ATTACHES as u64 + 3 {
        let mut next = attach(epoch + 1, epoch);
        next.nonce = Nonce([9; 16]);
        manifest.apply(&next).unwrap();
    }
    assert!(!manifest.is_ours_since(Epoch(1), &[Nonce([9; 16])]));
}

#[test]
fn a_checkpoint_of_a_volume_that_cannot_be_is_refused() {
    let manifest = Manifest { sectors: MAX_SECTORS + 1, ..attached() };
    let mut empty = Manifest::empty(volume());
    let create = record(1, 0, Body::create(MAX_SECTORS + 1));
    assert!(matches!(empty.apply(&create), Err(LogError::TooLarge { .. })));
    assert!(!empty.exists());
    let refused = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).err().unwrap();
    assert!(refused.to_string().contains("sectors cannot be"), "{refused}");
}

#[test]
fn a_commit_beyond_the_volumes_end_is_refused() {
    let mut manifest = attached();
    let commit = |chunks| record(3, 1, commit(1, chunks));
    let refused = manifest.apply(&commit(vec![(0, 1), (31, 2)])).unwrap_err();
    assert_eq!(refused.to_string(), "log record 3 commits chunks from 31 on, but the volume has 32 chunks");
    assert_eq!(manifest.apply(&commit(vec![(31, 1)])), Ok(()));
}

#[test]
fn a_segment_of_chunks_that_no_volume_has_is_refused() {
    let altered = record(3, 1, commit(1, vec![(0, u32::MAX)]));
    assert!(Record::decode(&altered.encode()).unwrap_err().to_string().contains("chunk count"));
}

/// Once the log has passed a place, no object with that place is ever added: a sweep may rely on it.
#[test]
fn an_object_is_not_added_behind_its_place() {
    let mut manifest = attached();
    let named_for = |place| {
        let chunks = ChunkRanges::around([(0, 1)]);
        let id = SegmentId::new(Place::until(Seq(place)), 1, [1; 10]);
        let segment = SegmentRef { id, bytes: 10, index_offset: 0, index_bytes: 10, sectors: 5, chunks };
        record(
            3,
            1,
            Body::Change {
                segments: vec![segment],
                chunks: ChunkSet::default(),
                invalidated: SideSet::NONE,
                generation: 1,
                merges: vec![],
                closed: Place::default(),
                snapshots: SnapshotChange::default(),
                sectors: None,
            },
        )
    };
    let refused = manifest.apply(&named_for(2)).unwrap_err().to_string();
    assert!(refused.starts_with("log record 3 adds 00000000000000000002-"), "{refused}");
    assert_eq!(manifest.seq(), Seq(2));
    assert_eq!(manifest.apply(&named_for(3)), Ok(()));
}

#[test]
fn only_segments_change_what_the_volume_holds() {
    let mut manifest = attached();
    assert_eq!(manifest.data_seq(), Seq(1));
    manifest.apply(&record(3, 1, commit(1, vec![(0, 1)]))).unwrap();
    manifest.apply(&record(4, 1, Body::Detach { root: None })).unwrap();
    assert_eq!(manifest.data_seq(), Seq(3));
    let read = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).unwrap();
    assert_eq!(read.data_seq(), Seq(3));
}

#[test]
fn of_a_change_whose_last_segment_cannot_be_added_none_is() {
    let mut manifest = attached();
    let segments = vec![segment(1, vec![(0, 1)]), segment(2, vec![(32, 1)])];
    let body = Body::Change {
        segments,
        chunks: ChunkSet::default(),
        invalidated: SideSet::NONE,
        generation: 1,
        merges: vec![],
        closed: Place::default(),
        snapshots: SnapshotChange::default(),
        sectors: None,
    };
    assert!(matches!(manifest.apply(&record(3, 1, body)), Err(LogError::BeyondEnd { first: 32, .. })));
    assert!(manifest.runs().is_empty() && !manifest.may_hold(Chunk(0)));
    let segments = vec![segment(1, vec![(0, 1)]), segment(2, vec![(1, 1)])];
    let body = Body::Change {
        segments,
        chunks: ChunkSet::default(),
        invalidated: SideSet::NONE,
        generation: 1,
        merges: vec![],
        closed: Place::default(),
        snapshots: SnapshotChange::default(),
        sectors: None,
    };
    manifest.apply(&record(3, 1, body)).unwrap();
    assert_eq!(manifest.runs().len(), 2);
}

/// The place of the first merge of the writer of [`attached`].
const OPEN: Place = Place::first_merge(Epoch(1));

/// Returns a merge of the segments from `newest` to `oldest`, both by name.
fn merge(place: Place, newest: u8, oldest: u8, chunks: (u32, u32)) -> Merge {
    let output = RunRef {
        id: RunId::new(place, 1, [99; 10]),
        level: 1,
        bytes: 100,
        head_offset: 0,
        head_bytes: 50,
        sectors: 5,
        chunks: ChunkRanges::around([chunks]),
    };
    Merge { newest: id(newest).0, oldest: id(oldest).0, output }
}

/// Returns a change with one segment of this name.
fn merging(name: u8, merges: Vec<Merge>) -> Body {
    let segments = vec![segment(name, vec![(0, 1)])];
    Body::Change {
        segments,
        chunks: ChunkSet::default(),
        invalidated: SideSet::NONE,
        generation: 1,
        merges,
        closed: Place::default(),
        snapshots: SnapshotChange::default(),
        sectors: None,
    }
}

#[test]
fn a_merge_takes_the_place_of_its_inputs() {
    let mut manifest = attached();
    for name in 1..=4 {
        manifest.apply(&record(u64::from(name) + 2, 1, commit(name, vec![(0, 1)]))).unwrap();
    }
    let data_seq = manifest.data_seq();
    manifest.apply(&record(7, 1, merging(5, vec![merge(OPEN, 3, 2, (0, 1))]))).unwrap();
    let ids: Vec<PlacedId> = manifest.runs().iter().map(Run::id).collect();
    let merged = RunId::new(OPEN, 1, [99; 10]).0;
    assert_eq!(ids, [id(5).0, id(4).0, merged, id(1).0]);
    assert!(manifest.data_seq() > data_seq);
    let read = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).unwrap();
    assert_eq!(read.runs(), manifest.runs());
}

/// Regression: the output of a merge that a later one replaced became known garbage only months later.
#[test]
fn a_record_closes_merges_for_all_later_ones() {
    let mut manifest = attached();
    for name in 1..=4 {
        manifest.apply(&record(u64::from(name) + 2, 1, commit(name, vec![(0, 1)]))).unwrap();
    }
    let closing = |until: Place, merges| {
        let mut body = merging(5, merges);
        let Body::Change { closed, .. } = &mut body else { unreachable!() };
        *closed = until;
        body
    };
    let [second, third] = [OPEN.next(), OPEN.next().next()];
    assert!(!manifest.is_passed(OPEN));
    // The record may still carry merges that it closes.
    manifest.apply(&record(7, 1, closing(third, vec![merge(second, 2, 1, (0, 1))]))).unwrap();
    assert!(manifest.is_passed(OPEN) && manifest.is_passed(second) && !manifest.is_passed(third));
    let late = record(8, 1, closing(OPEN, vec![merge(second, 4, 3, (0, 1))]));
    assert!(matches!(manifest.apply(&late), Err(LogError::Place { .. })));
    // Records cannot reopen them.
    manifest.apply(&record(8, 1, closing(OPEN, vec![]))).unwrap();
    let read = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).unwrap();
    assert!(read.is_passed(second) && !read.is_passed(third));
    let far = Place::from_stored(OPEN.stored() + 1_000_000);
    assert!(!read.is_passed(far));
    // Other writers cannot carry them.
    let mut replaced = manifest.clone();
    replaced.apply(&attach(9, 2)).unwrap();
    manifest.apply(&record(9, 1, Body::Detach { root: None })).unwrap();
    for manifest in [replaced, manifest] {
        assert!(manifest.is_passed(far) && !manifest.is_passed(Place::first_merge(Epoch(2))));
    }
}

#[test]
fn a_merge_that_does_not_fit_the_list_changes_nothing() {
    let mut manifest = attached();
    for name in 1..=3 {
        manifest.apply(&record(u64::from(name) + 2, 1, commit(name, vec![(0, 1)]))).unwrap();
    }
    let before = manifest.clone();
    for (altered, refused) in [
        (merge(OPEN, 1, 2, (0, 1)), "log record 6 merges runs into"),
        (merge(OPEN, 2, 2, (0, 1)), "log record 6 merges runs into"),
        (merge(OPEN, 9, 1, (0, 1)), "log record 6 merges runs into"),
        (merge(Place::first_merge(Epoch(0)), 2, 1, (0, 1)), "log record 6 adds 09223372036854775808-"),
        (merge(Place::until(Seq(100)), 2, 1, (0, 1)), "log record 6 adds 00000000000000000100-"),
        (merge(OPEN, 2, 1, (31, 2)), "log record 6 commits chunks from 31 on"),
    ] {
        let error = manifest.apply(&record(6, 1, merging(4, vec![altered]))).unwrap_err().to_string();
        assert!(error.starts_with(refused), "{error}");
        assert_eq!(manifest, before);
    }
}

/// A sweep that read the log of a fork before its marks relies on this.
#[test]
fn no_record_adds_an_object_of_another_volume() {
    let mut manifest = attached();
    for name in 1..=2 {
        manifest.apply(&record(u64::from(name) + 2, 1, commit(name, vec![(0, 1)]))).unwrap();
    }
    let before = manifest.clone();
    let mut segment = commit(3, vec![(0, 1)]);
    if let Body::Change { segments, .. } = &mut segment {
        segments[0].id.0.owner = 1;
    }
    let mut run = merge(OPEN, 2, 1, (0, 1));
    run.output.id.0.owner = 1;
    for body in [segment, merging(4, vec![run])] {
        assert!(matches!(manifest.apply(&record(5, 1, body)), Err(LogError::Foreign { .. })));
        assert_eq!(manifest, before);
    }
}

/// The commit that carries the growth of a volume may hold data past its former end.
#[test]
fn a_change_makes_the_volume_larger_and_never_smaller() {
    let mut manifest = attached();
    let before = manifest.clone();
    let grown = |size: u64, chunks| {
        let mut body = commit(1, chunks);
        if let Body::Change { sectors, .. } = &mut body {
            *sectors = Some(size);
        }
        body
    };
    let beyond = u32::try_from((1 << 20) / CHUNK_SECTORS).unwrap();
    for (body, words) in [
        (
            grown((1 << 20) - 1, vec![(0, 1)]),
            "log record 3 shrinks the volume from 1048576 to 1048575 sectors",
        ),
        (
            grown(1 << 20, vec![(beyond, 1)]),
            "log record 3 commits chunks from 32 on, but the volume has 32 chunks",
        ),
        (grown(MAX_SECTORS + 1, vec![]), "log record 3 gives the volume 137438953473 sectors, more than the"),
    ] {
        let refused = manifest.apply(&record(3, 1, body)).unwrap_err().to_string();
        assert!(refused.starts_with(words), "{refused}");
        assert_eq!(manifest, before);
    }
    manifest.apply(&record(3, 1, grown((1 << 20) + 1, vec![(beyond, 1)]))).unwrap();
    assert_eq!((manifest.sectors(), manifest.may_hold(Chunk(beyond.into()))), ((1 << 20) + 1, true));
    manifest.apply(&record(4, 0, grown(1 << 30, vec![]))).expect_err("the control plane grows nothing");
}

#[test]
fn further_chunks_of_inexact_ranges_hold_nothing() {
    let mut manifest = Manifest { sectors: 1000 * CHUNK_SECTORS, ..attached() };
    let wide = segment(1, (0..100).map(|n| (4 * n, 1)).collect());
    let mut chunks = ChunkSet::default();
    (0..100).for_each(|n| chunks.add(Chunk(4 * n)));
    let change = |segments, chunks| {
        let (invalidated, generation) = (SideSet::NONE, 1);
        Body::Change {
            segments,
            chunks,
            invalidated,
            generation,
            merges: vec![],
            closed: Place::default(),
            snapshots: SnapshotChange::default(),
            sectors: None,
        }
    };
    manifest.apply(&record(3, 1, change(vec![wide], chunks.clone()))).unwrap();
    let held: Vec<u64> = (0..1000).filter(|chunk| manifest.may_hold(Chunk(*chunk))).collect();
    assert_eq!(held, (0..100).map(|n| 4 * n).collect::<Vec<_>>());
    assert_eq!(manifest.not_held(chunks), ChunkSet::default());
    let mut beyond = ChunkSet::default();
    beyond.add(Chunk(1000));
    let refused = manifest.apply(&record(4, 1, change(vec![], beyond))).unwrap_err().to_string();
    assert_eq!(refused, "log record 4 commits chunks from 1000 on, but the volume has 1000 chunks");
}

fn taken(seq: u64, epoch: u64, uid: u8, dropped: &[u64]) -> Record {
    let dropped = dropped.iter().map(|seq| Seq(*seq)).collect();
    let change = SnapshotChange { taken: Some(SnapshotUid([uid; 16])), dropped };
    record(seq, epoch, Body::of_snapshots(change))
}

fn registered(manifest: &Manifest) -> Vec<(u64, u8)> {
    manifest.snapshots().iter().map(|known| (known.seq.0, known.uid.0[0])).collect()
}

#[test]
fn snapshots_survive_checkpoints_detaches_and_later_attaches() {
    let mut manifest = attached();
    manifest.apply(&record(3, 1, commit(1, vec![(0, 2)]))).unwrap();
    manifest.apply(&taken(4, 1, 1, &[])).unwrap();
    manifest.apply(&taken(5, 1, 2, &[])).unwrap();
    assert_eq!((manifest.data_seq(), manifest.seq()), (Seq(3), Seq(5)));
    manifest.apply(&record(6, 1, Body::Detach { root: None })).unwrap();
    let mut read = Manifest::decode_checkpoint(&manifest.encode_checkpoint()).unwrap();
    assert_eq!(registered(&read), [(4, 1), (5, 2)]);
    read.apply(&attach(7, 2)).unwrap();
    read.apply(&taken(8, 2, 3, &[4])).unwrap();
    assert_eq!(registered(&read), [(5, 2), (8, 3)]);
}

#[test]
fn a_list_of_snapshots_changes_only_as_it_can() {
    let mut manifest = attached();
    manifest.apply(&taken(3, 1, 1, &[])).unwrap();
    for altered in [taken(4, 1, 1, &[]), taken(4, 1, 2, &[9])] {
        assert_eq!(manifest.apply(&altered), Err(LogError::Snapshots(Seq(4))));
    }
    manifest.apply(&taken(4, 1, 1, &[3])).unwrap();
    assert_eq!(registered(&manifest), [(4, 1)]);
    let full =
        |uid: usize| Snapshot { uid: SnapshotUid((uid as u128).to_be_bytes()), ..manifest.snapshots()[0] };
    let mut manifest =
        Manifest { snapshots: (0..crate::limit::MAX_SNAPSHOTS).map(full).collect(), ..manifest };
    assert_eq!(manifest.apply(&taken(5, 1, 7, &[])), Err(LogError::Snapshots(Seq(5))));
}

/// A record without a writer would take the position of the next record of an attached writer.
#[test]
fn the_control_plane_changes_only_detached_lists_of_snapshots() {
    let mut manifest = attached();
    assert!(!manifest.takes_control_records());
    assert!(matches!(manifest.apply(&taken(3, 0, 1, &[])), Err(LogError::Epoch { .. })));
    manifest.apply(&record(3, 1, commit(1, vec![(0, 2)]))).unwrap();
    manifest.apply(&record(4, 1, Body::Detach { root: None })).unwrap();
    assert!(manifest.takes_control_records());
    assert_eq!(manifest.apply(&record(5, 0, commit(2, vec![(0, 2)]))), Err(LogError::Control(Seq(5))));
    assert!(matches!(manifest.apply(&taken(5, 1, 1, &[])), Err(LogError::Epoch { .. })));
    let covered = manifest.covered;
    manifest.apply(&taken(5, 0, 1, &[])).unwrap();
    assert_eq!((manifest.covered, manifest.data_seq(), manifest.epoch()), (covered, Seq(3), Epoch(1)));
    assert_eq!(registered(&manifest), [(5, 1)]);
    manifest.apply(&record(6, 0, Body::Delete)).unwrap();
    assert!(!manifest.takes_control_records());
}

/// Two processes that take the same snapshot concurrently store the same root.
#[test]
fn a_root_says_only_what_the_volume_holds() {
    let mut manifest = attached();
    manifest.apply(&record(3, 1, commit(1, vec![(0, 2)]))).unwrap();
    manifest.apply(&record(4, 1, Body::Detach { root: None })).unwrap();
    let root = |uid: u8| {
        let mut manifest = manifest.clone();
        manifest.apply(&taken(5, 0, uid, &[])).unwrap();
        manifest.encode_root()
    };
    assert_eq!(root(1), root(2));
    let read = Manifest::decode_checkpoint(&root(1)).unwrap();
    assert_eq!((read.seq(), read.sectors(), read.identity()), (Seq(5), 1 << 20, manifest.identity()));
    assert_eq!((read.runs(), &read.holds), (manifest.runs(), &manifest.holds));
    assert_eq!((read.epoch(), read.snapshots().len()), (Epoch(0), 0));
}

#[test]
fn a_checkpoint_with_snapshots_that_cannot_be_is_refused() {
    let mut manifest = attached();
    manifest.apply(&taken(3, 1, 1, &[])).unwrap();
    let own = manifest.snapshots()[0];
    for (list, words) in [
        (vec![own, own], "seq of a snapshot"),
        (vec![Snapshot { seq: Seq(4), ..own }], "seq of a snapshot"),
        (vec![Snapshot { sectors: MAX_SECTORS + 1, ..own }], "sectors of a snapshot"),
    ] {
        let altered = Manifest { snapshots: list, ..manifest.clone() };
        let refused = Manifest::decode_checkpoint(&altered.encode_checkpoint()).unwrap_err();
        assert!(refused.to_string().contains(words), "{refused}");
    }
}
