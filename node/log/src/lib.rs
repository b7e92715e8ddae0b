//! A volume's log in an object store, and the indexes of its runs.
//!
//! Owns: the sequence of requests that reads, extends, truncates, provisions, removes and scrubs a log, takes
//! and forgets snapshots of detached volumes, and sweeps a store; the indexes of runs, and the changes
//! between snapshots. Does not own: the meaning of records and indexes (`node/format`), the meaning of
//! requests (the store's).
//! Costs: finding the volumes of a store is one LIST per 1,000. Reading is one LIST (two if the log, or the
//! objects before it, number in the hundreds), and one GET if the last record is a detach with its root,
//! otherwise a GET of the newest checkpoint and of each record after it. Confirming that no record follows
//! and that none was truncated takes a GET each. Provisioning is one PUT; a record is one PUT; a snapshot is
//! one PUT more. After 32 records, a checkpoint is one PUT and one LIST, and its truncation one or two GETs,
//! one LIST, one PUT per 64 records, and DELETEs.
//! On failure: a create with an unclear outcome is read back; the outcome is never guessed.

mod append;
mod changes;
mod create;
mod error;
mod fork;
mod indexes;
mod limit;
mod objects;
mod pass_end;
mod prefetch_list;
mod read;
mod remove;
pub mod scrub;
mod snapshot;
pub mod sweep;
mod take_snapshot;
pub mod trash;
mod truncate;

pub use append::{CreateOutcome, create_record, is_in_place, write_checkpoint};
pub use changes::Changes;
pub use create::{Creation, provision, read_creation};
pub use error::LogFailure;
pub use fork::confirm_fork;
pub use indexes::{IndexSource, Indexes, ObjectError, join_reads};
pub use objects::list_volumes;
pub use pass_end::pass_end;
pub use prefetch_list::{read_prefetch_list, read_source, store_prefetch_list};
pub use read::{read_manifest, read_manifest_to_end, read_record};
pub use remove::remove;
pub use snapshot::{
    OriginPlace, RootPlace, SnapshotError, forget, forgotten_from, forgotten_of, read_origin, read_snapshot,
    read_snapshot_of, snapshots, snapshots_of, store_origin, store_root,
};
pub use take_snapshot::snapshot_detached;
pub use truncate::{drop_checkpoints, tidy, truncate, was_truncated_after};
