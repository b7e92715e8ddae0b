//! Filter for VolumeSnapshots of groups: only those of a complete group are listed.
//!
//! A group is taken in attempts. The snapshots of a failed attempt become ready individually, and are
//! deleted: only the snapshots named by the group were taken at one point.

use std::collections::{BTreeSet, HashMap};

use holdfast_crds::{GroupMember, VolumeGroupSnapshot, VolumeSnapshot};
use holdfast_proto::csi::v1::Snapshot;
use kube::ResourceExt;
use tonic::Status;

use super::objects::Objects;
use super::snapshots::described;

/// Converts the taken snapshots; drops those of incomplete groups. Groups cost one additional request in
/// total.
///
/// # Errors
/// Those of the request.
pub(super) async fn to_csi_responses(
    groups: &Objects<VolumeGroupSnapshot>,
    found: Vec<VolumeSnapshot>,
) -> Result<Vec<Snapshot>, Status> {
    let named: BTreeSet<&str> = found.iter().filter_map(|found| found.spec.group.as_deref()).collect();
    let groups = match named.first() {
        None => Vec::new(),
        Some(only) if named.len() == 1 => groups.get(only).await?.into_iter().collect(),
        Some(_) => groups.list("").await?,
    };
    let groups = groups.into_iter().map(|group| (group.name_any(), group)).collect();
    Ok(found.iter().filter(|found| is_taken_with_its_group(found, &groups)).filter_map(described).collect())
}

/// Returns the snapshots of a group, once they are taken at one point.
pub(crate) fn members(group: &VolumeGroupSnapshot) -> &[GroupMember] {
    group.status.as_ref().map_or(&[], |status| &status.snapshots)
}

fn is_taken_with_its_group(snapshot: &VolumeSnapshot, groups: &HashMap<String, VolumeGroupSnapshot>) -> bool {
    let Some(group) = &snapshot.spec.group else { return true };
    let members = groups.get(group).map(members).unwrap_or_default();
    members
        .iter()
        .any(|member| member.snapshot == snapshot.name_any() && member.volume == snapshot.spec.volume)
}

#[cfg(test)]
mod tests {
    use super::super::snapshots::tests::snapshot;
    use super::*;
    use crate::group_controller::tests::group;

    /// Each becomes ready as soon as its node has taken it.
    #[test]
    fn a_snapshot_of_an_unfinished_group_is_not_told() {
        let mut member = snapshot(true, "Taken");
        assert!(is_taken_with_its_group(&member, &HashMap::new()), "it is of no group");
        member.spec.group = Some("nightly".to_owned());
        let of = |group: VolumeGroupSnapshot| HashMap::from([(group.name_any(), group)]);
        assert!(!is_taken_with_its_group(&member, &HashMap::new()), "the group is gone");
        let unfinished = group("Taking", &[]);
        assert!(!is_taken_with_its_group(&member, &of(unfinished)), "the group is not taken");
        let later = group("Taken", &[("data", "nightly-2-0")]);
        assert!(!is_taken_with_its_group(&member, &of(later)), "it is of an attempt that failed");
        let taken = group("Taken", &[("log", "other"), ("data", "backup")]);
        assert!(is_taken_with_its_group(&member, &of(taken)), "it is one of the group");
        assert_eq!(described(&member).map(|told| told.group_snapshot_id).as_deref(), Some("nightly"));
    }
}
