//! A writer's report of its dirty bytes, against the model.

use super::World;
use crate::device::Device;
use crate::invariant::Invariant;

const SECTOR_BYTES: u64 = 4096;

impl World {
    /// Invariant 16: whatever the client wrote and no commit holds is counted. Where nothing is in progress
    /// and nothing ever failed, nothing else is.
    pub(super) fn check_dirty(&self, host: usize) {
        let here = &self.hosts[host];
        let Some(status) = self.status(host) else { return };
        let Some(device) = here.device.as_ref().filter(|device| device.ready) else { return };
        if status.fenced || self.last_writer != Some(host) {
            return;
        }
        let committed = self.store.last_cut();
        let (least, most) = here.expect.not_in(&committed);
        let counted = status.dirty_bytes / SECTOR_BYTES;
        Invariant::DirtyIsCounted.check(counted >= least, || {
            format!("{counted} sectors count as dirty, and {least} were written that no commit holds")
        });
        let quiet = !status.seal.in_progress && !status.repairing && Device::is_idle(device);
        if quiet && self.sound_disks && !here.was_full && !self.repaired {
            Invariant::DirtyIsCounted.check(counted <= most, || {
                format!("{counted} sectors count as dirty, and {most} were written that no commit holds")
            });
        }
    }
}
