//! Local files of volumes that this node does not serve: another node may own the volume by now.
//!
//! Un-uploaded data of these volumes is preserved, as when a fenced writer detects the loss. Uploaded data is
//! obsolete and is removed. Only the log decides, not a report. The files of a clean detach are cache only:
//! those of a deleted volume are removed after a day, without reading its log.

use std::time::{Duration, SystemTime};

use holdfast_background::LocalState;
use holdfast_engine::attach::{ForeignReason, LocalData, assess_local};
use holdfast_log::read_manifest_to_end;
use holdfast_s3::S3Config;
use holdfast_service::chain;
use holdfast_types::VolumeId;

use crate::node::NodeError;
use crate::node::local::detached_cache::written_at;
use crate::node::local::volume_files::{LocalDirs, state_volumes, volumes_under};
use crate::node::run_blocking::blocking;
use crate::node::store::change::NodeStores;
use crate::node::volume::table::NodeVolumes;

/// Time that the cache of a deleted volume is kept after its detach. A lost control plane knows no volumes
/// until they are restored, and a bucket restored to an earlier state may lack the last uploads: neither must
/// cost the only copy.
const KEPT_FOR: Duration = Duration::from_hours(24);

/// The local files of volumes that are not attached on this node.
pub(crate) struct OutdatedFiles<'a> {
    pub(in crate::node) volumes: &'a NodeVolumes,
    pub(in crate::node) stores: &'a NodeStores,
    pub(in crate::node) dirs: &'a LocalDirs,
}

impl OutdatedFiles<'_> {
    /// Returns true if the node has files of a volume that it does not serve. A volume whose recovery failed
    /// after a restart does not count: its live map may be newer than its durable one.
    pub(crate) fn has_unserved_files(&self, volume: &VolumeId) -> bool {
        let local = self.dirs.of(volume);
        let attached = self.volumes.contains(volume) || local.live_map_path().exists();
        !attached && local.map_path().exists()
    }

    /// Returns the volumes for which [`has_unserved_files`](Self::has_unserved_files) is true; none without a
    /// readable state directory.
    pub(crate) fn unserved_volumes(&self) -> Vec<VolumeId> {
        let dir = state_volumes(&self.dirs.state);
        let volumes = volumes_under(&dir).unwrap_or_else(|error| {
            tracing::warn!(error = chain(&error), "the search for volumes with local files failed");
            Vec::new()
        });
        volumes.into_iter().filter(|volume| self.has_unserved_files(volume)).collect()
    }

    /// Clears the local files of a volume that another writer owns; un-uploaded data is preserved. An attach
    /// of the volume waits only for this.
    ///
    /// # Errors
    /// [`NodeError::Busy`] while the volume is served or attached; an error of reading the log or the local
    /// files.
    pub(crate) async fn clear(
        &self,
        volume: &VolumeId,
        name: &str,
        store: &S3Config,
    ) -> Result<(), NodeError> {
        let busy = || NodeError::Busy { volume: volume.clone(), doing: "served" };
        if !self.has_unserved_files(volume) {
            return Err(busy());
        }
        let objects = self.stores.connected(name, store).await?;
        let manifest = read_manifest_to_end(&*objects, volume).await?;
        let _no_attach = self.volumes.keep_from_attaches(volume).ok_or_else(busy)?;
        let local = self.dirs.of(volume);
        // Read last: the result of a concurrent attach is newer than this log, and stays.
        // Nothing was written before the first header.
        let Some(found) = LocalState::read_map(&local).await? else {
            return LocalState::discard(&local).await;
        };
        match assess_local(&manifest, Some(&found)) {
            // If the log was rolled back, this may be the only copy of data that the log lacks: an attach
            // decides.
            LocalData::Absent | LocalData::Ours { .. } | LocalData::Foreign(ForeignReason::LogRolledBack) => {
                tracing::warn!(%volume, "the files of a volume that another node has stay: its log does not show that they are outdated");
                Ok(())
            }
            LocalData::Foreign(_) if found.pages.holds_dirty() => {
                LocalState::preserve(&local, found.header.epoch).await
            }
            LocalData::Foreign(_) => LocalState::discard(&local).await,
        }
    }

    /// Removes the files of a deleted volume, if a clean detach left them at least [`KEPT_FOR`] ago. Returns
    /// false if they stay, because they are younger, the volume is served or attached, or some of their data
    /// is not uploaded.
    ///
    /// # Errors
    /// The local files cannot be read or removed.
    pub(crate) async fn discard(&self, volume: &VolumeId) -> Result<bool, NodeError> {
        if !self.has_unserved_files(volume) {
            return Ok(false);
        }
        let Some(_no_attach) = self.volumes.keep_from_attaches(volume) else { return Ok(false) };
        let local = self.dirs.of(volume);
        blocking(move || {
            let age = written_at(&local.map_path())?.and_then(|at| SystemTime::now().duration_since(at).ok());
            let goes = age.is_some_and(|age| age >= KEPT_FOR)
                && local.read_header()?.is_some_and(|(_generation, header)| header.closed_clean);
            if goes {
                local.discard()?;
            }
            Ok(goes)
        })
        .await
    }
}
