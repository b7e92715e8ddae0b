//! Resolves snapshot ids to the differences between the snapshots in the object store.
//!
//! Each request opens its own connection, so that it uses the newest credentials. All share the indexes.

use std::sync::Arc;

use holdfast_cluster::store_config::{self, StoreConfigError};
use holdfast_crds::VolumeSnapshot;
use holdfast_log::{Changes, Indexes, LogFailure, ObjectError, read_snapshot_of};
use holdfast_s3::S3Store;
use holdfast_service::chain;
use holdfast_types::{Chunk, SectorRange, SnapshotName, SnapshotUid};
use kube::Client;
use tonic::Status;

use crate::controller::object_name::is_object_name;
use crate::controller::objects::Objects;
use crate::controller::snapshots::{condition, missing};

/// Bytes of indexes cached for all requests, and the expected number.
const INDEX_BYTES: u64 = 64 << 20;
const INDEXES: usize = 2000;
/// Name of this program in messages about Secrets.
const READER: &str = "the CSI driver's snapshot metadata service";

/// One or two snapshots, and the store that holds them.
pub(super) struct BlockSource {
    pub(super) changes: Changes,
    objects: S3Store,
    indexes: Arc<Indexes>,
}

/// Returns the cache for the indexes of all requests; their names are unique across stores.
pub(super) fn indexes() -> Arc<Indexes> {
    Arc::new(Indexes::new(INDEXES, INDEX_BYTES))
}

impl BlockSource {
    /// Returns the sectors of a chunk that differ, as ascending, disjoint runs.
    pub(super) async fn in_chunk(&self, chunk: Chunk) -> Result<Vec<SectorRange>, Status> {
        self.changes.in_chunk(&self.objects, &self.indexes, chunk).await.map_err(|error| unreadable(&error))
    }
}

/// A snapshot in its store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StoredSnapshot {
    store: String,
    name: SnapshotName,
    /// The uid of the VolumeSnapshot that it was taken for.
    uid: SnapshotUid,
}

/// Opens the content of a snapshot, or its changes since another snapshot of the volume. Its indexes are
/// cached in `indexes`.
///
/// # Errors
/// A status that names the field and the missing object.
pub(super) async fn open(
    client: &Client,
    snapshots: &Objects<VolumeSnapshot>,
    indexes: Arc<Indexes>,
    base: Option<&str>,
    target: &str,
) -> Result<BlockSource, Status> {
    let field = if base.is_some() { "target_snapshot_id" } else { "snapshot_id" };
    let target = find(snapshots, field, target).await?;
    let base = match base {
        Some(base) => Some(find(snapshots, "base_snapshot_id", base).await?),
        None => None,
    };
    if let Some(base) = &base {
        follows(base, &target)?;
    }
    let config =
        store_config::read(client, READER, &target.store).await.map_err(|error| of_config(&error))?;
    let objects = S3Store::connect(config.config)
        .await
        .map_err(|error| of_config(&StoreConfigError::Invalid(error)))?;
    let root = async |StoredSnapshot { store, name, uid }: StoredSnapshot| match read_snapshot_of(
        &objects, &name, uid,
    )
    .await
    {
        Ok(Some(root)) => Ok(root),
        Ok(None) => Err(Status::not_found(format!(
            "snapshot {name}, taken for UUID {uid}, is not in ObjectStore `{store}`: it was deleted in the \
             meantime, the bucket was restored to an earlier state, or it is a different bucket"
        ))),
        Err(error) => Err(of_log(&error)),
    };
    let target = root(target).await?;
    let changes = match base {
        Some(base) => Changes::between(root(base).await?, target),
        None => Changes::all_of(target),
    };
    Ok(BlockSource { changes, objects, indexes })
}

/// Finds the snapshot with this id in its store.
async fn find(snapshots: &Objects<VolumeSnapshot>, field: &str, id: &str) -> Result<StoredSnapshot, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument(format!("{field}: is empty; name a snapshot")));
    }
    let found = if is_object_name(id) { snapshots.get(id).await? } else { None };
    place(field, &found.ok_or_else(|| missing(field, id))?)
}

