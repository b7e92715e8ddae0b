//! `kubectl holdfast status`.

use std::collections::BTreeMap;
use std::fmt::Write;

use holdfast_crds::{ByteSize, Condition, READY, is_true};

use crate::cluster::ClusterObjects;
use crate::problem::{self, Problem, StatusFault};

/// Returns the output of the command.
pub(crate) fn status(seen: &ClusterObjects) -> String {
    let phases = seen.volumes.iter().map(|volume| {
        let phase = volume.status.as_ref().and_then(|status| status.phase);
        phase.map_or_else(|| "without a phase".to_owned(), |phase| format!("{phase:?}"))
    });
    let dirty = seen.volumes.iter().filter_map(|volume| volume.status.as_ref()?.dirty_bytes).sum();
    let nodes = seen.nodes.iter().map(|node| ready(node.status.as_ref().map(|status| &*status.conditions)));
    let stores =
        seen.stores.iter().map(|store| ready(store.status.as_ref().map(|status| &*status.conditions)));
    let mut text = String::new();
    for (kind, count) in
        [("Volumes", counted(phases)), ("StorageNodes", counted(nodes)), ("ObjectStores", counted(stores))]
    {
        let _ = writeln!(text, "{kind:13} {count}");
    }
    let _ = writeln!(text, "Not uploaded  {}B, as last reported", ByteSize(dirty));
    text.push_str(&memory(seen));
    let problems = problem::all(seen);
    if problems.is_empty() {
        text.push_str("Nothing is wrong.\n");
    }
    for Problem { of, fault } in problems {
        match fault {
            StatusFault::Condition(condition) => {
                let Condition { type_, status, reason, message, last_transition_time, .. } = condition;
                let _ = writeln!(
                    text,
                    "\n{of}: {type_} is {status} since {} ({reason})\n  {message}",
                    last_transition_time.0
                );
            }
            StatusFault::Unreported(predicate) => {
                let _ = writeln!(text, "\n{of} {predicate}");
            }
        }
    }
    text
}

/// Describes the nodes' memory for memory volumes and disk space for spilled pages; empty if no node serves
/// memory volumes.
fn memory(seen: &ClusterObjects) -> String {
    let of_nodes = || seen.nodes.iter().filter_map(|node| node.status.as_ref()?.memory.as_ref());
    let memory = of_nodes().map(|memory| [memory.used_bytes, memory.promised_bytes, memory.limit_bytes]);
    let spill = of_nodes().filter_map(|memory| memory.spill.as_ref());
    let spill = spill.map(|spill| [spill.used_bytes, spill.promised_bytes, spill.limit_bytes]);
    let mut text = String::new();
    for (what, figures) in [("Memory", sum(memory)), ("Spill", sum(spill))] {
        if let Some([used, promised, limit]) =
            figures.map(|bytes| bytes.map(|bytes| ByteSize(bytes).rounded()))
        {
            let _ =
                writeln!(text, "{what:13} {used}B used, {promised}B of {limit}B promised to memory volumes");
        }
    }
    text
}

/// Sums up the figures of all nodes; `None` without a node.
fn sum(figures: impl Iterator<Item = [u64; 3]>) -> Option<[u64; 3]> {
    figures.reduce(|sum, more| std::array::from_fn(|at| sum[at].saturating_add(more[at])))
}

fn ready(conditions: Option<&[Condition]>) -> String {
    let is_ready = is_true(conditions.unwrap_or_default(), READY);
    (if is_ready { "Ready" } else { "not Ready" }).to_owned()
}

