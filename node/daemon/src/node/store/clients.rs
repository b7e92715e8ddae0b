//! Identity of object stores, and their clients, which may be replaced while volumes use them.
//!
//! Owns: one store for each name and location (bucket and prefix), shared by all volumes in it; the record of
//! a store that survives a restart.
//! Does not own: the times at which a configuration is read again (`change.rs` and the edges).
//! Invariants: a store never changes its location; each new request uses the newest configuration.
//! On failure: with an unusable configuration (no trusted authorities), each request fails as "not
//! available", and the next one tries again. Devices are recovered without it.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::OwnedMutexGuard;

use crate::node::store::client::StoreClient;
use crate::node::store::record::StoreRecord;
use crate::node::store::watched::WatchedStore;

/// A store's name, bucket and prefix.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct StoreLocation {
    name: String,
    bucket: String,
    prefix: String,
}

impl StoreLocation {
    fn of(name: &str, record: &StoreRecord) -> Self {
        let (bucket, prefix) = record.place();
        Self { name: name.to_owned(), bucket: bucket.to_owned(), prefix: prefix.to_owned() }
    }
}

/// Locks by store name.
type Locks = BTreeMap<String, Arc<tokio::sync::Mutex<()>>>;

/// The stores in use, and those last used under their names.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    known: Mutex<BTreeMap<StoreLocation, Arc<WatchedStore>>>,
    changing: Mutex<Locks>,
    sweeping: Mutex<Locks>,
}

impl Stores {
    /// Returns the store of this name and location; created from `record` if it is new here.
    pub(crate) fn open(&self, name: &str, record: &StoreRecord) -> Arc<WatchedStore> {
        let mut known = self.known();
        let place = StoreLocation::of(name, record);
        known.retain(|other, store| {
            other.name != place.name || *other == place || Arc::strong_count(store) > 1
        });
        let new = || Arc::new(WatchedStore::new(Arc::new(StoreClient::new(record.clone()))));
        Arc::clone(known.entry(place).or_insert_with(new))
    }

    /// Locks the store called `name` while it is opened and its configuration is compared and replaced.
    pub(crate) async fn change(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut changing = self.changing.lock();
            Arc::clone(changing.entry(name.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// Returns a guard for a sweep of the store called `name`; `None` while another sweep holds it.
    pub(crate) fn sweep_alone(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        let lock = Arc::clone(self.sweeping.lock().entry(name.to_owned()).or_default());
        lock.try_lock_owned().ok()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<StoreLocation, Arc<WatchedStore>>> {
        self.known.lock()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_objects::ObjectStore;
    use holdfast_s3::{S3Config, S3Credentials};

    use super::*;

    fn config(bucket: &str, secret: &str) -> S3Config {
        let credentials = S3Credentials::Static {
            access_key_id: "key".to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: None,
        };
        S3Config {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..S3Config::new(bucket.to_owned(), "us-east-1".to_owned(), credentials)
        }
    }

    fn record(bucket: &str, secret: &str) -> StoreRecord {
        (&config(bucket, secret)).into()
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

    /// Regression: an image without authorities made a volume's device unavailable, although all its data was
    /// on the node.
    #[tokio::test]
    async fn an_unusable_configuration_is_unavailable_and_tried_again() {
        let stores = Stores::default();
        let unusable = S3Config { ca_pem: Some("none".to_owned()), ..config("bucket", "s") };
        let unusable = StoreRecord::from(&unusable);
        let store = stores.open("main", &unusable);
        for _ in 0..2 {
            let failed = store.get("a", 1).await.unwrap_err();
            assert_eq!(failed.kind(), holdfast_objects::ErrorKind::Unavailable);
            assert!(holdfast_service::chain(&failed).contains("caBundle"), "{failed:?}");
        }
        assert!(store.health().unreachable().is_some_and(|outage| outage.error.contains("caBundle")));
        assert_eq!(store.current().counts().total(), 0);
    }
}
