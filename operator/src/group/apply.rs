//! Applies the idempotent steps of a plan in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{
    GROUP_SNAPSHOT_FINALIZER, OPERATOR_FIELD_MANAGER, Time, VolumeGroupSnapshot, VolumeGroupSnapshotStatus,
    VolumeSnapshot,
};
use holdfast_types::SnapshotName;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use super::facts::{GroupFacts, MemberFacts, MemberSnapshot};
use super::failure::GroupFailure;
use super::member::member;
use super::plan::{GroupPlanStep, MemberChange, Unserved};
use super::untouched::is_untouched;
use crate::object_store::connect::Connections;
use crate::snapshot::apply::SnapshotApplier;
use crate::snapshot::facts::SnapshotFacts;
use crate::snapshot::failure::SnapshotFailure;

/// Applies steps to one group and its VolumeSnapshots.
pub(crate) struct GroupApplier<'a> {
    /// The client of the API server.
    pub(crate) client: Client,
    /// Connections to object stores.
    pub(crate) connections: &'a Connections,
    /// The group as last returned by the API server.
    pub(crate) group: VolumeGroupSnapshot,
    /// Its VolumeSnapshots, each as last returned by the API server.
    pub(crate) snapshots: BTreeMap<String, Arc<VolumeSnapshot>>,
    /// The delayed attempt, if there is one.
    pub(crate) paused: Option<i64>,
}

