//! Configuration of a volume's store, and its read errors as messages of a Volume's condition.

use holdfast_cluster::store_config::{self, StoreConfig, StoreConfigError};
use holdfast_crds::Condition;
use holdfast_s3::{ProbeFailure, S3Config};
use holdfast_service::chain;
use kube::Client;

use super::retry::{OperationFailure, Retry};

/// Reason why a volume has no usable store. No request was sent to the store.
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
        /// The problem of its configuration.
        source: StoreConfigError,
    },
    /// The ObjectStore does not prevent two nodes from writing one volume.
    #[error("ObjectStore {store}: {message}")]
    Unfenced {
        /// The ObjectStore.
        store: String,
        /// Message of its condition.
        message: String,
    },
}

impl From<ObjectStoreError> for OperationFailure {
    fn from(error: ObjectStoreError) -> Self {
        use StoreConfigError as Lacks;
        let (reason, retry) = match &error {
            ObjectStoreError::NotNamed => ("ObjectStoreMissing", Retry::Rarely),
            ObjectStoreError::Unfenced { .. } => ("ObjectStoreUnfit", Retry::Rarely),
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

/// Reads the ObjectStore called `name` and the objects that it refers to.
///
/// # Errors
/// [`ObjectStoreError::Unusable`].
pub(crate) async fn read(client: &Client, name: &str) -> Result<S3Config, ObjectStoreError> {
    read_probed(client, name).await.map(|found| found.config)
}

/// Like [`read`], for an attach, which relies on a store in which only one create of a record can succeed.
///
/// # Errors
/// [`ObjectStoreError::Unfenced`] if the operator's last probe found two successful creates;
/// [`ObjectStoreError::Unusable`].
pub(crate) async fn read_fenced(client: &Client, name: &str) -> Result<S3Config, ObjectStoreError> {
    let StoreConfig { config, ready, version: _ } = read_probed(client, name).await?;
    check_fence(name, ready.as_ref()).map(|()| config)
}

/// Rejects a store whose last probe found that two creates of one key can succeed.
fn check_fence(store: &str, ready: Option<&Condition>) -> Result<(), ObjectStoreError> {
    match ready {
        Some(Condition { status, reason, message, .. })
            if status == "False" && ProbeFailure::UNFENCED.contains(&reason.as_str()) =>
        {
            Err(ObjectStoreError::Unfenced { store: store.to_owned(), message: message.clone() })
        }
        Some(_) | None => Ok(()),
    }
}

async fn read_probed(client: &Client, name: &str) -> Result<StoreConfig, ObjectStoreError> {
    let unusable = |source| ObjectStoreError::Unusable { store: name.to_owned(), source };
    store_config::read(client, "the node daemon", name).await.map_err(unusable)
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{ConditionBuilder, ConditionStatus, READY, Time};

    use super::*;

    /// Regression, found in review: only new volumes required the probe's result. A store that lost its fence
    /// after a change of endpoint still got attaches.
    #[test]
    fn a_store_without_a_fence_gets_no_attach() {
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let builder = ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now };
        let check = |status, reason| {
            let ready = builder.build(READY, status, reason, "spec.endpoint: two nodes; use another server");
            check_fence("main", Some(&ready)).map_err(OperationFailure::from)
        };
        for reason in ProbeFailure::UNFENCED {
            let refused = check(ConditionStatus::False, reason).unwrap_err();
            assert_eq!(refused.reason, "ObjectStoreUnfit");
            assert_eq!(refused.message, "ObjectStore main: spec.endpoint: two nodes; use another server");
        }
        // A server that is only unreachable at the moment, or a daemon without knowledge of probes.
        check(ConditionStatus::False, "Unreachable").unwrap();
        check(ConditionStatus::True, "Probed").unwrap();
        check_fence("main", None).unwrap();
    }
}
