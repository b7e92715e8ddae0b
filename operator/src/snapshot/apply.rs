//! Applies the idempotent steps of a plan in order.

use std::sync::Arc;

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{
    ByteSize, ConditionStatus, NAMES_STORED, OPERATOR_FIELD_MANAGER, READERS_OF, READY, SNAPSHOT_FINALIZER,
    Time, Volume, VolumeSnapshot, VolumeSnapshotStatus, find_condition,
};
use holdfast_format::record::Labels;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::{LogFailure, OriginPlace, SnapshotError};
use holdfast_objects::ObjectStore;
use holdfast_s3::S3Store;
use holdfast_types::{SECTOR_BYTES, Seq, SnapshotName, SnapshotUid, VolumeId};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::facts::SnapshotFacts;
use super::failure::SnapshotFailure;
use super::plan::SnapshotStep;
use crate::object_store::connect::Connections;
use crate::requeue::RESYNC;
use crate::volume::apply::random_nonce;
use crate::volume::failure::brief;

/// Applies steps to one snapshot.
pub(crate) struct SnapshotApplier<'a> {
    /// The client of the API server.
    pub(crate) client: Client,
    /// Connections to object stores.
    pub(crate) connections: &'a Connections,
    /// The snapshot as last returned by the API server.
    pub(crate) snapshot: VolumeSnapshot,
}

