//! Devices of the volumes on this node: added, served, recovered, stopped and deleted.
//!
//! Owns: for each of these, the order of the kernel's commands, the ring thread's part and the volume's
//! record.
//! Does not own: their triggers (`attach.rs`, `recover.rs`, `detach.rs`).
//! Invariants: a record never names a number that the kernel may give to another device.
//! On failure: each may be retried.

use std::sync::Arc;
use std::time::Duration;

use holdfast_engine::limit::MAX_IO_BYTES;
use holdfast_service::chain;
use holdfast_service::tasks::Tasks;
use holdfast_types::VolumeId;
use holdfast_ublk::{ControlError, Device, DeviceSpec, DeviceState, Transport};
use tokio::sync::OwnedMutexGuard;

use crate::node::device::kernel::Devices;
use crate::node::error::NodeError;
use crate::node::ring::shape::DeviceShape;
use crate::node::run_blocking::{blocking, run_blocking};
use crate::node::volume::present::Present;
use crate::node::volume::state::{State, StateCell, StateEvent};
use crate::node::{Node, QUEUE_DEPTH, QUEUES, TransportChoice};
use holdfast_serve::Message;

/// Interval between checks if the last program has closed a device.
pub(in crate::node) const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The devices, and the tasks that delete them.
pub(in crate::node) struct VolumeDevices {
    kernel: Arc<dyn Devices>,
    choice: TransportChoice,
    tasks: Tasks,
}

impl VolumeDevices {
    /// Uses the devices of a kernel. New ones get a transport of this choice; deletions are tasks of `tasks`.
    pub(in crate::node) fn new(kernel: Arc<dyn Devices>, choice: TransportChoice, tasks: Tasks) -> Self {
        Self { kernel, choice, tasks }
    }

    /// Returns the kernel's commands.
    pub(in crate::node) fn kernel(&self) -> &Arc<dyn Devices> {
        &self.kernel
    }

    /// Returns the transport of new devices.
    pub(in crate::node) async fn transport(&self) -> Result<Transport, NodeError> {
        let (kernel, choice) = (Arc::clone(&self.kernel), self.choice);
        blocking(move || Ok(kernel.transport(choice)?)).await
    }

    /// Fails if a device is gone or stopped, or its number belongs to another one by now: `losetup --detach`
    /// removes the loop device of a volume, and the next file gets its number. Cancels such a removal of a
    /// device in use, if the kernel allows it.
    pub(in crate::node) async fn check_there(&self, device: Device) -> Result<(), NodeError> {
        let kernel = Arc::clone(&self.kernel);
        let (id, tag) = (device.id(), device.tag());
        let has_ublk = device.transport() != Transport::Fuse;
        blocking(move || match kernel.look(id)? {
            // Another program stopped or deleted it: the kernel keeps the number until the daemon closes it.
            found if found.tag == tag && has_ublk && found.state == DeviceState::Dead => {
                Err(ControlError::NotFound { id }.into())
            }
            found if found.tag == tag => match kernel.keep(device) {
                Err(gone @ (ControlError::NotFound { .. } | ControlError::NotOurs { .. })) => Err(gone.into()),
                Err(error) => {
                    tracing::warn!(
                        device = id,
                        error = chain(&error),
                        "a program asked the kernel to detach the device of a volume; it could not be cancelled, and the kernel \
                         removes the device once the last program has closed it"
                    );
                    Ok(())
                }
                Ok(()) => Ok(()),
            },
            found => Err(ControlError::NotOurs { id, found: found.tag }.into()),
        })
        .await
    }

    /// Adds a device for a volume and starts it.
    pub(in crate::node) async fn add(
        &self,
        present: &Arc<Present>,
        transport: Transport,
    ) -> Result<Device, NodeError> {
        let DeviceShape { transport, queues, depth, max_io_bytes } = new_device(transport);
        let spec = DeviceSpec {
            id: None,
            sectors: present.sectors(),
            queues,
            depth,
            max_io_bytes,
            max_zero_bytes: DeviceSpec::MAX_ZERO_BYTES,
            transport,
            tag: present.terms.tag.0,
        };
        // If the daemon dies before the record names the device, a restarted daemon identifies it by its tag.
        let kernel = Arc::clone(&self.kernel);
        let device = blocking(move || Ok(kernel.add(&spec)?)).await?;
        tracing::Span::current().record("device", device.id());
        present.state.apply(&StateEvent::DeviceAdded(device));
        present.remember()?;
        self.arm(present, device).await?;
        let kernel = Arc::clone(&self.kernel);
        present.unless_refused(device, blocking(move || Ok(kernel.start(device)?))).await?;
        Ok(device)
    }

    /// Fails if the kernel cannot resize a device in use.
    ///
    /// # Errors
    /// [`NodeError::DeviceCannotGrow`]; [`NodeError::Unsupported`] if that is unknown.
    pub(in crate::node) async fn check_growth(
        &self,
        volume: &VolumeId,
        device: Device,
    ) -> Result<(), NodeError> {
        let kernel = Arc::clone(&self.kernel);
        if blocking(move || Ok(kernel.can_resize(device.transport())?)).await? {
            Ok(())
        } else {
            Err(NodeError::DeviceCannotGrow(volume.clone()))
        }
    }

