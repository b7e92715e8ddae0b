//! Reasons for a volume's state, as text of its conditions.

use holdfast_crds::{Condition, PROVISIONED, Volume, VolumePhase, find_condition, is_true};
use kube::ResourceExt;
use tonic::Status;

/// Returns the message and reason of the volume's condition of that type, unless it is `True`.
pub(super) fn unmet(volume: &Volume, type_: &str) -> Option<String> {
    conditions(volume).filter(|found| found.status != "True").find(|found| found.type_ == type_).map(text)
}

/// Describes the first of these conditions that exists and is not `True`; returns `otherwise` if there is
/// none.
pub(super) fn first_unmet(volume: &Volume, types: &[&str], otherwise: &str) -> String {
    types.iter().find_map(|type_| unmet(volume, type_)).unwrap_or_else(|| otherwise.to_owned())
}

/// Describes the volume's condition of that type, regardless of its status.
pub(super) fn condition_text(volume: &Volume, type_: &str) -> Option<String> {
    find_condition(&volume.status.as_ref()?.conditions, type_).map(text)
}

fn conditions(volume: &Volume) -> impl Iterator<Item = &Condition> {
    volume.status.iter().flat_map(|status| &status.conditions)
}

fn text(condition: &Condition) -> String {
    format!("{} ({}={}, {})", condition.message, condition.type_, condition.status, condition.reason)
}
/// Returns the error for a volume that the operator will not provision: `FAILED_PRECONDITION`.
pub(super) fn refused(volume: &Volume) -> Option<Status> {
    let status = volume.status.as_ref()?;
    let is_refused = status.phase == Some(VolumePhase::Failed) && !is_true(&status.conditions, PROVISIONED);
    is_refused.then(|| {
        let why = first_unmet(volume, &[PROVISIONED], "the operator rejected it");
        Status::failed_precondition(format!("Volume {} failed: {why}", volume.name_any()))
    })
}
