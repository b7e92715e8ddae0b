//! Objects with values that only a later release knows: after a rollback, this release reads them.

use holdfast_crds::{
    Credentials, DetachCause, GroupStep, ObjectStore, StorageNode, Volume, VolumeGroupSnapshot,
    VolumeSnapshot, VolumeSource, VolumeSpec,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const LATER: &str = "ofALaterRelease";

/// Returns an object of this kind in which each value of an enumeration is of a later release.
fn object(kind: &str) -> Value {
    let later = json!({ LATER: {} });
    let loss = json!({ "node": "a", "time": "2026-01-01T00:00:00Z", "cause": LATER, "durability": LATER });
    let (spec, status) = match kind {
        "ObjectStore" => (json!({ "bucket": "bucket", "credentials": later }), json!({})),
        "StorageNode" => (json!({}), json!({ "transports": [{ "name": LATER, "available": true }] })),
        "Volume" => (
            json!({
                "backend": LATER, "deletionPolicy": LATER, "durability": LATER, "failoverPolicy": LATER,
                "memory": { "compression": LATER }, "source": later, "transport": LATER,
            }),
            json!({ "phase": LATER, "durability": LATER, "forcedDetach": loss, "earlierLosses": [loss] }),
        ),
        "VolumeGroupSnapshot" => (json!({ "volumes": ["data"], "deletionPolicy": LATER }), json!({})),
        "VolumeSnapshot" => (
            json!({ "volume": "data", "deletionPolicy": LATER }),
            json!({ "groupStep": LATER, "groupProgress": LATER }),
        ),
        other => panic!("a new kind: {other}"),
    };
    json!({ "metadata": { "name": "data", "uid": "uid" }, "spec": spec, "status": status })
}

fn decoded<K: DeserializeOwned>(kind: &str) -> K {
    serde_json::from_value(object(kind)).expect("an object of a later release")
}

/// Found in review: programs decode lists as a whole, so after a rollback one such object stopped the
/// operator, the CSI driver and the daemons for all objects of its kind.
#[test]
fn values_of_a_later_release_are_decoded() {
    let volume: Volume = decoded("Volume");
    assert!(matches!(volume.spec.source, VolumeSource::Unknown(_)), "{:?}", volume.spec.source);
    let status = volume.status.expect("a status");
    assert_eq!((status.phase, status.durability), (None, None));
    let loss = status.forced_detach.as_ref().expect("a loss");
    assert_eq!((loss.cause, loss.durability), (DetachCause::Unknown, None));
    let written = serde_json::to_value(&status).expect("a status that can be written");
    assert_eq!(written["forcedDetach"]["cause"], "Unknown");

    let snapshot: VolumeSnapshot = decoded("VolumeSnapshot");
    let status = snapshot.status.expect("a status");
    assert_eq!((status.group_step, status.group_progress), (Some(GroupStep::Unknown), None));
    assert!(snapshot.spec.deletion_policy.check_known().is_err());
    let group: VolumeGroupSnapshot = decoded("VolumeGroupSnapshot");
    assert!(group.spec.deletion_policy.check_known().is_err());
    let store: ObjectStore = decoded("ObjectStore");
    assert!(matches!(store.spec.credentials, Credentials::Unknown(_)), "{:?}", store.spec.credentials);
    let node: StorageNode = decoded("StorageNode");
    assert_eq!(node.status.expect("a status").transports[0].name, LATER);
}

/// A program must not act on a default in place of a value that it does not know.
#[test]
fn a_value_of_a_later_release_is_named() {
    for (field, fields) in [
        ("spec.backend", json!({ "backend": LATER })),
        ("spec.durability", json!({ "durability": LATER })),
        ("spec.transport", json!({ "transport": LATER })),
        ("spec.memory.compression", json!({ "backend": "memory", "memory": { "compression": LATER } })),
        ("spec.source", json!({ "source": { LATER: { "name": "a" } } })),
        ("spec.deletionPolicy", json!({ "deletionPolicy": LATER })),
        ("spec.failoverPolicy", json!({ "failoverPolicy": LATER })),
    ] {
        let spec: VolumeSpec = serde_json::from_value(fields).expect(field);
        assert_eq!(spec.check_known().expect_err(field).field, field);
    }
    let known =
        json!({ "source": { "snapshot": { "name": "a" } }, "transport": "ublk", "durability": "object" });
    let spec: VolumeSpec = serde_json::from_value(known).expect("a spec");
    assert_eq!(spec.check_known(), Ok(()));
}

/// A new enumeration needs a value for those of later releases, too.
#[test]
fn each_enumeration_has_a_value_of_a_later_release() {
    fn closed(path: &str, schema: &JSONSchemaProps, found: &mut Vec<String>) {
        if schema.enum_.is_some() || schema.one_of.is_some() {
            found.push(path.to_owned());
        }
        for (name, property) in schema.properties.iter().flatten() {
            closed(&format!("{path}/{name}"), property, found);
        }
        if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
            closed(&format!("{path}/0"), items, found);
        }
    }
    for definition in holdfast_crds::definitions() {
        let object = object(&definition.spec.names.kind);
        for version in &definition.spec.versions {
            let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
            let mut found = Vec::new();
            closed("", schema.expect("each kind has a schema"), &mut found);
            for path in found {
                let value = object.pointer(&path);
                let is_later = |value: &Value| *value == LATER || value.get(LATER).is_some();
                assert!(value.is_some_and(is_later), "{} {path}: {value:?}", definition.spec.names.kind);
            }
        }
    }
}
