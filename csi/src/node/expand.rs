//! `NodeExpandVolume`: grows a file system to the size of its device.

use std::path::Path;

use holdfast_proto::csi::v1::{NodeExpandVolumeRequest, NodeExpandVolumeResponse};
use holdfast_proto::node::v1::Device;
use tonic::{Request, Status};

use super::daemon::check_touchable;
use super::device_number::DeviceNumber;
use super::mounts::Mount;
use super::{NodeService, content, mounts, paths};
use crate::capability::{AccessScope, Capability, FileSystem};
use crate::deadline;

pub(super) async fn answer(
    node: &NodeService,
    request: Request<NodeExpandVolumeRequest>,
) -> Result<NodeExpandVolumeResponse, Status> {
    let until = deadline::of(&request);
    let NodeExpandVolumeRequest {
        volume_id,
        volume_path,
        capacity_range,
        staging_target_path: _,
        volume_capability,
        secrets: _,
    } = request.into_inner();
    let volume = paths::volume(volume_id)?;
    let mut asked_read_only = None;
    if volume_capability.is_some() {
        let Capability { access, scope } = Capability::try_from(volume_capability)?;
        if scope == AccessScope::ManyReaders {
            return Err(Status::failed_precondition(
                "volume_capability.access_mode: the volume is read-only (ReadOnlyMany), so its file system does not grow",
            ));
        }
        asked_read_only = Some(access.is_read_only());
    }
    let path = paths::named("volume_path", volume_path)?;
    let all = mounts::all()?;
    let mount = mounts::at(&all, &path).ok_or_else(|| not_published(&path))?;
    let volumes = node.0.daemon.volumes().await?;
    let number = match mount.device_node() {
        Some(device) => Some(DeviceNumber::of(&device)?),
        None => mount.device(),
    };
    let number = number.ok_or_else(|| Status::internal("the mount has no device"))?;
    check_touchable(&volumes, number)?;
    let devices = volumes.iter().filter_map(|volume| volume.device.as_ref());
    let device = devices.into_iter().find(|device| is_it(device, number));
    let device = device.ok_or_else(|| Status::unavailable("the node does not serve the device now"))?;
    let required = capacity_range.map_or(0, |range| range.required_bytes);
    let bytes = i64::try_from(device.size_bytes).unwrap_or(i64::MAX);
    if bytes < required {
        return Err(Status::unavailable(format!(
            "capacity_range.required_bytes: the device has {bytes} bytes, not {required} yet; the caller retries"
        )));
    }
    if grows(mount, asked_read_only) {
        let file_system = FileSystem::named(&mount.fs_type)
            .ok_or_else(|| Status::failed_precondition(format!("{} cannot grow here", mount.fs_type)))?;
        let line = content::grow(file_system, Path::new(&device.path), &path);
        let (inner, name) = (node.0.clone(), volume.clone());
        node.0.operations.run(&volume, until, async move { inner.tools.succeed(&name, line).await }).await?;
    }
    Ok(NodeExpandVolumeResponse { capacity_bytes: bytes })
}

/// Returns true if a file system must grow. A file system mounted with the option `ro` cannot grow; the next
/// writable stage grows it. A file system that became read-only after an error must not be reported as grown.
///
/// `asked_read_only`: the options of the request have `ro`; `None` without a capability.
fn grows(mount: &Mount, asked_read_only: Option<bool>) -> bool {
    let is_left = mount.is_file_system_read_only && asked_read_only.unwrap_or(true);
    mount.device_node().is_none() && !is_left
}

/// Returns the error for a path without a volume.
pub(super) fn not_published(path: &Path) -> Status {
    Status::not_found(format!("volume_path: no volume is published at {}", path.display()))
}

fn is_it(device: &Device, number: DeviceNumber) -> bool {
    DeviceNumber::of(Path::new(&device.path)).is_ok_and(|found| found == number)
}

#[cfg(test)]
mod tests {
    use super::super::mounts::tests::parsed;

    /// Regression, found in review: the expansion of a claim with the mount option `ro` failed permanently.
    #[test]
    fn a_file_system_mounted_read_only_does_not_grow() {
        let grows = |line: &str| super::grows(&parsed(&[line])[0], Some(true));
        assert!(grows("37 35 259:3 / /pods/a rw - ext4 /dev/ublkb0 rw"));
        assert!(grows("37 35 259:3 / /pods/a ro - ext4 /dev/ublkb0 rw"), "only the mount of this pod");
        let read_only = "37 35 259:3 / /pods/a ro - ext4 /dev/ublkb0 ro";
        assert!(!grows(read_only));
        assert!(!super::grows(&parsed(&[read_only])[0], None));
        assert!(super::grows(&parsed(&[read_only])[0], Some(false)), "after an error: the growth fails");
        assert!(!grows("39 35 0:5 /ublkb0 /pods/a rw - devtmpfs udev rw"), "a raw device has none");
    }
}
