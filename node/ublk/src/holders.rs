//! Users of a block device or of its partitions: mounts in any mount namespace, devices on top of it,
//! programs that have it open.
//!
//! *Runs on*: a control thread; it reads `/proc` and `/sys`, and queries no remote (network or FUSE) file
//! system.
//! *Invariants*: this process's own open files do not count as users.
//! *On failure*: skips processes that it cannot read (ended, or in another PID namespace).

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

const BLOCK_DEVICES: &str = "/sys/block";
/// Root directory of the host's first process; the kernel's paths of loop devices' files begin there.
const HOST_ROOT: &str = "/proc/1/root";
/// Maximum number of users in a message.
const NAMED: usize = 3;
/// Links of open files that are not paths.
const PATHLESS: [&str; 4] = ["socket:", "pipe:", "anon_inode:", "/memfd:"];

/// A use of a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A mount.
    Mount {
        /// The mount point, as the process sees it.
        at: PathBuf,
        /// A process in the mount namespace.
        process: Process,
    },
    /// A device on top of it, by its name in `/sys/block`.
    Device(String),
    /// A process that has the device open.
    Open(Process),
}

/// A process of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its pid, in the PID namespace of this process.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`).
    pub name: String,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mount { at, process } => {
                write!(f, "a mount at {} in the mount namespace of {process}", at.display())
            }
            Self::Device(name) => write!(f, "the device {name}"),
            Self::Open(process) => write!(f, "{process}"),
        }
    }
}

/// The users found of a block device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders(pub Vec<Holder>);

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(all) = self;
        for (number, holder) in all.iter().take(NAMED).enumerate() {
            let separator = if number > 0 { ", " } else { "" };
            write!(f, "{separator}{holder}")?;
        }
        match all.len().saturating_sub(NAMED) {
            0 if all.is_empty() => f.write_str("an unknown user"),
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl Holders {
    /// Finds the users of the block device at `path`, which has the same name in `/sys/block`, and those of
    /// its partitions. Returns none if it does not exist.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let Some(node) = DeviceNode::at(path) else { return Self::default() };
        let block_devices = Path::new(BLOCK_DEVICES);
        let parts = DiskPart::all_of(block_devices, path, node);
        let mut found = devices_on(block_devices, Path::new(HOST_ROOT), &parts);
        found.extend(users(Path::new("/proc"), &parts));
        Self(found)
    }

    /// Returns true if a program or a device on top has the device open. Ignores mounts, whose source is an
    /// arbitrary string: a real mount claims the device, which the kernel reports.
    #[must_use]
    pub fn have_it_open(&self) -> bool {
        self.0.iter().any(|holder| !matches!(holder, Holder::Mount { .. }))
    }
}

/// Identity of a device node.
#[derive(Debug, PartialEq, Eq)]
struct DeviceNode {
    file_type: FileType,
    major: u32,
    minor: u32,
}

impl DeviceNode {
    /// Reads the identity of a node; `None` without a device at `path`. Queries no remote file system.
    fn at(path: &Path) -> Option<Self> {
        let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
        let file_type = FileType::from_raw_mode(found.stx_mode.into());
        let (major, minor) = (found.stx_rdev_major, found.stx_rdev_minor);
        matches!(file_type, FileType::BlockDevice | FileType::CharacterDevice).then_some(Self {
            file_type,
            major,
            minor,
        })
    }
}

/// A whole disk, or one of its partitions: kernels before 7.0 look for those at the start of a device, later
/// ones if a program asks for it.
#[derive(Debug, PartialEq, Eq)]
struct DiskPart {
    path: PathBuf,
    /// Its directory in sysfs.
    dir: PathBuf,
    node: DeviceNode,
}

impl DiskPart {
    /// Returns a disk and its partitions.
    fn all_of(block_devices: &Path, disk: &Path, node: DeviceNode) -> Vec<Self> {
        let name = disk.file_name().unwrap_or_default();
        let (dir, prefix) = (block_devices.join(name), format!("{}p", name.to_string_lossy()));
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let partitions = entries.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix(&prefix)?.parse::<u32>().ok()?;
            let number = fs::read_to_string(entry.path().join("dev")).ok()?;
            let (major, minor) = number.trim_end().split_once(':')?;
            let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
            let node = DeviceNode { file_type: FileType::BlockDevice, major, minor };
            Some(Self { path: disk.with_file_name(&name), dir: entry.path(), node })
        });
        let disk = Self { path: disk.to_owned(), dir, node };
        std::iter::once(disk).chain(partitions).collect()
    }
}

/// Returns true if there is one of the parts at `path`.
fn is_one_at(path: &Path, parts: &[DiskPart]) -> bool {
    DeviceNode::at(path).is_some_and(|found| parts.iter().any(|part| part.node == found))
}

