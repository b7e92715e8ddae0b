//! Object stores: who they are, and their clients, which change under the volumes that use them.
//!
//! Owns: one store for each name and place (bucket and prefix), shared by all volumes in it; the form in which a store is
//! remembered across a restart. Does not own: when a configuration is read again (`store_change.rs` and the edges).
//! Invariants: a store never changes its place; whatever asks it next uses the newest configuration.
//! On failure: a configuration that cannot be used here (no authorities to trust) fails each request as "not available", and
//! is tried again by the next one. Devices are recovered without it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_objects::{
    CreateError, Created, ObjectStore, Page, Parts, RequestCounts, SegmentError, StoreError, Suffix,
};
use holdfast_s3::{Credentials, InvalidConfig, ProbeFailure, S3Config, S3Store};
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, OwnedMutexGuard};

use super::watched_store::WatchedStore;

/// An [`S3Config`] as the tmpfs directory keeps it (mode 0600), so that a restarted daemon can continue alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreRecord {
    endpoint: Option<String>,
    region: String,
    bucket: String,
    prefix: String,
    path_style: bool,
    ca_pem: Option<String>,
    credentials: CredentialsRecord,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum CredentialsRecord {
    Static { access_key_id: String, secret_access_key: String, session_token: Option<String> },
    Environment,
    WebIdentity { token_file: PathBuf, role_arn: String },
}

impl std::fmt::Debug for CredentialsRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("credentials")
    }
}

impl StoreRecord {
    /// The bucket and the prefix in it.
    pub(crate) fn place(&self) -> (&str, &str) {
        (&self.bucket, &self.prefix)
    }
}

impl From<&S3Config> for StoreRecord {
    fn from(config: &S3Config) -> Self {
        let credentials = match config.credentials.clone() {
            Credentials::Static { access_key_id, secret_access_key, session_token } => {
                CredentialsRecord::Static { access_key_id, secret_access_key, session_token }
            }
            Credentials::Environment => CredentialsRecord::Environment,
            Credentials::WebIdentity { token_file, role_arn } => {
                CredentialsRecord::WebIdentity { token_file, role_arn }
            }
        };
        Self {
            endpoint: config.endpoint.clone(),
            region: config.region.clone(),
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            path_style: config.path_style,
            ca_pem: config.ca_pem.clone(),
            credentials,
        }
    }
}

impl StoreRecord {
    /// Whether a store of another name has the same objects, whatever the credentials.
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        self.place() == other.place() && self.endpoint == other.endpoint
    }
}

impl From<&StoreRecord> for S3Config {
    fn from(record: &StoreRecord) -> Self {
        let credentials = match record.credentials.clone() {
            CredentialsRecord::Static { access_key_id, secret_access_key, session_token } => {
                Credentials::Static { access_key_id, secret_access_key, session_token }
            }
            CredentialsRecord::Environment => Credentials::Environment,
            CredentialsRecord::WebIdentity { token_file, role_arn } => {
                Credentials::WebIdentity { token_file, role_arn }
            }
        };
        Self {
            endpoint: record.endpoint.clone(),
            prefix: record.prefix.clone(),
            path_style: record.path_style,
            ca_pem: record.ca_pem.clone(),
            ..Self::new(record.bucket.clone(), record.region.clone(), credentials)
        }
    }
}

/// A client of one configuration, connected by its first request.
#[derive(Debug)]
pub(crate) struct StoreClient {
    record: StoreRecord,
    connected: OnceCell<S3Store>,
    probed: OnceCell<()>,
}

impl StoreClient {
    pub(crate) fn new(record: StoreRecord) -> Self {
        Self { record, connected: OnceCell::new(), probed: OnceCell::new() }
    }

    /// What it was made from.
    pub(crate) fn record(&self) -> &StoreRecord {
        &self.record
    }

    /// The connection. Sends nothing.
    ///
    /// # Errors
    /// The field that cannot be used here.
    pub(crate) async fn connect(&self) -> Result<&S3Store, InvalidConfig> {
        self.connected.get_or_try_init(|| S3Store::connect((&self.record).into())).await
    }

    /// Asks the bucket for all that volumes need, create-once above all, unless this client did so before.
    ///
    /// # Errors
    /// What the bucket lacks; it is asked again by the next call.
    pub(crate) async fn probe(&self, store: &S3Store) -> Result<(), ProbeFailure> {
        self.probed.get_or_try_init(|| store.probe()).await.map(|_probed| ())
    }

