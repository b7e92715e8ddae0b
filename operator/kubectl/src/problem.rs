//! Problems: conditions with an unhealthy status.

use holdfast_crds::{Condition, DEVICES_KEPT, READY, Volume};
use kube::ResourceExt;

use crate::cluster::{Seen, claim_of};

/// A condition with an unhealthy status.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    /// Kind and name of the object, and the claim of a Volume.
    pub(crate) of: String,
    pub(crate) condition: &'a Condition,
}

/// Returns all problems; object stores and nodes come first, because volumes depend on them.
pub(crate) fn all(seen: &Seen) -> Vec<Problem<'_>> {
    let mut problems = Vec::new();
    for store in &seen.stores {
        let conditions = store.status.iter().flat_map(|status| &status.conditions);
        add(
            &mut problems,
            &format!("ObjectStore {}", store.name_any()),
            conditions.filter(|it| is_false(it, READY)),
        );
    }
    for node in &seen.nodes {
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        let wrong = conditions.filter(|it| is_false(it, READY) || is_false(it, DEVICES_KEPT));
        add(&mut problems, &format!("StorageNode {}", node.name_any()), wrong);
    }
    for volume in &seen.volumes {
        add(&mut problems, &title(volume), wrong(volume));
    }
    problems
}

fn add<'a>(problems: &mut Vec<Problem<'a>>, of: &str, conditions: impl Iterator<Item = &'a Condition>) {
    problems.extend(conditions.map(|condition| Problem { of: of.to_owned(), condition }));
}

fn is_false(condition: &Condition, type_: &str) -> bool {
    condition.type_ == type_ && condition.status != "True"
}

/// Returns the unhealthy conditions of `volume`.
pub(crate) fn wrong(volume: &Volume) -> impl Iterator<Item = &Condition> {
    let is_wanted = volume.spec.desired_node().is_some() || volume.metadata.deletion_timestamp.is_some();
    volume.status.iter().flat_map(|status| &status.conditions).filter(move |condition| {
        match condition.type_.as_str() {
            // The other conditions give the reason.
            READY => false,
            "UnuploadedDataLost" => condition.status != "False",
            // A volume without a requested node has neither.
            "Assigned" | "Attached" => condition.status != "True" && is_wanted,
            _ => condition.status != "True",
        }
    })
}

/// Returns the name of `volume` and its claim for messages.
pub(crate) fn title(volume: &Volume) -> String {
    let claim = claim_of(volume).map(|claim| format!(" (claim {claim})")).unwrap_or_default();
    format!("Volume {}{claim}", volume.name_any())
}
