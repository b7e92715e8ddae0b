//! The compared devices.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::node::{NodeDaemon, SIGTERM};
use holdfast_lab::vm::{Vm, bash};
use serde_json::Value;

/// Maximum wait for a device.
const APPEAR: Duration = Duration::from_secs(60);
/// Seconds until the published figures of a memory volume include its last request: the daemon publishes them
/// periodically.
const PUBLISHED_SECONDS: u32 = 2;
/// Number of trueno-ublk's device: ours begin at 0.
const TRUENO_ID: u32 = 9;
/// Name of trueno-ublk's program in the machine.
const TRUENO: &str = "trueno";
/// Name of our volume.
const VOLUME: &str = "compared";
/// Table of our volume, and the length of its head: `docs/formats/memory-volume.md`.
pub(super) const TABLE: &str = "/run/holdfast/memory.d/compared/table";
pub(super) const TABLE_HEAD_BYTES: u64 = 4096;

/// A codec of zram, trueno-ublk and memory volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceCodec {
    Lz4,
    /// At level 3, as in memory volumes and zram.
    Zstd,
}

impl DeviceCodec {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A kind of device in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryDevice {
    /// The kernel's ramdisk.
    Brd,
    /// The kernel's compressed ramdisk.
    Zram(DeviceCodec),
    /// Another compressed one behind ublk, here with compression of each page before it answers the write. By
    /// default it compresses later, and a read after the write returns wrong bytes.
    Trueno(DeviceCodec),
    /// A memory volume.
    Ours(DeviceCodec),
}

impl fmt::Display for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Brd => f.write_str("brd"),
            Self::Zram(codec) => write!(f, "zram {}", codec.name()),
            Self::Trueno(codec) => write!(f, "trueno-ublk {}", codec.name()),
            Self::Ours(codec) => write!(f, "memory volume {}", codec.name()),
        }
    }
}

/// A running device of a kind.
pub(super) struct RunningDevice {
    kind: MemoryDevice,
    pub(super) device: String,
    /// For trueno-ublk: its process, and the memory of the empty device.
    process: Option<(i32, u64)>,
}

impl MemoryDevice {
    /// Creates a device of this kind.
    pub(super) fn serve(self, node: &NodeDaemon, bytes: u64) -> Result<RunningDevice> {
        let vm = node.vm();
        let mut process = None;
        let device = match self {
            Self::Brd => "/dev/ram0".to_owned(),
            Self::Zram(codec) => {
                vm.exec(&format!(
                    "cd /sys/block/zram0; echo {} > comp_algorithm; echo {bytes} > disksize",
                    codec.name()
                ))?;
                "/dev/zram0".to_owned()
            }
            Self::Trueno(codec) => {
                let algorithm = match codec {
                    DeviceCodec::Lz4 => "lz4",
                    DeviceCodec::Zstd => "zstd3",
                };
                let command = format!(
                    "exec trueno-ublk create --dev-id {TRUENO_ID} --size {}M --algorithm {algorithm} --no-batched \
                     --foreground",
                    bytes >> 20
                );
                let pid = vm.spawn(TRUENO, &bash(&command))?;
                let device = format!("/dev/ublkb{TRUENO_ID}");
                vm.wait_block_device(&device, APPEAR)?;
                // The scheduler may be busy for a moment after the device appears.
                vm.exec(&format!(
                    "for i in $(seq 50); do \
                     if echo none > /sys/block/ublkb{TRUENO_ID}/queue/scheduler; then exit 0; fi; \
                     sleep 0.1; done; exit 1"
                ))?;
                process = Some((pid, anonymous_bytes(vm, pid)?));
                device
            }
            Self::Ours(codec) => {
                let size = bytes.to_string();
                let device =
                    node.cli(&["attach", VOLUME, "--memory", &size, "--compression", codec.name()])?;
                device.trim().to_owned()
            }
        };
        vm.wait_block_device(&device, APPEAR)?;
        Ok(RunningDevice { kind: self, device, process })
    }
}

impl RunningDevice {
    /// Returns the memory of the contents, without a table of pages; `None` if the kind does not report it.
    pub(super) fn memory_bytes(&self, node: &NodeDaemon) -> Result<Option<u64>> {
        match self.kind {
            MemoryDevice::Brd => Ok(None),
            MemoryDevice::Trueno(_) => {
                let (pid, empty) = self.process.context("it has a process")?;
                Ok(Some(anonymous_bytes(node.vm(), pid)?.saturating_sub(empty)))
            }
            MemoryDevice::Zram(_) => {
                // The third field is mem_used_total: Documentation/admin-guide/blockdev/zram.rst
                let found = node.vm().exec("cat /sys/block/zram0/mm_stat")?;
                let used = found.split_whitespace().nth(2).context("mm_stat is short")?;
                Ok(Some(used.parse().with_context(|| format!("mm_stat is {found:?}"))?))
            }
            MemoryDevice::Ours(_) => {
                node.vm().exec(&format!("sleep {PUBLISHED_SECONDS}"))?;
                let listed: Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
                let used = listed.pointer("/volumes/0/memory/used_bytes").and_then(Value::as_u64);
                Ok(Some(used.with_context(|| format!("no memory of a volume in {listed}"))?))
            }
        }
    }

    /// Removes the device.
    pub(super) fn remove(self, node: &NodeDaemon) -> Result<()> {
        let vm = node.vm();
        match self.kind {
            MemoryDevice::Brd => Ok(()),
            MemoryDevice::Zram(_) => vm.exec("echo 1 > /sys/block/zram0/reset").map(drop),
            MemoryDevice::Trueno(_) => {
                vm.signal(TRUENO, SIGTERM)?;
                vm.wait(TRUENO, APPEAR)?;
                vm.exec(&format!("while test -e {}; do sleep 0.1; done", self.device)).map(drop)
            }
            MemoryDevice::Ours(_) => node.cli(&["detach", VOLUME]).map(drop),
        }
    }
}

/// Returns the anonymous memory of a process.
fn anonymous_bytes(vm: &Vm, pid: i32) -> Result<u64> {
    let found = vm.exec(&format!("grep RssAnon: /proc/{pid}/status"))?;
    let kib = found.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("its status is {found:?}"))? * 1024)
}
