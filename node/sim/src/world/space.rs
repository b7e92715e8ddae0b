//! The space used by a host's sides, and their share of the cache.

use holdfast_engine::event::Event;
use holdfast_types::SECTOR_BYTES;

use super::World;

impl World {
    /// Limits the sides of each host to `sectors` sectors from here on.
    pub fn limit_cache(&mut self, sectors: u64) {
        self.terms.share = Some(sectors);
    }

    /// Returns the number of sectors on the sides of `host`.
    pub fn held_sectors(&self, host: usize) -> u64 {
        self.hosts[host].disk.lock().sides.iter().map(|side| side.data_sectors).sum()
    }

    /// Reports the space of its sides, relative to their share, to the engine.
    pub(super) fn measure_space(&mut self, host: usize) {
        let Some(share) = self.terms.share else { return };
        let used_sectors = self.held_sectors(host);
        let excess_bytes = used_sectors.saturating_sub(share - share / 8) * SECTOR_BYTES;
        let room_bytes = share.saturating_sub(used_sectors) * SECTOR_BYTES;
        self.send_event(host, Event::Space { excess_bytes, room_bytes });
    }
}
