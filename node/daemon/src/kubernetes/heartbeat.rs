//! The Lease that shows the operator that this daemon is alive.
//!
//! Owns: the Lease `node-<name>` in the daemon's namespace. The Node of that name owns it, so that both are
//! deleted together.
//! Does not own: the reaction to a missing heartbeat (`operator/src/volume/failover.rs`).
//! On failure: a failed renewal is logged, and the next one follows; volumes stay served.

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

/// Interval between renewals.
const EVERY: Backoff = Backoff::steady(Duration::from_secs(10));

/// Runs until it is dropped. `owner` is the Node, once known: renewals do not wait for it.
pub(crate) async fn run(client: Client, node: String, owner: watch::Receiver<Option<OwnerReference>>) {
    let mut heartbeat = Heartbeat { api: Api::default_namespaced(client), node, is_owned: true };
    loop {
        let owner = owner.borrow().clone();
        if let Err(error) = heartbeat.renew(owner).await {
            tracing::warn!(error = chain(&error), "heartbeat not written; volumes stay served");
        }
        tokio::time::sleep(EVERY.delay(1, fastrand::f64())).await;
    }
}

struct Heartbeat {
    api: Api<Lease>,
    node: String,
    /// The Lease is written with its owner, if known.
    is_owned: bool,
}

impl Heartbeat {
    async fn renew(&mut self, owner: Option<OwnerReference>) -> Result<(), ApiError> {
        let outcome = self.write(owner.clone().filter(|_owner| self.is_owned)).await;
        match outcome {
            // With the admission plugin OwnerReferencesPermissionEnforcement only users who may delete a
            // Lease may change its owner: it keeps the owner, or none, that it was created with.
            Err(error) if error.is_forbidden() && owner.is_some() => {
                self.is_owned = !self.is_owned;
                self.write(owner.filter(|_owner| self.is_owned)).await
            }
            outcome => outcome,
        }
    }

    async fn write(&self, owner: Option<OwnerReference>) -> Result<(), ApiError> {
        let params = PatchParams::apply(NODE_FIELD_MANAGER).force();
        let lease = lease(&self.node, owner, Timestamp::now());
        call(self.api.patch(&heartbeat_lease(&self.node), &params, &Patch::Apply(lease))).await.map(drop)
    }
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

    /// Regression, found in review: OpenShift rejects a change of the owner, so a daemon stopped renewing
    /// after the first time.
    #[tokio::test]
    async fn a_lease_whose_owner_may_not_change_is_renewed_as_it_is() {
        for created_with_owner in [false, true] {
            let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| async move {
                let body = request.into_body().collect_bytes().await.expect("a body");
                let lease: Lease = serde_json::from_slice(&body).expect("a Lease");
                let same = lease.metadata.owner_references.is_some() == created_with_owner;
                let refused = serde_json::json!({ "status": "Failure", "reason": "Forbidden", "message": "",
                    "code": 403 });
                let (code, answer) = if same { (200, serde_json::json!(lease)) } else { (403, refused) };
                let answer = hyper::Response::builder()
                    .status(code)
                    .body(kube::client::Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(answer.expect("an answer"))
            });
            let api = Api::default_namespaced(Client::new(service, "default"));
            let mut heartbeat = Heartbeat { api, node: "a".to_owned(), is_owned: true };
            let owner = Some(OwnerReference { name: "a".to_owned(), ..OwnerReference::default() });
            for _renewal in 0..2 {
                heartbeat.renew(owner.clone()).await.expect("it is renewed");
                assert_eq!(heartbeat.is_owned, created_with_owner);
            }
        }
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
