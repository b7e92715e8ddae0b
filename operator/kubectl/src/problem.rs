//! Problems: conditions with an unhealthy status, and objects without a status.

use holdfast_crds::{
    CONTENT_DROPPED, CONTENT_LOST, Condition, DEVICES_KEPT, READY, Volume, find_condition, is_true_with_fault,
};
use kube::ResourceExt;

use crate::cluster::{ClusterObjects, claim_of};

const STORE_UNREPORTED: &str =
    "has no condition Ready. The operator has not probed it: check the pods of the operator";
const NODE_UNREPORTED: &str =
    "has no condition Ready. Its node daemon has not reported: check the pod of the daemon on that node";
const VOLUME_UNREPORTED: &str =
    "has no phase. The operator has not processed it: check the pods of the operator";

/// A problem of an object.
#[derive(Debug)]
pub(crate) struct Problem<'a> {
    /// Kind and name of the object, and the claim of a Volume.
    pub(crate) of: String,
    pub(crate) fault: StatusFault<'a>,
}

/// Fault of an object, according to its status.
#[derive(Debug)]
pub(crate) enum StatusFault<'a> {
    /// A condition with an unhealthy status.
    Condition(&'a Condition),
    /// The program that reports the object's state has not done so; a predicate for messages.
    Unreported(&'static str),
}

/// Returns all problems; object stores and nodes come first, because volumes depend on them.
pub(crate) fn all(seen: &ClusterObjects) -> Vec<Problem<'_>> {
    let mut problems = Vec::new();
    for store in &seen.stores {
        let conditions = store.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let faults = without_ready(conditions, STORE_UNREPORTED)
            .into_iter()
            .chain(conditions.iter().filter(|it| is_false(it, READY)).map(StatusFault::Condition));
        add(&mut problems, &format!("ObjectStore {}", store.name_any()), faults);
    }
    for node in &seen.nodes {
        let conditions = node.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let wrong = conditions.iter().filter(|it| is_false(it, READY) || is_false(it, DEVICES_KEPT));
        let faults =
            without_ready(conditions, NODE_UNREPORTED).into_iter().chain(wrong.map(StatusFault::Condition));
        add(&mut problems, &format!("StorageNode {}", node.name_any()), faults);
    }
    for volume in &seen.volumes {
        let has_phase = volume.status.as_ref().is_some_and(|status| status.phase.is_some());
        let unreported = (!has_phase).then_some(StatusFault::Unreported(VOLUME_UNREPORTED));
        let faults = unreported.into_iter().chain(wrong(volume).map(StatusFault::Condition));
        add(&mut problems, &title(volume), faults);
    }
    problems
}

fn add<'a>(problems: &mut Vec<Problem<'a>>, of: &str, faults: impl Iterator<Item = StatusFault<'a>>) {
    problems.extend(faults.map(|fault| Problem { of: of.to_owned(), fault }));
}

/// Returns the fault of an object without the condition `Ready`.
fn without_ready(conditions: &[Condition], unreported: &'static str) -> Option<StatusFault<'static>> {
    find_condition(conditions, READY).is_none().then_some(StatusFault::Unreported(unreported))
}

fn is_false(condition: &Condition, type_: &str) -> bool {
    condition.type_ == type_ && condition.status != "True"
}

/// Returns the unhealthy conditions of `volume`, and those that are `True` with a fault.
pub(crate) fn wrong(volume: &Volume) -> impl Iterator<Item = &Condition> {
    let is_wanted = volume.spec.desired_node().is_some() || volume.metadata.deletion_timestamp.is_some();
    volume.status.iter().flat_map(|status| &status.conditions).filter(move |condition| {
        match condition.type_.as_str() {
            // The other conditions give the reason.
            READY => false,
            _ if is_true_with_fault(condition) => true,
            "UnuploadedDataLost" => condition.status != "False",
            // It stays for the life of the Volume.
            CONTENT_LOST => condition.status == "True" && condition.reason != CONTENT_DROPPED,
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
