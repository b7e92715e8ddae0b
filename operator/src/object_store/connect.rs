//! Connections to object stores: one for each ObjectStore, renewed when its spec or a Secret changes.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_cluster::store_config::{self, StoreConfigError, StoreVersion};
use holdfast_s3::S3Store;
use kube::Client;
use tokio::sync::Mutex;

use crate::requeue::Requeue;

/// The reason for which there is no connection. No request was sent to the store.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct ConnectError(#[from] pub(crate) StoreConfigError);

impl ConnectError {
    /// The retry that fits the error.
    pub(crate) fn retry(&self) -> Requeue {
        match &self.0 {
            StoreConfigError::Api(_) => Requeue::Later,
            // A Secret is often created a moment after what refers to it, and Secrets are not watched.
            StoreConfigError::Missing(_)
            | StoreConfigError::NoSecret { .. }
            | StoreConfigError::NoSecretKey { .. }
            | StoreConfigError::SecretForbidden { .. } => Requeue::Later,
            StoreConfigError::NoWebIdentity { .. }
            | StoreConfigError::TwoCaBundles
            | StoreConfigError::Invalid(_) => Requeue::Rarely,
        }
    }

    /// Reason of the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match &self.0 {
            StoreConfigError::Missing(_) => "ObjectStoreMissing",
            StoreConfigError::Api(_) => "ApiUnavailable",
            StoreConfigError::NoSecret { .. } => "SecretMissing",
            StoreConfigError::SecretForbidden { .. } => "SecretForbidden",
            StoreConfigError::NoSecretKey { .. } => "SecretKeyMissing",
            StoreConfigError::NoWebIdentity { .. } => "WebIdentityMissing",
            StoreConfigError::TwoCaBundles | StoreConfigError::Invalid(_) => "InvalidSpec",
        }
    }
}

/// Connections by the name of their ObjectStore. That of a deleted ObjectStore stays until the process ends:
/// there are few.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<String, Connection>>,
}

#[derive(Debug)]
struct Connection {
    /// The versions that the connection was made from.
    version: StoreVersion,
    store: Arc<S3Store>,
}

impl Connections {
    /// The connection to the ObjectStore called `name`; a new one if it or its Secrets changed. Sends nothing
    /// to the store.
    ///
    /// # Errors
    /// The fields that the ObjectStore lacks.
    pub(crate) async fn open(&self, client: Client, name: &str) -> Result<Arc<S3Store>, ConnectError> {
        let found = store_config::read(&client, "the operator", name).await?;
        let mut open = self.open.lock().await;
        if let Some(connection) = open.get(name)
            && connection.version == found.version
        {
            return Ok(connection.store.clone());
        }
        let store = Arc::new(S3Store::connect(found.config).await.map_err(StoreConfigError::Invalid)?);
        open.insert(name.to_owned(), Connection { version: found.version, store: store.clone() });
        Ok(store)
    }

    /// The uids and resource versions of the Secrets that the last connection to the ObjectStore called
    /// `name` was made from.
    pub(crate) async fn credentials_version(&self, name: &str) -> Option<String> {
        self.open.lock().await.get(name)?.version.of_secrets()
    }
}
