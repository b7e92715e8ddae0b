//! Sweeps of the buckets of ObjectStores, and of their trash: one at a time, each ObjectStore on its schedule
//! (`spec.sweep`).
//!
//! Owns: the times of sweeps; what they remember of a bucket for the next one; `status.sweep`, the events and
//! metrics of sweeps. Does not own: what is deleted (`holdfast_log::sweep`).
//! Runs on: a task of its own while this instance leads. It ends with the leadership or the process, also in
//! the middle of a sweep.
//! Invariants: nothing is swept that is not Ready, deleted or suspended. Each result is written once.
//! On failure: an event; the sweep is tried again, more rarely after each failure in a row.

pub(crate) mod cluster;
pub(crate) mod failure;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod schedule;
mod trash;
