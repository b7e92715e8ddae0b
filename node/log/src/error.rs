//! Reasons why a log could not be read or extended, and their classification.

use holdfast_format::DecodeError;
use holdfast_format::manifest::apply::LogError as Order;
use holdfast_format::record::Origin;
use holdfast_objects::StoreError;
use holdfast_types::{Epoch, Lineage, Seq, SnapshotName, SnapshotUid, VolumeId};

use crate::limit::TRIES;

/// Reason why a log could not be read or extended.
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
        /// True if the request was to create or delete an object.
        is_write: bool,
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
    /// An object belongs to another position.
    #[error(
        "object {key} has the content of seq {seq} of volume {volume}: it was overwritten, or copied to this key"
    )]
    Misplaced {
        /// Key of the object.
        key: String,
        /// The volume that its content belongs to.
        volume: VolumeId,
        /// The seq that its content belongs to.
        seq: Seq,
    },
    /// An object that must be empty is not.
    #[error(
        "object {key} has {bytes} bytes but must be empty: another server answered, or it was overwritten"
    )]
    NotEmpty {
        /// Key of the object.
        key: String,
        /// Length of the object.
        bytes: usize,
    },
    /// An object of the trash is invalid.
    #[error(
        "object {key} is not a valid object of the trash, without a retention or a decision: a newer version wrote it, \
         or it was overwritten"
    )]
    NotOfTrash {
        /// Key of the object.
        key: String,
    },
    /// The records are not consecutive.
    #[error("the log of volume {volume} is broken")]
    Broken {
        /// The volume.
        volume: VolumeId,
        /// The first violation found.
        #[source]
        source: Order,
    },
    /// A different volume with this id exists.
    #[error("volume {volume} already exists with {sectors} sectors: choose another id")]
    ExistsOtherwise {
        /// The volume.
        volume: VolumeId,
        /// Size of the existing volume.
        sectors: u64,
    },
    /// A volume with this id exists, but was created for another object.
    #[error("volume {volume} already exists, created by {origin}: choose another id")]
    CreatedElsewhere {
        /// The volume.
        volume: VolumeId,
        /// The object for which the volume was created.
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
    /// A volume is not removed while a writer is attached.
    #[error(
        "volume {volume} is not removed: node {node} has it attached, with epoch {epoch}, possibly in another cluster"
    )]
    StillAttached {
        /// The volume.
        volume: VolumeId,
        /// The node of its writer.
        node: String,
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// A volume in the trash is not removed because it is in use.
    #[error("volume {0} is not removed: a node has attached it, or written to it, since it was deleted")]
    UsedSince(VolumeId),
    /// A volume in the trash is not removed because data written since then would be lost.
    #[error(
        "volume {volume} is not removed: {} has written to it since it was deleted. To have its data, adopt it with \
         `spec.source.existing`; to remove it, delete that Volume",
        node.as_ref().map_or_else(|| "a node".to_owned(), |node| format!("node {node}"))
    )]
    WrittenSince {
        /// The volume.
        volume: VolumeId,
        /// The node of its last writer, if the log can be read.
        node: Option<String>,
    },
    /// The id is taken by a volume with another source.
    #[error("volume {volume} already exists, {}: choose another id", made_from(.snapshot.as_ref()))]
    OtherSource {
        /// The volume.
        volume: VolumeId,
        /// The snapshot that it was restored from, if any.
        snapshot: Option<SnapshotName>,
    },
    /// The snapshot to restore does not exist.
    #[error("volume {volume} cannot be restored: snapshot {snapshot} does not exist or was deleted")]
    NoSuchSource {
        /// The volume to create.
        volume: VolumeId,
        /// The requested snapshot.
        snapshot: SnapshotName,
    },
    /// The snapshot with this name is a different one.
    #[error(
        "volume {volume} cannot be restored: snapshot {snapshot} of this object store has the UUID {found}, but {wanted} \
         was requested: the bucket was rolled back, or is a different one"
    )]
    OtherSnapshot {
        /// The volume to create.
        volume: VolumeId,
        /// The requested snapshot.
        snapshot: SnapshotName,
        /// Its actual uid.
        found: SnapshotUid,
        /// The requested uid.
        wanted: SnapshotUid,
    },
    /// A volume must not be smaller than its source.
    #[error(
        "volume {volume} would have {sectors} sectors, but snapshot {snapshot} has {snapshot_sectors}: choose at least its size"
    )]
    SmallerThanSource {
        /// The volume to create.
        volume: VolumeId,
        /// The requested size.
        sectors: u64,
        /// The snapshot.
        snapshot: SnapshotName,
        /// Its size.
        snapshot_sectors: u64,
    },
    /// A chain of forks is too long.
    #[error(
        "snapshot {snapshot} cannot be restored as a separate volume: it has {} ancestors, the maximum; copy the \
         content of volume {} to a new volume that is not a fork, and take snapshots of that volume",
        Lineage::MAX_ANCESTORS,
        .snapshot.volume
    )]
    TooManyForks {
        /// The snapshot.
        snapshot: SnapshotName,
    },
    /// A LIST of the store's volumes failed.
    #[error("list the volumes of the store")]
    Volumes {
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// Objects exist without a log.
    #[error("objects are stored under the name of volume {0}, which has no log")]
    NoLog(VolumeId),
    /// Positions of a volume's log are taken by snapshot roots that its log did not create.
    #[error(
        "snapshot {0} was not taken: the roots of other snapshots occupy its log position and those before it, left there when \
         the bucket was rolled back. Nothing was registered. Repeat the request, which tries a later position"
    )]
    ForeignRoot(SnapshotName),
    /// The log changed during each read, or LIST shows an older part of it.
    #[error(
        "the log of volume {0} changed during each of {tries} reads, or the bucket lists an older part of it: \
         try again; if the volume was deleted, choose another id",
        tries = TRIES
    )]
    Contended(VolumeId),
}

