//! A store whose configuration changes: its client is replaced under the volumes that use it.
//!
//! 1. the store stays in its place: another bucket or prefix is another store, and refused while volumes use
//!    this one;
//! 2. with the new client the log of every volume that uses the store is found again (`own_log.rs`), those
//!    included that wait to be recovered: new credentials and endpoints may lead to another bucket of the
//!    same name. Where no volume uses it and something is being done in it (an attach), the change waits;
//! 3. the client is replaced: uploads, log records and reads that wait use it with their next try;
//! 4. the records of these volumes in the run directory are rewritten, so that a restarted daemon begins with
//!    it;
//! 5. while a volume of the store is being attached, the change is to be repeated: its attach may bring back
//!    what it began with.
//!
//! On failure: the client stays as it was, and the caller tries again. Credentials that are wrong or not
//! valid yet, and an unreachable server, are failures; requests continue with the former configuration until
//! then, or wait as they did.

use std::sync::Arc;

use holdfast_s3::S3Config;
use holdfast_service::chain;
use tokio::sync::OwnedMutexGuard;

use crate::node::error::NodeError;
use crate::node::local::attached_record::AttachedRecord;
use crate::node::local::volume_files::LocalDirs;
use crate::node::run_blocking::blocking;
use crate::node::store::clients::Stores;
use crate::node::store::watched::WatchedStore;
use crate::node::store::{client::StoreClient, record::StoreRecord};
use crate::node::volume::own_log::{OwnLog, Unproven};
use crate::node::volume::state::State;
use crate::node::volume::table::{NodeVolumes, SeenVolume};

/// References to a store that only the list of stores and its change know. Whatever else has one reads or
/// extends a log.
const IDLE: usize = 2;

/// The stores of this node, with the volumes that a change affects.
pub(in crate::node) struct NodeStores {
    stores: Stores,
    volumes: NodeVolumes,
    dirs: LocalDirs,
}

impl NodeStores {
    /// None yet.
    pub(in crate::node) fn new(volumes: NodeVolumes, dirs: LocalDirs) -> Self {
        Self { stores: Stores::default(), volumes, dirs }
    }

    /// The store of this name and place; as `record` says if it is new here, else as it is. Sends nothing.
    pub(in crate::node) fn open(&self, name: &str, record: &StoreRecord) -> Arc<WatchedStore> {
        self.stores.open(name, record)
    }

    /// Held while the store called `name` is swept; absent while another sweep holds it.
    pub(in crate::node) fn sweep_alone(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        self.stores.sweep_alone(name)
    }

    /// The store called `name` as `config` says, for a new use of it. Sends nothing unless its configuration
    /// changed.
    pub(in crate::node) async fn connected(
        &self,
        name: &str,
        config: &S3Config,
    ) -> Result<Arc<WatchedStore>, NodeError> {
        let record = StoreRecord::from(config);
        let alone = self.stores.change(name).await;
        let store = self.stores.open(name, &record);
        self.replace(name, &store, record).await?;
        drop(alone);
        store.current().connect().await.map_err(|source| invalid(name, source))?;
        Ok(store)
    }

    /// The same, of a bucket that was probed: two nodes could write one volume where a second create of a key
    /// succeeds.
    pub(in crate::node) async fn probed(
        &self,
        name: &str,
        config: &S3Config,
    ) -> Result<Arc<WatchedStore>, NodeError> {
        let store = self.connected(name, config).await?;
        let client = store.current();
        let connected = client.connect().await.map_err(|source| invalid(name, source))?;
        let probed = client.probe(connected).await;
        probed.map_err(|source| NodeError::StoreUnfit { name: name.to_owned(), source: Box::new(source) })?;
        Ok(store)
    }

    /// Lets the volumes of the store called `name` use `config` from now on. Sends nothing unless it changed.
    ///
    /// # Errors
    /// [`NodeError::StoreMoved`], [`NodeError::StoreForeign`], [`NodeError::StoreConfig`]: the client stays
    /// as it was.
    /// [`NodeError::StoreUnchecked`], [`NodeError::StoreBusy`]: likewise, and the same call may succeed
    /// later.
    /// [`NodeError::StoreAttaching`]: make the same call again.
    pub(in crate::node) async fn renew(&self, name: &str, config: &S3Config) -> Result<(), NodeError> {
        let record = StoreRecord::from(config);
        let attaching = self.volumes.attaching_from(name);
        let mut moved = Ok(());
        for (volume, present) in self.volumes.presents() {
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
        let _alone = self.stores.change(name).await;
        let store = self.stores.open(name, &record);
        self.replace(name, &store, record).await.and(moved)?;
        match attaching.or_else(|| self.volumes.attaching_from(name)) {
            Some(volume) => Err(NodeError::StoreAttaching { name: name.to_owned(), volume }),
            None => Ok(()),
        }
    }

    async fn replace(
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
        let users = self.users(name, store).await;
        if users.is_none() && Arc::strong_count(store) > IDLE {
            return Err(NodeError::StoreBusy { name: name.to_owned() });
        }
        let users = users.unwrap_or_default();
        for log in &users {
            log.find(&client).await.map_err(|unproven| unproven_in(name, log, unproven))?;
        }
        store.replace(Arc::new(client));
        tracing::info!(
            store = name,
            volumes = users.len(),
            "the store's configuration changed: its client was replaced"
        );
        self.volumes.for_each_present(|volume, present| {
            if Arc::ptr_eq(&present.objects, store)
                && let Err(error) = present.remember()
            {
                tracing::error!(%volume, error = &error as &dyn std::error::Error,
                    "the record of an attached volume was not rewritten: a restarted daemon begins with the old configuration");
            }
        });
        Ok(())
    }

    /// The logs of the volumes that use `store` or will once they are recovered; nothing if there is no such
    /// volume. A fenced one sends nothing any more. Of one whose local state cannot be read, the store is
    /// unknown: it cannot be recovered.
    async fn users(&self, name: &str, store: &Arc<WatchedStore>) -> Option<Vec<OwnLog>> {
        let (mut is_used, mut logs) = (false, Vec::new());
        for SeenVolume { volume, state, present } in self.volumes.all() {
            if let Some(present) = present {
                if Arc::ptr_eq(&present.objects, store) {
                    is_used = true;
                    if !state.is_fenced() {
                        logs.push(present.log.up_to(present.published.status().committed));
                    }
                }
            } else if matches!(state, State::Recovering { .. }) {
                let local = self.dirs.of(&volume);
                let left = blocking(move || OwnLog::left(&local)).await.ok().flatten();
                let used = store.current();
                let is_here = |(record, log): (AttachedRecord, OwnLog)| {
                    (record.store_name == name && record.store.place() == used.record().place())
                        .then_some(log)
                };
                if let Some(log) = left.and_then(is_here) {
                    is_used = true;
                    logs.push(log);
                }
            }
        }
        is_used.then_some(logs)
    }
}

fn invalid(name: &str, source: holdfast_s3::InvalidConfig) -> NodeError {
    NodeError::StoreConfig { name: name.to_owned(), source }
}

fn unproven_in(name: &str, log: &OwnLog, unproven: Unproven) -> NodeError {
    let (name, volume) = (name.to_owned(), log.volume.clone());
    match unproven {
        Unproven::Foreign(found) => NodeError::StoreForeign { name, volume, found },
        Unproven::Unread(source) => NodeError::StoreUnchecked { name, volume, source: source.into() },
    }
}
