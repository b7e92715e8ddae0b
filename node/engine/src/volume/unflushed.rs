//! Changes since the last flush round began, which the next round covers.

use holdfast_format::safeguard::{Safeguard::FirstRoundIsFull, safeguard};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::SectorRange;

use crate::sector_map::{BlockSet, Blocks, SectorMap};

pub(super) struct Unflushed {
    blocks: BlockSet,
    /// Sides written since their last sync.
    sides: SideSet,
    header: bool,
}

impl Unflushed {
    /// Returns both sides and the whole map, because the changes since the previous process's last round are
    /// unknown.
    pub(super) fn after_takeover<M: AsRef<[u8]> + AsMut<[u8]>>(map: &SectorMap<M>) -> Self {
        let mut all = Self { blocks: BlockSet::new(map.pages()), sides: SideSet::NONE, header: true };
        if safeguard(FirstRoundIsFull) {
            all.sides = SideSet::BOTH;
            for page in map.prepared_pages() {
                all.blocks.insert(page, Blocks::ALL);
            }
        }
        all
    }

    /// Returns true if `page` changed since the last round began.
    pub(super) fn holds(&self, page: u64) -> bool {
        self.blocks.contains(page)
    }

    pub(super) fn blocks_changed(&mut self, page: u64, blocks: Blocks) {
        self.blocks.insert(page, blocks);
    }

    pub(super) fn range_changed(&mut self, range: SectorRange) {
        self.blocks.insert_range(range);
    }

    #[inline]
    pub(super) fn side_written(&mut self, side: Side) {
        self.sides = self.sides.with(side);
    }

    pub(super) fn header_changed(&mut self) {
        self.header = true;
    }

    /// Grows the map to `pages` pages.
    pub(super) fn grow(&mut self, pages: u64) {
        self.blocks.grow(pages);
    }

    /// Moves the blocks to those of a round that begins.
    pub(super) fn move_blocks_to(&mut self, blocks: &mut BlockSet) {
        blocks.append(&mut self.blocks);
    }

    /// Takes the sides, which the caller will sync.
    pub(super) fn take_sides(&mut self) -> SideSet {
        std::mem::take(&mut self.sides)
    }

    /// Takes the header's flag. Returns true if the header changed.
    pub(super) fn take_header(&mut self) -> bool {
        std::mem::take(&mut self.header)
    }

    /// Restores the changes that a failed round should have covered.
    pub(super) fn take_back(&mut self, blocks: &mut BlockSet, sides: SideSet, header: bool) {
        self.blocks.append(blocks);
        self.sides = self.sides.or(sides);
        self.header |= header;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sector_map::{PAGE_SECTORS, map_bytes};

    fn map() -> SectorMap<Vec<u8>> {
        let sectors = 4 * PAGE_SECTORS;
        SectorMap::format(vec![0; map_bytes(sectors) as usize], sectors, &"v".parse().unwrap())
    }

    #[test]
    fn the_first_round_covers_both_sides_and_every_prepared_page() {
        let mut map = map();
        map.set_prepared(holdfast_types::Chunk(0));
        let mut unflushed = Unflushed::after_takeover(&map);
        let mut blocks = BlockSet::new(map.pages());
        unflushed.move_blocks_to(&mut blocks);
        assert_eq!(blocks.pages().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((unflushed.take_sides(), unflushed.take_header()), (SideSet::BOTH, true));
        assert_eq!((unflushed.take_sides(), unflushed.take_header()), (SideSet::NONE, false));
    }

    #[test]
    fn a_failed_round_gives_back_what_it_was_to_cover() {
        let map = map();
        let mut unflushed = Unflushed::after_takeover(&map);
        let mut blocks = BlockSet::new(map.pages());
        unflushed.blocks_changed(2, Blocks::ALL);
        unflushed.move_blocks_to(&mut blocks);
        let (sides, header) = (unflushed.take_sides(), unflushed.take_header());
        unflushed.blocks_changed(1, Blocks::ALL);
        unflushed.take_back(&mut blocks, sides, header);
        assert!(blocks.is_empty());
        unflushed.move_blocks_to(&mut blocks);
        assert_eq!(blocks.pages().collect::<Vec<_>>(), [1, 2]);
        assert_eq!((unflushed.take_sides(), unflushed.take_header()), (sides, header));
    }
}
