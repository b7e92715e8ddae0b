//! Detaches a volume: device, final commit, local records, in this order.
//!
//! The kernel deletes a device once the last program has closed it. A commit does not wait for that, and a
//! detach only briefly.

use std::sync::Arc;

use holdfast_background::is_kept;
use holdfast_engine::attach::{LocalData, assess_local};
use holdfast_engine::event::Event;
use holdfast_log::read_manifest_to_end;
use holdfast_objects::ObjectStore;
use holdfast_service::chain;
use holdfast_types::{Epoch, VolumeId};

use crate::node::Node;
use crate::node::error::{NodeError, file};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::volume_files::Local;
use crate::node::run_blocking::blocking;
use crate::node::volume::present::Present;
use crate::node::volume::state::{State, StateEvent, WriterState};
use crate::node::volume::table::refusal;
use holdfast_serve::Message;

impl Node {
    /// Stops the device, commits dirty data and releases the volume. Waits while the store is unreachable.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while the device is mounted; [`NodeError::Unreadable`] while it is the only way
    /// to repair the volume; [`NodeError::NotAttached`]; [`NodeError::RecoveryFailed`]; [`NodeError::Fenced`]
    /// after the local data was preserved, [`NodeError::PreserveFailed`] if it could not be: nothing was
    /// removed, and the same call may be retried.
    pub(crate) async fn detach(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let present = self.0.volumes.present(volume)?;
        self.release(&present).await
    }

    /// Like [`Self::detach`], for a volume that was looked up.
    #[tracing::instrument(
        name = "detach",
        skip_all,
        fields(volume = %present.volume(), epoch = present.terms.epoch, device = present.device().map(|device| device.id()))
    )]
    pub(in crate::node) async fn release(&self, present: &Arc<Present>) -> Result<(), NodeError> {
        let _alone = ExitOnPanic("a detach");
        let volume = present.volume();
        match present.state.get() {
            State::Attaching { .. } => {
                return Err(NodeError::Busy { volume: volume.clone(), doing: "being attached" });
            }
            state @ State::Recovering { .. } => return Err(refusal(volume, &state)),
            State::Serving { .. }
            | State::Unserved { .. }
            | State::Detaching { .. }
            | State::Evicting
            | State::Detached => {}
        }
        let serving = present.state.with(State::serving_device);
        if let (Some(lost), Some(_device)) = (present.published.status().unreadable, serving) {
            return Err(NodeError::Unreadable { volume: volume.clone(), lost });
        }
        if let Err(illegal) = present.state.try_apply(&StateEvent::DetachBegan) {
            return Err(refusal(volume, illegal.state()));
        }
        if let Some(device) = present.device() {
            if let Err(error) = self.0.devices.stop_unused(present, device).await {
                present.state.apply(&StateEvent::DetachRefused);
                present.remember()?;
                return Err(error);
            }
            present.state.apply(&StateEvent::DeviceStopped);
        }
        let end = self.end_writer(present).await;
        match &end {
            Ok(_) => self.0.volumes.forget(volume, &present.state),
            Err(error @ NodeError::PreserveFailed { .. }) => {
                present.state.apply(&StateEvent::PreserveFailed(chain(error)));
            }
            Err(_other) => present.state.apply(&StateEvent::DetachFailed),
        }
        if end?.is_fenced() { Err(NodeError::Fenced(volume.clone())) } else { Ok(()) }
    }

    /// Commits dirty data, or preserves it if another writer owns the volume, and removes the volume from its
    /// ring.
    async fn end_writer(&self, present: &Arc<Present>) -> Result<State, NodeError> {
        if let Some(device) = present.device() {
            self.0.devices.remove(present, device).await?;
        }
        present.ring.send(Message::Event { key: present.key, event: Event::Detach }).await;
        let end = present.state.reach(|state| {
            matches!(state.writer(), None | Some(WriterState::Detached | WriterState::Preserved { .. }))
        });
        let end = end.await;
        // Preserved before another process may take the files for those of a detached volume.
        if let Some(WriterState::Preserved { complete }) = end.writer() {
            let kept =
                preserve(&*present.objects, &present.local, Epoch(present.terms.epoch), complete).await;
            kept.map_err(|source| NodeError::PreserveFailed {
                volume: present.volume().clone(),
                source: source.into(),
            })?;
        }
        present.await_deletion().await;
        present.leave_ring().await?;
        // Removed before the table entry: an attach that finds no entry creates these files.
        present.local.forget_attached()?;
        Ok(end)
    }
}

/// Preserves a fenced writer's local data for `holdfast-node fenced`; removes the files if the store has all
/// of it. A durable map that was not updated (`complete` is false) may be empty: the live map is then
/// preserved along with it, before anything is moved. A failed call may be retried.
pub(in crate::node) async fn preserve(
    objects: &dyn ObjectStore,
    local: &Local,
    epoch: Epoch,
    complete: bool,
) -> Result<(), NodeError> {
    let is_stored = complete && is_stored(objects, local).await;
    let local = local.clone();
    blocking(move || {
        let (dir, volume) = (local.dir(), local.volume());
        if !dir.try_exists().map_err(file(&dir, "checked"))? {
            // An earlier attempt got this far.
            return Ok(());
        }
        if is_stored {
            tracing::warn!(%volume, "the volume was fenced; all of its data had been uploaded");
            return local.discard();
        }
        if !complete {
            local.keep_live_map()?;
        }
        let kept = local.preserve(epoch)?;
        let why = if complete { "" } else { " while the local disk fails" };
        tracing::error!(%volume, kept = %kept.display(), "volume fenced{why}; preserved its local data");
        Ok(())
    })
    .await
}

/// Returns true if the store has all data of the local files: none is dirty, and the log was not rolled back
/// by a restore of the bucket. False if the log cannot be read.
async fn is_stored(objects: &dyn ObjectStore, local: &Local) -> bool {
    let read = local.clone();
    let Ok(Some(found)) = blocking(move || read.read_map()).await else { return false };
    if found.pages.holds_dirty() {
        return false;
    }
    if found.pages.is_empty() {
        return true;
    }
    match read_manifest_to_end(objects, local.volume()).await {
        Ok(manifest) => {
            !matches!(assess_local(&manifest, Some(&found)), LocalData::Foreign(why) if is_kept(&found, why))
        }
        Err(error) => {
            tracing::warn!(
                volume = %local.volume(), error = chain(&error),
                "the log of a fenced volume could not be read; its local data is preserved"
            );
            false
        }
    }
}
