//! `ControllerPublishVolume`: requests the node in `spec.nodeName`, and waits until it serves the volume. For
//! a volume that many nodes read, each node serves its own reader (`readers.rs`).

use std::collections::HashMap;

use holdfast_crds::{
    ASSIGNED, ATTACHED, CLAIM, Condition, NODE_FULL, PROVISIONED, StorageNode, StorageNodeStatus,
    TRACEPARENT, Volume, VolumeSnapshot, find_condition, is_true,
};
use holdfast_proto::csi::v1::{ControllerPublishVolumeRequest, ControllerPublishVolumeResponse};
use holdfast_service::trace;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;
use tonic::{Request, Status};
use tracing::Span;

use super::memory;
use super::object_name::volume_id;
use super::objects::{Objects, TimedOut};
use super::readers;
use super::reason::{condition_text, first_unmet, refused};
use super::serving_node::serving_node;
use super::volumes::{ClusterVolumes, missing};
use crate::capability::{AccessScope, Capability};
use crate::deadline;
use crate::publish_context::{self, PublishContext};
use crate::topology;

/// Conditions that tell why a volume is not attached, most specific first.
const OBSTACLES: [&str; 3] = [ATTACHED, ASSIGNED, PROVISIONED];

/// The next step of a publication.
#[derive(Debug)]
enum PublicationStep {
    /// Writes the node to the spec.
    Request,
    /// The spec has the node: waits.
    Wait,
}

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    snapshots: &Objects<VolumeSnapshot>,
    request: Request<ControllerPublishVolumeRequest>,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let until = deadline::of(&request);
    let ControllerPublishVolumeRequest {
        volume_id: id,
        node_id,
        volume_capability,
        readonly,
        secrets: _,
        volume_context: _,
    } = request.into_inner();
    let name = volume_id(&id)?;
    if node_id.is_empty() {
        return Err(Status::invalid_argument("node_id: is empty; name a node"));
    }
    let Capability { access: _, scope } = Capability::try_from(volume_capability)?;
    if readonly && scope != AccessScope::ManyReaders {
        return Err(Status::invalid_argument("readonly: is not supported; publish the volume for writing"));
    }
    let volume = volumes.existing(name).await?;
    check_scope(&volume, scope)?;
    refuse_deleted(&volume)?;
    let served = match scope {
        AccessScope::OnePath | AccessScope::OneNode => Some(volume.clone()),
        AccessScope::ManyReaders => readers::find(volumes, &volume, &node_id).await?,
    };
    if let Some(served) = &served
        && continues(served, &node_id)
        && let Some(change) = served.annotations().get(TRACEPARENT)
    {
        trace::continue_in(&Span::current(), change);
    }
    let Some(node) = volumes.node(&node_id).await? else {
        return Err(Status::not_found(format!(
            "node_id: no StorageNode is named `{node_id}`; run the node daemon on that node"
        )));
    };
    // Checked only before the first request for this node. Remains of an earlier publication do not count.
    if served.as_ref().and_then(|served| served.spec.desired_node()) != Some(&node_id) {
        check_transport(&volume, &node)?;
    }
    let volume = match served {
        Some(served) if scope != AccessScope::ManyReaders || is_provisioned(&served) => served,
        reader => {
            // The snapshot is retaken if a user deleted it: the volume has not changed.
            readers::prepare(snapshots, &volume, until).await?;
            match reader {
                Some(reader) => readers::with_snapshot(volumes, reader, until).await?,
                None => readers::create(volumes, &volume, &node_id, until).await?,
            }
        }
    };
    publish(volumes, volume, &node_id, until).await
}

fn is_provisioned(volume: &Volume) -> bool {
    volume.status.as_ref().is_some_and(|status| is_true(&status.conditions, PROVISIONED))
}

/// Requests the node for the volume, unless it is requested, and waits until it serves the volume.
async fn publish(
    volumes: &ClusterVolumes,
    mut volume: Volume,
    node_id: &str,
    until: Instant,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let name = volume.name_any();
    if let PublicationStep::Request = plan(&volume, node_id)? {
        let claim = volumes.later_claim(&volume).await.map(|claim| (CLAIM, claim));
        let request = |volume: &Volume| {
            Ok(match plan(volume, node_id)? {
                PublicationStep::Request => Some(json!({ "nodeName": node_id })),
                PublicationStep::Wait => None,
            })
        };
        volume = volumes.change(volume, until, request, claim.as_slice()).await?;
    }
    match volumes.wait(&name, Some(volume), until, |now| progress(&name, now, node_id)).await {
        Ok(outcome) => outcome.map(|publish_context| ControllerPublishVolumeResponse { publish_context }),
        Err(TimedOut { last }) => {
            let waiting = "the node has not answered yet";
            let why = last.map(|volume| first_unmet(&volume, &OBSTACLES, waiting)).unwrap_or_default();
            Err(Status::aborted(format!("Volume {name} is not attached on node {node_id} yet: {why}")))
        }
    }
}

