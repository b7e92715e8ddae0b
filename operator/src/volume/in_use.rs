//! Counts volumes for the chart's deletion guard (`templates/policies.yaml`). While nodes serve volumes, the
//! guard protects the components that serve them; while volumes exist, their CRDs; while an ObjectStore has
//! volumes, that ObjectStore.
//!
//! Owns: `data` of the ConfigMap `holdfast-in-use`. Limits the writes on attach and detach: the first volume
//! is written at once, other changes once a minute, and 0 after [`NONE_FOR`] without volumes. The same
//! numbers are written again after [`REPAIR_EVERY`].
//! On failure: the old numbers stay, and the write is retried.

use std::collections::BTreeMap;
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
/// Key of the number of volumes claimed by nodes.
const ATTACHED: &str = "attached";
/// Key of the number of all volumes.
const VOLUMES: &str = "volumes";
/// Key prefix, followed by the name of an ObjectStore, of the number of its volumes.
const OF_STORE: &str = "objectstore.";
/// Time between two counts, which are made in memory.
const EVERY: Duration = Duration::from_secs(2);

/// Time between two writes of a nonzero number.
const NUMBER_EVERY: Duration = Duration::from_secs(60);
/// Longest time between two writes: another client may have changed or deleted the ConfigMap, and the guard
/// allows everything without it.
const REPAIR_EVERY: Duration = Duration::from_secs(180);
/// Time without volumes after which 0 is written, so that replacing the pod of a single volume writes
/// nothing.
const NONE_FOR: Duration = Duration::from_secs(10);

/// Runs until the future is dropped.
pub(crate) async fn run(client: Client, namespace: String, volumes: Store<Volume>) {
    // Before the first list, the count would be 0.
    if volumes.wait_until_ready().await.is_err() {
        return;
    }
    let api: Api<ConfigMap> = Api::namespaced(client, &namespace);
    let mut written = None;
    let mut last_some = BTreeMap::new();
    loop {
        let counts = count(volumes.state().iter().map(AsRef::as_ref));
        let now = Instant::now();
        last_some.extend(counts.0.keys().map(|key| (key.clone(), now)));
        last_some.retain(|_key, last_some| now.duration_since(*last_some) < NONE_FOR);
        if is_due(written.as_ref(), &counts, now, &last_some) {
            match write(&api, &counts).await {
                Ok(()) => written = Some(WrittenCounts { counts, at: now }),
                Err(error) => tracing::warn!(error = chain(&error), "number of volumes not written"),
            }
        }
        sleep(EVERY).await;
    }
}

/// Nonzero numbers of volumes, by their key in the ConfigMap: [`ATTACHED`], [`VOLUMES`], and one for each
/// ObjectStore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct VolumeCounts(BTreeMap<String, usize>);

impl VolumeCounts {
    fn get(&self, key: &str) -> usize {
        self.0.get(key).copied().unwrap_or(0)
    }

    fn add(&mut self, key: String) {
        *self.0.entry(key).or_default() += 1;
    }
}

/// The last written numbers.
#[derive(Clone, Debug)]
struct WrittenCounts {
    counts: VolumeCounts,
    at: Instant,
}

/// Returns true if a write is due. `last_some` has the numbers that were nonzero within [`NONE_FOR`].
fn is_due(
    written: Option<&WrittenCounts>,
    counts: &VolumeCounts,
    now: Instant,
    last_some: &BTreeMap<String, Instant>,
) -> bool {
    let Some(written) = written else { return true };
    let since = now.saturating_duration_since(written.at);
    let mut keys = written.counts.0.keys().chain(counts.0.keys());
    let has_changed = keys.any(|key| match (written.counts.get(key), counts.get(key)) {
        (before, after) if before == after => false,
        (0, _) => true,
        (_, 0) => !last_some.contains_key(key),
        (_, _) => since >= NUMBER_EVERY,
    });
    has_changed || since >= REPAIR_EVERY
}

