//! Two clusters on one bucket: each of {delete, adopt, sweep, snapshot, restore} during and after each other.
//!
//! The first cluster stops at each of its requests in turn; there the second does all of its work; then the
//! first continues. Each acts like its operator and node, in the same order and with the same log functions.
//! Afterwards both empty the trash and sweep until nothing changes. No acknowledged byte that is still needed
//! may be missing, and both must have got results that docs/recovery.md lists ("Two clusters and one
//! bucket").
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod stored;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use holdfast_format::record::{Body, Labels, Record};
use holdfast_log::sweep::{SweepMemory, SweepOptions, sweep};
use holdfast_log::trash::{self, Emptied, TrashTerms, Trashed, empty, read_trash, take_back};
use holdfast_log::{
    CreateOutcome, Creation, LogFailure, SnapshotError, create_record, forget, provision,
    read_manifest_to_end, read_record, read_snapshot_of, snapshot_detached, was_truncated_after,
};
use holdfast_objects::{Fault, Gate, MemoryStore, ObjectStore, Verb};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Nonce, Seq, SnapshotName, SnapshotUid, VolumeId};

use stored::{NONCE, Stored};

const SECTORS: u64 = 40_000;
const KEEP: Duration = Duration::from_hours(24);
/// The snapshot to restore, known to both clusters.
const BEFORE: SnapshotUid = SnapshotUid([9; 16]);
const BEFORE_AT: Seq = Seq(5);
/// Maximum number of requests of a kind at which the first cluster stops.
const MOST: usize = 60;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Delete,
    Adopt,
    Sweep,
    Snapshot,
    Restore,
}

impl Act {
    const ALL: [Self; 5] = [Self::Delete, Self::Adopt, Self::Sweep, Self::Snapshot, Self::Restore];
}

/// The result that a cluster got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Got {
    /// It completed its action.
    Done,
    /// The volume or the id is in use: `DeletionBlocked`, `HeldElsewhere`, `VolumeAttached`.
    Attached,
    /// `HasSnapshots`.
    Snapshots,
    /// The volume stays, because it was taken back or used since.
    Kept,
    /// `IdTaken`, `VolumeNotFound`: the volume was removed, or the id belongs to another volume.
    Gone,
    /// The snapshot was already forgotten.
    Forgotten,
    /// Others were faster each time; it is retried.
    Contended,
}

/// One of the two clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cluster(u8);

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 == 1 { "first" } else { "second" })
    }
}

/// An acknowledged result, and the objects that hold it.
struct Acknowledged {
    what: String,
    /// A volume that must exist from now on, regardless of deletions.
    volume: Option<VolumeId>,
    /// A snapshot that must exist from now on.
    snapshot: Option<(SnapshotName, SnapshotUid)>,
    objects: Vec<(String, Bytes)>,
}

#[derive(Clone)]
struct World {
    store: MemoryStore,
    acknowledged: Arc<Mutex<Vec<Acknowledged>>>,
    /// The objects of the volume, and of the snapshot if it exists.
    before: Arc<Vec<(String, Bytes)>>,
    has_snapshot: bool,
}

fn id(name: &str) -> VolumeId {
    name.parse().unwrap()
}

async fn bytes_of(store: &MemoryStore, stored: &Stored) -> Vec<(String, Bytes)> {
    let mut objects = Vec::new();
    for (segment, _) in &stored.segments {
        let key = ObjectKey::Segment(stored.volume.clone(), segment.id).to_string();
        let body = store.get(&key, 1 << 24).await.unwrap();
        objects.push((key, body));
    }
    objects
}

