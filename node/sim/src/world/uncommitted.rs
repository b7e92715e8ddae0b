//! State that a fenced writer leaves on its host when it releases the volume, and any writer when its host
//! loses power.

use super::World;
use crate::invariant::Invariant;

impl World {
    /// Checks that the durable map names every sector whose last write was never committed, and that the
    /// named side has that write: this data is preserved, and exported.
    pub(super) fn check_uncommitted_data(&mut self, host: usize) {
        let here = &self.hosts[host];
        if !self.failures.disks_are_sound() || here.disk_past.was_full() {
            return;
        }
        let disk = here.disk.lock();
        let (header, dirty) = match disk.read_dirty() {
            Ok(Some(found)) => found,
            other => Invariant::SyncedIsWhole
                .broken(&format!("the map that a fenced writer leaves: {:?}", other.err())),
        };
        let lost = here.content.describe_lost_sector(&disk, &header, dirty, here.content.base());
        Invariant::FencedIsKept.check(lost.is_none(), || lost.unwrap_or_default());
    }

    /// Checks invariant 1 at once, not only on the client's next reads: the side has the data that the
    /// durable map names dirty, no older than the flushed data. Only for the last writer's own disk: a
    /// record that arrives late makes a host the last writer after its disk was replaced.
    pub(super) fn check_flushed_data(&self, host: usize) {
        let here = &self.hosts[host];
        if !self.writers.is_last(host) || here.disk_past.replacement().is_some() {
            return;
        }
        let mut disk = here.disk.lock();
        let Ok(Some((_header, dirty))) = disk.read_dirty() else { return };
        let invalidated = self.store.manifest().invalidated();
        for (sector, side) in dirty.into_iter().filter(|(_, side)| !invalidated.contains(*side)) {
            let (stamp, allowed) = (disk.side(side).read(sector), here.content.model.allowed(sector));
            Invariant::FlushedSurvives.check(allowed.contains(&stamp), || {
                format!("a power cut leaves write {stamp} in sector {sector}; allowed: {allowed:?}")
            });
        }
    }
}