impl LogFailure {
    /// Returns true if the log is damaged; false if a newer version wrote it.
    pub fn is_damage(&self) -> bool {
        let is_newer = matches!(self, Self::Damaged { source: DecodeError::Version { .. }, .. });
        !is_newer && matches!(self, Self::Damaged { .. } | Self::Misplaced { .. } | Self::Broken { .. })
    }

    /// Returns true if the store did not answer, or refused a write, so that requests for other volumes would
    /// fail, too.
    pub fn is_of_store(&self) -> bool {
        match self {
            Self::Store { is_write, source, .. } => *is_write || !source.is_of_object(),
            Self::Volumes { .. } => true,
            Self::Damaged { .. }
            | Self::Misplaced { .. }
            | Self::Broken { .. }
            | Self::ExistsOtherwise { .. }
            | Self::CreatedElsewhere { .. }
            | Self::WasDeleted(_)
            | Self::NotOfTrash { .. }
            | Self::StillAttached { .. }
            | Self::UsedSince(_)
            | Self::WrittenSince { .. }
            | Self::OtherSource { .. }
            | Self::NoSuchSource { .. }
            | Self::OtherSnapshot { .. }
            | Self::SmallerThanSource { .. }
            | Self::TooManyForks { .. }
            | Self::NoLog(_)
            | Self::HasSnapshots { .. }
            | Self::Contended(_)
            | Self::ForeignRoot(_)
            | Self::NotEmpty { .. } => false,
        }
    }

    /// Returns true if the store denied the request, or the use of the bucket's key.
    pub(crate) fn is_denied(&self) -> bool {
        use holdfast_objects::{Blocker, ErrorKind};
        let Self::Store { source, .. } = self else { return false };
        matches!(source.kind(), ErrorKind::Denied | ErrorKind::Blocked(Blocker::Key))
    }

    /// Returns true if a later attempt may succeed.
    pub fn is_transient(&self) -> bool {
        use holdfast_objects::ErrorKind::{Conflict, Throttled, Unavailable};
        match self {
            Self::Store { source, .. } | Self::Volumes { source } => {
                matches!(source.kind(), Throttled | Unavailable | Conflict)
            }
            Self::Contended(_) | Self::ForeignRoot(_) | Self::NotEmpty { .. } => true,
            Self::Damaged { .. }
            | Self::Misplaced { .. }
            | Self::Broken { .. }
            | Self::ExistsOtherwise { .. }
            | Self::CreatedElsewhere { .. }
            | Self::WasDeleted(_)
            | Self::NotOfTrash { .. }
            | Self::StillAttached { .. }
            | Self::UsedSince(_)
            | Self::WrittenSince { .. }
            | Self::OtherSource { .. }
            | Self::NoSuchSource { .. }
            | Self::OtherSnapshot { .. }
            | Self::SmallerThanSource { .. }
            | Self::TooManyForks { .. }
            | Self::NoLog(_)
            | Self::HasSnapshots { .. } => false,
        }
    }
}

fn count_of(seqs: &[Seq]) -> String {
    if seqs.len() == 1 { "a snapshot".to_owned() } else { format!("{} snapshots", seqs.len()) }
}

/// Returns the names of the first snapshots.
fn names_of(volume: &VolumeId, seqs: &[Seq]) -> String {
    first_of(seqs.iter().map(|seq| format!("{volume}@{seq}")))
}

fn first_of(names: impl ExactSizeIterator<Item = String>) -> String {
    const NAMED: usize = 5;
    let has_more = names.len() > NAMED;
    let mut named: Vec<String> = names.take(NAMED).collect();
    if has_more {
        named.push("...".to_owned());
    }
    named.join(", ")
}

fn made_from(snapshot: Option<&SnapshotName>) -> String {
    snapshot.map_or_else(|| "created empty".to_owned(), |snapshot| format!("restored from {snapshot}"))
}

/// Returns the failure of a request that reads or lists objects. `what` is the operation.
pub(crate) fn store(what: &'static str, volume: &VolumeId) -> impl FnOnce(StoreError) -> LogFailure {
    let volume = volume.clone();
    move |source| LogFailure::Store { what, volume, is_write: false, source }
}

/// Returns the failure of a request that creates or deletes objects. `what` is the operation.
pub(crate) fn store_write(what: &'static str, volume: &VolumeId) -> impl FnOnce(StoreError) -> LogFailure {
    let volume = volume.clone();
    move |source| LogFailure::Store { what, volume, is_write: true, source }
}

/// Separates a volume that cannot be read, possibly for long, from a store that does not answer.
pub(crate) async fn or_damage<T>(
    read: impl Future<Output = Result<T, LogFailure>>,
) -> Result<Result<T, LogFailure>, LogFailure> {
    match read.await {
        Ok(read) => Ok(Ok(read)),
        Err(error) if error.is_of_store() => Err(error),
        Err(error) => Ok(Err(error)),
    }
}
