//! First reads: the blocks that a fork reads from the store first, for the prefetch list of its snapshot.
//!
//! Owns: the recorded blocks and the end of the recording. Does not own: the list in the store.
//! Pure: no I/O, no clock.

use std::collections::HashSet;

use holdfast_format::limit::MAX_PREFETCH_BLOCKS;
use holdfast_types::{BLOCK_SECTORS, Block, Millis, SectorRange};

/// Duration of the recording, from the first read: the boot of a machine, or the start of a service. It
/// begins again while the blocks are too few: a device may be probed long before it is used.
pub const FIRST_READS_MS: u64 = 60_000;
/// Fewer blocks are no list: a check of the file system reads as little, and is no example for other forks.
const FEWEST: usize = 32;

/// State of the recording after a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstRead {
    /// The read is the first one.
    Begun,
    /// The recording continues, or its blocks were taken.
    Ongoing,
    /// The recording has ended, and its blocks can be taken.
    Ended,
}

/// The recording of one fork.
#[derive(Debug, Default)]
pub struct FirstReads(Recording);

#[derive(Debug, Default)]
enum Recording {
    #[default]
    New,
    Ongoing {
        until: Millis,
        /// In the order of their first reads.
        blocks: Vec<Block>,
        known: HashSet<Block>,
    },
    Taken,
}

impl FirstReads {
    /// Records a read of the store at `now`.
    pub fn read(&mut self, range: SectorRange, now: Millis) -> FirstRead {
        let step = match &mut self.0 {
            Recording::New => {
                let (blocks, known) = (Vec::new(), HashSet::new());
                self.0 = Recording::Ongoing { until: now + FIRST_READS_MS, blocks, known };
                FirstRead::Begun
            }
            Recording::Ongoing { until, blocks, .. } => {
                let is_over = now >= *until;
                if blocks.len() >= MAX_PREFETCH_BLOCKS || (is_over && blocks.len() >= FEWEST) {
                    return FirstRead::Ended;
                }
                if is_over {
                    *until = now + FIRST_READS_MS;
                }
                FirstRead::Ongoing
            }
            Recording::Taken => return FirstRead::Ongoing,
        };
        if let Recording::Ongoing { blocks, known, .. } = &mut self.0 {
            let read = range.split_at_multiples(BLOCK_SECTORS).map(|part| part.start.block());
            blocks.extend(read.filter(|block| known.insert(*block)));
        }
        step
    }

    /// Ends the recording and takes its blocks, in the order of their first reads. `None` if they are too
    /// few, or were taken.
    pub fn take(&mut self) -> Option<Vec<Block>> {
        match std::mem::replace(&mut self.0, Recording::Taken) {
            Recording::Ongoing { blocks, .. } if blocks.len() >= FEWEST => Some(blocks),
            Recording::New | Recording::Ongoing { .. } | Recording::Taken => None,
        }
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
        assert_eq!(reads.read(blocks(40, 2), 7), FirstRead::Begun);
        for range in [blocks(0, 40), blocks(41, 1), blocks(3, 39)] {
            assert_eq!(reads.read(range, 8), FirstRead::Ongoing);
        }
        let expected: Vec<Block> = [40, 41].into_iter().chain(0..40).map(Block).collect();
        assert_eq!(reads.take(), Some(expected));
        assert_eq!((reads.read(blocks(90, 1), 9), reads.take()), (FirstRead::Ongoing, None));
    }

    #[test]
    fn the_recording_ends_after_a_minute_or_when_the_list_is_full() {
        let mut reads = FirstReads::default();
        assert_eq!(reads.read(blocks(0, 50), 7), FirstRead::Begun);
        assert_eq!(reads.read(blocks(60, 1), 7 + FIRST_READS_MS - 1), FirstRead::Ongoing);
        assert_eq!(reads.read(blocks(70, 1), 7 + FIRST_READS_MS), FirstRead::Ended);
        assert_eq!(reads.take().map(|blocks| blocks.len()), Some(51));
        let mut reads = FirstReads::default();
        assert_eq!(reads.read(blocks(0, MAX_PREFETCH_BLOCKS as u64), 7), FirstRead::Begun);
        assert_eq!(reads.read(blocks(0, 1), 7), FirstRead::Ended);
    }

    #[test]
    fn the_recording_of_a_device_that_was_only_probed_begins_again() {
        let mut reads = FirstReads::default();
        assert_eq!(reads.read(blocks(0, 8), 7), FirstRead::Begun);
        let boot = 7 + 10 * FIRST_READS_MS;
        assert_eq!(reads.read(blocks(100, 1), boot), FirstRead::Ongoing);
        assert_eq!(reads.read(blocks(200, 50), boot + FIRST_READS_MS - 1), FirstRead::Ongoing);
        assert_eq!(reads.read(blocks(300, 1), boot + FIRST_READS_MS), FirstRead::Ended);
        assert_eq!(reads.take().map(|blocks| blocks.len()), Some(59));
    }

    #[test]
    fn a_few_blocks_are_no_list() {
        for (count, is_list) in [(0, false), (FEWEST as u64 - 1, false), (FEWEST as u64, true)] {
            let mut reads = FirstReads::default();
            for block in 0..count {
                assert_ne!(reads.read(blocks(2 * block, 1), 7), FirstRead::Ended);
            }
            assert_eq!(reads.take().is_some(), is_list, "{count}");
        }
    }
}