    /// Grows the device to the volume's size. Repeating it is a no-op. Only one caller does so at a time,
    /// even if an earlier one stopped waiting: a late command would shrink the device.
    pub(in crate::node) async fn grow(
        &self,
        present: &Arc<Present>,
        device: Device,
        one_at_a_time: OwnedMutexGuard<()>,
    ) -> Result<(), NodeError> {
        let (kernel, present) = (Arc::clone(&self.kernel), Arc::clone(present));
        let resize = move || {
            let _one_at_a_time = one_at_a_time;
            let sectors = present.sectors();
            if present.device_sectors() < sectors {
                kernel.resize(device, sectors)?;
                present.set_device_sectors(sectors);
            }
            Ok(())
        };
        blocking(resize).await
    }

    /// Starts the recovery of a device: waits until the kernel has detected the exit of its last server. Once
    /// for each device and daemon ([`Device::start_recovery`]).
    pub(in crate::node) async fn begin_recovery(
        &self,
        device: Device,
        within: Duration,
    ) -> Result<(), NodeError> {
        let kernel = Arc::clone(&self.kernel);
        blocking(move || Ok(kernel.start_recovery(device, within)?)).await
    }

    /// Resumes service of a device with armed queues.
    pub(in crate::node) async fn serve_again(
        &self,
        present: &Present,
        device: Device,
    ) -> Result<(), NodeError> {
        let kernel = Arc::clone(&self.kernel);
        present.unless_refused(device, blocking(move || Ok(kernel.end_recovery(device)?))).await
    }

    /// Arms the queues of a new device, or of one in recovery, on the volume's ring thread. Requests may
    /// arrive as soon as this returns.
    pub(in crate::node) async fn arm(&self, present: &Present, device: Device) -> Result<(), NodeError> {
        let kernel = Arc::clone(&self.kernel);
        let mut of_threads = blocking(move || Ok(kernel.open(device, 1)?)).await?;
        let queues = of_threads.pop().expect("one thread has them all");
        let opened =
            present.ring.call(|done| Message::Open { key: present.key, device, queues, done }).await?;
        opened.map_err(present.refused())
    }

    /// Stops a device, even one in use.
    pub(in crate::node) async fn stop(&self, device: Device) -> Result<(), NodeError> {
        let kernel = Arc::clone(&self.kernel);
        blocking(move || Ok(or_gone(kernel.stop(device))?)).await
    }

    /// Stops the device of a volume.
    ///
    /// # Errors
    /// [`NodeError::InUse`] while it is mounted.
    pub(in crate::node) async fn stop_unused(
        &self,
        present: &Present,
        device: Device,
    ) -> Result<(), NodeError> {
        // A restarted daemon resumes the detach.
        present.remember()?;
        let kernel = Arc::clone(&self.kernel);
        let stopped = blocking(move || Ok(or_gone(kernel.stop_unused(device))?)).await;
        match stopped {
            Err(NodeError::Device(ControlError::InUse { id: _, holders })) => {
                let (volume, device) = (present.volume().clone(), device.block_path());
                Err(NodeError::InUse { volume, device, holders })
            }
            stopped => stopped,
        }
    }

    /// Removes a stopped device from the ring, and starts its deletion ([`Present::await_deletion`]). Its
    /// record is changed first, so that it never names a number that the kernel may give to another device.
    /// May be retried after a failure.
    pub(in crate::node) async fn remove(
        &self,
        present: &Arc<Present>,
        device: Device,
    ) -> Result<(), NodeError> {
        let closed = present.ring.call(|done| Message::Close { key: present.key, done }).await?;
        closed.map_err(present.refused())?;
        present.release_device()?;
        let (kernel, present) = (Arc::clone(&self.kernel), Arc::clone(present));
        self.tasks.spawn(async move {
            let deletes = Arc::clone(&kernel);
            let mut deletion = run_blocking(move || delete_stopped(&*deletes, device)).await;
            while deletion == Deletion::Waits {
                tokio::time::sleep(LOOK_EVERY).await;
                let looks = Arc::clone(&kernel);
                deletion = run_blocking(move || await_number(&*looks, device)).await;
            }
            present.state.apply(&StateEvent::DeviceDeleted);
        });
        Ok(())
    }

    /// Tries the only operation that may release a device lost by the kernel.
    pub(in crate::node) async fn flush_lost(&self, id: u32) {
        let kernel = Arc::clone(&self.kernel);
        match run_blocking(move || kernel.flush_from_outside(id)).await {
            Ok(()) => tracing::warn!(device = id, "flushed a device that the kernel had lost"),
            Err(error) => tracing::warn!(device = id, %error, "flushing a lost device did not free it"),
        }
    }
}

