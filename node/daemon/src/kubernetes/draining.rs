//! Detects that this node is being drained, from its Node object.
//!
//! Owns: the signs of a Node whose pods will leave.
//! Does not own: the effect on the volumes (`node/draining.rs`), or the condition that shows it
//! (`storage_node.rs`).
//! Runs on: the daemon's tokio runtime; one watch of one object.
//! On failure: the last known state applies, even if the Node was deleted.

use std::pin::pin;

use futures::StreamExt;
use holdfast_service::chain;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::sync::watch;

use crate::volumes::Volumes;

/// Taints that announce the departure of a node's pods. Sources: cluster-autoscaler `utils/taints/taints.go`
/// (not its candidates, most of which stay); Karpenter "Disruption", before and since 1.0; kubernetes.io,
/// "Non-graceful node shutdown".
const TAINTS: [&str; 4] = [
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    "node.kubernetes.io/out-of-service",
];

/// Drain state of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Draining {
    /// The Node was not seen yet.
    #[default]
    Unknown,
    /// Not being drained.
    No,
    /// Being drained, by this sign.
    Yes(Sign),
}

/// Sign that a node is being drained.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Sign {
    /// `spec.unschedulable`.
    Cordoned,
    /// A taint with this key.
    Tainted(&'static str),
}

impl Draining {
    fn of(node: &Node) -> Self {
        let Some(spec) = &node.spec else { return Self::No };
        if spec.unschedulable == Some(true) {
            return Self::Yes(Sign::Cordoned);
        }
        let taints = spec.taints.as_deref().unwrap_or_default();
        let found = TAINTS.into_iter().find(|key| taints.iter().any(|taint| taint.key == *key));
        found.map_or(Self::No, |key| Self::Yes(Sign::Tainted(key)))
    }
}

/// Runs until it is dropped.
pub(super) async fn run<V: Volumes>(
    client: Client,
    node: String,
    volumes: V,
    known: watch::Sender<Draining>,
) {
    let mut seen = pin!(watcher::watch_object(Api::<Node>::all(client), &node).default_backoff());
    while let Some(next) = seen.next().await {
        match next {
            Ok(Some(found)) => {
                let now = Draining::of(&found);
                if *known.borrow() != now {
                    tracing::info!(draining = ?now, "the drain state of the Node changed");
                    volumes.set_draining(matches!(now, Draining::Yes(_))).await;
                    known.send_replace(now);
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(error = chain(&error), "the watch of the Node was interrupted"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::sync::Notify;

    use super::*;
    use crate::volumes::tests::Fake;

    fn node(spec: Value) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a", "resourceVersion": "7" },
            "spec": spec,
        })
    }

    fn tainted(key: &str) -> Value {
        node(
            json!({ "taints": [{ "key": "other", "effect": "NoSchedule" }, { "key": key, "effect": "NoSchedule" }] }),
        )
    }

    #[test]
    fn a_node_whose_pods_will_leave_is_being_drained() {
        for (node, expected) in [
            (node(json!({})), Draining::No),
            (node(json!({ "unschedulable": false })), Draining::No),
            (node(json!({ "unschedulable": true })), Draining::Yes(Sign::Cordoned)),
            (tainted(TAINTS[0]), Draining::Yes(Sign::Tainted("ToBeDeletedByClusterAutoscaler"))),
            (tainted(TAINTS[1]), Draining::Yes(Sign::Tainted("karpenter.sh/disrupted"))),
            (tainted(TAINTS[2]), Draining::Yes(Sign::Tainted("karpenter.sh/disruption"))),
            (tainted(TAINTS[3]), Draining::Yes(Sign::Tainted("node.kubernetes.io/out-of-service"))),
            (tainted("DeletionCandidateOfClusterAutoscaler"), Draining::No),
            (tainted("node.kubernetes.io/not-ready"), Draining::No),
        ] {
            assert_eq!(Draining::of(&serde_json::from_value(node.clone()).unwrap()), expected, "{node}");
        }
    }

    /// Returns the daemon's calls and requests, for an API server that lists, then sends these Nodes.
    async fn told(listed: Vec<Value>, sent: &[(&str, Value)]) -> (Vec<bool>, Vec<String>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let sent: Vec<String> = sent
            .iter()
            .map(|(kind, node)| json!({ "type": kind, "object": node }).to_string() + "\n")
            .collect();
        let (requests, sent) = (Arc::clone(&asked), sent.concat());
        // All events are processed once it waits for a second watch.
        let waits = Arc::new(Notify::new());
        let is_done = Arc::clone(&waits);
        let server = tower::service_fn(move |request: hyper::Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let is_watch = query.contains("watch=true");
            let is_again = requests.lock().iter().any(|known: &String| known.contains("watch=true"));
            requests.lock().push(query);
            let answer = if is_watch {
                if is_again { String::new() } else { sent.clone() }
            } else {
                json!({
                    "apiVersion": "v1", "kind": "NodeList", "metadata": { "resourceVersion": "7" },
                    "items": listed,
                })
                .to_string()
            };
            let waits = Arc::clone(&waits);
            async move {
                if is_again {
                    waits.notify_one();
                    std::future::pending::<()>().await;
                }
                hyper::Response::builder().status(200).body(Body::from(answer.into_bytes()))
            }
        });
        let (volumes, known) = (Fake::default(), watch::Sender::default());
        let client = Client::new(server, "default");
        let run = run(client, "a".to_owned(), volumes.clone(), known);
        tokio::select! {
            () = run => panic!("the watch ended"),
            () = is_done.notified() => {}
        }
        let asked = asked.lock().clone();
        (volumes.draining(), asked)
    }

    #[tokio::test]
    async fn the_volumes_are_told_what_changes_and_no_more() {
        let (cordoned, usual) = (node(json!({ "unschedulable": true })), node(json!({})));
        let sent = [
            ("MODIFIED", usual.clone()),
            ("MODIFIED", cordoned.clone()),
            ("MODIFIED", cordoned.clone()),
            ("MODIFIED", usual.clone()),
            ("MODIFIED", tainted("karpenter.sh/disrupted")),
            ("DELETED", usual.clone()),
        ];
        let (told, asked) = told(vec![usual], &sent).await;
        assert_eq!(told, [false, true, false, true], "a Node that was deleted says nothing");
        assert!(asked.iter().all(|query| query.contains("fieldSelector=metadata.name%3Da")), "{asked:?}");
        assert_eq!(asked.iter().filter(|query| !query.contains("watch=true")).count(), 1, "{asked:?}");
    }

    #[tokio::test]
    async fn a_daemon_that_starts_on_a_drained_node_is_told_so() {
        assert_eq!(told(vec![node(json!({ "unschedulable": true }))], &[]).await.0, [true]);
        assert_eq!(told(Vec::new(), &[]).await.0, [] as [bool; 0], "without a Node nothing is known");
    }
}
