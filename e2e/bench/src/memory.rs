//! Memory volumes against other block devices in memory: the kernel's ramdisk (`brd`), its compressed ramdisk
//! (`zram`), and `trueno-ublk`, which compresses behind ublk like a memory volume. Same boot, same bytes,
//! same requests.
//!
//! The machine has one processor, whose clock counts instructions, so it does not show gains of several
//! queues on several processors. The recovery runs on the host, and its figure is processor time: the cost of
//! a large table depends on caches, which the machine does not emulate.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result};
use holdfast_lab::command::output;
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::setup::Toolbox;
use holdfast_lab::vm::Vm;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;

use super::{Bar, Figure};
use corpus::{Corpus, make};
use device::{DeviceCodec, MemoryDevice, RunningDevice};
use load::{DeviceLoad, PlaceOrder};

mod corpus;
mod device;
pub(super) mod faults;
mod load;

const BUCKET: &str = "bench";
const MEMORY: &str = "memory_volumes = \"1Gi\"";
const PAGE_BYTES: u64 = 4096;
/// Corpora per device when memory is measured. One slab of each class may be partly used, which matters more
/// in smaller volumes.
const MEASURED_CORPORA: u64 = 4;
/// Random overwrites per page of the device before the overhead is measured.
const OVERWRITES: u64 = 20;

/// A row of the comparison.
struct MemoryRow {
    name: &'static str,
    load: DeviceLoad,
}

/// Returns the rows. Reads come first, to find the bytes of the corpus in order.
fn rows() -> Vec<MemoryRow> {
    let random = |write, depth| DeviceLoad {
        write,
        order: PlaceOrder::Random,
        block_bytes: 4096,
        depth,
        requests: 4096,
    };
    let in_order = |write, depth| DeviceLoad {
        write,
        order: PlaceOrder::Sequential,
        block_bytes: 1 << 20,
        depth,
        requests: 16,
    };
    vec![
        MemoryRow { name: "randread4k_depth32", load: random(false, 32) },
        MemoryRow { name: "randread4k_depth1", load: random(false, 1) },
        MemoryRow { name: "read1m_depth32", load: in_order(false, 32) },
        MemoryRow { name: "read1m_depth1", load: in_order(false, 1) },
        MemoryRow { name: "write1m_depth32", load: in_order(true, 32) },
        MemoryRow { name: "write1m_depth1", load: in_order(true, 1) },
        MemoryRow { name: "randwrite4k_depth32", load: random(true, 32) },
        MemoryRow { name: "randwrite4k_depth1", load: random(true, 1) },
    ]
}

/// The rows of a kind, in requests per second.
type RowSpeeds = BTreeMap<&'static str, f64>;

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    // First, because a machine would use resources of the host.
    let mut figures = vec![recovery(world.toolbox())?];
    world.share(&world.programs()?.join("examples/load"), "bin/load")?;
    let trueno = world.toolbox().trueno_ublk().and_then(|program| world.share(&program, "bin/trueno-ublk"));
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("bench", MachineOptions::benchmark)?;
    vm.exec(&format!(
        "modprobe brd rd_nr=1 rd_size={}; modprobe zram num_devices=1",
        corpus::CORPUS_BYTES / 1024
    ))?;
    for corpus in Corpus::ALL {
        vm.exec(&make(corpus))?;
    }
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "auto", MEMORY)?;
    for corpus in Corpus::ALL {
        figures.extend(compare(&node, corpus, trueno.is_ok())?);
    }
    if let Err(error) = &trueno {
        figures.push(not_run("vs_trueno", error));
    }
    for corpus in Corpus::ALL {
        for codec in [DeviceCodec::Lz4, DeviceCodec::Zstd] {
            figures.push(compression(&node, corpus, codec)?);
        }
    }
    figures.push(table_bytes_per_page(&node)?);
    figures.push(overhead(&node)?);
    node.terminate()?;
    node.vm().power_off()?;
    Ok(figures)
}

