//! Counts the volumes that nodes serve, for the guard of the chart (`templates/policies.yaml`): while there
//! are any, nothing that serves them is deleted.
//!
//! Owns: `data.attached` of the ConfigMap `holdfast-in-use`.
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
use tokio::time::sleep;

/// Name of the ConfigMap.
const IN_USE: &str = "holdfast-in-use";
/// Time between two counts, which are made in memory.
const EVERY: Duration = Duration::from_secs(2);

/// Runs until it is dropped.
pub(crate) async fn run(client: Client, namespace: String, volumes: Store<Volume>) {
    // Before the first list there would be none.
    if volumes.wait_until_ready().await.is_err() {
        return;
    }
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut written = None;
    loop {
        let attached = attached(volumes.state().iter().map(AsRef::as_ref));
        if written != Some(attached) {
            match write(&api, attached).await {
                Ok(()) => written = Some(attached),
                Err(error) => tracing::warn!(error = chain(&error), "number of attached volumes not written"),
            }
        }
        sleep(EVERY).await;
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
