//! Silence of node daemons: those that have not renewed their Lease for longer than [`HEARTBEAT_LIMIT`].
//!
//! Owns: the time of each daemon's last renewal, and `Ready=Unknown` of the StorageNodes of silent ones.
//! Does not own: the consequences for their volumes (`volume/failover.rs`).
//! Invariants: silence is measured by this process's own clock, from the last observed change of a Lease to
//! the last successful look. Neither another machine's clock nor an unresponsive API server makes a node
//! silent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{
    Condition, ConditionBuilder, ConditionStatus, HEARTBEAT_LABEL, HEARTBEAT_LIMIT, OPERATOR_FIELD_MANAGER,
    READY, StorageNode, Time, find_condition, heartbeat_lease,
};
use holdfast_service::chain;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::metrics::Metrics;

/// Interval at which the Leases are read.
const EVERY: Duration = Duration::from_secs(10);

/// Last renewals of all node daemons. Clones share the state.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeats(Arc<Mutex<SeenLeases>>);

/// Time after which a node without a Lease and without queries is forgotten: Nodes come and go.
const FORGOTTEN_AFTER: Duration = Duration::from_hours(24);

#[derive(Debug)]
struct SeenLeases {
    /// Version of each Lease by its name. A Lease that was deleted with its Node stays: its deletion counts
    /// as the daemon's last renewal.
    leases: HashMap<String, (Option<String>, Renewed)>,
    /// A daemon without a Lease counts as renewed at the first query for it: it may have just started.
    awaited: HashMap<String, Renewed>,
    last_look: Instant,
}

/// Last renewal of a Lease.
#[derive(Clone, Copy, Debug)]
struct Renewed {
    at: Instant,
    /// Time at which the Lease last existed, or was last queried.
    used: Instant,
}

impl Heartbeats {
    /// Starts with no silent daemon: none is silent before the first look.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let (leases, awaited) = (HashMap::new(), HashMap::new());
        Self(Arc::new(Mutex::new(SeenLeases { leases, awaited, last_look: now })))
    }

    /// Returns true if the node's daemon has renewed no Lease for longer than the limit.
    pub(crate) fn is_silent(&self, node: &str) -> bool {
        let (mut seen, lease) = (self.0.lock(), heartbeat_lease(node));
        let last_look = seen.last_look;
        let SeenLeases { leases, awaited, .. } = &mut *seen;
        let renewed = match leases.get_mut(&lease) {
            Some((_, renewed)) => renewed,
            None => awaited.entry(lease).or_insert(Renewed { at: last_look, used: last_look }),
        };
        renewed.used = last_look;
        last_look.duration_since(renewed.at) > HEARTBEAT_LIMIT
    }

    /// Records the existing Leases, each with its version.
    fn look(&self, leases: impl IntoIterator<Item = (String, Option<String>)>, now: Instant) {
        let mut seen = self.0.lock();
        for (name, version) in leases {
            match seen.leases.get_mut(&name) {
                Some((known, renewed)) if *known == version => renewed.used = now,
                Some(_) | None => {
                    seen.leases.insert(name, (version, Renewed { at: now, used: now }));
                }
            }
        }
        let SeenLeases { leases, awaited, .. } = &mut *seen;
        let is_used = |renewed: &Renewed| now.duration_since(renewed.used) < FORGOTTEN_AFTER;
        leases.retain(|_, (_, renewed)| is_used(renewed));
        awaited.retain(|name, renewed| is_used(renewed) && !leases.contains_key(name));
        seen.last_look = now;
    }
}

/// Reads the Leases in `namespace` periodically until the future is dropped.
pub(crate) async fn run(client: Client, namespace: String, heartbeats: Heartbeats, metrics: Arc<Metrics>) {
    loop {
        if let Err(error) = look(&client, &namespace, &heartbeats, &metrics).await {
            tracing::warn!(error = chain(&error), "heartbeats of the nodes not read");
        }
        sleep(EVERY).await;
    }
}

async fn look(
    client: &Client,
    namespace: &str,
    heartbeats: &Heartbeats,
    metrics: &Metrics,
) -> Result<(), ApiError> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let found = call(leases.list(&ListParams::default().labels(HEARTBEAT_LABEL))).await?;
    heartbeats
        .look(found.into_iter().map(|lease| (lease.name_any(), lease.resource_version())), Instant::now());
    let nodes: Api<StorageNode> = Api::all(client.clone());
    let found = call(nodes.list(&ListParams::default())).await?.items;
    metrics.show_storage_nodes(&found);
    for node in found {
        let name = node.name_any();
        let conditions = node.status.map(|status| status.conditions).unwrap_or_default();
        if heartbeats.is_silent(&name)
            && let Some(ready) = unknown(&conditions, &Time(Timestamp::now()))
        {
            tracing::warn!(node = name, "node daemon is silent");
            report(&nodes, &name, &ready).await?;
        }
    }
    Ok(())
}