    /// Requests sent so far.
    pub(crate) fn counts(&self) -> RequestCounts {
        self.connected.get().map(S3Store::counts).unwrap_or_default()
    }

    /// Time that requests took so far.
    pub(crate) fn time(&self) -> std::time::Duration {
        self.connected.get().map(|store| store.requests().time()).unwrap_or_default()
    }

    async fn store(&self) -> Result<&S3Store, StoreError> {
        self.connect().await.map_err(|invalid| StoreError::Unavailable(invalid.into()))
    }
}

#[async_trait]
impl ObjectStore for StoreClient {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.store().await?.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.store().await?.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        self.store().await?.get_suffix(key, len).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.store().await.map_err(CreateError::Failed)?.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.store().await?.put_segment(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.store().await?.list(prefix, start_after, limit).await
    }

    async fn delete(&self, key: &str) -> Result<(), StoreError> {
        self.store().await?.delete(key).await
    }
}

/// A store's name, bucket and prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    name: String,
    bucket: String,
    prefix: String,
}

impl Place {
    fn of(name: &str, record: &StoreRecord) -> Self {
        let (bucket, prefix) = record.place();
        Self { name: name.to_owned(), bucket: bucket.to_owned(), prefix: prefix.to_owned() }
    }
}

/// The stores in use, and those that were used last under their names.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    known: Mutex<BTreeMap<Place, Arc<WatchedStore>>>,
    changing: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Stores {
    /// The store of this name and place; as `record` says if it is new here, else as it is.
    pub(crate) fn open(&self, name: &str, record: &StoreRecord) -> Arc<WatchedStore> {
        let mut known = self.known();
        let place = Place::of(name, record);
        known.retain(|other, store| {
            other.name != place.name || *other == place || Arc::strong_count(store) > 1
        });
        let new = || Arc::new(WatchedStore::new(Arc::new(StoreClient::new(record.clone()))));
        Arc::clone(known.entry(place).or_insert_with(new))
    }

    /// Held while the store called `name` is opened and its configuration compared and replaced: by one at a time.
    pub(crate) async fn change(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(changing.entry(name.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Place, Arc<WatchedStore>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(bucket: &str, secret: &str) -> StoreRecord {
        let credentials = Credentials::Static {
            access_key_id: "key".to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: None,
        };
        let config = S3Config {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..S3Config::new(bucket.to_owned(), "us-east-1".to_owned(), credentials)
        };
        (&config).into()
    }

    #[test]
    fn volumes_of_one_place_share_a_store_whatever_their_credentials() {
        let stores = Stores::default();
        let one = stores.open("main", &record("bucket", "old"));
        let other = stores.open("main", &record("bucket", "new"));
        assert!(Arc::ptr_eq(&one, &other));
        assert_eq!(*one.current().record(), record("bucket", "old"), "only a change of the store changes it");
        let named_otherwise = stores.open("other", &record("bucket", "old"));
        assert!(!Arc::ptr_eq(&one, &named_otherwise));
    }

    #[test]
    fn an_old_place_lives_while_a_volume_uses_it() {
        let stores = Stores::default();
        let old = stores.open("main", &record("old", "s"));
        let unused = Arc::downgrade(&stores.open("main", &record("between", "s")));
        assert!(unused.upgrade().is_some(), "the newest waits for the next volume");
        let new = stores.open("main", &record("new", "s"));
        assert!(unused.upgrade().is_none(), "nothing uses it");
        assert!(Arc::ptr_eq(&stores.open("main", &record("old", "s")), &old));
        assert!(Arc::ptr_eq(&stores.open("main", &record("new", "s")), &new));
    }

    /// An image without authorities made the device of a volume unreachable, though all its data was on the node.
    #[tokio::test]
    async fn an_unusable_configuration_is_unavailable_and_tried_again() {
        let stores = Stores::default();
        let unusable = StoreRecord { ca_pem: Some("none".to_owned()), ..record("bucket", "s") };
        let store = stores.open("main", &unusable);
        for _ in 0..2 {
            let failed = store.get("a", 1).await.unwrap_err();
            assert_eq!(failed.kind(), holdfast_objects::ErrorKind::Unavailable);
            assert!(holdfast_service::chain(&failed).contains("caBundle"), "{failed:?}");
        }
        assert!(store.health().away().is_some_and(|away| away.error.contains("caBundle")));
        assert_eq!(store.current().counts().total(), 0);
    }
}
