//! The life of a `Volume`: provision, grant, move, delete.
//!
//! Owns: `spec.volumeID` and `spec.size` where the user left them open, `status.volumeId`,
//! `status.restoredFrom`, `status.assignedNode`, `status.phase`, `status.observedGeneration`,
//! `status.forcedDetach`, the conditions `Provisioned`, `Assigned`, `Resized` and `UnuploadedDataLost`, and
//! the finalizer.
//! Does not own: the device and everything the daemon reports; the requests that create and remove a volume's
//! log (`holdfast-log`).
//! Invariants: at most one node is granted the volume, and the grant moves only after `status.node` is empty
//! or names a node that was cut off (by the user, or lost by its signs); nothing is provisioned before the
//! finalizer, the volume's identity and the snapshot that it begins with are recorded; objects that another
//! Volume or cluster created are adopted only where the user says so, and never removed before that; the
//! finalizer goes only after the objects.
//! On failure: the step is repeated; every step may be repeated.

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
