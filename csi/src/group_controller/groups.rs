//! VolumeGroupSnapshot objects in CSI's format. The id of a group is the name of its object.

use std::collections::BTreeSet;
use std::time::SystemTime;

use futures::future::try_join_all;
use holdfast_crds::{READY, VolumeGroupSnapshot, VolumeSnapshot, find_condition, is_true};
use holdfast_proto::csi::v1::{self, Snapshot};
use kube::ResourceExt;
use tonic::Status;

use crate::controller::group_members::members;
use crate::controller::objects::{ApiFailure, Objects};
use crate::controller::snapshots;

/// Returns the response for a taken group; `None` for any other. It is ready to use while the group and all
/// of its snapshots are `Ready`.
///
/// # Errors
/// Those of the requests, one for each snapshot.
pub(super) async fn described(
    snapshots: &Objects<VolumeSnapshot>,
    group: &VolumeGroupSnapshot,
) -> Result<Option<v1::VolumeGroupSnapshot>, ApiFailure> {
    let Some(taken) = group.status.as_ref().and_then(|status| status.taken_time.as_ref()) else {
        return Ok(None);
    };
    let names = members(group).iter().map(|member| member.snapshot.as_str());
    let found = try_join_all(names.map(|name| snapshots.get(name))).await?;
    let found: Vec<Snapshot> =
        found.iter().flatten().filter(|found| is_of(found, group)).filter_map(snapshots::described).collect();
    Ok(Some(v1::VolumeGroupSnapshot {
        group_snapshot_id: group.name_any(),
        creation_time: Some(SystemTime::from(taken.0).into()),
        ready_to_use: is_ready(group) && found.len() == group.spec.volumes.len(),
        snapshots: found,
    }))
}

/// Returns true if all snapshots of the group were taken at one point, and their contents can be read.
pub(super) fn is_ready(group: &VolumeGroupSnapshot) -> bool {
    group.status.as_ref().is_some_and(|status| is_true(&status.conditions, READY))
}

/// Returns true if the snapshot names this group as its own.
pub(super) fn is_of(snapshot: &VolumeSnapshot, group: &VolumeGroupSnapshot) -> bool {
    snapshot.spec.group.as_deref() == Some(group.name_any().as_str())
}

/// Describes the condition of a group.
pub(super) fn condition(group: &VolumeGroupSnapshot) -> String {
    let said = group.status.as_ref().and_then(|status| find_condition(&status.conditions, READY));
    said.map_or_else(
        || "the operator has not reported on it yet".to_owned(),
        |said| format!("{} ({}={}, {})", said.message, said.type_, said.status, said.reason),
    )
}

/// Checks the id of a group in a request.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing.
pub(super) fn group_id(id: &str) -> Result<&str, Status> {
    if id.is_empty() {
        Err(Status::invalid_argument("group_snapshot_id: is empty; name a group snapshot"))
    } else {
        Ok(id)
    }
}

/// Checks that a request names the snapshots of a group. A group that was not taken has none to compare with.
///
/// # Errors
/// `INVALID_ARGUMENT`: it names others.
pub(super) fn check_members(group: &VolumeGroupSnapshot, snapshot_ids: &[String]) -> Result<(), Status> {
    let of_group: BTreeSet<&str> = members(group).iter().map(|member| member.snapshot.as_str()).collect();
    let named: BTreeSet<&str> = snapshot_ids.iter().map(String::as_str).collect();
    if of_group.is_empty() || of_group == named {
        return Ok(());
    }
    let of_group: Vec<&str> = of_group.into_iter().collect();
    Err(Status::invalid_argument(format!(
        "snapshot_ids: are not those of VolumeGroupSnapshot {}; name {}",
        group.name_any(),
        of_group.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::tests::group;
    use super::*;

    #[test]
    fn other_snapshots_than_those_of_a_group_are_refused() {
        let ids = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let taken = group("Taken", &[("data", "nightly-1-0"), ("log", "nightly-1-1")]);
        check_members(&taken, &ids(&["nightly-1-1", "nightly-1-0"])).expect("in any order");
        for other in [&[][..], &["nightly-1-0"], &["nightly-1-0", "nightly-1-1", "more"]] {
            let refused = check_members(&taken, &ids(other)).expect_err("others");
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().ends_with("name nightly-1-0, nightly-1-1"), "{}", refused.message());
        }
        check_members(&group("Taking", &[]), &ids(&["any"])).expect("it has none yet");
    }
}
