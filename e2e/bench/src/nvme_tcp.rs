//! NVMe/TCP to a target in user space on the loopback: its costs, and the errors of applications when the
//! target is killed. This is the experiment of `docs/adr/0032-nvme-tcp-on-loopback.md`; no volume uses it.

use std::sync::Arc;

use anyhow::{Context, Result};
use holdfast_lab::pins::{KernelPin, LTS_KERNEL, OLD_KERNEL};
use holdfast_lab::report;
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;

use super::daemon::{DaemonBench, STATE_DIR};
use super::fio::{self, FioJob};
use super::{Figure, LOG_LINES, median};
use kills::{KillFigures, Successor};
use target::RunningTarget;

mod kills;
mod target;

/// Delayed uploads: no volume is sealed while it is measured.
const HELD_BACK: &str = "slab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
const VOLUME: &str = "by-fuse";
/// Number of rounds; the figures compare the medians.
const ROUNDS: u32 = 3;
/// Older kernels for additional kills of the target.
const OLDER: [KernelPin; 2] = [LTS_KERNEL, OLD_KERNEL];

/// Returns the jobs with the names of their figures.
fn rows() -> [(&'static str, FioJob<'static>); 4] {
    let random = |pattern| FioJob::of(&[], pattern, 12_000);
    let large = |pattern| FioJob { block_bytes: 1 << 20, depth: Some(32), ..FioJob::of(&[], pattern, 500) };
    [
        ("randread4k", random("randread")),
        ("randwrite4k", random("randwrite")),
        ("read1m", large("read")),
        ("write1m", large("write")),
    ]
}

fn options(modules: &[&str]) -> MachineOptions {
    MachineOptions {
        modules: modules.iter().map(|&module| module.to_owned()).collect(),
        ..MachineOptions::benchmark()
    }
}

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let bench = DaemonBench::start_on(world, options(&["ublk_drv", "fuse", "loop", "nvme-tcp"]), HELD_BACK)?;
    let vm = Arc::clone(&bench.vm);
    let target = RunningTarget::start(&vm, STATE_DIR)?;
    let mut kills = KillFigures::default();
    for successor in Successor::ALL {
        kills.add(successor, kills::kill(&target, successor)?);
    }
    let mut figures = requests(bench, &target)?;
    for kernel in OLDER {
        report::step(format_args!("kill the target on {}", kernel.series()));
        let world = World::new(
            world.toolbox(),
            &format!("nvme-tcp-{}", kernel.series()),
            kernel,
            BuildProfile::Release,
        )?;
        let killed = kill_on(&world, &mut kills);
        if killed.is_err() {
            eprintln!("{}", world.logs(LOG_LINES));
        }
        killed?;
    }
    figures.extend(kills.figures());
    Ok(figures)
}

/// Kills the target on the kernel of a world, without a daemon.
fn kill_on(world: &World, kills: &mut KillFigures) -> Result<()> {
    let vm = world.vm_with("bench", || options(&["nvme-tcp"]))?;
    vm.exec(&format!(
        "modprobe brd rd_nr=1 rd_size=1048576; mkfs.ext4 -q -F /dev/ram0; mount /dev/ram0 {STATE_DIR}"
    ))?;
    let target = RunningTarget::start(&vm, STATE_DIR)?;
    for successor in Successor::ALL {
        kills.add(successor, kills::kill(&target, successor)?);
    }
    vm.power_off()
}

/// Compares requests to the target's device to those to a volume by FUSE and a loop device, alternately in
/// each round. The files of both are on the same file system.
fn requests(mut bench: DaemonBench, target: &RunningTarget<'_>) -> Result<Vec<Figure>> {
    bench.change_transport("fuse", HELD_BACK)?;
    bench.create(VOLUME, "256Mi")?;
    let devices = [target.raw()?, bench.attach(VOLUME, &[])?];
    for device in &devices {
        let filled = bench.vm.exec(&format!(
            "dd if=/dev/zero of={device} bs=1M count=256 oflag=direct conv=notrunc status=none; sync"
        ));
        filled.with_context(|| format!("fill {device}"))?;
    }
    report::step(format_args!("measure {} and {}", devices[0], devices[1]));
    let mut figures = Vec::new();
    for (name, job) in rows() {
        let mut speeds = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (device, speeds) in devices.iter().zip(&mut speeds) {
                speeds.push(fio::run(&bench.vm, &FioJob { targets: &[device], ..job.clone() })?.iops);
            }
        }
        let [tcp, fuse] = speeds.map(median);
        figures.push(Figure {
            name: format!("nvme_tcp_{name}_vs_fuse"),
            value: tcp / fuse,
            unit: "ratio",
            against: format!("{tcp:.0} to {fuse:.0} requests a second"),
            bar: None,
        });
    }
    target.disconnect()?;
    // So that its upload contains only holes.
    bench.vm.exec(&format!("blkdiscard {}", devices[1]))?;
    bench.detach(VOLUME)?;
    bench.vm.power_off()?;
    Ok(figures)
}
