//! Detaches a memory volume: device, record, ring thread, files, in this order. Its content is dropped.

use std::sync::Arc;
use std::time::Duration;

use holdfast_service::tasks::Tasks;
use holdfast_types::VolumeId;
use holdfast_ublk::{ControlError, Device};
use tokio::sync::oneshot;

use super::table::MemoryState;
use crate::node::device::kernel::Devices;
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::run_blocking::{blocking, run_blocking};
use crate::node::volume::device::{Deletion, LOOK_EVERY, await_number, delete_stopped, or_gone};
use crate::node::{Node, NodeError};

/// Maximum wait for the deletion of a stopped device.
const DELETED_WITHIN: Duration = Duration::from_secs(5);

impl Node {
    /// Stops the device of a memory volume and drops its content. Resumes a detach that failed after the
    /// stop, and the removal of the remains of a failed attach.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while the device is mounted: nothing was changed. [`NodeError::NotAttached`], or
    /// a conflict with its state.
    #[tracing::instrument(name = "detach_memory", skip_all, fields(%volume))]
    pub(crate) async fn detach_memory(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let _alone = ExitOnPanic("a detach of a memory volume");
        if self.0.memory.begin_removal(volume) {
            return self.abandon_memory(volume).await;
        }
        let (present, device, is_stopped) = self.0.memory.begin_detach(volume)?;
        let kernel = Arc::clone(self.0.devices.kernel());
        let stops = Arc::clone(&kernel);
        let stopped = async {
            if is_stopped {
                return Ok(());
            }
            blocking(move || Ok(or_gone(stops.stop_unused(device))?)).await
        };
        if let Err(error) = stopped.await {
            let is_in_use = matches!(error, NodeError::Device(ControlError::InUse { .. }));
            // Otherwise the kernel may complete the stop later.
            let state = if is_in_use { MemoryState::Serving } else { MemoryState::Stopping };
            self.0.memory.set(volume, state(device));
            return Err(if let NodeError::Device(ControlError::InUse { id: _, holders }) = error {
                NodeError::InUse { volume: volume.clone(), device: device.block_path(), holders }
            } else {
                error
            });
        }
        let ended = async {
            present.close().await?;
            delete_device(&self.0.tasks, &kernel, device).await;
            present.leave_rings().await?;
            let local = present.local.clone();
            blocking(move || local.remove()).await
        };
        if let Err(error) = ended.await {
            self.0.memory.set(volume, MemoryState::Stopped(device));
            return Err(error);
        }
        self.0.memory.forget(volume);
        tracing::info!(device = device.id(), "detached a memory volume; its content is gone");
        Ok(())
    }
}

/// Deletes a stopped device, with a limited wait for programs that have it open.
pub(super) async fn delete_device(tasks: &Tasks, kernel: &Arc<dyn Devices>, device: Device) {
    let (ends, deleted) = oneshot::channel::<()>();
    let kernel = Arc::clone(kernel);
    tasks.spawn(async move {
        let _at_the_end = ends;
        let deletes = Arc::clone(&kernel);
        let mut deletion = run_blocking(move || delete_stopped(&*deletes, device)).await;
        while deletion == Deletion::Waits {
            tokio::time::sleep(LOOK_EVERY).await;
            let looks = Arc::clone(&kernel);
            deletion = run_blocking(move || await_number(&*looks, device)).await;
        }
    });
    if tokio::time::timeout(DELETED_WITHIN, deleted).await.is_err() {
        tracing::warn!(
            device = device.id(),
            "a program still has the device open, which is stopped; the kernel deletes it once that has closed it"
        );
    }
}