/// Finds the devices that claim a part of a disk, and the loop devices on it, which do not claim it. A loop
/// device's file may be a bind mount of the device, as the kubelet's for a raw volume is.
fn devices_on(block_devices: &Path, host_root: &Path, parts: &[DiskPart]) -> Vec<Holder> {
    let names = |dir: PathBuf| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let claims = parts.iter().flat_map(|part| names(part.dir.join("holders")));
    let loops = names(block_devices.to_owned()).filter(|name| {
        let backing = fs::read_to_string(block_devices.join(name).join("loop/backing_file"));
        backing.is_ok_and(|backing| {
            let file = Path::new(backing.trim_end());
            let on_host = file.strip_prefix("/").map(|below| host_root.join(below));
            parts.iter().any(|part| file == part.path) || on_host.is_ok_and(|file| is_one_at(&file, parts))
        })
    });
    claims.chain(loops).map(Holder::Device).collect()
}

/// Finds each process that has a part of the disk open, and each mount once: processes share mount
/// namespaces.
fn users(proc: &Path, parts: &[DiskPart]) -> Vec<Holder> {
    let mut pids: Vec<u32> = fs::read_dir(proc)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    let mut namespaces = BTreeSet::new();
    let mut found = Vec::new();
    for pid in pids {
        let of = proc.join(pid.to_string());
        let process = || {
            let name = fs::read_to_string(of.join("comm")).unwrap_or_default();
            Process { pid, name: name.trim_end().to_owned() }
        };
        if fs::read_link(of.join("ns/mnt")).is_ok_and(|namespace| namespaces.insert(namespace)) {
            let mounts = fs::read(of.join("mountinfo")).unwrap_or_default();
            let mounts = String::from_utf8_lossy(&mounts);
            let at = parts.iter().flat_map(|part| mount_points(&mounts, part));
            found.extend(at.map(|at| Holder::Mount { at, process: process() }));
        }
        if pid != std::process::id() && has_open(&of.join("fd"), parts) {
            found.push(Holder::Open(process()));
        }
    }
    found
}

/// Returns the mount points of a part of a disk. File systems with their own device number are recognized by
/// their source. Source: `Documentation/filesystems/proc.rst`, 3.5.
fn mount_points(mountinfo: &str, part: &DiskPart) -> impl Iterator<Item = PathBuf> {
    let number = format!("{}:{}", part.node.major, part.node.minor);
    mountinfo.lines().filter_map(move |line| {
        let (mount, rest) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(2);
        let (device, at) = (fields.next()?, fields.nth(1)?);
        let source = rest.split(' ').nth(1)?;
        let has_own_number = device.starts_with("0:");
        (device == number || (has_own_number && Path::new(source) == part.path)).then(|| PathBuf::from(at))
    })
}