/// Measures this host's processor time to open a table of 64 GiB: `node/serve/examples/recover.rs`.
fn recovery(toolbox: &Toolbox) -> Result<Figure> {
    const NAME: &str = "memory_recover_ms_64gib";
    let program = toolbox.example("holdfast-serve", "recover")?;
    report::step("recover a table of 64 GiB");
    let output = output(&mut Command::new(program))?;
    let (orders, milliseconds) =
        output.trim().rsplit_once(NAME).with_context(|| format!("no {NAME} in {output}"))?;
    Ok(Figure {
        name: NAME.to_owned(),
        value: milliseconds.trim().parse().with_context(|| format!("not a number: {milliseconds}"))?,
        unit: "ms",
        against: orders.lines().collect::<Vec<_>>().join(", "),
        bar: Some(Bar::AtMost(200.0)),
    })
}

/// Compares all kinds of device with the bytes of a corpus.
fn compare(node: &NodeDaemon, corpus: Corpus, has_trueno: bool) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let rows = rows();
    let brd = measure(node, MemoryDevice::Brd, corpus, &rows)?;
    for codec in [DeviceCodec::Lz4, DeviceCodec::Zstd] {
        if codec == DeviceCodec::Zstd && corpus != Corpus::Mixed {
            continue;
        }
        let zram = measure(node, MemoryDevice::Zram(codec), corpus, &rows)?;
        let ours = measure(node, MemoryDevice::Ours(codec), corpus, &rows)?;
        let (name, codec_name) = (corpus.name(), codec.name());
        for row in &rows {
            let against = |figure: String, theirs: &RowSpeeds, bar| {
                speed_ratio(figure, (&ours.speeds, theirs), row.name, bar)
            };
            let bar = match (row.name, corpus, codec) {
                ("randread4k_depth32", Corpus::Mixed, DeviceCodec::Lz4) => {
                    Some(("memory_read_vs_zram", 0.60))
                }
                ("randwrite4k_depth32", Corpus::Mixed, DeviceCodec::Lz4) => {
                    Some(("memory_write_vs_zram", 0.70))
                }
                _ => None,
            };
            let figure = bar.map_or_else(
                || format!("vs_zram_{codec_name}_{name}_{}", row.name),
                |(figure, _)| figure.to_owned(),
            );
            figures.push(against(figure, &zram.speeds, bar.map(|(_, least)| least))?);
            if codec == DeviceCodec::Lz4 {
                figures.push(against(format!("vs_brd_lz4_{name}_{}", row.name), &brd.speeds, None)?);
            }
        }
        if has_trueno {
            let figure = |row: &str| format!("vs_trueno_{codec_name}_{name}{row}");
            match measure(node, MemoryDevice::Trueno(codec), corpus, &rows) {
                Ok(trueno) => {
                    let (theirs, own) =
                        trueno.memory_bytes.zip(ours.memory_bytes).context("both say their memory")?;
                    if own > 0 {
                        figures.push(Figure {
                            name: format!("memory_ratio_vs_trueno_{codec_name}_{name}"),
                            value: theirs as f64 / own as f64,
                            unit: "ratio",
                            against: format!("{own} to {theirs} bytes for {}", corpus::CORPUS_BYTES),
                            bar: None,
                        });
                    }
                    // Its zstd makes frames of literals only: not compressing is fast.
                    let bar = (codec == DeviceCodec::Lz4).then_some(1.0);
                    for row in &rows {
                        let name = figure(&format!("_{}", row.name));
                        figures.push(speed_ratio(name, (&ours.speeds, &trueno.speeds), row.name, bar)?);
                    }
                }
                Err(error) => figures.push(not_run(&figure(""), &error)),
            }
        }
    }
    Ok(figures)
}

