//! Command line of QEMU.

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::recorded::RecordedDisk;
use crate::guest;
use crate::process::LoggedProcess;
use crate::setup::boot::{Accelerator, BootFiles, QEMU};
use crate::setup::root_fs::UserSpace;
use crate::wire;

/// The state disk's image, in the machine's directory.
pub(super) const STATE_IMAGE: &str = "state.ext4";
/// Default physical block size of a state disk, in bytes: a sector of a volume, as recommended for nodes.
const PHYSICAL_BLOCK_BYTES: u32 = 4096;

/// Port of a cluster's machine, forwarded to a pod after a call of [`crate::cluster::Cluster::reach`].
pub const POD_PORT: u16 = 19181;

/// Properties of one machine.
#[derive(Debug, Clone)]
pub struct MachineOptions {
    /// Its root file system.
    pub user_space: UserSpace,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Processors.
    pub processors: u32,
    /// The state disk, mounted at `/state`.
    pub state: MachineDisk,
    /// The physical block size announced by the state disk, in bytes.
    pub state_block_bytes: u32,
    /// One guest second is 1e9 guest instructions, regardless of the host: for benchmarks. One processor,
    /// always emulated.
    pub count_instructions: bool,
    /// True for an emulated processor without vector instructions. Programs in Go use them for copying, and
    /// each costs the emulator a call.
    pub plain_processor: bool,
    /// TCP ports of the host's loopback, each with the machine's port that it is forwarded to.
    pub ports: Vec<(u16, u16)>,
    /// Modules that the agent loads before it responds.
    pub modules: Vec<String>,
}

/// State disk of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MachineDisk {
    /// An empty file system of this many bytes (sparse).
    Empty(u64),
    /// The same, on a [`RecordedDisk`].
    Recorded(u64),
    /// The content of this image; the machine writes to it.
    Image(PathBuf),
}

impl MachineOptions {
    /// Returns a storage node: ublk, two processors, a state disk of 16 GiB (sparse).
    pub fn node() -> Self {
        Self {
            user_space: UserSpace::Plain,
            memory_mib: 2048,
            processors: 2,
            state: MachineDisk::Empty(16 << 30),
            state_block_bytes: PHYSICAL_BLOCK_BYTES,
            count_instructions: false,
            plain_processor: false,
            ports: Vec::new(),
            modules: vec!["ublk_drv".to_owned()],
        }
    }

    /// Returns a storage node without a loaded ublk driver, but with the requirements of other devices.
    pub fn without_ublk() -> Self {
        Self { modules: ["fuse", "loop"].map(str::to_owned).into(), ..Self::node() }
    }

    /// Returns a node of a cluster: the same with space for pods, and with their runtime. Its kubelet listens
    /// on `kubelet`, and `pod` is forwarded to the port [`POD_PORT`] of the machine.
    pub fn cluster_node(kubelet: u16, pod: u16) -> Self {
        // The kubelet holds a raw device with a loop device; without udev, nothing loads its module.
        let modules = ["ublk_drv", "overlay", "bridge", "br_netfilter", "veth", "loop"];
        Self {
            user_space: UserSpace::Containers,
            memory_mib: 4096,
            plain_processor: true,
            ports: vec![(kubelet, kubelet), (pod, POD_PORT)],
            modules: modules.map(str::to_owned).into(),
            ..Self::node()
        }
    }

    /// Returns a node with a common setup: systemd is process 1; udev, LVM, md and multipath daemons run.
    pub fn systemd() -> Self {
        Self { user_space: UserSpace::Systemd, ..Self::node() }
    }

    /// Returns a machine whose clock counts instructions, with memory for a ramdisk.
    pub fn benchmark() -> Self {
        Self { memory_mib: 4096, processors: 1, count_instructions: true, ..Self::node() }
    }
}

