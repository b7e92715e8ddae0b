//! Counts volumes for the guard of the chart (`templates/policies.yaml`): while nodes serve any, nothing that
//! serves them is deleted; while there are any, their kinds are not.
//!
//! Owns: `data` of the ConfigMap `holdfast-in-use`. A first volume is written at once, another number once a
//! minute, 0 when there were none for [`NONE_FOR`]: each attach and each detach wrote it.
//! On failure: the old numbers stay, and they are written again.

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

/// Time between two writes of a number, while it is not 0.
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
    let mut last_some = [Instant::now(); 2];
    loop {
        let counts = count(volumes.state().iter().map(AsRef::as_ref));
        let now = Instant::now();
        for (number, last_some) in counts.numbers().into_iter().zip(&mut last_some) {
            if number > 0 {
                *last_some = now;
            }
        }
        if is_due(written, counts, now, last_some) {
            match write(&api, counts).await {
                Ok(()) => written = Some(Written { counts, at: now }),
                Err(error) => tracing::warn!(error = chain(&error), "number of volumes not written"),
            }
        }
        sleep(EVERY).await;
    }
}

/// Numbers of volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counts {
    /// Those that a node claims.
    attached: usize,
    /// All of them.
    all: usize,
}

impl Counts {
    fn numbers(self) -> [usize; 2] {
        [self.attached, self.all]
    }
}

/// The numbers that were written last.
#[derive(Clone, Copy, Debug)]
struct Written {
    counts: Counts,
    at: Instant,
}

/// True if the numbers are to be written now. `last_some` is when each was last not 0.
fn is_due(written: Option<Written>, counts: Counts, now: Instant, last_some: [Instant; 2]) -> bool {
    let passed = |since| now.saturating_duration_since(since);
    let Some(written) = written else { return true };
    let numbers = written.counts.numbers().into_iter().zip(counts.numbers()).zip(last_some);
    numbers.into_iter().any(|((before, after), last_some)| match (before, after) {
        (before, after) if before == after => false,
        (0, _) => true,
        (_, 0) => passed(last_some) >= NONE_FOR,
        (_, _) => passed(written.at) >= NUMBER_EVERY,
    })
}

async fn write(api: &Api<ConfigMap>, counts: Counts) -> Result<(), ApiError> {
    let patch = json!({
        "apiVersion": ConfigMap::api_version(&()),
        "kind": ConfigMap::kind(&()),
        "metadata": { "name": IN_USE },
        "data": { "attached": counts.attached.to_string(), "volumes": counts.all.to_string() },
    });
    let params = PatchParams::apply(OPERATOR_FIELD_MANAGER).force();
    call(api.patch(IN_USE, &params, &Patch::Apply(patch))).await.map(drop)
}

fn count<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Counts {
    let is_claimed = |volume: &Volume| {
        let node = volume.status.as_ref().and_then(|status| status.node.as_deref());
        node.is_some_and(|node| !node.is_empty())
    };
    volumes.fold(Counts { attached: 0, all: 0 }, |counts, volume| Counts {
        attached: counts.attached + usize::from(is_claimed(volume)),
        all: counts.all + 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each attach and each detach wrote the ConfigMap.
    #[test]
    fn only_the_first_volume_is_counted_at_once() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let none = Counts { attached: 0, all: 0 };
        assert!(is_due(None, none, start, [start; 2]), "the numbers of an earlier process may be others");
        for (name, before, number, now, last_some, expected) in [
            ("the first volume", 0, 1, 2, 2, true),
            ("the same", 1, 1, 90, 90, false),
            ("one more", 1, 2, 59, 59, false),
            ("one more, a minute later", 1, 2, 60, 60, true),
            ("none", 2, 0, 90, 88, false),
            ("none for a while", 2, 0, 12, 2, true),
            ("still none", 0, 0, 90, 2, false),
        ] {
            let attached = |attached| Counts { attached, all: 9 };
            let all = |all| Counts { attached: 0, all };
            let due = |counts, written, last_some| {
                is_due(Some(Written { counts: written, at: start }), counts, after(now), last_some)
            };
            let since = [after(last_some), after(now)];
            assert_eq!(due(attached(number), attached(before), since), expected, "{name}, attached");
            let since = [start, after(last_some)];
            assert_eq!(due(all(number), all(before), since), expected, "{name}, of all");
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
        assert_eq!(count(volumes.iter()), Counts { attached: 2, all: 4 });
    }
}
