use holdfast_format::record::{Body, Record};
use holdfast_types::Epoch;

use super::super::core::tests::{NONCE, core};
use super::*;

fn uid(name: u8) -> SnapshotUid {
    SnapshotUid([name; 16])
}

/// Returns the manifest of an attached volume with snapshots of these names, from seq 3 on.
fn manifest(names: &[u8]) -> Manifest {
    let mut manifest = core(1).manifest.unwrap();
    for name in names {
        let change = SnapshotChange { taken: Some(uid(*name)), dropped: Vec::new() };
        let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
        let body = Body::of_snapshots(change);
        manifest.apply(&Record { volume, seq, epoch: Epoch(1), nonce: NONCE, unix_ms: 5, body }).unwrap();
    }
    manifest
}

fn taken(change: &SnapshotChange) -> Option<u8> {
    change.taken.map(|uid| uid.0[0])
}

#[test]
fn a_snapshot_waits_for_its_seal_and_is_requested_once() {
    let (mut snapshots, out, manifest) = (Snapshotter::default(), &mut Vec::new(), manifest(&[]));
    snapshots.ask(uid(1), 2, Vec::new(), out);
    snapshots.ask(uid(1), 3, Vec::new(), out);
    snapshots.ask(uid(2), 1, Vec::new(), out);
    assert_eq!(taken(&snapshots.take(0, &manifest, out)), None);
    assert_eq!(taken(&snapshots.take(1, &manifest, out)), Some(2));
    snapshots.ask(uid(2), 9, Vec::new(), out);
    assert_eq!(taken(&snapshots.take(2, &manifest, out)), Some(1));
    assert!(snapshots.is_idle() && out.is_empty());
}

#[test]
fn registered_snapshots_are_answered_and_forgotten_ones_dropped() {
    let (mut snapshots, out, manifest) = (Snapshotter::default(), &mut Vec::new(), manifest(&[1, 2]));
    snapshots.ask(uid(2), 0, Vec::new(), out);
    assert_eq!(taken(&snapshots.take(0, &manifest, out)), None);
    assert_eq!(std::mem::take(out), [Action::Report(Report::SnapshotTaken(manifest.snapshots()[1]))]);
    // A place without a snapshot is not dropped.
    snapshots.ask(uid(2), 0, vec![Seq(1), Seq(4)], out);
    let change = snapshots.take(0, &manifest, out);
    assert_eq!(change, SnapshotChange { taken: Some(uid(2)), dropped: vec![Seq(4)] });
    assert!(
        change.applied(manifest.snapshots(), Snapshot { seq: Seq(5), ..manifest.snapshots()[0] }).is_some()
    );
}

#[test]
fn a_postponed_snapshot_waits_for_the_next_record() {
    let (mut snapshots, out, manifest) = (Snapshotter::default(), &mut Vec::new(), manifest(&[1]));
    snapshots.postpone();
    assert!(snapshots.is_idle(), "none was in flight");
    snapshots.ask(uid(2), 1, vec![Seq(3)], out);
    let first = snapshots.take(1, &manifest, out);
    snapshots.postpone();
    snapshots.ask(uid(2), 9, Vec::new(), out);
    assert_eq!(snapshots.take(1, &manifest, out), first, "it is asked for once, and drops the same");
    assert!(snapshots.is_idle() && out.is_empty());
}

#[test]
fn snapshots_that_nothing_will_register_are_refused() {
    let (mut snapshots, out, manifest) = (Snapshotter::default(), &mut Vec::new(), manifest(&[]));
    for name in 0..=WAITING_SNAPSHOTS {
        snapshots.ask(uid(name as u8), 0, Vec::new(), out);
    }
    let busy = Report::SnapshotRefused { uid: uid(WAITING_SNAPSHOTS as u8), why: SnapshotRefused::Busy };
    assert_eq!(std::mem::take(out), [Action::Report(busy)]);
    snapshots.take(0, &manifest, out);
    snapshots.refuse_all(SnapshotRefused::Fenced, out);
    assert_eq!(out.len(), WAITING_SNAPSHOTS, "the one in flight too");
    assert!(snapshots.is_idle());
}

/// A record of a later seal contains writes after the point.
#[test]
fn an_exact_snapshot_is_of_its_own_seal_or_none() {
    let (mut snapshots, out, manifest) = (Snapshotter::default(), &mut Vec::new(), manifest(&[]));
    snapshots.ask(uid(1), 2, Vec::new(), out);
    snapshots.ask_exact(uid(2), 2, Vec::new(), out);
    assert_eq!(taken(&snapshots.take(2, &manifest, out)), Some(1));
    assert_eq!(taken(&snapshots.take(2, &manifest, out)), Some(2));
    // Another root is in its place.
    snapshots.postpone();
    assert!(out.is_empty());
    assert_eq!(taken(&snapshots.take(3, &manifest, out)), None);
    let missed = Report::SnapshotRefused { uid: uid(2), why: SnapshotRefused::Missed };
    assert_eq!(std::mem::take(out), [Action::Report(missed)]);
    assert!(snapshots.is_idle());
}

#[test]
fn an_exact_snapshot_is_not_requested_twice() {
    let (mut snapshots, out, manifest) = (Snapshotter::default(), &mut Vec::new(), manifest(&[1]));
    let said = |out: &mut Vec<Action>| std::mem::take(out);
    snapshots.await_exact(uid(1), Some(&manifest), out);
    assert_eq!(said(out), [Action::Report(Report::SnapshotTaken(manifest.snapshots()[0]))]);
    let refused = |uid, why| [Action::Report(Report::SnapshotRefused { uid, why })];
    // From a dead process: the data that was dirty then is in a seal with later writes.
    snapshots.await_exact(uid(2), Some(&manifest), out);
    assert_eq!(said(out), refused(uid(2), SnapshotRefused::Missed));
    snapshots.await_exact(uid(2), None, out);
    assert_eq!(said(out), refused(uid(2), SnapshotRefused::Busy));
    snapshots.ask_exact(uid(2), 1, Vec::new(), out);
    snapshots.await_exact(uid(2), Some(&manifest), out);
    assert!(out.is_empty(), "it is answered once it is registered");
}

/// Regression: for each registered snapshot, the ring thread searched every mark since the first record.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "binary search needs sorted seqs")]
fn forgotten_places_ascend() {
    Snapshotter::default().ask(uid(1), 0, vec![Seq(4), Seq(3)], &mut Vec::new());
}
