//! `NodeUnpublishVolume`: unmounts a path of a pod, and removes the path.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use holdfast_proto::csi::v1::{NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse};
use tonic::{Request, Status};

use super::{NodeService, paths};
use crate::deadline;

pub(super) async fn answer(
    node: &NodeService,
    request: Request<NodeUnpublishVolumeRequest>,
) -> Result<NodeUnpublishVolumeResponse, Status> {
    let until = deadline::of(&request);
    let NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
    let volume = paths::volume(volume_id)?;
    let target = paths::absolute("target_path", target_path)?;
    let (inner, name) = (node.0.clone(), volume.clone());
    let unpublish = async move {
        inner.unmount(&name, &target).await?;
        remove(&target)
    };
    node.0.operations.run(&volume, until, unpublish).await?;
    Ok(NodeUnpublishVolumeResponse {})
}

/// Removes the empty directory, or the empty file, that was mounted over; never its content.
fn remove(target: &Path) -> Result<(), Status> {
    let removed = match fs::symlink_metadata(target) {
        Ok(found) if found.is_dir() => fs::remove_dir(target),
        Ok(found) if found.len() == 0 => fs::remove_file(target),
        Ok(_) => Err(ErrorKind::DirectoryNotEmpty.into()),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Status::internal(format!(
            "target_path: {} is not mounted, and cannot be removed: {error}",
            target.display()
        ))),
        Ok(()) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_empty_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let (full, empty, file, precious) = (
            directory.path().join("full"),
            directory.path().join("empty"),
            directory.path().join("file"),
            directory.path().join("precious"),
        );
        fs::create_dir_all(full.join("data")).expect("made");
        fs::create_dir(&empty).expect("made");
        fs::write(&file, "").expect("made");
        fs::write(&precious, "data").expect("made");
        remove(&empty).expect("removed");
        remove(&file).expect("removed");
        remove(&directory.path().join("gone")).expect("nothing to remove");
        assert!(remove(&full).is_err() && remove(&precious).is_err());
        assert!(!empty.exists() && !file.exists() && full.join("data").exists() && precious.exists());
    }
}
