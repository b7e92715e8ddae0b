//! Initial content of a volume: that of a snapshot, or of another volume.

use holdfast_crds::{
    CloneSource, FS_TYPE, READY, SnapshotSource, Volume, VolumeSnapshot, VolumeSource, is_true,
};
use holdfast_proto::csi::v1::VolumeContentSource;
use holdfast_proto::csi::v1::volume_content_source::{self as wire, Type};
use kube::ResourceExt;
use tonic::Status;

use super::memory;
use super::object_name::{is_object_name, volume_id};
use super::objects::Objects;
use super::snapshots::{condition, missing, snapshot_id};
use super::volumes::ClusterVolumes;
use crate::capability::FileSystem;

/// Reads the source of a request.
///
/// # Errors
/// `INVALID_ARGUMENT`, naming the field.
pub(super) fn read(source: Option<VolumeContentSource>) -> Result<VolumeSource, Status> {
    let invalid =
        |status: Status| Status::invalid_argument(format!("volume_content_source.{}", status.message()));
    let Some(VolumeContentSource { r#type }) = source else { return Ok(VolumeSource::default()) };
    match r#type {
        Some(Type::Snapshot(wire::SnapshotSource { snapshot_id: id })) => {
            let name = snapshot_id(&id).map_err(invalid)?.to_owned();
            Ok(VolumeSource::Snapshot(SnapshotSource { name }))
        }
        Some(Type::Volume(wire::VolumeSource { volume_id: id })) => {
            let name = volume_id(&id).map_err(invalid)?.to_owned();
            Ok(VolumeSource::Volume(CloneSource { name }))
        }
        None => Err(Status::invalid_argument(
            "volume_content_source.type: is empty; name a snapshot or a volume, or leave the source out",
        )),
    }
}

/// Returns the source in CSI's format.
pub(super) fn described(source: &VolumeSource) -> Option<VolumeContentSource> {
    let r#type = match source {
        VolumeSource::Snapshot(SnapshotSource { name }) => {
            Type::Snapshot(wire::SnapshotSource { snapshot_id: name.clone() })
        }
        VolumeSource::Volume(CloneSource { name }) => {
            Type::Volume(wire::VolumeSource { volume_id: name.clone() })
        }
        VolumeSource::Empty(_) | VolumeSource::Existing(_) | VolumeSource::Unknown(_) => return None,
    };
    Some(VolumeContentSource { r#type: Some(r#type) })
}

/// Returns the size of the source of a volume in `object_store`, in bytes; `None` for an empty source.
/// `file_system`: that of the volume; `None` for a raw device.
///
/// # Errors
/// `NOT_FOUND`; `INVALID_ARGUMENT` if it is in another store, or has another file system; `ABORTED` while its
/// size is unknown.
pub(super) async fn size(
    volumes: &ClusterVolumes,
    snapshots: &Objects<VolumeSnapshot>,
    source: &VolumeSource,
    object_store: &str,
    file_system: Option<FileSystem>,
) -> Result<Option<u64>, Status> {
    match source {
        VolumeSource::Snapshot(SnapshotSource { name }) => {
            let field = "volume_content_source.snapshot_id";
            let found = if is_object_name(name) { snapshots.get(name).await? } else { None };
            let snapshot = found.ok_or_else(|| missing(field, name))?;
            let bytes = of_snapshot(&snapshot, object_store)?;
            // It may outlive its Volume.
            let origin = &snapshot.spec.volume;
            let is_asked = file_system.is_some() && is_object_name(origin);
            let origin = if is_asked { volumes.get(origin).await? } else { None };
            if let Some(volume) = origin.filter(|volume| is_of(&snapshot, volume)) {
                same_file_system(&volume, file_system)?;
            }
            Ok(Some(bytes))
        }
        VolumeSource::Volume(CloneSource { name }) => {
            let field = "volume_content_source.volume_id";
            let found = if is_object_name(name) { volumes.get(name).await? } else { None };
            let none = || Status::not_found(format!("{field}: no Volume is named `{name}`"));
            let volume = found.ok_or_else(none)?;
            let bytes = of_volume(&volume, object_store)?;
            same_file_system(&volume, file_system).map(|()| Some(bytes))
        }
        // A request has no source of a later release.
        VolumeSource::Empty(_) | VolumeSource::Existing(_) | VolumeSource::Unknown(_) => Ok(None),
    }
}

fn of_snapshot(snapshot: &VolumeSnapshot, object_store: &str) -> Result<u64, Status> {
    let status = snapshot.status.clone().unwrap_or_default();
    let Some(bytes) = status.size_bytes.filter(|_bytes| is_true(&status.conditions, READY)) else {
        return Err(Status::aborted(format!(
            "volume_content_source.snapshot_id: the VolumeSnapshot is not taken yet: {}",
            condition(snapshot)
        )));
    };
    same_store(&status.object_store.unwrap_or_default(), object_store, "the snapshot").map(|()| bytes)
}

fn of_volume(volume: &Volume, object_store: &str) -> Result<u64, Status> {
    memory::refuse(
        volume,
        "volume_content_source.volume_id",
        "clones",
        "Create an empty claim, and copy the files",
    )?;
    same_store(volume.spec.object_store.as_deref().unwrap_or_default(), object_store, "the volume")?;
    volume.spec.size_bytes().map_err(|_none| {
        Status::aborted(
            "volume_content_source.volume_id: the Volume is not provisioned yet, so its size is unknown",
        )
    })
}

/// Returns true if the snapshot is one of this Volume, not of an earlier one of its name.
fn is_of(snapshot: &VolumeSnapshot, volume: &Volume) -> bool {
    let id = volume.status.as_ref().and_then(|status| status.volume_id.as_ref());
    id.is_some() && id == snapshot.status.as_ref().and_then(|status| status.volume_id.as_ref())
}

/// Checks that a source was created for that file system, if it was created for any.
///
/// # Errors
/// `INVALID_ARGUMENT`: it was created for another one, and could not be mounted.
fn same_file_system(source: &Volume, wanted: Option<FileSystem>) -> Result<(), Status> {
    if let (Some(found), Some(wanted)) = (source.annotations().get(FS_TYPE), wanted.map(FileSystem::name))
        && found != wanted
    {
        return Err(Status::invalid_argument(format!(
            "volume_capabilities.mount.fs_type: the source, Volume {}, has {found}, not {wanted}; use a \
             StorageClass whose csi.storage.k8s.io/fstype is {found}",
            source.name_any()
        )));
    }
    Ok(())
}

fn same_store(found: &str, wanted: &str, what: &str) -> Result<(), Status> {
    if found == wanted {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "parameters.objectStore: {what} is in ObjectStore `{found}`, not in `{wanted}`; use a StorageClass of its ObjectStore"
    )))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::publish_volume::tests::volume;
    use super::super::snapshots::tests::snapshot;
    use super::*;

    #[test]
    fn a_source_is_read_and_described() {
        let of = |r#type| Some(VolumeContentSource { r#type: Some(r#type) });
        for source in [
            of(Type::Snapshot(wire::SnapshotSource { snapshot_id: "backup".to_owned() })),
            of(Type::Volume(wire::VolumeSource { volume_id: "data".to_owned() })),
            None,
        ] {
            assert_eq!(described(&read(source.clone()).expect("a source")), source);
        }
        for (source, words) in [
            (
                of(Type::Snapshot(wire::SnapshotSource::default())),
                "volume_content_source.snapshot_id: is empty",
            ),
            (of(Type::Volume(wire::VolumeSource::default())), "volume_content_source.volume_id: is empty"),
            (Some(VolumeContentSource { r#type: None }), "volume_content_source.type: is empty"),
        ] {
            let refused = read(source).expect_err(words);
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with(words), "{}", refused.message());
        }
    }

    #[test]
    fn a_source_in_another_store_or_not_taken_is_refused() {
        assert_eq!(of_snapshot(&snapshot(true, "Taken"), "main").ok(), Some(1 << 30));
        let other = of_snapshot(&snapshot(true, "Taken"), "cold").expect_err("another store");
        assert_eq!(other.code(), Code::InvalidArgument);
        assert!(other.message().contains("`main`, not in `cold`"), "{}", other.message());
        let waits = of_snapshot(&snapshot(false, "Taking"), "main").expect_err("not taken");
        assert_eq!(waits.code(), Code::Aborted);
        let source = volume(None, None);
        let store = source.spec.object_store.clone().unwrap_or_default();
        assert_eq!(of_volume(&source, &store).ok(), source.spec.size_bytes().ok());
        assert_eq!(of_volume(&source, "cold").expect_err("another store").code(), Code::InvalidArgument);
    }

    /// Regression, found in review: such a claim was bound, and its pods never started.
    #[test]
    fn a_source_with_another_file_system_is_refused() {
        let mut source = volume(None, Some("a"));
        same_file_system(&source, Some(FileSystem::Xfs)).expect("it was created as a raw device");
        source.annotations_mut().insert(FS_TYPE.to_owned(), "ext4".to_owned());
        same_file_system(&source, Some(FileSystem::Ext4)).expect("the same");
        same_file_system(&source, None).expect("a raw device");
        let refused = same_file_system(&source, Some(FileSystem::Xfs)).expect_err("another");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("csi.storage.k8s.io/fstype is ext4"), "{}", refused.message());

        let mut taken = snapshot(true, "Taken");
        for (id, is_its_own) in [(None, false), (Some("other"), false), (Some("id"), true)] {
            taken.status.as_mut().expect("a status").volume_id = id.map(str::to_owned);
            assert_eq!(is_of(&taken, &source), is_its_own, "{id:?}");
        }
        assert!(!is_of(&taken, &volume(None, None)), "its identity is not known");
    }
}
