//! Errors of a memory volume.

use crate::pool::SlotTaken;
use crate::word::InvalidWord;

/// Reason why a request to a page fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The volume has reached its limits, or the system has no memory.
    #[error("the volume has no memory for another page, and no room in its spill file")]
    NoSpace,
    /// The page's word or content is not what the volume stored: another program, or a bug, changed the
    /// memory.
    #[error("page {0} is damaged")]
    Damaged(u64),
}

/// Reason why the memory of a volume cannot be used by a successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A word is not valid.
    #[error("page {page}: {source}")]
    Word {
        /// The page.
        page: u64,
        /// The word.
        #[source]
        source: InvalidWord,
    },
    /// Two pages use a slot, or it does not exist.
    #[error("page {page}: {source}")]
    Slot {
        /// The page.
        page: u64,
        /// The cause.
        #[source]
        source: SlotTaken,
    },
    /// More pages are in the spill file than its limit, which is 0 without such a file.
    #[error("{spilled} pages are in the spill file, whose limit is {limit}")]
    Spilled {
        /// Pages in the spill file.
        spilled: u64,
        /// Maximum number of its pages.
        limit: u64,
    },
}
