//! Carries out the steps of a plan, in order, each so that it may be repeated.

use std::sync::Arc;

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{
    ByteSize, ConditionStatus, OPERATOR_FIELD_MANAGER, READY, SNAPSHOT_FINALIZER, Time, VolumeSnapshot,
    VolumeSnapshotStatus,
};
use holdfast_engine::record::Labels;
use holdfast_engine::snapshot::Snapshot;
use holdfast_log::SnapshotError;
use holdfast_objects::ObjectStore;
use holdfast_s3::S3Store;
use holdfast_types::{SECTOR_BYTES, SnapshotName, SnapshotUid, VolumeId};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::facts::SnapshotFacts;
use super::failure::SnapshotFailure;
use super::plan::SnapshotStep;
use crate::object_store::connect::Connections;
use crate::volume::apply::random_nonce;

/// Applies steps to one snapshot.
pub(crate) struct SnapshotApplier<'a> {
    /// The client of the API server.
    pub(crate) client: Client,
    /// Connections to object stores.
    pub(crate) connections: &'a Connections,
    /// The snapshot as the API server last returned it.
    pub(crate) snapshot: VolumeSnapshot,
}

impl SnapshotApplier<'_> {
    /// Carries out the steps in order, and reports the first failure.
    ///
    /// # Errors
    /// That failure.
    pub(crate) async fn carry_out(
        &mut self,
        steps: &[SnapshotStep],
        facts: &SnapshotFacts,
        now: &Time,
    ) -> Result<(), SnapshotFailure> {
        for step in steps {
            if let Err(failure) = self.apply(step, facts, now).await {
                // What an earlier step recorded stays.
                let recorded = self.snapshot.status.clone().unwrap_or_default();
                let facts = SnapshotFacts { status: recorded, ..facts.clone() };
                if let Some(status) = failure.status(&facts, now) {
                    self.apply(&SnapshotStep::Report(Box::new(status)), &facts, now).await?;
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Carries out one step.
    ///
    /// # Errors
    /// [`SnapshotFailure`]; the step may have taken effect.
    async fn apply(
        &mut self,
        step: &SnapshotStep,
        facts: &SnapshotFacts,
        now: &Time,
    ) -> Result<(), SnapshotFailure> {
        match step {
            SnapshotStep::AddFinalizer => self.patch(self.finalizers(true)).await,
            SnapshotStep::RemoveFinalizer => self.patch(self.finalizers(false)).await,
            SnapshotStep::Report(status) => self.report(status).await,
            SnapshotStep::Take => {
                let (store, volume) = self.place().await?;
                let unix_ms = u64::try_from(now.0.as_millisecond()).unwrap_or_default();
                let (uid, nonce) = (self.uid(), random_nonce());
                let taken =
                    holdfast_log::snapshot_detached(store.as_ref(), &volume, uid, nonce, unix_ms).await?;
                let said = ("Taken", "the snapshot holds what the volume held when no node served it");
                let status = ready(facts, self.snapshot.status.as_ref(), &volume, taken, said, now);
                self.report(&status).await
            }
            SnapshotStep::Adopt(name) => {
                let place = facts.volume.as_ref().map(|volume| volume.object_store.clone());
                let store = self.connections.open(self.client.clone(), place.as_deref().unwrap_or_default());
                let found = find(store.await?.as_ref(), name).await?;
                let status = VolumeSnapshotStatus {
                    volume_id: Some(name.volume.to_string()),
                    object_store: place,
                    snapshot_uid: Some(found.uid.to_string()),
                    ..self.snapshot.status.clone().unwrap_or_default()
                };
                let message = "the object store held the snapshot already";
                let said = ("Adopted", message);
                self.report(&ready(facts, Some(&status), &name.volume, found, said, now)).await
            }
            SnapshotStep::StoreOrigin => self.store_origin().await.map_err(|failure| match failure {
                SnapshotFailure::Changed => SnapshotFailure::Changed,
                other => SnapshotFailure::Origin(Box::new(other)),
            }),
            SnapshotStep::Forget => {
                let (store, volume) = self.place().await?;
                Ok(forget(store.as_ref(), &volume, self.uid()).await?)
            }
        }
    }

    /// Stores the names of the objects beside the snapshot. Those that another cluster stored stay.
    async fn store_origin(&mut self) -> Result<(), SnapshotFailure> {
        let (store, volume) = self.place().await?;
        holdfast_log::store_origin(store.as_ref(), &volume, self.uid(), &origin(&self.snapshot)).await?;
        let status = self.snapshot.status.clone().unwrap_or_default();
        self.report(&VolumeSnapshotStatus { origin_stored: Some(true), ..status }).await
    }

    /// The store and the volume that are recorded.
    async fn place(&self) -> Result<(Arc<S3Store>, VolumeId), SnapshotFailure> {
        let status = self.snapshot.status.as_ref();
        let store = status.and_then(|status| status.object_store.as_deref()).unwrap_or_default();
        let volume = status.and_then(|status| status.volume_id.clone()).unwrap_or_default();
        let volume = VolumeId::try_from(volume)?;
        Ok((self.connections.open(self.client.clone(), store).await?, volume))
    }

    fn uid(&self) -> SnapshotUid {
        let uid = self.snapshot.uid_in_store().unwrap_or_default();
        uid.parse().expect("the API server gives every object a UUID")
    }

    /// The object's finalizers with or without ours.
    fn finalizers(&self, present: bool) -> Value {
        let mut finalizers = self.snapshot.finalizers().to_vec();
        finalizers.retain(|name| name != SNAPSHOT_FINALIZER);
        if present {
            finalizers.push(SNAPSHOT_FINALIZER.to_owned());
        }
        json!({ "metadata": { "finalizers": finalizers } })
    }

    fn api(&self) -> Api<VolumeSnapshot> {
        Api::all(self.client.clone())
    }

    /// The resource version makes the write fail if another client changed the object since it was read.
    async fn patch(&mut self, mut patch: Value) -> Result<(), SnapshotFailure> {
        patch["metadata"]["resourceVersion"] = json!(self.snapshot.resource_version());
        let params =
            PatchParams { field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let (api, name) = (self.api(), self.snapshot.name_any());
        self.snapshot = call(api.patch(&name, &params, &Patch::Merge(patch))).await.map_err(classify)?;
        Ok(())
    }

    /// Writes the status, unless it stands there already. The resource version makes the write fail if the
    /// daemon reported anything since the plan was made.
    async fn report(&mut self, status: &VolumeSnapshotStatus) -> Result<(), SnapshotFailure> {
        if self.snapshot.status.as_ref() == Some(status) {
            return Ok(());
        }
        let patch = json!({
            "apiVersion": VolumeSnapshot::api_version(&()),
            "kind": VolumeSnapshot::kind(&()),
            "metadata": { "name": self.snapshot.name_any(), "resourceVersion": self.snapshot.resource_version() },
            "status": status,
        });
        let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
        let (api, name) = (self.api(), self.snapshot.name_any());
        self.snapshot =
            call(api.patch_status(&name, &params, &Patch::Apply(patch))).await.map_err(classify)?;
        Ok(())
    }
}

/// The labels that say which objects the snapshot is of.
fn origin(snapshot: &VolumeSnapshot) -> Labels {
    let (name, user) = (snapshot.name_any(), snapshot.user_snapshot());
    let mut labels = Labels::default();
    for (label, value) in [
        (Labels::SNAPSHOT, Some(name.as_str())),
        (Labels::VOLUME, Some(snapshot.spec.volume.as_str())),
        (Labels::USER_SNAPSHOT_NAMESPACE, user.map(|(namespace, _name)| namespace)),
        (Labels::USER_SNAPSHOT_NAME, user.map(|(_namespace, name)| name)),
    ] {
        if let Some(value) = value {
            labels.insert(label, value);
        }
    }
    labels
}

/// The snapshot of this name that the log has, and that was not forgotten.
async fn find(store: &dyn ObjectStore, name: &SnapshotName) -> Result<Snapshot, SnapshotError> {
    let SnapshotName { volume, seq } = name;
    let there = holdfast_log::snapshots(store, volume).await?;
    let found = there.into_iter().find(|known| known.seq == *seq);
    found.ok_or_else(|| SnapshotError::NoSuchSnapshot { volume: volume.clone(), seq: *seq })
}

/// The status of a snapshot that is there, with reason and message of its condition.
fn ready(
    facts: &SnapshotFacts,
    present: Option<&VolumeSnapshotStatus>,
    volume: &VolumeId,
    taken: Snapshot,
    (reason, message): (&str, &str),
    now: &Time,
) -> VolumeSnapshotStatus {
    let at = i64::try_from(taken.unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).map(Time);
    let bytes = taken.sectors * SECTOR_BYTES;
    VolumeSnapshotStatus {
        snapshot_id: Some(format!("{volume}@{}", taken.seq)),
        taken_time: at,
        size_bytes: Some(bytes),
        size: Some(ByteSize(bytes).to_string()),
        conditions: vec![facts.conditions(now).build(READY, ConditionStatus::True, reason, message)],
        ..present.cloned().unwrap_or_default()
    }
}

/// Forgets the snapshot with this uid, if the log has it. A volume that is gone has none.
async fn forget(store: &dyn ObjectStore, volume: &VolumeId, uid: SnapshotUid) -> Result<(), SnapshotError> {
    let there = match holdfast_log::snapshots(store, volume).await {
        Err(SnapshotError::NotFound(_) | SnapshotError::Deleted(_)) => return Ok(()),
        known => known?,
    };
    match there.iter().find(|known| known.uid == uid) {
        Some(known) => holdfast_log::forget(store, volume, known.seq).await,
        None => Ok(()),
    }
}

/// A conflict, or an object that is gone, means that the plan was made from an old state.
fn classify(error: ApiError) -> SnapshotFailure {
    if error.is_stale() { SnapshotFailure::Changed } else { SnapshotFailure::Api(error) }
}

#[cfg(test)]
mod tests {
    use holdfast_log::Creation;
    use holdfast_objects::MemoryStore;
    use holdfast_types::Nonce;

    use super::*;

    const UID: SnapshotUid = SnapshotUid([7; 16]);

    /// The operator dies after it took the snapshot, and after it forgot it.
    #[tokio::test]
    async fn taking_and_deleting_a_snapshot_twice_changes_nothing_more() {
        let (store, volume): (_, VolumeId) = (MemoryStore::new(), "v".parse().expect("an id"));
        assert!(forget(&store, &volume, UID).await.is_ok(), "a volume that is not there has none");
        let creation = Creation::plain(64, Nonce([1; 16]), 0);
        holdfast_log::provision(&store, &volume, creation).await.expect("created");
        let take = || holdfast_log::snapshot_detached(&store, &volume, UID, random_nonce(), 0);
        assert_eq!(take().await.expect("taken"), take().await.expect("taken"));
        let live = || async { holdfast_log::snapshots(&store, &volume).await.expect("a log").len() };
        assert_eq!(live().await, 1);
        forget(&store, &volume, SnapshotUid([8; 16])).await.expect("another is not there");
        assert_eq!(live().await, 1);
        for _ in 0..2 {
            forget(&store, &volume, UID).await.expect("forgotten");
            assert_eq!(live().await, 0);
        }
    }
}