/// Figures of a kind of device.
struct DeviceFigures {
    speeds: RowSpeeds,
    /// Memory of the contents after writing the corpus in order; `None` if the kind does not report it.
    memory_bytes: Option<u64>,
}

/// Makes the figure of a comparison that could not run, which misses its bar.
fn not_run(name: &str, error: &anyhow::Error) -> Figure {
    let against = format!("not run: {error:#}");
    Figure { name: name.to_owned(), value: f64::NAN, unit: "ratio", against, bar: Some(Bar::AtLeast(1.0)) }
}

/// Writes the corpus to a device of the kind, verifies it, and measures these rows.
fn measure(
    node: &NodeDaemon,
    kind: MemoryDevice,
    corpus: Corpus,
    rows: &[MemoryRow],
) -> Result<DeviceFigures> {
    report::step(format_args!("{kind} with {}", corpus.name()));
    let served = kind.serve(node, corpus::CORPUS_BYTES)?;
    let measured = measure_served(node, &served, corpus, rows);
    // Also after an error, because the next device reuses its names.
    let removed = served.remove(node);
    let measured = measured.with_context(|| format!("measure {kind} with {}", corpus.name()))?;
    removed.map(|()| measured)
}

fn measure_served(
    node: &NodeDaemon,
    served: &RunningDevice,
    corpus: Corpus,
    rows: &[MemoryRow],
) -> Result<DeviceFigures> {
    let (vm, device, path) = (node.vm(), served.device.as_str(), corpus.path());
    load::fill(vm, device, &path, corpus::CORPUS_BYTES)?;
    load::check(vm, device, &path, corpus::CORPUS_BYTES).context("it does not have what was written")?;
    let memory_bytes = served.memory_bytes(node)?;
    let mut speeds = RowSpeeds::new();
    for row in rows {
        let speed = row.load.run(vm, device, &path)?;
        report::step(format_args!("{}: {speed:.0} requests a second", row.name));
        speeds.insert(row.name, speed);
    }
    Ok(DeviceFigures { speeds, memory_bytes })
}

fn speed_ratio(
    name: String,
    (ours, theirs): (&RowSpeeds, &RowSpeeds),
    row: &str,
    least: Option<f64>,
) -> Result<Figure> {
    let speed = |speeds: &RowSpeeds| speeds.get(row).copied().context("each kind has each row");
    let (ours, theirs) = (speed(ours)?, speed(theirs)?);
    Ok(Figure {
        name,
        value: ours / theirs,
        unit: "ratio",
        against: format!("{ours:.0} to {theirs:.0} requests a second"),
        bar: least.map(Bar::AtLeast),
    })
}

/// Compares compression by a memory volume and by zram; for zeros, a flag in zram, measures only the former.
fn compression(node: &NodeDaemon, corpus: Corpus, codec: DeviceCodec) -> Result<Figure> {
    report::step(format_args!("memory of {} with {}", corpus.name(), codec.name()));
    let bytes = MEASURED_CORPORA * corpus::CORPUS_BYTES;
    let path = repeated(node.vm(), corpus, MEASURED_CORPORA)?;
    let memory_bytes = |kind: MemoryDevice| {
        let served = kind.serve(node, bytes)?;
        load::fill(node.vm(), &served.device, &path, bytes)?;
        let taken = served.memory_bytes(node)?.context("the kind says it")?;
        served.remove(node).map(|()| taken)
    };
    let (zram, ours) = (memory_bytes(MemoryDevice::Zram(codec))?, memory_bytes(MemoryDevice::Ours(codec))?);
    let codec = codec.name();
    if corpus == Corpus::Zeros {
        let pages = bytes / PAGE_BYTES;
        return Ok(Figure {
            name: format!("memory_slab_bytes_per_zero_page_{codec}"),
            value: ours as f64 / pages as f64,
            unit: "bytes",
            against: format!("without the table; zram {:.3}", zram as f64 / pages as f64),
            bar: Some(Bar::Exactly(0.0)),
        });
    }
    let ratio = |taken: u64| bytes as f64 / taken as f64;
    Ok(Figure {
        name: format!("memory_ratio_vs_zram_{codec}_{}", corpus.name()),
        value: ratio(ours) / ratio(zram),
        unit: "ratio",
        against: format!("compressed {:.3} to 1 and {:.3} to 1", ratio(ours), ratio(zram)),
        bar: Some(Bar::AtLeast(0.97)),
    })
}

