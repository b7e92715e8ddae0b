//! Volume objects in the API server, and related objects.

use std::ops::Deref;
use std::sync::Arc;

use holdfast_crds::{ASSIGNED, ATTACHED, CLAIM, PROVISIONED, StorageNode, Volume, bound_claim};
use holdfast_service::chain;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;
use tonic::Status;

use super::objects::{ApiFailure, Objects, TimedOut, call};
use super::reason::{condition_text, first_unmet};
use super::serving_node::serving_node;
use crate::topology::HOST_NAME_KEY;

/// The Volumes of the cluster.
#[derive(Clone)]
pub(super) struct ClusterVolumes {
    volumes: Objects<Volume>,
    nodes: Objects<StorageNode>,
    client: Client,
    /// Held while memory of a node is promised to a new volume.
    promises: Arc<Mutex<()>>,
}

impl Deref for ClusterVolumes {
    type Target = Objects<Volume>;

    fn deref(&self) -> &Objects<Volume> {
        &self.volumes
    }
}

impl ClusterVolumes {
    pub(super) fn new(client: Client) -> Self {
        let (volumes, nodes) = (Objects::new(client.clone()), Objects::new(client.clone()));
        Self { volumes, nodes, client, promises: Arc::default() }
    }

    /// Returns the volume of that name.
    ///
    /// # Errors
    /// `NOT_FOUND`, or the failure of the request.
    pub(super) async fn existing(&self, name: &str) -> Result<Volume, Status> {
        self.get(name).await?.ok_or_else(|| missing(name))
    }

    /// Returns the node of that name, if it serves or has served volumes.
    pub(super) async fn node(&self, name: &str) -> Result<Option<StorageNode>, ApiFailure> {
        self.nodes.get(name).await
    }

    /// Returns the volumes whose spec names this node.
    pub(super) async fn wanted_on(&self, node: &str) -> Result<Vec<Volume>, ApiFailure> {
        let volumes: Api<Volume> = Api::all(self.client.clone());
        let wanted = ListParams::default().fields(&format!("spec.nodeName={node}"));
        Ok(call(volumes.list(&wanted)).await?.items)
    }

    /// Returns the Node's host name label; `None` without such a Node or label.
    pub(super) async fn host_name(&self, node: &str) -> Result<Option<String>, ApiFailure> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = call(nodes.get_opt(node)).await?;
        Ok(node.and_then(|node| node.metadata.labels?.remove(HOST_NAME_KEY)))
    }

    /// Waits until no other request is promising memory of a node.
    pub(super) async fn promising(&self) -> MutexGuard<'_, ()> {
        self.promises.lock().await
    }

    /// Returns the name of a PersistentVolumeClaim's StorageClass; `None` if the claim is gone or names none.
    pub(super) async fn storage_class(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, ApiFailure> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = call(claims.get_opt(name)).await?;
        Ok(claim.and_then(|claim| claim.spec?.storage_class_name))
    }

    /// Returns the current claim of a Volume's data, if it differs from the annotation: its PersistentVolume
    /// was retained and bound to another claim. Only the operator follows PersistentVolumes whose name
    /// differs from the Volume's. Costs a GET for the Volume of a claim.
    pub(super) async fn later_claim(&self, volume: &Volume) -> Option<String> {
        volume.annotations().get(CLAIM)?;
        let (name, bound) = (volume.name_any(), Api::<PersistentVolume>::all(self.client.clone()));
        match call(bound.get_opt(&name)).await {
            Ok(bound) => bound.and_then(|bound| other_claim(volume, &bound)),
            // The volume is served anyway; the next request checks again.
            Err(failure) => {
                tracing::warn!(volume = name, error = chain(&failure), "PersistentVolume not read");
                None
            }
        }
    }

    /// Withdraws a volume from that node (any node if empty), and waits until it is released.
    ///
    /// # Errors
    /// `ABORTED`: it is not released yet, or kept changing until the deadline.
    pub(super) async fn release(&self, volume: Volume, node_id: &str, until: Instant) -> Result<(), Status> {
        let name = volume.name_any();
        let withdraw = |volume: &Volume| Ok(is_requested(volume, node_id).then(|| json!({ "nodeName": "" })));
        let volume = match self.change(volume, until, withdraw, &[]).await {
            // The Volume was deleted.
            Err(_) if self.get(&name).await?.is_none() => return Ok(()),
            changed => changed?,
        };
        let released =
            self.wait(&name, Some(volume), until, |now| is_released(now, node_id).then_some(())).await;
        released.map_err(|TimedOut { last }| {
            let waiting = "the node has not answered yet";
            let why = last.map(|volume| first_unmet(&volume, &[ASSIGNED, ATTACHED], waiting));
            Status::aborted(format!("Volume {name} is not released yet: {}", why.unwrap_or_default()))
        })
    }

    /// Waits until a volume that is being deleted is gone.
    ///
    /// # Errors
    /// `ABORTED`: it still exists.
    pub(super) async fn wait_until_gone(&self, volume: Volume, until: Instant) -> Result<(), Status> {
        let (name, uid) = (volume.name_any(), volume.metadata.uid.clone());
        let gone =
            self.wait(&name, Some(volume), until, |now| is_gone(now, uid.as_deref()).then_some(())).await;
        gone.map_err(|TimedOut { last }| {
            let why = last.and_then(|volume| condition_text(&volume, PROVISIONED));
            Status::aborted(format!("Volume {name} is still being deleted: {}", why.unwrap_or_default()))
        })
    }
}

