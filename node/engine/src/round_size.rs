//! Sizes of what a round handles in one turn of the ring thread, and of the journal. Only a simulation
//! reduces them, so that rounds of its small volumes have several groups, several writes and a journal that
//! fills up; without the feature `simulation` nothing can.

use crate::limit::{JOURNAL_SAVES, MAP_WRITE_PAGES, ROUND_BLOCKS, ROUND_PAGES};

/// The sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundSize {
    /// Map pages that a round copies at a time.
    pub copied: usize,
    /// Blocks that it copies at a time where the journal takes them; of the last page as many as changed.
    pub journaled: usize,
    /// Map pages that it writes at a time.
    pub written: usize,
    /// Pages that a slot of the journal must save at least.
    pub saved: u64,
    /// Slots of the journal; none for as many as the volume's size gives.
    pub journal_slots: Option<u64>,
}

/// The sizes in programs.
const PROGRAMS: RoundSize = RoundSize {
    copied: ROUND_PAGES,
    journaled: ROUND_BLOCKS,
    written: MAP_WRITE_PAGES,
    saved: JOURNAL_SAVES,
    journal_slots: None,
};

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: std::cell::Cell<RoundSize> = const { std::cell::Cell::new(PROGRAMS) };
}

/// From now on rounds of this thread have these sizes; `None` is what programs do.
#[cfg(feature = "simulation")]
pub fn scale(size: Option<RoundSize>) {
    SCALED.set(size.unwrap_or(PROGRAMS));
}

#[cfg(feature = "simulation")]
pub(crate) fn round_size() -> RoundSize {
    SCALED.get()
}

#[cfg(not(feature = "simulation"))]
pub(crate) const fn round_size() -> RoundSize {
    PROGRAMS
}