impl World {
    /// Creates volume `a` with a commit, detached; optionally with a snapshot that holds it, and a later
    /// commit that hides it.
    async fn new(has_snapshot: bool) -> Self {
        let store = MemoryStore::new();
        let mut stored = Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
        stored.commit(3, &[(0, 0b1)]).await;
        stored.record(4, Body::Detach { root: None }).await;
        let before = Arc::new(bytes_of(&store, &stored).await);
        if has_snapshot {
            let taken = snapshot_detached(&store, &id("a"), BEFORE, NONCE, 7).await.unwrap();
            assert_eq!(taken.seq, BEFORE_AT);
            stored.attach(6, SECTORS).await;
            stored.commit(7, &[(0, 0b1)]).await;
            stored.merge(8, 0, 2).await;
            stored.record(9, Body::Detach { root: None }).await;
        }
        Self { store, acknowledged: Arc::default(), before, has_snapshot }
    }

    async fn act(&self, act: Act, by: Cluster, other: Act) -> Got {
        match act {
            Act::Delete => self.delete(by).await,
            Act::Adopt => self.adopt(by).await,
            Act::Sweep => {
                // A restoring cluster uses the snapshot that must be forgotten.
                if other == Act::Restore {
                    self.forget_before().await;
                }
                self.empty_and_sweep(by).await;
                Got::Done
            }
            Act::Snapshot => self.snapshot(by).await,
            Act::Restore => self.restore(by, other).await,
        }
    }

    async fn forget_before(&self) {
        match forget(&self.store, &id("a"), BEFORE_AT).await {
            Ok(()) | Err(SnapshotError::Deleted(_) | SnapshotError::NotFound(_)) => {}
            Err(other) => panic!("{other}"),
        }
    }

    /// Deletes a Volume and its cluster's VolumeSnapshot of it; its retention in the trash ends.
    async fn delete(&self, by: Cluster) -> Got {
        let nonce = Nonce([by.0; 16]);
        let (volume, own) = (id("a"), terms(by));
        let discard = || trash::discard(&self.store, &volume, nonce, &own, None);
        let mut begun = discard().await;
        if self.has_snapshot && matches!(begun, Err(LogFailure::HasSnapshots { .. })) {
            self.forget_before().await;
            begun = discard().await;
        }
        match begun {
            Ok(true) => {}
            Ok(false) => return Got::Gone,
            Err(failure) => return refused(&failure),
        }
        let stays = read_trash(&self.store).await.unwrap().stays;
        let Some(there) = stays.into_iter().find(|there| there.stay.nonce == nonce) else { return Got::Kept };
        let mut ended = empty(&self.store, &aged(there.clone()), &own).await;
        // The other cluster has ended the stay between two requests: the next sweep retries.
        if matches!(ended, Err(LogFailure::Store { .. })) {
            ended = empty(&self.store, &aged(there), &own).await;
        }
        match ended {
            Ok(Emptied::Removed) => Got::Done,
            Ok(Emptied::TakenBack | Emptied::Used) => Got::Kept,
            Ok(Emptied::NotDue) => panic!("its time is over"),
            Err(failure) => refused(&failure),
        }
    }

    /// Creates a Volume with source `existing`; a node attaches it and commits.
    async fn adopt(&self, by: Cluster) -> Got {
        let found = match read_manifest_to_end(&self.store, &id("a")).await {
            Ok(found) => found,
            Err(failure) => return refused(&failure),
        };
        if found.is_deleted() || !found.exists() {
            return Got::Gone;
        }
        let mut taken = take_back(&self.store, &id("a")).await;
        if matches!(taken, Err(LogFailure::Store { .. })) {
            taken = take_back(&self.store, &id("a")).await;
        }
        match taken {
            Ok(_was_there) => self.attach_and_commit("a", by, 1).await,
            Err(failure) => refused(&failure),
        }
    }

