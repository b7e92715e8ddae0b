//! `NodeUnstageVolume`: unmounts the mount shared by all pods of the node.

use holdfast_proto::csi::v1::{NodeUnstageVolumeRequest, NodeUnstageVolumeResponse};
use tonic::{Request, Status};

use super::{NodeService, paths, stats};
use crate::deadline;

pub(super) async fn answer(
    node: &NodeService,
    request: Request<NodeUnstageVolumeRequest>,
) -> Result<NodeUnstageVolumeResponse, Status> {
    let until = deadline::of(&request);
    let NodeUnstageVolumeRequest { volume_id, staging_target_path } = request.into_inner();
    let volume = paths::volume(volume_id)?;
    let point = paths::absolute("staging_target_path", staging_target_path)?;
    let (inner, name) = (node.0.clone(), volume.clone());
    let unstaged = async move {
        inner.unmount(&name, &point).await?;
        inner.tools.forget(&stats::operation(&name));
        inner.tools.forget(&name);
        Ok(())
    };
    node.0.operations.run(&volume, until, unstaged).await?;
    Ok(NodeUnstageVolumeResponse {})
}
