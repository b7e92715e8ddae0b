use std::convert::Infallible;

use hyper::{Request, Response, StatusCode};
use k8s_openapi::ByteString;
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

const STORE: &str = "/apis/storage.holdfast.dev/v1alpha1/objectstores/main";
const KEYS: &str = "/api/v1/namespaces/apps/secrets/keys";
const CA: &str = "/api/v1/namespaces/apps/secrets/ca";

/// Mocks an API server that answers these paths, and 404 for all others. A number is an error status.
fn server(answers: Vec<(&'static str, Value)>) -> Client {
    let refusal = |code: u64| {
        let reason = if code == 404 { "NotFound" } else { "Other" };
        (code, json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code }))
    };
    let service = service_fn(move |request: Request<Body>| {
        let found = answers.iter().find(|(path, _)| *path == request.uri().path());
        let (code, body) = match found {
            None => refusal(404),
            Some((_, Value::Number(code))) => refusal(code.as_u64().unwrap()),
            Some((_, body)) => (200, body.clone()),
        };
        let answer = Response::builder().status(StatusCode::from_u16(u16::try_from(code).unwrap()).unwrap());
        let answer = answer.body(Body::from(serde_json::to_vec(&body).unwrap())).unwrap();
        async move { Ok::<_, Infallible>(answer) }
    });
    Client::new(service, "default")
}

/// Returns the ObjectStore `main` with the Secret `keys` and additional fields.
fn store(more: Value) -> Value {
    let mut spec = json!({
        "region": "eu-1",
        "bucket": "volumes",
        "credentials": { "secretRef": { "name": "keys", "namespace": "apps" } },
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "apiVersion": "storage.holdfast.dev/v1alpha1",
        "kind": "ObjectStore",
        "metadata": { "name": "main", "uid": "s", "generation": 3 },
        "spec": spec,
    })
}

/// Returns a Secret with base64 values.
fn secret(version: &str, data: Value) -> Value {
    let metadata = json!({ "name": "x", "namespace": "apps", "uid": "u", "resourceVersion": version });
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data })
}

/// Returns `id` and, with a trailing newline, `key`.
fn keys() -> Value {
    json!({ "accessKeyId": "aWQ=", "secretAccessKey": "a2V5Cg==" })
}

async fn message(answers: Vec<(&'static str, Value)>) -> String {
    read(&server(answers), "the operator", "main").await.expect_err("unusable").to_string()
}

#[tokio::test]
async fn values_come_from_the_store_and_its_secrets() {
    let ca = json!({ "caBundleRef": { "name": "ca", "namespace": "apps", "key": "pem" }, "prefix": "a" });
    let pem = rcgen::generate_simple_self_signed(["s3".to_owned()]).unwrap().cert.pem();
    let pem_data = json!({ "pem": ByteString(pem.clone().into_bytes()) });
    let answers = |version| {
        vec![(STORE, store(ca.clone())), (KEYS, secret(version, keys())), (CA, secret("8", pem_data.clone()))]
    };
    let found = read(&server(answers("7")), "the operator", "main").await.expect("usable");
    assert_eq!(found.version.of_secrets().as_deref(), Some("u/7/u/8"));
    assert_eq!((found.config.bucket.as_str(), found.config.prefix.as_str()), ("volumes", "a"));
    assert_eq!(found.config.ca_pem.as_deref(), Some(pem.trim()));
    let holdfast_s3::S3Credentials::Static { access_key_id, secret_access_key, session_token } =
        &found.config.credentials
    else {
        panic!("{:?}", found.config)
    };
    assert_eq!((access_key_id.as_str(), secret_access_key.as_str()), ("id", "key"), "without white space");
    assert_eq!(*session_token, None);
    let rotated = read(&server(answers("9")), "the operator", "main").await.expect("usable");
    assert_ne!(found.version, rotated.version);
}

/// With a different version, the operator probes at once, which includes writes.
#[tokio::test]
async fn a_changed_spec_is_another_version_and_unprobed() {
    let read_with = async |generation: u64| {
        let mut answer = store(json!({ "endpoint": format!("http://s3-{generation}") }));
        answer["metadata"]["generation"] = json!(generation);
        let ready = json!({
            "type": "Ready", "status": "False", "reason": "CreateOnceNotAtomic", "message": "spec.endpoint: no",
            "observedGeneration": 3, "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        answer["status"] = json!({ "conditions": [ready] });
        let answers = vec![(STORE, answer), (KEYS, secret("7", keys()))];
        read(&server(answers), "the operator", "main").await.expect("usable")
    };
    let (before, after) = (read_with(3).await, read_with(4).await);
    assert_ne!(before.version, after.version);
    assert_eq!(before.ready.map(|ready| ready.reason).as_deref(), Some("CreateOnceNotAtomic"));
    assert_eq!(after.ready, None, "what was found of the server before says nothing");
}

#[tokio::test]
async fn each_failure_names_the_field_and_the_fix() {
    let (plain, good) = (store(json!({})), secret("1", keys()));
    let no_key = secret("1", json!({ "accessKeyId": "aWQ=", "secretAccessKey": "/w==" }));
    let both =
        json!({ "caBundle": "PEM", "caBundleRef": { "name": "ca", "namespace": "apps", "key": "pem" } });
    for (answers, expected) in [
        (vec![], "no ObjectStore is named `main`; create it"),
        (vec![(STORE, json!(500))], "the ObjectStore or its Secret could not be read"),
        (
            vec![(STORE, plain.clone())],
            "spec.credentials.secretRef: Secret apps/keys does not exist; create it or correct the reference",
        ),
        (
            vec![(STORE, plain.clone()), (KEYS, json!(403))],
            "spec.credentials.secretRef: the operator may not read Secret apps/keys; allow it with a Role in that \
             namespace",
        ),
        (
            vec![(STORE, plain), (KEYS, no_key)],
            "spec.credentials.secretRef: Secret apps/keys has no usable key `secretAccessKey`; add it",
        ),
        (
            vec![(STORE, store(both)), (KEYS, good.clone())],
            "spec.caBundleRef: spec.caBundle is set too; remove one of them",
        ),
    ] {
        assert_eq!(message(answers).await, expected);
    }
    let wrong = message(vec![(STORE, store(json!({ "endpoint": "host:9000" }))), (KEYS, good)]).await;
    assert!(wrong.starts_with("spec.endpoint \"host:9000\" is not valid: "), "{wrong}");
}
