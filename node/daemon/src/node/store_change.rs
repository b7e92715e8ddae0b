//! A store whose configuration changes: its client is replaced under the volumes that use it.
//!
//! 1. the store stays in its place: another bucket or prefix is another store, and refused while volumes use this one;
//! 2. where the endpoint changed, the new server must hold the log of an attached volume: a commit to another server that has
//!    a bucket of the same name would split the volume. While volumes are being attached and none is, it waits. Other fields need no proof; credentials that are wrong are denied, and
//!    requests wait as they did;
//! 3. the client is replaced: uploads, log records and reads that wait use it with their next try;
//! 4. the records of these volumes in the run directory are rewritten, so that a restarted daemon begins with it.
//!
//! On failure: the client stays as it was, and the caller tries again.

use std::sync::Arc;

use holdfast_objects::{ErrorKind, ObjectStore, StoreError};
use holdfast_s3::S3Config;
use holdfast_service::chain;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Seq, VolumeId};

use super::error::NodeError;
use super::store::{StoreClient, StoreRecord};
use super::watched_store::WatchedStore;
use super::{Entry, Node, Present};

/// References to a store that only the list of stores and its change know. Whatever else has one reads or extends a log.
const IDLE: usize = 2;
/// Longest first record of a log, in bytes.
const MOST_RECORD_BYTES: u64 = 64 << 10;

impl Node {
    /// The store called `name` as `config` says, for a new use of it. Sends nothing unless its endpoint changed.
    pub(super) async fn store(&self, name: &str, config: &S3Config) -> Result<Arc<WatchedStore>, NodeError> {
        let record = StoreRecord::from(config);
        let store = self.0.stores.open(name, &record);
        self.renew(name, &store, record).await?;
        store.current().connect().await.map_err(|source| invalid(name, source))?;
        Ok(store)
    }

    /// The same, of a bucket that was probed: two nodes could write one volume where a second create of a key succeeds.
    pub(super) async fn probed_store(
        &self,
        name: &str,
        config: &S3Config,
    ) -> Result<Arc<WatchedStore>, NodeError> {
        let store = self.store(name, config).await?;
        let client = store.current();
        let connected = client.connect().await.map_err(|source| invalid(name, source))?;
        let probed = client.probe(connected).await;
        probed.map_err(|source| NodeError::StoreUnfit { name: name.to_owned(), source })?;
        Ok(store)
    }

    /// Lets the volumes of the store called `name` use `config` from now on. Sends nothing unless its endpoint changed.
    ///
    /// # Errors
    /// [`NodeError::StoreMoved`], [`NodeError::StoreForeign`], [`NodeError::StoreConfig`]: the client stays as it was.
    /// [`NodeError::StoreUnchecked`], [`NodeError::StoreBusy`]: likewise, and the same call may succeed later.
    pub(crate) async fn renew_store(&self, name: &str, config: &S3Config) -> Result<(), NodeError> {
        let record = StoreRecord::from(config);
        let mut moved = Ok(());
        for (volume, present) in self.presents() {
            let used = present.objects.current();
            if present.store_name == name && used.record().place() != record.place() {
                let text = |(bucket, prefix): (&str, &str)| format!("{bucket}/{prefix}");
                let (used, wanted) = (text(used.record().place()), text(record.place()));
                let error = NodeError::StoreMoved { name: name.to_owned(), volume, used, wanted };
                present.objects.note_change(Some(chain(&error)));
                moved = Err(error);
            }
        }
        // A volume that is recovered later, with what the last daemon knew, finds the newest.
        let store = self.0.stores.open(name, &record);
        self.renew(name, &store, record).await.and(moved)
    }

    async fn renew(
        &self,
        name: &str,
        store: &Arc<WatchedStore>,
        record: StoreRecord,
    ) -> Result<(), NodeError> {
        let renewed = self.replace_client(name, store, record).await;
        store.note_change(renewed.as_ref().err().map(|error| chain(error)));
        renewed
    }

    async fn replace_client(
        &self,
        name: &str,
        store: &Arc<WatchedStore>,
        record: StoreRecord,
    ) -> Result<(), NodeError> {
        let before = store.current();
        if *before.record() == record {
            return Ok(());
        }
        let client = StoreClient::new(record);
        client.connect().await.map_err(|source| invalid(name, source))?;
        let users =
            || self.presents().into_iter().filter(|(_, present)| Arc::ptr_eq(&present.objects, store));
        if client.record().endpoint() != before.record().endpoint() {
            match users().next() {
                Some((volume, _)) => check_server(name, &client, volume).await?,
                None if Arc::strong_count(store) > IDLE => {
                    return Err(NodeError::StoreBusy { name: name.to_owned() });
                }
                None => {}
            }
        }
        store.replace(Arc::new(client));
        tracing::info!(
            store = name,
            volumes = users().count(),
            "the store's configuration changed: its client was replaced"
        );
        // With the lock held, so that no volume is forgotten meanwhile.
        let volumes = self.volumes();
        for (volume, entry) in volumes.iter() {
            if let Entry::Present(present) = entry
                && Arc::ptr_eq(&present.objects, store)
                && let Err(error) = present.remember()
            {
                tracing::error!(%volume, error = &error as &dyn std::error::Error,
                    "the record of an attached volume was not rewritten: a restarted daemon begins with the old configuration");
            }
        }
        Ok(())
    }

    fn presents(&self) -> Vec<(VolumeId, Arc<Present>)> {
        let volumes = self.volumes();
        let presents = volumes.iter().filter_map(|(volume, entry)| match entry {
            Entry::Present(present) => Some((volume.clone(), Arc::clone(present))),
            Entry::Attaching { .. } | Entry::Stranded(_) | Entry::Evicting => None,
        });
        presents.collect()
    }
}

fn invalid(name: &str, source: holdfast_s3::InvalidConfig) -> NodeError {
    NodeError::StoreConfig { name: name.to_owned(), source }
}

/// The first record of a log stays while the volume exists.
async fn check_server(name: &str, client: &StoreClient, volume: VolumeId) -> Result<(), NodeError> {
    let key = ObjectKey::Log(volume.clone(), Seq::FIRST).to_string();
    let name = name.to_owned();
    match client.get(&key, MOST_RECORD_BYTES).await {
        Ok(_record) => Ok(()),
        Err(StoreError::NotFound { .. }) => {
            let endpoint = client.record().endpoint().unwrap_or("Amazon S3").to_owned();
            Err(NodeError::StoreForeign { name, endpoint, volume })
        }
        Err(source) if source.kind() == ErrorKind::Corrupt => {
            Err(NodeError::StoreForeign { name, endpoint: source.to_string(), volume })
        }
        Err(source) => Err(NodeError::StoreUnchecked { name, source }),
    }
}
