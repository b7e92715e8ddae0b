//! `holdfast-sim`: runs many seeds on all CPUs, every death at every crash point, every planted bug, or
//! the policy of index runs, and prints the results. The last line is JSON.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use std::{iter, thread};

use anyhow::bail;
use clap::{Parser, Subcommand};
use holdfast_format::crash_point::CrashPoint;
use holdfast_sim::bug::{Bug, plant};
use holdfast_sim::case::{Case, CaseOutcome};
use holdfast_sim::crash::{Crash, CrashScenario, campaign};
use holdfast_sim::find::search;
use holdfast_sim::fleet::{FamilyCase, FleetCase};
use holdfast_sim::tiers::{Figures, WORKLOADS};

/// Printed lines of a run that ends in a violation.
const STORY_LINES: usize = 120;
/// Runs spent on removing steps from it.
const SHRINK_RUNS: usize = 400;

/// Simulates the volume engine with faults and deaths; fails when an invariant is broken.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Options {
    #[command(subcommand)]
    command: Option<SimCommand>,
    #[command(flatten)]
    runs: SeededRuns,
}

#[derive(Subcommand)]
enum SimCommand {
    /// Ends scenarios at every visit of every crash point and compares what is left with the model.
    CrashPoints(CrashPoints),
    /// Removes one safeguard at a time from the engine and fails unless the simulation detects each.
    PlantedBugs(PlantedBugs),
    /// Runs the policy of index runs over the lives of large volumes, without data, and prints the figures.
    Tiers,
}

#[derive(clap::Args)]
struct PlantedBugs {
    /// Maximum seeds to try for each bug.
    #[arg(long, default_value_t = 400)]
    seeds: u64,
    /// Operations of each run.
    #[arg(long, default_value_t = 3000)]
    operations: u64,
}

#[derive(clap::Args)]
struct CrashPoints {
    /// Number of seeds to run each scenario with.
    #[arg(long, default_value_t = 4)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Outcomes of a power cut (subsets of the unsynced writes) to try at each visit: all if there are no
    /// more.
    #[arg(long, default_value_t = 4096)]
    outcomes: u64,
    /// Only this one death, as it was printed.
    #[arg(long)]
    crash: Option<Crash>,
    /// Plant this bug: the name of a safeguard to remove, or of a mutation.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
}

#[derive(clap::Args)]
struct SeededRuns {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Requests, jobs, answers and deaths of each run, before it is brought to rest and checked.
    #[arg(long, default_value_t = 4000)]
    operations: u64,
    /// Volumes of each run, in two stores on the same hosts.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    volumes: u64,
    /// Volumes of each run that live at once in one bucket, forked from each other, on the same hosts.
    #[arg(long, conflicts_with = "volumes", value_parser = clap::value_parser!(u64).range(2..=64))]
    family: Option<u64>,
    /// Plant this bug: the name of a safeguard to remove, or of a mutation.
    #[arg(long, value_parser = bug)]
    bug: Option<Bug>,
}

fn bug(name: &str) -> Result<Bug, String> {
    let found = Bug::all().find(|bug| format!("{bug:?}") == name);
    found.ok_or_else(|| format!("use one of {:?}", Bug::all().collect::<Vec<_>>()))
}

