//! `NodePublishVolume`: the staged file system, or the raw device, at a path of a pod.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use holdfast_proto::csi::v1::{NodePublishVolumeRequest, NodePublishVolumeResponse};
use tonic::{Request, Status};

use super::daemon::ServedDevice;
use super::mounts::{self, Mount, after_mount};
use super::tool::{CommandLine, Tools};
use super::{NodeService, NodeServiceState, paths};
use crate::capability::{AccessScope, Capability, VolumeAccess};
use crate::deadline;
use crate::publish_context;

/// Directory of the kubelet below which it requests raw devices, one path for each pod. Source:
/// `pkg/volume/csi/csi_block.go` of Kubernetes.
const RAW_PUBLISHED: &str = "volumeDevices/publish";

/// A path to publish.
#[derive(Debug)]
struct PathToPublish {
    volume: String,
    device: ServedDevice,
    /// Path at which the file system is staged; `None` for a raw device.
    staged: Option<PathBuf>,
    target: PathBuf,
    scope: AccessScope,
    is_read_only: bool,
}

/// The next step of a publication.
#[derive(Debug, PartialEq, Eq)]
enum MountStep {
    /// Mounts it.
    Bind,
    /// It is mounted writable and must become read-only.
    MakeReadOnly,
    /// It is mounted as requested.
    Done,
}

pub(super) async fn answer(
    node: &NodeService,
    request: Request<NodePublishVolumeRequest>,
) -> Result<NodePublishVolumeResponse, Status> {
    let until = deadline::of(&request);
    let NodePublishVolumeRequest {
        volume_id,
        publish_context,
        staging_target_path,
        target_path,
        volume_capability,
        readonly,
        secrets: _,
        volume_context: _,
    } = request.into_inner();
    let volume = paths::volume(volume_id)?;
    let target = paths::absolute("target_path", target_path)?;
    let Capability { access, scope } = Capability::try_from(volume_capability)?;
    let context = publish_context::read(&publish_context)?;
    context.continue_trace();
    let is_read_only = readonly || scope == AccessScope::ManyReaders;
    let staged = match access {
        VolumeAccess::Block => None,
        VolumeAccess::Mount { .. } => Some(paths::absolute("staging_target_path", staging_target_path)?),
    };
    let inner = node.0.clone();
    let name = volume.clone();
    let publish = async move {
        let device = inner.daemon.served(&context, until).await?;
        let wanted = PathToPublish { volume: name, device, staged, target, scope, is_read_only };
        inner.publish(&wanted).await
    };
    node.0.operations.run(&volume, until, publish).await?;
    Ok(NodePublishVolumeResponse {})
}

impl NodeServiceState {
    async fn publish(&self, wanted: &PathToPublish) -> Result<(), Status> {
        let mut next = plan(wanted, &mounts::all()?)?;
        if let Some(line) = write_protection(wanted) {
            self.tools.succeed(&wanted.volume, line).await?;
        }
        if next == MountStep::Bind {
            let source = wanted.staged.as_ref().unwrap_or(&wanted.device.path);
            make_target(wanted)?;
            let bind = CommandLine::new(["mount", "--bind"]).and(source).and(&wanted.target);
            self.tools.succeed(&wanted.volume, bind).await?;
            next = mounts::all().and_then(|all| plan(wanted, &all)).map_err(after_mount)?;
        }
        if next == MountStep::MakeReadOnly {
            let line = CommandLine::new(["mount", "-o", "remount,bind,ro"]).and(&wanted.target);
            let undo = CommandLine::new(["umount", "--no-canonicalize"]).and(&wanted.target);
            succeed_or_undo(&self.tools, &wanted.volume, line, undo).await?;
        }
        Ok(())
    }
}