impl Node {
    /// Returns true if the volume's device serves and is still its own; false if no device serves it.
    ///
    /// # Errors
    /// [`ControlError::NotFound`] or [`ControlError::NotOurs`]: another program stopped or removed its
    /// device, and the number may belong to that program's device. The volume must be detached.
    pub(crate) async fn check_served(&self, volume: &VolumeId) -> Result<bool, NodeError> {
        if let Some(device) = self.0.memory.serving_device(volume) {
            self.check_device(volume, device).await?;
            return Ok(true);
        }
        let present = self.0.volumes.on_ring(volume);
        let serving = |state: &State| match state {
            State::Serving { device, .. } => Some(*device),
            // A check during a detach would cancel it.
            State::Detaching { .. } => None,
            State::Attaching { .. }
            | State::Recovering { .. }
            | State::Unserved { .. }
            | State::Evicting
            | State::Detached => None,
        };
        let Some(device) = present.and_then(|present| present.state.with(serving)) else {
            return Ok(false);
        };
        self.check_device(volume, device).await?;
        Ok(true)
    }

    /// Checks that the device of a served volume is still its own. If not, the volume counts as not served.
    pub(in crate::node) async fn check_device(
        &self,
        volume: &VolumeId,
        device: Device,
    ) -> Result<(), NodeError> {
        let checked = self.0.devices.check_there(device).await;
        if let Err(NodeError::Device(ControlError::NotFound { .. } | ControlError::NotOurs { .. })) = &checked
            && !self.0.memory.lose_device(volume, device)
            && let Some(present) = self.0.volumes.on_ring(volume)
            && present.device() == Some(device)
        {
            lose_device(volume, &present.state);
        }
        checked
    }
}

/// Begins to serve a volume, whose device may have ended before.
pub(in crate::node) fn serve(present: &Present, event: &StateEvent) {
    present.state.apply(event);
    if present.published.has_device_ended() && present.state.with(|state| state.serving_device().is_some()) {
        lose_device(present.volume(), &present.state);
    }
}

/// Notes that another program stopped or removed the device of a volume, or aborted its connection. During an
/// attach, a recovery or a detach it only logs that: a detach stops the device itself, and [`serve`] notes it
/// after the others.
pub(in crate::node) fn lose_device(volume: &VolumeId, state: &StateCell) {
    if state.try_apply(&StateEvent::DeviceLost).is_ok() {
        tracing::error!(
            %volume,
            "another program stopped or removed the volume's device, or aborted its connection; no device serves it; detach \
             and attach it (with Kubernetes the node does both)"
        );
    } else {
        tracing::debug!(%volume, "the volume's device ended during an attach, a recovery or a detach");
    }
}

/// Checks if the kernel has deleted a device, by its tag: the number may belong to another one by now.
pub(in crate::node) fn await_number(kernel: &dyn Devices, device: Device) -> Deletion {
    match kernel.look(device.id()) {
        Ok(info) if info.tag == device.tag() => Deletion::Waits,
        Ok(_) | Err(ControlError::NotFound { .. } | ControlError::NotOurs { .. }) => {
            kernel.restore_number(device);
            Deletion::Ended
        }
        Err(_unknown) => Deletion::Waits,
    }
}

/// Outcome of a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::node) enum Deletion {
    /// No further wait is needed.
    Ended,
    /// The kernel deletes the device once the last program has closed it.
    Waits,
}

/// Deletes a stopped device. Waits briefly until the last program has closed it.
pub(in crate::node) fn delete_stopped(kernel: &dyn Devices, device: Device) -> Deletion {
    match kernel.delete(device) {
        Ok(()) => Deletion::Ended,
        Err(ControlError::TimedOut { .. }) => Deletion::Waits,
        Err(error) => {
            // A stopped device has no block device, and its tag identifies its owner.
            tracing::warn!(
                device = device.id(),
                error = chain(&error),
                "a stopped device was not deleted; the next start deletes it"
            );
            Deletion::Ended
        }
    }
}

/// Treats a missing device as stopped, and one whose number belongs to another program by now.
pub(in crate::node) fn or_gone(stopped: Result<(), ControlError>) -> Result<(), ControlError> {
    match stopped {
        Err(ControlError::NotFound { .. } | ControlError::NotOurs { .. }) => Ok(()),
        stopped => stopped,
    }
}

/// Returns the shape of devices added by this version.
pub(in crate::node) const fn new_device(transport: Transport) -> DeviceShape {
    DeviceShape { transport, queues: QUEUES, depth: QUEUE_DEPTH, max_io_bytes: MAX_IO_BYTES }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_is_gone_needs_no_stop() {
        assert!(or_gone(Ok(())).is_ok());
        assert!(or_gone(Err(ControlError::NotFound { id: 1 })).is_ok());
        assert!(or_gone(Err(ControlError::NotOurs { id: 1, found: 0 })).is_ok());
        let lost = or_gone(Err(ControlError::KernelLostDevice { id: 1 }));
        assert!(matches!(lost, Err(ControlError::KernelLostDevice { id: 1 })));
    }
}
