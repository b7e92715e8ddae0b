//! The Lease by which the operator knows that this daemon lives.
//!
//! Owns: the Lease `node-<name>` in the namespace of the daemon. It belongs to the Node of that name, and
//! goes with it.
//! Does not own: what follows from its silence (`operator/src/volume/failover.rs`).
//! On failure: a renewal that fails is only logged, and the next one follows; volumes stay served.

use std::time::Duration;

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{HEARTBEAT_LABEL, HEARTBEAT_LIMIT, NODE_FIELD_MANAGER, heartbeat_lease};
use holdfast_service::chain;
use holdfast_types::Backoff;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::sync::watch;

/// Time between two renewals.
const EVERY: Backoff = Backoff::steady(Duration::from_secs(10));

/// Runs until it is dropped. `owner` is the Node, once it is known: no renewal waits for that.
pub(crate) async fn run(client: Client, node: String, owner: watch::Receiver<Option<OwnerReference>>) {
    let api: Api<Lease> = Api::default_namespaced(client);
    loop {
        let owner = owner.borrow().clone();
        if let Err(error) = renew(&api, &node, owner).await {
            tracing::warn!(error = chain(&error), "heartbeat not written; volumes stay served");
        }
        tokio::time::sleep(EVERY.delay(1, fastrand::f64())).await;
    }
}

async fn renew(api: &Api<Lease>, node: &str, owner: Option<OwnerReference>) -> Result<(), ApiError> {
    let params = PatchParams::apply(NODE_FIELD_MANAGER).force();
    let lease = lease(node, owner, Timestamp::now());
    call(api.patch(&heartbeat_lease(node), &params, &Patch::Apply(lease))).await.map(drop)
}

fn lease(node: &str, owner: Option<OwnerReference>, now: Timestamp) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(heartbeat_lease(node)),
            labels: Some([(HEARTBEAT_LABEL.to_owned(), "node".to_owned())].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: i32::try_from(HEARTBEAT_LIMIT.as_secs()).ok(),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_outlives_three_lost_renewals() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
        let Lease { metadata, spec } = lease("a", None, now);
        let spec = spec.expect("a spec");
        assert_eq!((metadata.name.as_deref(), spec.holder_identity.as_deref()), (Some("node-a"), Some("a")));
        assert!(metadata.labels.expect("labels").contains_key(HEARTBEAT_LABEL));
        let longest = EVERY.delay(1, 1.0) * 3;
        assert!(longest < HEARTBEAT_LIMIT && spec.lease_duration_seconds == Some(40));
    }

    #[test]
    fn a_heartbeat_belongs_to_its_node() {
        let now = "2026-01-01T00:00:00Z".parse().expect("a timestamp");
        let node =
            OwnerReference { kind: "Node".to_owned(), name: "a".to_owned(), ..OwnerReference::default() };
        let owners = lease("a", Some(node.clone()), now).metadata.owner_references;
        assert_eq!(owners, Some(vec![node]));
    }
}
