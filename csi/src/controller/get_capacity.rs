//! `GetCapacity`: the largest volume that a node can hold.

use std::collections::HashMap;

use holdfast_crds::MAX_SIZE_BYTES;
use holdfast_proto::csi::v1::{GetCapacityRequest, GetCapacityResponse, Topology};
use tonic::Status;

use super::capacity::signed;
use super::memory::{MemoryParameters, left_room};
use super::parameters::{BACKEND, DataHome, MutableSettings, Parameters, TRANSPORT};
use super::volumes::ClusterVolumes;
use crate::topology;

/// Prefix of parameters for the sidecars.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: GetCapacityRequest,
) -> Result<GetCapacityResponse, Status> {
    // The provisioner asks for each class, not for each file system.
    let GetCapacityRequest { volume_capabilities: _, parameters, accessible_topology } = request;
    let memory = match class(parameters)? {
        AskedClass::Memory(memory) => memory,
        AskedClass::ObjectStore { needs_ublk } => {
            return Ok(of_object_store(needs_ublk, accessible_topology.as_ref()));
        }
    };
    let Some(node) = accessible_topology.as_ref().and_then(topology::node) else {
        // No memory volume spans several nodes.
        return Ok(capacity(0, 0));
    };
    let largest = memory.largest_bytes(left_room(volumes, node).await?);
    Ok(capacity(signed(largest), largest))
}

/// The class of volumes that a request asks about.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AskedClass {
    /// Memory volumes.
    Memory(MemoryParameters),
    /// Volumes in an object store, which has no limit.
    ObjectStore {
        /// True if the class needs nodes with ublk.
        needs_ublk: bool,
    },
}

/// Reads the class. One without `backend` and `transport`, or no class, means an object store with any
/// transport.
fn class(mut parameters: HashMap<String, String>) -> Result<AskedClass, Status> {
    // The provisioner does not remove its own parameters from this request.
    parameters.retain(|key, _value| !key.starts_with(SIDECAR_PREFIX));
    if ![BACKEND, TRANSPORT].iter().any(|key| parameters.contains_key(*key)) {
        return Ok(AskedClass::ObjectStore { needs_ublk: false });
    }
    let parameters = Parameters::read(parameters, MutableSettings::default())?;
    Ok(match parameters.home {
        DataHome::ObjectStore(_) => AskedClass::ObjectStore { needs_ublk: parameters.needs_ublk() },
        DataHome::Memory(memory) => AskedClass::Memory(memory),
    })
}

/// Returns unlimited capacity, or 0 on nodes without ublk if the class needs it.
fn of_object_store(needs_ublk: bool, nodes: Option<&Topology>) -> GetCapacityResponse {
    if needs_ublk && nodes.is_some_and(|nodes| !topology::has_ublk(nodes)) {
        capacity(0, 0)
    } else {
        capacity(i64::MAX, MAX_SIZE_BYTES)
    }
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

    /// With a class of memory volumes in the cluster, the scheduler asks for the capacity of every class.
    #[test]
    fn classes_of_an_object_store_have_no_limit() {
        let of = |parameters: &[(&str, &str)]| {
            let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
            class(parameters.iter().map(owned).collect()).expect("a class")
        };
        let plain = AskedClass::ObjectStore { needs_ublk: false };
        let fs_type = ("csi.storage.k8s.io/fstype", "ext4");
        assert_eq!(of(&[]), plain);
        assert_eq!(of(&[("objectStore", "main"), fs_type]), plain);
        assert_eq!(of(&[("backend", "object"), ("objectStore", "main"), fs_type]), plain);
        assert_eq!(of(&[("backend", "memory"), fs_type]), AskedClass::Memory(MemoryParameters::default()));
        let for_ublk = of(&[("objectStore", "main"), ("transport", "ublk"), fs_type]);
        assert_eq!(for_ublk, AskedClass::ObjectStore { needs_ublk: true });
        let unlimited = of_object_store(false, Some(&topology::of_node("a", false)));
        assert_eq!(unlimited.maximum_volume_size, Some(signed(MAX_SIZE_BYTES)));
    }

    /// Regression: the scheduler repeatedly chose a node that cannot hold such a volume.
    #[test]
    fn a_class_for_ublk_has_no_capacity_without_it() {
        let [with, without] = [true, false].map(|has_ublk| topology::of_node("a", has_ublk));
        assert_eq!(of_object_store(true, Some(&without)), capacity(0, 0));
        for nodes in [Some(&with), None] {
            assert_eq!(of_object_store(true, nodes), capacity(i64::MAX, MAX_SIZE_BYTES));
        }
    }
}
