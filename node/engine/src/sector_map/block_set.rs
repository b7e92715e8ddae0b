//! Sets of blocks of the map, by page.

use holdfast_types::{BLOCK_SECTORS, SectorRange};

use super::layout::PAGE_SECTORS;
use super::page_set::PageSet;

/// Blocks of a page.
pub(crate) const PAGE_BLOCKS: u64 = PAGE_SECTORS / BLOCK_SECTORS;

/// Some blocks of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Blocks(u128);

const _: () = assert!(PAGE_BLOCKS == u128::BITS as u64, "a bit for each block of a page");

impl Blocks {
    pub(crate) const ALL: Self = Self(u128::MAX);

    pub(crate) fn insert(&mut self, block: u32) {
        self.0 |= 1 << block;
    }

    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns their numbers in the page, lowest first.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let block = (left != 0).then(|| left.trailing_zeros())?;
            left &= left - 1;
            Some(block)
        })
    }
}

/// A set of blocks of the map. A page is in it if any of its blocks is.
#[derive(Default)]
pub(crate) struct BlockSet {
    pages: PageSet,
    /// By page.
    blocks: Vec<Blocks>,
    /// Number of blocks in all pages.
    count: u64,
}

impl BlockSet {
    /// Creates an empty set for `pages` pages.
    pub(crate) fn new(pages: u64) -> Self {
        Self { pages: PageSet::new(pages), blocks: vec![Blocks::default(); pages as usize], count: 0 }
    }

    /// Makes room for `pages` pages, no fewer than before.
    pub(crate) fn grow(&mut self, pages: u64) {
        self.pages.grow(pages);
        self.blocks.resize(self.blocks.len().max(pages as usize), Blocks::default());
    }

    pub(crate) fn insert(&mut self, page: u64, blocks: Blocks) {
        if !blocks.is_empty() {
            self.pages.insert(page);
            self.add(page, blocks);
        }
    }

    fn add(&mut self, page: u64, blocks: Blocks) {
        let held = &mut self.blocks[page as usize];
        let before = held.count();
        *held = held.or(blocks);
        self.count += u64::from(held.count() - before);
    }

    /// Inserts the blocks of `range`.
    pub(crate) fn insert_range(&mut self, range: SectorRange) {
        for piece in range.split_at_multiples(PAGE_SECTORS) {
            let first = piece.start.0 % PAGE_SECTORS / BLOCK_SECTORS;
            let last = (piece.end() - 1) % PAGE_SECTORS / BLOCK_SECTORS;
            let blocks = (u128::MAX << first) & (u128::MAX >> (PAGE_BLOCKS - 1 - last));
            self.insert(piece.start.0 / PAGE_SECTORS, Blocks(blocks));
        }
    }

    /// Removes `page`. Returns its blocks that were in the set.
    pub(crate) fn remove(&mut self, page: u64) -> Blocks {
        self.pages.remove(page);
        let removed = std::mem::take(&mut self.blocks[page as usize]);
        self.count -= u64::from(removed.count());
        removed
    }

    /// Returns the number of blocks in the set.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the blocks of `page` in the set.
    pub(crate) fn blocks(&self, page: u64) -> Blocks {
        self.blocks[page as usize]
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        self.pages.contains(page)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Returns the pages, lowest first.
    pub(crate) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter()
    }

    /// Returns the pages from `first` on, lowest first.
    pub(crate) fn pages_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter_from(first)
    }

    /// Moves the blocks of `other` here; returns early if it is empty.
    pub(crate) fn append(&mut self, other: &mut Self) {
        if self.is_empty() {
            return std::mem::swap(self, other);
        }
        for page in other.pages.iter() {
            let moved = std::mem::take(&mut other.blocks[page as usize]);
            self.add(page, moved);
        }
        other.count = 0;
        self.pages.append(&mut other.pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(set: &BlockSet) -> Vec<(u64, Vec<u32>)> {
        set.pages().map(|page| (page, set.blocks(page).iter().collect())).collect()
    }

    #[test]
    fn a_range_is_in_the_set_by_its_blocks() {
        let mut set = BlockSet::new(4);
        set.insert_range(SectorRange::new(PAGE_SECTORS - 1, 2));
        set.insert_range(SectorRange::new(3 * PAGE_SECTORS + BLOCK_SECTORS, 2 * BLOCK_SECTORS));
        assert_eq!(held(&set), [(0, vec![127]), (1, vec![0]), (3, vec![1, 2])]);
        set.insert_range(SectorRange::new(PAGE_SECTORS, PAGE_SECTORS));
        assert_eq!(set.blocks(1), Blocks::ALL);
        assert_eq!((set.remove(1), set.contains(1), set.blocks(1)), (Blocks::ALL, false, Blocks::default()));
        assert_eq!(set.pages_from(1).collect::<Vec<_>>(), [3]);
        set.insert_range(SectorRange::new(3 * PAGE_SECTORS, 2 * BLOCK_SECTORS));
        assert_eq!(set.count(), 4, "each counts once");
    }

    #[test]
    fn sets_that_are_joined_leave_the_other_empty() {
        for mut set in [BlockSet::new(4), {
            let mut set = BlockSet::new(4);
            set.insert(1, Blocks(2));
            set
        }] {
            let was_empty = set.is_empty();
            let mut other = BlockSet::new(4);
            other.insert(1, Blocks(1));
            other.insert(2, Blocks(4));
            set.append(&mut other);
            let first = if was_empty { vec![0] } else { vec![0, 1] };
            assert_eq!((set.count(), other.count()), (first.len() as u64 + 1, 0));
            assert_eq!((held(&set), held(&other)), (vec![(1, first), (2, vec![2])], vec![]));
            other.insert(3, Blocks(1));
            assert_eq!(held(&other), [(3, vec![0])]);
        }
    }

    #[test]
    fn nothing_is_inserted_where_there_are_no_blocks() {
        let mut set = BlockSet::new(1);
        set.insert(0, Blocks::default());
        assert!(set.is_empty());
        set.grow(3);
        set.insert(2, Blocks::ALL);
        assert_eq!((held(&set).len(), set.blocks(2).count()), (1, 128));
    }
}
