//! Empties the trash of a bucket: removes expired volumes that are not in use.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use holdfast_crds::ObjectStore;
use holdfast_log::LogFailure;
use holdfast_log::trash::{Emptied, TrashTerms, Trashed, empty, read_trash, replaced, take_back};
use holdfast_objects::ObjectStore as Bucket;
use holdfast_types::VolumeId;
use kube::ResourceExt;

use super::cluster::{SweptCluster, VolumeHere};
use super::failure::SweepFailed;
use crate::object_store::trash_terms;

/// Age, by the store's clock, at which the remains of an ended stay are deleted.
const LEFT_FOR: Duration = Duration::from_hours(24);

/// Result of emptying a trash.
#[derive(Default)]
pub(crate) struct TrashReport {
    /// The volumes that remain in the trash.
    pub(crate) volumes: BTreeSet<VolumeId>,
    /// Volumes removed from the trash because a node has attached them, without a Volume here.
    pub(crate) used: Vec<VolumeId>,
    /// Expired volumes that could not be removed, with the reason.
    pub(crate) stuck: Vec<(VolumeId, LogFailure)>,
    /// True if the store reports no time, so that nothing in the bucket can expire.
    pub(crate) is_undated: bool,
}

/// Empties the trash of a bucket.
///
/// # Errors
/// The store or the API server did not answer. All volumes removed until then had expired.
pub(super) async fn empty_trash(
    cluster: &impl SweptCluster,
    store: &ObjectStore,
    bucket: &dyn Bucket,
) -> Result<TrashReport, SweepFailed> {
    let trash = read_trash(bucket).await.map_err(|source| LogFailure::Volumes { source })?;
    trash.clear_ended(bucket, LEFT_FOR).await?;
    let mut report = TrashReport { is_undated: trash.is_undated, ..TrashReport::default() };
    if trash.stays.is_empty() {
        return Ok(report);
    }
    let mut last: HashMap<&VolumeId, &Trashed> = HashMap::new();
    for there in &trash.stays {
        let known = last.entry(&there.stay.volume).or_insert(there);
        if known.since < there.since {
            *known = there;
        }
    }
    let (here, name, terms) = (cluster.volumes().await?, store.name_any(), trash_terms(store));
    for there in &trash.stays {
        let volume = &there.stay.volume;
        let is_last = last.get(volume).is_none_or(|last| *last == there);
        let mut there = there.clone();
        let is_superseded = !is_last && !there.is_ending;
        let is_replaced = if is_superseded { replaced(bucket, &there.stay).await } else { Ok(false) };
        // Its end was decided before the later stay began.
        there.is_ending |= !is_last;
        let ended = match is_replaced {
            Ok(true) => continue,
            Ok(false) => end(bucket, &there, here.get(volume.as_str()), &name, &terms).await,
            Err(failure) => Err(failure),
        };
        match ended {
            Ok(Emptied::NotDue) => drop(report.volumes.insert(volume.clone())),
            Ok(emptied) => {
                tracing::info!(object_store = name, %volume, ?emptied, "volume left the trash");
                if emptied == Emptied::Used {
                    report.used.push(volume.clone());
                }
            }
            Err(failure) if failure.is_of_store() => return Err(failure.into()),
            Err(failure) => {
                report.volumes.insert(volume.clone());
                report.stuck.push((volume.clone(), failure));
            }
        }
    }
    Ok(report)
}

/// Lists the trash of a bucket without changing it.
///
/// # Errors
/// The store did not answer.
pub(super) async fn count_trash(bucket: &dyn Bucket) -> Result<TrashReport, SweepFailed> {
    let trash = read_trash(bucket).await.map_err(|source| LogFailure::Volumes { source })?;
    let is_undated = trash.is_undated;
    let volumes = trash.stays.into_iter().map(|there| there.stay.volume).collect();
    Ok(TrashReport { volumes, is_undated, ..TrashReport::default() })
}

/// Takes back volumes in the trash that have a Volume in this cluster: the cluster was restored. Returns
/// false if one of them must be tried again.
///
/// # Errors
/// The store or the API server did not answer.
pub(super) async fn take_back_used(
    cluster: &impl SweptCluster,
    store: &ObjectStore,
    bucket: &dyn Bucket,
) -> Result<bool, SweepFailed> {
    let trash = read_trash(bucket).await.map_err(|source| LogFailure::Volumes { source })?;
    if trash.stays.is_empty() {
        return Ok(true);
    }
    let (here, name) = (cluster.volumes().await?, store.name_any());
    let volumes: BTreeSet<_> = trash.stays.iter().map(|there| &there.stay.volume).collect();
    let mut are_done = true;
    for volume in volumes {
        if here.get(volume.as_str()).is_some_and(|here| here.uses(&name)) {
            match take_back(bucket, volume).await {
                Ok(_) => tracing::warn!(object_store = name, %volume, "volume in use taken out of the trash"),
                Err(failure) if failure.is_of_store() => return Err(failure.into()),
                Err(failure) => {
                    // Another attempt would not change these.
                    are_done &= matches!(failure, LogFailure::WasDeleted(_) | LogFailure::NotOfTrash { .. });
                    let error = &failure as &dyn std::error::Error;
                    tracing::warn!(object_store = name, %volume, error, "volume in use stayed in the trash");
                }
            }
        }
    }
    Ok(are_done)
}

/// Ends an expired stay. `here` is the Volume that has the identity.
async fn end(
    bucket: &dyn Bucket,
    there: &Trashed,
    here: Option<&VolumeHere>,
    store: &str,
    terms: &TrashTerms,
) -> Result<Emptied, LogFailure> {
    match here {
        _ if there.is_ending => empty(bucket, there, terms).await,
        None => empty(bucket, there, terms).await,
        // Provisioned before the stay began: this cluster was restored, or another one deleted the volume.
        Some(here) if here.uses(store) => {
            take_back(bucket, &there.stay.volume).await?;
            Ok(Emptied::TakenBack)
        }
        // This Volume is about to take the volume back, was rejected, or uses another bucket.
        Some(_) => Ok(Emptied::NotDue),
    }
}