/// Returns the condition of a node whose daemon is silent, unless the condition is already set.
fn unknown(conditions: &[Condition], now: &Time) -> Option<Condition> {
    let silent = ConditionStatus::Unknown.as_str();
    if find_condition(conditions, READY).is_some_and(|ready| ready.status == silent) {
        return None;
    }
    let message = format!(
        "the node daemon has renewed no Lease for more than {} seconds. Its volumes stay with it unless the node is lost \
         (spec.failoverPolicy of each Volume). Check the node and the pod of its daemon",
        HEARTBEAT_LIMIT.as_secs()
    );
    let builder = ConditionBuilder { previous: conditions, observed_generation: None, now };
    Some(builder.build(READY, ConditionStatus::Unknown, "DaemonSilent", message))
}

/// Once it runs again, the daemon takes over the condition.
async fn report(api: &Api<StorageNode>, name: &str, ready: &Condition) -> Result<(), ApiError> {
    let patch = json!({
        "apiVersion": StorageNode::api_version(&()),
        "kind": StorageNode::kind(&()),
        "metadata": { "name": name },
        "status": { "conditions": [ready] },
    });
    let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
    match call(api.patch_status(name, &params, &Patch::Apply(patch))).await {
        Err(error) if !error.is_stale() => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(node: &str, version: u32) -> (String, Option<String>) {
        (heartbeat_lease(node), Some(version.to_string()))
    }

    /// Regression: a node that joined between two looks counted as silent since the operator's start; its
    /// volume was deleted below its device.
    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_has_just_started_is_not_silent() {
        let heartbeats = Heartbeats::new();
        tokio::time::advance(10 * HEARTBEAT_LIMIT).await;
        heartbeats.look([lease("a", 1)], Instant::now());
        assert!(!heartbeats.is_silent("new"));
        tokio::time::advance(EVERY).await;
        heartbeats.look([lease("a", 2), lease("new", 1)], Instant::now());
        assert!(!heartbeats.is_silent("new") && !heartbeats.is_silent("never"));
        tokio::time::advance(2 * HEARTBEAT_LIMIT).await;
        heartbeats.look([lease("a", 3), lease("new", 2)], Instant::now());
        assert!(!heartbeats.is_silent("new") && heartbeats.is_silent("never"));
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_daemon_that_stops_renewing_is_silent() {
        let (heartbeats, begun) = (Heartbeats::new(), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        for (seconds, version) in [(0, 1), (10, 2), (20, 3)] {
            heartbeats.look([lease("a", version), lease("b", 7)], after(seconds));
            assert!(!heartbeats.is_silent("c"), "it is awaited from now on");
        }
        assert!(!heartbeats.is_silent("a") && !heartbeats.is_silent("b") && !heartbeats.is_silent("c"));
        // A period without answers from the API server does not make nodes silent.
        heartbeats.look([lease("a", 4), lease("b", 7)], after(50));
        assert!(!heartbeats.is_silent("a"), "it renewed");
        assert!(heartbeats.is_silent("b"), "it did not");
        assert!(heartbeats.is_silent("c"), "it has no Lease");
    }

    /// Regression: after its Node and Lease were deleted, a daemon counted as awaited for 40 seconds.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_is_deleted_was_renewed_when_it_was_last_seen_to_be() {
        let (heartbeats, begun) = (Heartbeats::new(), Instant::now());
        heartbeats.look([lease("a", 1)], begun);
        heartbeats.look([], begun + HEARTBEAT_LIMIT / 2);
        assert!(!heartbeats.is_silent("a"));
        heartbeats.look([], begun + HEARTBEAT_LIMIT + EVERY);
        assert!(heartbeats.is_silent("a"));
        heartbeats.look([lease("a", 2)], begun + 2 * HEARTBEAT_LIMIT);
        assert!(!heartbeats.is_silent("a"), "a Node of that name is there again");
    }

    /// Regression: an autoscaler gives each node a new name, and the operator remembered all of them.
    #[tokio::test(start_paused = true)]
    async fn nodes_that_are_gone_are_forgotten_unless_asked_about() {
        let (heartbeats, begun) = (Heartbeats::new(), Instant::now());
        let leases = (0..1000).map(|number| lease(&format!("n{number}"), 1));
        heartbeats.look(leases.chain([lease("there", 1)]), begun);
        assert!(!heartbeats.is_silent("never"));
        let mut now = begun;
        for _ in 0..30 {
            now += FORGOTTEN_AFTER / 20;
            heartbeats.look([lease("there", 1)], now);
            // A volume is still assigned to that node.
            assert!(heartbeats.is_silent("n7"), "the last renewal stays known");
        }
        let seen = heartbeats.0.lock();
        assert_eq!((seen.leases.len(), seen.awaited.len()), (2, 0));
    }

    #[test]
    fn a_silent_node_is_not_known_to_be_ready() {
        let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
        let builder = ConditionBuilder { previous: &[], observed_generation: None, now: &now };
        let serving = vec![builder.build(READY, ConditionStatus::True, "Serving", "")];
        let silent = unknown(&serving, &now).expect("it changes");
        assert_eq!((silent.status.as_str(), silent.reason.as_str()), ("Unknown", "DaemonSilent"));
        assert_eq!(unknown(&[silent], &now), None, "it is written once");
    }
}
