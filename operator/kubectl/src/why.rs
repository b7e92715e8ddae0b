//! `kubectl holdfast why`.

use std::fmt::Write;

use holdfast_crds::{
    ByteSize, Condition, DeletionPolicy, ForcedDetach, READY, TimeSpan, Volume, VolumePhase, VolumeStatus,
    find_condition,
};
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;

use crate::cluster::{ClusterObjects, time_of};
use crate::problem;

/// Returns the output of the command.
pub(crate) fn why(volume: &Volume, seen: &ClusterObjects, events: &[Event]) -> String {
    let mut text = format!("{}\n", problem::title(volume));
    let nothing = VolumeStatus::default();
    let status = volume.status.as_ref().unwrap_or(&nothing);
    for sentence in sentences(volume, status) {
        let _ = writeln!(text, "  {sentence}");
    }
    let mut wrong = problem::wrong(volume).peekable();
    text.push_str(if wrong.peek().is_some() {
        "\nWrong\n"
    } else {
        "\nNone of its conditions reports a problem.\n"
    });
    for condition in wrong {
        write_condition(&mut text, &condition.type_, condition);
        let _ = writeln!(text, "    {}", condition.message);
    }
    text.push_str("\nIt depends on\n");
    for (kind, name, conditions) in dependencies(volume, status, seen) {
        let title = format!("{kind} {name}");
        match conditions.and_then(|conditions| find_condition(conditions, READY)) {
            Some(condition) => {
                write_condition(&mut text, &format!("{title}: Ready"), condition);
                if condition.status != "True" {
                    let _ = writeln!(text, "    {}", condition.message);
                }
            }
            None => {
                let _ = writeln!(text, "  {title}: does not exist, or has not reported yet");
            }
        }
    }
    if !events.is_empty() {
        text.push_str("\nEvents\n");
    }
    for event in events {
        let time = time_of(event).map_or_else(|| "at an unknown time".to_owned(), |time| time.to_string());
        let reason = event.reason.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {time}  {reason}: {}", event.message.as_deref().unwrap_or_default());
    }
    text
}

fn write_condition(text: &mut String, title: &str, condition: &Condition) {
    let Condition { status, reason, last_transition_time, .. } = condition;
    let _ = writeln!(text, "  {title} is {status} since {} ({reason})", last_transition_time.0);
}

/// Describes `volume` as its `status` reports it.
fn sentences(volume: &Volume, status: &VolumeStatus) -> Vec<String> {
    let or = |value: &Option<String>, other: &str| value.clone().unwrap_or_else(|| other.to_owned());
    let wanted = volume.spec.desired_node().map_or_else(
        || "spec.nodeName names no node".to_owned(),
        |node| format!("spec.nodeName names node {node}"),
    );
    let assigned = status.assigned_node.as_deref().filter(|node| !node.is_empty());
    let granted = assigned
        .map_or_else(|| "no node has the grant".to_owned(), |node| format!("node {node} has the grant"));
    let mut lines = vec![match status.phase {
        None | Some(VolumePhase::Pending) if volume.spec.is_memory() => {
            "Pending: the operator has not accepted it yet.".to_owned()
        }
        None | Some(VolumePhase::Pending) => "Pending: the object store does not have it yet.".to_owned(),
        Some(phase) => format!("{phase:?}: {wanted}, and {granted}."),
    }];
    let node = status.node.as_deref().filter(|node| !node.is_empty());
    if let Some(node) = node {
        let epoch = status.epoch.map_or_else(|| "unknown".to_owned(), |epoch| epoch.to_string());
        lines.push(format!(
            "Node {node} serves it as {} with {}, epoch {epoch}.",
            or(&status.device_path, "no device yet"),
            or(&status.transport, "no transport yet"),
        ));
        lines.push(only_on_node(volume, status));
    }
    if let Some(through) = &status.durable_through {
        lines.push(format!("All data written before {} is in the object store.", through.0));
    }
    let size = volume.spec.size.as_deref().unwrap_or("as in the object store");
    let id = or(&status.volume_id, "not given yet");
    lines.push(format!("Size {size}, id {id}; {}.", fate(volume)));
    if let Some(ForcedDetach { node, time, .. }) = &status.forced_detach {
        lines.push(format!("It was taken from node {node} at {}.", time.0));
    }
    if let Some(since) = &volume.metadata.deletion_timestamp {
        lines.push(format!("Its deletion was requested at {}.", since.0));
    }
    lines
}

