//! Devices of this installation without a record in the run directory.
//!
//! A daemon that exits between adding a device and recording it leaves a DEAD device: no program can have
//! used it, so it is deleted. A device that served may be mounted, so without a record it is logged and left
//! alone.
//! Runs: once, at the start, before any attach can add a device.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_service::chain;
use holdfast_service::tasks::Tasks;
use holdfast_ublk::{ControlError, DeviceInfo, DeviceState, Expected};

use crate::node::device::kernel::Devices;
use crate::node::device::tag::Installation;
use crate::node::error::NodeError;
use crate::node::local::volume_files::Local;
use crate::node::run_blocking::blocking;

/// Scans the host's devices for those that this installation may have added.
pub(in crate::node) struct DeviceSweep<'a> {
    pub(in crate::node) devices: &'a Arc<dyn Devices>,
    pub(in crate::node) installation: Installation,
    /// Owner of the deletions, which may outlive the scan.
    pub(in crate::node) tasks: &'a Tasks,
}

impl DeviceSweep<'_> {
    /// Deletes our devices that never served, and logs our devices that belong to none of these volumes.
    /// Devices of memory volumes with these tags are known, too.
    pub(in crate::node) async fn run(&self, locals: Vec<Local>, memory: BTreeSet<u64>) {
        let (devices, installation) = (Arc::clone(self.devices), self.installation);
        let found = blocking(move || {
            // A device whose record is unreadable is ours, too; recovery reports the fault of the record.
            let known = locals.iter().filter_map(|local| local.read_record().ok()?).map(|record| record.tag);
            Ok(orphans(&*devices, installation, &known.chain(memory).collect())?)
        });
        match found.await {
            Ok(orphans) => orphans.into_iter().for_each(|orphan| self.end_orphan(orphan)),
            Err(error) => {
                tracing::warn!(
                    error = chain(&error),
                    "the host's ublk devices could not be listed: unused ones of ours stay"
                );
            }
        }
    }

    fn end_orphan(&self, orphan: DeviceInfo) {
        let DeviceInfo { id, state, .. } = orphan;
        if state != DeviceState::Dead {
            tracing::error!(
                device = id, %state,
                "a device of this installation has no readable record in node.run_dir. The daemon does not touch it, and \
                 requests to it wait. Restart the host"
            );
            return;
        }
        let devices = Arc::clone(self.devices);
        self.tasks.spawn(async move {
            let deleted = blocking(move || {
                let device = devices.find(id, &Expected { tag: orphan.tag, sectors: 0 })?;
                Ok(devices.delete(device)?)
            });
            match deleted.await {
                // The kernel deletes it after its last use.
                Ok(()) | Err(NodeError::Device(ControlError::TimedOut { .. })) => tracing::warn!(
                    device = id,
                    "a device was deleted that an earlier daemon added and never served"
                ),
                Err(error) => tracing::error!(
                    device = id,
                    error = chain(&error),
                    "an unused device could not be deleted"
                ),
            }
        });
    }
}

/// Returns the devices of an installation that programs may use: all except those that never served or were
/// stopped.
pub(in crate::node) fn usable_devices(
    devices: &dyn Devices,
    installation: Installation,
) -> Result<Vec<DeviceInfo>, ControlError> {
    let ours = orphans(devices, installation, &BTreeSet::new())?;
    Ok(ours.into_iter().filter(|info| info.state != DeviceState::Dead).collect())
}

/// Returns the devices of an installation whose tag is not `known`, in any state.
fn orphans(
    devices: &dyn Devices,
    installation: Installation,
    known: &BTreeSet<u64>,
) -> Result<Vec<DeviceInfo>, ControlError> {
    let mut found = Vec::new();
    for id in devices.list()? {
        match devices.look(id) {
            Ok(info) if installation.made(info.tag) && !known.contains(&info.tag) => found.push(info),
            Ok(_) | Err(ControlError::NotFound { .. } | ControlError::NotOurs { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
