//! Processes of the experiment in a test machine.

use std::time::Duration;

use anyhow::Result;
use holdfast_lab::vm::{Vm, bash};

/// File with the data, on ext4 on a ramdisk.
const DISK: &str = "/mnt/data/disk";
/// Mount point of the FUSE file system.
pub(super) const MOUNT_POINT: &str = "/mnt/uring";
/// Maximum wait for the processes to exit.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Creates the file with the data.
pub(super) fn prepare(vm: &Vm) -> Result<()> {
    vm.exec(&format!(
        "modprobe brd rd_nr=1 rd_size=524288; mkdir -p /mnt/data {MOUNT_POINT}; mkfs.ext4 -q -F /dev/ram0\n\
         mount /dev/ram0 /mnt/data; dd if=/dev/zero of={DISK} bs=1M count=256 status=none; sync"
    ))
    .map(drop)
}

/// A mounted file with its server, and a keeper in the ways with one.
pub(super) struct RunningUring<'a> {
    vm: &'a Vm,
    name: String,
}

impl<'a> RunningUring<'a> {
    pub(super) fn start(vm: &'a Vm, way: &str) -> Result<Self> {
        let name = format!("uring-{way}");
        vm.spawn(&name, &bash(&format!("exec uring run {way} {DISK} {MOUNT_POINT}")))?;
        vm.exec(&format!(
            "for try in $(seq 300); do timeout 5 stat {MOUNT_POINT}/disk && exit; sleep 0.1; done; exit 1"
        ))?;
        Ok(Self { vm, name })
    }

    /// Binds a loop device to the file with the daemon's settings.
    pub(super) fn bind(&self) -> Result<String> {
        let found = self.vm.exec(&format!(
            "device=$(losetup --direct-io=on --sector-size=4096 --find --show {MOUNT_POINT}/disk)\n\
             cd /sys/block/${{device#/dev/}}; grep -qx 1 loop/dio; cd queue; echo none > scheduler; echo 512 > max_sectors_kb\n\
             if [ -e wbt_lat_usec ]; then echo 0 > wbt_lat_usec; fi; echo $device"
        ))?;
        Ok(found.trim().to_owned())
    }

    /// Returns the log since the start.
    pub(super) fn log(&self) -> Result<String> {
        self.vm.log(&self.name)
    }

    /// Kills all processes, first the one that would restart the others.
    pub(super) fn end(self) -> Result<()> {
        let script =
            "umount --lazy MOUNT; kill -9 $(pgrep -o -x uring); while pkill -9 -x uring; do sleep 0.1; done";
        self.vm.exec(&script.replace("MOUNT", MOUNT_POINT))?;
        self.vm.wait(&self.name, END_LIMIT).map(drop)
    }
}