fn has_open(files: &Path, parts: &[DiskPart]) -> bool {
    fs::read_dir(files).into_iter().flatten().flatten().any(|entry| {
        let link = entry.path();
        let leads_to_path = fs::read_link(&link).is_ok_and(|target| {
            let target = target.to_string_lossy();
            !PATHLESS.iter().any(|prefix| target.starts_with(prefix))
        });
        leads_to_path && is_one_at(&link, parts)
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Returns a disk without partitions.
    fn disk(path: &str, node: DeviceNode) -> [DiskPart; 1] {
        let path = PathBuf::from(path);
        [DiskPart { dir: "/none".into(), path, node }]
    }

    #[test]
    fn a_program_that_has_a_device_open_is_named() {
        let null = disk("/dev/null", DeviceNode::at(Path::new("/dev/null")).unwrap());
        let mut child =
            Command::new("sleep").arg("100").stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let holders = users(Path::new("/proc"), &null);
        let own = Holder::Open(Process { pid: child.id(), name: "sleep".to_owned() });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(holders.contains(&own), "{holders:?}");
        let is_own =
            |holder: &Holder| matches!(holder, Holder::Open(process) if process.pid == std::process::id());
        assert!(!holders.iter().any(is_own), "{holders:?}");
    }

    #[test]
    fn mounts_are_found_by_number_and_by_source() {
        let node = DeviceNode { file_type: FileType::BlockDevice, major: 259, minor: 3 };
        let mounts = "22 1 259:3 / /mnt/ext4 rw,relatime shared:1 - ext4 /dev/ublkb3 rw\n\
            23 1 0:41 /sub /mnt/btrfs rw shared:2 master:3 - btrfs /dev/ublkb3 rw,subvol=/sub\n\
            24 1 259:30 / /mnt/other rw - ext4 /dev/ublkb30 rw\n\
            25 1 0:42 / /mnt/tmp rw - tmpfs tmpfs rw\n";
        let is_open = |holder| Holders(vec![holder]).have_it_open();
        let process = Process { pid: 7, name: "fio".to_owned() };
        assert!(
            !is_open(Holder::Mount { at: "/mnt".into(), process: process.clone() }),
            "the kernel says that"
        );
        assert!(is_open(Holder::Open(process)) && is_open(Holder::Device("loop0".to_owned())));
        let [part] = disk("/dev/ublkb3", node);
        let at: Vec<_> = mount_points(mounts, &part).collect();
        assert_eq!(at, [Path::new("/mnt/ext4"), Path::new("/mnt/btrfs")]);
    }

    #[test]
    fn a_message_names_three_users_and_counts_the_rest() {
        let process = |pid| Process { pid, name: "fio".to_owned() };
        let mount = Holder::Mount { at: "/mnt".into(), process: process(7) };
        let mut all = vec![mount, Holder::Device("dm-0".to_owned())];
        assert_eq!(
            Holders(all.clone()).to_string(),
            "a mount at /mnt in the mount namespace of process 7 (fio), the device dm-0"
        );
        all.extend((8..11).map(|pid| Holder::Open(process(pid))));
        assert!(Holders(all).to_string().ends_with("process 8 (fio) and 2 more"));
        assert_eq!(Holders::default().to_string(), "an unknown user");
    }

    /// Regression: a loop device does not claim the device below it, so a detach removed that device.
    #[test]
    fn devices_on_top_are_named_loop_devices_too() {
        let block_devices = tempfile::tempdir().unwrap();
        for (name, backing) in [("loop0", "/var/image\n"), ("loop1", "/dev/ublkb1\n")] {
            fs::create_dir_all(block_devices.path().join(name).join("loop")).unwrap();
            fs::write(block_devices.path().join(name).join("loop/backing_file"), backing).unwrap();
        }
        fs::create_dir_all(block_devices.path().join("ublkb2/holders/dm-3")).unwrap();
        let on = |device| {
            let none = DeviceNode { file_type: FileType::BlockDevice, major: 0, minor: 0 };
            let parts = DiskPart::all_of(block_devices.path(), Path::new(device), none);
            devices_on(block_devices.path(), Path::new("/none"), &parts)
        };
        assert_eq!(on("/dev/ublkb1"), [Holder::Device("loop1".to_owned())]);
        assert_eq!(on("/dev/ublkb2"), [Holder::Device("dm-3".to_owned())]);
        assert!(on("/dev/ublkb10").is_empty() && on("/dev/ublkb").is_empty());
    }

    /// Regression, found in review: the users of a partition were not found, and a detach removed its disk.
    #[test]
    fn users_of_partitions_are_named() {
        let block_devices = tempfile::tempdir().unwrap();
        let disk = block_devices.path().join("ublkb1");
        for (name, number) in [("ublkb1p1", "259:7\n"), ("ublkb1p12", "259:8\n"), ("ublkb1power", "259:9\n")]
        {
            fs::create_dir_all(disk.join(name)).unwrap();
            fs::write(disk.join(name).join("dev"), number).unwrap();
        }
        fs::create_dir_all(disk.join("ublkb1p1/holders/dm-3")).unwrap();
        fs::create_dir_all(block_devices.path().join("loop0/loop")).unwrap();
        fs::write(block_devices.path().join("loop0/loop/backing_file"), "/dev/ublkb1p12\n").unwrap();
        let node = |minor| DeviceNode { file_type: FileType::BlockDevice, major: 259, minor };
        let mut parts = DiskPart::all_of(block_devices.path(), Path::new("/dev/ublkb1"), node(6));
        parts.sort_by_key(|part| part.node.minor);
        let found: Vec<_> = parts.iter().map(|part| (part.path.to_str().unwrap(), part.node.minor)).collect();
        assert_eq!(found, [("/dev/ublkb1", 6), ("/dev/ublkb1p1", 7), ("/dev/ublkb1p12", 8)]);
        let on = devices_on(block_devices.path(), Path::new("/none"), &parts);
        assert_eq!(on, [Holder::Device("dm-3".to_owned()), Holder::Device("loop0".to_owned())]);
        let mounts = "22 1 259:7 / /mnt/ext4 rw,relatime shared:1 - ext4 /dev/ublkb1p1 rw\n";
        let at: Vec<_> = parts.iter().flat_map(|part| mount_points(mounts, part)).collect();
        assert_eq!(at, [Path::new("/mnt/ext4")]);
    }

    /// The kubelet holds a raw volume this way: none of its paths has the name of the device.
    #[test]
    fn a_loop_device_on_a_bind_mount_is_named() {
        let (block_devices, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(block_devices.path().join("loop3/loop")).unwrap();
        fs::write(block_devices.path().join("loop3/loop/backing_file"), "/volumeDevices/pod\n").unwrap();
        fs::create_dir(host.path().join("volumeDevices")).unwrap();
        std::os::unix::fs::symlink("/dev/null", host.path().join("volumeDevices/pod")).unwrap();
        let on = |device| {
            let parts = disk("/dev/ublkb1", DeviceNode::at(Path::new(device)).unwrap());
            devices_on(block_devices.path(), host.path(), &parts)
        };
        assert_eq!(on("/dev/null"), [Holder::Device("loop3".to_owned())]);
        assert!(on("/dev/zero").is_empty());
    }

    #[test]
    fn a_device_that_is_gone_has_no_users() {
        assert_eq!(Holders::of(Path::new("/dev/ublkb-none")), Holders::default());
    }
}
