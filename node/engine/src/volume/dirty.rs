//! Uncommitted data of one side.

use holdfast_types::{Millis, SectorRange};

use crate::sector_map::BlockSet;

pub(super) struct DirtySide {
    /// Time since which data is dirty.
    pub(super) since: Option<Millis>,
    /// Blocks with a dirty sector.
    pub(super) blocks: BlockSet,
    /// Writes and punches in flight.
    pub(super) in_flight: u32,
}

impl DirtySide {
    /// Creates a clean side of a map with `pages` pages.
    pub(super) fn clean(pages: u64) -> Self {
        Self { since: None, blocks: BlockSet::new(pages), in_flight: 0 }
    }

    /// Records that `range` became dirty. Returns true if the side was clean.
    pub(super) fn became_dirty(&mut self, range: SectorRange, now: Millis) -> bool {
        self.blocks.insert_range(range);
        let is_first = self.since.is_none();
        if is_first {
            self.since = Some(now);
        }
        is_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sector_map::PAGE_SECTORS;

    #[test]
    fn the_age_counts_from_the_first_dirty_range() {
        let mut side = DirtySide::clean(4);
        assert!(side.became_dirty(SectorRange::new(PAGE_SECTORS - 1, 2), 7));
        assert!(!side.became_dirty(SectorRange::new(3 * PAGE_SECTORS, 1), 9));
        assert_eq!(side.since, Some(7));
        assert_eq!(side.blocks.pages().collect::<Vec<_>>(), [0, 1, 3]);
    }
}
