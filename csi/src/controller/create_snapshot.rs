//! `CreateSnapshot`: creates a VolumeSnapshot object, and waits until the snapshot is taken.

use std::collections::{BTreeMap, HashMap};

use holdfast_crds::{
    DeletionPolicy, READY, USER_SNAPSHOT, VolumeSnapshot, VolumeSnapshotSpec, find_condition,
    is_final_snapshot_reason,
};
use holdfast_proto::csi::v1::{CreateSnapshotRequest, CreateSnapshotResponse, Snapshot};
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Code, Request, Status};

use super::memory;
use super::object_name::{CSI_NAME, ObjectName, is_object_name};
use super::objects::{Objects, TimedOut};
use super::snapshots::{condition, described};
use super::volumes::ClusterVolumes;
use crate::{deadline, topology};

/// Keys added by the snapshotter (`--extra-create-metadata`): the user's VolumeSnapshot, and its content.
const METADATA: [&str; 3] = [
    "csi.storage.k8s.io/volumesnapshot/namespace",
    "csi.storage.k8s.io/volumesnapshot/name",
    "csi.storage.k8s.io/volumesnapshotcontent/name",
];

/// A requested snapshot.
#[derive(Debug)]
struct WantedSnapshot {
    name: ObjectName,
    /// Name of the Volume.
    volume: String,
    /// Namespace and name of the user's VolumeSnapshot.
    requester: Option<String>,
}

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    snapshots: &Objects<VolumeSnapshot>,
    request: Request<CreateSnapshotRequest>,
) -> Result<CreateSnapshotResponse, Status> {
    let until = deadline::of(&request);
    let wanted = WantedSnapshot::try_from(request.into_inner())?;
    let existing = match snapshots.get(&wanted.name.object).await? {
        Some(existing) => existing,
        None => {
            let volume = &wanted.volume;
            let source = if is_object_name(volume) { volumes.get(volume).await? } else { None };
            let Some(source) = source else {
                return Err(Status::not_found(format!("source_volume_id: no Volume is named `{volume}`")));
            };
            let fix = "Copy the files to a volume in an object store";
            memory::refuse(&source, "source_volume_id", "snapshots", fix)?;
            if source.metadata.deletion_timestamp.is_some() {
                return Err(Status::failed_precondition(format!(
                    "source_volume_id: Volume {volume} is being deleted, so no snapshot is taken of it"
                )));
            }
            snapshots.create(&wanted.object()).await?
        }
    };
    wanted.accept(&existing)?;
    match wait(snapshots, existing, until).await {
        Ok(snapshot) => Ok(CreateSnapshotResponse { snapshot: Some(snapshot) }),
        Err(why) => {
            if why.code() == Code::FailedPrecondition {
                wanted.delete_refused(snapshots, until).await;
            }
            Err(why)
        }
    }
}

/// Waits until a snapshot is taken.
///
/// # Errors
/// `ABORTED`: it was not taken yet, or was deleted. `FAILED_PRECONDITION`: it never will be.
pub(super) async fn wait(
    snapshots: &Objects<VolumeSnapshot>,
    found: VolumeSnapshot,
    until: Instant,
) -> Result<Snapshot, Status> {
    let (name, uid) = (found.name_any(), found.uid());
    let taken = snapshots.wait(&name, Some(found), until, |now| progress(now, uid.as_deref())).await;
    match taken {
        Ok(outcome) => outcome,
        Err(TimedOut { last }) => {
            let why = last.as_ref().map(condition).unwrap_or_default();
            Err(Status::aborted(format!("VolumeSnapshot {name} is not taken yet: {why}")))
        }
    }
}

impl TryFrom<CreateSnapshotRequest> for WantedSnapshot {
    type Error = Status;

    fn try_from(request: CreateSnapshotRequest) -> Result<Self, Status> {
        let CreateSnapshotRequest {
            source_volume_id,
            name,
            // A bucket's credentials are in its ObjectStore.
            secrets: _,
            parameters,
            accessibility_requirements,
        } = request;
        topology::check(accessibility_requirements.as_ref(), false)?;
        if source_volume_id.is_empty() {
            return Err(Status::invalid_argument("source_volume_id: is empty; name a volume"));
        }
        let name = ObjectName::of(&name)?;
        Ok(Self { name, volume: source_volume_id, requester: requester(parameters)? })
    }
}

/// Returns the user's VolumeSnapshot from the parameters of a VolumeSnapshotClass, which has no others.
fn requester(mut parameters: HashMap<String, String>) -> Result<Option<String>, Status> {
    let [namespace, name, _content] = METADATA.map(|key| parameters.remove(key));
    if let Some(key) = parameters.keys().min() {
        return Err(Status::invalid_argument(format!(
            "parameters.{key}: is not known; a VolumeSnapshotClass of this driver has no parameters"
        )));
    }
    Ok(namespace.zip(name).map(|(namespace, name)| format!("{namespace}/{name}")))
}

