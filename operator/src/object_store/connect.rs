//! Connections to object stores: one per ObjectStore, replaced when its spec or a Secret changes.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_cluster::store_config::{self, StoreConfigError, StoreVersion};
use holdfast_s3::S3Store;
use kube::Client;
use tokio::sync::Mutex;

use crate::requeue::Requeue;

/// Reason why no connection exists. No request was sent to the store.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct ConnectError(#[from] pub(crate) StoreConfigError);

impl ConnectError {
    /// Returns the retry policy for the error.
    pub(crate) fn retry(&self) -> Requeue {
        match &self.0 {
            StoreConfigError::Api(_) => Requeue::Later,
            // A Secret is often created after the object that refers to it, and is not watched.
            StoreConfigError::Missing(_)
            | StoreConfigError::NoSecret { .. }
            | StoreConfigError::NoSecretKey { .. }
            | StoreConfigError::SecretForbidden { .. } => Requeue::Later,
            StoreConfigError::NoWebIdentity { .. }
            | StoreConfigError::TwoCaBundles
            | StoreConfigError::Invalid(_) => Requeue::Rarely,
        }
    }

    /// Returns the condition's reason.
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

/// Connections by the name of their ObjectStore. The connection of a deleted ObjectStore stays until the
/// process ends: there are few.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<String, Connection>>,
}

#[derive(Debug)]
struct Connection {
    /// The versions that the connection was created from.
    version: StoreVersion,
    store: Arc<S3Store>,
}

impl Connections {
    /// Returns the connection to the ObjectStore called `name`, or a new one if the ObjectStore or its
    /// Secrets changed. Sends no request to the store.
    ///
    /// # Errors
    /// A field of the ObjectStore is missing or invalid.
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

    /// Returns the uids and resource versions of the Secrets that the last connection to the ObjectStore
    /// called `name` was created from.
    pub(crate) async fn credentials_version(&self, name: &str) -> Option<String> {
        self.open.lock().await.get(name)?.version.of_secrets()
    }
}
