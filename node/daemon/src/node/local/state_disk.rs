//! Guarantee of the disk under the state directory for writes in flight during a power failure.
//!
//! Volumes announce sectors of 4096 bytes, so their file systems assume atomic writes of a sector. Sides are
//! written in place: a volume keeps this guarantee only on a disk with atomic writes of that size. A disk's
//! guarantee is its physical block size: the kernel treats the write of one physical block as atomic, and
//! limits the size to the device's guarantee for a power failure (`nvme_update_disk_info` in Linux,
//! `drivers/nvme/host/core.c`). See `docs/adr/0005-atomic-sectors.md`.
//!
//! Owns: reading sysfs. Changes nothing, rejects nothing.

use std::fs;
use std::io;
use std::path::Path;

use holdfast_types::SECTOR_BYTES;

/// Directory of the kernel's block devices, by their numbers.
const BLOCK_DEVICES: &str = "/sys/dev/block";
const PHYSICAL_BLOCK_SIZE: &str = "queue/physical_block_size";
/// The components of a device, such as the disks of a RAID.
const PARTS: &str = "slaves";
/// Maximum layers of stacked devices.
const MAX_LAYERS: u32 = 16;

/// The block device that holds the state directory; in a stack, the one with the weakest guarantee.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StateDisk {
    /// Its name, as in `/sys/block`.
    pub(crate) device: String,
    /// Size of its atomic writes, in bytes.
    pub(crate) physical_block_bytes: u64,
}

impl StateDisk {
    /// Returns true if a power failure leaves the result of one whole write in each sector of a volume.
    pub(crate) fn keeps_sectors_whole(&self) -> bool {
        self.physical_block_bytes >= SECTOR_BYTES
    }

    /// Finds the device under a directory and logs its effect on the volumes. `None` if the file system
    /// exposes no device (tmpfs, overlay, btrfs).
    pub(crate) fn look(state_dir: &Path) -> Option<Self> {
        match Self::find(Path::new(BLOCK_DEVICES), state_dir) {
            Ok(disk) if disk.keeps_sectors_whole() => Some(disk),
            Ok(disk) => {
                tracing::warn!(
                    directory = %state_dir.display(),
                    device = disk.device,
                    physical_block_bytes = disk.physical_block_bytes,
                    "node.state_dir is on a disk with physical blocks smaller than {SECTOR_BYTES} bytes. A power \
                     cut may mix two writes in a sector that was overwritten and not flushed yet"
                );
                Some(disk)
            }
            Err(error) => {
                tracing::info!(
                    directory = %state_dir.display(),
                    %error,
                    "the block device under node.state_dir is unknown, and so is whether it writes {SECTOR_BYTES} bytes atomically; put node.state_dir on ext4 or xfs"
                );
                None
            }
        }
    }

    fn find(block_devices: &Path, directory: &Path) -> io::Result<Self> {
        let device = rustix::fs::stat(directory)?.st_dev;
        let numbers = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        Self::least(&block_devices.join(numbers), MAX_LAYERS)
    }

    /// Returns the device with the smallest blocks of a device and its components. A stack announces its
    /// components' largest size (`blk_stack_limits` in Linux, `block/blk-settings.c`), so that is not enough.
    fn least(device: &Path, layers: u32) -> io::Result<Self> {
        let mut disk = fs::canonicalize(device)?;
        if !disk.join(PHYSICAL_BLOCK_SIZE).try_exists()? {
            // A partition has the guarantee of its disk.
            disk.pop();
        }
        let size = fs::read_to_string(disk.join(PHYSICAL_BLOCK_SIZE))?;
        let physical_block_bytes = size.trim().parse().map_err(io::Error::other)?;
        let name = disk.file_name().unwrap_or_default();
        let mut least = Self { device: name.to_string_lossy().into_owned(), physical_block_bytes };
        let parts = match fs::read_dir(disk.join(PARTS)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(least),
            parts => parts?,
        };
        for part in parts {
            let Some(layers) = layers.checked_sub(1) else {
                return Err(io::Error::other("devices are stacked too high"));
            };
            let part = Self::least(&part?.path(), layers)?;
            if part.physical_block_bytes < least.physical_block_bytes {
                least = part;
            }
        }
        Ok(least)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A sysfs with one device under the directory itself.
    struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        fn new() -> Self {
            let sysfs = Self(tempfile::tempdir().unwrap());
            fs::create_dir(sysfs.0.path().join("dev")).unwrap();
            sysfs
        }

        fn disk(&self, path: &str, physical_block_size: &str) {
            let queue = self.0.path().join(path).join("queue");
            fs::create_dir_all(&queue).unwrap();
            fs::write(queue.join("physical_block_size"), physical_block_size).unwrap();
        }

        fn part(&self, of: &str, part: &str) {
            let parts = self.0.path().join(of).join("slaves");
            fs::create_dir_all(&parts).unwrap();
            symlink(self.0.path().join(part), parts.join(Path::new(part).file_name().unwrap())).unwrap();
        }

        /// Finds the disk if `device` is the one under the directory.
        fn find(&self, device: &str) -> io::Result<StateDisk> {
            let stat = rustix::fs::stat(self.0.path()).unwrap().st_dev;
            let numbers = format!("{}:{}", rustix::fs::major(stat), rustix::fs::minor(stat));
            symlink(self.0.path().join(device), self.0.path().join("dev").join(numbers)).unwrap();
            StateDisk::find(&self.0.path().join("dev"), self.0.path())
        }
    }

    fn disk(device: &str, physical_block_bytes: u64) -> StateDisk {
        StateDisk { device: device.to_owned(), physical_block_bytes }
    }

    #[test]
    fn a_directorys_disk_reports_its_atomic_write_size() {
        let sysfs = Sysfs::new();
        sysfs.disk("nvme0n1", "4096\n");
        let found = sysfs.find("nvme0n1").unwrap();
        assert_eq!(found, disk("nvme0n1", 4096));
        assert!(found.keeps_sectors_whole());
        assert!(!disk("sda", 512).keeps_sectors_whole());
    }

    #[test]
    fn a_partition_is_as_good_as_its_disk() {
        let sysfs = Sysfs::new();
        sysfs.disk("sda", "512\n");
        fs::create_dir(sysfs.0.path().join("sda/sda1")).unwrap();
        assert_eq!(sysfs.find("sda/sda1").unwrap(), disk("sda", 512));
    }

    #[test]
    fn a_stack_counts_as_the_worst_of_its_disks() {
        let sysfs = Sysfs::new();
        for (name, size) in [("dm-0", "4096\n"), ("md0", "4096\n"), ("sda", "4096\n"), ("sdb", "512\n")] {
            sysfs.disk(name, size);
        }
        fs::create_dir(sysfs.0.path().join("sdb/sdb2")).unwrap();
        sysfs.part("dm-0", "md0");
        sysfs.part("md0", "sda");
        sysfs.part("md0", "sdb/sdb2");
        assert_eq!(sysfs.find("dm-0").unwrap(), disk("sdb", 512));
    }

    #[test]
    fn a_file_system_without_a_device_has_no_state_disk() {
        let sysfs = Sysfs::new();
        assert!(StateDisk::find(&sysfs.0.path().join("dev"), sysfs.0.path()).is_err());
        assert_eq!(StateDisk::look(Path::new("/proc")), None);
    }
}
