//! `kubectl holdfast status`.

use std::collections::BTreeMap;
use std::fmt::Write;

use holdfast_crds::{ByteSize, Condition, READY, is_true};

use crate::cluster::Seen;
use crate::problem;

/// The text of the command.
pub(crate) fn status(seen: &Seen) -> String {
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
    let problems = problem::all(seen);
    if problems.is_empty() {
        text.push_str("Nothing is wrong.\n");
    }
    for problem::Problem { of, condition } in problems {
        let Condition { type_, status, reason, message, last_transition_time, .. } = condition;
        let _ = writeln!(
            text,
            "\n{of}: {type_} is {status} since {} ({reason})\n  {message}",
            last_transition_time.0
        );
    }
    text
}

fn ready(conditions: Option<&[Condition]>) -> String {
    let is_ready = is_true(conditions.unwrap_or_default(), READY);
    (if is_ready { "Ready" } else { "not Ready" }).to_owned()
}

/// The numbers of equal words.
fn counted(words: impl Iterator<Item = String>) -> String {
    let mut counts = BTreeMap::<String, usize>::new();
    words.for_each(|word| *counts.entry(word).or_default() += 1);
    let parts: Vec<String> = counts.iter().map(|(word, count)| format!("{count} {word}")).collect();
    if parts.is_empty() { "none".to_owned() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn of_a_new_cluster_nothing_is_wrong() {
        assert!(status(&Seen::default()).ends_with("Nothing is wrong.\n"));
    }
}
