//! `CreateVolumeGroupSnapshot`: creates a VolumeGroupSnapshot object, and waits for its snapshots.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::future::try_join_all;
use holdfast_crds::{
    DeletionPolicy, READY, SNAPSHOT_DELETED, Volume, VolumeGroupSnapshot, VolumeGroupSnapshotSpec,
    VolumeSnapshot, find_condition, is_final_snapshot_reason,
};
use holdfast_proto::csi::v1::{CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::groups::{condition, described, is_ready};
use crate::controller::group_members::members;
use crate::controller::object_name::{CSI_NAME, ObjectName, is_object_name};
use crate::controller::objects::{ApiFailure, Objects, TimedOut};
use crate::deadline;

/// Longest name of a VolumeGroupSnapshot: the names of its snapshots begin with it.
const MAX_NAME_BYTES: usize = 52;
/// Maximum number of volumes in a group.
const MAX_VOLUMES: usize = 32;
/// Keys added by the snapshotter (`--extra-create-metadata`): the user's VolumeGroupSnapshot, and its
/// content.
const METADATA: [&str; 3] = [
    "csi.storage.k8s.io/volumegroupsnapshot/namespace",
    "csi.storage.k8s.io/volumegroupsnapshot/name",
    "csi.storage.k8s.io/volumegroupsnapshotcontent/name",
];
/// A parameter that Kubernetes' driver tests write; only the field of that name counts.
const DELETION_POLICY: &str = "deletionPolicy";
/// Annotation: namespace and name of the user's VolumeGroupSnapshot.
const CLAIM_GROUP: &str = "holdfast.dev/csi-volumegroupsnapshot";

/// A requested group.
#[derive(Debug)]
struct WantedGroup {
    name: ObjectName,
    /// Names of the Volumes.
    volumes: Vec<String>,
    /// Namespace and name of the user's VolumeGroupSnapshot.
    requester: Option<String>,
}

/// Result of a wait for a group.
#[derive(Debug)]
enum GroupOutcome {
    /// All snapshots were taken at one point.
    Taken(Box<VolumeGroupSnapshot>),
    /// They never will be taken, or one of them was deleted.
    Failed(Box<VolumeGroupSnapshot>),
    /// The object was deleted.
    Deleted,
}

pub(super) async fn answer(
    volumes: &Objects<Volume>,
    snapshots: &Objects<VolumeSnapshot>,
    groups: &Objects<VolumeGroupSnapshot>,
    request: Request<CreateVolumeGroupSnapshotRequest>,
) -> Result<CreateVolumeGroupSnapshotResponse, Status> {
    let until = deadline::of(&request);
    let wanted = WantedGroup::try_from(request.into_inner())?;
    let found = match groups.get(&wanted.name.object).await? {
        Some(found) => found,
        None => {
            check_volumes(volumes, &wanted.volumes).await?;
            groups.create(&wanted.object()).await?
        }
    };
    wanted.accept(&found)?;
    let group = wait(groups, found, until).await?;
    let told = described(snapshots, &group).await?.filter(|told| told.ready_to_use);
    let told = told.ok_or_else(|| {
        let name = group.name_any();
        Status::aborted(format!("VolumeGroupSnapshot {name} changed during the request; the caller retries"))
    })?;
    Ok(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(told) })
}

/// Checks that these volumes exist.
///
/// # Errors
/// `NOT_FOUND`, naming the first that is missing.
async fn check_volumes(volumes: &Objects<Volume>, names: &[String]) -> Result<(), Status> {
    let found =
        try_join_all(names.iter().map(async |name| {
            Ok::<_, ApiFailure>(is_object_name(name) && volumes.get(name).await?.is_some())
        }));
    match names.iter().zip(found.await?).find(|(_, is_there)| !is_there) {
        Some((name, _)) => Err(Status::not_found(format!("source_volume_ids: no Volume is named `{name}`"))),
        None => Ok(()),
    }
}

