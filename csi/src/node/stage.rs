//! `NodeStageVolume`: mounts the file system on the volume's device, once for all pods of the node.
//!
//! ```text
//! served? -> mounted already? -> signatures -> signatures again, format (noted before and after) -> mount -> grow
//!                                           -> check                                             -> mount -> grow
//! ```
//!
//! A read-only volume (ReadOnlyMany) is checked as well, which replays its journal: the device is a fork for
//! this node alone. It is neither formatted nor grown.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_proto::csi::v1::{NodeStageVolumeRequest, NodeStageVolumeResponse};
use tokio::time::{Instant, sleep};
use tonic::{Request, Status};

use super::content::{self, DeviceContent, DeviceFacts, Preparation};
use super::daemon::ServedDevice;
use super::tool::{CommandLine, Tools};
use super::{NodeService, NodeServiceState, mounts, paths};
use crate::capability::{AccessScope, Capability, FileSystem, VolumeAccess};
use crate::deadline;
use crate::publish_context::{self, PublishContext};

/// Time after which a volume's figures include every write that has completed before.
const FIGURES_ARE_NEW: Duration = Duration::from_secs(1);

/// A file system to mount.
#[derive(Debug)]
struct FileSystemToMount {
    volume: String,
    context: PublishContext,
    file_system: FileSystem,
    options: Vec<String>,
    scope: AccessScope,
    /// True for readers, and if the options ask for it.
    is_read_only: bool,
    point: PathBuf,
    until: Instant,
}

pub(super) async fn answer(
    node: &NodeService,
    request: Request<NodeStageVolumeRequest>,
) -> Result<NodeStageVolumeResponse, Status> {
    let until = deadline::of(&request);
    let NodeStageVolumeRequest {
        volume_id,
        publish_context,
        staging_target_path,
        volume_capability,
        secrets: _,
        volume_context: _,
    } = request.into_inner();
    let volume = paths::volume(volume_id)?;
    let point = paths::absolute("staging_target_path", staging_target_path)?;
    let Capability { access, scope } = Capability::try_from(volume_capability)?;
    let context = publish_context::read(&publish_context)?;
    context.continue_trace();
    let is_read_only = scope == AccessScope::ManyReaders || access.is_read_only();
    match access {
        // A raw device needs no preparation: it exists, or it does not.
        VolumeAccess::Block => drop(node.0.daemon.served(&context, until).await?),
        VolumeAccess::Mount { file_system, options } => {
            let wanted = FileSystemToMount {
                volume: volume.clone(),
                context,
                file_system,
                options,
                scope,
                is_read_only,
                point,
                until,
            };
            let inner = node.0.clone();
            node.0.operations.run(&volume, until, async move { inner.stage(wanted).await }).await?;
        }
    }
    Ok(NodeStageVolumeResponse {})
}

impl FileSystemToMount {
    /// Returns the mount options. An xfs and its clone share a UUID, which needs `nouuid`.
    fn mount_options(&self) -> Vec<&str> {
        let options = self.options.iter().map(String::as_str);
        let options = options.chain((self.file_system == FileSystem::Xfs).then_some("nouuid"));
        options.chain((self.scope == AccessScope::ManyReaders).then_some("ro")).collect()
    }
}

impl NodeServiceState {
    async fn stage(&self, wanted: FileSystemToMount) -> Result<(), Status> {
        let device = self.daemon.served(&wanted.context, wanted.until).await?;
        let is_there = is_mounted(&wanted.point, &device)?;
        let device = if is_there { device } else { self.prepare_and_mount(&wanted, device).await? };
        if wanted.is_read_only {
            return Ok(());
        }
        // The file system may be smaller than the volume, which may have started from a smaller one.
        grow(&self.tools, &wanted, &device.path).await
    }

    async fn prepare_and_mount(
        &self,
        wanted: &FileSystemToMount,
        device: ServedDevice,
    ) -> Result<ServedDevice, Status> {
        let (device, facts) = self.facts(wanted, device).await?;
        match content::plan(&facts)? {
            Preparation::Format { is_zero } => {
                let found = content::look(&self.tools, &wanted.volume, &device.path).await?;
                unchanged(&facts.content, &found)?;
                self.format(wanted, &device, is_zero).await?;
            }
            Preparation::Check => self.check(wanted, &device.path).await?,
        }
        fs::create_dir_all(&wanted.point).map_err(|error| {
            Status::internal(format!("{} cannot be created: {error}", wanted.point.display()))
        })?;
        self.tools.succeed(&wanted.volume, mount(wanted, &device.path)).await?;
        Ok(device)
    }

