//! The cluster as seen by sweeps: ObjectStores, their buckets, and reports about them.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::Recorder;
use holdfast_crds::{ByteSize, ObjectStore, PROVISIONED, SweepStatus, Volume, VolumeSnapshot, is_true};
use holdfast_objects::ObjectStore as Bucket;
use holdfast_types::SnapshotName;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::events::Event;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use crate::object_store::connect::{ConnectError, Connections};
use crate::volume::identity::id_of;

/// Field manager of `status.sweep`, and of `status.exclusiveBytes` of snapshots. With a shared field manager,
/// the report of a probe, which lacks them, would remove them.
const FIELD_MANAGER: &str = "holdfast-operator-sweep";

/// A Volume of the cluster.
#[derive(Clone, Debug)]
pub(crate) struct VolumeHere {
    /// `spec.objectStore`.
    pub(crate) object_store: Option<String>,
    /// True if it exists in its object store, and is not being deleted.
    pub(crate) is_provisioned: bool,
}

impl VolumeHere {
    /// Returns true if its data is in the ObjectStore of this name.
    pub(crate) fn uses(&self, object_store: &str) -> bool {
        self.is_provisioned && self.object_store.as_deref() == Some(object_store)
    }
}

/// The cluster.
pub(crate) trait SweptCluster: Send + Sync + 'static {
    /// Lists all ObjectStores.
    fn object_stores(&self) -> impl Future<Output = Result<Vec<ObjectStore>, ApiError>> + Send;

    /// Lists the Volumes by identity; one being deleted counts while it may still be retained.
    fn volumes(&self) -> impl Future<Output = Result<HashMap<String, VolumeHere>, ApiError>> + Send;

    /// Opens the bucket of an ObjectStore; reopens it if its spec or a Secret changed.
    fn open(&self, name: &str) -> impl Future<Output = Result<Arc<dyn Bucket>, ConnectError>> + Send;

    /// Writes the result of a sweep.
    fn report(
        &self,
        store: &ObjectStore,
        status: &SweepStatus,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes each snapshot's exclusive bytes in the ObjectStore.
    fn report_snapshots(
        &self,
        store: &ObjectStore,
        bytes: &[(SnapshotName, u64)],
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes an event.
    fn publish(&self, store: &ObjectStore, event: Event) -> impl Future<Output = ()> + Send;

    /// Returns the current time of day.
    fn now(&self) -> Timestamp;
}

/// A cluster behind an API server.
pub(crate) struct ApiServer {
    pub(crate) client: Client,
    pub(crate) connections: Arc<Connections>,
    pub(crate) recorder: Recorder,
}

impl ApiServer {
    fn api(&self) -> Api<ObjectStore> {
        Api::all(self.client.clone())
    }
}

impl SweptCluster for ApiServer {
    async fn object_stores(&self) -> Result<Vec<ObjectStore>, ApiError> {
        Ok(call(self.api().list(&ListParams::default())).await?.items)
    }

    async fn volumes(&self) -> Result<HashMap<String, VolumeHere>, ApiError> {
        let volumes: Api<Volume> = Api::all(self.client.clone());
        let volumes = call(volumes.list(&ListParams::default())).await?.items;
        let mut volumes_here: HashMap<String, VolumeHere> = HashMap::new();
        for volume in volumes {
            let conditions = volume.status.as_ref().map(|status| status.conditions.as_slice());
            let exists = is_true(conditions.unwrap_or_default(), PROVISIONED);
            let is_going = volume.metadata.deletion_timestamp.is_some();
            if is_going && !exists {
                continue;
            }
            let (volume, is_provisioned) = (&volume, exists && !is_going);
            let object_store = volume.spec.object_store.clone();
            // If two have one identity, the other one was rejected.
            if is_provisioned || !volumes_here.contains_key(&id_of(volume)) {
                volumes_here.insert(id_of(volume), VolumeHere { object_store, is_provisioned });
            }
        }
        Ok(volumes_here)
    }

    async fn open(&self, name: &str) -> Result<Arc<dyn Bucket>, ConnectError> {
        Ok(self.connections.open(self.client.clone(), name).await?)
    }

    async fn report(&self, store: &ObjectStore, status: &SweepStatus) -> Result<(), ApiError> {
        let name = store.name_any();
        // Excludes another ObjectStore of the same name.
        let patch = json!({
            "apiVersion": ObjectStore::api_version(&()),
            "kind": ObjectStore::kind(&()),
            "metadata": { "name": name, "uid": store.metadata.uid },
            "status": { "sweep": status },
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        call(self.api().patch_status(&name, &params, &Patch::Apply(patch))).await.map(drop)
    }

    async fn report_snapshots(
        &self,
        store: &ObjectStore,
        bytes: &[(SnapshotName, u64)],
    ) -> Result<(), ApiError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let api: Api<VolumeSnapshot> = Api::all(self.client.clone());
        let bytes: HashMap<String, u64> =
            bytes.iter().map(|(name, bytes)| (name.to_string(), *bytes)).collect();
        for snapshot in call(api.list(&ListParams::default())).await?.items {
            let status = snapshot.status.as_ref().filter(|status| status.object_store == store.metadata.name);
            let Some(status) = status else { continue };
            let held = status.snapshot_id.as_ref().and_then(|id| bytes.get(id));
            if held.is_none() || (status.exclusive_bytes == held.copied() && status.exclusive.is_some()) {
                continue;
            }
            let name = snapshot.name_any();
            let patch = json!({
                "apiVersion": VolumeSnapshot::api_version(&()),
                "kind": VolumeSnapshot::kind(&()),
                "metadata": { "name": name, "uid": snapshot.metadata.uid },
                "status": { "exclusiveBytes": held, "exclusive": held.map(|held| ByteSize(*held).rounded()) },
            });
            let params = PatchParams::apply(FIELD_MANAGER).force();
            match call(api.patch_status(&name, &params, &Patch::Apply(patch))).await {
                Ok(_) => {}
                // The VolumeSnapshot was deleted in the meantime.
                Err(error) if error.is_stale() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn publish(&self, store: &ObjectStore, event: Event) {
        self.recorder.publish([event], &store.object_ref(&())).await;
    }

    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use tokio::sync::mpsc;

    use super::*;
    use crate::object_store::health;

    /// Sends one request per change, and none for snapshots of other ObjectStores or missing ones.
    #[tokio::test]
    async fn the_space_of_snapshots_is_written_where_it_changed() {
        let (requests, mut received) = mpsc::unbounded_channel();
        let snapshot = |name: &str, store: &str, id: &str, bytes: Option<u64>| {
            json!({
                "metadata": { "name": name, "uid": name }, "spec": { "volume": "data" },
                "status": { "objectStore": store, "snapshotId": id, "exclusiveBytes": bytes, "exclusive": bytes.map(|bytes| ByteSize(bytes).rounded()) },
            })
        };
        let listed = json!({ "metadata": {}, "items": [
            snapshot("new", "main", "v@2", None), snapshot("grown", "main", "v@5", Some(1)),
            snapshot("same", "main", "v@7", Some(9)), snapshot("other", "other", "v@2", None),
            snapshot("unknown", "main", "v@9", Some(3)),
        ] });
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (requests, listed) = (requests.clone(), listed.clone());
            async move {
                if request.method() == hyper::Method::GET {
                    return Ok::<_, std::convert::Infallible>(hyper::Response::new(Body::from(
                        listed.to_string().into_bytes(),
                    )));
                }
                let body = request.into_body().collect_bytes().await.expect("a body");
                let mut answer: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                requests.send(answer.clone()).expect("it is received");
                answer["spec"] = json!({ "volume": "data" });
                Ok(hyper::Response::new(Body::from(answer.to_string().into_bytes())))
            }
        });
        let client = Client::new(service, "default");
        let recorder = Recorder::new(client.clone(), "test", "a");
        let server = ApiServer { client, connections: Arc::default(), recorder };
        let spec = json!({ "bucket": "bucket", "credentials": { "environment": {} } });
        let store = ObjectStore::new("main", serde_json::from_value(spec).expect("a spec"));
        let held = [("v@2", 4096), ("v@5", 5), ("v@7", 9)];
        let held = held.map(|(name, bytes)| (name.parse().expect("a name"), bytes));
        server.report_snapshots(&store, &held).await.expect("written");
        drop(server);
        let mut written = Vec::new();
        while let Some(patch) = received.recv().await {
            written.push((patch["metadata"]["uid"].clone(), patch["status"].clone()));
        }
        let expected = [("new", 4096), ("grown", 5)];
        assert_eq!(
            written,
            expected.map(|(uid, bytes)| (
                json!(uid),
                json!({ "exclusiveBytes": bytes, "exclusive": ByteSize(bytes).rounded() })
            ))
        );
    }

    /// A Volume that the operator cannot read may own data. One with values of a later release is listed with
    /// its id; one that cannot be decoded fails the list, and nothing is swept.
    #[tokio::test]
    async fn a_volume_that_is_not_understood_is_never_absent() {
        let listed = |volumes: serde_json::Value| {
            let body = json!({ "metadata": {}, "items": volumes }).to_string();
            let service = tower::service_fn(move |_request: hyper::Request<Body>| {
                let body = Body::from(body.clone().into_bytes());
                std::future::ready(Ok::<_, std::convert::Infallible>(hyper::Response::new(body)))
            });
            let client = Client::new(service, "default");
            let recorder = Recorder::new(client.clone(), "test", "a");
            ApiServer { client, connections: Arc::default(), recorder }
        };
        let provisioned = json!({ "conditions": [{
            "type": PROVISIONED, "status": "True", "reason": "Created", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] });
        let volume =
            |spec| json!({ "metadata": { "name": "a", "uid": "uid" }, "spec": spec, "status": provisioned });
        let later = volume(json!({
            "volumeID": "data", "objectStore": "main", "deletionPolicy": "Later", "durability": "later",
            "source": { "later": {} },
        }));
        let found = listed(json!([later])).volumes().await.expect("they are listed");
        assert!(found["data"].uses("main"), "{found:?}");
        let broken = volume(json!({ "volumeID": 7, "objectStore": "main" }));
        assert!(listed(json!([later, broken])).volumes().await.is_err(), "no list lacks one");
    }

    /// Regression: with one field manager for both, each report removed the other's fields.
    #[tokio::test]
    async fn a_result_is_written_beside_the_report_of_a_probe() {
        let (requests, mut received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let requests = requests.clone();
            async move {
                let uri = request.uri().to_string();
                let body = request.into_body().collect_bytes().await.expect("a body");
                requests.send((uri, body.clone())).expect("it is received");
                let mut answer: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
                answer["spec"] = json!({ "bucket": "bucket", "credentials": { "environment": {} } });
                Ok::<_, std::convert::Infallible>(hyper::Response::new(Body::from(
                    answer.to_string().into_bytes(),
                )))
            }
        });
        let client = Client::new(service, "default");
        let recorder = Recorder::new(client.clone(), "test", "a");
        let server = ApiServer { client, connections: Arc::default(), recorder };
        let spec = json!({ "bucket": "bucket", "credentials": { "environment": {} } });
        let mut store = ObjectStore::new("main", serde_json::from_value(spec).expect("a spec"));
        store.metadata.uid = Some("uid".to_owned());
        let now = server.now();
        let status = crate::sweep::report::status(&Default::default(), 0, now);
        server.report(&store, &status).await.expect("written");

        let (uri, body) = received.recv().await.expect("a request");
        assert!(uri.contains("/objectstores/main/status?"), "{uri}");
        assert!(uri.contains("fieldManager=holdfast-operator-sweep"), "{uri}");
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["metadata"]["uid"], "uid");
        assert_eq!(body["status"], json!({ "sweep": status }));
        let probed = health::status(&[], None, &Ok(()), &holdfast_crds::Time(now));
        let probed = serde_json::to_value(probed).expect("JSON");
        assert!(probed.get("sweep").is_none(), "{probed}");
    }
}
