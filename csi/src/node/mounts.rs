//! The mounts visible to this process, read from the kernel without touching any file system.

use std::fs;
use std::path::{Path, PathBuf};

use tonic::{Code, Status};

use super::daemon::ServedDevice;
use super::device_number::DeviceNumber;

/// Source: `man proc_pid_mountinfo`.
const MOUNTINFO: &str = "/proc/self/mountinfo";
/// Directory of the file system for device nodes.
const DEV: &str = "/dev";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Device number of the file system; not that of a device node for file systems such as Btrfs.
    number: DeviceNumber,
    /// Path of the mount's root within the file system.
    pub(super) root: String,
    /// Mount point.
    pub(super) point: PathBuf,
    /// True if this mount is read-only, regardless of the file system.
    pub(super) is_read_only: bool,
    /// True if the file system is read-only in all of its mounts.
    pub(super) is_file_system_read_only: bool,
    /// Type of the file system.
    pub(super) fs_type: String,
    /// The device, as passed to mount(8).
    pub(super) source: PathBuf,
}

impl Mount {
    /// Returns true if this mounts the file system on that device.
    pub(super) fn is_of(&self, device: &ServedDevice) -> bool {
        if self.number.major == 0 { self.source == device.path } else { self.number == device.number }
    }

    /// Returns true if this mounts the node of that device, as for raw block volumes.
    pub(super) fn is_node_of(&self, device: &Path) -> bool {
        let name = device.strip_prefix(DEV).ok();
        self.fs_type == "devtmpfs"
            && name.is_some_and(|name| Path::new(&self.root) == Path::new("/").join(name))
    }

    /// Returns the device node mounted here for a raw block volume.
    pub(super) fn device_node(&self) -> Option<PathBuf> {
        let name = self.root.strip_prefix('/').filter(|name| !name.is_empty())?;
        (self.fs_type == "devtmpfs").then(|| Path::new(DEV).join(name))
    }

    /// Returns the device number below the file system; `None` if it has none.
    pub(super) fn device(&self) -> Option<DeviceNumber> {
        if self.number.major == 0 {
            return DeviceNumber::of(&self.source).ok();
        }
        Some(self.number)
    }
}

/// Returns all mounts, in the order of their creation.
///
/// # Errors
/// `INTERNAL`: the kernel's list cannot be read.
pub(super) fn all() -> Result<Vec<Mount>, Status> {
    let text = fs::read_to_string(MOUNTINFO)
        .map_err(|error| Status::internal(format!("{MOUNTINFO} cannot be read: {error}")))?;
    Ok(text.lines().filter_map(parse).collect())
}

/// Converts an error of a request that has mounted something: after any code but those of a pending request,
/// the kubelet assumes that nothing is mounted, and never unmounts it if the pod is deleted. Source:
/// `isFinalError` in `pkg/volume/csi/csi_client.go` of Kubernetes.
pub(super) fn after_mount(failed: Status) -> Status {
    let is_pending = matches!(failed.code(), Code::Aborted | Code::Unavailable);
    if is_pending { failed } else { Status::unavailable(failed.message()) }
}

/// Returns the mount at `path`, the topmost if there are several.
pub(super) fn at<'a>(mounts: &'a [Mount], path: &Path) -> Option<&'a Mount> {
    mounts.iter().rev().find(|mount| mount.point == path)
}

/// Parses a line: `id parent major:minor root point options [optional ...] - type source super-options`.
fn parse(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let head: Vec<&str> = head.split(' ').collect();
    let (major, minor) = head.get(2)?.split_once(':')?;
    let mut tail = tail.split(' ');
    let (fs_type, source, of_file_system) = (tail.next()?, tail.next()?, tail.next().unwrap_or_default());
    let is_read_only = |options: &str| options.split(',').any(|option| option == "ro");
    Some(Mount {
        number: DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? },
        root: unescape(head.get(3)?),
        point: unescape(head.get(4)?).into(),
        is_read_only: is_read_only(head.get(5)?),
        is_file_system_read_only: is_read_only(of_file_system),
        fs_type: fs_type.to_owned(),
        source: unescape(source).into(),
    })
}

/// Decodes spaces, tabs, newlines and backslashes, which are written as three octal digits.
fn unescape(text: &str) -> String {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known.into_iter().fold(text.to_owned(), |text, (escape, byte)| text.replace(escape, byte))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const LINES: [&str; 4] = [
        "36 35 259:3 / /var/lib/a\\040b/globalmount rw,noatime shared:1 - ext4 /dev/ublkb0 rw,discard",
        "37 35 259:3 /sub /pods/x/mount ro,relatime - ext4 /dev/ublkb0 rw",
        "38 35 0:41 / /pods/y/mount rw - btrfs /dev/ublkb1 rw,ssd",
        "39 35 0:5 /ublkb2 /pods/z/device rw,nosuid master:2 - devtmpfs udev rw,mode=755",
    ];

    /// A served device, with the major number of the lines above.
    pub(in crate::node) fn device(path: &str, minor: u32) -> ServedDevice {
        let number = DeviceNumber { major: 259, minor };
        ServedDevice { path: path.into(), number, bytes: 4096, epoch: 1, holds_data: None, may_format: false }
    }

    /// Parses the mounts in these lines.
    pub(in crate::node) fn parsed(lines: &[&str]) -> Vec<Mount> {
        lines.iter().filter_map(|line| parse(line)).collect()
    }

    #[test]
    fn a_mount_is_recognized_by_its_device() {
        let mounts = parsed(&LINES);
        let staged = at(&mounts, Path::new("/var/lib/a b/globalmount")).expect("a mount");
        assert!(staged.is_of(&device("/dev/ublkb0", 3)) && !staged.is_read_only);
        // The number was reused for another volume's device.
        assert!(!staged.is_of(&device("/dev/ublkb0", 4)));
        let of_pod = at(&mounts, Path::new("/pods/x/mount")).expect("a mount");
        assert!(of_pod.is_read_only && !of_pod.is_file_system_read_only);
        let btrfs = at(&mounts, Path::new("/pods/y/mount")).expect("a mount");
        assert!(btrfs.is_of(&device("/dev/ublkb1", 9)) && !btrfs.is_of(&device("/dev/ublkb0", 9)));
        let raw = at(&mounts, Path::new("/pods/z/device")).expect("a mount");
        assert!(raw.is_node_of(Path::new("/dev/ublkb2")) && !raw.is_node_of(Path::new("/dev/ublkb1")));
        assert_eq!(raw.device_node(), Some("/dev/ublkb2".into()));
        assert_eq!(staged.device_node(), None);
    }

    #[test]
    fn the_last_mount_at_a_place_hides_the_others() {
        let above = LINES[2].replace("/pods/y/mount", "/var/lib/a\\040b/globalmount");
        let mounts = parsed(&[LINES[0], &above]);
        assert_eq!(
            at(&mounts, Path::new("/var/lib/a b/globalmount")).map(|mount| mount.fs_type.as_str()),
            Some("btrfs")
        );
    }

    #[test]
    fn the_kernel_lists_the_root() {
        let mounts = all().expect("the list");
        assert!(at(&mounts, Path::new("/")).is_some());
    }
}
