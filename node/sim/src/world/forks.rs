//! Forks: creation during the volume's removal; the volume's continuation as a fork of one of its snapshots.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_log::sweep::{SweepMemory, sweep};
use holdfast_log::{
    Creation, LogFailure, forget, provision, read_manifest_to_end, remove, snapshot_detached, snapshots,
};
use holdfast_objects::ObjectStore;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Nonce, SnapshotName, VolumeId};

use super::World;
use super::snapshots::{AT_ONCE, CUT_OFF, SimulatedControlPlane};
use crate::calls::Calls;
use crate::expect::{CapturedContent, VolumeModel};
use crate::host::Host;
use crate::invariant::Invariant;
use crate::rng::Rng;
use crate::surroundings::SimObjects;
use crate::tasks::PolledTasks;
use crate::writers::WriterHistory;

/// An ancestor of a fork.
#[derive(Clone)]
pub(super) struct Ancestor {
    volume: VolumeId,
    /// Its objects at the time of the fork, without garbage, each with its bytes.
    objects: Vec<(String, Vec<u8>)>,
}

/// The name of an ancestor in messages.
const ANCESTOR: &str = "an ancestor of a fork";

impl World {
    /// Restores a snapshot while it is deleted, its volume is removed and the store is swept, in a copy of
    /// the bucket. Either the fork has the snapshot's content, or it does not exist; this also holds if
    /// its creator dies and another one retries later.
    pub(crate) fn check_fork_during_removal(&mut self, rng: &mut Rng) {
        let (source, cut) = self.snapshot_to_fork(rng);
        let whole = self.store.clone();
        let (volume, fork) = (self.store.volume().clone(), self.fork_id());
        let creation = Creation { source: Some(source), ..Creation::plain(0, Nonce(rng.bytes()), 0) };
        let calls = [Calls::default(), Calls::default(), Calls::default()];
        let (mut forks, mut removals, mut sweeps) =
            (PolledTasks::default(), PolledTasks::default(), PolledTasks::default());
        let (objects, named) = (SimObjects(calls[0].clone()), fork.clone());
        let first = creation.clone();
        forks.start(async move { provision(&objects, &named, first).await });
        let objects = SimObjects(calls[1].clone());
        removals.start(async move { remove_and_sweep(&objects, &volume).await });
        let objects = SimObjects(calls[2].clone());
        sweeps.start(async move { sweep(&objects, &mut SweepMemory::default(), AT_ONCE).await });
        let (mut created, mut removed, mut swept) = (None, None, None);
        // One of them works for a while, then another one.
        let (turns, mut process) = (*rng.pick(&[1, 4, 12]), 2);
        let mut lives_for = if rng.once_in(3) { rng.below(10) } else { usize::MAX };
        while (created.is_none() && lives_for > 0) || removed.is_none() || swept.is_none() {
            created = created.or_else(|| forks.next_ended());
            removed = removed.or_else(|| removals.next_ended());
            swept = swept.or_else(|| sweeps.next_ended());
            if rng.once_in(turns) {
                process = rng.below(calls.len());
            }
            if process == 0 && lives_for == 0 {
                continue;
            }
            if let Some(call) = calls[process].pop() {
                self.answer_reliably(call);
                lives_for -= usize::from(process == 0);
            }
        }
        drop(forks);
        let created = created.unwrap_or_else(|| {
            let (named, creation) = (fork.clone(), Creation { nonce: Nonce(rng.bytes()), ..creation });
            self.run_reliably(|objects| async move { provision(&objects, &named, creation).await })
        });
        let swept = swept.expect("it ended");
        Invariant::ForkIsItsSnapshot.check(swept.is_ok(), || format!("the sweep beside a fork: {swept:?}"));
        self.check_made(&fork, &cut, &created);
        let removed = removed.expect("it ended");
        Invariant::ForkIsItsSnapshot
            .check(removed.is_ok(), || format!("the removal beside a fork: {removed:?}"));
        self.store = whole;
    }

    /// Checks that a fork reported as created has its snapshot's content, and that any other does not exist.
    fn check_made(&mut self, fork: &VolumeId, cut: &Rc<CapturedContent>, created: &Result<u64, LogFailure>) {
        let named = fork.clone();
        let manifest =
            self.run_reliably(|objects| async move { read_manifest_to_end(&objects, &named).await });
        let exists = manifest.is_ok_and(|manifest| manifest.exists());
        match created {
            Ok(_) if exists => {
                self.store.continue_as(fork);
                self.check_whole_as(Invariant::ForkIsItsSnapshot);
                self.store.check_content(cut);
            }
            Err(LogFailure::NoSuchSource { .. }) if !exists => {}
            // Its creator died, and the sweep ended it.
            Err(LogFailure::WasDeleted(_)) if !exists => {}
            Ok(_) | Err(_) => Invariant::ForkIsItsSnapshot
                .broken(&format!("a fork is said to be {created:?}, and exists: {exists}")),
        }
    }

