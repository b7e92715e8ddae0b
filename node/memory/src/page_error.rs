//! Errors of a memory volume.

use crate::pool::SlotTaken;
use crate::word::InvalidWord;

/// Reason why a request to a page fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The limits of the volume are reached, or the system has no memory.
    #[error("the volume has no memory for another page, and no room in its spill file")]
    NoSpace,
    /// Its word or its content is none that the volume stored: another program changed its memory, or a bug.
    #[error("page {0} is damaged")]
    Damaged(u64),
}

/// Reason why the memory of a volume cannot be used by a successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A word is none.
    #[error("page {page}: {source}")]
    Word {
        /// The page.
        page: u64,
        /// The word.
        #[source]
        source: InvalidWord,
    },
    /// A slot is used twice, or does not exist.
    #[error("page {page}: {source}")]
    Slot {
        /// The page.
        page: u64,
        /// The cause.
        #[source]
        source: SlotTaken,
    },
    /// Pages are in a spill file, and there is none, or it has fewer.
    #[error("{spilled} pages are in its spill file, which may have {limit}")]
    Spilled {
        /// Pages in the spill file.
        spilled: u64,
        /// Pages that it may have.
        limit: u64,
    },
}
