//! Detaching a volume: device, last commit, local records, in this order.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_engine::durable_map::holds_dirty;
use holdfast_engine::event::Event;
use holdfast_types::{Epoch, VolumeId};
use holdfast_ublk::{ControlError, Device};

use super::board::Phase;
use super::ends_process::EndsProcess;
use super::error::{NodeError, file};
use super::local::Local;
use super::off_runtime::blocking;
use super::ring_thread::Message;
use super::{Node, Present, Serving};
use crate::failure::chain;

impl Node {
    /// Stops the device, commits what is dirty and lets go of the volume. Waits for as long as the store is away.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while the device is mounted; [`NodeError::Unreadable`] while it is the only way to mend the
    /// volume; [`NodeError::NotAttached`]; [`NodeError::NotTakenUp`]; [`NodeError::Fenced`] after the local data was set
    /// aside, [`NodeError::NotKept`] while it could not be: then nothing was removed, and the same may be tried again.
    pub(crate) async fn detach(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let _alone = EndsProcess("a detach");
        let present = self.present(volume)?;
        present.check_taken_up(volume)?;
        if let (Some(lost), Some(_device)) = (present.board.status().unreadable, present.device()) {
            return Err(NodeError::Unreadable { volume: volume.clone(), lost });
        }
        if present.letting_go.swap(true, Ordering::AcqRel) {
            return Err(NodeError::Busy { volume: volume.clone(), doing: "being detached" });
        }
        present.detaching.store(true, Ordering::Release);
        if let Some(device) = present.device()
            && let Err(error) = self.stop_device(volume, &present, device).await
        {
            present.detaching.store(false, Ordering::Release);
            present.letting_go.store(false, Ordering::Release);
            present.remember()?;
            return Err(error);
        }
        present.ring.send(Message::Event { key: present.key, event: Event::Detach });
        let end = present.board.reach(|phase| matches!(phase, Phase::Detached | Phase::Kept { .. })).await;
        // Before anybody may take the files for those of a detached volume.
        if let Phase::Kept { whole } = end {
            let (local, epoch) = (present.local.clone(), Epoch(present.epoch));
            let named = volume.clone();
            if let Err(source) = blocking(move || keep_aside(&named, &local, epoch, whole)).await {
                let error = NodeError::NotKept { volume: volume.clone(), source: source.into() };
                present.set_serving(Serving::NotKept(chain(&error)));
                present.letting_go.store(false, Ordering::Release);
                return Err(error);
            }
        }
        present
            .ring
            .call(|done| Message::Remove { key: present.key, done })
            .await?
            .map_err(|error| NodeError::Queue(error.into()))?;
        self.volumes().remove(volume);
        present.local.forget_attached()?;
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
        let path = device.block_path();
        let in_use = NodeError::InUse { volume: volume.clone(), device: path.clone() };
        blocking(move || {
            // An exclusive open fails while the device is mounted or held by another layer.
            match OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&path) {
                Ok(_exclusive) => Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Err(in_use),
                // The device was stopped by an earlier try.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => Ok(()),
                Err(error) => Err(file(&path, "opened")(error)),
            }
        })
        .await?;
        present.remember()?;
        self.drop_device_checked(present, device).await
    }

    /// Stops and deletes the device of an attach that failed.
    pub(super) async fn drop_device(&self, present: &Arc<Present>, device: Device) {
        if let Err(error) = self.drop_device_checked(present, device).await {
            tracing::error!(
                device = device.id(),
                error = &error as &dyn std::error::Error,
                "a device could not be deleted"
            );
        }
    }

    async fn drop_device_checked(&self, present: &Arc<Present>, device: Device) -> Result<(), NodeError> {
        let gone = |result: Result<(), ControlError>| match result {
            Err(ControlError::NotFound { .. }) => Ok(()),
            other => Ok(other?),
        };
        blocking(move || gone(device.stop())).await?;
        present.ring.call(|done| Message::Close { key: present.key, done }).await??;
        blocking(move || gone(device.delete())).await?;
        present.set_device(None);
        present.set_serving(Serving::NotYet);
        present.remember()
    }
}

/// What a fenced writer had not uploaded stays for `holdfast-node fenced`; what was all committed is only in the way.
/// A durable map that was not brought up to date (`whole` is false) may name nothing: then the live one is kept with it, and
/// nothing is moved before that is done. What failed may be tried again.
fn keep_aside(volume: &VolumeId, local: &Local, epoch: Epoch, whole: bool) -> Result<(), NodeError> {
    let dir = local.dir();
    if !dir.try_exists().map_err(file(&dir, "looked for"))? {
        // An earlier try came as far as that.
        return Ok(());
    }
    if !whole {
        local.keep_live_map()?;
        let kept = local.set_aside(epoch)?;
        tracing::error!(%volume, kept = %kept.display(),
            "the volume was fenced and the local disk fails: all of it is kept aside");
        return Ok(());
    }
    let all_committed = matches!(local.read_map(), Ok(Some(map)) if !holds_dirty(&map.pages));
    if all_committed {
        tracing::warn!(%volume, "the volume was fenced: everything was uploaded before");
        return local.discard();
    }
    let kept = local.set_aside(epoch)?;
    tracing::error!(%volume, kept = %kept.display(), "the volume was fenced: what was not uploaded is kept aside");
    Ok(())
}