    async fn attach_and_commit(&self, volume: &str, by: Cluster, block: u64) -> Got {
        for _ in 0..4 {
            let log = match read_manifest_to_end(&self.store, &id(volume)).await {
                Ok(log) => log,
                Err(failure) => return refused(&failure),
            };
            if log.is_unconfirmed() {
                let confirmed = holdfast_log::confirm_fork(&self.store, &id(volume)).await;
                match confirmed {
                    Ok(_) => continue,
                    Err(failure) => return refused(&failure),
                }
            }
            if log.is_deleted() || !log.exists() {
                return Got::Gone;
            }
            if log.attached().is_some() {
                return Got::Attached;
            }
            let epoch = log.epoch().0 + 1;
            let record = Record {
                volume: id(volume),
                seq: log.seq().next(),
                epoch: Epoch(epoch),
                nonce: Nonce([by.0 + 100; 16]),
                unix_ms: 0,
                body: Body::Attach { sectors: log.sectors(), node: by.to_string(), displaced: None },
            };
            let outcome = create_record(&self.store, &record).await.unwrap();
            // A node serves once it has read its record back, in a log that was not truncated in the
            // meantime.
            let is_in_place = outcome == CreateOutcome::Created
                && !was_truncated_after(&self.store, &id(volume), log.checkpointed()).await.unwrap()
                && read_record(&self.store, &id(volume), record.seq).await.is_ok_and(|there| there == record);
            if !is_in_place {
                continue;
            }
            let mut stored =
                Stored { store: self.store.clone(), volume: id(volume), segments: Vec::new(), epoch };
            stored.commit(record.seq.0 + 1, &[(block, 0b1)]).await;
            let mut objects = bytes_of(&self.store, &stored).await;
            if !self.has_snapshot {
                objects.extend(self.before.to_vec());
            }
            self.acknowledge(Acknowledged {
                what: format!("commit of the {by} cluster to {volume}"),
                volume: Some(id(volume)),
                snapshot: None,
                objects,
            });
            return Got::Done;
        }
        Got::Contended
    }

    /// Creates a VolumeSnapshot of a volume that this cluster has not attached.
    async fn snapshot(&self, by: Cluster) -> Got {
        let uid = SnapshotUid([by.0; 16]);
        match snapshot_detached(&self.store, &id("a"), uid, Nonce([by.0; 16]), 7).await {
            Ok(taken) => {
                self.acknowledge(Acknowledged {
                    what: format!("snapshot of the {by} cluster"),
                    volume: None,
                    snapshot: Some((SnapshotName { volume: id("a"), seq: taken.seq }, uid)),
                    objects: if self.has_snapshot { Vec::new() } else { self.before.to_vec() },
                });
                Got::Done
            }
            Err(SnapshotError::Attached { .. }) => Got::Attached,
            Err(SnapshotError::Deleted(_) | SnapshotError::NotFound(_)) => Got::Gone,
            Err(SnapshotError::Log(failure)) => refused(&failure),
            Err(other) => panic!("{other}"),
        }
    }

    /// Creates a Volume from the snapshot; a node attaches it and commits. Two restores use one id.
    async fn restore(&self, by: Cluster, _other: Act) -> Got {
        let mut labels = Labels::default();
        assert!(labels.insert(Labels::CLUSTER, &by.to_string()) && labels.insert(Labels::VOLUME, "f"));
        let creation = Creation {
            labels,
            source: Some(SnapshotName { volume: id("a"), seq: BEFORE_AT }),
            source_uid: Some(BEFORE),
            ..Creation::plain(0, Nonce([by.0; 16]), 0)
        };
        match provision(&self.store, &id("f"), creation).await {
            Ok(_sectors) => {}
            Err(LogFailure::NoSuchSource { .. }) => return Got::Forgotten,
            // The attempt itself removed it, because the snapshot was already forgotten.
            Err(LogFailure::WasDeleted(_)) => return Got::Forgotten,
            Err(failure) => return refused(&failure),
        }
        self.acknowledge(Acknowledged {
            what: format!("restore of the {by} cluster"),
            volume: Some(id("f")),
            snapshot: None,
            objects: self.before.to_vec(),
        });
        self.attach_and_commit("f", by, 2).await
    }

