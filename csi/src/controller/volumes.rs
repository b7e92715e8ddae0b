//! Volume objects in the API server, and what belongs to them.

use std::ops::Deref;

use holdfast_crds::{CLAIM, StorageNode, Volume, bound_claim};
use holdfast_service::chain;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{Api, Client, ResourceExt};
use tonic::Status;

use super::objects::{ApiFailure, Objects, call};

/// The Volumes of the cluster.
#[derive(Clone)]
pub(super) struct ClusterVolumes {
    volumes: Objects<Volume>,
    nodes: Objects<StorageNode>,
    client: Client,
}

impl Deref for ClusterVolumes {
    type Target = Objects<Volume>;

    fn deref(&self) -> &Objects<Volume> {
        &self.volumes
    }
}

impl ClusterVolumes {
    pub(super) fn new(client: Client) -> Self {
        Self { volumes: Objects::new(client.clone()), nodes: Objects::new(client.clone()), client }
    }

    /// The volume of that name.
    ///
    /// # Errors
    /// `NOT_FOUND`, or the failure of the request.
    pub(super) async fn existing(&self, name: &str) -> Result<Volume, Status> {
        self.get(name).await?.ok_or_else(|| missing(name))
    }

    /// Returns true if a node of that name serves volumes, or did.
    pub(super) async fn has_node(&self, name: &str) -> Result<bool, ApiFailure> {
        Ok(self.nodes.get(name).await?.is_some())
    }

    /// Name of the StorageClass of a PersistentVolumeClaim; none if the claim is gone or names none.
    pub(super) async fn storage_class(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<String>, ApiFailure> {
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let claim = call(claims.get_opt(name)).await?;
        Ok(claim.and_then(|claim| claim.spec?.storage_class_name))
    }

    /// The claim that a Volume holds the data of now, where that is another one than its annotation says: its
    /// PersistentVolume was retained and bound to another claim. One that has another name than the Volume is
    /// followed by the operator alone. Costs a GET for the Volume of a claim.
    pub(super) async fn later_claim(&self, volume: &Volume) -> Option<String> {
        volume.annotations().get(CLAIM)?;
        let (name, bound) = (volume.name_any(), Api::<PersistentVolume>::all(self.client.clone()));
        match call(bound.get_opt(&name)).await {
            Ok(bound) => bound.and_then(|bound| other_claim(volume, &bound)),
            // The volume is served all the same; the next request looks again.
            Err(failure) => {
                tracing::warn!(volume = name, error = chain(&failure), "PersistentVolume not read");
                None
            }
        }
    }
}

/// The claim that a PersistentVolume is bound to, as the annotation of a Volume names it, unless that says so
/// already.
fn other_claim(volume: &Volume, bound: &PersistentVolume) -> Option<String> {
    let claim = bound_claim(bound)?;
    (volume.annotations().get(CLAIM) != Some(&claim)).then_some(claim)
}

/// The answer about a volume that does not exist.
pub(super) fn missing(name: &str) -> Status {
    Status::not_found(format!("volume_id: no Volume is named `{name}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Seen on the product: events, alerts and the guard of deletions named the first claim for good.
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
}
