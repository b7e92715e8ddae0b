//! The devices that are compared.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::node::{Node, SIGTERM};
use holdfast_lab::vm::bash;
use serde_json::Value;

/// Longest wait for a device.
const APPEAR: Duration = Duration::from_secs(60);
/// Number of the device of trueno-ublk: ours begin at 0.
const TRUENO_ID: u32 = 9;
/// Program of trueno-ublk among the machine's.
const TRUENO: &str = "trueno";
/// Name of our volume.
const VOLUME: &str = "subject";
/// The table of our volume, and the length of its head: `docs/formats/memory-volume.md`.
pub(super) const TABLE: &str = "/run/holdfast/memory.d/subject/table";
pub(super) const TABLE_HEAD_BYTES: u64 = 4096;

/// A codec that zram, trueno-ublk and ours have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Lz4,
    /// The level of ours is 1, and so is that of trueno-ublk here; zram's is 3 unless it is given one.
    Zstd,
}

impl Codec {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// A kind of device in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The kernel's ramdisk.
    Brd,
    /// The kernel's compressed ramdisk.
    Zram(Codec),
    /// Another one behind ublk, as it is by default.
    Trueno(Codec),
    /// A memory volume.
    Ours(Codec),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Brd => f.write_str("brd"),
            Self::Zram(codec) => write!(f, "zram {}", codec.name()),
            Self::Trueno(codec) => write!(f, "trueno-ublk {}", codec.name()),
            Self::Ours(codec) => write!(f, "memory volume {}", codec.name()),
        }
    }
}

/// A device of a subject.
pub(super) struct ServedSubject {
    subject: Subject,
    pub(super) device: String,
}

impl Subject {
    /// Makes its device.
    pub(super) fn serve(self, node: &Node, bytes: u64) -> Result<ServedSubject> {
        let vm = node.vm();
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
                    Codec::Lz4 => "lz4",
                    Codec::Zstd => "zstd1",
                };
                let command = format!(
                    "exec trueno-ublk create --dev-id {TRUENO_ID} --size {}M --algorithm {algorithm} --foreground",
                    bytes >> 20
                );
                vm.spawn(TRUENO, &bash(&command))?;
                let device = format!("/dev/ublkb{TRUENO_ID}");
                vm.wait_block_device(&device, APPEAR)?;
                vm.exec(&format!("echo none > /sys/block/ublkb{TRUENO_ID}/queue/scheduler"))?;
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
        Ok(ServedSubject { subject: self, device })
    }
}

impl ServedSubject {
    /// Memory of the contents now, without a table of pages; nothing of one that does not say it.
    pub(super) fn memory_bytes(&self, node: &Node) -> Result<Option<u64>> {
        match self.subject {
            Subject::Brd | Subject::Trueno(_) => Ok(None),
            Subject::Zram(_) => {
                // orig_data_size, compr_data_size, mem_used_total: Documentation/admin-guide/blockdev/zram.rst
                let found = node.vm().exec("cat /sys/block/zram0/mm_stat")?;
                let used = found.split_whitespace().nth(2).context("mm_stat is short")?;
                Ok(Some(used.parse().with_context(|| format!("mm_stat is {found:?}"))?))
            }
            Subject::Ours(_) => {
                let listed: Value = serde_json::from_str(&node.cli(&["list", "--json"])?)?;
                let used = listed.pointer("/volumes/0/memory/used_bytes").and_then(Value::as_u64);
                Ok(Some(used.with_context(|| format!("no memory of a volume in {listed}"))?))
            }
        }
    }

    /// Removes the device.
    pub(super) fn remove(self, node: &Node) -> Result<()> {
        let vm = node.vm();
        match self.subject {
            Subject::Brd => Ok(()),
            Subject::Zram(_) => vm.exec("echo 1 > /sys/block/zram0/reset").map(drop),
            Subject::Trueno(_) => {
                vm.signal(TRUENO, SIGTERM)?;
                vm.wait(TRUENO, APPEAR).map(drop)
            }
            Subject::Ours(_) => node.cli(&["detach", VOLUME]).map(drop),
        }
    }
}