impl SnapshotApplier<'_> {
    /// Applies the steps in order, and reports the first failure.
    ///
    /// # Errors
    /// The first failure of a step.
    pub(crate) async fn carry_out(
        &mut self,
        steps: &[SnapshotStep],
        facts: &SnapshotFacts,
        now: &Time,
    ) -> Result<(), SnapshotFailure> {
        for step in steps {
            if let Err(failure) = self.apply(step, facts, now).await {
                // Keeps the fields that an earlier step recorded.
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

    /// Applies one step.
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
            SnapshotStep::SetDeletionPolicy(policy) => {
                self.patch(json!({ "spec": { "deletionPolicy": policy } })).await
            }
            SnapshotStep::Take => {
                let (store, volume) = self.place().await?;
                let unix_ms = u64::try_from(now.0.as_millisecond()).unwrap_or_default();
                let (uid, nonce) = (self.uid()?, random_nonce());
                let taken =
                    holdfast_log::snapshot_detached(store.as_ref(), &volume, uid, nonce, unix_ms).await?;
                let said = ("Taken", "the snapshot was taken while no node served the volume");
                let status = ready(facts, self.snapshot.status.as_ref(), &volume, taken, said, now);
                self.report_taken(store.as_ref(), &volume, uid, &status).await
            }
            SnapshotStep::Adopt(name) => {
                // If an older operator dropped the uid, the other fields are still recorded.
                let place = facts.volume.as_ref().map(|volume| volume.object_store.clone());
                let place = place.or_else(|| facts.status.object_store.clone());
                let store = self.connections.open(self.client.clone(), place.as_deref().unwrap_or_default());
                let found = find(store.await?.as_ref(), name).await?;
                let status = VolumeSnapshotStatus {
                    volume_id: Some(name.volume.to_string()),
                    object_store: place,
                    snapshot_uid: Some(found.uid.to_string()),
                    ..self.snapshot.status.clone().unwrap_or_default()
                };
                let message = "the snapshot already existed in the object store";
                let said = ("Adopted", message);
                self.report(&ready(facts, Some(&status), &name.volume, found, said, now)).await
            }
            SnapshotStep::StoreOrigin => {
                let status = with_names(facts, self.snapshot.status.as_ref(), self.store_origin().await, now);
                self.report(&status).await
            }
            SnapshotStep::Forget => {
                let (store, volume) = self.place().await?;
                let (name, uid) = (self.name()?, self.uid()?);
                // An older operator may have dropped the uid of an adopted snapshot.
                let is_dropped = facts.is_of_spec() && facts.status.snapshot_uid.is_none();
                let known_by = name.filter(|_| is_dropped).map_or(Key::Uid(uid), |name| Key::Seq(name.seq));
                Ok(forget(store.as_ref(), &volume, known_by).await?)
            }
        }
    }

    /// Stores the names of the objects in the object store. Names stored by another cluster are kept.
    async fn store_origin(&self) -> Result<OriginPlace, SnapshotFailure> {
        let ((store, _volume), uid) = (self.place().await?, self.uid()?);
        let Some(name) = self.name()? else { return Ok(OriginPlace::NoSnapshot) };
        Ok(holdfast_log::store_origin(store.as_ref(), &name, uid, &origin(&self.snapshot)).await?)
    }

    /// Returns the recorded store and volume.
    async fn place(&self) -> Result<(Arc<S3Store>, VolumeId), SnapshotFailure> {
        let status = self.snapshot.status.as_ref();
        let store = status.and_then(|status| status.object_store.as_deref()).unwrap_or_default();
        let volume = status.and_then(|status| status.volume_id.clone()).unwrap_or_default();
        let volume = VolumeId::try_from(volume)?;
        Ok((self.connections.open(self.client.clone(), store).await?, volume))
    }

    fn uid(&self) -> Result<SnapshotUid, SnapshotFailure> {
        Ok(self.snapshot.uid_in_store().unwrap_or_default().parse()?)
    }

    /// Returns the recorded name of the snapshot in the object store.
    fn name(&self) -> Result<Option<SnapshotName>, SnapshotFailure> {
        let name = self.snapshot.status.as_ref().and_then(|status| status.snapshot_id.as_ref());
        Ok(name.map(|name| name.parse()).transpose()?)
    }

    /// Returns the object's finalizers with or without ours.
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

    /// Writes the status if it differs. The resource version makes the write fail if the daemon has reported
    /// anything since the plan was made.
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

    /// Reports a taken snapshot. If the object was deleted in the meantime, the snapshot is forgotten: its
    /// deletion may have looked for it before it was registered.
    async fn report_taken(
        &mut self,
        store: &dyn ObjectStore,
        volume: &VolumeId,
        uid: SnapshotUid,
        status: &VolumeSnapshotStatus,
    ) -> Result<(), SnapshotFailure> {
        let reported = self.report(status).await;
        if matches!(reported, Err(SnapshotFailure::Changed)) && !self.still_exists().await? {
            forget(store, volume, Key::Uid(uid)).await?;
        }
        reported
    }

    /// Returns true if the object exists and its deletion is not requested.
    async fn still_exists(&self) -> Result<bool, SnapshotFailure> {
        let (api, name) = (self.api(), self.snapshot.name_any());
        let found = call(api.get_opt(&name)).await.map_err(SnapshotFailure::Api)?;
        let own = found.filter(|found| found.metadata.uid == self.snapshot.metadata.uid);
        Ok(own.is_some_and(|own| own.metadata.deletion_timestamp.is_none()))
    }
}

/// Returns the labels that name the objects the snapshot belongs to.
fn origin(snapshot: &VolumeSnapshot) -> Labels {
    let (name, user) = (snapshot.name_any(), snapshot.user_snapshot());
    let is_for_clone = snapshot.owner_references().iter().any(|owner| owner.kind == Volume::kind(&()));
    let made_for = if snapshot.labels().contains_key(READERS_OF) {
        Some(Labels::FOR_READERS)
    } else {
        is_for_clone.then_some(Labels::FOR_CLONE)
    };
    let mut labels = Labels::default();
    for (label, value) in [
        (Labels::SNAPSHOT, Some(name.as_str())),
        (Labels::VOLUME, Some(snapshot.spec.volume.as_str())),
        (Labels::USER_SNAPSHOT_NAMESPACE, user.map(|(namespace, _name)| namespace)),
        (Labels::USER_SNAPSHOT_NAME, user.map(|(_namespace, name)| name)),
        (Labels::MADE_FOR, made_for),
    ] {
        if let Some(value) = value {
            labels.insert(label, value);
        }
    }
    labels
}

