//! `DeleteVolume`: deletes the Volume object, and waits until the operator has trashed its volume or removed
//! its objects. For a volume that many nodes read, the readers' objects are deleted after the Volume object,
//! before the wait.

use holdfast_crds::{Volume, VolumeSnapshot};
use holdfast_proto::csi::v1::{DeleteVolumeRequest, DeleteVolumeResponse};
use tokio::time::Instant;
use tonic::{Request, Status};

use super::object_name::{is_object_name, volume_id};
use super::objects::Objects;
use super::readers;
use super::serving_node::serving_node;
use super::volumes::ClusterVolumes;
use crate::deadline;

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    snapshots: &Objects<VolumeSnapshot>,
    request: Request<DeleteVolumeRequest>,
) -> Result<DeleteVolumeResponse, Status> {
    let until = deadline::of(&request);
    let DeleteVolumeRequest { volume_id: id, secrets: _ } = request.into_inner();
    let name = volume_id(&id)?;
    // No volume can have such a name, so it does not exist.
    if !is_object_name(name) {
        return Ok(DeleteVolumeResponse {});
    }
    let Some(volume) = volumes.get(name).await? else { return Ok(DeleteVolumeResponse {}) };
    let has_readers = readers::has_readers(&volume);
    let mut volume = Some(volume);
    if let Some(found) = volume.take_if(|volume| volume.metadata.deletion_timestamp.is_none()) {
        let mut tries_until = until;
        if has_readers {
            check_unused(&found)?;
            readers::of(volumes, name, "").await?.iter().try_for_each(check_unused)?;
            // Another attempt would have to check the readers again.
            tries_until = Instant::now();
        }
        volume = volumes.delete(found, tries_until, check_unused).await?;
    }
    // Only after the request to delete the Volume: from then on, no reader is created.
    if has_readers {
        readers::end_all(volumes, snapshots, name, until).await?;
    }
    let Some(volume) = volume else { return Ok(DeleteVolumeResponse {}) };
    volumes.wait_until_gone(volume, until).await.map(|()| DeleteVolumeResponse {})
}

/// Checks that no node uses the volume.
fn check_unused(volume: &Volume) -> Result<(), Status> {
    match volume.spec.desired_node().or(serving_node(volume)) {
        None => Ok(()),
        Some(node) => Err(Status::failed_precondition(format!(
            "volume_id: the volume is published on node {node}. It is not deleted. Unpublish it there first"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    #[test]
    fn a_volume_in_use_is_not_deleted() {
        check_unused(&volume(None, None)).expect("free");
        for (desired, serving) in [(Some("a"), None), (None, Some("a")), (Some("b"), Some("a"))] {
            let refused = check_unused(&volume(desired, serving)).expect_err("in use");
            assert_eq!(refused.code(), Code::FailedPrecondition);
        }
    }

    #[test]
    fn a_volume_of_a_forcibly_detached_node_is_deleted() {
        check_unused(&cut_off(Some(3))).expect("no node serves it");
        check_unused(&cut_off(Some(2))).expect_err("it attached again");
    }
}