    /// Returns the facts about a device, and the device as last reported by the daemon.
    async fn facts(
        &self,
        wanted: &FileSystemToMount,
        mut device: ServedDevice,
    ) -> Result<(ServedDevice, DeviceFacts), Status> {
        let content = content::look(&self.tools, &wanted.volume, &device.path).await?;
        let is_read_only = wanted.scope == AccessScope::ManyReaders;
        if content == DeviceContent::Nothing && device.holds_data != Some(true) && !is_read_only {
            // The figures of a volume are published four times a second, and not directly after an attach:
            // the last writes may be missing.
            sleep(FIGURES_ARE_NEW).await;
            device = same(&device, self.daemon.served(&wanted.context, wanted.until).await?)?;
        }
        let id = &wanted.context.volume_id;
        let facts = DeviceFacts {
            wanted: wanted.file_system,
            content,
            holds_data: device.holds_data,
            interrupted: self.formats.find(id, device.epoch),
            epoch: device.epoch,
            may_format: device.may_format && !self.formats.is_used_up(id, device.epoch),
            is_read_only,
        };
        Ok((device, facts))
    }

    async fn format(
        &self,
        wanted: &FileSystemToMount,
        device: &ServedDevice,
        is_zero: bool,
    ) -> Result<(), Status> {
        let id = &wanted.context.volume_id;
        self.formats.begin(id, device.epoch)?;
        self.tools
            .succeed(&wanted.volume, content::format(wanted.file_system, &device.path, is_zero))
            .await?;
        if device.may_format { self.formats.use_up(id, device.epoch) } else { self.formats.end(id) }
    }

    async fn check(&self, wanted: &FileSystemToMount, device: &Path) -> Result<(), Status> {
        let Some(line) = content::check(wanted.file_system, device) else { return Ok(()) };
        content::checked(&self.tools.run(&wanted.volume, line).await?, device)
    }
}

/// Returns the later report of the daemon if it is of the same attach: findings on another device, or before
/// another attach, do not apply to it.
///
/// # Errors
/// `ABORTED`: it is of another attach.
fn same(earlier: &ServedDevice, now: ServedDevice) -> Result<ServedDevice, Status> {
    if (now.number, now.epoch) == (earlier.number, earlier.epoch) {
        return Ok(now);
    }
    Err(Status::aborted(format!(
        "the volume was attached again during the request (epoch {}, then {}). Nothing was formatted; the caller retries",
        earlier.epoch, now.epoch
    )))
}

/// Checks that a device still has the content on which the decision to format it was based.
///
/// # Errors
/// `ABORTED`: the content changed.
fn unchanged(expected: &DeviceContent, found: &DeviceContent) -> Result<(), Status> {
    if found == expected {
        return Ok(());
    }
    Err(Status::aborted(
        "the content of the device changed during its check. Nothing was formatted; the caller retries",
    ))
}

/// Returns true if the device is already mounted there.
///
/// # Errors
/// `FAILED_PRECONDITION`: something else is mounted there.
fn is_mounted(point: &Path, device: &ServedDevice) -> Result<bool, Status> {
    let mounts = mounts::all()?;
    match mounts::at(&mounts, point) {
        None => Ok(false),
        Some(mount) if mount.is_of(device) => Ok(true),
        Some(mount) => Err(Status::failed_precondition(format!(
            "staging_target_path: {} is mounted at {}, not {}. Unstage the volume first",
            mount.source.display(),
            point.display(),
            device.path.display()
        ))),
    }
}

/// Grows a mounted file system to the size of its device.
///
/// # Errors
/// `ABORTED` or `UNAVAILABLE`: it stays mounted.
async fn grow(tools: &Tools, wanted: &FileSystemToMount, device: &Path) -> Result<(), Status> {
    let line = content::grow(wanted.file_system, device, &wanted.point);
    tools.succeed(&wanted.volume, line).await.map_err(mounts::after_mount)
}

