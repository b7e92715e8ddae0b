//! Shutdown of all volumes with their host: no request waits for a next daemon, which only starts after the
//! host has restarted.
//!
//! 1. all volumes commit early, and all limits are lifted: the page cache is written back at once;
//! 2. each is detached once its device is no longer in use, while file systems are being unmounted; memory
//!    volumes, too, whose content ends with the host;
//! 3. after a timeout the process leaves the remaining devices, as before a restart ([`Node::shutdown`]);
//! 4. those are stopped ([`LeftDevices::stop`]): waiting and later requests fail. The kernel lists them:
//!    devices of volumes that could not be recovered, or whose record was lost, must not wait either.
//!
//! A process stops a device in use only after leaving it: the kernel waits for the process's requests, and
//! one of those may wait for the store.
//! Invariants: flushed data is on the local disk, and the next attach here recovers it.
//! On failure: a device that could not be stopped keeps waiting; the log names it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join, join_all};
use holdfast_serve::Message;
use holdfast_service::chain;
use holdfast_types::VolumeId;
use holdfast_ublk::{Device, Expected};
use tokio::time::{sleep, timeout};

use crate::node::Node;
use crate::node::device::kernel::Devices;
use crate::node::device::orphans::usable_devices;
use crate::node::device::tag::Installation;
use crate::node::draining;
use crate::node::error::NodeError;
use crate::node::run_blocking::{blocking, run_blocking};
use crate::node::volume::device::or_gone;

/// Interval between attempts to detach a volume whose device is in use.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Maximum wait for the kernel to stop the remaining devices.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);

/// The devices of this installation that were not detached.
pub(crate) struct LeftDevices {
    kernel: Arc<dyn Devices>,
    installation: Installation,
}

impl Node {
    /// Detaches as many volumes as possible `within` a time. No other attach or detach may run from now on.
    pub(crate) async fn release_all(&self, within: Duration) -> LeftDevices {
        draining::commit_soon(&self.0.rings, true).await;
        join_all(self.0.rings.iter().map(|ring| ring.send(Message::DropLimits))).await;
        let present = self.0.volumes.presents();
        let released = join_all(present.into_iter().map(|(volume, present)| async move {
            once_unused(&volume, async || self.release(&present).await).await;
        }));
        let in_memory = self.0.memory.volumes();
        let dropped = join_all(in_memory.into_iter().map(|volume| async move {
            once_unused(&volume, async || self.detach_memory(&volume).await).await;
        }));
        if timeout(within, join(released, dropped)).await.is_err() {
            tracing::warn!(?within, "volumes were still in use, or their last commits not done");
        }
        LeftDevices { kernel: Arc::clone(self.0.devices.kernel()), installation: self.0.installation }
    }
}

/// Repeats a detach until the volume's device is not in use.
async fn once_unused(volume: &VolumeId, detach: impl AsyncFn() -> Result<(), NodeError>) {
    loop {
        match detach().await {
            Ok(()) => return,
            Err(NodeError::InUse { .. }) => sleep(AGAIN_AFTER).await,
            Err(error) => {
                return tracing::warn!(%volume, error = chain(&error), "the volume was not detached");
            }
        }
    }
}

impl LeftDevices {
    /// Stops the devices, whether in use or not.
    pub(crate) async fn stop(self) {
        let Self { kernel, installation } = self;
        let lists = Arc::clone(&kernel);
        let devices = match blocking(move || left(&*lists, installation)).await {
            Ok(devices) => devices,
            Err(error) => {
                let error = chain(&error);
                return tracing::error!(error, "the host's devices could not be listed; none was stopped");
            }
        };
        let stopped = join_all(devices.into_iter().map(|device| {
            let kernel = Arc::clone(&kernel);
            async move {
                match run_blocking(move || or_gone(kernel.stop(device))).await {
                    Ok(()) => tracing::warn!(
                        device = device.id(),
                        "a device in use was stopped; the next attach recovers the flushed data"
                    ),
                    Err(error) => {
                        tracing::error!(
                            device = device.id(),
                            error = chain(&error),
                            "a device was not stopped"
                        );
                    }
                }
            }
        }));
        if timeout(STOPPED_WITHIN, stopped).await.is_err() {
            tracing::error!(within = ?STOPPED_WITHIN, "the kernel did not stop all devices in time");
        }
    }
}

/// Returns the devices that a program may wait for.
fn left(devices: &dyn Devices, installation: Installation) -> Result<Vec<Device>, NodeError> {
    let mut left = Vec::new();
    for info in usable_devices(devices, installation)? {
        match devices.find(info.id, &Expected { tag: info.tag, sectors: u64::MAX }) {
            Ok(device) => left.push(device),
            Err(error) => {
                tracing::error!(device = info.id, error = chain(&error), "a device cannot be stopped");
            }
        }
    }
    Ok(left)
}