fn place(field: &str, snapshot: &VolumeSnapshot) -> Result<StoredSnapshot, Status> {
    let status = snapshot.status.as_ref();
    let taken = status.and_then(|it| it.object_store.clone().zip(it.snapshot_id.as_ref()));
    let Some((store, name)) = taken else {
        return Err(Status::unavailable(format!("{field}: not taken yet: {}", condition(snapshot))));
    };
    let unlike =
        |what: &str| Status::internal(format!("{field}: the VolumeSnapshot has a {what} that is not valid"));
    let name = name.parse().ok().ok_or_else(|| unlike("status.snapshotId"))?;
    let uid = snapshot.uid_in_store().and_then(|uid| uid.parse().ok());
    Ok(StoredSnapshot { store, name, uid: uid.ok_or_else(|| unlike("metadata.uid"))? })
}

/// Checks that `target` is a later snapshot of the volume of `base`, or the same snapshot.
///
/// # Errors
/// `INVALID_ARGUMENT`.
fn follows(base: &StoredSnapshot, target: &StoredSnapshot) -> Result<(), Status> {
    if (&base.store, &base.name.volume) != (&target.store, &target.name.volume) {
        return Err(Status::invalid_argument(format!(
            "base_snapshot_id: {} and {} are snapshots of different volumes; name one of the same volume",
            base.name, target.name
        )));
    }
    if base.name.seq > target.name.seq {
        return Err(Status::invalid_argument(format!(
            "base_snapshot_id: {} was taken after {}; name the earlier one as the base",
            base.name, target.name
        )));
    }
    Ok(())
}

fn of_config(error: &StoreConfigError) -> Status {
    match error {
        StoreConfigError::Api(_) => Status::unavailable(chain(error)),
        StoreConfigError::Missing(_)
        | StoreConfigError::NoSecret { .. }
        | StoreConfigError::SecretForbidden { .. }
        | StoreConfigError::NoSecretKey { .. }
        | StoreConfigError::NoWebIdentity { .. }
        | StoreConfigError::TwoCaBundles
        | StoreConfigError::Invalid(_) => Status::failed_precondition(chain(error)),
    }
}

fn of_log(error: &LogFailure) -> Status {
    // The store does not answer, or the log changes faster than it can be read.
    let may_change = matches!(error, LogFailure::Store { .. } | LogFailure::Contended(_));
    if may_change { Status::unavailable(chain(error)) } else { Status::data_loss(chain(error)) }
}

fn unreadable(error: &ObjectError) -> Status {
    if error.is_final() { Status::data_loss(chain(error)) } else { Status::unavailable(chain(error)) }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::controller::snapshots::tests::snapshot;

    fn at(store: &str, name: &str) -> StoredSnapshot {
        let name = name.parse().expect("a snapshot");
        StoredSnapshot { store: store.to_owned(), name, uid: SnapshotUid([1; 16]) }
    }

    #[test]
    fn a_snapshot_that_is_not_taken_says_what_it_waits_for() {
        assert_eq!(place("snapshot_id", &snapshot(true, "Taken")).ok(), Some(at("main", "id@7")));
        let mut waits = snapshot(false, "Taking");
        if let Some(status) = &mut waits.status {
            status.snapshot_id = None;
        }
        let refused = place("snapshot_id", &waits).expect_err("it has no place");
        assert_eq!(refused.code(), Code::Unavailable);
        assert!(refused.message().starts_with("snapshot_id: not taken yet: "), "{refused}");
    }

    #[test]
    fn only_a_later_snapshot_of_the_same_volume_is_compared() {
        let base = at("main", "a@7");
        assert!(follows(&base, &at("main", "a@9")).is_ok() && follows(&base, &base).is_ok());
        for (target, word) in [
            (at("main", "a@6"), "was taken after"),
            (at("main", "b@9"), "different volumes"),
            (at("other", "a@9"), "different volumes"),
        ] {
            let refused = follows(&base, &target).expect_err("it cannot be compared");
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(word), "{refused}");
        }
    }
}