/// Returns true if the publication continues the trace of the last change: the first use continues that of
/// the creation, a repeated request that of the first request. Each later use has its own trace.
fn continues(volume: &Volume, node: &str) -> bool {
    // The generation counts changes of the spec.
    volume.metadata.generation == Some(1) || volume.spec.desired_node() == Some(node)
}

/// Checks that a volume may be used in this scope.
///
/// # Errors
/// `INVALID_ARGUMENT`: it was created for others.
pub(super) fn check_scope(volume: &Volume, scope: AccessScope) -> Result<(), Status> {
    let message = match (scope, readers::has_readers(volume)) {
        (AccessScope::ManyReaders, true) | (AccessScope::OnePath | AccessScope::OneNode, false) => {
            return Ok(());
        }
        (AccessScope::ManyReaders, false) => {
            "volume_capability.access_mode: the volume was not created for readers of many nodes. Create a claim with \
             accessModes [ReadOnlyMany] and a dataSource"
        }
        (AccessScope::OnePath | AccessScope::OneNode, true) => {
            "volume_capability.access_mode: the volume was created for readers (ReadOnlyMany), and cannot be published for writing. Create a \
             claim with another access mode and the same dataSource"
        }
    };
    Err(Status::invalid_argument(message))
}

/// Rejects a node without the transport that the volume requires. The scheduler may have chosen it by a stale
/// label. If the node currently creates no devices, its daemon decides later.
///
/// # Errors
/// `FAILED_PRECONDITION`: the node lacks the transport.
fn check_transport(volume: &Volume, node: &StorageNode) -> Result<(), Status> {
    let makes_ublk_devices = node.status.as_ref().and_then(StorageNodeStatus::makes_ublk_devices);
    if !volume.spec.needs_ublk() || makes_ublk_devices != Some(false) {
        return Ok(());
    }
    let (name, key) = (node.name_any(), topology::UBLK_KEY);
    Err(Status::failed_precondition(format!(
        "node_id: the volume requires ublk (spec.transport), but node {name} serves volumes over FUSE. Schedule \
         the pod on a node with ublk, or load ublk_drv on {name}. If the Node has the label {key}, remove it: \
         kubectl label node {name} {key}-"
    )))
}

/// Rejects a volume that is being deleted.
///
/// # Errors
/// `FAILED_PRECONDITION`: its deletion was requested.
fn refuse_deleted(volume: &Volume) -> Result<(), Status> {
    if volume.metadata.deletion_timestamp.is_none() {
        return Ok(());
    }
    Err(Status::failed_precondition(format!("volume_id: Volume {} is being deleted", volume.name_any())))
}

/// Plans a publication on `node`.
///
/// # Errors
/// `FAILED_PRECONDITION`: the volume belongs to another node.
fn plan(volume: &Volume, node: &str) -> Result<PublicationStep, Status> {
    if let Some(own) = memory::node_of(volume).filter(|own| *own != node) {
        return Err(Status::failed_precondition(format!(
            "node_id: the memory volume was created for node {own}. No other node has reserved memory for it. Schedule the pod there, or \
             delete the claim and create it again"
        )));
    }
    match volume.spec.desired_node() {
        None => Ok(PublicationStep::Request),
        Some(desired) if desired == node => Ok(PublicationStep::Wait),
        Some(desired) => Err(Status::failed_precondition(format!(
            "node_id: the volume is published on node {desired}, and one node uses a volume at a time. Unpublish it there first. \
             If no VolumeAttachment names node {desired}, a user set spec.nodeName. Clear it: kubectl patch volume {} \
             --type=merge -p '{{\"spec\":{{\"nodeName\":\"\"}}}}'",
            volume.name_any()
        ))),
    }
}

