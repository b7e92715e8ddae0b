//! Sets of map pages.

/// A set of map pages.
#[derive(Default)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    count: u64,
    /// No word before this one holds a page, so that a search in a set that empties from below can start
    /// here.
    lowest: usize,
}

impl PageSet {
    pub(crate) fn new(pages: u64) -> Self {
        let words = vec![0; pages.div_ceil(64) as usize];
        Self { lowest: words.len(), words, count: 0 }
    }

    /// Makes room for `pages` pages, no fewer than before.
    pub(crate) fn grow(&mut self, pages: u64) {
        let (before, words) = (self.words.len(), pages.div_ceil(64) as usize);
        self.words.resize(words.max(before), 0);
        if self.lowest == before {
            self.lowest = self.words.len();
        }
    }

    pub(crate) fn insert(&mut self, page: u64) {
        let index = (page / 64) as usize;
        let word = &mut self.words[index];
        let bit = 1 << (page % 64);
        self.count += u64::from(*word & bit == 0);
        *word |= bit;
        self.lowest = self.lowest.min(index);
    }

    pub(crate) fn remove(&mut self, page: u64) {
        let word = &mut self.words[(page / 64) as usize];
        let bit = 1 << (page % 64);
        self.count -= u64::from(*word & bit != 0);
        *word &= !bit;
        while self.words.get(self.lowest) == Some(&0) {
            self.lowest += 1;
        }
    }

    pub(crate) fn contains(&self, page: u64) -> bool {
        self.words[(page / 64) as usize] & (1 << (page % 64)) != 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the pages, lowest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter_from(0)
    }

    /// Returns the pages from `first` on, lowest first.
    pub(crate) fn iter_from(&self, first: u64) -> impl Iterator<Item = u64> + '_ {
        let words = self.words.iter().enumerate().skip(self.lowest.max((first / 64) as usize));
        let set = |(index, word): (usize, &u64)| {
            let (index, mut left) = (index as u64, *word);
            std::iter::from_fn(move || {
                let page = (left != 0).then(|| index * 64 + u64::from(left.trailing_zeros()))?;
                left &= left - 1;
                Some(page)
            })
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
        self.lowest = self.lowest.min(other.lowest);
        (other.count, other.lowest) = (0, other.words.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_that_grew_holds_what_it_held_and_takes_more() {
        for kept in [None, Some(3)] {
            let mut set = PageSet::new(64);
            kept.into_iter().for_each(|page| set.insert(page));
            set.grow(1000);
            set.grow(10);
            assert_eq!(set.iter().collect::<Vec<_>>(), Vec::from_iter(kept));
            set.insert(999);
            assert_eq!(set.iter().last(), Some(999));
            kept.into_iter().for_each(|page| set.remove(page));
            assert_eq!(set.iter().collect::<Vec<_>>(), [999]);
        }
    }

    #[test]
    fn pages_come_lowest_first_whatever_went_before() {
        let mut set = PageSet::new(1000);
        for page in [700, 3, 64, 999] {
            set.insert(page);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 64, 700, 999]);
        assert_eq!(set.iter_from(64).collect::<Vec<_>>(), [64, 700, 999]);
        set.remove(3);
        set.remove(64);
        assert_eq!((set.lowest, set.iter().next()), (700 / 64, Some(700)), "what is empty is not searched");
        set.insert(65);
        assert_eq!(set.iter().collect::<Vec<_>>(), [65, 700, 999]);
        let mut other = PageSet::new(1000);
        other.insert(1);
        set.append(&mut other);
        assert_eq!((set.iter().collect::<Vec<_>>(), other.is_empty()), (vec![1, 65, 700, 999], true));
        other.insert(5);
        assert_eq!(other.iter().collect::<Vec<_>>(), [5]);
        for page in [1, 65, 700, 999] {
            assert!(set.contains(page));
            set.remove(page);
        }
        assert!(set.is_empty() && set.iter().next().is_none() && !set.contains(1));
        set.insert(0);
        assert_eq!(set.iter().collect::<Vec<_>>(), [0]);
    }
}
