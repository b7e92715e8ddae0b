//! Snapshots of a volume: taken by its writer if served here, otherwise in its log; listed, forgotten.
//!
//! Invariants: a snapshot is requested with a uid, so that a request may be repeated at any time, even to
//! another process.
//! On failure: a started snapshot is registered or not; repeating the request shows which.

use std::sync::Arc;

use holdfast_engine::event::Event;
use holdfast_engine::snapshot::SnapshotRefused;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::{SnapshotError, forget, forgotten_from, forgotten_of, snapshot_detached, snapshots};
use holdfast_s3::S3Config;
use holdfast_types::{Nonce, Seq, SnapshotUid, VolumeId};
use tokio::sync::broadcast::error::RecvError;

use crate::node::clock::unix_ms;
use crate::node::error::NodeError;
use crate::node::local::file::random;
use crate::node::store::change::NodeStores;
use crate::node::store::watched::WatchedStore;
use crate::node::volume::present::Present;
use crate::node::volume::state::State;
use crate::node::volume::table::NodeVolumes;
use holdfast_serve::Message;
use holdfast_serve::SnapshotAnswer;

/// A volume, and its store if it is not attached here.
#[derive(Debug, Clone)]
pub(crate) struct VolumeInStore {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// Name and configuration of its store. Optional if the volume is attached here.
    pub(crate) store: Option<(String, S3Config)>,
}

/// Snapshots of the volumes of this node, and of those in its stores.
pub(crate) struct Snapshots<'a> {
    pub(in crate::node) volumes: &'a NodeVolumes,
    pub(in crate::node) stores: &'a NodeStores,
}

impl Snapshots<'_> {
    /// Takes a snapshot of all completed writes, or returns the one already taken for this uid. Waits while
    /// the store is unreachable.
    ///
    /// # Errors
    /// [`NodeError::Snapshot`], [`NodeError::StoreNeeded`], [`NodeError::OtherStore`], [`NodeError::Busy`],
    /// [`NodeError::Fenced`], the store's error.
    #[tracing::instrument(name = "create_snapshot", skip_all, fields(volume = %at.volume, %uid))]
    pub(crate) async fn create(&self, at: VolumeInStore, uid: SnapshotUid) -> Result<Snapshot, NodeError> {
        let (present, objects) = self.place_of(&at).await?;
        match present {
            Some(present) => snapshot_served(&present, &at.volume, uid).await,
            None => Ok(snapshot_detached(&*objects, &at.volume, uid, Nonce(random()), unix_ms()).await?),
        }
    }

    /// Lists the snapshots of a volume, oldest first.
    ///
    /// # Errors
    /// [`NodeError::Snapshot`], [`NodeError::StoreNeeded`], [`NodeError::OtherStore`], the store's error.
    pub(crate) async fn list(&self, at: VolumeInStore) -> Result<Vec<Snapshot>, NodeError> {
        let (_, objects) = self.place_of(&at).await?;
        Ok(snapshots(&*objects, &at.volume).await?)
    }

    /// Deletes a snapshot of a volume. Repeating it is a no-op.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub(crate) async fn delete(&self, at: VolumeInStore, seq: Seq) -> Result<(), NodeError> {
        let (_, objects) = self.place_of(&at).await?;
        Ok(forget(&*objects, &at.volume, seq).await?)
    }

    /// Returns the volume if it is served here, and its store.
    async fn place_of(
        &self,
        at: &VolumeInStore,
    ) -> Result<(Option<Arc<Present>>, Arc<WatchedStore>), NodeError> {
        match (self.volumes.present(&at.volume), &at.store) {
            (Ok(present), store) => {
                if let Some((name, config)) = store {
                    present.check_store(name, config)?;
                }
                let objects = Arc::clone(&present.objects);
                Ok((Some(present), objects))
            }
            (Err(NodeError::NotAttached(_)), Some((name, config))) => {
                Ok((None, self.stores.connected(name, config).await?))
            }
            (Err(NodeError::NotAttached(volume)), None) => Err(NodeError::StoreNeeded(volume)),
            (Err(error), _) => Err(error),
        }
    }
}

/// Makes the writer of a volume take a snapshot.
async fn snapshot_served(
    present: &Present,
    volume: &VolumeId,
    uid: SnapshotUid,
) -> Result<Snapshot, NodeError> {
    let forgotten = forgotten(present, volume).await?;
    ask(present, volume, Event::Snapshot { uid, forgotten }, |answer| match answer {
        SnapshotAnswer::Taken(taken) if taken.uid == uid => Some(Ok(taken)),
        SnapshotAnswer::Refused(of, why) if of == uid => Some(Err(refused(volume, why))),
        SnapshotAnswer::Taken(_) | SnapshotAnswer::Refused(..) | SnapshotAnswer::Cut(..) => None,
    })
    .await
}

/// Returns the positions of a served volume's registered but forgotten snapshots, ascending. If the log is
/// unknown, or none is registered, those of all markers.
pub(super) async fn forgotten(present: &Present, volume: &VolumeId) -> Result<Vec<Seq>, NodeError> {
    let registered = present.published.registered_snapshots();
    let marks = if registered.is_empty() {
        forgotten_from(&*present.objects, volume, Seq::FIRST).await?
    } else {
        forgotten_of(&*present.objects, volume, &registered).await?
    };
    Ok(marks.into_iter().collect())
}

/// Sends an event to the writer of a volume, and returns the first result of `read` for its answers.
///
/// # Errors
/// [`NodeError::Busy`] if the volume is released before; the error of `read`.
pub(super) async fn ask<T>(
    present: &Present,
    volume: &VolumeId,
    event: Event,
    read: impl Fn(SnapshotAnswer) -> Option<Result<T, NodeError>>,
) -> Result<T, NodeError> {
    let mut answers = present.published.snapshot_answers();
    loop {
        present.ring.send(Message::Event { key: present.key, event: event.clone() }).await;
        loop {
            let answer = tokio::select! {
                answer = answers.recv() => answer,
                _ = present.state.reach(State::has_ended) => return Err(released(volume)),
            };
            match answer.map(&read) {
                Ok(Some(read)) => return read,
                Ok(None) => {}
                // The answer may be among the missed ones.
                Err(RecvError::Lagged(_)) => break,
                Err(RecvError::Closed) => return Err(released(volume)),
            }
        }
    }
}

/// Returns the error for a rejected snapshot.
pub(super) fn refused(volume: &VolumeId, why: SnapshotRefused) -> NodeError {
    match why {
        SnapshotRefused::Fenced => NodeError::Fenced(volume.clone()),
        SnapshotRefused::Released => released(volume),
        SnapshotRefused::TooMany => SnapshotError::TooMany(volume.clone()).into(),
        SnapshotRefused::Busy => {
            NodeError::Busy { volume: volume.clone(), doing: "taking as many snapshots as it can at a time" }
        }
        SnapshotRefused::Missed => released(volume),
    }
}

/// Returns the error for a volume that is no longer served.
pub(super) fn released(volume: &VolumeId) -> NodeError {
    NodeError::Busy { volume: volume.clone(), doing: "being detached" }
}
