//! `GetCapacity`: the largest volume that a node can take.

use std::collections::HashMap;

use holdfast_crds::MAX_SIZE_BYTES;
use holdfast_proto::csi::v1::{GetCapacityRequest, GetCapacityResponse};
use tonic::Status;

use super::capacity::signed;
use super::memory::{MemoryParameters, left_bytes};
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
    let GetCapacityRequest { volume_capabilities: _, parameters, accessible_topology } = request;
    let Some(memory) = memory_class(parameters)? else {
        return Ok(capacity(i64::MAX, MAX_SIZE_BYTES));
    };
    let Some(node) = accessible_topology.as_ref().and_then(topology::node) else {
        // No volume is made for more than one node.
        return Ok(capacity(0, 0));
    };
    let largest = memory.largest_bytes(left_bytes(volumes, node).await?);
    Ok(capacity(signed(largest), largest))
}

/// The parameters of a class of memory volumes; none of a class of an object store, which has no limit. Nor
/// has a request without a class: any will do.
fn memory_class(mut parameters: HashMap<String, String>) -> Result<Option<MemoryParameters>, Status> {
    // Those of the provisioner itself: here it does not take them out.
    parameters.retain(|key, _value| !key.starts_with(SIDECAR_PREFIX));
    if !parameters.contains_key(BACKEND) {
        return Ok(None);
    }
    Ok(match Parameters::read(parameters, Settings::default())?.home {
        DataHome::ObjectStore(_) => None,
        DataHome::Memory(memory) => Some(memory),
    })
}

fn capacity(available_capacity: i64, largest_bytes: u64) -> GetCapacityResponse {
    GetCapacityResponse {
        available_capacity,
        maximum_volume_size: Some(signed(largest_bytes)),
        minimum_volume_size: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a class of memory volumes in the cluster the scheduler asks for the capacity of every class.
    #[test]
    fn classes_of_an_object_store_have_no_limit() {
        let memory = |parameters: &[(&str, &str)]| {
            let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
            memory_class(parameters.iter().map(owned).collect()).expect("a class")
        };
        let fs_type = ("csi.storage.k8s.io/fstype", "ext4");
        assert_eq!(memory(&[]), None);
        assert_eq!(memory(&[("objectStore", "main"), fs_type]), None);
        assert_eq!(memory(&[("backend", "object"), ("objectStore", "main"), fs_type]), None);
        assert_eq!(memory(&[("backend", "memory"), fs_type]), Some(MemoryParameters::default()));
        let unlimited = capacity(i64::MAX, MAX_SIZE_BYTES);
        assert_eq!(unlimited.maximum_volume_size, Some(signed(MAX_SIZE_BYTES)));
    }
}
