//! Counts the volumes that nodes serve, for the guard of the chart (`templates/policies.yaml`): while there
//! are any, nothing that serves them is deleted.
//!
//! Owns: `data.attached` of the ConfigMap `holdfast-in-use`. A first volume is written at once, another
//! number once a minute, 0 when there were none for [`NONE_FOR`]: each attach and each detach wrote it.
//! On failure: the old number stays, and it is written again.

use std::time::Duration;

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{OPERATOR_FIELD_MANAGER, Volume};
use holdfast_service::chain;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::reflector::Store;
use kube::{Client, Resource};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Name of the ConfigMap.
const IN_USE: &str = "holdfast-in-use";
/// Time between two counts, which are made in memory.
const EVERY: Duration = Duration::from_secs(2);

/// Time between two writes of the number, while it is not 0.
const NUMBER_EVERY: Duration = Duration::from_secs(60);
/// Time without a volume after which 0 is written: where one volume is used, a pod that is replaced by
/// another writes nothing.
const NONE_FOR: Duration = Duration::from_secs(10);

/// Runs until it is dropped.
pub(crate) async fn run(client: Client, namespace: String, volumes: Store<Volume>) {
    // Before the first list there would be none.
    if volumes.wait_until_ready().await.is_err() {
        return;
    }
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut written = None;
    let mut last_in_use = Instant::now();
    loop {
        let attached = attached(volumes.state().iter().map(AsRef::as_ref));
        let now = Instant::now();
        if attached > 0 {
            last_in_use = now;
        }
        if is_due(written, attached, now, last_in_use) {
            match write(&api, attached).await {
                Ok(()) => written = Some(Written { attached, at: now }),
                Err(error) => tracing::warn!(error = chain(&error), "number of attached volumes not written"),
            }
        }
        sleep(EVERY).await;
    }
}

/// The number that was written last.
#[derive(Clone, Copy, Debug)]
struct Written {
    attached: usize,
    at: Instant,
}

/// True if the number is to be written now. `last_in_use` is when it was last not 0.
fn is_due(written: Option<Written>, attached: usize, now: Instant, last_in_use: Instant) -> bool {
    let passed = |since| now.saturating_duration_since(since);
    match written {
        None => true,
        Some(written) if written.attached == attached => false,
        Some(Written { attached: 0, .. }) => true,
        Some(_) if attached == 0 => passed(last_in_use) >= NONE_FOR,
        Some(written) => passed(written.at) >= NUMBER_EVERY,
    }
}

async fn write(api: &Api<ConfigMap>, attached: usize) -> Result<(), ApiError> {
    let patch = json!({
        "apiVersion": ConfigMap::api_version(&()),
        "kind": ConfigMap::kind(&()),
        "metadata": { "name": IN_USE },
        "data": { "attached": attached.to_string() },
    });
    let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
    call(api.patch(IN_USE, &params, &Patch::Apply(patch))).await.map(drop)
}

/// Number of volumes that a node claims.
fn attached<'a>(volumes: impl Iterator<Item = &'a Volume>) -> usize {
    let claimed = |volume: &&Volume| {
        let node = volume.status.as_ref().and_then(|status| status.node.as_deref());
        node.is_some_and(|node| !node.is_empty())
    };
    volumes.filter(claimed).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attach and each detach wrote the ConfigMap.
    #[test]
    fn only_the_first_volume_is_counted_at_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let due = |written: usize, attached, now, last_in_use| {
            let written = Written { attached: written, at: start };
            is_due(Some(written), attached, after(now), after(last_in_use))
        };
        assert!(is_due(None, 0, start, start), "the number of an earlier process may be another");
        for (name, written, attached, now, last_in_use, expected) in [
            ("the first volume", 0, 1, 2, 2, true),
            ("the same", 1, 1, 90, 90, false),
            ("one more", 1, 2, 59, 59, false),
            ("one more, a minute later", 1, 2, 60, 60, true),
            ("none", 2, 0, 90, 88, false),
            ("none for a while", 2, 0, 12, 2, true),
            ("still none", 0, 0, 90, 2, false),
        ] {
            assert_eq!(due(written, attached, now, last_in_use), expected, "{name}");
        }
    }

    #[test]
    fn a_volume_is_in_use_while_a_node_claims_it() {
        let volume = |node: Option<&str>| {
            let spec = json!({ "size": "1Gi", "objectStore": "main" });
            let mut volume = Volume::new("data", serde_json::from_value(spec).expect("a spec"));
            volume.status = Some(serde_json::from_value(json!({ "node": node })).expect("a status"));
            volume
        };
        let volumes = [volume(Some("a")), volume(Some("")), volume(None), volume(Some("b"))];
        assert_eq!(attached(volumes.iter()), 2);
    }
}
