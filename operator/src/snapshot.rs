//! The life of a `VolumeSnapshot`: ask, take, delete.
//!
//! Owns: `status.volumeId`, `status.objectStore`, `status.node` and the finalizer; the condition `Ready` until a
//! node is asked, and the whole status of a snapshot that the operator takes itself.
//! Does not own: snapshots of a volume that a node serves, which the node's daemon takes and reports; what a
//! snapshot is in the log (`holdfast-log`).
//! Invariants: the uid of the object tells its snapshot from others, so that whoever takes it, and however
//! often, the log registers one; the volume and its ObjectStore are recorded before it is taken; a snapshot that
//! a node was asked for is not given up before the node took it or released the volume, so that none is
//! registered after the object is gone.
//! On failure: the step is repeated; every step may be repeated.

pub(crate) mod apply;
pub(crate) mod controller;
pub(crate) mod facts;
pub(crate) mod failure;
pub(crate) mod plan;
