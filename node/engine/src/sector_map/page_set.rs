//! Sets of map pages.

use holdfast_types::SectorRange;

use super::PAGE_SECTORS;

/// A set of map pages.
#[derive(Default)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    any: bool,
}

impl PageSet {
    pub(crate) fn new(pages: u64) -> Self {
        Self { words: vec![0; pages.div_ceil(64) as usize], any: false }
    }

    pub(crate) fn insert(&mut self, page: u64) {
        self.words[(page / 64) as usize] |= 1 << (page % 64);
        self.any = true;
    }

    pub(crate) fn insert_range(&mut self, range: SectorRange) {
        for page in range.start.0 / PAGE_SECTORS..=(range.end() - 1) / PAGE_SECTORS {
            self.insert(page);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.any
    }

    /// The pages, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let set = |(index, word): (usize, &u64)| {
            let (index, word) = (index as u64, *word);
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| index * 64 + bit)
        };
        self.words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(set)
    }

    /// Empties the set into a list, lowest page first.
    pub(crate) fn take(&mut self) -> Vec<u64> {
        if !std::mem::take(&mut self.any) {
            return Vec::new();
        }
        let pages = self.iter().collect();
        self.words.fill(0);
        pages
    }
}
