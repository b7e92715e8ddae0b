//! Uploads that no daemon completes any more: a daemon that is killed leaves the parts of its uploads, which
//! are in no list of objects and are paid for.
//!
//! An upload is of no use once the log has passed the place of its object, as an object would be that nothing
//! names. The grace is a second guard, as for objects. Costs: one LIST for each 1,000 uploads of the bucket
//! and an abort for each. On failure: the sweep does not depend on it, and reports the store's answer.

use std::collections::BTreeMap;

use holdfast_format::safeguard::{Safeguard::SweepPassedPlaces, safeguard};
use holdfast_objects::{ObjectStore, StoreError, UnfinishedUpload};
use holdfast_types::VolumeId;
use holdfast_types::key::{ObjectKey, VOLUMES_PREFIX};

use super::{Known, Removed, SweepOptions};

/// The rights that a store asks for, as a message names them: it may deny them where it allows all else.
pub const ABORT_RIGHTS: &str =
    "allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or have a lifecycle rule abort them";

/// Unfinished uploads as a sweep finds and leaves them.
#[derive(Debug, Default)]
pub struct UnfinishedUploads {
    /// Those that are of no use and old enough.
    pub abandoned: u64,
    /// Those of them that were aborted.
    pub aborted: u64,
    /// Answer of a store that did not list them or abort one: the others stay until the next sweep.
    pub failed: Option<StoreError>,
}

/// Aborts what the volumes' daemons left behind.
pub(super) async fn abort_abandoned(
    objects: &dyn ObjectStore,
    known: &BTreeMap<VolumeId, Known>,
    removed: &BTreeMap<VolumeId, Removed>,
    options: SweepOptions,
) -> UnfinishedUploads {
    let mut found = UnfinishedUploads::default();
    if let Err(error) = abort(objects, known, removed, options, &mut found).await {
        found.failed = Some(error);
    }
    found
}

async fn abort(
    objects: &dyn ObjectStore,
    known: &BTreeMap<VolumeId, Known>,
    removed: &BTreeMap<VolumeId, Removed>,
    options: SweepOptions,
    found: &mut UnfinishedUploads,
) -> Result<(), StoreError> {
    for upload in objects.unfinished_uploads(VOLUMES_PREFIX).await? {
        if !options.is_old(upload.age) || !is_abandoned(&upload, known, removed) {
            continue;
        }
        found.abandoned += 1;
        if !options.dry_run {
            objects.abort_upload(&upload).await?;
            found.aborted += 1;
        }
    }
    Ok(())
}

/// Returns true if no record can come to name the object of an upload. A volume that could not be read keeps
/// its uploads.
fn is_abandoned(
    upload: &UnfinishedUpload,
    known: &BTreeMap<VolumeId, Known>,
    removed: &BTreeMap<VolumeId, Removed>,
) -> bool {
    let (volume, place) = match ObjectKey::parse(&upload.key) {
        Some(ObjectKey::Segment(volume, id)) => (volume, id.place()),
        Some(ObjectKey::Run(volume, id)) => (volume, id.place()),
        Some(_) | None => return false,
    };
    let is_passed = |known: &Known| known.manifest.is_passed(place) || !safeguard(SweepPassedPlaces);
    removed.contains_key(&volume) || known.get(&volume).is_some_and(is_passed)
}
