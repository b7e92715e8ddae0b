//! `NodeGetInfo`.

use holdfast_proto::csi::v1::{NodeGetInfoRequest, NodeGetInfoResponse};
use tonic::{Request, Status};

use super::NodeService;
use crate::topology;

pub(super) async fn answer(
    node: &NodeService,
    _: Request<NodeGetInfoRequest>,
) -> Result<NodeGetInfoResponse, Status> {
    let capabilities = node.0.daemon.usable().await?;
    Ok(NodeGetInfoResponse {
        node_id: node.0.name.clone(),
        max_volumes_per_node: capabilities.max_volumes.into(),
        accessible_topology: Some(topology::on(&node.0.name)),
    })
}
