//! `ControllerExpandVolume`: a larger `spec.size`. The device grows at the volume's next attach.

use holdfast_crds::Volume;
use holdfast_proto::csi::v1::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};
use serde_json::json;
use tonic::{Request, Status};

use super::capacity::{Capacity, quantity, signed};
use super::object_name::{is_object_name, volume_id};
use super::objects::ApiFailure;
use super::serving_node::serving_node;
use super::volumes::{ClusterVolumes, missing};
use crate::capability::{Capability, VolumeAccess};

/// The next step of an expansion.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// Write this size, in bytes.
    Grow(u64),
    /// The volume has this size already, in bytes.
    Done(u64),
}

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: Request<ControllerExpandVolumeRequest>,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let ControllerExpandVolumeRequest { volume_id: id, capacity_range, secrets: _, volume_capability } =
        request.into_inner();
    let name = volume_id(&id)?;
    if capacity_range.is_none() {
        return Err(Status::invalid_argument("capacity_range: is missing; name the new size"));
    }
    let capacity = Capacity::choose(capacity_range)?;
    let raw = match volume_capability {
        None => false,
        given @ Some(_) => Capability::try_from(given)?.access == VolumeAccess::Block,
    };
    if !is_object_name(name) {
        return Err(missing(name));
    }
    let volume = volumes.existing(name).await?;
    let bytes = match plan(&volume, &capacity)? {
        Plan::Done(bytes) => bytes,
        Plan::Grow(bytes) => match volumes.change(&volume, json!({ "size": quantity(bytes) })).await {
            Ok(_) => bytes,
            Err(ApiFailure::Stale) => {
                return Err(Status::aborted("the Volume changed meanwhile; it is tried again"));
            }
            Err(failure) => return Err(failure.into()),
        },
    };
    Ok(ControllerExpandVolumeResponse { capacity_bytes: signed(bytes), node_expansion_required: !raw })
}

/// Plans an expansion. A device does not grow while it is attached, so the volume must be free.
///
/// # Errors
/// `FAILED_PRECONDITION`: it is attached with a smaller device. `OUT_OF_RANGE`: it is too large already.
fn plan(volume: &Volume, capacity: &Capacity) -> Result<Plan, Status> {
    let present = volume.spec.size_bytes().map_err(|error| Status::internal(error.to_string()))?;
    let wanted = present.max(capacity.bytes);
    if !capacity.allows(wanted) {
        return Err(Status::out_of_range(format!(
            "capacity_range.limit_bytes: the volume has {present} bytes already, and cannot shrink"
        )));
    }
    let serving = serving_node(volume);
    // What a node that was cut off had reported says nothing of the next device.
    let device = serving.and(volume.status.as_ref()).and_then(|status| status.attached_size_bytes);
    let node = serving.or(volume.spec.desired_node());
    if let Some(node) = node
        && device.is_none_or(|bytes| bytes < wanted)
    {
        return Err(Status::failed_precondition(format!(
            "volume_id: the volume is attached on node {node}, and its device grows at its next attach only. \
             The size is not changed yet. Stop the pods that use it; the expansion continues then"
        )));
    }
    Ok(if wanted > present { Plan::Grow(wanted) } else { Plan::Done(present) })
}

#[cfg(test)]
mod tests {
    use holdfast_proto::csi::v1::CapacityRange;
    use tonic::Code;

    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn capacity(required_bytes: i64, limit_bytes: i64) -> Capacity {
        Capacity::choose(Some(CapacityRange { required_bytes, limit_bytes })).expect("a capacity")
    }

    #[test]
    fn a_free_volume_grows_and_never_shrinks() {
        let free = volume(None, None);
        assert_eq!(plan(&free, &capacity(2 << 30, 0)).ok(), Some(Plan::Grow(2 * GIB)));
        assert_eq!(plan(&free, &capacity(1 << 29, 0)).ok(), Some(Plan::Done(GIB)));
        let smaller = plan(&free, &capacity(1 << 29, 1 << 29)).expect_err("cannot shrink");
        assert_eq!(smaller.code(), Code::OutOfRange);
    }

    #[test]
    fn a_volume_of_a_node_that_was_cut_off_grows() {
        assert_eq!(plan(&cut_off(Some(3)), &capacity(2 << 30, 0)).ok(), Some(Plan::Grow(2 * GIB)));
        plan(&cut_off(Some(2)), &capacity(2 << 30, 0)).expect_err("it attached again");
    }

    #[test]
    fn an_attached_volume_says_that_it_must_be_free() {
        for (desired, serving) in [(Some("a"), Some("a")), (None, Some("a")), (Some("a"), None)] {
            let refused = plan(&volume(desired, serving), &capacity(2 << 30, 0)).expect_err("attached");
            assert_eq!(refused.code(), Code::FailedPrecondition);
            assert!(refused.message().contains("attached on node a"), "{}", refused.message());
        }
        let mut grown = volume(Some("a"), Some("a"));
        grown.status.as_mut().expect("a status").attached_size_bytes = Some(GIB);
        assert_eq!(plan(&grown, &capacity(1 << 30, 0)).ok(), Some(Plan::Done(GIB)));
    }
}
