//! Volumes of nodes without ublk: the cost of their requests compared to volumes with ublk, by the same
//! daemon in the same boot, and ends of the daemon and of the keeper that programs must not notice.

use anyhow::{Context, Result};
use holdfast_lab::pins::{KERNEL, LTS_KERNEL};
use holdfast_lab::report;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;
use holdfast_scenarios::kill_rounds::{self, KillsOutcome};
use holdfast_scenarios::{lane, without_ublk};

use super::daemon::DaemonBench;
use super::fio::{self, FioJob};
use super::{Bar, Figure, median, play, play_on};

/// Delayed uploads: no volume is sealed while it is measured.
const HELD_BACK: &str = "slab_size = \"64Mi\"\nseal_size = \"2Gi\"\nmax_dirty_age = \"1h\"";
/// Number of rounds; the figures compare the medians.
const ROUNDS: u32 = 3;
/// Ends of the daemon per kernel: 20 kills, 20 SIGTERMs, 20 handoffs.
const KILL_ROUNDS: usize = 60;
const KEEPERS: usize = 10;
/// The scenarios of nodes without ublk, most of which other transports have too.
const SCENARIOS: [&str; 6] = [
    "without-ublk",
    "claims-without-ublk",
    "kill-rounds-fuse",
    "memory-pressure-fuse",
    "csi-sanity-fuse",
    "story-fuse",
];

/// A transport of the daemon, and its volume.
struct MeasuredTransport {
    /// Value of `data.transport`.
    transport: &'static str,
    volume: &'static str,
}

/// The measured transport, then those to compare it with.
const TRANSPORTS: [MeasuredTransport; 3] = [
    MeasuredTransport { transport: "fuse", volume: "by-fuse" },
    MeasuredTransport { transport: "user-copy", volume: "by-user-copy" },
    MeasuredTransport { transport: "zero-copy", volume: "by-zero-copy" },
];

/// A row of the comparison.
struct TransportRow {
    name: &'static str,
    job: FioJob<'static>,
    /// Minimum ratio to user copy, if it has a bar.
    least: Option<f64>,
}

fn rows() -> [TransportRow; 4] {
    let random = |pattern| FioJob::of(&[], pattern, 12_000);
    let large = |pattern| FioJob { block_bytes: 1 << 20, depth: Some(32), ..FioJob::of(&[], pattern, 500) };
    [
        TransportRow { name: "randread4k", job: random("randread"), least: Some(0.45) },
        TransportRow { name: "randwrite4k", job: random("randwrite"), least: Some(0.45) },
        TransportRow { name: "read1m", job: large("read"), least: Some(0.8) },
        TransportRow { name: "write1m", job: large("write"), least: None },
    ]
}

/// Plays all scenarios of nodes without ublk.
pub(super) fn run_scenarios(world: &World) -> Result<Vec<Figure>> {
    let mut passed = 0;
    for name in SCENARIOS {
        report::step(format_args!("scenario {name}"));
        match play(world, name, lane(name)?.scenario.run) {
            Ok(()) => passed += 1,
            Err(error) => report::step(format_args!("{name} failed: {error:#}")),
        }
    }
    Ok(vec![Figure {
        name: "fuse_scenarios_passed".to_owned(),
        value: f64::from(passed),
        unit: "count",
        against: SCENARIOS.join(", "),
        bar: Some(Bar::Exactly(SCENARIOS.len() as f64)),
    }])
}

/// Measures a filled volume per transport, all served by one daemon, alternately in each round.
pub(super) fn run_requests(world: &World) -> Result<Vec<Figure>> {
    let modules = ["ublk_drv", "fuse", "loop"].map(str::to_owned).into();
    let options = MachineOptions { modules, ..MachineOptions::benchmark() };
    let mut bench = DaemonBench::start_on(world, options, HELD_BACK)?;
    let mut devices = Vec::new();
    for MeasuredTransport { transport, volume } in TRANSPORTS {
        bench.change_transport(transport, HELD_BACK)?;
        bench.create(volume, "256Mi")?;
        let device = bench.attach(volume, &[])?;
        let queue = format!("/sys/block/{}/queue", device.trim_start_matches("/dev/"));
        let filled = bench.vm.exec(&format!(
            "dd if=/dev/zero of={device} bs=1M count=256 oflag=direct conv=notrunc status=none; sync; \
             cd {queue}; grep '\\[none\\]' scheduler; grep -x 128 nr_requests; \
             if [ -e wbt_lat_usec ]; then grep -x 0 wbt_lat_usec; fi"
        ));
        filled.with_context(|| format!("fill {volume}, whose queue is like those of the others"))?;
        report::step(format_args!("{transport}: {device}"));
        devices.push(device);
    }
    let rows = rows();
    let mut speeds = vec![vec![Vec::new(); TRANSPORTS.len()]; rows.len()];
    for _ in 0..ROUNDS {
        for (row, speeds) in rows.iter().zip(&mut speeds) {
            for (device, speeds) in devices.iter().zip(speeds) {
                let measured = fio::run(&bench.vm, &FioJob { targets: &[device], ..row.job.clone() })?;
                speeds.push(measured.iops);
            }
        }
    }
    for (MeasuredTransport { transport: _, volume }, device) in TRANSPORTS.iter().zip(&devices) {
        // So that their uploads contain only holes.
        bench.vm.exec(&format!("blkdiscard {device}"))?;
        bench.detach(volume)?;
    }
    bench.vm.power_off()?;
    Ok(rows.iter().zip(speeds).flat_map(|(row, speeds)| figures(row, speeds)).collect())
}