impl WantedSnapshot {
    /// Builds the object to create. Its lifetime is that of the VolumeSnapshotContent: `DeleteSnapshot`
    /// deletes it.
    fn object(&self) -> VolumeSnapshot {
        let spec = VolumeSnapshotSpec {
            volume: self.volume.clone(),
            group: None,
            snapshot_id: None,
            deletion_policy: DeletionPolicy::Delete,
        };
        let mut snapshot = VolumeSnapshot::new(&self.name.object, spec);
        let annotations: BTreeMap<String, String> =
            [(CSI_NAME, self.name.csi.clone()), (USER_SNAPSHOT, self.requester.clone())]
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect();
        snapshot.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        snapshot
    }

    /// Checks that the existing snapshot of this name matches the request.
    fn accept(&self, found: &VolumeSnapshot) -> Result<(), Status> {
        let name = &self.name.object;
        if found.metadata.deletion_timestamp.is_some() {
            return Err(Status::aborted(format!(
                "VolumeSnapshot {name} is being deleted; a later attempt creates it again"
            )));
        }
        let difference = if let Some(group) = &found.spec.group {
            format!("VolumeGroupSnapshot `{group}` as its group")
        } else if found.annotations().get(CSI_NAME) != self.name.csi.as_ref() {
            "another name in CSI".to_owned()
        } else if found.spec.volume != self.volume {
            format!("Volume `{}` as its source", found.spec.volume)
        } else {
            return Ok(());
        };
        Err(Status::already_exists(format!(
            "name: VolumeSnapshot {name} exists with {difference}; request another name"
        )))
    }

    /// Deletes the VolumeSnapshot if it was created for this request and will never be taken: after this
    /// response, a deletion of the user's VolumeSnapshot would leave it. A failure is ignored, because the
    /// next request finds it refused.
    async fn delete_refused(&self, snapshots: &Objects<VolumeSnapshot>, until: Instant) {
        let name = &self.name.object;
        let still = |now: &VolumeSnapshot| {
            let is_own =
                self.requester.is_some() && now.annotations().get(USER_SNAPSHOT) == self.requester.as_ref();
            match is_own && is_never_taken(now) && now.metadata.deletion_timestamp.is_none() {
                true => Ok(()),
                false => Err(Status::aborted("the VolumeSnapshot changed during the request")),
            }
        };
        if let Ok(Some(found)) = snapshots.get(name).await
            && still(&found).is_ok()
            && let Err(error) = snapshots.delete(found, until, still).await
        {
            tracing::debug!(
                snapshot = name,
                error = error.message(),
                "a refused VolumeSnapshot was not deleted"
            );
        }
    }
}

/// Returns the snapshot once it is taken, or the reason why it never will be; `None` while in progress.
fn progress(now: Option<&VolumeSnapshot>, uid: Option<&str>) -> Option<Result<Snapshot, Status>> {
    let Some(snapshot) = now.filter(|snapshot| snapshot.metadata.uid.as_deref() == uid) else {
        return Some(Err(Status::aborted(
            "the VolumeSnapshot was deleted in the meantime; the next attempt creates it again",
        )));
    };
    if let Some(taken) = described(snapshot) {
        return Some(Ok(taken));
    }
    is_never_taken(snapshot).then(|| {
        let why = condition(snapshot);
        Err(Status::failed_precondition(format!("VolumeSnapshot {} failed: {why}", snapshot.name_any())))
    })
}

