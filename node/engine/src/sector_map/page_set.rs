//! Sets of map pages.

use holdfast_types::SectorRange;

use super::PAGE_SECTORS;

/// A set of map pages.
#[derive(Default)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    count: u64,
}

impl PageSet {
    pub(crate) fn new(pages: u64) -> Self {
        Self { words: vec![0; pages.div_ceil(64) as usize], count: 0 }
    }

    pub(crate) fn insert(&mut self, page: u64) {
        let word = &mut self.words[(page / 64) as usize];
        let bit = 1 << (page % 64);
        self.count += u64::from(*word & bit == 0);
        *word |= bit;
    }

    pub(crate) fn insert_range(&mut self, range: SectorRange) {
        for page in range.start.0 / PAGE_SECTORS..=(range.end() - 1) / PAGE_SECTORS {
            self.insert(page);
        }
    }

    pub(crate) fn remove(&mut self, page: u64) {
        let word = &mut self.words[(page / 64) as usize];
        let bit = 1 << (page % 64);
        self.count -= u64::from(*word & bit != 0);
        *word &= !bit;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pages, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter_from(0)
    }

    /// The pages that are not below `first`, lowest first.
    pub(crate) fn iter_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let words = self.words.iter().enumerate().skip((first / 64) as usize);
        let set = |(index, word): (usize, &u64)| {
            let (index, word) = (index as u64, *word);
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| index * 64 + bit)
        };
        words.filter(|(_, word)| **word != 0).flat_map(set).filter(move |page| *page >= first)
    }

    /// Moves the pages of `other` here.
    pub(crate) fn append(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        self.count = 0;
        for (word, more) in self.words.iter_mut().zip(&mut other.words) {
            *word |= std::mem::take(more);
            self.count += u64::from(word.count_ones());
        }
        other.count = 0;
    }
}
