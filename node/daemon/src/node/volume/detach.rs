//! Detaches a volume: device, final commit, local records, in this order.
//!
//! The kernel deletes a device once the last program has closed it. A commit does not wait for that, and a
//! detach only briefly.

use std::sync::Arc;

use holdfast_engine::event::Event;
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
            let (local, epoch) = (present.local.clone(), Epoch(present.terms.epoch));
            let named = present.volume().clone();
            blocking(move || preserve(&named, &local, epoch, complete)).await.map_err(|source| {
                NodeError::PreserveFailed { volume: present.volume().clone(), source: source.into() }
            })?;
        }
        present.await_deletion().await;
        present.leave_ring().await?;
        // Removed before the table entry: an attach that finds no entry creates these files.
        present.local.forget_attached()?;
        Ok(end)
    }
}

/// Preserves a fenced writer's un-uploaded data for `holdfast-node fenced`; removes the files if all of it
/// was committed. A durable map that was not updated (`complete` is false) may be empty: the live map is then
/// preserved along with it, before anything is moved. A failed call may be retried.
fn preserve(volume: &VolumeId, local: &Local, epoch: Epoch, complete: bool) -> Result<(), NodeError> {
    let dir = local.dir();
    if !dir.try_exists().map_err(file(&dir, "checked"))? {
        // An earlier attempt got this far.
        return Ok(());
    }
    if !complete {
        local.keep_live_map()?;
        let kept = local.preserve(epoch)?;
        tracing::error!(%volume, kept = %kept.display(),
            "volume fenced while the local disk fails; preserved all local data");
        return Ok(());
    }
    let all_committed = matches!(local.read_map(), Ok(Some(map)) if !map.pages.holds_dirty());
    if all_committed {
        tracing::warn!(%volume, "the volume was fenced; all of its data had been uploaded");
        return local.discard();
    }
    let kept = local.preserve(epoch)?;
    tracing::error!(%volume, kept = %kept.display(), "volume fenced; preserved its unuploaded data");
    Ok(())
}