/// Returns the command that write-protects a read-only raw device: writes would be lost silently with the
/// device. The kernel keeps the flag with the disk. The next ublk disk with its number starts without it; the
/// node daemon clears it for a loop device.
fn write_protection(wanted: &PathToPublish) -> Option<CommandLine> {
    let is_for_readers = wanted.staged.is_none() && wanted.scope == AccessScope::ManyReaders;
    is_for_readers.then(|| CommandLine::new(["blockdev", "--setro"]).and(&wanted.device.path))
}

/// Makes a mount read-only, or unmounts it: it must not stay writable.
///
/// # Errors
/// `ABORTED`: it stays writable. `INTERNAL` with the output of `line`: it was unmounted.
async fn succeed_or_undo(
    tools: &Tools,
    volume: &str,
    line: CommandLine,
    undo: CommandLine,
) -> Result<(), Status> {
    let Err(failed) = tools.succeed(volume, line).await else { return Ok(()) };
    tools.succeed(volume, undo).await.map_err(|stays| {
        Status::aborted(format!(
            "the mount is writable and must be read-only; the caller retries: {}; {}",
            failed.message(),
            stays.message()
        ))
    })?;
    Err(failed)
}

/// Plans a publication from the existing mounts.
///
/// # Errors
/// `FAILED_PRECONDITION`: the volume is not staged, or is limited to one path and already used by another.
/// `ALREADY_EXISTS`: the path has another mount.
fn plan(wanted: &PathToPublish, all: &[Mount]) -> Result<MountStep, Status> {
    let PathToPublish { device, staged, target, .. } = wanted;
    let is_ours = |mount: &Mount| match staged {
        Some(_) => mount.is_of(device) && mount.root == "/",
        None => mount.is_node_of(&device.path),
    };
    let mut inherits_read_only = false;
    if let Some(staged) = staged {
        let Some(mount) = mounts::at(all, staged).filter(|mount| mount.is_of(device)) else {
            return Err(Status::failed_precondition(format!(
                "staging_target_path: the volume is not staged at {}; stage it first",
                staged.display()
            )));
        };
        // Mount option `ro`.
        inherits_read_only = mount.is_read_only;
    }
    // The container runtime prevents a pod from writing to a raw device that is read-only for it.
    let read_only = wanted.is_read_only && staged.is_some();
    match mounts::at(all, target) {
        None => only_user(wanted, all.iter().filter(|mount| is_ours(mount))).map(|()| MountStep::Bind),
        Some(mount) if !is_ours(mount) => Err(occupied(target, &mount.source.display().to_string())),
        Some(mount) if mount.is_read_only && !read_only && !inherits_read_only => {
            Err(occupied(target, "the volume for reading only"))
        }
        Some(mount) if read_only && !mount.is_read_only => Ok(MountStep::MakeReadOnly),
        Some(_) => Ok(MountStep::Done),
    }
}

/// Checks that a volume for one pod at a time is published at no other path. `of_volume`: all its mounts.
///
/// # Errors
/// `FAILED_PRECONDITION`: it is.
fn only_user<'a>(
    wanted: &PathToPublish,
    mut of_volume: impl Iterator<Item = &'a Mount>,
) -> Result<(), Status> {
    // The kubelet binds a raw device a second time, at `volumeDevices/<pv>/dev/<pod>`.
    let published = match wanted.staged {
        Some(_) => None,
        None => wanted.target.ancestors().find(|above| above.ends_with(RAW_PUBLISHED)),
    };
    let is_other = |mount: &&Mount| {
        let is_staged = wanted.staged.as_ref() == Some(&mount.point);
        !is_staged && published.is_none_or(|published| mount.point.starts_with(published))
    };
    match of_volume.find(is_other).filter(|_| wanted.scope == AccessScope::OnePath) {
        None => Ok(()),
        Some(other) => Err(Status::failed_precondition(format!(
            "target_path: the volume is for one pod at a time, and is published at {}",
            other.point.display()
        ))),
    }
}

fn occupied(target: &Path, what: &str) -> Status {
    let target = target.display();
    Status::already_exists(format!("target_path: {target} already has {what}. Unpublish it first"))
}

