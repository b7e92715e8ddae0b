//! Difference between a volume's log in a store and the log that this node has written.

use holdfast_types::{Epoch, Seq};

/// Reason why a log does not belong to the writer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForeignLog {
    /// The volume has no log.
    #[error("it has no log there")]
    Absent,
    /// The log belongs to another volume of this name.
    #[error("the log there belongs to another volume of the same name")]
    OtherVolume,
    /// The log lacks the attach: the bucket is a copy from before it, or another bucket.
    #[error("the log there lacks the attach of this node, epoch {0}")]
    NotAttached(Epoch),
    /// The log lacks later records: the bucket is an older copy.
    #[error("the log there has records of this node up to {found} and lacks record {due}")]
    Behind {
        /// The last one.
        found: Seq,
        /// A record that this node committed.
        due: Seq,
    },
    /// Another writer appended to a copy.
    #[error("record {0} of that log was written by another writer")]
    OtherWriter(Seq),
}