    /// Continues the volume as a fork of one of its snapshots, on hosts that never had it.
    pub(crate) fn continue_as_fork(&mut self, rng: &mut Rng) {
        let (source, cut) = self.snapshot_to_fork(rng);
        let fork = self.fork_id();
        let creation = Creation { source: Some(source), ..Creation::plain(0, Nonce(rng.bytes()), 0) };
        let named = fork.clone();
        let created = self.run_reliably(|objects| async move { provision(&objects, &named, creation).await });
        let sectors = created.unwrap_or_else(|error| {
            Invariant::ForkIsItsSnapshot.broken(&format!("no fork of a snapshot: {error:?}"))
        });
        let volume = self.store.volume().clone();
        let mut objects = self.store.objects_of(&volume);
        objects.retain(|(key, _)| self.store.is_needed(key));
        self.ancestors.push(Ancestor { volume, objects });
        self.trace.host_event(0, 86, "the volume lives on as a fork");
        self.store.continue_as(&fork);
        self.store.check_content(&cut);
        self.terms.sectors = sectors;
        self.writers = WriterHistory::default();
        self.backup = None;
        self.control = SimulatedControlPlane::default();
        self.hosts = (0..self.hosts.len()).map(Host::new).collect();
        for host in &mut self.hosts {
            host.content.change_log(&cut);
            host.content.model = VolumeModel::from_cut(&cut);
        }
    }

    /// Checks that the ancestors' objects are unchanged, by the fork and by sweeps.
    pub(crate) fn check_ancestors(&self) {
        for Ancestor { volume, objects } in &self.ancestors {
            let objects_now: BTreeMap<String, Vec<u8>> = self.store.objects_of(volume).into_iter().collect();
            let lost = objects.iter().find(|(key, bytes)| objects_now.get(key) != Some(bytes));
            Invariant::ForkIsItsSnapshot
                .check(lost.is_none(), || format!("{ANCESTOR} changed: {}", lost.map_or("", |(key, _)| key)));
        }
    }

    /// Checks that the objects read by the fork stay when its ancestors are removed and their snapshots
    /// forgotten.
    pub(super) fn check_ancestors_stay(&mut self) {
        if self.ancestors.is_empty() {
            return;
        }
        for Ancestor { volume, .. } in self.ancestors.clone() {
            let named = volume.clone();
            let removed =
                self.run_reliably(|objects| async move { forget_and_remove(&objects, &named).await });
            Invariant::ForkIsItsSnapshot
                .check(removed.is_ok(), || format!("{ANCESTOR} is not removed: {volume}, {removed:?}"));
        }
        self.check_sweep();
        self.check_whole_as(Invariant::ForkIsItsSnapshot);
    }

    /// Checks that the ancestors leave nothing behind once the fork is removed.
    pub(super) fn check_ancestors_removal(&mut self) {
        self.check_sweep();
        while let Some(Ancestor { volume, .. }) = self.ancestors.pop() {
            let left = self.store.objects_of(&volume);
            let is_data = |key: &str| {
                matches!(
                    ObjectKey::parse(key),
                    Some(ObjectKey::Segment(..) | ObjectKey::Run(..) | ObjectKey::Snapshot(..))
                )
            };
            let data: Vec<&str> =
                left.iter().map(|(key, _)| key.as_str()).filter(|key| is_data(key)).collect();
            Invariant::GarbageGoes.check(data.is_empty(), || format!("of {ANCESTOR} are left {data:?}"));
        }
    }

    /// Returns one of the snapshots that count, or a new one, with its content. No writer is attached.
    fn snapshot_to_fork(&mut self, rng: &mut Rng) -> (SnapshotName, Rc<CapturedContent>) {
        let live = self.store.live_snapshots();
        let volume = self.store.volume().clone();
        let seq = if live.is_empty() || rng.once_in(2) {
            let (uid, nonce, named) = (self.snapshot_uid(false), Nonce(rng.bytes()), volume.clone());
            let taken = self.run_reliably(|objects| async move {
                snapshot_detached(&objects, &named, uid, nonce, 0).await
            });
            taken.expect("this store answers, and no writer is attached").seq
        } else {
            *rng.pick(&live)
        };
        let cut = self.store.cut_of_snapshot(seq).expect("it is registered");
        (SnapshotName { volume, seq }, cut)
    }

    fn fork_id(&self) -> VolumeId {
        format!("fork-{}", self.ancestors.len()).parse().expect("a volume id")
    }
}

/// Forgets the snapshots, removes the volume and sweeps the bucket, like an operator that empties the trash.
async fn remove_and_sweep(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<(), LogFailure> {
    forget_and_remove(objects, volume).await?;
    sweep(objects, &mut SweepMemory::default(), AT_ONCE).await.map(drop)
}

async fn forget_and_remove(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<(), LogFailure> {
    // A removed volume has none.
    for snapshot in snapshots(objects, volume).await.unwrap_or_default() {
        forget(objects, volume, snapshot.seq).await.expect("this store answers");
    }
    remove(objects, volume, Nonce::default(), 0, CUT_OFF).await
}
