//! A volume's log in an object store.
//!
//! Owns: the sequence of requests that reads, extends, truncates, provisions, removes and scrubs a log, and
//! takes and forgets snapshots of a volume that no node has attached. What the records mean is the engine's;
//! what the requests mean is the store's. Costs: finding the volumes of a store is one LIST for each; reading
//! is one LIST of checkpoints, one GET of the newest, one LIST of the records after it and a GET for each; to
//! be sure that there is none after them, and that none of them was truncated, a GET each; provisioning is
//! one PUT; a record is one PUT; a snapshot is one PUT more. After 32 records a checkpoint is one PUT and one
//! LIST, and its truncation one or two GETs, one LIST, one PUT for 64 records, and DELETEs.
//! On failure: a create that did not answer clearly is read back; its outcome is never guessed.

mod create;
mod limit;
mod list;
mod read;
mod remove;
pub mod scrub;
mod snapshot;
mod truncate;

pub use create::{
    CreateOutcome, Creation, create_record, drop_checkpoints, provision, read_creation, write_checkpoint,
};
pub use list::list_volumes;
pub use read::{read_manifest, read_manifest_to_end, read_record};
pub use remove::remove;
pub use snapshot::{SnapshotError, forget, forgotten_from, read_snapshot, snapshot_detached, snapshots};
pub use truncate::{truncate, was_truncated_after};

use holdfast_engine::DecodeError;
use holdfast_engine::manifest::LogError as Order;
use holdfast_engine::record::Origin;
use holdfast_objects::StoreError;
use holdfast_types::{Seq, SnapshotName, VolumeId};

/// Largest record or checkpoint read, in bytes.
const MAX_METADATA_BYTES: u64 = 256 << 20;

/// Reasons for which a log could not be read or extended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogFailure {
    /// A request to the store failed.
    #[error("{what} of volume {volume}")]
    Store {
        /// The operation.
        what: &'static str,
        /// The volume.
        volume: VolumeId,
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// An object's bytes are damaged.
    #[error("object {key} is damaged")]
    Damaged {
        /// Its key.
        key: String,
        /// The first violation found.
        #[source]
        source: DecodeError,
    },
    /// The records do not follow each other.
    #[error("the log of volume {volume} is broken")]
    Broken {
        /// The volume.
        volume: VolumeId,
        /// The first violation found.
        #[source]
        source: Order,
    },
    /// A volume of this id exists already, and is another one.
    #[error("volume {volume} exists already with {sectors} sectors: choose another id")]
    ExistsOtherwise {
        /// The volume.
        volume: VolumeId,
        /// Its size.
        sectors: u64,
    },
    /// A volume of this id exists already, and was created for something else.
    #[error("volume {volume} exists already, created by {origin}: choose another id")]
    CreatedElsewhere {
        /// The volume.
        volume: VolumeId,
        /// The object that it was created for.
        origin: Origin,
    },
    /// The id was used before.
    #[error("volume {0} was deleted and its id cannot be used again: choose another id")]
    WasDeleted(VolumeId),
    /// A volume with snapshots is not removed.
    #[error(
        "volume {volume} has {} that would be lost with it ({}): delete them first",
        count_of(.seqs),
        names_of(.volume, .seqs)
    )]
    HasSnapshots {
        /// The volume.
        volume: VolumeId,
        /// Its snapshots that were not forgotten.
        seqs: Vec<Seq>,
    },
    /// The snapshot to restore is not there, or was deleted.
    #[error("volume {volume} cannot begin with snapshot {snapshot}: it does not exist, or was deleted")]
    NoSuchSource {
        /// The volume that was to be created.
        volume: VolumeId,
        /// The snapshot.
        snapshot: SnapshotName,
    },
    /// The volume would be smaller than the snapshot.
    #[error(
        "volume {volume} cannot have {sectors} sectors: snapshot {snapshot}, which it is to begin with, has {snapshot_sectors}"
    )]
    SmallerThanSource {
        /// The volume that was to be created.
        volume: VolumeId,
        /// Its size.
        sectors: u64,
        /// The snapshot.
        snapshot: SnapshotName,
        /// The size of the snapshot.
        snapshot_sectors: u64,
    },
    /// Other volumes read this one's objects.
    #[error("volumes that began with its snapshots need the objects of volume {volume} ({}): delete them first", ids_of(.forks))]
    HasForks {
        /// The volume.
        volume: VolumeId,
        /// Those volumes.
        forks: Vec<VolumeId>,
    },
    /// Too many generations of forks.
    #[error(
        "snapshot {snapshot} has too many generations of volumes behind it: copy its content into an empty volume"
    )]
    TooManyForks {
        /// The snapshot.
        snapshot: SnapshotName,
    },
    /// The log changed during each read of it, or LIST shows an older part of it.
    #[error(
        "the log of volume {0} changed during each of {tries} reads, or the bucket lists an older part of it: \
         try again; if the volume was deleted, choose another id",
        tries = limit::TRIES
    )]
    Contended(VolumeId),
}

impl LogFailure {
    /// True if a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        use holdfast_objects::ErrorKind::{Conflict, Throttled, Unavailable};
        match self {
            Self::Store { source, .. } => matches!(source.kind(), Throttled | Unavailable | Conflict),
            Self::Contended(_) => true,
            Self::Damaged { .. }
            | Self::Broken { .. }
            | Self::ExistsOtherwise { .. }
            | Self::CreatedElsewhere { .. }
            | Self::WasDeleted(_)
            | Self::HasSnapshots { .. }
            | Self::NoSuchSource { .. }
            | Self::SmallerThanSource { .. }
            | Self::HasForks { .. }
            | Self::TooManyForks { .. } => false,
        }
    }
}

fn count_of(seqs: &[Seq]) -> String {
    if seqs.len() == 1 { "a snapshot".to_owned() } else { format!("{} snapshots", seqs.len()) }
}

/// The names of the first ones.
fn names_of(volume: &VolumeId, seqs: &[Seq]) -> String {
    const NAMED: usize = 5;
    let mut names: Vec<String> = seqs.iter().take(NAMED).map(|seq| format!("{volume}@{seq}")).collect();
    if seqs.len() > NAMED {
        names.push("...".to_owned());
    }
    names.join(", ")
}

/// The ids of the first ones.
fn ids_of(volumes: &[VolumeId]) -> String {
    const NAMED: usize = 5;
    let mut ids: Vec<&str> = volumes.iter().take(NAMED).map(VolumeId::as_str).collect();
    if volumes.len() > NAMED {
        ids.push("...");
    }
    ids.join(", ")
}

fn store(what: &'static str, volume: &VolumeId) -> impl FnOnce(StoreError) -> LogFailure {
    let volume = volume.clone();
    move |source| LogFailure::Store { what, volume, source }
}
