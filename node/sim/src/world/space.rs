//! The space that a host's sides take, and the share of the cache they may.

use holdfast_engine::event::Event;
use holdfast_types::SECTOR_BYTES;

use super::World;

impl World {
    /// From here on the sides of each host are to hold at most `sectors` sectors.
    pub fn limit_cache(&mut self, sectors: u64) {
        self.terms.share = Some(sectors);
    }

    /// Sectors that the sides of `host` hold.
    pub fn held(&self, host: usize) -> u64 {
        self.hosts[host].disk.lock().sides.iter().map(|side| side.held).sum()
    }

    /// Tells the engine how its sides stand to their share.
    pub(super) fn measure_space(&mut self, host: usize) {
        let Some(share) = self.terms.share else { return };
        let held = self.held(host);
        let excess_bytes = held.saturating_sub(share - share / 8) * SECTOR_BYTES;
        let room_bytes = share.saturating_sub(held) * SECTOR_BYTES;
        self.tell(host, Event::Space { excess_bytes, room_bytes });
    }
}
