//! Volume objects in the API server, and what belongs to them.

use std::ops::Deref;

use holdfast_crds::{StorageNode, Volume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client};
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
}

/// The answer about a volume that does not exist.
pub(super) fn missing(name: &str) -> Status {
    Status::not_found(format!("volume_id: no Volume is named `{name}`"))
}
