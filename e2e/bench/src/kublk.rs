//! The reference: the kernel's own ublk server (`kublk`), serving a file.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::vm::Vm;
use holdfast_lab::world::World;

use super::references::equalize_queue;

/// Maximum wait for a device to appear, in the machine's time.
const APPEAR: Duration = Duration::from_secs(30);

/// Tags per queue, as in the daemon's devices.
const DEPTH: u32 = 128;

/// Ways in which kublk moves data.
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

/// Installs kublk in test machines that boot later.
///
/// # Errors
/// If it cannot be built.
pub fn share(world: &World) -> Result<()> {
    world.share(&world.toolbox().kublk()?, "bin/kublk")
}

impl<'a> Kublk<'a> {
    /// Serves `file` as a device with one queue and, like the daemon's devices, 128 tags, no scheduler and no
    /// writeback throttling.
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
        equalize_queue(vm, &served.device())?;
        Ok(served)
    }

    /// Returns the path of the block device.
    pub fn device(&self) -> String {
        format!("/dev/ublkb{}", self.id)
    }

    /// Removes the device.
    ///
    /// # Errors
    /// If kublk fails.
    pub fn remove(self) -> Result<()> {
        self.vm.exec(&format!("kublk del -n {} > /dev/null", self.id)).map(drop)
    }
}