/// Finds the snapshot of this name in the log, unless it was forgotten.
async fn find(store: &dyn ObjectStore, name: &SnapshotName) -> Result<Snapshot, SnapshotError> {
    let SnapshotName { volume, seq } = name;
    let there = holdfast_log::snapshots(store, volume).await?;
    let found = there.into_iter().find(|known| known.seq == *seq);
    found.ok_or_else(|| SnapshotError::NoSuchSnapshot { volume: volume.clone(), seq: *seq })
}

/// Returns the status of an existing snapshot, with reason and message of its condition.
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

/// Returns the status after an attempt to store the names of the objects. Either the names are stored, or
/// others are and stay, or the condition [`NAMES_STORED`] gives the cause and the next resync retries. The
/// message stays while the reason does: every new message would trigger the next attempt at once.
fn with_names(
    facts: &SnapshotFacts,
    present: Option<&VolumeSnapshotStatus>,
    tried: Result<OriginPlace, SnapshotFailure>,
    now: &Time,
) -> VolumeSnapshotStatus {
    let mut status = present.cloned().unwrap_or_default();
    let store = status.object_store.as_deref().unwrap_or_default();
    let (reason, message) = match &tried {
        Ok(OriginPlace::Stored) => {
            status.conditions.retain(|one| one.type_ != NAMES_STORED);
            status.origin_stored = Some(true);
            return status;
        }
        Ok(OriginPlace::Others) => (
            "OtherNames",
            format!(
                "ObjectStore `{store}` keeps the names that the snapshot had in the cluster that took it: `restore` in another cluster prints those, not the names of this object"
            ),
        ),
        Ok(OriginPlace::NoSnapshot) => (
            "SnapshotNotFound",
            format!(
                "ObjectStore `{store}` does not contain this snapshot: the ObjectStore names another bucket or \
                 prefix than the one in which the snapshot was taken; correct it. The operator looks for the \
                 snapshot again every {} minutes",
                RESYNC.as_secs() / 60
            ),
        ),
        Err(failure) => (
            failure.reason().unwrap_or("ObjectStoreUnusable"),
            format!(
                "the names of this object are not in ObjectStore `{store}`, and `restore` in another cluster \
                 cannot print them: {}; the operator tries again every {} minutes",
                brief(failure),
                RESYNC.as_secs() / 60
            ),
        ),
    };
    status.origin_stored = matches!(tried, Ok(OriginPlace::Others)).then_some(false);
    if find_condition(&status.conditions, NAMES_STORED).is_some_and(|said| said.reason == reason) {
        return status;
    }
    tracing::warn!(volume = facts.spec.volume, reason, message, "names of the snapshot not stored");
    status.conditions.retain(|one| one.type_ != NAMES_STORED);
    let said = facts.conditions(now).build(NAMES_STORED, ConditionStatus::False, reason, &message);
    status.conditions.push(said);
    status
}

/// Key of a snapshot in the log of its volume.
#[derive(Clone, Copy)]
enum Key {
    Uid(SnapshotUid),
    Seq(Seq),
}

/// Forgets the snapshot with this key, if the log has it. A deleted volume has none. A snapshot of a uid that
/// the log lacks can no longer be registered afterwards: an earlier request may still be in flight.
async fn forget(store: &dyn ObjectStore, volume: &VolumeId, key: Key) -> Result<(), SnapshotError> {
    if !forget_registered(store, volume, key).await? && matches!(key, Key::Uid(_)) {
        match holdfast_log::pass_end(store, volume, random_nonce(), 0).await {
            Err(LogFailure::WasDeleted(_)) => return Ok(()),
            passed => passed?,
        }
        forget_registered(store, volume, key).await?;
    }
    Ok(())
}

