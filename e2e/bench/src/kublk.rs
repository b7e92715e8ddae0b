//! The reference: the kernel's own ublk server, serving a file.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::vm::Vm;
use holdfast_lab::world::World;

/// Longest wait for a device to appear, in the machine's time.
const APPEAR: Duration = Duration::from_secs(30);

/// Tags of a queue: those of the daemon's devices.
const DEPTH: u32 = 128;

/// Ways by which kublk moves data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Registered request buffers.
    ZeroCopy,
    /// Registered request buffers, and batches of requests.
    ZeroCopyBatches,
    /// Reads and writes of the character device.
    UserCopy,
}

/// A device of kublk.
#[derive(Debug)]
pub struct Kublk<'a> {
    vm: &'a Vm,
    id: u32,
}

/// Puts kublk into the test machines booted later.
///
/// # Errors
/// If it cannot be built.
pub fn share(world: &World) -> Result<()> {
    world.share(&world.toolbox().kublk()?, "bin/kublk")
}

impl<'a> Kublk<'a> {
    /// Serves `file` as a device with one queue, with as many tags as the daemon's devices have, no scheduler
    /// and no throttling of writes, as they are.
    ///
    /// # Errors
    /// If the device does not appear.
    pub fn serve(vm: &'a Vm, id: u32, file: &str, mode: Mode) -> Result<Self> {
        let mode = match mode {
            Mode::ZeroCopy => "--auto_zc",
            Mode::ZeroCopyBatches => "--auto_zc -b",
            Mode::UserCopy => "-u",
        };
        vm.exec(&format!("kublk add -t loop -n {id} -q 1 -d {DEPTH} {mode} {file} > /dev/null"))
            .context("start kublk")?;
        let served = Self { vm, id };
        vm.wait_block_device(&served.device(), APPEAR)?;
        vm.exec(&format!(
            "cd /sys/block/ublkb{id}/queue; echo none > scheduler; if [ -e wbt_lat_usec ]; then echo 0 > wbt_lat_usec; fi"
        ))?;
        Ok(served)
    }

    /// The block device.
    pub fn device(&self) -> String {
        format!("/dev/ublkb{}", self.id)
    }

    /// Removes the device.
    ///
    /// # Errors
    /// If kublk cannot.
    pub fn remove(self) -> Result<()> {
        self.vm.exec(&format!("kublk del -n {} > /dev/null", self.id)).map(drop)
    }
}
