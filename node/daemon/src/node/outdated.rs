//! Local files of volumes that this node does not serve: another node may hold the volume since.
//!
//! What such a volume had not uploaded here is kept aside, as it is when a fenced writer notices; what it had uploaded is of
//! no use any more and is removed. The log decides, not what anybody reports.

use holdfast_background::LocalState;
use holdfast_engine::attach::{Foreign, LocalData, worth};
use holdfast_engine::durable_map::holds_dirty;
use holdfast_log::read_manifest_to_end;
use holdfast_s3::S3Config;
use holdfast_types::VolumeId;

use super::{Node, NodeError};

impl Node {
    /// Whether the node has files of a volume that it does not serve. One that could not be taken up after a restart is not
    /// among them: its live map may know more than its durable one.
    pub(crate) fn keeps(&self, volume: &VolumeId) -> bool {
        let local = self.local(volume);
        let attached = self.volumes().contains_key(volume) || local.live_map_path().exists();
        !attached && local.map_path().exists()
    }

    /// Clears away the local files of a volume that another writer holds.
    ///
    /// # Errors
    /// [`NodeError::Busy`] while the volume is served or attached; what of the log or the local files cannot be read.
    pub(crate) async fn clear_outdated(
        &self,
        volume: &VolumeId,
        name: &str,
        store: &S3Config,
    ) -> Result<(), NodeError> {
        if !self.keeps(volume) {
            return Err(NodeError::Busy { volume: volume.clone(), doing: "served" });
        }
        let local = self.local(volume);
        let Some(found) = LocalState::read_map(&local).await? else { return Ok(()) };
        let objects = self.store(name, store).await?;
        let manifest = read_manifest_to_end(&*objects, volume).await?;
        match worth(&manifest, Some(&found.header)) {
            // Nothing else may hold what a log that was set back lacks: an attach decides.
            LocalData::Absent | LocalData::Ours { .. } | LocalData::Foreign(Foreign::LogSetBack) => Ok(()),
            LocalData::Foreign(_) if holds_dirty(&found.pages) => {
                LocalState::set_aside(&local, found.header.epoch).await
            }
            LocalData::Foreign(_) => LocalState::discard(&local).await,
        }
    }
}
