//! The first reads of a fork on a node without local data of it.
//!
//! The blocks named in its snapshot's prefetch list are fetched at the first read of the store. A snapshot
//! without a list gets one: the blocks that this fork reads within a minute.
//! On failure: the reads fetch their blocks themselves, and another fork stores the list.

use std::error::Error;
use std::time::Duration;

use holdfast_background::{FirstRead, FirstReads};
use holdfast_format::index::Runs;
use holdfast_format::prefetch_list::PrefetchList;
use holdfast_log::{LogFailure, read_prefetch_list, read_source, store_prefetch_list};
use holdfast_objects::ObjectStore;
use holdfast_types::{Millis, SectorRange, SnapshotName, VolumeId};
use parking_lot::Mutex;

use crate::node::clock::now;
use crate::node::store::cold_reads::{ColdReads, VolumeAhead};

/// Time for the prefetch of a list, and for storing one after the volume has gone.
const FETCH_WITHIN: Duration = Duration::from_secs(60);
const STORE_WITHIN: Duration = Duration::from_secs(10);

/// The recorded reads of a fork.
#[derive(Default)]
pub(crate) struct ForkStart {
    reads: Mutex<FirstReads>,
    /// The snapshot, once it is known to have no list.
    unlisted: Mutex<Option<SnapshotName>>,
}

impl ForkStart {
    /// Records a read of the store. Returns work that it makes due.
    pub(crate) fn read(&self, range: SectorRange, runs: &Runs) -> Option<ForkTask> {
        self.read_at(range, runs, now())
    }

    /// Does the same with a read at `now`.
    pub(crate) fn read_at(&self, range: SectorRange, runs: &Runs, now: Millis) -> Option<ForkTask> {
        match self.reads.lock().read(range, now) {
            FirstRead::Begun => Some(ForkTask::Prefetch(runs.clone())),
            FirstRead::Ended => self.unlisted.lock().take().map(ForkTask::StoreList),
            FirstRead::Ongoing => None,
        }
    }

    /// Performs the task of the fork `volume`.
    pub(crate) async fn perform(
        &self,
        task: ForkTask,
        cold: &ColdReads,
        (volume, objects, ahead): (&VolumeId, &dyn ObjectStore, &VolumeAhead),
    ) {
        match task {
            ForkTask::StoreList(snapshot) => self.store(cold, objects, snapshot).await,
            ForkTask::Prefetch(runs) => match list_of(objects, volume).await {
                Ok(SourceList::Unlisted(snapshot)) => *self.unlisted.lock() = Some(snapshot),
                Ok(SourceList::List(list)) => {
                    // It is not recorded again.
                    let (Some(_) | None) = self.reads.lock().take();
                    tracing::info!(snapshot = %list.snapshot, "prefetching the blocks that an earlier fork read first");
                    let fetch = cold.fetch_list(objects, ahead, list, &runs);
                    let (Ok(()) | Err(_)) = tokio::time::timeout(FETCH_WITHIN, fetch).await;
                }
                Ok(SourceList::NoFork) => {}
                Err(error) => {
                    tracing::debug!(error = &error as &dyn Error, "the prefetch list was not read");
                }
            },
        }
    }

    /// Stores the list of a fork whose volume has gone before the recording ended.
    pub(crate) async fn end(&self, cold: &ColdReads, objects: &dyn ObjectStore) {
        let Some(snapshot) = self.unlisted.lock().take() else { return };
        let (Ok(()) | Err(_)) = tokio::time::timeout(STORE_WITHIN, self.store(cold, objects, snapshot)).await;
    }

    async fn store(&self, cold: &ColdReads, objects: &dyn ObjectStore, snapshot: SnapshotName) {
        let Some(blocks) = self.reads.lock().take() else { return };
        let (name, count) = (snapshot.clone(), blocks.len());
        match store_prefetch_list(objects, &PrefetchList::new(snapshot, blocks)).await {
            Ok(true) => {
                cold.count_stored_list();
                tracing::info!(snapshot = %name, blocks = count, "stored the blocks to prefetch for later forks");
            }
            Ok(false) => {}
            Err(error) => tracing::debug!(error = &error as &dyn Error, "the prefetch list was not stored"),
        }
    }
}

/// Work for the first reads of a fork.
pub(crate) enum ForkTask {
    /// Reads the list and fetches its blocks, of the volume with these runs.
    Prefetch(Runs),
    /// Stores the recorded reads as the list of this snapshot.
    StoreList(SnapshotName),
}

/// The prefetch list of the snapshot from which a volume was forked.
enum SourceList {
    NoFork,
    Unlisted(SnapshotName),
    List(PrefetchList),
}

async fn list_of(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<SourceList, LogFailure> {
    let Some(snapshot) = read_source(objects, volume).await? else { return Ok(SourceList::NoFork) };
    let list = read_prefetch_list(objects, &snapshot).await?;
    Ok(list.map_or(SourceList::Unlisted(snapshot), SourceList::List))
}