/// Starts QEMU; returns it and the host port that is forwarded to the agent.
pub(super) fn launch(
    name: &str,
    dir: &Path,
    boot: &BootFiles,
    options: &MachineOptions,
    recorded: Option<&RecordedDisk>,
) -> Result<(LoggedProcess, u16)> {
    let port = free_port()?;
    let mut qemu = Command::new(QEMU);
    qemu.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"])
        .args(["-machine", "q35"])
        .args(["-m", &options.memory_mib.to_string()])
        .arg("-kernel")
        .arg(&boot.vmlinux)
        .arg("-initrd")
        .arg(&boot.initramfs)
        .args(["-append", &kernel_options(name, options)])
        .args(["-serial", "stdio"])
        .args(["-netdev", &network(port, &options.ports)])
        .args(["-device", "virtio-net-pci,netdev=net,romfile="]);
    // ERMS and FSRM make the kernel copy byte by byte, four times slower under TCG.
    let emulated = if options.plain_processor { "Nehalem" } else { "max,-erms,-fsrm" };
    let emulated_processors = options.processors.min(boot.emulated_processors);
    match (options.count_instructions, boot.accelerator) {
        (true, _) => qemu
            .args(["-accel", "tcg,thread=single,tb-size=512", "-icount", "shift=0"])
            .args(["-cpu", emulated, "-smp", "1"]),
        (false, Accelerator::Tcg) => qemu
            .args(["-accel", "tcg,thread=multi,tb-size=512", "-cpu", emulated])
            .args(["-smp", &emulated_processors.to_string()]),
        (false, Accelerator::Kvm) => {
            qemu.args(["-accel", "kvm", "-cpu", "host"]).args(["-smp", &options.processors.to_string()])
        }
    };
    disk(&mut qemu, "root", &boot.root_fs, "snapshot=on", "");
    disk(&mut qemu, "share", &dir.join("share.ext4"), "readonly=on", "");
    // The host does not crash in a test, so its page cache is sufficient.
    let settings = "cache=unsafe,discard=unmap";
    let (file, settings) = match (recorded, &options.state) {
        (Some(recorded), _) => (recorded.url().into(), "cache=writeback"),
        (None, MachineDisk::Image(image)) => (image.clone(), settings),
        (None, MachineDisk::Empty(_) | MachineDisk::Recorded(_)) => (dir.join(STATE_IMAGE), settings),
    };
    disk(&mut qemu, "state", &file, settings, &format!(",physical_block_size={}", options.state_block_bytes));
    qemu.stdin(Stdio::null());
    let process = LoggedProcess::spawn(&format!("vm-{name}"), &qemu, &dir.join("console.log"))?;
    Ok((process, port))
}

/// Configures QEMU's network, with host ports forwarded to the agent and to `ports` of the machine.
fn network(agent: u16, ports: &[(u16, u16)]) -> String {
    let mut network = format!("user,id=net,hostfwd=tcp:127.0.0.1:{agent}-:{}", wire::PORT);
    for (host, machine) in ports {
        network += &format!(",hostfwd=tcp:127.0.0.1:{host}-:{machine}");
    }
    network
}

fn kernel_options(name: &str, options: &MachineOptions) -> String {
    let mut words = vec![
        "console=ttyS0 quiet panic=-1 mitigations=off nokaslr no_timer_check tsc=reliable".to_owned(),
        "net.ifnames=0".to_owned(),
        format!("{}{name}", guest::NAME),
    ];
    if !options.modules.is_empty() {
        words.push(format!("{}{}", guest::MODULES, options.modules.join(",")));
    }
    if options.user_space == UserSpace::Systemd {
        words.push(format!("{}/sbin/init", guest::INIT));
    }
    words.join(" ")
}

/// Adds a disk; `settings` are QEMU's own, `announced` are additional properties of the machine's device.
fn disk(qemu: &mut Command, id: &str, file: &Path, settings: &str, announced: &str) {
    let file = file.display();
    qemu.args(["-drive", &format!("file={file},if=none,id={id},format=raw,{settings}")])
        .args(["-device", &format!("virtio-blk-pci,drive={id}{announced}")]);
}

/// Returns a TCP port of the loopback that was free a moment ago.
///
/// # Errors
/// If the host has none left.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    Ok(listener.local_addr().context("read the free port")?.port())
}