/// Creates the directory, or the file, to mount over.
fn make_target(wanted: &PathToPublish) -> Result<(), Status> {
    let made = match (&wanted.staged, wanted.target.parent()) {
        (Some(_), _) => fs::create_dir_all(&wanted.target),
        (None, parent) => {
            let parent = parent.map_or(Ok(()), fs::create_dir_all);
            parent.and_then(|()| File::options().create(true).append(true).open(&wanted.target).map(drop))
        }
    };
    made.map_err(|error| Status::internal(format!("{} cannot be created: {error}", wanted.target.display())))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::mounts::tests::{device, parsed};
    use super::*;

    const STAGED: &str = "36 35 259:3 / /staged rw shared:1 - ext4 /dev/ublkb0 rw";
    const FIRST: &str = "37 35 259:3 / /pods/a rw shared:1 - ext4 /dev/ublkb0 rw";
    const FIRST_READ_ONLY: &str = "37 35 259:3 / /pods/a ro shared:1 - ext4 /dev/ublkb0 rw";
    const SUB_PATH: &str = "38 35 259:3 /sub /pods/a/subpath rw - ext4 /dev/ublkb0 rw";
    const RAW: &str = "39 35 0:5 /ublkb0 /pods/a rw - devtmpfs udev rw";

    fn wanted(target: &str, scope: AccessScope) -> PathToPublish {
        PathToPublish {
            volume: "v".to_owned(),
            device: device("/dev/ublkb0", 3),
            staged: Some("/staged".into()),
            target: target.into(),
            scope,
            is_read_only: false,
        }
    }

    fn code(wanted: &PathToPublish, lines: &[&str]) -> Result<MountStep, Code> {
        plan(wanted, &parsed(lines)).map_err(|status| status.code())
    }

    #[test]
    fn a_staged_volume_is_bound_once() {
        let many = wanted("/pods/a", AccessScope::OneNode);
        assert_eq!(code(&many, &[]), Err(Code::FailedPrecondition));
        assert_eq!(code(&many, &[STAGED]), Ok(MountStep::Bind));
        assert_eq!(code(&many, &[STAGED, FIRST]), Ok(MountStep::Done));
        assert_eq!(code(&many, &[STAGED, FIRST_READ_ONLY]), Err(Code::AlreadyExists));
        assert_eq!(code(&many, &[STAGED, &FIRST.replace("259:3", "259:9")]), Err(Code::AlreadyExists));
        let reader = PathToPublish { is_read_only: true, ..wanted("/pods/a", AccessScope::OneNode) };
        assert_eq!(code(&reader, &[STAGED, FIRST]), Ok(MountStep::MakeReadOnly));
        assert_eq!(code(&reader, &[STAGED, FIRST_READ_ONLY]), Ok(MountStep::Done));
    }

    #[test]
    fn only_a_raw_device_of_readers_is_write_protected() {
        let raw = PathToPublish { staged: None, ..wanted("/pods/a", AccessScope::ManyReaders) };
        let line = write_protection(&raw).expect("a command");
        assert_eq!(line.text(), "blockdev --setro /dev/ublkb0");
        for writable in [
            wanted("/pods/a", AccessScope::ManyReaders),
            PathToPublish { staged: None, ..wanted("/pods/a", AccessScope::OneNode) },
            PathToPublish { staged: None, is_read_only: true, ..wanted("/pods/a", AccessScope::OnePath) },
        ] {
            assert_eq!(write_protection(&writable), None, "{writable:?}");
        }
    }

    #[tokio::test]
    async fn a_mount_that_cannot_be_read_only_is_ended() {
        let directory = tempfile::tempdir().expect("a directory");
        let tools = Tools::new(directory.path().join("locks"));
        let ended = directory.path().join("ended");
        let line = |word: &str| CommandLine::new([word]);
        let undo = || line("touch").and(&ended);
        succeed_or_undo(&tools, "v", line("true"), undo()).await.expect("read-only");
        assert!(!ended.exists());
        let failed = succeed_or_undo(&tools, "v", line("false"), undo()).await.expect_err("for writing");
        assert_eq!((failed.code(), ended.exists()), (Code::Internal, true));
        let stays = succeed_or_undo(&tools, "v", line("false"), line("false")).await.expect_err("stays");
        assert_eq!(stays.code(), Code::Aborted);
    }

    #[test]
    fn a_volume_for_one_pod_has_one_path() {
        let first = wanted("/pods/a", AccessScope::OnePath);
        assert_eq!(code(&first, &[STAGED]), Ok(MountStep::Bind));
        assert_eq!(code(&first, &[STAGED, FIRST, SUB_PATH]), Ok(MountStep::Done));
        let second = wanted("/pods/b", AccessScope::OnePath);
        assert_eq!(code(&second, &[STAGED, FIRST]), Err(Code::FailedPrecondition));
        assert_eq!(code(&wanted("/pods/b", AccessScope::OneNode), &[STAGED, FIRST]), Ok(MountStep::Bind));
    }

    #[test]
    fn a_raw_device_is_bound_as_its_node() {
        let raw = PathToPublish { staged: None, ..wanted("/pods/a", AccessScope::OnePath) };
        assert_eq!(code(&raw, &[]), Ok(MountStep::Bind));
        assert_eq!(code(&raw, &[RAW]), Ok(MountStep::Done));
        assert_eq!(code(&raw, &[FIRST]), Err(Code::AlreadyExists));
        let second = PathToPublish { staged: None, ..wanted("/pods/b", AccessScope::OnePath) };
        assert_eq!(code(&second, &[RAW]), Err(Code::FailedPrecondition));
    }

    /// Regression, found in review: after a restart of the kubelet, the pod of a raw ReadWriteOncePod volume
    /// was refused its own volume, because of the kubelet's second mount.
    #[test]
    fn a_raw_device_for_one_pod_is_published_again() {
        let of = |pod: &str, place: &str| {
            format!("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/{place}/{pod}")
        };
        let bound = |path: &str| RAW.replace("/pods/a", path);
        let [target, of_kubelet] = ["publish/pvc-1", "pvc-1/dev"].map(|place| of("a", place));
        let raw = |target: &str| PathToPublish { staged: None, ..wanted(target, AccessScope::OnePath) };
        let mounts = [&target, &of_kubelet].map(|path| bound(path));
        let mounts = mounts.each_ref().map(String::as_str);
        assert_eq!(code(&raw(&target), &mounts), Ok(MountStep::Done));
        assert_eq!(code(&raw(&target), &mounts[1..]), Ok(MountStep::Bind), "the kubelet's mount is no pod");
        let second = raw(&of("b", "publish/pvc-1"));
        assert_eq!(code(&second, &mounts), Err(Code::FailedPrecondition));
        let of_other_pv = raw(&of("b", "publish/static"));
        assert_eq!(code(&of_other_pv, &mounts), Err(Code::FailedPrecondition));
    }

    /// Regression, found in review: with the mount option `ro` of a class, no pod started, because its mount
    /// was already read-only.
    #[test]
    fn the_mount_of_a_pod_inherits_the_option_ro() {
        let staged = STAGED.replace(" rw shared", " ro shared");
        let pod = wanted("/pods/a", AccessScope::OneNode);
        assert_eq!(code(&pod, &[&staged]), Ok(MountStep::Bind));
        assert_eq!(code(&pod, &[&staged, FIRST_READ_ONLY]), Ok(MountStep::Done));
        assert_eq!(
            code(&pod, &[&staged, FIRST]),
            Ok(MountStep::Done),
            "the option was added under a running pod"
        );
        assert_eq!(code(&pod, &[STAGED, FIRST_READ_ONLY]), Err(Code::AlreadyExists));
    }
}
