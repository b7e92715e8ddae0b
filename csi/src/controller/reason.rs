//! Reasons for which a volume is not as it should be, in the words of its conditions.

use holdfast_crds::{Condition, Volume, find_condition};

/// The volume's condition of that type, unless it holds: its message and reason.
pub(super) fn unmet(volume: &Volume, type_: &str) -> Option<String> {
    conditions(volume).filter(|found| found.status != "True").find(|found| found.type_ == type_).map(text)
}

/// The first of these conditions that the volume has and that does not hold, in words; `otherwise` if none
/// says anything.
pub(super) fn first_unmet(volume: &Volume, types: &[&str], otherwise: &str) -> String {
    types.iter().find_map(|type_| unmet(volume, type_)).unwrap_or_else(|| otherwise.to_owned())
}

/// The volume's condition of that type in words, whether or not it holds.
pub(super) fn condition_text(volume: &Volume, type_: &str) -> Option<String> {
    find_condition(&volume.status.as_ref()?.conditions, type_).map(text)
}

fn conditions(volume: &Volume) -> impl Iterator<Item = &Condition> {
    volume.status.iter().flat_map(|status| &status.conditions)
}

fn text(condition: &Condition) -> String {
    format!("{} ({}={}, {})", condition.message, condition.type_, condition.status, condition.reason)
}