/// Waits until a group is taken.
///
/// # Errors
/// `ABORTED`: it was not taken yet, or was deleted. `FAILED_PRECONDITION`: it never will be. It is then
/// deleted, unless its snapshots were taken before: the caller may know them.
async fn wait(
    groups: &Objects<VolumeGroupSnapshot>,
    found: VolumeGroupSnapshot,
    until: Instant,
) -> Result<VolumeGroupSnapshot, Status> {
    let (name, uid) = (found.name_any(), found.uid());
    match groups.wait(&name, Some(found), until, |now| progress(now, uid.as_deref())).await {
        Ok(GroupOutcome::Taken(group)) => Ok(*group),
        Ok(GroupOutcome::Deleted) => Err(Status::aborted(
            "the VolumeGroupSnapshot was deleted in the meantime; the next attempt creates it again",
        )),
        Ok(GroupOutcome::Failed(group)) => {
            let why = condition(&group);
            if members(&group).is_empty() {
                let still = |now: &VolumeGroupSnapshot| match members(now).is_empty() {
                    true => Ok(()),
                    false => Err(Status::aborted(
                        "the VolumeGroupSnapshot changed during the request; the caller retries",
                    )),
                };
                groups.delete(*group, until, still).await?;
            }
            Err(Status::failed_precondition(format!("VolumeGroupSnapshot {name} failed: {why}")))
        }
        Err(TimedOut { last }) => {
            let why = last.as_ref().map(condition).unwrap_or_default();
            Err(Status::aborted(format!("VolumeGroupSnapshot {name} is not taken yet: {why}")))
        }
    }
}

impl TryFrom<CreateVolumeGroupSnapshotRequest> for WantedGroup {
    type Error = Status;

    fn try_from(request: CreateVolumeGroupSnapshotRequest) -> Result<Self, Status> {
        let CreateVolumeGroupSnapshotRequest {
            name,
            source_volume_ids: volumes,
            // A bucket's credentials are in its ObjectStore.
            secrets: _,
            parameters,
        } = request;
        let name = ObjectName::within(&name, MAX_NAME_BYTES)?;
        let invalid = |what: String| Err(Status::invalid_argument(format!("source_volume_ids: {what}")));
        if volumes.is_empty() {
            return invalid("is empty; name the volumes of the group".to_owned());
        }
        if volumes.len() > MAX_VOLUMES {
            let count = volumes.len();
            return invalid(format!("names {count} volumes; a group has at most {MAX_VOLUMES}"));
        }
        let mut seen = BTreeSet::new();
        for volume in &volumes {
            if volume.is_empty() {
                return invalid("has an empty id; name a volume".to_owned());
            }
            if !seen.insert(volume) {
                return invalid(format!("names `{volume}` twice; name each volume once"));
            }
        }
        Ok(Self { name, volumes, requester: requester(parameters)? })
    }
}

/// Parses the user's VolumeGroupSnapshot from the parameters of a class, which has no others.
fn requester(mut parameters: HashMap<String, String>) -> Result<Option<String>, Status> {
    let [namespace, name, _content] = METADATA.map(|key| parameters.remove(key));
    parameters.remove(DELETION_POLICY);
    if let Some(key) = parameters.keys().min() {
        return Err(Status::invalid_argument(format!(
            "parameters.{key}: is not known; a VolumeGroupSnapshotClass of this driver has no parameters"
        )));
    }
    Ok(namespace.zip(name).map(|(namespace, name)| format!("{namespace}/{name}")))
}

impl WantedGroup {
    /// Builds the object to create. Its lifetime is that of the VolumeGroupSnapshotContent:
    /// `DeleteVolumeGroupSnapshot` deletes it.
    fn object(&self) -> VolumeGroupSnapshot {
        let spec = VolumeGroupSnapshotSpec {
            volumes: self.volumes.clone(),
            deletion_policy: DeletionPolicy::Delete,
        };
        let mut group = VolumeGroupSnapshot::new(&self.name.object, spec);
        let annotations: BTreeMap<String, String> =
            [(CSI_NAME, self.name.csi.clone()), (CLAIM_GROUP, self.requester.clone())]
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect();
        group.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        group
    }

    /// Checks that the existing group of this name matches the request, in any order of volumes.
    fn accept(&self, found: &VolumeGroupSnapshot) -> Result<(), Status> {
        let name = &self.name.object;
        if found.metadata.deletion_timestamp.is_some() {
            return Err(Status::aborted(format!(
                "VolumeGroupSnapshot {name} is being deleted; a later attempt creates it again"
            )));
        }
        let difference = if found.annotations().get(CSI_NAME) != self.name.csi.as_ref() {
            "another name in CSI".to_owned()
        } else if BTreeSet::from_iter(&found.spec.volumes) != BTreeSet::from_iter(&self.volumes) {
            format!("the Volumes {}", found.spec.volumes.join(", "))
        } else {
            return Ok(());
        };
        Err(Status::already_exists(format!(
            "name: VolumeGroupSnapshot {name} exists with {difference}; request another name"
        )))
    }
}