/// Makes a file with a corpus repeated `times`.
fn repeated(vm: &Vm, corpus: Corpus, times: u64) -> Result<String> {
    let path = "/corpora/repeated";
    vm.exec(&format!("for i in $(seq {times}); do cat {}; done > {path}", corpus.path()))?;
    Ok(path.to_owned())
}

/// Measures the memory per page of an unwritten volume: its table, without the head.
fn table_bytes_per_page(node: &NodeDaemon) -> Result<Figure> {
    let served = MemoryDevice::Ours(DeviceCodec::Lz4).serve(node, corpus::CORPUS_BYTES)?;
    let blocks: u64 = node
        .vm()
        .exec(&format!("stat -c '%b' {}", device::TABLE))?
        .trim()
        .parse()
        .context("stat prints the number of blocks")?;
    served.remove(node)?;
    let pages = corpus::CORPUS_BYTES / PAGE_BYTES;
    let bytes = blocks * 512 - device::TABLE_HEAD_BYTES;
    Ok(Figure {
        name: "memory_table_bytes_per_page".to_owned(),
        value: bytes as f64 / pages as f64,
        unit: "bytes",
        against: format!("{bytes} bytes of {pages} pages"),
        bar: Some(Bar::AtMost(8.0)),
    })
}

/// Measures the percentage of memory outside used slots after random overwrites with the mixed corpus.
fn overhead(node: &NodeDaemon) -> Result<Figure> {
    report::step("overwrite a volume at random");
    let bytes = MEASURED_CORPORA * corpus::CORPUS_BYTES;
    let vm = node.vm();
    let path = repeated(vm, Corpus::Mixed, MEASURED_CORPORA)?;
    let served = MemoryDevice::Ours(DeviceCodec::Lz4).serve(node, bytes)?;
    load::fill(vm, &served.device, &path, bytes)?;
    let requests = OVERWRITES * bytes / PAGE_BYTES;
    let load = DeviceLoad { write: true, order: PlaceOrder::Random, block_bytes: 4096, depth: 32, requests };
    load.run(vm, &served.device, &path)?;
    let slabs = served.memory_bytes(node)?.context("a memory volume says it")?;
    let table = vm.get(device::TABLE)?;
    served.remove(node)?;
    let words = table.get(usize::try_from(device::TABLE_HEAD_BYTES)?..).context("the table has a head")?;
    let slots = slot_bytes(words);
    let taken = slabs + words.len() as u64;
    Ok(Figure {
        name: "memory_overhead_percent_mixed".to_owned(),
        value: 100.0 * (taken - slots) as f64 / taken as f64,
        unit: "percent",
        against: format!("{taken} bytes of slabs and table for {slots} of slots, {requests} overwrites"),
        bar: Some(Bar::AtMost(5.0)),
    })
}

/// Returns the total length of the slots that words reference: `docs/formats/memory-volume.md`.
fn slot_bytes(words: &[u8]) -> u64 {
    let (words, _) = words.as_chunks::<8>();
    words.iter().filter(|word| word[0] >= 2).map(|word| u64::from(word[1]) * 64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_and_patterns_are_not() {
        let words = [[0; 8], [1, 0, 0, 0, 9, 9, 9, 9], [3, 2, 5, 0, 0, 0, 0, 0], [5, 64, 0, 0, 0, 0, 0, 0]];
        assert_eq!(slot_bytes(words.as_flattened()), 128 + 4096);
    }
}
