//! First reads: the blocks that a fork reads from the store first, for the prefetch list of its snapshot.
//!
//! Owns: the recorded blocks. Does not own: the time of the recording, or the list in the store.
//! Pure: no I/O, no clock.

use std::collections::HashSet;

use holdfast_format::limit::MAX_PREFETCH_BLOCKS;
use holdfast_types::{BLOCK_SECTORS, Block, SectorRange};

/// Fewer blocks are no list: a check of the file system reads as little, and is no example for other forks.
const FEWEST: usize = 32;

/// The recording of one fork.
#[derive(Debug, Default)]
pub struct FirstReads(ReadsPhase);

#[derive(Debug, Default)]
enum ReadsPhase {
    #[default]
    New,
    Ongoing {
        /// In the order of their first reads.
        blocks: Vec<Block>,
        known: HashSet<Block>,
    },
    Ended,
}

impl FirstReads {
    /// Records a read of the store. Returns true if it begins the recording.
    pub fn read(&mut self, range: SectorRange) -> bool {
        let begins = matches!(self.0, ReadsPhase::New);
        if begins {
            self.0 = ReadsPhase::Ongoing { blocks: Vec::new(), known: HashSet::new() };
        }
        if let ReadsPhase::Ongoing { blocks, known } = &mut self.0 {
            let read = range.split_at_multiples(BLOCK_SECTORS).map(|part| part.start.block());
            let room = MAX_PREFETCH_BLOCKS - blocks.len();
            blocks.extend(read.filter(|block| known.insert(*block)).take(room));
        }
        begins
    }

    /// Returns the blocks so far, in the order of their first reads. `None` if they are too few: then the
    /// next read begins another recording.
    pub fn blocks(&mut self) -> Option<Vec<Block>> {
        match &self.0 {
            ReadsPhase::Ongoing { blocks, .. } if blocks.len() >= FEWEST => Some(blocks.clone()),
            ReadsPhase::New | ReadsPhase::Ongoing { .. } => {
                self.0 = ReadsPhase::New;
                None
            }
            ReadsPhase::Ended => None,
        }
    }

    /// Ends the recording: no later read begins another one.
    pub fn end(&mut self) {
        self.0 = ReadsPhase::Ended;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(first: u64, count: u64) -> SectorRange {
        SectorRange::new(first * BLOCK_SECTORS + 1, count * BLOCK_SECTORS - 1)
    }

    #[test]
    fn each_block_is_recorded_once_in_the_order_of_its_first_read() {
        let mut reads = FirstReads::default();
        assert!(reads.read(blocks(40, 2)));
        for range in [blocks(0, 40), blocks(41, 1), blocks(3, 39)] {
            assert!(!reads.read(range));
        }
        let expected: Vec<Block> = [40, 41].into_iter().chain(0..40).map(Block).collect();
        assert_eq!(reads.blocks(), Some(expected));
        reads.end();
        assert_eq!((reads.read(blocks(90, 50)), reads.blocks()), (false, None));
    }

    #[test]
    fn a_recording_has_a_limit() {
        let mut reads = FirstReads::default();
        for first in (0..2 * MAX_PREFETCH_BLOCKS as u64).step_by(10) {
            reads.read(blocks(first, 10));
        }
        assert_eq!(reads.blocks().map(|blocks| blocks.len()), Some(MAX_PREFETCH_BLOCKS));
    }

    /// Regression, found in review: the blocks of earlier, short recordings were kept, so a fork that read a
    /// block an hour stored a list of no boot.
    #[test]
    fn a_few_blocks_are_no_list_and_are_forgotten() {
        for (count, is_list) in [(0, false), (FEWEST as u64 - 1, false), (FEWEST as u64, true)] {
            let mut reads = FirstReads::default();
            for block in 0..count {
                reads.read(blocks(2 * block, 1));
            }
            assert_eq!(reads.blocks().is_some(), is_list, "{count}");
        }
        let mut reads = FirstReads::default();
        assert!(reads.read(blocks(0, 8)));
        assert_eq!(reads.blocks(), None);
        assert!(reads.read(blocks(100, 50)), "another recording begins");
        assert_eq!(reads.blocks().map(|blocks| blocks.len()), Some(50));
    }
}