/// Forgets the snapshot with this key. Returns false if the log does not have it.
async fn forget_registered(
    store: &dyn ObjectStore,
    volume: &VolumeId,
    key: Key,
) -> Result<bool, SnapshotError> {
    let there = match holdfast_log::snapshots(store, volume).await {
        Err(SnapshotError::NotFound(_) | SnapshotError::Deleted(_)) => return Ok(true),
        known => known?,
    };
    let is_it = |known: &&Snapshot| match key {
        Key::Uid(uid) => known.uid == uid,
        Key::Seq(seq) => known.seq == seq,
    };
    match there.iter().find(is_it) {
        Some(known) => holdfast_log::forget(store, volume, known.seq).await.map(|()| true),
        None => Ok(false),
    }
}

/// A conflict or a missing object means that the plan was made from an old state.
fn classify(error: ApiError) -> SnapshotFailure {
    if error.is_stale() { SnapshotFailure::Changed } else { SnapshotFailure::Api(error) }
}

#[cfg(test)]
mod tests {
    use holdfast_format::record::{Body, Record};
    use holdfast_format::snapshot::SnapshotChange;
    use holdfast_log::Creation;
    use holdfast_objects::MemoryStore;
    use holdfast_types::{Epoch, Nonce};

    use super::*;

    const UID: SnapshotUid = SnapshotUid([7; 16]);

    /// Covers an operator that dies after taking the snapshot, and after forgetting it.
    #[tokio::test]
    async fn taking_and_deleting_a_snapshot_twice_changes_nothing_more() {
        let (store, volume): (_, VolumeId) = (MemoryStore::new(), "v".parse().expect("an id"));
        assert!(forget(&store, &volume, Key::Uid(UID)).await.is_ok(), "a volume that is not there has none");
        let creation = Creation::plain(64, Nonce([1; 16]), 0);
        holdfast_log::provision(&store, &volume, creation).await.expect("created");
        let take = || holdfast_log::snapshot_detached(&store, &volume, UID, random_nonce(), 0);
        assert_eq!(take().await.expect("taken"), take().await.expect("taken"));
        let live = || async { holdfast_log::snapshots(&store, &volume).await.expect("a log").len() };
        assert_eq!(live().await, 1);
        forget(&store, &volume, Key::Uid(SnapshotUid([8; 16]))).await.expect("another is not there");
        assert_eq!(live().await, 1);
        for _ in 0..2 {
            forget(&store, &volume, Key::Uid(UID)).await.expect("forgotten");
            assert_eq!(live().await, 0);
        }
    }

    /// Found in review: the record of a snapshot, whose outcome was unknown, arrived after its VolumeSnapshot
    /// was deleted; no object owned it, and its Volume could not be deleted.
    #[tokio::test]
    async fn a_snapshot_without_its_object_is_not_registered_later() {
        let (store, volume): (_, VolumeId) = (MemoryStore::new(), "v".parse().expect("an id"));
        let creation = Creation::plain(64, Nonce([1; 16]), 0);
        holdfast_log::provision(&store, &volume, creation).await.expect("created");
        let end = holdfast_log::read_manifest_to_end(&store, &volume).await.expect("a log").seq();
        forget(&store, &volume, Key::Uid(UID)).await.expect("it is not there");
        let late = Record {
            volume: volume.clone(),
            seq: end.next(),
            epoch: Epoch(0),
            nonce: Nonce([2; 16]),
            unix_ms: 0,
            body: Body::of_snapshots(SnapshotChange { taken: Some(UID), dropped: Vec::new() }),
        };
        let created = holdfast_log::create_record(&store, &late).await.expect("the store answers");
        assert_eq!(created, holdfast_log::CreateOutcome::Lost);
    }

