//! Uploads that no daemon will complete: a killed daemon leaves the parts of its uploads, which appear in no
//! object list and are billed.
//!
//! Like an unnamed object, an upload is useless once the log has passed the position of its object. The grace
//! is a second safeguard, as for objects. Costs: one LIST per 1,000 uploads of the bucket and one request per
//! abort. On failure: the sweep continues, and reports the store's response.

use std::collections::BTreeMap;

use holdfast_format::safeguard::{Safeguard::SweepPassedPlaces, safeguard};
use holdfast_objects::{ObjectStore, StoreError, UnfinishedUpload};
use holdfast_types::VolumeId;
use holdfast_types::key::{ObjectKey, VOLUMES_PREFIX};

use super::{Removed, SweepOptions, SweptVolume};

/// The required rights, for messages: a store may deny them although it allows everything else.
pub const ABORT_RIGHTS: &str =
    "allow s3:ListBucketMultipartUploads and s3:AbortMultipartUpload, or have a lifecycle rule abort them";

/// Unfinished uploads found and aborted by a sweep.
#[derive(Debug, Default)]
pub struct UnfinishedUploads {
    /// Useless uploads that are old enough.
    pub abandoned: u64,
    /// Useless uploads that were aborted.
    pub aborted: u64,
    /// Error of a store that did not list the uploads or abort one; the remaining uploads stay until the next
    /// sweep.
    pub failed: Option<StoreError>,
}

/// Aborts the uploads that the volumes' daemons left behind.
pub(super) async fn abort_abandoned(
    objects: &dyn ObjectStore,
    known: &BTreeMap<VolumeId, SweptVolume>,
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
    known: &BTreeMap<VolumeId, SweptVolume>,
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

/// Returns true if no record can ever name the object of the upload. An unreadable volume keeps its uploads.
fn is_abandoned(
    upload: &UnfinishedUpload,
    known: &BTreeMap<VolumeId, SweptVolume>,
    removed: &BTreeMap<VolumeId, Removed>,
) -> bool {
    let (volume, place) = match ObjectKey::parse(&upload.key) {
        Some(ObjectKey::Segment(volume, id)) => (volume, id.place()),
        Some(ObjectKey::Run(volume, id)) => (volume, id.place()),
        Some(_) | None => return false,
    };
    let is_passed = |known: &SweptVolume| known.manifest.is_passed(place) || !safeguard(SweepPassedPlaces);
    removed.contains_key(&volume) || known.get(&volume).is_some_and(is_passed)
}
