//! The configuration of a volume's store, and a failure to read it in the words of a Volume's condition.

use holdfast_cluster::store_config::{self, StoreConfigError};
use holdfast_s3::S3Config;
use holdfast_service::chain;
use kube::Client;

use super::retry::{OperationFailure, Retry};

/// Reason that a volume has no usable store. Nothing was sent to the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectStoreError {
    /// The volume names none.
    #[error("spec.objectStore: is empty; write the name of an ObjectStore")]
    NotNamed,
    /// The ObjectStore cannot be used.
    #[error("ObjectStore {store}: {source}")]
    Unusable {
        /// The ObjectStore.
        store: String,
        /// Fault of its configuration.
        source: StoreConfigError,
    },
}

impl From<ObjectStoreError> for OperationFailure {
    fn from(error: ObjectStoreError) -> Self {
        use StoreConfigError as Lacks;
        let (reason, retry) = match &error {
            ObjectStoreError::NotNamed => ("ObjectStoreMissing", Retry::Rarely),
            ObjectStoreError::Unusable { source, .. } => match source {
                Lacks::Missing(_) => ("ObjectStoreMissing", Retry::Rarely),
                Lacks::Api(_) => ("ApiUnavailable", Retry::Later),
                Lacks::NoSecret { .. } => ("SecretMissing", Retry::Rarely),
                Lacks::SecretForbidden { .. } => ("SecretForbidden", Retry::Rarely),
                Lacks::NoSecretKey { .. } => ("SecretKeyMissing", Retry::Rarely),
                Lacks::NoWebIdentity { .. } => ("WebIdentityMissing", Retry::Rarely),
                Lacks::TwoCaBundles | Lacks::Invalid(_) => ("ObjectStoreInvalid", Retry::Rarely),
            },
        };
        Self { reason, message: chain(&error), retry }
    }
}

/// Reads the ObjectStore called `name` and what it refers to.
///
/// # Errors
/// [`ObjectStoreError::Unusable`].
pub(crate) async fn read(client: &Client, name: &str) -> Result<S3Config, ObjectStoreError> {
    match store_config::read(client, "the node daemon", name).await {
        Ok(found) => Ok(found.config),
        Err(source) => Err(ObjectStoreError::Unusable { store: name.to_owned(), source }),
    }
}
