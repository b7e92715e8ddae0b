//! Detaching a volume: device, last commit, local records, in this order.
//!
//! The kernel deletes a device once the last program has closed it. A commit does not wait for that, and a
//! detach only shortly.

use std::sync::Arc;

use holdfast_engine::durable_map::holds_dirty;
use holdfast_engine::event::Event;
use holdfast_service::chain;
use holdfast_types::{Epoch, VolumeId};
use holdfast_ublk::{ControlError, Device};

use crate::node::Node;
use crate::node::device::kernel::Devices;
use crate::node::error::{NodeError, file};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::volume_files::Local;
use crate::node::ring::message::{Message, RingRefusal};
use crate::node::run_blocking::{blocking, run_blocking};
use crate::node::volume::present::Present;
use crate::node::volume::state::{State, StateEvent, Writer};
use crate::node::volume::table::refusal;

impl Node {
    /// Stops the device, commits what is dirty and releases the volume. Waits for as long as the store is
    /// unreachable.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while the device is mounted; [`NodeError::Unreadable`] while it is the only way
    /// to repair the volume; [`NodeError::NotAttached`]; [`NodeError::RecoveryFailed`]; [`NodeError::Fenced`]
    /// after the local data was preserved, [`NodeError::PreserveFailed`] while it could not be: then nothing
    /// was removed, and the same may be tried again.
    pub(crate) async fn detach(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let present = self.0.volumes.present(volume)?;
        self.release(&present).await
    }

    /// The same for a volume that was looked up.
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
        if let (Some(lost), Some(_device)) = (present.board.status().unreadable, present.device()) {
            return Err(NodeError::Unreadable { volume: volume.clone(), lost });
        }
        if let Err(illegal) = present.state.try_apply(&StateEvent::DetachBegan) {
            return Err(refusal(volume, illegal.state()));
        }
        if let Some(device) = present.device() {
            if let Err(error) = self.stop_device(volume, present, device).await {
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

    /// Commits what is dirty, or preserves it where another writer holds the volume, and takes the volume off
    /// its ring.
    async fn end_writer(&self, present: &Arc<Present>) -> Result<State, NodeError> {
        if let Some(device) = present.device() {
            self.remove_device(present, device).await?;
        }
        present.ring.send(Message::Event { key: present.key, event: Event::Detach }).await;
        let end = present.state.reach(|state| {
            matches!(state.writer(), None | Some(Writer::Detached | Writer::Preserved { .. }))
        });
        let end = end.await;
        // Before another process may take the files for those of a detached volume.
        if let Some(Writer::Preserved { complete }) = end.writer() {
            let (local, epoch) = (present.local.clone(), Epoch(present.terms.epoch));
            let named = present.volume().clone();
            blocking(move || preserve(&named, &local, epoch, complete)).await.map_err(|source| {
                NodeError::PreserveFailed { volume: present.volume().clone(), source: source.into() }
            })?;
        }
        present.await_deletion().await;
        self.remove_from_ring(present).await?;
        // Before the entry: an attach that finds none makes these files.
        present.local.forget_attached()?;
        Ok(end)
    }

    async fn stop_device(
        &self,
        volume: &VolumeId,
        present: &Arc<Present>,
        device: Device,
    ) -> Result<(), NodeError> {
        // A restarted daemon resumes the detach.
        present.remember()?;
        let devices = Arc::clone(&self.0.devices);
        let stopped = blocking(move || Ok(or_gone(devices.stop_unused(device))?)).await;
        if let Err(NodeError::Device(ControlError::InUse { .. })) = stopped {
            return Err(NodeError::InUse { volume: volume.clone(), device: device.block_path() });
        }
        stopped
    }

    /// Takes a stopped device from the ring, and begins its deletion ([`Present::await_deletion`]). Its
    /// record goes first: there is no moment in which it names a number that the kernel may give to another
    /// device. Where it fails, it may be called again.
    pub(in crate::node) async fn remove_device(
        &self,
        present: &Arc<Present>,
        device: Device,
    ) -> Result<(), NodeError> {
        let closed = present.ring.call(|done| Message::Close { key: present.key, done }).await?;
        closed.map_err(refused(present))?;
        present.release_device()?;
        let (devices, present) = (Arc::clone(&self.0.devices), Arc::clone(present));
        self.0.tasks.spawn(async move {
            run_blocking(move || delete_stopped(&*devices, device)).await;
            present.state.apply(&StateEvent::DeviceDeleted);
        });
        Ok(())
    }

    /// Takes a volume off its ring. Again it changes nothing.
    pub(in crate::node) async fn remove_from_ring(&self, present: &Present) -> Result<(), NodeError> {
        let removed = present.ring.call(|done| Message::Remove { key: present.key, done }).await?;
        match removed {
            Ok(()) | Err(RingRefusal::Gone) => Ok(()),
            Err(why @ (RingRefusal::Removing | RingRefusal::Armed | RingRefusal::Queue(_))) => {
                Err(refused(present)(why))
            }
        }
    }
}

/// Deletes a stopped device. Waits until the last program has closed it.
pub(in crate::node) fn delete_stopped(devices: &dyn Devices, device: Device) {
    if let Err(error) = devices.delete(device) {
        // It has no block device, and its tag says whose it is.
        tracing::warn!(
            device = device.id(),
            error = chain(&error),
            "a stopped device was not deleted; the next start deletes it"
        );
    }
}

/// Converts a ring thread's refusal to an error of the volume, ready for `map_err`.
pub(in crate::node) fn refused(present: &Present) -> impl FnOnce(RingRefusal) -> NodeError {
    let volume = present.local.volume().clone();
    move |why| match why {
        RingRefusal::Gone | RingRefusal::Removing => NodeError::NotOnRing(volume),
        RingRefusal::Armed => NodeError::StillArmed(volume),
        RingRefusal::Queue(error) => NodeError::Queue(error),
    }
}

/// A device that does not exist needs no stop.
pub(in crate::node) fn or_gone(stopped: Result<(), ControlError>) -> Result<(), ControlError> {
    match stopped {
        Err(ControlError::NotFound { .. }) => Ok(()),
        stopped => stopped,
    }
}

/// Preserves for `holdfast-node fenced` the data that a fenced writer had not uploaded; removes the files if
/// all was committed. A durable map that was not brought up to date (`complete` is false) may name nothing.
/// Then the live map is kept with it, and nothing is moved before that is done. A failed call may be tried
/// again.
fn preserve(volume: &VolumeId, local: &Local, epoch: Epoch, complete: bool) -> Result<(), NodeError> {
    let dir = local.dir();
    if !dir.try_exists().map_err(file(&dir, "looked for"))? {
        // An earlier try came as far as that.
        return Ok(());
    }
    if !complete {
        local.keep_live_map()?;
        let kept = local.preserve(epoch)?;
        tracing::error!(%volume, kept = %kept.display(),
            "volume fenced and the local disk fails; preserved all of it");
        return Ok(());
    }
    let all_committed = matches!(local.read_map(), Ok(Some(map)) if !holds_dirty(&map.pages));
    if all_committed {
        tracing::warn!(%volume, "the volume was fenced: everything was uploaded before");
        return local.discard();
    }
    let kept = local.preserve(epoch)?;
    tracing::error!(%volume, kept = %kept.display(), "volume fenced; preserved what was not uploaded");
    Ok(())
}