fn main() -> anyhow::Result<ExitCode> {
    let options = Options::parse();
    let out = std::io::stdout().lock();
    let found = match options.command {
        Some(SimCommand::CrashPoints(crashes)) => end_at_crash_points(out, &crashes)?,
        Some(SimCommand::PlantedBugs(bugs)) => plant_each(out, &bugs)?,
        Some(SimCommand::Tiers) => play_tiers(out)?,
        None => run_seeds(out, &options.runs)?,
    };
    Ok(if found > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Prints the figures of each workload.
fn play_tiers(mut out: impl Write) -> anyhow::Result<usize> {
    let lines = WORKLOADS.map(|workload| {
        let figures = workload.run();
        let Figures { runs_max, runs_mean, merges, root_bytes, record_bytes_max, .. } = figures;
        let Figures { index_percent_of_written, index_percent_read, largest_run_bytes, .. } = figures;
        let largest_run_mib = largest_run_bytes / f64::from(1 << 20);
        format!(
            r#""{}":{{"runs_max":{runs_max},"runs_mean":{runs_mean:.1},"index_percent_of_written":{index_percent_of_written:.2},"index_percent_read":{index_percent_read:.2},"merges":{merges},"largest_run_mib":{largest_run_mib:.0},"root_bytes":{root_bytes},"record_bytes_max":{record_bytes_max}}}"#,
            workload.name
        )
    });
    writeln!(out, "{{{}}}", lines.join(","))?;
    Ok(0)
}

/// Plants each bug. Returns the number of bugs that were not found.
fn plant_each(mut out: impl Write, options: &PlantedBugs) -> anyhow::Result<usize> {
    let began = Instant::now();
    let mut caught = 0;
    for bug in Bug::all() {
        match search(bug, options.seeds, options.operations) {
            Some((seed, found)) => {
                caught += 1;
                writeln!(out, "{bug:?}: seed {seed}: {} ({})", found.message, found.check)?;
            }
            None => writeln!(out, "{bug:?} is not found in {} seeds", options.seeds)?,
        }
    }
    let total = Bug::all().count();
    writeln!(
        out,
        r#"{{"planted_bugs_total":{total},"planted_bugs_caught":{caught},"seconds":{:.1}}}"#,
        began.elapsed().as_secs_f64()
    )?;
    Ok(total - caught)
}

/// Ends scenarios at crash points. Returns the number of violations.
fn end_at_crash_points(mut out: impl Write, options: &CrashPoints) -> anyhow::Result<usize> {
    let began = Instant::now();
    plant(options.bug);
    if let Some(crash) = options.crash {
        let found = crash.run().err();
        match &found {
            Some(violation) => writeln!(out, "{} ({})", violation.message, violation.check)?,
            None => writeln!(out, "no invariant is broken")?,
        }
        return Ok(usize::from(found.is_some()));
    }
    let planted = options.bug.map_or_else(String::new, |bug| format!(" --bug {bug:?}"));
    let (mut deaths, mut exhausted, mut visits, mut violations) = (0, 0, 0, 0);
    let mut visited = BTreeSet::new();
    for seed in options.seed..options.seed + options.seeds {
        let found = campaign(&CrashScenario::ALL, seed, options.outcomes);
        deaths += found.deaths;
        exhausted += found.exhausted;
        visits += found.visited.values().sum::<u64>();
        visited.extend(found.visited.into_keys());
        violations += found.violations.len();
        for (crash, violation) in found.violations {
            writeln!(out, "{} ({})\nrepeat with: {crash}{planted}", violation.message, violation.check)?;
        }
    }
    for missed in CrashPoint::ALL.iter().filter(|point| !visited.contains(point)) {
        writeln!(out, "{missed:?} is not visited")?;
    }
    writeln!(
        out,
        r#"{{"crash_points_total":{},"crash_points_visited":{},"visits":{visits},"visits_exhausted":{exhausted},"deaths":{deaths},"seeds":{},"violations":{violations},"seconds":{:.1}}}"#,
        CrashPoint::ALL.len(),
        visited.len(),
        options.seeds,
        began.elapsed().as_secs_f64()
    )?;
    Ok(violations + CrashPoint::ALL.len() - visited.len())
}

/// Runs the seeds. Returns the number of violations.
fn run_seeds(mut out: impl Write, options: &SeededRuns) -> anyhow::Result<usize> {
    let began = Instant::now();
    let (mut operations, mut requests) = (0, 0);
    let (mut truncated, mut strays) = (0, 0);
    let mut broken = Vec::new();
    let threads = thread::available_parallelism()?.get();
    let (next, (done, outcomes)) = (AtomicU64::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..threads {
            let (next, done) = (&next, done.clone());
            scope.spawn(move || {
                let seeds = iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
                for seed in seeds.take_while(|&seed| seed < options.seeds) {
                    let case = AnyCase::new(options.seed + seed, options);
                    let outcome = case.run();
                    if done.send((case, outcome)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(done);
        for (case, outcome) in outcomes {
            operations += outcome.operations;
            requests += outcome.requests;
            truncated += outcome.truncated;
            strays += outcome.strays;
            if options.seeds == 1 {
                writeln!(out, "digest {}", outcome.digest)?;
            }
            if let Some(found) = outcome.violation {
                writeln!(out, "{} ({})\nrepeat with: {case}", found.message, found.check)?;
                broken.push(case);
            }
        }
        anyhow::Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    if let Some(case) = broken.first() {
        print_story(&mut out, case)?;
    }
    let (speed, violations) = (operations as f64 / seconds, broken.len());
    writeln!(
        out,
        r#"{{"operations":{operations},"requests":{requests},"records_truncated":{truncated},"stray_records":{strays},"seeds":{},"volumes":{},"violations":{violations},"seconds":{seconds:.1},"threads":{threads},"operations_per_second":{speed:.0}}}"#,
        options.seeds,
        options.family.unwrap_or(options.volumes)
    )?;
    Ok(violations)
}

/// A run of one volume, of several, or of a family.
enum AnyCase {
    One(Case),
    Several(FleetCase),
    Family(FamilyCase),
}

impl AnyCase {
    fn new(seed: u64, options: &SeededRuns) -> Self {
        let &SeededRuns { operations, bug, volumes, family, .. } = options;
        match (family, volumes as usize) {
            (Some(most), _) => Self::Family(FamilyCase { seed, operations, bug, volumes: most as usize }),
            (None, 1) => Self::One(Case { seed, operations, bug }),
            (None, volumes) => Self::Several(FleetCase { seed, operations, bug, volumes }),
        }
    }

    fn run(&self) -> CaseOutcome {
        match self {
            Self::One(case) => case.run(0),
            Self::Several(case) => case.run(0),
            Self::Family(case) => case.run(0),
        }
    }

    fn shrink(&self) -> Option<CaseOutcome> {
        match self {
            Self::One(case) => case.shrink(SHRINK_RUNS, STORY_LINES),
            Self::Several(case) => case.shrink(SHRINK_RUNS, STORY_LINES),
            Self::Family(case) => case.shrink(SHRINK_RUNS, STORY_LINES),
        }
    }
}

impl std::fmt::Display for AnyCase {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(case) => case.fmt(out),
            Self::Several(case) => case.fmt(out),
            Self::Family(case) => case.fmt(out),
        }
    }
}

/// Prints the story of a case that ends in a violation, shortened as far as possible.
fn print_story(out: &mut impl Write, case: &AnyCase) -> anyhow::Result<()> {
    let Some(shrunk) = case.shrink() else {
        bail!("{case} ended otherwise when it was repeated: the simulation is not deterministic");
    };
    writeln!(out, "the end of it, in {} steps:", shrunk.steps)?;
    for line in &shrunk.story {
        writeln!(out, "  {line}")?;
    }
    if let Some(found) = shrunk.violation {
        writeln!(out, "  {}", found.message)?;
    }
    Ok(())
}
