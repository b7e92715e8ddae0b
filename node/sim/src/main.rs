//! `holdfast-sim`: runs many seeds and says what they found.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use clap::Parser;
use holdfast_engine::planted::Bug;
use holdfast_sim::case::Case;

/// Lines told of a run that ends in a violation.
const STORY: usize = 120;
/// Runs spent on leaving steps out of it.
const SHRINKING: usize = 400;

/// Simulates the volume engine with faults and deaths; fails when an invariant is broken.
#[derive(Parser)]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Requests, jobs, answers and deaths of each run, before everything is brought to rest and read.
    #[arg(long, default_value_t = 4000)]
    operations: u64,
    /// Take this safeguard out of the engine.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
}

fn bug(name: &str) -> Result<Bug, String> {
    let found = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    found.ok_or_else(|| format!("use one of {:?}", Bug::ALL))
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let mut out = std::io::stdout().lock();
    let began = Instant::now();
    let (mut operations, mut requests, mut violations) = (0, 0, 0);
    for seed in options.seed..options.seed + options.seeds {
        let case = Case { seed, operations: options.operations, bug: options.bug };
        let outcome = case.run(0);
        operations += outcome.operations;
        requests += outcome.requests;
        if options.seeds == 1 {
            writeln!(out, "digest {}", outcome.digest)?;
        }
        if let Some(found) = outcome.violation {
            violations += 1;
            writeln!(out, "{} ({})\nrepeat with: {case}", found.words, found.check)?;
            if violations == 1 {
                tell(&mut out, case)?;
            }
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let speed = operations as f64 / seconds;
    writeln!(
        out,
        "{operations} operations, {requests} of them guest requests, {} seeds, {violations} violations, \
         {seconds:.1} s, {speed:.0} operations per second",
        options.seeds
    )?;
    Ok(if violations > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The story of a case that ends in a violation, as short as it can be made.
fn tell(out: &mut impl Write, case: Case) -> anyhow::Result<()> {
    let Some(shrunk) = case.shrink(SHRINKING, STORY) else {
        bail!("seed {} ended otherwise when it was repeated: the simulation is not deterministic", case.seed);
    };
    writeln!(out, "the end of it, in {} steps:", shrunk.steps)?;
    for line in &shrunk.story {
        writeln!(out, "  {line}")?;
    }
    if let Some(found) = shrunk.violation {
        writeln!(out, "  {}", found.words)?;
    }
    Ok(())
}
