//! Problems: the conditions that are not as they should be.

use holdfast_crds::{Condition, DEVICES_KEPT, READY, Volume};
use kube::ResourceExt;

use crate::cluster::{Seen, claim_of};

/// A condition that is not as it should be.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    /// Kind and name of the object, and the claim of a Volume.
    pub(crate) of: String,
    pub(crate) condition: &'a Condition,
}

/// All problems of what was seen: object stores and nodes first, for volumes wait for them.
pub(crate) fn all(seen: &Seen) -> Vec<Problem<'_>> {
    let mut found = Vec::new();
    for store in &seen.stores {
        let conditions = store.status.iter().flat_map(|status| &status.conditions);
        add(
            &mut found,
            &format!("ObjectStore {}", store.name_any()),
            conditions.filter(|it| is_false(it, READY)),
        );
    }
    for node in &seen.nodes {
        let conditions = node.status.iter().flat_map(|status| &status.conditions);
        let wrong = conditions.filter(|it| is_false(it, READY) || is_false(it, DEVICES_KEPT));
        add(&mut found, &format!("StorageNode {}", node.name_any()), wrong);
    }
    for volume in &seen.volumes {
        add(&mut found, &title(volume), wrong(volume));
    }
    found
}

fn add<'a>(found: &mut Vec<Problem<'a>>, of: &str, conditions: impl Iterator<Item = &'a Condition>) {
    found.extend(conditions.map(|condition| Problem { of: of.to_owned(), condition }));
}

fn is_false(condition: &Condition, type_: &str) -> bool {
    condition.type_ == type_ && condition.status != "True"
}

/// The conditions of `volume` that are not as they should be.
pub(crate) fn wrong(volume: &Volume) -> impl Iterator<Item = &Condition> {
    let is_wanted = volume.spec.desired_node().is_some() || volume.metadata.deletion_timestamp.is_some();
    volume.status.iter().flat_map(|status| &status.conditions).filter(move |condition| {
        match condition.type_.as_str() {
            // The others say why.
            READY => false,
            "UnuploadedDataLost" => condition.status != "False",
            // A volume that no node is to serve has neither.
            "Assigned" | "Attached" => condition.status != "True" && is_wanted,
            _ => condition.status != "True",
        }
    })
}

/// `volume` with its claim, as messages name it.
pub(crate) fn title(volume: &Volume) -> String {
    let claim = claim_of(volume).map(|claim| format!(" (claim {claim})")).unwrap_or_default();
    format!("Volume {}{claim}", volume.name_any())
}
