//! A volume of a family: it begins as a fork of a living volume in the same bucket, and is removed while
//! others live. Its control plane does both, with requests that fail and wait.

use std::rc::Rc;

use holdfast_format::prefetch_list::PrefetchList;
use holdfast_log::{
    Creation, LogFailure, SnapshotError, forget, provision, read_prefetch_list, read_source, remove,
    snapshots, store_prefetch_list,
};
use holdfast_objects::ObjectStore;
use holdfast_types::{Block, Millis, Nonce, SnapshotName, VolumeId};

use super::snapshots::{CUT_OFF, ControlResult, Settled, is_temporary};
use super::{Faults, World};
use crate::expect::{CapturedContent, VolumeModel};
use crate::invariant::Invariant;
use crate::store::Store;
use crate::surroundings::SimObjects;
use crate::terms::Terms;

impl World {
    /// Creates new hosts, with the same settings, for a volume that is to be a fork in the same bucket.
    pub(crate) fn create_fork(&self, volume: VolumeId, seed: u64, faults: Faults) -> Self {
        let Terms { limits, durability, share, timely, .. } = self.terms;
        let terms = Terms { durability, share, timely, ..Terms::new(0, limits) };
        let world = Self::with_store(Store::empty(volume), seed, self.hosts.len(), terms, faults);
        world.clock.set(self.clock.now());
        world
    }

    /// Returns true if other volumes are in the bucket.
    pub(super) fn shares_bucket(&self) -> bool {
        self.company.as_ref().is_some_and(|company| company.shares_bucket)
    }

    /// Takes the result of the last operation, once.
    pub(crate) fn take_settled(&mut self) -> Option<Settled> {
        self.control.settled.take()
    }

    /// Crashes the process that creates or removes the volume, and loses its requests.
    pub(crate) fn lose_control(&mut self) {
        self.stop_control();
        self.control.settled = Some(Settled::Unclear);
    }

    /// Begins to create the volume.
    pub(crate) fn begin_fork(&mut self, source: SnapshotName) {
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        let creation = self.creation(source);
        self.control
            .tasks
            .start(async move { ControlResult::Made(provision(&objects, &volume, creation).await) });
        self.trace.host_event(0, 106, "a fork begins to be made");
        self.run_control();
    }

    fn creation(&mut self, source: SnapshotName) -> Creation {
        let (nonce, now): (Nonce, Millis) = (Nonce(self.rng.bytes()), self.clock.now());
        Creation { source: Some(source), ..Creation::plain(0, nonce, now) }
    }

    /// Creates the volume as a fork, with reliable requests.
    pub(crate) fn create_fork_reliably(&mut self, source: SnapshotName) {
        let (volume, creation) = (self.store.volume().clone(), self.creation(source));
        let created =
            self.run_reliably(|objects| async move { provision(&objects, &volume, creation).await });
        self.handle_fork_result(created);
    }

    /// Checks that a fork reported as created exists, and that any other does not.
    pub(super) fn handle_fork_result(&mut self, created: Result<u64, LogFailure>) {
        let exists = self.store.exists();
        self.control.settled = Some(match &created {
            Ok(sectors) if exists => Settled::Made(*sectors),
            Err(LogFailure::NoSuchSource { .. } | LogFailure::WasDeleted(_)) if !exists => Settled::Void,
            Err(failure) if is_temporary(failure) => Settled::Unclear,
            Ok(_) | Err(_) => Invariant::ForkIsItsSnapshot
                .broken(&format!("a fork is said to be {created:?}, and exists: {exists}")),
        });
    }

    /// Begins the life of the fork, on hosts that never had it, with the content that its snapshot captured.
    pub(crate) fn begin_life(&mut self, sectors: u64, cut: &Rc<CapturedContent>) {
        self.store.check_content(cut);
        self.check_whole_as(Invariant::ForkIsItsSnapshot);
        self.terms.sectors = sectors;
        for host in &mut self.hosts {
            host.content.change_log(cut);
            host.content.model = VolumeModel::from_cut(cut);
        }
    }

    /// Begins to store a prefetch list for the fork's snapshot, as the fork's daemon does.
    pub(crate) fn begin_prefetch_list(&mut self) {
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        self.control.tasks.start(async move { ControlResult::Listed(list_reads(&objects, &volume).await) });
        self.trace.host_event(0, 109, "a prefetch list begins to be stored");
        self.run_control();
    }

    /// Begins to remove the volume, which no host has, after forgetting its snapshots.
    pub(crate) fn begin_removal(&mut self) {
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        let nonce = Nonce(self.rng.bytes());
        self.control
            .tasks
            .start(async move { ControlResult::Removed(forget_all(&objects, &volume, nonce).await) });
        self.trace.host_event(0, 107, "the volume begins to be removed");
        self.run_control();
    }

    /// Removes the volume, with reliable requests.
    pub(crate) fn remove_reliably(&mut self) {
        let (volume, nonce) = (self.store.volume().clone(), Nonce(self.rng.bytes()));
        let removed = self.run_reliably(|objects| async move { forget_all(&objects, &volume, nonce).await });
        Invariant::GarbageGoes.check(removed.is_ok(), || format!("no volume is removed: {removed:?}"));
        self.handle_removal_result(removed);
    }

    pub(super) fn handle_removal_result(&mut self, removed: Result<(), SnapshotError>) {
        let exists = self.store.exists();
        self.control.settled = Some(match &removed {
            Ok(_) if !exists => Settled::Removed,
            // A snapshot requested by the control plane was registered in the meantime.
            Err(SnapshotError::Log(LogFailure::HasSnapshots { .. })) => Settled::Unclear,
            Err(SnapshotError::Log(failure)) if is_temporary(failure) => Settled::Unclear,
            Ok(_) | Err(_) => Invariant::LogIsAChain
                .broken(&format!("a removal ends with {removed:?}, and the volume exists: {exists}")),
        });
    }

    /// Checks that every sector of a fork, or of a volume with forks, has the content captured by its last
    /// commit.
    pub(crate) fn check_last_commit(&mut self) {
        self.store.check_content(&self.store.last_cut());
        self.check_whole_as(Invariant::ForkIsItsSnapshot);
        self.check_snapshots();
    }
}

/// Stores a list for the snapshot of `fork` unless it has one. Returns true if this call stored it.
async fn list_reads(objects: &dyn ObjectStore, fork: &VolumeId) -> Result<bool, LogFailure> {
    let source = read_source(objects, fork).await?.expect("it is a fork");
    if read_prefetch_list(objects, &source).await?.is_some() {
        return Ok(false);
    }
    store_prefetch_list(objects, &PrefetchList::new(source, [Block(1), Block(0)])).await
}

/// Forgets the snapshots, then removes the volume.
async fn forget_all(objects: &dyn ObjectStore, volume: &VolumeId, nonce: Nonce) -> Result<(), SnapshotError> {
    let known = match snapshots(objects, volume).await {
        Ok(known) => known,
        // An earlier attempt removed it.
        Err(SnapshotError::Deleted(_)) => Vec::new(),
        Err(error) => return Err(error),
    };
    for snapshot in known {
        forget(objects, volume, snapshot.seq).await?;
    }
    Ok(remove(objects, volume, nonce, 0, CUT_OFF).await?)
}
