//! Lifecycle of a `VolumeSnapshot`: ask, take, delete.
//!
//! Owns: `status.volumeId`, `status.objectStore`, `status.node` and the finalizer; the condition `Ready`
//! until a node is asked, and the whole status of a snapshot that the operator takes itself.
//! Does not own: snapshots of a volume that a node serves, which the node's daemon takes and reports; those
//! of a group, except between taking and deletion (`group`); the representation of a snapshot in the log
//! (`holdfast-log`).
//! Invariants: the uid of the object identifies its snapshot: repeated attempts, even by different processes,
//! register only one in the log. The volume and its ObjectStore are recorded before the snapshot is taken.
//! Deleting a snapshot that a node was asked for waits until the node has taken it or released the volume. A
//! node that was force-detached while taking the snapshot may still register it; a user must then delete it.
//! On failure: the step is retried; every step is idempotent.

pub(crate) mod apply;
pub(crate) mod controller;
pub(crate) mod facts;
pub(crate) mod failure;
pub(crate) mod plan;
