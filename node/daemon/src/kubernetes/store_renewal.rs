//! Applies changes of ObjectStores and their Secrets to the attached volumes.
//!
//! Owns: the times at which a store's configuration is read again: when the ObjectStore changed (its uid, its
//! spec, or `status.credentialsVersion`, which the operator changes with its Secrets); and, at most once in
//! [`RETRY`], while the store does not respond to a volume or denies its requests, after a volume whose
//! attach may have read an earlier version arrived on this node, and after a failed read.
//! Does not own: validation and replacement of a configuration (the data plane).
//! Runs on: the daemon's tokio runtime.
//! On failure: the previous configuration stays in use; the volumes' condition `StoreReachable` has the
//! reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt;
use holdfast_crds::ObjectStore;
use holdfast_service::chain;
use holdfast_types::VolumeId;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::time::{MissedTickBehavior, interval};

use super::object_store;
use super::retry::OperationFailure;
use crate::node::NodeVolumeStatus;
use crate::volumes::Volumes;

/// Retry interval for the configuration of a store that does not respond.
const RETRY: Duration = Duration::from_secs(15);

/// Version of a store's configuration: uid, generation, version of its Secrets.
type Version = (Option<String>, Option<i64>, Option<String>);

fn version(store: &ObjectStore) -> Version {
    let credentials = store.status.as_ref().and_then(|status| status.credentials_version.clone());
    (store.metadata.uid.clone(), store.metadata.generation, credentials)
}

/// Configurations that were read, by store.
#[derive(Debug, Default)]
struct Renewals {
    read: BTreeMap<String, Version>,
    failed: BTreeSet<String>,
    /// The known volumes, and their stores.
    volumes: BTreeSet<(VolumeId, String)>,
}

impl Renewals {
    /// Records the store's version. Returns true if it is new, so that `store` must be read.
    fn changed(&mut self, store: &ObjectStore) -> bool {
        let now = version(store);
        self.read.insert(store.name_any(), now.clone()).is_none_or(|before| before != now)
    }

    /// Records the result of reading a store's configuration.
    fn ended(&mut self, name: &str, is_done: bool) {
        if is_done {
            self.failed.remove(name);
        } else {
            self.failed.insert(name.to_owned());
        }
    }

    /// Returns the stores to read periodically: those that do not respond, those of arrived volumes, and
    /// those whose last read failed.
    fn due(&mut self, volumes: &[NodeVolumeStatus]) -> BTreeSet<String> {
        // The store of a volume that is not recovered yet is unknown.
        let named = volumes.iter().filter(|volume| !volume.store.name.is_empty());
        let there: BTreeSet<_> =
            named.map(|volume| (volume.volume.clone(), volume.store.name.clone())).collect();
        self.failed.extend(there.difference(&self.volumes).map(|(_, store)| store.clone()));
        self.volumes = there;
        let silent = volumes.iter().filter(|volume| volume.store.health.unreachable().is_some());
        let silent = silent.map(|volume| volume.store.name.clone());
        silent.chain(self.failed.iter().filter(|name| is_used(name, volumes)).cloned()).collect()
    }
}

fn is_used(name: &str, volumes: &[NodeVolumeStatus]) -> bool {
    volumes.iter().any(|volume| volume.store.name == name)
}