    async fn empty_and_sweep(&self, by: Cluster) {
        for there in read_trash(&self.store).await.unwrap().stays {
            // The reason to keep one is in the result.
            let (Ok(_) | Err(_)) = empty(&self.store, &aged(there), &terms(by)).await;
        }
        let options = SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };
        let report = sweep(&self.store, &mut SweepMemory::default(), options).await.unwrap();
        assert!(report.skipped.is_empty(), "{:?}", report.skipped);
    }

    fn acknowledge(&self, one: Acknowledged) {
        self.acknowledged.lock().unwrap().push(one);
    }

    /// Returns everything missing from the acknowledged results, and from the volume if `is_kept`.
    async fn lost(&self, is_kept: bool) -> Vec<String> {
        let mut lost = Vec::new();
        let all = std::mem::take(&mut *self.acknowledged.lock().unwrap());
        let kept = (is_kept && !self.has_snapshot).then(|| Acknowledged {
            what: "the volume".to_owned(),
            volume: Some(id("a")),
            snapshot: None,
            objects: self.before.to_vec(),
        });
        for Acknowledged { what, volume, snapshot, objects } in all.into_iter().chain(kept) {
            if let Some(volume) = volume {
                let log = read_manifest_to_end(&self.store, &volume).await;
                if !log.is_ok_and(|log| log.exists() && !log.is_deleted()) {
                    lost.push(format!("{what}: volume {volume} is gone"));
                }
            }
            if let Some((name, uid)) = snapshot
                && !matches!(read_snapshot_of(&self.store, &name, uid).await, Ok(Some(_)))
            {
                lost.push(format!("{what}: snapshot {name} is gone"));
            }
            for (key, body) in objects {
                if !self.store.get(&key, 1 << 24).await.is_ok_and(|there| there == body) {
                    lost.push(format!("{what}: {key} is gone"));
                }
            }
        }
        lost
    }
}

fn terms(by: Cluster) -> TrashTerms {
    TrashTerms { keep: KEEP, owner: by.to_string() }
}

/// Returns the stay at the end of its retention.
fn aged(there: Trashed) -> Trashed {
    Trashed { age: KEEP, ..there }
}

fn refused(failure: &LogFailure) -> Got {
    use LogFailure::{
        Contended, CreatedElsewhere, ExistsOtherwise, ForeignRoot, HasSnapshots, NoSuchSource, StillAttached,
        UsedSince, WasDeleted, WrittenSince,
    };
    if matches!(failure, StillAttached { .. }) {
        Got::Attached
    } else if matches!(failure, HasSnapshots { .. }) {
        Got::Snapshots
    } else if matches!(failure, WrittenSince { .. } | UsedSince(_)) {
        Got::Kept
    } else if matches!(
        failure,
        WasDeleted(_) | ExistsOtherwise { .. } | CreatedElsewhere { .. } | NoSuchSource { .. }
    ) {
        Got::Gone
    } else if matches!(failure, Contended(_) | ForeignRoot(_)) {
        Got::Contended
    } else {
        panic!("{failure:?}")
    }
}

/// Holds a request of a kind: the one after the first `passed`.
fn hold(store: &MemoryStore, verb: Verb, passed: usize) -> Gate {
    for _ in 0..passed {
        let open = Gate::new();
        open.release();
        store.fail_next(verb, Fault::Hold(open));
    }
    let gate = Gate::new();
    store.fail_next(verb, Fault::Hold(gate.clone()));
    gate
}