fn mount(wanted: &FileSystemToMount, device: &Path) -> CommandLine {
    let line = CommandLine::new(["mount", "-t", wanted.file_system.name()]);
    // Otherwise mount(8) mounts a write-protected device read-only.
    let line = if wanted.is_read_only { line } else { line.and("-w") };
    let options = wanted.mount_options();
    let line = if options.is_empty() { line } else { line.and("-o").and(OsString::from(options.join(","))) };
    line.and(device).and(&wanted.point)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::mounts::tests::device;
    use super::*;

    #[test]
    fn only_the_device_that_was_looked_at_is_formatted() {
        let first = ServedDevice { holds_data: None, ..device("/dev/ublkb0", 3) };
        let later = ServedDevice { holds_data: Some(false), ..first.clone() };
        assert_eq!(same(&first, later.clone()).expect("the same attach").holds_data, Some(false));
        let attached_again = ServedDevice { epoch: 2, ..later };
        for other in [attached_again, device("/dev/ublkb0", 4), device("/dev/ublkb1", 9)] {
            assert_eq!(same(&first, other).expect_err("another").code(), Code::Aborted);
        }
    }

    #[test]
    fn a_device_whose_content_changed_is_not_formatted() {
        let ext4 = DeviceContent::FileSystem(FileSystem::Ext4);
        unchanged(&DeviceContent::Nothing, &DeviceContent::Nothing).expect("still empty");
        unchanged(&ext4, &ext4).expect("a format that was interrupted");
        assert_eq!(unchanged(&DeviceContent::Nothing, &ext4).expect_err("changed").code(), Code::Aborted);
    }

    fn wanted(file_system: FileSystem, options: &[&str]) -> FileSystemToMount {
        FileSystemToMount {
            volume: "v".to_owned(),
            context: PublishContext { volume_id: "id".to_owned(), epoch: 1, trace: None },
            file_system,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            scope: AccessScope::OneNode,
            is_read_only: false,
            point: PathBuf::from("/mnt"),
            until: Instant::now(),
        }
    }

    #[test]
    fn a_clone_of_an_xfs_is_mounted_beside_it() {
        assert_eq!(wanted(FileSystem::Xfs, &["noatime"]).mount_options(), ["noatime", "nouuid"]);
        assert_eq!(wanted(FileSystem::Ext4, &[]).mount_options(), [""; 0]);
        let reader =
            FileSystemToMount { scope: AccessScope::ManyReaders, ..wanted(FileSystem::Xfs, &["rw"]) };
        assert_eq!(reader.mount_options(), ["rw", "nouuid", "ro"], "the last one counts");
    }

    /// Regression, found in review: mount(8) mounted a write-protected device read-only instead.
    #[test]
    fn a_writable_stage_never_becomes_read_only() {
        let device = Path::new("/dev/loop0");
        let writable = wanted(FileSystem::Ext4, &["noatime"]);
        assert_eq!(mount(&writable, device).text(), "mount -t ext4 -w -o noatime /dev/loop0 /mnt");
        let read_only = FileSystemToMount { is_read_only: true, ..wanted(FileSystem::Ext4, &["ro"]) };
        assert_eq!(mount(&read_only, device).text(), "mount -t ext4 -o ro /dev/loop0 /mnt");
    }

    /// Regression, found in review: the answer was INTERNAL, after which the kubelet did not unstage the
    /// volume of a deleted pod.
    #[tokio::test]
    async fn a_failed_growth_leaves_the_stage_to_the_kubelet() {
        let directory = tempfile::tempdir().expect("a directory");
        let tools = Tools::new(directory.path().join("locks"));
        let wanted = wanted(FileSystem::Ext4, &[]);
        let failed = grow(&tools, &wanted, &directory.path().join("none")).await.expect_err("no device");
        assert_eq!(failed.code(), Code::Unavailable, "{failed}");
        assert!(failed.message().contains("resize2fs"), "{failed}");
        assert_eq!(mounts::after_mount(Status::aborted("held")).code(), Code::Aborted);
        assert_eq!(mounts::after_mount(Status::already_exists("other")).code(), Code::Unavailable);
    }
}
