//! Lifecycle of a `VolumeGroupSnapshot`: several volumes at one point in time.
//!
//! Owns: the status and the finalizer of the VolumeGroupSnapshot; its VolumeSnapshots and, until they are
//! taken, their status except `status.groupProgress` and other daemon-reported fields.
//! Does not own: blocking a volume's writes, and snapshots of volumes that a node serves (the node's daemon);
//! deletion of a VolumeSnapshot (`snapshot`).
//! Invariants: an attempt is recorded before its VolumeSnapshots are created. No node is asked to block
//! writes before all are prepared; in an attempt that has not failed, no node is asked to unblock them before
//! all are blocked. Each write carries the resource version on which its plan is based. A VolumeSnapshot that
//! another client created is never written.
//! On failure: an attempt fails if one of its volumes was not held, or has moved or changed; the next
//! attempt then begins. All other steps are retried; every step is idempotent.

pub(crate) mod apply;
pub(crate) mod controller;
pub(crate) mod facts;
pub(crate) mod failure;
pub(crate) mod member;
pub(crate) mod plan;
mod untouched;
