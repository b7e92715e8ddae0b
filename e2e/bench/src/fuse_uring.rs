//! FUSE over io_uring with a ring that belongs to a keeper: errors of programs when the server or the keeper
//! exits, the gain from the zero copy of Linux 7.3, and the kernel's memory that it frees while in use. This
//! is the experiment of `docs/adr/0035-fuse-over-io-uring-with-a-keeper.md` (`node/fuse/examples/uring`); no
//! volume uses it.

use anyhow::{Context, Result, ensure};
use holdfast_lab::report;
use holdfast_lab::vm::Vm;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;

use super::fio::{self, FioJob};
use super::{Bar, Figure};
use server::RunningUring;

mod ends;
mod server;

/// A row of the comparison.
struct UringRow {
    name: &'static str,
    job: FioJob<'static>,
    /// Minimum ratio of zero copy to copies, if it has a bar.
    least: Option<f64>,
}

/// Ways to receive and answer requests: the submitter to the ring, the movement of data.
const WAYS: [&str; 5] = ["classic", "keeper-copy", "keeper-zero", "own-zero", "kernel-zero"];

/// Suffix of a figure's name, and the ways that it compares, as indices into [`WAYS`].
const RATIOS: [(&str, usize, usize); 5] = [
    ("gain", 2, 1),
    ("vs_classic", 2, 0),
    ("copy_vs_classic", 1, 0),
    ("vs_own_ring", 2, 3),
    ("sqpoll", 4, 2),
];

fn rows() -> [UringRow; 7] {
    let random = |pattern| FioJob::of(&[], pattern, 8_000);
    let large = |pattern| FioJob { block_bytes: 1 << 20, ..FioJob::of(&[], pattern, 256) };
    let buffered = |pattern| FioJob { depth: None, buffered: true, ..large(pattern) };
    let single = FioJob { depth: None, ..FioJob::of(&[], "randread", 1_000) };
    [
        UringRow { name: "read1m", job: large("read"), least: Some(1.2) },
        UringRow { name: "write1m", job: large("write"), least: Some(1.0) },
        UringRow { name: "buffered_read1m", job: buffered("read"), least: Some(1.25) },
        UringRow { name: "buffered_write1m", job: buffered("write"), least: Some(1.1) },
        UringRow { name: "randread4k", job: random("randread"), least: None },
        UringRow { name: "randwrite4k", job: random("randwrite"), least: None },
        UringRow { name: "single_read4k", job: single, least: None },
    ]
}

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    world.share(&world.toolbox().example("holdfast-fuse", "uring")?, "bin/uring")?;
    let vm = world.vm_with("ends", MachineOptions::without_ublk)?;
    server::prepare(&vm)?;
    let mut figures = ends::run(&vm)?;
    vm.power_off()?;
    let modules = ["fuse", "loop"].map(str::to_owned).into();
    let vm = world.vm_with("requests", || MachineOptions { modules, ..MachineOptions::benchmark() })?;
    server::prepare(&vm)?;
    figures.extend(requests(&vm)?);
    vm.power_off()?;
    figures.push(freed_in_use(world)?);
    Ok(figures)
}

/// Counts the faults that the kernel reports after a file system has written from memory of the slab
/// allocator: ext4 copies a block that begins like one of its journal before it writes it there.
fn freed_in_use(world: &World) -> Result<Figure> {
    report::step(format_args!("write from memory of the slab allocator"));
    let mut faults = Vec::new();
    for way in ["keeper-copy", "keeper-zero"] {
        // A machine of its own: its memory may be damaged afterwards.
        let vm = world.vm_with(way, MachineOptions::without_ublk)?;
        server::prepare(&vm)?;
        let device = RunningUring::start(&vm, way)?.bind()?;
        let found = vm.exec(&format!(
            "mkfs.ext4 -q -F {device}; mkdir -p /mnt/fs; mount -o data=journal {device} /mnt/fs\n\
             perl -e 'print pack(q(N), 0xC03B3998), q(x) x 4092 for 1..64' >/mnt/fs/file; sync\n\
             umount /mnt/fs; dmesg | grep -cE 'Bad page state|Not a kmalloc allocation|kernel BUG' || true"
        ))?;
        faults.push(found.trim().parse::<f64>().context("a number of lines")?);
        vm.power_off()?;
    }
    ensure!(faults[0] == 0.0, "{} faults although all data was copied", faults[0]);
    Ok(Figure {
        name: "fuse_zc_freed_in_use".to_owned(),
        value: faults[1],
        unit: "faults",
        against: "64 blocks of a journal".to_owned(),
        bar: Some(Bar::AtMost(0.0)),
    })
}

/// Measures requests to a loop device on the file, like that of a volume, in each way.
fn requests(vm: &Vm) -> Result<Vec<Figure>> {
    let rows = rows();
    let mut speeds = Vec::new();
    for way in WAYS {
        report::step(format_args!("measure {way}"));
        let server = RunningUring::start(vm, way)?;
        let device = server.bind()?;
        let mut of_way = Vec::new();
        for row in &rows {
            vm.exec("echo 3 > /proc/sys/vm/drop_caches")?;
            of_way.push(fio::run(vm, &FioJob { targets: &[&device], ..row.job.clone() })?.iops);
        }
        speeds.push(of_way);
        vm.exec(&format!("losetup --detach {device}"))?;
        server.end()?;
    }
    Ok(rows.iter().enumerate().flat_map(|(at, row)| figures(row, at, &speeds)).collect())
}

/// Computes the ratios of a row from the speeds of each way.
fn figures(row: &UringRow, at: usize, speeds: &[Vec<f64>]) -> impl Iterator<Item = Figure> {
    RATIOS.iter().map(move |&(name, over, under)| {
        let (over, under) = (speeds[over][at], speeds[under][at]);
        Figure {
            name: format!("fuse_zc_{}_{name}", row.name),
            value: over / under,
            unit: "ratio",
            against: format!("{over:.0} to {under:.0} requests a second"),
            bar: row.least.filter(|_| name == "gain").map(Bar::AtLeast),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_the_ways_they_name_and_only_the_gain_has_a_bar() {
        let [row, ..] = rows();
        let speeds: Vec<Vec<f64>> = [2.0, 4.0, 8.0, 16.0, 1.0].map(|speed| vec![speed]).into();
        let shown: Vec<_> = figures(&row, 0, &speeds).map(|figure| (figure.value, figure.bar)).collect();
        let due = [(2.0, Some(Bar::AtLeast(1.2))), (4.0, None), (2.0, None), (0.5, None), (0.125, None)];
        assert_eq!(shown, due);
    }
}
