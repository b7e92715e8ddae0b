//! Lifecycle of a `Volume`: provision, grant, move, delete.
//!
//! Owns: `spec.volumeID` and `spec.size` if the user left them empty, `status.volumeId`,
//! `status.restoredFrom`, `status.assignedNode`, `status.phase`, `status.observedGeneration`,
//! `status.forcedDetach`, the conditions `Provisioned`, `Assigned`, `Resized` and `UnuploadedDataLost`, and
//! the finalizer.
//! Does not own: the device and all daemon-reported fields; the requests that create and remove a volume's
//! log (`holdfast-log`).
//! Invariants: at most one node has the grant. The grant moves only once `status.node` is empty or names a
//! node that was force-detached (by the user, or by signs of its loss). Nothing is provisioned before the
//! finalizer, the volume's identity and its source snapshot are recorded. Objects that another Volume or
//! cluster created are adopted only on the user's request, and never removed before that. The finalizer is
//! removed only after the objects.
//! On failure: the step is retried; every step is idempotent.

pub(crate) mod adoption;
pub(crate) mod apply;
pub(crate) mod claim;
pub(crate) mod controller;
pub(crate) mod facts;
pub(crate) mod failover;
pub(crate) mod failure;
pub(crate) mod faults;
pub(crate) mod forced_detach;
pub(crate) mod found_in_store;
pub(crate) mod home;
pub(crate) mod identity;
pub(crate) mod in_use;
pub(crate) mod owner;
pub(crate) mod plan;
pub(crate) mod provisionable;
pub(crate) mod snapshot_fact;
pub(crate) mod source_fact;
pub(crate) mod source_snapshot;
pub(crate) mod source_volume;