/// Runs until it is dropped. `writer` shows the ObjectStores to the other parts.
pub(crate) async fn run<V: Volumes>(client: Client, volumes: V, writer: Writer<ObjectStore>) {
    let stores = watcher(Api::<ObjectStore>::all(client.clone()), watcher::Config::default());
    let mut stores = std::pin::pin!(stores.default_backoff().reflect(writer).applied_objects());
    let mut ticks = interval(RETRY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut renewals = Renewals::default();
    loop {
        let due = tokio::select! {
            next = stores.next() => match next {
                Some(Ok(store)) if renewals.changed(&store) => BTreeSet::from([store.name_any()]),
                Some(Ok(_unchanged)) => continue,
                Some(Err(error)) => {
                    tracing::debug!(error = chain(&error), "the watch of ObjectStores was interrupted");
                    continue;
                }
                None => return,
            },
            _ = ticks.tick() => renewals.due(&volumes.list()),
        };
        for name in due {
            if is_used(&name, &volumes.list()) {
                let renewed = renew(&client, &volumes, &name).await;
                if let Err(failure) = &renewed {
                    tracing::warn!(
                        store = name,
                        reason = failure.reason,
                        "the store's configuration was not renewed: {}",
                        failure.message
                    );
                }
                renewals.ended(&name, renewed.is_ok());
            }
        }
    }
}

async fn renew<V: Volumes>(client: &Client, volumes: &V, name: &str) -> Result<(), OperationFailure> {
    let config = object_store::read(client, name).await?;
    Ok(volumes.renew_store(name, &config).await?)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use holdfast_crds::{Credentials, EnvironmentCredentials, ObjectStoreSpec, ObjectStoreStatus, Sweep};

    use super::*;
    use holdfast_objects::ErrorKind;

    use crate::node::{StoreHealth, StoreOutage, StoreStatus};
    use crate::volumes::tests::attached;

    fn store(generation: i64, credentials: &str) -> ObjectStore {
        let spec = ObjectStoreSpec {
            endpoint: None,
            region: "us-east-1".to_owned(),
            bucket: "bucket".to_owned(),
            prefix: String::new(),
            path_style: false,
            ca_bundle: None,
            ca_bundle_ref: None,
            credentials: Credentials::Environment(EnvironmentCredentials {}),
            sweep: Sweep::default(),
            keep_deleted: "24h".to_owned(),
        };
        let mut store = ObjectStore::new("main", spec);
        store.metadata.generation = Some(generation);
        let credentials_version = Some(credentials.to_owned());
        store.status = Some(ObjectStoreStatus { credentials_version, ..ObjectStoreStatus::default() });
        store
    }

    /// Regression: the daemons ignored a rotated Secret: they read it at an attach only.
    #[test]
    fn a_store_is_read_when_its_spec_or_secret_changed() {
        let mut renewals = Renewals::default();
        for (seen, is_due) in [
            (store(1, "a/1"), true),
            (store(1, "a/1"), false),
            (store(1, "a/2"), true),
            (store(2, "a/2"), true),
            (store(2, "a/2"), false),
        ] {
            assert_eq!(renewals.changed(&seen), is_due, "{:?}", version(&seen));
        }
        let mut probed = store(2, "a/2");
        probed.status.as_mut().unwrap().observed_generation = Some(2);
        assert!(!renewals.changed(&probed), "a probe alone is no change");
        let made_again = ObjectStore {
            metadata: kube::api::ObjectMeta { uid: Some("u".to_owned()), ..probed.metadata.clone() },
            ..probed
        };
        assert!(renewals.changed(&made_again));
    }

    /// Regression: an attach that read the store just before a change served with the previous configuration
    /// permanently.
    #[test]
    fn a_store_is_read_again_after_an_attach() {
        let mut renewals = Renewals::default();
        renewals.changed(&store(1, "a/1"));
        let first = [attached("v")];
        let main: BTreeSet<_> = ["main".to_owned()].into();
        assert_eq!(renewals.due(&first), main);
        assert_eq!(renewals.due(&first), main, "until it succeeded");
        renewals.ended("main", true);
        assert!(renewals.due(&first).is_empty());
        assert_eq!(renewals.due(&[attached("v"), attached("w")]), main);
        renewals.ended("main", true);
        let unknown = NodeVolumeStatus { store: StoreStatus::default(), ..attached("x") };
        assert!(renewals.due(&[attached("v"), unknown]).is_empty());
    }

    #[test]
    fn a_store_that_denies_is_read_again() {
        let mut renewals = Renewals::default();
        let mut volume = attached("v");
        renewals.due(&[volume.clone()]);
        renewals.ended("main", true);
        assert!(renewals.due(&[volume.clone()]).is_empty());
        renewals.ended("main", false);
        renewals.ended("unused", false);
        assert_eq!(renewals.due(&[volume.clone()]), ["main".to_owned()].into());
        renewals.ended("main", true);
        assert!(renewals.due(&[volume.clone()]).is_empty());
        let (since, error) = (SystemTime::UNIX_EPOCH, "ExpiredToken".to_owned());
        volume.store.health =
            StoreHealth::Unreachable(StoreOutage { since, error, kind: ErrorKind::Denied, object: None });
        assert_eq!(renewals.due(&[volume]), ["main".to_owned()].into());
    }
}
