//! Sweeps of ObjectStores' buckets and trash: one at a time, each ObjectStore on its schedule (`spec.sweep`).
//!
//! Owns: the schedule of sweeps; their memory of a bucket for the next sweep; `status.sweep`, the events and
//! metrics of sweeps.
//! Does not own: the choice of objects to delete (`holdfast_log::sweep`).
//! Runs on: its own task while this instance leads. The task ends with the leadership or the process, even in
//! the middle of a sweep, and a sweep ends when its ObjectStore changes.
//! Invariants: only stores that are Ready, not being deleted and not suspended are swept. Each result is
//! written once.
//! On failure: an event; the sweep is retried with backoff.

pub(crate) mod cluster;
pub(crate) mod failure;
mod looks;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod schedule;
mod trash;