/// Returns the result of the wait, or `None` while in progress.
fn progress(now: Option<&VolumeGroupSnapshot>, uid: Option<&str>) -> Option<GroupOutcome> {
    let Some(group) = now.filter(|group| group.metadata.uid.as_deref() == uid) else {
        return Some(GroupOutcome::Deleted);
    };
    let status = group.status.as_ref()?;
    if is_ready(group) && status.taken_time.is_some() {
        return Some(GroupOutcome::Taken(Box::new(group.clone())));
    }
    let reason = &find_condition(&status.conditions, READY)?.reason;
    let is_final = is_final_snapshot_reason(reason) || reason == SNAPSHOT_DELETED;
    is_final.then(|| GroupOutcome::Failed(Box::new(group.clone())))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::tests::group;
    use super::*;

    const UID: &str = "02020202-0202-0202-0202-020202020202";

    fn wanted(name: &str, volumes: &[&str], parameters: &[(&str, &str)]) -> Result<WantedGroup, Status> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        WantedGroup::try_from(CreateVolumeGroupSnapshotRequest {
            name: name.to_owned(),
            source_volume_ids: volumes.iter().map(|&volume| volume.to_owned()).collect(),
            parameters: parameters.collect(),
            ..CreateVolumeGroupSnapshotRequest::default()
        })
    }

    #[test]
    fn the_same_request_finds_its_own_group() {
        let long = "g".repeat(53);
        for name in ["group-1", "A name of 1 group", &long] {
            let first = wanted(name, &["data", "log"], &[]).expect("a request");
            let object = first.object();
            assert!(object.name_any().len() <= MAX_NAME_BYTES);
            first.accept(&object).expect("it is the one");
            wanted(name, &["log", "data"], &[]).expect("a request").accept(&object).expect("in any order");
            let other = wanted(name, &["data"], &[]).expect("a request");
            let refused = other.accept(&object).expect_err("of other volumes");
            assert_eq!(refused.code(), Code::AlreadyExists);
            assert!(refused.message().contains("the Volumes data, log"), "{}", refused.message());
        }
        let hashed = wanted("A.b", &["data"], &[]).expect("a request");
        let foreign = wanted(&hashed.name.object, &["data"], &[]).expect("a request").object();
        assert_eq!(hashed.accept(&foreign).expect_err("another").code(), Code::AlreadyExists);
    }

    #[test]
    fn a_request_names_what_is_wrong_with_it() {
        let many: Vec<String> = (0..33).map(|number| format!("v{number}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (name, volumes, parameters, words) in [
            ("", &["data"][..], &[][..], "name: is empty"),
            ("g", &[], &[], "source_volume_ids: is empty"),
            ("g", &["data", ""], &[], "source_volume_ids: has an empty id"),
            ("g", &["data", "log", "data"], &[], "source_volume_ids: names `data` twice"),
            ("g", &many, &[], "source_volume_ids: names 33 volumes; a group has at most 32"),
            ("g", &["data"], &[("retention", "7d")], "parameters.retention: is not known"),
        ] {
            let refused = wanted(name, volumes, parameters).expect_err(words);
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with(words), "{}", refused.message());
        }
        wanted("g", &many[1..], &[(DELETION_POLICY, "Delete")]).expect("a request");
        let metadata = METADATA.map(|key| (key, "x"));
        let object = wanted("g", &["data"], &metadata).expect("a request").object();
        assert_eq!(object.annotations().get(CLAIM_GROUP).map(String::as_str), Some("x/x"));
    }

    #[test]
    fn a_group_is_waited_for_until_it_is_taken_or_never_will_be() {
        let members = [("data", "nightly-1-0"), ("log", "nightly-1-1")];
        let taken = group("Taken", &members);
        assert!(matches!(progress(Some(&taken), Some(UID)), Some(GroupOutcome::Taken(_))));
        for waits in ["Preparing", "VolumeNotFound", "Taking"] {
            assert!(progress(Some(&group(waits, &[])), Some(UID)).is_none(), "{waits}");
        }
        let never = [holdfast_crds::VOLUME_DELETED, holdfast_crds::VOLUME_REPLACED, SNAPSHOT_DELETED];
        for never in never {
            let ended = progress(Some(&group(never, &[])), Some(UID));
            assert!(matches!(ended, Some(GroupOutcome::Failed(_))), "{never}");
        }
        assert!(matches!(progress(None, Some(UID)), Some(GroupOutcome::Deleted)));
        assert!(matches!(progress(Some(&taken), Some("another")), Some(GroupOutcome::Deleted)));
    }
}
