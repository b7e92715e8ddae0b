//! The life of a `VolumeSnapshot`: ask, take, delete.
//!
//! Owns: `status.volumeId`, `status.objectStore`, `status.node` and the finalizer; the condition `Ready`
//! until a node is asked, and the whole status of a snapshot that the operator takes itself.
//! Does not own: snapshots of a volume that a node serves, which the node's daemon takes and reports; those
//! of a group until they are taken or to be deleted (`group`); what a snapshot is in the log
//! (`holdfast-log`).
//! Invariants: the uid of the object identifies its snapshot, so that the log registers one, however
//! often it is taken and by which process; the volume and its ObjectStore are recorded before it is taken;
//! the deletion of a snapshot that a node was asked for waits until the node has taken it or released the
//! volume. A node that was cut off while it took the snapshot may still register it: that one is deleted by
//! hand.
//! On failure: the step is repeated; every step may be repeated.

pub(crate) mod apply;
pub(crate) mod controller;
pub(crate) mod facts;
pub(crate) mod failure;
pub(crate) mod plan;
