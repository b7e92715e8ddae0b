//! A group of pages of a flush round, which become durable together.

use holdfast_types::Block;

use super::super::core::Memory;
use crate::durable_map::JournalEntry;
use crate::limit::JOURNAL_BLOCKS;
use crate::round_size::round_size;
use crate::sector_map::{BlockSet, PAGE_BLOCKS, PAGE_BYTES, SectorMap};

/// The pages of one group of a flush round.
#[derive(Default)]
pub(super) struct PageGroup {
    /// The pages written to their slots.
    pub(super) pages: Vec<u64>,
    /// Their copies, concatenated.
    pub(super) copies: Vec<u8>,
    /// The pages whose changes go to the journal.
    pub(super) journaled: Vec<u64>,
    /// The copies of their changed blocks.
    pub(super) entries: Vec<JournalEntry>,
}

impl PageGroup {
    /// Selects the first of `pages`, up to the blocks that the journal takes at a time, chooses the
    /// destination of each, and copies those that the journal may take.
    pub(super) fn choose<M: Memory>(
        &mut self,
        pages: impl Iterator<Item = u64>,
        changed: &BlockSet,
        map: &SectorMap<M>,
    ) {
        for page in pages {
            if self.pages.len() == round_size().copied || self.entries.len() >= round_size().journaled {
                return;
            }
            let (blocks, copied) = (changed.blocks(page), self.entries.len());
            if blocks.count() <= JOURNAL_BLOCKS {
                let numbers = blocks.iter().map(|number| Block(page * PAGE_BLOCKS + u64::from(number)));
                for block in numbers {
                    self.entries.push((block, map.block(block)));
                }
                if self.entries[copied..].iter().any(|(_, copy)| *copy != [0; _])
                    || map.page(page).iter().any(|byte| *byte != 0)
                {
                    self.journaled.push(page);
                    continue;
                }
            }
            self.entries.truncate(copied);
            self.pages.push(page);
        }
    }

    /// Returns the page after its last one.
    pub(super) fn end(&self) -> Option<u64> {
        self.pages.last().max(self.journaled.last()).map(|page| page + 1)
    }

    /// Copies the pages for the slots.
    pub(super) fn copy<M: Memory>(&mut self, map: &SectorMap<M>) {
        self.copies.reserve_exact(self.pages.len() * PAGE_BYTES);
        for page in &self.pages {
            self.copies.extend_from_slice(map.page(*page));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages.is_empty() && self.journaled.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.copies.clear();
        self.journaled.clear();
        self.entries.clear();
    }
}