    /// Answers a GET with this object, and any other request with a conflict.
    fn client_of(now: Option<VolumeSnapshot>) -> Client {
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let (code, body) = match (request.method() == hyper::Method::GET, &now) {
                (true, Some(now)) => (200_u16, json!(now)),
                (true, None) => (404, json!({ "status": "Failure", "reason": "NotFound", "code": 404 })),
                (false, _) => (409, json!({ "status": "Failure", "reason": "Conflict", "code": 409 })),
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let response = hyper::Response::builder().status(code).body(body).expect("a response");
            std::future::ready(Ok::<_, std::convert::Infallible>(response))
        });
        Client::new(service, "default")
    }

    /// Regression, found in review: a snapshot of a group was registered after the deletion of its
    /// VolumeSnapshot had looked for it; no object owned it, and its Volume could not be deleted.
    #[tokio::test]
    async fn a_snapshot_whose_object_is_gone_is_forgotten() {
        let spec = serde_json::from_value(json!({ "volume": "data" })).expect("a spec");
        let mut snapshot = VolumeSnapshot::new("s", spec);
        snapshot.metadata.uid = Some("object".to_owned());
        let (mut deleted, mut another) = (snapshot.clone(), snapshot.clone());
        deleted.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        another.metadata.uid = Some("another".to_owned());
        for (now, left) in [(None, 0), (Some(deleted), 0), (Some(another), 0), (Some(snapshot.clone()), 1)] {
            let (store, volume): (_, VolumeId) = (MemoryStore::new(), "v".parse().expect("an id"));
            let creation = Creation::plain(64, Nonce([1; 16]), 0);
            holdfast_log::provision(&store, &volume, creation).await.expect("created");
            let taken = holdfast_log::snapshot_detached(&store, &volume, UID, random_nonce(), 0).await;
            let seq = taken.expect("taken").seq;
            let connections = Connections::default();
            let (client, snapshot) = (client_of(now.clone()), snapshot.clone());
            let mut work = SnapshotApplier { client, connections: &connections, snapshot };
            let snapshot_id = Some(format!("{volume}@{seq}"));
            let status = VolumeSnapshotStatus { snapshot_id, ..VolumeSnapshotStatus::default() };
            let reported = work.report_taken(&store, &volume, UID, &status).await;
            assert!(matches!(reported, Err(SnapshotFailure::Changed)), "{reported:?}");
            let live = holdfast_log::snapshots(&store, &volume).await.expect("a log").len();
            assert_eq!(live, left, "{now:?}");
        }
    }

    fn taken() -> (SnapshotFacts, VolumeSnapshotStatus) {
        let spec = json!({ "volume": "data" });
        let mut snapshot = VolumeSnapshot::new("s", serde_json::from_value(spec).expect("a spec"));
        let status = json!({ "objectStore": "main", "volumeId": "v", "snapshotId": "v@2" });
        snapshot.status = Some(serde_json::from_value(status).expect("a status"));
        (SnapshotFacts::new(&snapshot, None), snapshot.status.unwrap_or_default())
    }

    /// Regression: the ObjectStore was deleted and the snapshot Ready; an attempt was made every half minute,
    /// and no condition reported it.
    #[test]
    fn names_that_cannot_be_stored_are_said_once() {
        let (facts, status) = taken();
        let later = Time(Timestamp::from_second(60).expect("a time"));
        let invalid = |uid: &str| {
            let error = uid.parse::<SnapshotUid>().expect_err("no uid");
            Err(SnapshotFailure::RecordedUid(error))
        };
        let failed = with_names(&facts, Some(&status), invalid("x"), &later);
        let said = find_condition(&failed.conditions, NAMES_STORED).expect("a condition");
        assert_eq!((said.status.as_str(), said.reason.as_str()), ("False", "InvalidStatus"));
        assert!(said.message.contains("every 10 minutes"), "{}", said.message);
        assert_eq!(failed.origin_stored, None, "it is tried again");
        let facts = SnapshotFacts { status: failed.clone(), ..facts };
        let much_later = Time(Timestamp::from_second(660).expect("a time"));
        assert_eq!(
            with_names(&facts, Some(&failed), invalid("y"), &much_later),
            failed,
            "nothing is written"
        );
        let stored = with_names(&facts, Some(&failed), Ok(OriginPlace::Stored), &later);
        assert_eq!((stored.origin_stored, stored.conditions.len()), (Some(true), 0));
    }

    /// Regression: `restore` printed these snapshots as if a user had taken them.
    #[test]
    fn a_snapshot_that_no_user_asked_for_says_its_purpose() {
        let spec = json!({ "volume": "data" });
        let mut snapshot = VolumeSnapshot::new("s", serde_json::from_value(spec).expect("a spec"));
        assert_eq!(origin(&snapshot).get(Labels::MADE_FOR), None);
        let owner = json!([{ "apiVersion": "v1", "kind": "Volume", "name": "clone", "uid": "u" }]);
        snapshot.metadata.owner_references = Some(serde_json::from_value(owner).expect("owners"));
        assert_eq!(origin(&snapshot).get(Labels::MADE_FOR), Some(Labels::FOR_CLONE));
        snapshot.labels_mut().insert(READERS_OF.to_owned(), "data".to_owned());
        assert_eq!(origin(&snapshot).get(Labels::MADE_FOR), Some(Labels::FOR_READERS));
    }

    /// Regression: in each of these cases the status claimed that the names are stored.
    #[test]
    fn names_that_are_not_those_of_the_object_count_as_not_stored() {
        let (facts, status) = taken();
        let later = Time(Timestamp::from_second(60).expect("a time"));
        for (place, reason, stored) in [
            (OriginPlace::Others, "OtherNames", Some(false)),
            // The snapshot may exist in the ObjectStore once that is corrected.
            (OriginPlace::NoSnapshot, "SnapshotNotFound", None),
        ] {
            let told = with_names(&facts, Some(&status), Ok(place), &later);
            assert_eq!(told.origin_stored, stored);
            assert_eq!(find_condition(&told.conditions, NAMES_STORED).expect("said").reason, reason);
        }
    }

    /// Regression: the status may contain any string; the operator panicked at each reconciliation.
    #[test]
    fn a_uid_that_is_none_is_an_error() {
        let (_, mut status) = taken();
        status.snapshot_uid = Some("none".to_owned());
        let spec = json!({ "volume": "data" });
        let mut snapshot = VolumeSnapshot::new("s", serde_json::from_value(spec).expect("a spec"));
        snapshot.status = Some(status);
        let service = tower::service_fn(|_: hyper::Request<kube::client::Body>| async {
            Ok::<_, std::convert::Infallible>(hyper::Response::new(kube::client::Body::empty()))
        });
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let _inside = runtime.enter();
        let connections = Connections::default();
        let applier =
            SnapshotApplier { client: Client::new(service, "default"), connections: &connections, snapshot };
        let failure = applier.uid().expect_err("no uid");
        assert_eq!(failure.reason(), Some("InvalidStatus"));
        assert!(brief(&failure).starts_with("status.snapshotUid is not valid: "), "{}", brief(&failure));
    }

    /// An older operator drops the field with the snapshot's registered uid.
    #[tokio::test]
    async fn a_snapshot_without_its_uid_is_forgotten_by_its_place() {
        let (store, volume): (_, VolumeId) = (MemoryStore::new(), "v".parse().expect("an id"));
        let creation = Creation::plain(64, Nonce([1; 16]), 0);
        holdfast_log::provision(&store, &volume, creation).await.expect("created");
        let taken = holdfast_log::snapshot_detached(&store, &volume, UID, random_nonce(), 0).await;
        forget(&store, &volume, Key::Seq(taken.expect("taken").seq)).await.expect("forgotten");
        assert_eq!(holdfast_log::snapshots(&store, &volume).await.expect("a log").len(), 0);
    }
}
