//! Volumes of the Kubernetes API as seen by a user: served on a node, with their conditions.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::world::World;

use super::provisioning::apply;

const DEVICE_LIMIT: Duration = Duration::from_secs(60);

/// A volume served by a node.
pub(super) struct Served {
    /// Id of the volume in the daemon's metrics and files.
    pub(super) id: String,
    /// Its device.
    pub(super) device: String,
}

/// The current state of a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VolumeCondition {
    /// Its status and its reason, such as `False/StoreUnreachable`.
    pub(super) status_and_reason: String,
    /// Message for a user.
    pub(super) message: String,
    /// Time of its last change of status, as RFC 3339: later times are greater.
    pub(super) since: String,
}

/// Requests volumes of these names and sizes on `node`, with uploads after two seconds, and waits until it
/// serves all existing volumes.
pub(super) fn serve_all(
    world: &World,
    node: &NodeDaemon,
    volumes: &[(&str, &str)],
) -> Result<BTreeMap<String, Served>> {
    let documents: Vec<String> = volumes
        .iter()
        .map(|(name, size)| {
            format!(
                "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\n\
                 spec: {{size: {size}, objectStore: store, nodeName: {}, maxDirtyAge: 2s}}\n",
                node.vm().name()
            )
        })
        .collect();
    apply(world, &documents.join("---\n"))?;
    world.wait_for("volumes", "condition=Attached")?;
    let path = "{range .items[*]}{.metadata.name} {.status.volumeId} {.status.devicePath}{\"\\n\"}{end}";
    let mut served = BTreeMap::new();
    for line in world.kubectl(["get", "volumes", &format!("--output=jsonpath={path}")])?.lines() {
        let mut words = line.split(' ').map(str::to_owned);
        let (name, id, device) = (|| Some((words.next()?, words.next()?, words.next()?)))()
            .with_context(|| format!("not a volume that is served: {line}"))?;
        node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
        served.insert(name, Served { id, device });
    }
    Ok(served)
}

/// Detaches a volume from its node and waits until the node has released it.
pub(super) fn release(world: &World, name: &str) -> Result<()> {
    let unassigned = "{\"spec\":{\"nodeName\":null}}";
    world.kubectl(["patch", "volume", name, "--type=merge", "--patch", unassigned])?;
    world.wait_for("volumes", "jsonpath={.status.phase}=Ready")
}

/// Reads a condition of a volume; it must refer to the current spec.
pub(super) fn reported(world: &World, volume: &str, type_: &str) -> Result<VolumeCondition> {
    let path = format!(
        "{{.metadata.generation}}{{range .status.conditions[?(@.type==\"{type_}\")]}} {{.observedGeneration}} \
         {{.status}}/{{.reason}} {{.lastTransitionTime}} {{.message}}{{end}}"
    );
    let text = world.kubectl(["get", "volume", volume, &format!("--output=jsonpath={path}")])?;
    let words: Vec<&str> = text.splitn(5, ' ').collect();
    let [generation, observed, what, since, message] = words[..] else {
        anyhow::bail!("volume {volume} has no condition {type_}: {text}");
    };
    ensure!(generation == observed, "{type_} of {volume} is of another generation: {text}");
    Ok(VolumeCondition {
        status_and_reason: what.to_owned(),
        message: message.to_owned(),
        since: since.to_owned(),
    })
}
