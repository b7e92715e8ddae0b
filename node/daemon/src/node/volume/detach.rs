//! Detaching a volume: device, last commit, local records, in this order.
//!
//! The kernel deletes a device once the last program has closed it. A commit does not wait for that, and a detach only shortly.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_engine::durable_map::holds_dirty;
use holdfast_engine::event::Event;
use holdfast_service::chain;
use holdfast_types::{Epoch, VolumeId};
use holdfast_ublk::{ControlError, Device};

use crate::node::device::kernel::Devices;
use crate::node::ends_process::EndsProcess;
use crate::node::error::{NodeError, file};
use crate::node::local::volume_files::Local;
use crate::node::off_runtime::{blocking, off_runtime};
use crate::node::ring::board::Phase;
use crate::node::ring::message::{Message, RingRefusal};
use crate::node::{Node, Present, Serving};

/// The longest wait of a detach for the deletion of its stopped device.
const DELETED_WITHIN: Duration = Duration::from_secs(5);
/// How long a deletion takes at most that no program holds up.
const HELD_UP_AFTER: Duration = Duration::from_secs(1);

impl Node {
    /// Stops the device, commits what is dirty and releases the volume. Waits for as long as the store is unreachable.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while the device is mounted; [`NodeError::Unreadable`] while it is the only way to repair the
    /// volume; [`NodeError::NotAttached`]; [`NodeError::RecoveryFailed`]; [`NodeError::Fenced`] after the local data was
    /// preserved, [`NodeError::NotKept`] while it could not be: then nothing was removed, and the same may be tried again.
    pub(crate) async fn detach(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let present = self.present(volume)?;
        self.release(&present).await
    }

    /// The same for a volume that was looked up.
    pub(in crate::node) async fn release(&self, present: &Arc<Present>) -> Result<(), NodeError> {
        let _alone = EndsProcess("a detach");
        let volume = present.local.volume();
        present.check_recovered(volume)?;
        if present.serving() == Serving::Attaching {
            return Err(NodeError::Busy { volume: volume.clone(), doing: "being attached" });
        }
        if let (Some(lost), Some(_device)) = (present.board.status().unreadable, present.device()) {
            return Err(NodeError::Unreadable { volume: volume.clone(), lost });
        }
        if present.detach_running.swap(true, Ordering::AcqRel) {
            return Err(NodeError::Busy { volume: volume.clone(), doing: "being detached" });
        }
        present.detaching.store(true, Ordering::Release);
        if let Some(device) = present.device() {
            if let Err(error) = self.stop_device(volume, present, device).await {
                present.detaching.store(false, Ordering::Release);
                present.detach_running.store(false, Ordering::Release);
                present.remember()?;
                return Err(error);
            }
            if let Err(error) = self.remove_device(present, device).await {
                present.detach_running.store(false, Ordering::Release);
                return Err(error);
            }
        }
        present.ring.send(Message::Event { key: present.key, event: Event::Detach }).await;
        let end = present.board.reach(|phase| matches!(phase, Phase::Detached | Phase::Kept { .. })).await;
        // Before anybody may take the files for those of a detached volume.
        if let Phase::Kept { whole } = end {
            let (local, epoch) = (present.local.clone(), Epoch(present.epoch));
            let named = volume.clone();
            if let Err(source) = blocking(move || preserve(&named, &local, epoch, whole)).await {
                let error = NodeError::NotKept { volume: volume.clone(), source: source.into() };
                present.set_serving(Serving::NotKept(chain(&error)));
                present.detach_running.store(false, Ordering::Release);
                return Err(error);
            }
        }
        present.await_deletion().await;
        let removed = self.remove_from_ring(present).await;
        // Before the entry: an attach that finds none makes these files.
        if let Err(error) = removed.and_then(|()| present.local.forget_attached()) {
            present.detach_running.store(false, Ordering::Release);
            return Err(error);
        }
        self.volumes().remove(volume);
        match end {
            Phase::Kept { .. } => Err(NodeError::Fenced(volume.clone())),
            Phase::Recovering | Phase::Ready | Phase::Fenced | Phase::Detached => Ok(()),
        }
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

    /// Takes a stopped device from the ring, and begins its deletion ([`Present::await_deletion`]). Its record goes first: there
    /// is no moment in which it names a number that the kernel may give to another device. Where it fails, it may be called
    /// again.
    pub(in crate::node) async fn remove_device(
        &self,
        present: &Arc<Present>,
        device: Device,
    ) -> Result<(), NodeError> {
        present.set_serving(Serving::NotYet);
        let closed = present.ring.call(|done| Message::Close { key: present.key, done }).await?;
        closed.map_err(refused(present))?;
        present.set_device(None);
        if let Err(error) = present.remember() {
            present.set_device(Some(device));
            return Err(error);
        }
        present.deleting.send_replace(Some(Deletion { device, since: Instant::now() }));
        let (devices, present) = (Arc::clone(&self.0.devices), Arc::clone(present));
        tokio::spawn(async move {
            off_runtime(move || delete_stopped(&*devices, device)).await;
            present.deleting.send_replace(None);
        });
        Ok(())
    }

    /// Takes a volume off its ring. Again it changes nothing.
    pub(in crate::node) async fn remove_from_ring(&self, present: &Present) -> Result<(), NodeError> {
        let removed = present.ring.call(|done| Message::Remove { key: present.key, done }).await?;
        match removed {
            Ok(()) | Err(RingRefusal::Gone) => Ok(()),
            Err(why @ (RingRefusal::Armed | RingRefusal::Queue(_))) => Err(refused(present)(why)),
        }
    }
}

/// A stopped device that the kernel deletes.
#[derive(Debug, Clone, Copy)]
pub(in crate::node) struct Deletion {
    pub(in crate::node) device: Device,
    since: Instant,
}

impl Deletion {
    /// Whether a program must have the device open.
    pub(in crate::node) fn is_held_up(&self) -> bool {
        self.since.elapsed() >= HELD_UP_AFTER
    }
}

impl Present {
    /// Waits for the deletion of the stopped device, but not for long on a program that has it open.
    pub(in crate::node) async fn await_deletion(&self) {
        let mut deleting = self.deleting.subscribe();
        if tokio::time::timeout(DELETED_WITHIN, deleting.wait_for(Option::is_none)).await.is_err() {
            tracing::warn!(
                volume = %self.local.volume(),
                device = deleting.borrow().map(|deletion| deletion.device.id()),
                "a program still has the device open, which is stopped; the kernel deletes it once that has closed it"
            );
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

/// Why a ring thread refused something to a volume, ready for `map_err`.
pub(in crate::node) fn refused(present: &Present) -> impl FnOnce(RingRefusal) -> NodeError {
    let volume = present.local.volume().clone();
    move |why| match why {
        RingRefusal::Gone => NodeError::NotOnRing(volume),
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

/// What a fenced writer had not uploaded stays for `holdfast-node fenced`; what was all committed is only in the way.
/// A durable map that was not brought up to date (`whole` is false) may name nothing: then the live one is kept with it, and
/// nothing is moved before that is done. What failed may be tried again.
fn preserve(volume: &VolumeId, local: &Local, epoch: Epoch, whole: bool) -> Result<(), NodeError> {
    let dir = local.dir();
    if !dir.try_exists().map_err(file(&dir, "looked for"))? {
        // An earlier try came as far as that.
        return Ok(());
    }
    if !whole {
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
