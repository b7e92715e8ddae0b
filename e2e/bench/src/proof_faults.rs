//! Figures of the proof that need machines: power cuts, a store that is unreachable for minutes, the dirty
//! backlog after it, and many ends of the daemon.

use std::time::Duration;

use anyhow::Result;
use holdfast_lab::report;
use holdfast_lab::world::World;
use holdfast_scenarios::{drain, kill_rounds, power_cuts, s3_outage};

use super::{Bar, Figure, play};

const POWER_CUTS: usize = 20;
/// Dirty data after an outage, in MiB: the default of `data.max_dirty`.
const DIRTY_MIB: u64 = 4096;
const OUTAGE: Duration = Duration::from_secs(180);
/// Ends of the daemon per transport.
const KILL_ROUNDS: usize = 50;

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let outcome = play(world, "power-cuts", |world| power_cuts::cut(world, POWER_CUTS))?;
    for lost in &outcome.lost {
        report::step(lost);
    }
    let errors = play(world, "s3-outage", |world| s3_outage::outage(world, OUTAGE))?;
    let peak_mib = play(world, "drain", |world| drain::drain(world, DIRTY_MIB))?;
    let mut kills = kill_rounds::KillsOutcome::default();
    for transport in ["zero-copy", "user-copy"] {
        let rounds = |world: &World| kill_rounds::rounds(world, transport, KILL_ROUNDS);
        kills.add(play(world, &format!("kill-rounds-{transport}"), rounds)?);
    }
    for error in &kills.errors {
        report::step(error);
    }
    let figure = |name: &str, value: f64, against: &str, due: f64| Figure {
        name: name.to_owned(),
        value,
        unit: "count",
        against: against.to_owned(),
        bar: Some(Bar::Exactly(due)),
    };
    Ok(vec![
        figure("vm_power_cuts", outcome.cuts as f64, "20 cuts that lose unflushed writes", POWER_CUTS as f64),
        figure("vm_power_cuts_lost", outcome.lost.len() as f64, "none", 0.0),
        figure("s3_outage_io_errors", errors as f64, "none, in 180 s without the store", 0.0),
        Figure {
            name: "drain_4gib_peak_rss_mib".to_owned(),
            value: peak_mib,
            unit: "MiB",
            against: "what the daemon may use while it uploads what an outage left, without a restart"
                .to_owned(),
            bar: Some(Bar::AtMost(drain::MEMORY_MIB as f64)),
        },
        figure(
            "fs_kill_rounds",
            kills.rounds as f64,
            "100 ends of the daemon under file systems and forced writes, half with each transport",
            2.0 * KILL_ROUNDS as f64,
        ),
        figure("fs_kill_errors", kills.errors.len() as f64, "none", 0.0),
    ])
}