/// Returns the context once served, or the reason why it will not be; `None` while attaching.
fn progress(name: &str, now: Option<&Volume>, node: &str) -> Option<Result<HashMap<String, String>, Status>> {
    let Some(volume) = now else { return Some(Err(missing(name))) };
    if volume.metadata.deletion_timestamp.is_some() || volume.spec.desired_node() != Some(node) {
        return Some(Err(Status::aborted(
            "the publication was withdrawn during the request; the caller retries",
        )));
    }
    // A reader is only provisioned by its publication.
    if let Some(refused) = refused(volume) {
        return Some(Err(refused));
    }
    let status = volume.status.as_ref()?;
    if status.node.as_deref() == Some(node) && is_full(&status.conditions) {
        let why = condition_text(volume, ATTACHED).unwrap_or_default();
        return Some(Err(Status::resource_exhausted(format!("node_id: node {node} is full: {why}"))));
    }
    let serves = serving_node(volume) == Some(node) && status.device_path.is_some();
    if !serves || !is_true(&status.conditions, ATTACHED) {
        return None;
    }
    let (volume_id, epoch) = (status.volume_id.clone()?, status.epoch?);
    Some(Ok(publish_context::write(&PublishContext { volume_id, epoch, trace: trace::current() })))
}

/// Returns true if the node is full. A served volume reports this reason if it lacks room for growth.
fn is_full(conditions: &[Condition]) -> bool {
    !is_true(conditions, ATTACHED)
        && find_condition(conditions, ATTACHED).is_some_and(|attached| attached.reason == NODE_FULL)
}

#[cfg(test)]
pub(super) mod tests {
    use tonic::Code;

    use super::*;

    /// Builds a volume with `desired` in its spec, served by `serving`.
    pub(in crate::controller) fn volume(desired: Option<&str>, serving: Option<&str>) -> Volume {
        let spec = json!({ "size": "1Gi", "objectStore": "main", "nodeName": desired });
        let mut volume = Volume::new("data", serde_json::from_value(spec).expect("a spec"));
        volume.status = serving.map(|node| {
            let attached = json!({
                "type": "Attached", "status": "True", "reason": "Attached", "message": "served",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            let status = json!({
                "volumeId": "id", "node": node, "devicePath": "/dev/ublkb0", "epoch": 3, "conditions": [attached],
            });
            serde_json::from_value(status).expect("a status")
        });
        volume
    }

    #[test]
    fn a_volume_goes_to_one_node_at_a_time() {
        assert!(matches!(plan(&volume(None, None), "a"), Ok(PublicationStep::Request)));
        assert!(matches!(plan(&volume(Some(""), None), "a"), Ok(PublicationStep::Request)));
        assert!(matches!(plan(&volume(Some("a"), None), "a"), Ok(PublicationStep::Wait)));
        let refused = plan(&volume(Some("b"), None), "a").expect_err("elsewhere");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("published on node b"), "{}", refused.message());
    }

    /// Regression, found in review: no attach succeeded after a user had set `spec.nodeName` of a claim's
    /// volume, and no message named the way out.
    #[test]
    fn a_refusal_says_how_to_clear_a_node_set_by_hand() {
        let refused = plan(&volume(Some("b"), None), "a").expect_err("elsewhere");
        let fix = r#"kubectl patch volume data --type=merge -p '{"spec":{"nodeName":""}}'"#;
        assert!(refused.message().ends_with(fix), "{}", refused.message());
    }

    #[test]
    fn a_memory_volume_stays_on_its_node() {
        let mut made_for = volume(None, None);
        made_for.labels_mut().insert(holdfast_crds::MEMORY_NODE.to_owned(), "a".to_owned());
        assert!(matches!(plan(&made_for, "a"), Ok(PublicationStep::Request)));
        let refused = plan(&made_for, "b").expect_err("another node");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("created for node a"), "{}", refused.message());
    }

    /// The label of a node may come from an earlier kernel.
    #[test]
    fn a_volume_for_ublk_is_refused_on_a_node_without_it() {
        let node = |transport: Option<&str>| {
            let transport = transport.map(str::to_owned);
            let mut node = StorageNode::new("a", holdfast_crds::StorageNodeSpec {});
            node.status = Some(StorageNodeStatus { transport, ..StorageNodeStatus::default() });
            node
        };
        let (plain, mut for_ublk) = (volume(None, None), volume(None, None));
        for_ublk.spec.transport = Some(holdfast_crds::RequiredTransport::Ublk);
        for transport in [Some("ublk-zero-copy"), Some("ublk-user-copy"), None] {
            check_transport(&for_ublk, &node(transport)).expect("it may");
        }
        check_transport(&plain, &node(Some("fuse-loop"))).expect("any will do");
        let refused = check_transport(&for_ublk, &node(Some("fuse-loop"))).expect_err("it has none");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let fix = "kubectl label node a topology.holdfast.dev/ublk-";
        assert!(refused.message().ends_with(fix), "{}", refused.message());
    }

