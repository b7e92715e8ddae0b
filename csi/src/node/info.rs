//! `NodeGetInfo`.

use holdfast_proto::csi::v1::{NodeGetInfoRequest, NodeGetInfoResponse};
use holdfast_proto::node::v1::Transport;
use tonic::{Request, Status};

use super::NodeService;
use super::daemon::transport_of;
use crate::topology;

pub(super) async fn answer(
    node: &NodeService,
    _: Request<NodeGetInfoRequest>,
) -> Result<NodeGetInfoResponse, Status> {
    let capabilities = node.0.daemon.usable().await?;
    let has_ublk = transport_of(&capabilities).is_some_and(is_ublk);
    Ok(NodeGetInfoResponse {
        node_id: node.0.name.clone(),
        max_volumes_per_node: capabilities.max_volumes.into(),
        accessible_topology: Some(topology::of_node(&node.0.name, has_ublk)),
    })
}

/// Returns true for a transport that satisfies `transport: ublk` of a StorageClass.
const fn is_ublk(transport: Transport) -> bool {
    match transport {
        Transport::UblkZeroCopy | Transport::UblkUserCopy | Transport::UblkKernelCopy => true,
        Transport::FuseLoop | Transport::Unspecified => false,
    }
}
