//! Summary of a durable map's pages: an attach decides by it without reading the pages.

use std::collections::BTreeMap;

use holdfast_types::Seq;

use super::read::FoundPart;
use crate::sector_map::{Nibble, PAGE_BLOCKS};

/// Summary of the pages of a durable map. It takes about 50 bytes for each page with dirty sectors, and
/// nothing for other pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PageSummary {
    /// The greatest generation in the file, even of a torn write, so that it is never reused.
    pub(crate) generation: u64,
    /// The newest record that a writer of a page knew.
    pub(crate) seq: Seq,
    holds_pages: bool,
    /// For each page with uncommitted data, the blocks that hold it.
    dirty: BTreeMap<u64, u128>,
}

impl PageSummary {
    /// Adds the next part.
    pub fn add(&mut self, part: &FoundPart) {
        self.holds_pages = true;
        self.generation = self.generation.max(part.generation());
        self.seq = self.seq.max(part.seq());
        let (mut known, mut dirty) = (0u128, 0u128);
        for (block, nibbles) in part.blocks() {
            let bit = 1 << (block.0 % PAGE_BLOCKS);
            known |= bit;
            if holds_dirty_sector(nibbles) {
                dirty |= bit;
            }
        }
        let page = part.page();
        let left = self.dirty.get(&page).map_or(0, |before| before & !known) | dirty;
        if left == 0 {
            self.dirty.remove(&page);
        } else {
            self.dirty.insert(page, left);
        }
    }

    /// Returns true if no page was ever written.
    pub fn is_empty(&self) -> bool {
        !self.holds_pages
    }

    /// Returns true if any sector is dirty on the side that holds its newest bytes.
    pub fn holds_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns the greatest generation in the file.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

fn holds_dirty_sector(nibbles: &[u8]) -> bool {
    let is_dirty = |nibble: u8| Nibble(nibble).after_host_loss(false).newest().is_some();
    nibbles.iter().any(|byte| *byte != 0 && (is_dirty(byte & 15) || is_dirty(byte >> 4)))
}

#[cfg(test)]
mod tests {
    use holdfast_types::Block;

    use super::super::FoundPage;
    use super::super::read::FoundBlock;
    use super::*;
    use crate::sector_map::PAGE_BYTES;

    #[test]
    fn the_journal_may_make_a_page_clean_or_dirty() {
        let mut nibbles = vec![0; PAGE_BYTES];
        nibbles[17] = 0x50;
        let page = FoundPage { page: 2, slot: Some(0), generation: 3, seq: Seq(7), nibbles };
        let block = |block, generation, nibble| {
            let block = Block(2 * PAGE_BLOCKS + block);
            FoundPart::Block(FoundBlock { block, generation, seq: Seq(generation), nibbles: [nibble; _] })
        };
        let mut summary = PageSummary::default();
        assert!(summary.is_empty() && !summary.holds_dirty());
        summary.add(&FoundPart::Page(page));
        assert!(!summary.is_empty() && summary.holds_dirty());
        summary.add(&block(0, 4, 0x11));
        assert!(summary.holds_dirty(), "block 1 still is");
        summary.add(&block(1, 5, 0x11));
        assert!(!summary.holds_dirty());
        summary.add(&block(127, 6, 0x05));
        assert!(summary.holds_dirty());
        assert_eq!((summary.generation(), summary.seq), (6, Seq(7)));
    }
}