/// Returns true if the operator reports a reason that does not change, such as the deletion of the Volume.
fn is_never_taken(snapshot: &VolumeSnapshot) -> bool {
    let ready = snapshot.status.as_ref().and_then(|status| find_condition(&status.conditions, READY));
    ready.is_some_and(|ready| is_final_snapshot_reason(&ready.reason))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use hyper::Method;
    use kube::Client;
    use kube::client::Body;
    use parking_lot::Mutex;

    use super::super::snapshots::tests::snapshot;
    use super::*;

    fn wanted(name: &str, volume: &str, parameters: &[(&str, &str)]) -> Result<WantedSnapshot, Status> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        WantedSnapshot::try_from(CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            parameters: parameters.collect(),
            ..CreateSnapshotRequest::default()
        })
    }

    #[test]
    fn the_same_request_finds_its_own_snapshot() {
        for name in ["snapshot-1", "A name of 1 snapshot"] {
            let first = wanted(name, "data", &[]).expect("a request");
            first.accept(&first.object()).expect("it is the one");
            let other = wanted(name, "other", &[]).expect("a request");
            let refused = other.accept(&first.object()).expect_err("of another volume");
            assert_eq!(refused.code(), Code::AlreadyExists);
            assert!(refused.message().contains("Volume `data` as its source"), "{}", refused.message());
        }
        let alone = wanted("backup", "data", &[]).expect("a request");
        let mut of_group = alone.object();
        of_group.spec.group = Some("nightly".to_owned());
        assert_eq!(alone.accept(&of_group).expect_err("of a group").code(), Code::AlreadyExists);
        let hashed = wanted("A.b", "data", &[]).expect("a request");
        let foreign = wanted(&hashed.name.object, "data", &[]).expect("a request").object();
        assert_eq!(hashed.accept(&foreign).expect_err("another").code(), Code::AlreadyExists);
    }

    #[test]
    fn a_request_names_what_is_wrong_with_it() {
        for (name, volume, parameters, words) in [
            ("", "data", &[][..], "name: is empty"),
            ("s", "", &[], "source_volume_id: is empty"),
            ("s", "data", &[("retention", "7d")], "parameters.retention: is not known"),
        ] {
            let refused = wanted(name, volume, parameters).expect_err(words);
            assert_eq!(refused.code(), Code::InvalidArgument);
            assert!(refused.message().starts_with(words), "{}", refused.message());
        }
        let metadata = METADATA.map(|key| (key, "x"));
        let snapshot = wanted("s", "data", &metadata).expect("a request").object();
        assert_eq!(snapshot.annotations().get(USER_SNAPSHOT).map(String::as_str), Some("x/x"));
    }

    /// Regression, found in review: the object stayed after the user's VolumeSnapshot was deleted, because
    /// the snapshotter knows no handle of a snapshot that was not taken.
    #[tokio::test]
    async fn a_snapshot_that_will_never_be_taken_is_deleted() {
        let of_user = |name| {
            let metadata = METADATA.map(|key| (key, name));
            wanted("backup", "data", &metadata).expect("a request")
        };
        let deletes = async |reason: &str, requester: Option<&str>, wanted: &WantedSnapshot| {
            let mut there = snapshot(false, reason);
            if let Some(requester) = requester {
                there.annotations_mut().insert(USER_SNAPSHOT.to_owned(), requester.to_owned());
            }
            let there = serde_json::to_vec(&there).expect("JSON");
            let methods = Arc::new(Mutex::new(Vec::new()));
            let seen = Arc::clone(&methods);
            let answers = tower::service_fn(move |request: hyper::Request<Body>| {
                seen.lock().push(request.method().clone());
                std::future::ready(hyper::Response::builder().status(200).body(Body::from(there.clone())))
            });
            let snapshots = Objects::new(Client::new(answers, "default"));
            wanted.delete_refused(&snapshots, Instant::now() + Duration::from_secs(20)).await;
            let methods = methods.lock();
            methods.contains(&Method::DELETE)
        };
        let deleted = holdfast_crds::VOLUME_DELETED;
        assert!(deletes(deleted, Some("shop/shop"), &of_user("shop")).await);
        assert!(!deletes("Taking", Some("shop/shop"), &of_user("shop")).await, "it may be taken yet");
        assert!(!deletes(deleted, Some("shop/other"), &of_user("shop")).await, "of another user");
        assert!(!deletes(deleted, None, &of_user("shop")).await, "created by hand");
        let unknown = wanted("backup", "data", &[]).expect("a request");
        assert!(!deletes(deleted, None, &unknown).await, "it may be created by hand");
    }

    #[test]
    fn a_snapshot_is_waited_for_until_it_is_taken_or_never_will_be() {
        let code = |snapshot: Option<&VolumeSnapshot>| {
            progress(snapshot, Some("01010101-0101-0101-0101-010101010101"))
                .map(|ended| ended.map(drop).map_err(|status| status.code()))
        };
        assert_eq!(code(Some(&snapshot(true, "Taken"))), Some(Ok(())));
        for waits in ["VolumeNotFound", "VolumeNotReady", "VolumeAttached", "Taking"] {
            assert_eq!(code(Some(&snapshot(false, waits))), None, "{waits}");
        }
        for never in [holdfast_crds::VOLUME_DELETED, holdfast_crds::VOLUME_REPLACED] {
            assert_eq!(code(Some(&snapshot(false, never))), Some(Err(Code::FailedPrecondition)), "{never}");
        }
        assert_eq!(code(None), Some(Err(Code::Aborted)));
        let mut other = snapshot(true, "Taken");
        other.metadata.uid = Some("uid-2".to_owned());
        assert_eq!(code(Some(&other)), Some(Err(Code::Aborted)), "another of its name");
    }
}
