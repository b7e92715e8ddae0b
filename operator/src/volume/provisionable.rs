//! Obstacles to creating a Volume in its object store; without one, the way to create it.

use holdfast_crds::{ByteSize, MAX_SIZE_BYTES, UNKNOWN_VALUE, VolumePhase, VolumeSource};

use super::facts::{ClusterFacts, StoreFact};
use super::found_in_store::FoundInStore;
use super::home::{Home, Obstacle, failed};
use super::source_snapshot::restorable;
use super::source_volume::clonable;

/// Decides how the volume is created in the object store.
///
/// # Errors
/// Reason why it cannot be created now; the message names the field to change.
pub(crate) fn provisionable(facts: &ClusterFacts) -> Result<Home, Obstacle> {
    check_size(facts)?;
    if let Some(rival) = &facts.identity.rival {
        // A memory volume cannot be retained: it has no data that the other one could keep.
        let how = if facts.spec.is_memory() { "" } else { " with spec.deletionPolicy `Retain`" };
        return failed(
            "IdTaken",
            format!(
                "spec.volumeID: Volume `{rival}` also has the identity `{}`. Nothing was changed. Delete one of \
                 the two{how}, or create this one with another spec.volumeID",
                facts.identity.id
            ),
        );
    }
    if facts.spec.is_memory() {
        let readable = facts.spec.max_memory_bytes().and_then(|_memory| facts.spec.max_spill_bytes());
        return match readable {
            Ok(_spill) => Ok(Home::Memory),
            Err(error) => failed("InvalidSize", error.to_string()),
        };
    }
    check_store(facts)?;
    let wanted = facts.spec.size_bytes();
    match (&facts.spec.source, wanted) {
        (VolumeSource::Existing(_), wanted) => {
            adoptable(facts, wanted.ok()).map(|size_bytes| Home::Existing { size_bytes })
        }
        (VolumeSource::Snapshot(source), wanted) => {
            let size_bytes = wanted.ok();
            let snapshot = restorable(facts, &source.name, size_bytes)?;
            Ok(Home::Restored { size_bytes, snapshot })
        }
        (VolumeSource::Volume(source), wanted) => clonable(facts, &source.name, wanted.ok()),
        (VolumeSource::Empty(_), Ok(size_bytes)) => Ok(Home::New { size_bytes }),
        (VolumeSource::Empty(_), Err(error)) => failed("InvalidSize", error.to_string()),
        // The plan has checked it before.
        (VolumeSource::Unknown(_), _) => failed(UNKNOWN_VALUE, "spec.source is not known".to_owned()),
    }
}

/// Returns the size of the volume in the object store, if it can be adopted.
fn adoptable(facts: &ClusterFacts, wanted: Option<u64>) -> Result<u64, Obstacle> {
    let (id, store) = (&facts.identity.id, facts.store_name());
    match &facts.content.found {
        None => Err(Obstacle::new(
            VolumePhase::Pending,
            "Provisioning",
            format!("reading the volume in ObjectStore {store}"),
        )),
        Some(FoundInStore::Nothing) => failed(
            "VolumeNotFound",
            format!(
                "spec.volumeID: ObjectStore `{store}` holds no volume `{id}`; create the Volume with the id and the ObjectStore of one that exists, or with spec.source `empty`"
            ),
        ),
        Some(FoundInStore::Tombstone) => failed(
            "VolumeDeleted",
            format!(
                "spec.volumeID: the volume `{id}` in ObjectStore `{store}` was deleted; create the Volume with another id and spec.source `empty`"
            ),
        ),
        Some(FoundInStore::Volume { size_bytes, .. }) if *size_bytes > MAX_SIZE_BYTES => failed(
            "InvalidSize",
            format!(
                "spec.volumeID: the volume `{id}` in ObjectStore `{store}` has {size_bytes} bytes, more than the {} of spec.size; serve it with `holdfast-node attach`",
                ByteSize(MAX_SIZE_BYTES)
            ),
        ),
        Some(FoundInStore::Volume { size_bytes, .. }) => match wanted {
            Some(wanted) if wanted < *size_bytes => failed(
                "InvalidSize",
                format!(
                    "spec.size: the volume `{id}` in ObjectStore `{store}` has {size_bytes} bytes and cannot shrink to {wanted}; write `{}` or more",
                    ByteSize(*size_bytes)
                ),
            ),
            Some(_) | None => Ok(*size_bytes),
        },
    }
}

/// Checks the size given in the spec.
fn check_size(facts: &ClusterFacts) -> Result<(), Obstacle> {
    match (&facts.spec.size, facts.spec.size_bytes()) {
        (Some(_), Err(error)) => failed("InvalidSize", error.to_string()),
        (Some(_) | None, Ok(_) | Err(_)) => Ok(()),
    }
}

fn check_store(facts: &ClusterFacts) -> Result<(), Obstacle> {
    let pending = |reason, message| Err(Obstacle::new(VolumePhase::Pending, reason, message));
    let store = facts.store_name();
    match &facts.store {
        StoreFact::Ready => Ok(()),
        StoreFact::None => {
            failed("ObjectStoreMissing", "spec.objectStore: write the name of an ObjectStore".to_owned())
        }
        StoreFact::Missing => pending(
            "ObjectStoreMissing",
            format!(
                "spec.objectStore: no ObjectStore is named `{store}`; create it, or create the Volume with the name of one that exists"
            ),
        ),
        StoreFact::NotRead | StoreFact::Unprobed => pending(
            "ObjectStoreUnprobed",
            format!("spec.objectStore: waiting for the first probe of ObjectStore `{store}`"),
        ),
        StoreFact::NotReady { reason, message } => pending(
            "ObjectStoreNotReady",
            format!("spec.objectStore: ObjectStore `{store}` is not Ready ({reason}: {message})"),
        ),
    }
}