/// Returns true if docs/recovery.md allows these results for a pair: the first one's and the second one's.
fn may_get(first: Act, second: Act, got: (Got, Got)) -> bool {
    use Act::{Adopt, Delete, Restore, Snapshot, Sweep};
    use Got::{Attached, Done, Forgotten, Gone, Kept, Snapshots};
    let one = |act: Act, other: Act| -> &[Got] {
        match (act, other) {
            (Delete, Adopt) => &[Done, Attached, Kept],
            (Delete, Snapshot) => &[Done, Snapshots],
            // The other one has removed it.
            (Delete, Delete | Sweep) => &[Done, Gone, Kept],
            (Delete, Restore) => &[Done],
            (Adopt, Delete) => &[Done, Gone],
            (Adopt, Adopt) => &[Done, Attached],
            (Snapshot, Delete) => &[Done, Gone],
            (Snapshot, Adopt) => &[Done, Attached],
            (Restore, Delete | Sweep) => &[Done, Forgotten],
            (Restore, Restore) => &[Done, Gone],
            (Adopt | Sweep | Snapshot, _) | (Restore, Adopt | Snapshot) => &[Done],
        }
    };
    let (a, b) = got;
    let is_known = one(first, second).contains(&a) && one(second, first).contains(&b);
    // Of two mutually exclusive actions, exactly one succeeds.
    let is_decided = match (first, second) {
        (Delete, Adopt) | (Adopt, Delete) | (Delete, Snapshot) | (Snapshot, Delete) => {
            (a == Done) != (b == Done)
        }
        (Adopt, Adopt) | (Restore, Restore) => (a == Done) != (b == Done),
        (Delete, Delete) => a == Done || b == Done,
        _ => a == Done || b == Done,
    };
    is_known && is_decided
}

/// Runs a pair, with the first cluster stopped at each of its requests, and at none.
async fn faults_of(first: Act, second: Act, seen: &mut BTreeSet<(Got, Got)>) -> Vec<String> {
    let mut faults = Vec::new();
    let stops = Verb::ALL.into_iter().flat_map(|verb| (0..MOST).map(move |passed| (verb, passed)));
    let mut ended: BTreeSet<String> = BTreeSet::new();
    for stop in std::iter::once(None).chain(stops.map(Some)) {
        if let Some((verb, _)) = stop
            && ended.contains(&format!("{verb:?}"))
        {
            continue;
        }
        let world = World::new([first, second].contains(&Act::Restore)).await;
        let gate = stop.map(|(verb, passed)| hold(&world.store, verb, passed));
        let beginning = world.clone();
        let mut begun = tokio::spawn(async move { beginning.act(first, Cluster(1), second).await });
        let got = match (gate, stop) {
            (Some(gate), Some((verb, _))) => tokio::select! {
                // It makes fewer requests of this kind.
                _got = &mut begun => { ended.insert(format!("{verb:?}")); continue }
                () = gate.arrival() => {
                    let second = world.act(second, Cluster(2), first).await;
                    gate.release();
                    (begun.await.unwrap(), second)
                }
            },
            _ => (begun.await.unwrap(), world.act(second, Cluster(2), first).await),
        };
        // A rejected deletion has changed nothing; otherwise the other one may have completed it.
        let is_refused = |(act, got)| act != Act::Delete || [Got::Attached, Got::Snapshots].contains(&got);
        let is_kept = is_refused((first, got.0)) && is_refused((second, got.1));
        for _ in 0..2 {
            for by in [Cluster(1), Cluster(2)] {
                world.empty_and_sweep(by).await;
            }
        }
        let case =
            stop.map_or("one after the other".to_owned(), |(verb, passed)| format!("at {verb:?} {passed}"));
        faults.extend(world.lost(is_kept).await.into_iter().map(|lost| format!("{case}, {got:?}: {lost}")));
        if !may_get(first, second, got) {
            faults.push(format!("{case}: {got:?} is not an outcome that the documentation names"));
        }
        seen.insert(got);
    }
    faults
}

/// Prints its figures, which `cargo e2e bench field` reads.
#[tokio::test]
async fn two_clusters_on_one_bucket_lose_nothing() {
    let (mut total, mut lost) = (0, 0);
    for (first, second) in Act::ALL.into_iter().flat_map(|first| Act::ALL.map(|second| (first, second))) {
        let mut seen = BTreeSet::new();
        let faults = faults_of(first, second, &mut seen).await;
        println!("{first:?} while {second:?}: {seen:?}");
        for fault in &faults {
            println!("    {fault}");
        }
        total += 1;
        lost += usize::from(!faults.is_empty());
    }
    println!("{{\"cluster_pairs_total\":{total},\"cluster_pairs_lost\":{lost}}}");
    assert_eq!((total, lost), (25, 0), "pairs, and those with a fault");
}
