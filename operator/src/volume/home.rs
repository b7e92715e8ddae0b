//! The place of a volume in the object store, and the obstacles to it.

use holdfast_crds::VolumePhase;
use holdfast_types::{SnapshotName, SnapshotUid};

/// Reason for which a volume cannot be provisioned now.
#[derive(Clone, Debug)]
pub(crate) struct Obstacle {
    /// State of the volume meanwhile.
    pub(crate) phase: VolumePhase,
    /// Reason of its condition.
    pub(crate) reason: &'static str,
    /// Message of its condition.
    pub(crate) message: String,
}

impl Obstacle {
    pub(crate) fn new(phase: VolumePhase, reason: &'static str, message: String) -> Self {
        Self { phase, reason, message }
    }
}

/// The snapshot that a volume begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceSnapshot {
    /// Its name in the object store.
    pub(crate) name: SnapshotName,
    /// Its uid; none where the VolumeSnapshot that it was recorded from is gone: then nothing is created.
    pub(crate) uid: Option<SnapshotUid>,
}

/// The place of a volume's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The memory of the node that serves it: nothing is created before that.
    Memory,
    /// It is to be created.
    New {
        /// Size to create it with.
        size_bytes: u64,
    },
    /// It is to be created with the content of a snapshot.
    Restored {
        /// Size to create it with; `None`: that of the snapshot.
        size_bytes: Option<u64>,
        /// The snapshot in the same object store.
        snapshot: SourceSnapshot,
    },
    /// It is to be created once a snapshot of another Volume is taken.
    Cloned {
        /// Name of that Volume.
        source: String,
        /// Its identity.
        volume_id: String,
    },
    /// It is there.
    Existing {
        /// Size that it has.
        size_bytes: u64,
    },
}

pub(super) fn failed<T>(reason: &'static str, message: String) -> Result<T, Obstacle> {
    Err(Obstacle::new(VolumePhase::Failed, reason, message))
}
