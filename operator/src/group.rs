//! The life of a `VolumeGroupSnapshot`: several volumes at one point in time.
//!
//! Owns: the status and the finalizer of the VolumeGroupSnapshot; its VolumeSnapshots, and until they are
//! taken their status but for `status.groupProgress` and what a daemon reports of them.
//! Does not own: the hold of a volume's writes, and the snapshots of volumes that a node serves (the node's
//! daemon); deletion of a VolumeSnapshot (`snapshot`).
//! Invariants: an attempt is recorded before its VolumeSnapshots are created; no node is asked to let writes
//! wait before all are prepared, and none to let them continue in an attempt that has not failed before all
//! wait; each write names the version that it was planned from. A VolumeSnapshot that another client created
//! is never written.
//! On failure: an attempt in which a volume was not held, moved or changed has failed, and the next one
//! begins. Every other step is repeated; every step may be repeated.

pub(crate) mod apply;
pub(crate) mod controller;
pub(crate) mod facts;
pub(crate) mod failure;
pub(crate) mod member;
pub(crate) mod plan;
mod untouched;