/// Describes the data that only the node of `volume` has.
fn only_on_node(volume: &Volume, status: &VolumeStatus) -> String {
    if volume.spec.is_memory() {
        return "Its content is only in the memory of that node.".to_owned();
    }
    let dirty = ByteSize(status.dirty_bytes.unwrap_or(0));
    let oldest = TimeSpan(std::time::Duration::from_secs(status.oldest_dirty_seconds.unwrap_or(0)));
    let limit = status.max_dirty_age.as_ref().unwrap_or(&volume.spec.max_dirty_age);
    format!(
        "When it last reported, {dirty}B were not uploaded, the oldest for {oldest}; maxDirtyAge is {limit}."
    )
}

/// Returns the time at which the data of `volume` ends.
fn fate(volume: &Volume) -> &'static str {
    match volume.spec.deletion_policy {
        _ if volume.spec.is_memory() => "its content ends with each detach, and with the node",
        DeletionPolicy::Delete => "its data is deleted with the Volume, after the time in the trash",
        DeletionPolicy::Retain => "its data stays when the Volume is deleted",
        DeletionPolicy::Unknown => "only a later release of kubectl-holdfast knows its deletion policy",
    }
}

type Dependency<'a> = (&'static str, String, Option<&'a [Condition]>);

/// Returns the nodes and the object store that `volume` depends on, with their conditions.
fn dependencies<'a>(volume: &Volume, status: &VolumeStatus, seen: &'a ClusterObjects) -> Vec<Dependency<'a>> {
    let named = [volume.spec.desired_node(), status.assigned_node.as_deref(), status.node.as_deref()];
    let mut nodes: Vec<&str> = named.into_iter().flatten().filter(|node| !node.is_empty()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    let stores = volume.spec.object_store.iter().map(|name| {
        let store = seen.stores.iter().find(|store| store.name_any() == *name);
        let status = store.and_then(|store| store.status.as_ref());
        ("ObjectStore", name.clone(), status.map(|status| &*status.conditions))
    });
    let nodes = nodes.into_iter().map(|name| {
        let node = seen.nodes.iter().find(|node| node.name_any() == name);
        let status = node.and_then(|node| node.status.as_ref());
        ("StorageNode", name.to_owned(), status.map(|status| &*status.conditions))
    });
    stores.chain(nodes).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
               "lastTransitionTime": "2026-11-26T00:00:00Z"})
    }

    /// A volume served by a silent node, one without a requested node, and a node without a keeper.
    pub(crate) fn seen() -> ClusterObjects {
        let object = |kind: &str, name: &str, spec: Value, status: Value| {
            json!({"apiVersion": "storage.holdfast.dev/v1alpha1", "kind": kind, "spec": spec,
                   "status": status, "metadata": {"name": name}})
        };
        let mut served = object(
            "Volume",
            "pvc-1",
            json!({"size": "1Gi", "objectStore": "main", "nodeName": "b"}),
            json!({"phase": "Attached", "assignedNode": "b", "node": "b", "epoch": 4,
                   "devicePath": "/dev/ublkb3", "transport": "ublk-zero-copy", "dirtyBytes": 64 << 20,
                   "oldestDirtySeconds": 90, "volumeId": "id-1",
                   "conditions": [condition("Provisioned", "True", "Created", ""),
                                  condition("UnuploadedDataLost", "False", "None", ""),
                                  condition("Writable", "False", "CacheFull", "all of it is dirty")]}),
        );
        served["metadata"]["annotations"] = json!({"holdfast.dev/persistentvolumeclaim": "shop/data"});
        let idle = object(
            "Volume",
            "idle",
            json!({"size": "1Gi", "objectStore": "main"}),
            json!({"phase": "Ready", "conditions": [condition("Attached", "False", "Detached", "")]}),
        );
        let silent = condition("Ready", "Unknown", "Silent", "its daemon is silent");
        let node = |name, conditions: Value| {
            object("StorageNode", name, json!({}), json!({"conditions": conditions}))
        };
        let unkept = condition("DevicesKept", "False", "NotKept", "no keeper has them");
        let old = condition("KernelTeardownFixed", "False", "OldKernel", "an old kernel");
        let well = json!([condition("Ready", "True", "Ready", ""), unkept, old]);
        let nodes = [node("a", well), node("b", json!([silent]))];
        ClusterObjects {
            volumes: [served, idle].map(|it| serde_json::from_value(it).unwrap()).into(),
            nodes: nodes.map(|it| serde_json::from_value(it).unwrap()).into(),
            stores: Vec::new(),
        }
    }

    #[test]
    fn the_state_of_a_volume_is_said_in_words() {
        let seen = seen();
        let volume = seen.find("data", Some("shop")).unwrap();
        let event: Event = serde_json::from_value(json!({
            "metadata": {}, "involvedObject": {}, "eventTime": "2026-11-26T00:00:05.000000Z",
            "reason": "UploadsLate", "message": "uploads are late"}))
        .unwrap();
        let text = why(volume, &seen, &[event]);
        for part in [
            "Volume pvc-1 (claim shop/data)\n  Attached: spec.nodeName names node b, and node b has the grant.\n",
            "Node b serves it as /dev/ublkb3 with ublk-zero-copy, epoch 4.",
            "When it last reported, 64MiB were not uploaded, the oldest for 1m30s; maxDirtyAge is 30s.",
            "Wrong\n  Writable is False since 2026-11-26T00:00:00Z (CacheFull)\n    all of it is dirty\n",
            "  ObjectStore main: does not exist, or has not reported yet\n",
            "  StorageNode b: Ready is Unknown since 2026-11-26T00:00:00Z (Silent)\n    its daemon is silent\n",
            "  2026-11-26T00:00:05Z  UploadsLate: uploads are late\n",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    /// Regression, found in review: a memory volume was described with uploads and a trash.
    #[test]
    fn a_memory_volume_is_not_described_with_a_bucket() {
        let mut seen = seen();
        let spec = json!({"size": "1Gi", "backend": "memory", "nodeName": "b"});
        seen.volumes[0].spec = serde_json::from_value(spec).unwrap();
        let text = why(&seen.volumes[0], &seen, &[]);
        for part in
            ["only in the memory of that node.", "; its content ends with each detach, and with the node."]
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        seen.volumes[0].status = None;
        let text = text + &why(&seen.volumes[0], &seen, &[]);
        for part in ["uploaded", "maxDirtyAge", "trash", "object store", "ObjectStore"] {
            assert!(!text.contains(part), "{part:?} is in\n{text}");
        }
    }

    /// Regression, found in review: the message about lost data, which says how to acknowledge the loss, was
    /// omitted, because the condition is `True`.
    #[test]
    fn lost_data_is_shown_with_its_message() {
        let mut seen = seen();
        let lost =
            condition("UnuploadedDataLost", "True", "ForcedDetach", "node a did not upload 8192 bytes");
        seen.volumes[0].status.as_mut().unwrap().conditions = vec![serde_json::from_value(lost).unwrap()];
        let text = why(&seen.volumes[0], &seen, &[]);
        let wrong = "Wrong\n  UnuploadedDataLost is True since 2026-11-26T00:00:00Z (ForcedDetach)\n    \
                     node a did not upload 8192 bytes\n";
        assert!(text.contains(wrong), "{wrong:?} is not in\n{text}");
    }

    #[test]
    fn a_name_that_is_not_found_is_refused_with_what_helps() {
        let seen = seen();
        let refused = |name, namespace| seen.find(name, namespace).unwrap_err().to_string();
        assert_eq!(
            refused("data", None),
            "no Volume is called data: for a claim, add its namespace with --namespace"
        );
        assert!(refused("data", Some("other")).contains("kubectl describe pvc data --namespace other"));
    }
}