/// Returns true if `spec.nodeName` requests that node (any node if empty).
fn is_requested(volume: &Volume, node: &str) -> bool {
    volume.spec.desired_node().is_some_and(|desired| node.is_empty() || desired == node)
}

/// Returns true if that node (any node if empty) neither serves the volume nor may start to: its final commit
/// is done, or the operator took the volume from it.
fn is_released(now: Option<&Volume>, node: &str) -> bool {
    let Some(volume) = now else { return true };
    let is_it = |name: &&str| !name.is_empty() && (node.is_empty() || *name == node);
    let assigned = volume.status.as_ref().and_then(|status| status.assigned_node.as_deref());
    serving_node(volume).filter(is_it).is_none() && assigned.filter(is_it).is_none()
}

fn is_gone(now: Option<&Volume>, uid: Option<&str>) -> bool {
    now.is_none_or(|volume| volume.metadata.uid.as_deref() != uid)
}

/// Returns the claim bound to a PersistentVolume in the annotation's format, unless the Volume's annotation
/// already names it.
fn other_claim(volume: &Volume, bound: &PersistentVolume) -> Option<String> {
    let claim = bound_claim(bound)?;
    (volume.annotations().get(CLAIM) != Some(&claim)).then_some(claim)
}

/// Returns the error for a volume that does not exist.
pub(super) fn missing(name: &str) -> Status {
    Status::not_found(format!("volume_id: no Volume is named `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    /// Seen in production: events, alerts and the deletion guard named the first claim permanently.
    #[test]
    fn a_volume_is_of_the_claim_that_its_persistent_volume_is_bound_to() {
        let mut volume = Volume::new(
            "pvc-1",
            serde_json::from_value(json!({ "size": "1Gi", "objectStore": "main" })).expect("a spec"),
        );
        volume.annotations_mut().insert(CLAIM.to_owned(), "default/first".to_owned());
        let bound = |claim| {
            let (metadata, spec) = (json!({ "name": "pvc-1" }), json!({ "claimRef": claim }));
            let of = json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Bound" } });
            serde_json::from_value::<PersistentVolume>(of).expect("an object")
        };
        let mut second = bound(json!({ "namespace": "shop2", "name": "second", "uid": "u" }));
        assert_eq!(other_claim(&volume, &second).as_deref(), Some("shop2/second"));
        for same in [json!({ "namespace": "default", "name": "first", "uid": "u" }), json!(null)] {
            assert_eq!(other_claim(&volume, &bound(same)), None, "it is of that claim, or free");
        }
        let reserved = bound(json!({ "namespace": "shop2", "name": "second" }));
        assert_eq!(other_claim(&volume, &reserved), None, "it is not bound yet");
        second.status.as_mut().expect("a status").phase = Some("Released".to_owned());
        assert_eq!(other_claim(&volume, &second), None, "the claim that it names is gone");
    }

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
