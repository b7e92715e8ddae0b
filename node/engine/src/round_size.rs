//! Sizes of a round's work in one turn of the ring thread, and of the journal. Only a simulation reduces
//! the sizes, so that rounds of its small volumes have several groups, several writes and a journal that
//! fills up. Without the feature `simulation` the sizes are fixed.

use crate::limit::{JOURNAL_SAVES, MAP_WRITE_PAGES, ROUND_BLOCKS, ROUND_PAGES};

/// The sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundSize {
    /// Map pages that a round copies at a time.
    pub copied: usize,
    /// Blocks copied at a time if the journal takes them; of the last page, all that changed.
    pub journaled: usize,
    /// Map pages that it writes at a time.
    pub written: usize,
    /// Minimum pages that a slot of the journal must save.
    pub saved: u64,
    /// Slots of the journal; `None` derives them from the volume's size.
    pub journal_slots: Option<u64>,
}

/// The sizes in production.
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

/// Sets these sizes for later rounds of this thread; `None` restores those of production.
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
