//! `GetCapacity`: the largest volume that a node can take.

use holdfast_crds::MAX_SIZE_BYTES;
use holdfast_proto::csi::v1::{GetCapacityRequest, GetCapacityResponse};
use tonic::Status;

use super::capacity::signed;
use super::memory::left_bytes;
use super::parameters::{BACKEND, DataHome, Parameters, Settings};
use super::volumes::ClusterVolumes;
use crate::topology;

/// Begin of the parameters that the sidecars read.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: GetCapacityRequest,
) -> Result<GetCapacityResponse, Status> {
    // The provisioner asks for each class; its pods are counted with what all file systems need.
    let GetCapacityRequest { volume_capabilities: _, mut parameters, accessible_topology } = request;
    // Those of the provisioner itself: here it does not take them out.
    parameters.retain(|key, _value| !key.starts_with(SIDECAR_PREFIX));
    // Without a class any will do: that of an object store has no limit.
    if !parameters.contains_key(BACKEND) {
        return Ok(capacity(i64::MAX, MAX_SIZE_BYTES));
    }
    let memory = match Parameters::read(parameters, Settings::default())?.home {
        DataHome::ObjectStore(_) => return Ok(capacity(i64::MAX, MAX_SIZE_BYTES)),
        DataHome::Memory(memory) => memory,
    };
    let Some(node) = accessible_topology.as_ref().and_then(topology::node) else {
        // No volume is made for more than one node.
        return Ok(capacity(0, 0));
    };
    let largest = memory.largest_bytes(left_bytes(volumes, node).await?);
    Ok(capacity(signed(largest), largest))
}

fn capacity(available_capacity: i64, largest_bytes: u64) -> GetCapacityResponse {
    GetCapacityResponse {
        available_capacity,
        maximum_volume_size: Some(signed(largest_bytes)),
        minimum_volume_size: None,
    }
}