/// Computes the ratios of a row from the speeds of each transport.
fn figures(row: &TransportRow, speeds: Vec<Vec<f64>>) -> Vec<Figure> {
    let mut medians = TRANSPORTS.iter().zip(speeds.into_iter().map(median));
    let ours = medians.next().map_or(f64::NAN, |(_, ours)| ours);
    let ratio = |(MeasuredTransport { transport, volume: _ }, theirs): (&MeasuredTransport, f64)| {
        let least = row.least.filter(|_| *transport == "user-copy");
        Figure {
            name: format!("fuse_{}_vs_{}", row.name, transport.replace('-', "_")),
            value: ours / theirs,
            unit: "ratio",
            against: format!("{ours:.0} to {theirs:.0} requests a second"),
            bar: least.map(Bar::AtLeast),
        }
    };
    medians.map(ratio).collect()
}

/// Ends the daemon under file systems and forced writes, on both kernels, and lets keepers take over from
/// each other under fio.
pub(super) fn run_kills(world: &World) -> Result<Vec<Figure>> {
    let mut kills = KillsOutcome::default();
    for kernel in [KERNEL, LTS_KERNEL] {
        let rounds = |world: &World| kill_rounds::without_ublk(world, KILL_ROUNDS);
        let outcome = play_on(world, kernel, &format!("kill-rounds-{}", kernel.series()), rounds)?;
        report::step(format_args!(
            "{}: the longest forced write took {:.1?}",
            kernel.series(),
            outcome.longest_gap
        ));
        kills.add(outcome);
    }
    let keepers = play(world, "keepers", without_ublk::replace_keepers);
    kills.errors.iter().for_each(report::step);
    if let Err(error) = &keepers {
        report::step(format_args!("keepers: {error:#}"));
    }
    let figure = |name: &str, value: f64, unit, against: &str, bar| Figure {
        name: name.to_owned(),
        value,
        unit,
        against: against.to_owned(),
        bar,
    };
    let exactly = |due: usize| Some(Bar::Exactly(due as f64));
    Ok(vec![
        figure(
            "fuse_kill_rounds",
            kills.rounds as f64,
            "count",
            "ends of the daemon under three file systems and forced writes, half on each kernel",
            exactly(2 * KILL_ROUNDS),
        ),
        figure("fuse_kill_errors", kills.errors.len() as f64, "count", "none", exactly(0)),
        figure(
            "fuse_longest_gap_ms",
            kills.longest_gap.as_secs_f64() * 1e3,
            "ms",
            "the longest forced write, with the start of the next daemon in it; emulated, not optimised",
            None,
        ),
        figure(
            "keeper_replacements",
            keepers.as_ref().map_or(0.0, |keepers| *keepers as f64),
            "count",
            "keepers that took over from the one before, under load",
            exactly(KEEPERS),
        ),
        figure("keeper_errors", f64::from(u8::from(keepers.is_err())), "count", "none", exactly(0)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians_and_only_user_copy_has_a_bar() {
        let [row, ..] = rows();
        let figures = figures(&row, vec![vec![9.0, 6.0, 1.0], vec![12.0, 1.0, 99.0], vec![24.0; 3]]);
        let shown: Vec<_> =
            figures.iter().map(|figure| (figure.name.as_str(), figure.value, figure.bar)).collect();
        assert_eq!(
            shown,
            [
                ("fuse_randread4k_vs_user_copy", 0.5, Some(Bar::AtLeast(0.45))),
                ("fuse_randread4k_vs_zero_copy", 0.25, None),
            ]
        );
    }
}
