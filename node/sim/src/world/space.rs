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
    pub fn held(&self, host: usize) -> u64 {
        self.hosts[host].disk.lock().sides.iter().map(|side| side.held).sum()
    }

    /// Reports the space of its sides, relative to their share, to the engine.
    pub(super) fn measure_space(&mut self, host: usize) {
        let Some(share) = self.terms.share else { return };
        let held = self.held(host);
        let excess_bytes = held.saturating_sub(share - share / 8) * SECTOR_BYTES;
        let room_bytes = share.saturating_sub(held) * SECTOR_BYTES;
        self.tell(host, Event::Space { excess_bytes, room_bytes });
    }
}
