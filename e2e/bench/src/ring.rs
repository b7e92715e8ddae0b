//! Costs of the ring and ublk crates compared to the kernel's own server: same file size, boot and jobs.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::world::World;

use super::fio::{self, FioJob};
use super::kublk::{self, Kublk, Mode};
use super::{Figure, median};

const DEPTH: u32 = 128;
/// Number of rounds; the figures compare the medians.
const ROUNDS: u32 = 3;
const READY: Duration = Duration::from_secs(60);
/// Directory of the files, on ext4 on a ramdisk.
const DIR: &str = "/ram";
const SIGINT: i32 = 2;

/// Name of the figure, fio pattern, request size, number of requests.
const JOBS: &[(&str, &str, u32, u32)] = &[
    ("randread4k", "randread", 4096, 12_000),
    ("randwrite4k", "randwrite", 4096, 12_000),
    ("read128k", "read", 128 << 10, 2_000),
    ("write128k", "write", 128 << 10, 2_000),
];

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    kublk::share(world)?;
    world.share(&world.programs()?.join("examples/loopback"), "bin/loopback")?;
    let vm = world.vm_with("bench", MachineOptions::benchmark)?;
    vm.exec(&format!(
        "modprobe brd rd_nr=1 rd_size=1048576; mkfs.ext4 -q -F /dev/ram0; mkdir {DIR}; mount /dev/ram0 {DIR}; \
         dd if=/dev/zero of={DIR}/0.img bs=1M count=256 status=none; cp {DIR}/0.img {DIR}/theirs; sync"
    ))?;
    let mut figures = Vec::new();
    for (transport, mode) in [("zero-copy", Mode::ZeroCopy), ("user-copy", Mode::UserCopy)] {
        let mut ours = vec![Vec::new(); JOBS.len()];
        let mut theirs = vec![Vec::new(); JOBS.len()];
        for round in 0..ROUNDS {
            measure_ours(&vm, transport, round, &mut ours)?;
            let reference = Kublk::serve(&vm, 0, &format!("{DIR}/theirs"), mode)?;
            measure(&vm, &reference.device(), &mut theirs)?;
            reference.remove()?;
        }
        for (((name, ..), ours), theirs) in JOBS.iter().zip(ours).zip(theirs) {
            let (ours, theirs) = (median(ours), median(theirs));
            figures.push(Figure {
                name: format!("{}_{name}_vs_kublk", transport.replace('-', "_")),
                value: ours / theirs,
                unit: "ratio",
                against: format!("{ours:.0} of {theirs:.0} IOPS, 32 in flight"),
                bar: None,
            });
        }
    }
    vm.power_off()?;
    Ok(figures)
}

fn measure_ours(vm: &Vm, transport: &str, round: u32, results: &mut [Vec<f64>]) -> Result<()> {
    let name = format!("{transport}-{round}");
    let command = format!("exec loopback --dir {DIR} --size-mib 256 --depth {DEPTH} --transport {transport}");
    vm.spawn(&name, &bash(&command))?;
    let ready = vm.wait_log(&name, "READY", READY)?;
    let device = ready
        .split_whitespace()
        .find(|word| word.starts_with("/dev/ublkb"))
        .with_context(|| format!("no device in {ready:?}"))?;
    vm.wait_block_device(device, READY)?;
    measure(vm, device, results)?;
    vm.signal(&name, SIGINT)?;
    vm.wait(&name, READY).map(drop)
}

fn measure(vm: &Vm, device: &str, results: &mut [Vec<f64>]) -> Result<()> {
    for ((_, pattern, block_bytes, requests), result) in JOBS.iter().zip(results) {
        let done =
            fio::run(vm, &FioJob { block_bytes: *block_bytes, ..FioJob::of(&[device], pattern, *requests) })?;
        result.push(done.iops);
    }
    Ok(())
}