impl GroupApplier<'_> {
    /// Applies one step.
    ///
    /// # Errors
    /// [`GroupFailure`]; the step may have taken effect, fully or in part.
    pub(crate) async fn apply(
        &mut self,
        step: &GroupPlanStep,
        facts: &GroupFacts,
        now: &Time,
    ) -> Result<(), GroupFailure> {
        match step {
            GroupPlanStep::AddFinalizer => self.patch(self.finalizers(true)).await,
            GroupPlanStep::RemoveFinalizer => self.patch(self.finalizers(false)).await,
            GroupPlanStep::Report(status) => self.report(status).await,
            GroupPlanStep::Create(places) => self.create(places, facts).await,
            GroupPlanStep::Change(changes) => self.change(changes, facts, now).await,
            GroupPlanStep::Confirm(unserved) => self.confirm(unserved).await,
            GroupPlanStep::Pause(attempt) => {
                self.paused = Some(*attempt);
                Ok(())
            }
            GroupPlanStep::Delete(names) => self.delete(names).await,
        }
    }

    /// Returns the facts, updated with the writes since they were observed.
    pub(crate) fn refreshed(&self, facts: &GroupFacts) -> GroupFacts {
        let mut facts = GroupFacts { status: self.group.status.clone().unwrap_or_default(), ..facts.clone() };
        for MemberFacts { name, snapshot, .. } in &mut facts.members {
            match snapshot {
                MemberSnapshot::Own(own) => {
                    let written = self.snapshots.get(name).and_then(|snapshot| snapshot.status.clone());
                    own.status = written.unwrap_or_default();
                }
                MemberSnapshot::Missing | MemberSnapshot::Foreign => {}
            }
        }
        facts
    }

    /// Returns the object's finalizers with or without ours.
    fn finalizers(&self, present: bool) -> Value {
        let mut finalizers = self.group.finalizers().to_vec();
        finalizers.retain(|name| name != GROUP_SNAPSHOT_FINALIZER);
        if present {
            finalizers.push(GROUP_SNAPSHOT_FINALIZER.to_owned());
        }
        json!({ "metadata": { "finalizers": finalizers } })
    }

    /// The resource version makes the write fail if another client changed the object since it was read.
    async fn patch(&mut self, mut patch: Value) -> Result<(), GroupFailure> {
        patch["metadata"]["resourceVersion"] = json!(self.group.resource_version());
        let params =
            PatchParams { field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let groups: Api<VolumeGroupSnapshot> = Api::all(self.client.clone());
        let name = self.group.name_any();
        self.group = call(groups.patch(&name, &params, &Patch::Merge(patch))).await.map_err(classify)?;
        Ok(())
    }

    /// Writes the status if it differs, under the resource version on which the plan is based.
    async fn report(&mut self, status: &VolumeGroupSnapshotStatus) -> Result<(), GroupFailure> {
        if self.group.status.as_ref() == Some(status) {
            return Ok(());
        }
        let patch = json!({
            "apiVersion": VolumeGroupSnapshot::api_version(&()),
            "kind": VolumeGroupSnapshot::kind(&()),
            "metadata": { "name": self.group.name_any(), "resourceVersion": self.group.resource_version() },
            "status": status,
        });
        let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
        let groups: Api<VolumeGroupSnapshot> = Api::all(self.client.clone());
        let name = self.group.name_any();
        self.group =
            call(groups.patch_status(&name, &params, &Patch::Apply(patch))).await.map_err(classify)?;
        Ok(())
    }

    /// Creates VolumeSnapshots. If one of that name exists, the next plan observes it.
    async fn create(&mut self, places: &[usize], facts: &GroupFacts) -> Result<(), GroupFailure> {
        let params =
            PostParams { field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let api = self.snapshots_api();
        let attempt = facts.status.attempt.unwrap_or_default();
        let wanted: Vec<_> = places.iter().filter_map(|place| member(&self.group, attempt, *place)).collect();
        first_failure(join_all(wanted.iter().map(|snapshot| call(api.create(&params, snapshot)))).await)
            .map_err(classify)
    }

    /// Applies one step to each VolumeSnapshot in parallel; returns the first failure after all have ended.
    async fn change(
        &mut self,
        changes: &[MemberChange],
        facts: &GroupFacts,
        now: &Time,
    ) -> Result<(), GroupFailure> {
        let mut works = Vec::new();
        for change in changes {
            let (Some(snapshot), Some(facts)) =
                (self.snapshots.get(&change.name), own_facts(facts, &change.name))
            else {
                return Err(GroupFailure::Changed);
            };
            let snapshot = snapshot.as_ref().clone();
            let work =
                SnapshotApplier { client: self.client.clone(), connections: self.connections, snapshot };
            works.push((work, change, facts));
        }
        let all = works
            .iter_mut()
            .map(|(work, change, facts)| work.carry_out(std::slice::from_ref(&change.step), facts, now));
        let outcomes = join_all(all).await;
        let names: Vec<_> = changes.iter().map(|change| change.name.clone()).collect();
        for (work, change, _) in works {
            self.snapshots.insert(change.name.clone(), Arc::new(work.snapshot));
        }
        let failures = names.into_iter().zip(outcomes).map(|(name, outcome)| match outcome {
            Ok(()) => Ok(()),
            Err(SnapshotFailure::Changed) => Err(GroupFailure::Changed),
            Err(source) => Err(GroupFailure::Snapshot { name, source: Box::new(source) }),
        });
        first_failure(failures)
    }

    /// Confirms from their logs that unserved volumes have not changed since their snapshots.
    async fn confirm(&self, unserved: &[Unserved]) -> Result<(), GroupFailure> {
        let mut touched = Vec::new();
        let all = join_all(unserved.iter().map(|unserved| self.is_confirmed(unserved))).await;
        for (unserved, confirmed) in unserved.iter().zip(all) {
            if !confirmed? {
                touched.push(unserved.volume.clone());
            }
        }
        if touched.is_empty() { Ok(()) } else { Err(GroupFailure::Touched(touched)) }
    }

    async fn is_confirmed(&self, Unserved { volume, name }: &Unserved) -> Result<bool, GroupFailure> {
        let status = self.snapshots.get(name).and_then(|snapshot| snapshot.status.as_ref());
        let store = status.and_then(|status| status.object_store.as_deref()).unwrap_or_default();
        let taken = status.and_then(|status| status.snapshot_id.as_deref()).unwrap_or_default();
        let taken: SnapshotName = match taken.parse() {
            Ok(taken) => taken,
            Err(source) => return Err(GroupFailure::Recorded { name: name.clone(), source }),
        };
        let store = self.connections.open(self.client.clone(), store).await;
        let store = store.map_err(|source| GroupFailure::Connect { volume: volume.clone(), source })?;
        is_untouched(store.as_ref(), &taken)
            .await
            .map_err(|source| GroupFailure::Log { volume: volume.clone(), source: Box::new(source) })
    }

    /// Requests deletion of exactly these objects, not of others with the same names.
    async fn delete(&self, names: &[String]) -> Result<(), GroupFailure> {
        let api = self.snapshots_api();
        let all = names.iter().filter_map(|name| self.snapshots.get(name)).map(|snapshot| {
            let preconditions = Preconditions { uid: snapshot.uid(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            let (api, name) = (&api, snapshot.name_any());
            async move {
                match call(api.delete(&name, &params)).await {
                    // The VolumeSnapshot was deleted, or another object has its name.
                    Err(error) if error.is_stale() => Ok(()),
                    deleted => deleted.map(|_| ()),
                }
            }
        });
        first_failure(join_all(all).await).map_err(GroupFailure::Api)
    }

    fn snapshots_api(&self) -> Api<VolumeSnapshot> {
        Api::all(self.client.clone())
    }
}

/// Returns the facts of the VolumeSnapshot of this name.
fn own_facts<'a>(facts: &'a GroupFacts, name: &str) -> Option<&'a SnapshotFacts> {
    let own = facts.own().find(|(member, _)| member.name == name).map(|(_, snapshot)| snapshot);
    own.or_else(|| facts.leftovers.iter().find(|left| left.name == name).map(|left| &left.facts))
}

fn first_failure<T, E>(outcomes: impl IntoIterator<Item = Result<T, E>>) -> Result<(), E> {
    outcomes.into_iter().try_for_each(|outcome| outcome.map(|_| ()))
}

/// A conflict or a missing object means that the plan was made from an old state.
fn classify(error: ApiError) -> GroupFailure {
    if error.is_stale() { GroupFailure::Changed } else { GroupFailure::Api(error) }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{GroupStep, Time};
    use k8s_openapi::jiff::Timestamp;
    use kube::client::Body;
    use tokio::sync::{Barrier, mpsc};

    use super::*;
    use crate::group::facts::GroupCluster;
    use crate::snapshot::plan::SnapshotStep;

    /// VolumeSnapshots on Hold, and no Volumes.
    struct Held(BTreeMap<String, Arc<VolumeSnapshot>>);

    impl GroupCluster for Held {
        fn snapshot(&self, name: &str) -> Option<Arc<VolumeSnapshot>> {
            self.0.get(name).cloned()
        }

        fn snapshots_of(&self, _group: &str) -> Vec<Arc<VolumeSnapshot>> {
            self.0.values().cloned().collect()
        }

        fn volume(&self, _name: &str) -> Option<Arc<holdfast_crds::Volume>> {
            None
        }
    }

    /// A group of two volumes.
    fn group() -> VolumeGroupSnapshot {
        let spec = json!({ "volumes": ["data", "wal"] });
        let mut group = VolumeGroupSnapshot::new("g", serde_json::from_value(spec).expect("a spec"));
        group.metadata.uid = Some("group".to_owned());
        group.status.get_or_insert_default().attempt = Some(1);
        group
    }

    /// Its VolumeSnapshots, in versions 10 and 11.
    fn held() -> Held {
        let snapshot = |place: usize| {
            let mut snapshot = member(&group(), 1, place).expect("it has two volumes");
            snapshot.metadata.uid = Some(format!("uid-{place}"));
            snapshot.metadata.resource_version = Some(format!("1{place}"));
            let status =
                json!({ "volumeId": "v", "node": "a", "groupStep": "Hold", "groupProgress": "Held" });
            snapshot.status = Some(serde_json::from_value(status).expect("a status"));
            (snapshot.name_any(), Arc::new(snapshot))
        };
        Held((0..2).map(snapshot).collect())
    }

    fn release(held: &Held) -> Vec<MemberChange> {
        let change = |(name, snapshot): (&String, &Arc<VolumeSnapshot>)| {
            let mut status = snapshot.status.clone().expect("a status");
            status.group_step = Some(GroupStep::Release);
            MemberChange { name: name.clone(), step: SnapshotStep::Report(Box::new(status)) }
        };
        held.0.iter().map(change).collect()
    }

    /// Writes to all volumes wait for the last of these requests. The operator does not overwrite a
    /// concurrent report of a daemon, and one daemon's report does not delay the others.
    #[tokio::test(start_paused = true)]
    async fn all_nodes_are_released_at_once_and_under_the_version_that_was_read() {
        let (requests, mut received) = mpsc::unbounded_channel();
        let all_there = Arc::new(Barrier::new(2));
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (requests, all_there) = (requests.clone(), all_there.clone());
            async move {
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut answer: Value = serde_json::from_slice(&body).expect("JSON");
                requests.send(answer.clone()).expect("it is received");
                all_there.wait().await;
                let is_stale = answer["metadata"]["name"] == "g-1-0";
                answer["metadata"]["resourceVersion"] = json!("20");
                answer["spec"] = json!({ "volume": "wal" });
                if is_stale {
                    answer = json!({ "status": "Failure", "reason": "Conflict", "code": 409, "message": "" });
                }
                let status = if is_stale { 409 } else { 200 };
                let response = hyper::Response::builder().status(status);
                Ok::<_, std::convert::Infallible>(
                    response.body(Body::from(answer.to_string().into_bytes())).expect("a response"),
                )
            }
        });
        let held = held();
        let facts = GroupFacts::new(&group(), &held);
        let mut work = GroupApplier {
            client: Client::new(service, "default"),
            connections: &Connections::default(),
            group: group(),
            snapshots: held.0.clone(),
            paused: None,
        };
        let step = GroupPlanStep::Change(release(&held));
        let outcome = work.apply(&step, &facts, &Time(Timestamp::UNIX_EPOCH)).await;
        assert!(matches!(outcome, Err(GroupFailure::Changed)), "{outcome:?}");
        for version in ["10", "11"] {
            let request = received.recv().await.expect("a request");
            assert_eq!(request["metadata"]["resourceVersion"], version);
            let status = &request["status"];
            assert_eq!((&status["groupStep"], &status["groupProgress"]), (&json!("Release"), &json!("Held")));
        }
        assert_eq!(work.snapshots["g-1-0"], held.0["g-1-0"]);
        assert_eq!(work.snapshots["g-1-1"].resource_version().as_deref(), Some("20"), "it is released");
    }

    #[tokio::test]
    async fn a_retention_ends_under_the_version_that_was_read() {
        let (requests, mut received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let requests = requests.clone();
            async move {
                let uri = request.uri().to_string();
                let body = request.into_body().collect_bytes().await.expect("a body");
                let patch: Value = serde_json::from_slice(&body).expect("JSON");
                requests.send((uri, patch)).expect("it is received");
                let answer = json!({
                    "apiVersion": VolumeSnapshot::api_version(&()),
                    "kind": VolumeSnapshot::kind(&()),
                    "metadata": { "name": "g-1-0", "resourceVersion": "20" },
                    "spec": { "volume": "data", "group": "g", "deletionPolicy": "Delete" },
                });
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, std::convert::Infallible>(hyper::Response::new(body))
            }
        });
        let held = held();
        let facts = GroupFacts::new(&group(), &held);
        let mut work = GroupApplier {
            client: Client::new(service, "default"),
            connections: &Connections::default(),
            group: group(),
            snapshots: held.0.clone(),
            paused: None,
        };
        let step = SnapshotStep::SetDeletionPolicy(holdfast_crds::DeletionPolicy::Delete);
        let change = MemberChange { name: "g-1-0".to_owned(), step };
        let outcome =
            work.apply(&GroupPlanStep::Change(vec![change]), &facts, &Time(Timestamp::UNIX_EPOCH)).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        let (uri, patch) = received.recv().await.expect("a request");
        assert!(uri.contains("/volumesnapshots/g-1-0?"), "{uri}");
        let expected =
            json!({ "metadata": { "resourceVersion": "10" }, "spec": { "deletionPolicy": "Delete" } });
        assert_eq!(patch, expected);
        assert_eq!(work.snapshots["g-1-0"].resource_version().as_deref(), Some("20"));
    }
}
