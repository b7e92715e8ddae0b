//! Sweeps of a store: one request, one response.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_log::LogFailure;
use holdfast_log::sweep::{Amount, Skipped, SweepReport};
use holdfast_proto::node::v1 as wire;
use holdfast_s3::S3Config;
use holdfast_service::chain;
use holdfast_service::tasks::Tasks;
use holdfast_types::SnapshotName;
use tokio::sync::oneshot;
use tonic::Status;

use super::{find, no_store, status};
use crate::node::SweepRequest;
use crate::volumes::Volumes;

/// Minimum age of objects to delete, unless the request sets it.
const GRACE: Duration = Duration::from_hours(24);
/// Command that the operator runs instead under Kubernetes.
pub(super) const INSTEAD: &str = "the operator sweeps each ObjectStore, as its spec.sweep says";

/// Checks a request. Without a store name it applies to the only configured store.
pub(super) fn request(
    request: wire::SweepRequest,
    stores: BTreeMap<String, S3Config>,
) -> Result<SweepRequest, Status> {
    let wire::SweepRequest { store, dry_run, grace, most } = request;
    let grace = match grace {
        None => GRACE,
        Some(grace) => grace.try_into().map_err(|_negative| {
            Status::invalid_argument("grace: is negative; give a duration such as 24h")
        })?,
    };
    let name = match (store, stores.first_key_value()) {
        (Some(name), _) => name,
        (None, Some((only, _))) if stores.len() == 1 => only.clone(),
        (None, _) => {
            return Err(no_store(&stores, |known| {
                format!("store: the daemon's configuration has several; name one with --store: {known}")
            }));
        }
    };
    let store = find(stores, &name)?;
    Ok(SweepRequest { name, store, grace, dry_run, most: most.unwrap_or(u64::MAX) })
}

/// Runs a sweep as one of `tasks`. It ends when its caller disconnects.
pub(super) async fn run<V: Volumes>(
    tasks: &Tasks,
    volumes: V,
    request: SweepRequest,
) -> Result<wire::SweepResponse, Status> {
    // Dropped together with this future.
    let (waits, disconnected) = oneshot::channel::<()>();
    let store = request.name.clone();
    let work = tasks.run(async move {
        tokio::select! {
            outcome = volumes.sweep(request) => Some(outcome),
            _ = disconnected => None,
        }
    });
    let outcome = work.await.map_err(status::unfinished)?;
    drop(waits);
    match outcome {
        Some(Ok(report)) => Ok(response(store, report)),
        Some(Err(failure)) => Err(status::of(&failure)),
        None => Err(Status::cancelled("the caller no longer waits")),
    }
}

fn response(store: String, report: SweepReport) -> wire::SweepResponse {
    // Results for unfinished uploads are in the log.
    let SweepReport { volumes, kept, garbage, deleted, oldest, snapshots, skipped, uploads: _ } = report;
    let space =
        |(name, bytes): &(SnapshotName, u64)| wire::SnapshotSpace { name: name.to_string(), bytes: *bytes };
    let amount = |Amount { objects, bytes }| Some(wire::Amount { objects, bytes });
    wire::SweepResponse {
        store,
        volumes,
        kept: amount(kept),
        garbage: amount(garbage),
        deleted: amount(deleted),
        oldest: oldest.map(Into::into),
        skipped: skipped.iter().map(skip).collect(),
        snapshots: snapshots.iter().map(space).collect(),
    }
}

fn skip(skipped: &Skipped) -> wire::SkippedVolume {
    let Skipped { volume, error } = skipped;
    let cause = if matches!(error, LogFailure::NoLog(_)) {
        wire::SkipCause::NoLog
    } else if error.is_transient() && !matches!(error, LogFailure::NotEmpty { .. }) {
        wire::SkipCause::Changing
    } else {
        wire::SkipCause::Damaged
    };
    wire::SkippedVolume { volume_id: volume.to_string(), error: chain(error), cause: cause.into() }
}
