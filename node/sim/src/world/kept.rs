//! State that a fenced writer leaves on its host when it releases the volume, and any writer when its host
//! loses power.

use super::World;
use crate::invariant::Invariant;

impl World {
    /// The durable map names every sector whose last write was never committed, and the side it names holds
    /// that write: that is what is preserved, and exported.
    pub(super) fn check_kept(&mut self, host: usize) {
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
        let lacks = here.content.lacks(&disk, &header, dirty, here.content.base());
        Invariant::FencedIsKept.check(lacks.is_none(), || lacks.unwrap_or_default());
    }

    /// Invariant 1, at once and not only where a client reads next: what the durable map names dirty is what
    /// the side holds, and no older than what was flushed. Only of the disk that the last writer has: a
    /// record that arrives late makes a host the last writer whose disk is another one by then.
    pub(super) fn check_left(&self, host: usize) {
        let here = &self.hosts[host];
        if !self.writers.is_last(host) || here.disk_past.other().is_some() {
            return;
        }
        let mut disk = here.disk.lock();
        let Ok(Some((_header, dirty))) = disk.read_dirty() else { return };
        let invalidated = self.store.manifest().invalidated();
        for (sector, side) in dirty.into_iter().filter(|(_, side)| !invalidated.contains(*side)) {
            let (stamp, allowed) = (disk.side(side).read(sector), here.content.expect.allowed(sector));
            Invariant::FlushedSurvives.check(allowed.contains(&stamp), || {
                format!("a power cut leaves write {stamp} in sector {sector}; allowed: {allowed:?}")
            });
        }
    }
}
