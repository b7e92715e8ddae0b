//! The location of a volume's data, and the obstacles to creating it.

use holdfast_crds::VolumePhase;
use holdfast_types::{SnapshotName, SnapshotUid};

/// Reason why a volume cannot be provisioned now.
#[derive(Clone, Debug)]
pub(crate) struct Obstacle {
    /// Phase of the volume until it can be provisioned.
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

/// The snapshot that a volume starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceSnapshot {
    /// Its name in the object store.
    pub(crate) name: SnapshotName,
    /// Its uid; `None` if the VolumeSnapshot that it was recorded from was deleted: then nothing is created.
    pub(crate) uid: Option<SnapshotUid>,
}

/// The location of a volume's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// The memory of the node that serves it: nothing is created before the attach.
    Memory,
    /// An object store in which it must be created.
    New {
        /// Size to create it with.
        size_bytes: u64,
    },
    /// An object store in which it must be created with the content of a snapshot.
    Restored {
        /// Size to create it with; `None`: the snapshot's size.
        size_bytes: Option<u64>,
        /// The snapshot in the same object store.
        snapshot: SourceSnapshot,
    },
    /// An object store in which it is created once a snapshot of another Volume is taken.
    Cloned {
        /// Name of that Volume.
        source: String,
        /// Its identity.
        volume_id: String,
    },
    /// An object store in which it already exists.
    Existing {
        /// Size of the existing volume.
        size_bytes: u64,
    },
}

pub(super) fn failed<T>(reason: &'static str, message: String) -> Result<T, Obstacle> {
    Err(Obstacle::new(VolumePhase::Failed, reason, message))
}
