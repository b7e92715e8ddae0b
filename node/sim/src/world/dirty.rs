//! A writer's report of its dirty bytes, against the model.

use super::World;
use crate::device::SimulatedDevice;
use crate::invariant::Invariant;

const SECTOR_BYTES: u64 = 4096;

/// Frequency and strictness of the checks of a writer's dirty bytes.
#[derive(Default)]
pub(crate) struct DirtyCheck {
    /// Number of ticks of the engines.
    ticks: u64,
    /// True if a repair made sectors dirty that no request had written.
    repaired: bool,
}

impl DirtyCheck {
    /// Counts a tick. Returns true if all data ever written is checked, which is not at every tick.
    pub(super) fn count_tick(&mut self) -> bool {
        self.ticks += 1;
        self.ticks.is_multiple_of(16)
    }

    /// Notes that a repair makes sectors dirty.
    pub(super) fn note_repair(&mut self) {
        self.repaired = true;
    }
}

impl World {
    /// Checks invariant 16: all uncommitted client writes are counted, and nothing else, if nothing is in
    /// progress and nothing ever failed.
    pub(super) fn check_dirty(&self, host: usize) {
        let here = &self.hosts[host];
        let Some(status) = self.status(host) else { return };
        let Some(device) = here.device.as_ref().filter(|device| device.ready) else { return };
        if status.fenced || !self.writers.is_last(host) {
            return;
        }
        let committed = self.store.last_cut();
        let (least, most) = here.content.model.missing_sectors(&committed);
        let counted = status.dirty_bytes / SECTOR_BYTES;
        Invariant::DirtyIsCounted.check(counted >= least, || {
            format!("{counted} sectors count as dirty, and {least} were written that no commit holds")
        });
        let quiet = !status.seal.in_progress && !status.repairing && SimulatedDevice::is_idle(device);
        if quiet
            && self.failures.disks_are_sound()
            && !here.disk_past.was_full()
            && !self.dirty_check.repaired
        {
            Invariant::DirtyIsCounted.check(counted <= most, || {
                format!("{counted} sectors count as dirty, and {most} were written that no commit holds")
            });
        }
    }
}
