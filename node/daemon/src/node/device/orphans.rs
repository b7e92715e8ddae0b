//! Devices of this installation that no record of the run directory refers to.
//!
//! A daemon that ends between adding a device and noting it leaves one that is DEAD: no program can have used
//! it, it is deleted. A device that served may be mounted, so one whose record is missing is named and left
//! alone.
//! Runs: once, at the start, before an attach can add a device.

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

/// The devices of this host that this installation may have made.
pub(in crate::node) struct DeviceSweep<'a> {
    pub(in crate::node) devices: &'a Arc<dyn Devices>,
    pub(in crate::node) installation: Installation,
    /// Owner of the deletions, which may outlive the sweep.
    pub(in crate::node) tasks: &'a Tasks,
}

impl DeviceSweep<'_> {
    /// Deletes what is ours and was never served, and names what is ours and has none of these volumes.
    /// Devices of these tags, of memory volumes, are known too.
    pub(in crate::node) async fn run(&self, locals: Vec<Local>, memory: BTreeSet<u64>) {
        let (devices, installation) = (Arc::clone(self.devices), self.installation);
        let found = blocking(move || {
            // The device of a record that cannot be read is ours too; recovery says what is wrong with the
            // record.
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
                 requests to it wait. Unmount it and restart the host"
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

/// The devices of an installation whose tag is not `known`, whatever their state.
pub(in crate::node) fn orphans(
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