async fn write(api: &Api<ConfigMap>, counts: &VolumeCounts) -> Result<(), ApiError> {
    let mut data: BTreeMap<&str, String> = [ATTACHED, VOLUMES].map(|key| (key, "0".to_owned())).into();
    data.extend(counts.0.iter().map(|(key, number)| (key.as_str(), number.to_string())));
    let patch = json!({
        "apiVersion": ConfigMap::api_version(&()),
        "kind": ConfigMap::kind(&()),
        "metadata": { "name": IN_USE },
        "data": data,
    });
    let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
    call(api.patch(IN_USE, &params, &Patch::Apply(patch))).await.map(drop)
}

fn count<'a>(volumes: impl Iterator<Item = &'a Volume>) -> VolumeCounts {
    let mut counts = VolumeCounts::default();
    for volume in volumes {
        counts.add(VOLUMES.to_owned());
        let node = volume.status.as_ref().and_then(|status| status.node.as_deref());
        if node.is_some_and(|node| !node.is_empty()) {
            counts.add(ATTACHED.to_owned());
        }
        if let Some(store) = volume.spec.object_store.as_deref().filter(|name| !name.is_empty()) {
            counts.add(format!("{OF_STORE}{store}"));
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: each attach and each detach wrote the ConfigMap.
    #[test]
    fn only_the_first_volume_is_counted_at_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let none = VolumeCounts::default();
        assert!(is_due(None, &none, start, &BTreeMap::new()), "the numbers of an earlier process may differ");
        for (name, before, number, now, was_there_lately, expected) in [
            ("the first volume", 0, 1, 2, true, true),
            ("the same", 1, 1, 90, true, false),
            ("one more", 1, 2, 59, true, false),
            ("one more, a minute later", 1, 2, 60, true, true),
            ("none", 2, 0, 90, true, false),
            ("none for a while", 2, 0, 12, false, true),
            ("still none", 0, 0, 90, false, false),
        ] {
            for key in [ATTACHED, VOLUMES, "objectstore.main"] {
                let counts = |number: usize| {
                    let others = Some(("others".to_owned(), 9));
                    let counted = (number > 0).then(|| (key.to_owned(), number));
                    VolumeCounts(counted.into_iter().chain(others).collect())
                };
                let written = WrittenCounts { counts: counts(before), at: start };
                let lately = was_there_lately.then(|| (key.to_owned(), start)).into_iter().collect();
                let due = is_due(Some(&written), &counts(number), after(now), &lately);
                assert_eq!(due, expected, "{name}, {key}");
            }
        }
    }

    /// Regression, found in review: after the ConfigMap was emptied or deleted, the guard was off until the
    /// numbers changed or the operator restarted.
    #[test]
    fn unchanged_numbers_are_written_again() {
        let start = Instant::now();
        for counts in [VolumeCounts::default(), VolumeCounts([(VOLUMES.to_owned(), 3)].into())] {
            let written = WrittenCounts { counts: counts.clone(), at: start };
            let is_due = |seconds| {
                is_due(Some(&written), &counts, start + Duration::from_secs(seconds), &BTreeMap::new())
            };
            assert!(!is_due(179) && is_due(180), "{counts:?}");
        }
    }

    #[test]
    fn volumes_are_counted_by_store_and_claim() {
        let volume = |node: Option<&str>, store: Option<&str>| {
            let spec = json!({ "size": "1Gi", "objectStore": store });
            let mut volume = Volume::new("data", serde_json::from_value(spec).expect("a spec"));
            volume.status = Some(serde_json::from_value(json!({ "node": node })).expect("a status"));
            volume
        };
        let volumes = [
            volume(Some("a"), Some("main")),
            volume(Some(""), Some("main")),
            volume(None, Some("cold")),
            volume(Some("b"), None),
        ];
        let counts = count(volumes.iter());
        let expected = [("attached", 2), ("objectstore.cold", 1), ("objectstore.main", 2), ("volumes", 4)];
        assert_eq!(counts, VolumeCounts(expected.map(|(key, number)| (key.to_owned(), number)).into()));
    }
}
