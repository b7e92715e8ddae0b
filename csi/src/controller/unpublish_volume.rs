//! `ControllerUnpublishVolume`: withdraws the request in `spec.nodeName`, and waits for the final commit. For
//! a volume that many nodes read, the node's reader is withdrawn and deleted.

use holdfast_proto::csi::v1::{ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse};
use tonic::{Request, Status};

use super::object_name::{is_object_name, volume_id};
use super::readers;
use super::volumes::ClusterVolumes;
use crate::deadline;

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: Request<ControllerUnpublishVolumeRequest>,
) -> Result<ControllerUnpublishVolumeResponse, Status> {
    let until = deadline::of(&request);
    let ControllerUnpublishVolumeRequest { volume_id: id, node_id, secrets: _ } = request.into_inner();
    let name = volume_id(&id)?;
    if !is_object_name(name) {
        return Ok(ControllerUnpublishVolumeResponse {});
    }
    match volumes.get(name).await? {
        Some(volume) if !readers::has_readers(&volume) => volumes.release(volume, &node_id, until).await?,
        // Readers of a deleted volume may remain.
        Some(_) | None => readers::end(volumes, readers::of(volumes, name, &node_id).await?, until).await?,
    }
    Ok(ControllerUnpublishVolumeResponse {})
}
