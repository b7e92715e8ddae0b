//! Shutdown of all volumes with their host: no request waits for a next daemon, which only starts after the
//! host has restarted.
//!
//! 1. all volumes commit early, and all limits are lifted: the page cache is written back at once;
//! 2. each is detached once its device is no longer in use, while file systems are being unmounted;
//! 3. after a timeout the process leaves the remaining devices, as before a restart ([`Node::shutdown`]);
//! 4. those are stopped ([`LeftDevices::stop`]): waiting and later requests fail.
//!
//! A process stops a device in use only after leaving it: the kernel waits for the process's requests, and
//! one of those may wait for the store.
//! Invariants: flushed data is on the local disk, and the next attach here recovers it.
//! On failure: a device that could not be stopped keeps waiting; the log names it.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_serve::Message;
use holdfast_service::chain;
use holdfast_ublk::Device;
use tokio::time::{sleep, timeout};

use crate::node::Node;
use crate::node::device::kernel::Devices;
use crate::node::draining;
use crate::node::error::NodeError;
use crate::node::run_blocking::run_blocking;
use crate::node::volume::device::or_gone;
use crate::node::volume::present::Present;

/// Interval between attempts to detach a volume whose device is in use.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// Maximum wait for the kernel to stop the remaining devices.
const STOPPED_WITHIN: Duration = Duration::from_secs(5);

/// Devices of volumes that were not detached.
pub(crate) struct LeftDevices {
    kernel: Arc<dyn Devices>,
    devices: Vec<Device>,
}

impl Node {
    /// Detaches as many volumes as possible `within` a time. No other attach or detach may run from now on.
    pub(crate) async fn release_all(&self, within: Duration) -> LeftDevices {
        draining::commit_soon(&self.0.rings, true).await;
        join_all(self.0.rings.iter().map(|ring| ring.send(Message::DropLimits))).await;
        let present = self.0.volumes.presents();
        let released = join_all(present.into_iter().map(|(_, present)| self.clone().release_unused(present)));
        if timeout(within, released).await.is_err() {
            tracing::warn!(?within, "volumes were still in use, or their last commits not done");
        }
        let left = self.0.volumes.all();
        let devices = left.iter().filter_map(|seen| seen.state.device()).collect();
        LeftDevices { kernel: Arc::clone(self.0.devices.kernel()), devices }
    }

    /// Detaches a volume as soon as its device is not in use.
    async fn release_unused(self, present: Arc<Present>) {
        loop {
            match self.release(&present).await {
                Ok(()) => return,
                Err(NodeError::InUse { .. }) => sleep(AGAIN_AFTER).await,
                Err(error) => {
                    let volume = present.volume();
                    return tracing::warn!(%volume, error = chain(&error), "the volume was not detached");
                }
            }
        }
    }
}

impl LeftDevices {
    /// Stops the devices, whether in use or not.
    pub(crate) async fn stop(self) {
        let Self { kernel, devices } = self;
        let stopped = join_all(devices.iter().map(|device| {
            let (kernel, device) = (Arc::clone(&kernel), *device);
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
