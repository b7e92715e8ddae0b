//! A daemon to measure: one machine whose clock counts instructions, all state on ext4 on a ramdisk.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::s3::S3Server;
use holdfast_lab::vm::Vm;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

/// The bucket.
pub(crate) const BUCKET: &str = "bench";
/// The daemon's state directory: the file system on the ramdisk.
pub(crate) const STATE_DIR: &str = "/var/lib/holdfast";
/// Maximum wait until all writes of a volume are committed.
pub(crate) const COMMIT_LIMIT: Duration = Duration::from_secs(300);
/// Maximum wait for a device.
pub(crate) const DEVICE_LIMIT: Duration = Duration::from_secs(60);

/// The daemon and its environment.
pub(crate) struct DaemonBench {
    pub(crate) vm: Arc<Vm>,
    pub(crate) s3: Arc<S3Server>,
    control: ControlInterface,
    pub(crate) node: NodeDaemon,
}

impl DaemonBench {
    /// Boots a machine and starts the daemon with these `data` settings, with zero copy.
    pub(crate) fn start(world: &World, data: &str) -> Result<Self> {
        Self::start_on(world, MachineOptions::benchmark(), data)
    }

    /// Starts the daemon on a machine with these options.
    pub(crate) fn start_on(world: &World, options: MachineOptions, data: &str) -> Result<Self> {
        let s3 = world.s3()?;
        s3.create_bucket(BUCKET)?;
        let vm = world.vm_with("bench", || options)?;
        vm.exec(&format!(
            "modprobe brd rd_nr=1 rd_size=1572864; mkfs.ext4 -q -F /dev/ram0; mount /dev/ram0 {STATE_DIR}"
        ))?;
        let control = ControlInterface::standalone(&s3, BUCKET);
        let node = NodeDaemon::start(Arc::clone(&vm), &control, "zero-copy", data)?;
        Ok(Self { vm, s3, control, node })
    }

    /// Restarts the daemon with other settings, after deleting all volume data on the node. All volumes must
    /// be detached.
    pub(crate) fn restart_with(&mut self, transport: &str, data: &str) -> Result<()> {
        self.node.terminate()?;
        // The machine's clock counts instructions. On a busy host it falls behind, and the S3 server refuses
        // requests whose time differs by 15 minutes.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?.as_secs();
        self.vm.exec(&format!("rm -r {STATE_DIR}/*; date --set=@{now}"))?;
        self.node = NodeDaemon::start(Arc::clone(&self.vm), &self.control, transport, data)?;
        Ok(())
    }

    /// Restarts the daemon with another transport for later attaches. It continues to serve the attached
    /// volumes.
    pub(crate) fn change_transport(&mut self, transport: &str, data: &str) -> Result<()> {
        self.node.terminate()?;
        self.node = NodeDaemon::start(Arc::clone(&self.vm), &self.control, transport, data)?;
        Ok(())
    }

    /// Creates a volume.
    pub(crate) fn create(&self, volume: &str, size: &str) -> Result<()> {
        self.node.cli(&["create", volume, "--size", size, "--store", "store"]).map(drop)
    }

    /// Attaches a volume and returns its device.
    pub(crate) fn attach(&self, volume: &str, more: &[&str]) -> Result<String> {
        let device = self.node.cli(&[&["attach", volume, "--store", "store"], more].concat())?;
        let device = device.trim().to_owned();
        self.vm.wait_block_device(&device, DEVICE_LIMIT)?;
        Ok(device)
    }

    /// Detaches a volume.
    pub(crate) fn detach(&self, volume: &str) -> Result<()> {
        self.node.cli(&["detach", volume]).map(drop)
    }

    /// Waits until the volume has committed a record later than `seq` and has no dirty data.
    pub(crate) fn wait_committed_after(&self, volume: &str, seq: f64) -> Result<()> {
        until("the commit", COMMIT_LIMIT, || {
            let committed = self.node.metric("holdfast_volume_committed_seq", volume)?;
            let dirty = self.node.metric("holdfast_volume_dirty_bytes", volume)?;
            Ok((committed > Some(seq) && dirty == Some(0.0)).then_some(()))
        })
    }

    /// Returns the number of the last record that the volume committed.
    pub(crate) fn committed_seq(&self, volume: &str) -> Result<f64> {
        let seq = self.node.metric("holdfast_volume_committed_seq", volume)?;
        seq.with_context(|| format!("{volume} has no committed_seq"))
    }
}