    #[test]
    fn a_volume_is_published_for_the_users_it_was_created_for() {
        let plain = volume(None, None);
        let mut shared = plain.clone();
        readers::mark(&mut shared);
        check_scope(&plain, AccessScope::OneNode).expect("ReadWriteOnce");
        check_scope(&shared, AccessScope::ManyReaders).expect("ReadOnlyMany");
        for (volume, scope, words) in [
            (&shared, AccessScope::OneNode, "created for readers (ReadOnlyMany)"),
            (&shared, AccessScope::OnePath, "created for readers (ReadOnlyMany)"),
            (&plain, AccessScope::ManyReaders, "accessModes [ReadOnlyMany] and a dataSource"),
        ] {
            let refused = check_scope(volume, scope).expect_err(words);
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().contains(words), "{}", refused.message());
        }
    }

    /// Regression: the second use of a volume was in the trace of its withdrawal.
    #[test]
    fn a_later_use_has_a_trace_of_its_own() {
        let of = |generation, desired| {
            let mut volume = volume(desired, None);
            volume.metadata.generation = Some(generation);
            continues(&volume, "a")
        };
        assert!(of(1, None), "the first use");
        assert!(of(2, Some("a")), "it is asked for again");
        assert!(!of(3, None) && !of(3, Some("b")));
    }

    #[test]
    fn a_publication_ends_when_its_node_serves_the_volume() {
        assert!(progress("data", Some(&volume(Some("a"), None)), "a").is_none());
        assert!(progress("data", Some(&volume(Some("a"), Some("b"))), "a").is_none(), "b still releases it");
        let served = progress("data", Some(&volume(Some("a"), Some("a"))), "a").expect("an answer");
        let context = served.expect("a context");
        assert_eq!((context["volumeID"].as_str(), context["epoch"].as_str()), ("id", "3"));
        let withdrawn = progress("data", Some(&volume(Some("b"), Some("a"))), "a").expect("an answer");
        assert_eq!(withdrawn.expect_err("withdrawn").code(), Code::Aborted);
        let deleted = progress("data", None, "a").expect("an answer");
        assert_eq!(deleted.expect_err("gone").code(), Code::NotFound);
    }

    /// The kubelet then reads the node's limit again, and the scheduler chooses another node.
    #[test]
    fn a_full_node_is_resource_exhausted() {
        let mut full = volume(Some("a"), Some("a"));
        let attached = &mut full.status.as_mut().expect("a status").conditions[0];
        (attached.status, attached.reason) = ("False".to_owned(), "NodeFull".to_owned());
        let refused = progress("data", Some(&full), "a").expect("an answer").expect_err("no room");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(
            refused.message().contains("node a is full: served (Attached=False"),
            "{}",
            refused.message()
        );
        full.spec.node_name = Some("b".to_owned());
        assert!(progress("data", Some(&full), "b").is_none(), "another node may have room");
        // Found by review: a volume that could not grow was not published again.
        let mut served = volume(Some("a"), Some("a"));
        served.status.as_mut().expect("a status").conditions[0].reason = "NodeFull".to_owned();
        assert!(progress("data", Some(&served), "a").is_some_and(|answer| answer.is_ok()));
    }

    /// The node's last report, with the revoked epoch, stays until the node is back.
    #[test]
    fn a_node_that_was_cut_off_is_not_published() {
        let wanted_again = |cut_off| {
            let mut volume = super::super::serving_node::tests::cut_off(Some(cut_off));
            volume.spec.node_name = Some("a".to_owned());
            volume
        };
        assert!(progress("data", Some(&wanted_again(3)), "a").is_none());
        let served = progress("data", Some(&wanted_again(2)), "a").expect("it attached again");
        assert_eq!(served.expect("a context")["epoch"], "3");
    }

    #[test]
    fn a_device_that_failed_is_not_published() {
        let mut volume = volume(Some("a"), Some("a"));
        volume.status.as_mut().expect("a status").conditions[0].status = "False".to_owned();
        assert!(progress("data", Some(&volume), "a").is_none());
        assert_eq!(first_unmet(&volume, &OBSTACLES, "-"), "served (Attached=False, Attached)");
    }

    /// A reader is created by its publication: unlike other volumes, it may be rejected at that point.
    #[test]
    fn a_reader_that_never_will_be_provisioned_is_not_waited_for() {
        let mut failed = volume(Some("a"), None);
        let said = json!({
            "type": "Provisioned", "status": "False", "reason": "SnapshotNotFound",
            "message": "no VolumeSnapshot has the name", "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let status = json!({ "phase": "Failed", "conditions": [said] });
        failed.status = Some(serde_json::from_value(status).expect("a status"));
        let refused = progress("data", Some(&failed), "a").expect("an answer").expect_err("never");
        assert_eq!(refused.code(), Code::FailedPrecondition);
    }
}
