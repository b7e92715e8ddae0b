//! An API server with node `a`, which promises memory, and its Volumes. Another process may promise memory
//! at the moment of a write.

use std::sync::Arc;

use hyper::Method;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::controller::volumes::ClusterVolumes;

/// Changes by another process, right after a write.
type Meanwhile = fn(&mut Vec<Value>);

/// The Volumes of the server.
#[derive(Clone, Default)]
pub(in crate::controller) struct FakeApi(Arc<Mutex<Vec<Value>>>);

impl FakeApi {
    /// Starts with these Volumes. Node `a` has this much memory.
    pub(in crate::controller) fn start(
        there: Vec<Value>,
        limit_bytes: u64,
        meanwhile: Meanwhile,
    ) -> (ClusterVolumes, Self) {
        let (client, server) = Self::serve(there, limit_bytes, meanwhile);
        (ClusterVolumes::new(client), server)
    }

    /// Starts with these objects, of any kind, whose names differ. Node `a` has this much memory.
    pub(in crate::controller) fn serve(
        there: Vec<Value>,
        limit_bytes: u64,
        meanwhile: Meanwhile,
    ) -> (Client, Self) {
        let server = Self(Arc::new(Mutex::new(there)));
        let (answering, pending) = (server.clone(), Arc::new(Mutex::new(Some(meanwhile))));
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let (server, pending) = (answering.clone(), Arc::clone(&pending));
            async move {
                let (method, uri) = (request.method().clone(), request.uri().clone());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                let name = uri.path().rsplit('/').next().unwrap_or_default();
                let answer = if uri.path().contains("/storagenodes/") {
                    Some((200, node(limit_bytes)))
                } else {
                    let mut volumes = server.0.lock();
                    let answer = answer(&mut volumes, &method, (name, uri.query()), body);
                    if matches!(method, Method::POST | Method::PATCH)
                        && let Some(meanwhile) = pending.lock().take()
                    {
                        meanwhile(&mut volumes);
                    }
                    answer
                };
                let (code, answer) = answer.unwrap_or_else(|| refused(404, "NotFound"));
                hyper::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
            }
        });
        (Client::new(service, "default"), server)
    }

    /// Returns name and size of each Volume.
    pub(in crate::controller) fn volumes(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let volumes = self.0.lock();
        volumes.iter().map(|one| (text(&one["metadata"]["name"]), text(&one["spec"]["size"]))).collect()
    }
}

/// Returns a memory volume of node `a`.
pub(in crate::controller) fn volume(name: &str, size: &str) -> Value {
    json!({
        "apiVersion": "storage.holdfast.dev/v1alpha1",
        "kind": "Volume",
        "metadata": {
            "name": name, "uid": name, "resourceVersion": "1",
            "labels": { holdfast_crds::MEMORY_NODE: "a" },
        },
        "spec": { "size": size, "backend": "memory" },
    })
}

fn node(limit_bytes: u64) -> Value {
    json!({
        "apiVersion": "storage.holdfast.dev/v1alpha1",
        "kind": "StorageNode",
        "metadata": { "name": "a" },
        "spec": {},
        "status": { "memory": { "limitBytes": limit_bytes, "promisedBytes": 0, "usedBytes": 0 } },
    })
}

fn refused(code: u16, reason: &str) -> (u16, Value) {
    (code, json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code }))
}

/// Returns the answer to a request for Volumes; `None` without such a Volume.
fn answer(
    volumes: &mut Vec<Value>,
    method: &Method,
    (name, query): (&str, Option<&str>),
    body: Value,
) -> Option<(u16, Value)> {
    if name == "volumes" && *method == Method::GET {
        let by_label = query.is_some_and(|query| query.contains("labelSelector"));
        let items = if by_label { volumes.clone() } else { Vec::new() };
        let kind = json!({ "apiVersion": "storage.holdfast.dev/v1alpha1", "kind": "VolumeList",
            "metadata": {}, "items": items });
        return Some((200, kind));
    }
    if *method == Method::POST {
        let mut created = body;
        created["metadata"]["uid"] = json!("created");
        created["metadata"]["resourceVersion"] = json!("1");
        volumes.push(created.clone());
        return Some((201, created));
    }
    let place = volumes.iter().position(|one| one["metadata"]["name"] == name)?;
    let found = &mut volumes[place];
    let version = &found["metadata"]["resourceVersion"];
    let mut named =
        [&body["metadata"], &body["preconditions"]].map(|part| &part["resourceVersion"]).into_iter();
    if named.any(|named| !named.is_null() && named != version) {
        return Some(refused(409, "Conflict"));
    }
    match *method {
        Method::PATCH => {
            for (field, value) in body["spec"].as_object()? {
                found["spec"][field] = value.clone();
            }
            Some((200, found.clone()))
        }
        Method::DELETE => Some((200, volumes.remove(place))),
        _ => Some((200, found.clone())),
    }
}
