//! The cluster as sweeps see it: ObjectStores, their buckets, and reports about them.

use std::sync::Arc;

use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::Recorder;
use holdfast_crds::{ObjectStore, SweepStatus};
use holdfast_objects::ObjectStore as Bucket;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::events::Event;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;

use crate::object_store::connect::{ConnectError, Connections};

/// Field manager of `status.sweep` alone: the report of a probe does not contain it, and would remove it.
const FIELD_MANAGER: &str = "holdfast-operator-sweep";

/// The cluster.
pub(crate) trait Cluster: Send + Sync + 'static {
    /// All ObjectStores.
    fn object_stores(&self) -> impl Future<Output = Result<Vec<ObjectStore>, ApiError>> + Send;

    /// The bucket of an ObjectStore; another one when its spec or a Secret changed.
    fn open(&self, name: &str) -> impl Future<Output = Result<Arc<dyn Bucket>, ConnectError>> + Send;

    /// Writes the result of a sweep.
    fn report(
        &self,
        store: &ObjectStore,
        status: &SweepStatus,
    ) -> impl Future<Output = Result<(), ApiError>> + Send;

    /// Writes an event.
    fn publish(&self, store: &ObjectStore, event: Event) -> impl Future<Output = ()> + Send;

    /// The time of day.
    fn now(&self) -> Timestamp;
}

/// The cluster behind an API server.
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

impl Cluster for ApiServer {
    async fn object_stores(&self) -> Result<Vec<ObjectStore>, ApiError> {
        Ok(call(self.api().list(&ListParams::default())).await?.items)
    }

    async fn open(&self, name: &str) -> Result<Arc<dyn Bucket>, ConnectError> {
        Ok(self.connections.open(self.client.clone(), name).await?)
    }

    async fn report(&self, store: &ObjectStore, status: &SweepStatus) -> Result<(), ApiError> {
        let name = store.name_any();
        // Not that of another ObjectStore of this name.
        let patch = json!({
            "apiVersion": ObjectStore::api_version(&()),
            "kind": ObjectStore::kind(&()),
            "metadata": { "name": name, "uid": store.metadata.uid },
            "status": { "sweep": status },
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        call(self.api().patch_status(&name, &params, &Patch::Apply(patch))).await.map(drop)
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

    /// With one field manager for both, each report removed what the other had written.
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
        let status = crate::sweep::report::status(&Default::default(), now);
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
