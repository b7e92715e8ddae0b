//! Other block devices of the kernel on a file of the ramdisk: a loop device, and an NBD device whose server
//! runs in the same machine.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::vm::Vm;

/// Maximum wait for a device to get its size, in the machine's time.
const APPEAR: Duration = Duration::from_secs(30);
/// Path of the NBD device.
const NBD: &str = "/dev/nbd0";

/// A kind of device that `file` can be served as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reference {
    /// The kernel's loop device with direct I/O.
    Loop,
    /// The kernel's NBD client and `qemu-nbd` with direct I/O and io_uring, over a Unix socket. The client
    /// has one connection, and thus one queue, with 128 tags.
    Nbd,
}

/// A file served as a device, which has the queue attributes of the daemon's devices.
#[derive(Debug)]
pub(super) struct ServedFile<'a> {
    vm: &'a Vm,
    kind: Reference,
    path: String,
}

impl<'a> ServedFile<'a> {
    /// Serves `file`.
    ///
    /// # Errors
    /// If the device does not appear.
    pub(super) fn open(vm: &'a Vm, kind: Reference, file: &str) -> Result<Self> {
        let path = match kind {
            Reference::Loop => {
                let open = format!("losetup --direct-io=on --sector-size=4096 --find --show {file}");
                vm.exec(&format!("modprobe loop; {open}"))?.trim().to_owned()
            }
            Reference::Nbd => {
                vm.exec(&format!(
                    "modprobe nbd nbds_max=1 max_part=0; \
                     qemu-nbd --socket=/run/qemu-nbd.sock --connect={NBD} --format=raw --cache=none --aio=io_uring --discard=unmap {file}"
                ))
                .context("start qemu-nbd")?;
                let size = format!("until [ \"$(blockdev --getsize64 {NBD})\" -gt 0 ]; do sleep 0.1; done");
                vm.exec(&format!("timeout {} bash -c '{size}'", APPEAR.as_secs()))
                    .context("wait for the NBD device")?;
                NBD.to_owned()
            }
        };
        equalize_queue(vm, &path)?;
        Ok(Self { vm, kind, path })
    }

    /// Returns the path of the block device.
    pub(super) fn device(&self) -> &str {
        &self.path
    }

    /// Removes the device.
    ///
    /// # Errors
    /// If its program fails.
    pub(super) fn close(self) -> Result<()> {
        let close = match self.kind {
            Reference::Loop => format!("losetup --detach {}", self.path),
            // The module also goes, so that the next server finds a device without a client.
            Reference::Nbd => format!(
                "qemu-nbd --disconnect {} > /dev/null; while pidof qemu-nbd > /dev/null; do sleep 0.1; done; \
                 modprobe --remove nbd",
                self.path
            ),
        };
        self.vm.exec(&close).map(drop)
    }
}

/// Gives the device at `path` the queue attributes of the daemon's devices: no scheduler and no writeback
/// throttling. It must have 128 tags.
///
/// # Errors
/// If the device has other tags.
pub(super) fn equalize_queue(vm: &Vm, path: &str) -> Result<()> {
    vm.exec(&format!(
        "cd /sys/block/{}/queue; echo none > scheduler; grep -x 128 nr_requests; \
         if [ -e wbt_lat_usec ]; then echo 0 > wbt_lat_usec; fi",
        path.trim_start_matches("/dev/")
    ))
    .with_context(|| format!("set the queue of {path}"))
    .map(drop)
}
