//! `ControllerUnpublishVolume`: withdraws the request in `spec.nodeName`, and waits for the final commit. Of
//! a volume that many nodes read, the reader of the node is withdrawn so, and deleted.

use holdfast_crds::Volume;
use holdfast_proto::csi::v1::{ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::object_name::{is_object_name, volume_id};
use super::objects::{ApiFailure, TimedOut};
use super::readers;
use super::reason::first_unmet;
use super::serving_node::serving_node;
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
        Some(volume) if !readers::has_readers(&volume) => release(volumes, volume, &node_id, until).await?,
        // Readers may be left of one that is gone.
        Some(_) | None => readers::end(volumes, readers::of(volumes, name, &node_id).await?, until).await?,
    }
    Ok(ControllerUnpublishVolumeResponse {})
}

/// Takes a volume from that node (any node if none is named), and waits until it is released.
///
/// # Errors
/// `ABORTED`: it is not released yet, or changed meanwhile.
pub(super) async fn release(
    volumes: &ClusterVolumes,
    mut volume: Volume,
    node_id: &str,
    until: Instant,
) -> Result<(), Status> {
    let name = volume.name_any();
    if is_requested(&volume, node_id) {
        volume = match volumes.change(&volume, json!({ "nodeName": "" })).await {
            Ok(volume) => volume,
            Err(ApiFailure::Stale) => {
                return Err(Status::aborted("the Volume changed meanwhile; it is tried again"));
            }
            Err(failure) => return Err(failure.into()),
        };
    }
    let released =
        volumes.wait(&name, Some(volume), until, |now| is_released(now, node_id).then_some(())).await;
    released.map_err(|TimedOut { last }| {
        let waiting = "the node has not answered yet";
        let why = last.map(|volume| first_unmet(&volume, &["Assigned", "Attached"], waiting));
        Status::aborted(format!("Volume {name} is not released yet: {}", why.unwrap_or_default()))
    })
}

/// Returns true if `spec.nodeName` requests that node; any node if none is named.
fn is_requested(volume: &Volume, node: &str) -> bool {
    volume.spec.desired_node().is_some_and(|desired| node.is_empty() || desired == node)
}

/// Returns true if that node (any node if none is named) neither serves the volume nor may begin to: its
/// final commit is done, or the operator took the volume from it.
fn is_released(now: Option<&Volume>, node: &str) -> bool {
    let Some(volume) = now else { return true };
    let is_it = |name: &&str| !name.is_empty() && (node.is_empty() || *name == node);
    let assigned = volume.status.as_ref().and_then(|status| status.assigned_node.as_deref());
    serving_node(volume).filter(is_it).is_none() && assigned.filter(is_it).is_none()
}

#[cfg(test)]
mod tests {
    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    #[test]
    fn only_the_request_for_that_node_is_withdrawn() {
        assert!(is_requested(&volume(Some("a"), None), "a"));
        assert!(is_requested(&volume(Some("a"), None), ""));
        assert!(!is_requested(&volume(Some("b"), None), "a"));
        assert!(!is_requested(&volume(None, Some("a")), "a"));
    }

    #[test]
    fn a_node_has_released_a_volume_after_its_final_commit() {
        assert!(is_released(None, "a"));
        assert!(is_released(Some(&volume(None, None)), "a"));
        assert!(!is_released(Some(&volume(None, Some("a"))), "a"));
        assert!(!is_released(Some(&volume(None, Some("a"))), ""));
        assert!(is_released(Some(&volume(None, Some("b"))), "a"));
    }

    #[test]
    fn a_node_that_may_still_begin_has_not_released_it() {
        let mut granted = volume(None, Some("a"));
        let status = granted.status.as_mut().expect("a status");
        status.node = None;
        status.assigned_node = Some("a".to_owned());
        assert!(!is_released(Some(&granted), "a"));
    }

    #[test]
    fn a_node_that_was_cut_off_is_not_waited_for() {
        assert!(is_released(Some(&cut_off(None)), "a"));
        assert!(is_released(Some(&cut_off(Some(3))), "a"));
        assert!(!is_released(Some(&cut_off(Some(2))), "a"), "it attached again");
    }
}