/// Counts equal words.
fn counted(words: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    let parts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{CONTENT_LOST, MemoryUse, ObjectStore, SpillUse};

    use super::*;
    use crate::why::tests::seen;

    #[test]
    fn a_problem_is_said_with_its_object_and_since_when() {
        let text = status(&seen());
        for part in [
            "Volumes       1 Attached, 1 Ready\n",
            "StorageNodes  1 Ready, 1 not Ready\n",
            "Not uploaded  64MiB",
            "StorageNode b: Ready is Unknown since 2026-11-26T00:00:00Z (Silent)\n  its daemon is silent",
            "StorageNode a: DevicesKept is False since 2026-11-26T00:00:00Z (NotKept)\n  no keeper has them",
            "Volume pvc-1 (claim shop/data): Writable is False since 2026-11-26T00:00:00Z (CacheFull)",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("idle"), "a volume that no node is to serve is no problem: {text}");
        assert!(!text.contains("KernelTeardownFixed"), "a property of the kernel is no problem: {text}");
    }

    #[test]
    fn memory_and_disk_of_memory_volumes_are_summed() {
        let mut seen = seen();
        assert!(!status(&seen).contains("Memory"), "no node makes any");
        let mib = |mib: u64| mib << 20;
        let spill = SpillUse { limit_bytes: mib(2048), promised_bytes: mib(512), used_bytes: mib(3) };
        for (node, spill) in seen.nodes.iter_mut().zip([Some(spill), None]) {
            let (limit_bytes, promised_bytes, used_bytes) = (mib(1024), mib(256), mib(128));
            let memory = MemoryUse { limit_bytes, promised_bytes, used_bytes, spill };
            node.status.as_mut().unwrap().memory = Some(memory);
        }
        let text = status(&seen);
        for line in [
            "\nMemory        256MiB used, 512MiB of 2GiB promised to memory volumes\n",
            "\nSpill         3MiB used, 512MiB of 2GiB promised to memory volumes\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in\n{text}");
        }
    }

    /// Regression, found in review: nothing was wrong after a host restart had emptied a memory volume.
    #[test]
    fn content_lost_without_a_detach_is_a_problem() {
        let mut seen = seen();
        for (reason, is_problem) in [("NodeRestarted", true), ("NodeLost", true), ("Detached", false)] {
            let condition = &mut seen.volumes[1].status.as_mut().unwrap().conditions[0];
            condition.type_ = CONTENT_LOST.to_owned();
            condition.status = "True".to_owned();
            condition.reason = reason.to_owned();
            let text = status(&seen);
            assert_eq!(text.contains("Volume idle: ContentLost is True since "), is_problem, "{text}");
        }
    }

    /// Regression, found in review: a key could be revoked while its replacement was not in use.
    #[test]
    fn faults_of_true_conditions_are_problems() {
        let mut seen = seen();
        for (type_, reason, is_problem) in [
            ("StoreReachable", "ChangeRefused", true),
            ("StoreReachable", "DeletesRefused", true),
            ("StoreReachable", "Answering", false),
            ("Attached", "NotConfigured", true),
            ("Attached", "NodeFull", true),
            ("Attached", "Refused", true),
            ("Attached", "GrowthWaits", true),
            ("Attached", "Attached", false),
        ] {
            let condition = &mut seen.volumes[1].status.as_mut().unwrap().conditions[0];
            condition.type_ = type_.to_owned();
            condition.status = "True".to_owned();
            condition.reason = reason.to_owned();
            let text = status(&seen);
            let line = format!("Volume idle: {type_} is True since ");
            assert_eq!(text.contains(&line), is_problem, "{reason}: {text}");
        }
    }

    /// Regression, found in review: nothing was wrong in a cluster whose operator had never run.
    #[test]
    fn objects_without_a_report_are_problems() {
        let store = serde_json::from_value(serde_json::json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1", "kind": "ObjectStore", "metadata": {"name": "main"},
            "spec": {"bucket": "volumes", "credentials": {"environment": {}}}}));
        let store: ObjectStore = store.unwrap();
        let mut seen = ClusterObjects { stores: vec![store], ..seen() };
        seen.volumes[1].status = None;
        seen.nodes[0].status.as_mut().unwrap().conditions.clear();
        let text = status(&seen);
        for part in [
            "\nObjectStore main has no condition Ready. The operator has not probed it",
            "\nStorageNode a has no condition Ready. Its node daemon has not reported",
            "\nVolume idle has no phase. The operator has not processed it",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains("pvc-1 (claim shop/data) has no phase"), "{text}");
    }

    #[test]
    fn of_a_new_cluster_nothing_is_wrong() {
        assert!(status(&ClusterObjects::default()).ends_with("Nothing is wrong.\n"));
    }
}
