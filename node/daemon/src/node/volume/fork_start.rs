//! The first reads of a new fork.
//!
//! The blocks named in its snapshot's prefetch list are fetched at its first read of the store. A snapshot
//! without a list gets one: the blocks that this fork reads within [`RECORDING`].
//! On failure: the reads fetch their blocks themselves, and another fork stores the list.

use std::error::Error;
use std::time::Duration;

use holdfast_background::FirstReads;
use holdfast_format::index::Runs;
use holdfast_format::prefetch_list::PrefetchList;
use holdfast_log::{LogFailure, read_prefetch_list, read_source, store_prefetch_list};
use holdfast_objects::ObjectStore;
use holdfast_types::{SectorRange, SnapshotName, VolumeId};
use parking_lot::Mutex;

use crate::node::store::cold_reads::{ColdReads, VolumeAhead};

/// Duration of a recording, from its first read: the mount, the fetch of a container's image, and the start
/// of the service.
pub(crate) const RECORDING: Duration = Duration::from_secs(120);
/// Maximum duration of the prefetch of a list.
const FETCH_WITHIN: Duration = Duration::from_secs(60);

/// The recorded reads of a fork.
#[derive(Default)]
pub(crate) struct ForkStart {
    reads: Mutex<FirstReads>,
    source: Mutex<ForkSource>,
}

/// The snapshot of a fork, as far as known.
#[derive(Default)]
enum ForkSource {
    #[default]
    Unknown,
    /// Being read.
    Requested,
    /// It has no list.
    Unlisted(SnapshotName),
}

/// Work that a first read makes due.
pub(crate) struct FirstReadWork {
    /// The list is to be fetched for the volume with these runs; `None` if that was done.
    pub(crate) prefetch: Option<Runs>,
}

/// State of the snapshot from which a volume was forked.
enum SourceList {
    NoFork,
    Unlisted(SnapshotName),
    List(PrefetchList),
}

impl ForkStart {
    /// Records a read of the store by the volume with these runs. Returns work if it begins a recording,
    /// which is to be ended after [`RECORDING`].
    pub(crate) fn read(&self, range: SectorRange, runs: &Runs) -> Option<FirstReadWork> {
        if !self.reads.lock().read(range) {
            return None;
        }
        let mut source = self.source.lock();
        let is_new = matches!(*source, ForkSource::Unknown);
        if is_new {
            *source = ForkSource::Requested;
        }
        Some(FirstReadWork { prefetch: is_new.then(|| runs.clone()) })
    }

    /// Fetches the blocks of the list, if there is one.
    pub(crate) async fn prefetch(
        &self,
        runs: &Runs,
        cold: &ColdReads,
        (volume, objects, ahead): (&VolumeId, &dyn ObjectStore, &VolumeAhead),
    ) {
        match list_of(objects, volume).await {
            Ok(SourceList::Unlisted(snapshot)) => *self.source.lock() = ForkSource::Unlisted(snapshot),
            Ok(SourceList::List(list)) => {
                // It is not recorded again.
                self.reads.lock().end();
                tracing::info!(snapshot = %list.snapshot, "prefetching the blocks that an earlier fork read first");
                let fetch = cold.fetch_list(objects, ahead, &list, runs);
                if tokio::time::timeout(FETCH_WITHIN, fetch).await.is_err() {
                    tracing::debug!("the rest of a prefetch list was not fetched in time");
                }
            }
            Ok(SourceList::NoFork) => self.reads.lock().end(),
            Err(error) => {
                self.reads.lock().end();
                tracing::debug!(error = &error as &dyn Error, "the prefetch list was not read");
            }
        }
    }

    /// Ends the recording and stores its list. With few blocks, the next read begins another recording.
    pub(crate) async fn store_list(&self, cold: &ColdReads, objects: &dyn ObjectStore) {
        let snapshot = match &*self.source.lock() {
            ForkSource::Unlisted(snapshot) => snapshot.clone(),
            ForkSource::Unknown | ForkSource::Requested => return,
        };
        let Some(blocks) = self.reads.lock().blocks() else { return };
        let list = PrefetchList::new(snapshot, blocks);
        match store_prefetch_list(objects, &list).await {
            Ok(is_first) => {
                if is_first {
                    cold.count_stored_list();
                    let (snapshot, blocks) = (&list.snapshot, list.blocks().count());
                    tracing::info!(%snapshot, blocks, "stored the blocks to prefetch for later forks");
                }
            }
            Err(error) => tracing::debug!(error = &error as &dyn Error, "the prefetch list was not stored"),
        }
        self.reads.lock().end();
    }
}

async fn list_of(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<SourceList, LogFailure> {
    let Some(snapshot) = read_source(objects, volume).await? else { return Ok(SourceList::NoFork) };
    let list = read_prefetch_list(objects, &snapshot).await?;
    Ok(list.map_or(SourceList::Unlisted(snapshot), SourceList::List))
}
