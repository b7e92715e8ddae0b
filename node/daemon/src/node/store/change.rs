//! Change of a store's configuration: its client is replaced while volumes use it.
//!
//! 1. the location of the store must stay: another bucket or prefix is another store, and is rejected while
//!    volumes use this one;
//! 2. with the new client the log of every volume that uses the store is looked up again (`own_log.rs`),
//!    including volumes that wait for recovery: new credentials and endpoints may lead to another bucket of
//!    the same name. A damaged or archived record of one volume does not stop the change if another volume's
//!    log was found, and neither does a log that the current client does not find either. If no volume uses
//!    the store, but an operation (an attach) does, the change waits;
//! 3. the client is replaced: pending uploads, log records and reads use it with their next attempt;
//! 4. the records of these volumes in the run directory are rewritten, so that a restarted daemon starts with
//!    the new configuration;
//! 5. if a volume of the store is being attached, the change must be repeated: the attach may restore the
//!    configuration that it started with.
//!
//! On failure: the client stays unchanged, and the caller retries. Wrong or not yet valid credentials, and an
//! unreachable server, are failures; until the retry succeeds, requests continue with the previous
//! configuration, or keep waiting.

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

/// References to a store held by the list of stores and its change. All others read or extend a log.
const IDLE: usize = 2;

/// The stores of this node, with the volumes affected by a change.
pub(in crate::node) struct NodeStores {
    stores: Stores,
    volumes: NodeVolumes,
    dirs: LocalDirs,
}

impl NodeStores {
    /// Starts without stores.
    pub(in crate::node) fn new(volumes: NodeVolumes, dirs: LocalDirs) -> Self {
        Self { stores: Stores::default(), volumes, dirs }
    }

    /// Returns the store of this name and location; created from `record` if it is new here. Sends nothing.
    pub(in crate::node) fn open(&self, name: &str, record: &StoreRecord) -> Arc<WatchedStore> {
        self.stores.open(name, record)
    }

    /// Returns a guard for a sweep of the store called `name`; `None` while another sweep holds it.
    pub(in crate::node) fn sweep_alone(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        self.stores.sweep_alone(name)
    }

    /// Returns the store called `name` with configuration `config`, for a new use of it. Sends nothing unless
    /// its configuration changed.
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

    /// Like [`Self::connected`], and probes the bucket: if a second create of a key succeeded, two nodes
    /// could write one volume.
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

    /// Switches the volumes of the store called `name` to `config`. Sends nothing unless it changed.
    ///
    /// # Errors
    /// [`NodeError::StoreMoved`], [`NodeError::StoreForeign`], [`NodeError::StoreConfig`]: the client stays
    /// as it was.
    /// [`NodeError::StoreUnchecked`], [`NodeError::StoreBusy`]: likewise, but the same call may succeed
    /// later.
    /// [`NodeError::StoreAttaching`]: repeat the call.
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
        // A volume recovered later, from the previous daemon's record, uses the newest one.
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
        find_logs(name, &users, &client, &before).await?;
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
                    "the record of an attached volume was not rewritten: a restarted daemon starts with the old \
                     configuration");
            }
        });
        Ok(())
    }

    /// Returns the logs of the volumes that use `store`, or will use it after their recovery; `None` if there
    /// is no such volume. A fenced one sends no more requests. If a volume's local state is unreadable, its
    /// store is unknown: it cannot be recovered.
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

/// Finds all of `logs` with `client`, which replaces `before`. The fault of one volume's own objects is only
/// logged if another log is found: it would block the credentials of all volumes.
async fn find_logs(
    name: &str,
    logs: &[OwnLog],
    client: &StoreClient,
    before: &StoreClient,
) -> Result<(), NodeError> {
    let mut faulty = Vec::new();
    for log in logs {
        match log.find(client).await {
            Ok(()) => {}
            Err(unproven) if unproven.is_of_volume() => faulty.push((log, unproven)),
            Err(unproven @ Unproven::Foreign(_)) if is_foreign_in(log, before, &unproven).await => {
                faulty.push((log, unproven));
            }
            Err(unproven) => return Err(unproven_in(name, log, unproven)),
        }
    }
    if faulty.len() == logs.len()
        && let Some((log, unproven)) = faulty.pop()
    {
        return Err(unproven_in(name, log, unproven));
    }
    for (log, unproven) in faulty {
        tracing::error!(store = name, volume = %log.volume, error = chain(&unproven),
            "the log of an attached volume is damaged, archived or not that of its writer, with the former \
             configuration, too: the volume uses the new one without a check of its log");
    }
    Ok(())
}

/// Returns true if `before` finds the same fault: someone deleted or replaced the log in the bucket.
async fn is_foreign_in(log: &OwnLog, before: &StoreClient, unproven: &Unproven) -> bool {
    log.find(before).await.is_err_and(|found| found.to_string() == unproven.to_string())
}

fn unproven_in(name: &str, log: &OwnLog, unproven: Unproven) -> NodeError {
    let (name, volume) = (name.to_owned(), log.volume.clone());
    match unproven {
        Unproven::Foreign(found) => NodeError::StoreForeign { name, volume, found },
        Unproven::Unread(source) => NodeError::StoreUnchecked { name, volume, source: source.into() },
    }
}
