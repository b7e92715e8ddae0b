//! Runs: indexes over frames, and a volume's list of them.
//!
//! A run of level 0 is one segment with its own index. A run of a higher level is an object made by merging
//! neighbours of the list; the frames stay in their segments. Byte layouts are drawn at the head of `entry`,
//! `page` and `head`, and in `docs/formats/index-run.md`.
//!
//! Owns: what a run is, how runs become one ([`merge`]) and when ([`policy`]). Does not own: the list, which
//! is the manifest's; reading and storing.

mod entry;
mod head;
pub mod merge;
mod page;
pub mod policy;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use holdfast_types::RunId;

pub use entry::Entry;
pub use head::{RunHead, SegmentObject, TRAILER_BYTES, trailer};
pub use page::RunPage;

use crate::fence::Fence;
use crate::segment::SegmentRef;

/// Place of a merged run, and the chunks that it has entries for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunRef {
    /// Its name.
    pub id: RunId,
    /// One more than that of the runs it was made from, or the same; at least 1.
    pub level: u8,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Byte offset of the head's envelope in the object.
    pub head_offset: u64,
    /// Length of the head's envelope in bytes.
    pub head_bytes: u32,
    /// Number of entries.
    pub entries: u64,
    /// The chunks it has entries for.
    pub chunks: Fence,
}

/// A run of a volume's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// Level 0: a segment with its own index.
    Segment(Arc<SegmentRef>),
    /// Level 1 and above.
    Merged(Arc<RunRef>),
}

/// A volume's runs, newest first.
pub type Runs = Arc<[Run]>;

impl Run {
    /// The chunks that it may have entries for.
    pub fn fence(&self) -> &Fence {
        match self {
            Self::Segment(segment) => &segment.chunks,
            Self::Merged(run) => &run.chunks,
        }
    }

    /// Figures that the choice of merges depends on.
    pub fn shape(&self) -> policy::Shape {
        match self {
            Self::Segment(segment) => policy::Shape { level: 0, entries: segment.entries() },
            Self::Merged(run) => policy::Shape { level: run.level, entries: run.entries },
        }
    }
}
