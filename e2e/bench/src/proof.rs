//! Figures of the proof: operations and findings of the simulation, and its code coverage.

use std::process::Command;

use anyhow::{Context, Result};
use holdfast_lab::command::{output, show};
use holdfast_lab::report;
use holdfast_lab::setup::Toolbox;
use holdfast_lab::world::World;
use serde_json::Value;

use super::{Bar, Figure};
use crate::coverage::Coverage;

/// More than ten million operations.
const SEEDS: &str = "1000";
const OPERATIONS: &str = "10000";
/// Volumes that share hosts and stores, with more than four million operations.
const FLEET: &str = "8";
const FLEET_SEEDS: &str = "200";
const FLEET_OPERATIONS: &str = "20000";
/// Outcomes of a power cut tried at each visit of a crash point. With this number the run takes minutes, with
/// the command's default hours.
const OUTCOMES: &str = "256";

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let toolbox = world.toolbox();
    let simulation = Simulation::build(toolbox)?;
    let mut figures = simulation.seeds()?;
    figures.extend(simulation.fleets()?);
    figures.extend(simulation.planted_bugs()?);
    figures.extend(simulation.crash_points()?);
    figures.push(fuzz_targets(toolbox)?);
    let coverage = Coverage::measure(toolbox)?;
    figures.push(Figure {
        name: "engine_coverage_percent".to_owned(),
        value: coverage.percent(),
        unit: "percent",
        against: "lines that the simulation alone runs".to_owned(),
        bar: Some(Bar::AtLeast(90.0)),
    });
    Ok(figures)
}

/// Counts the fuzz targets. Each has a directory with its corpus; a test of the simulation compares them.
fn fuzz_targets(toolbox: &Toolbox) -> Result<Figure> {
    let directory = toolbox.workspace().join("node/sim/fuzz");
    let targets = std::fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))?;
    Ok(Figure {
        name: "fuzz_targets".to_owned(),
        value: targets.count() as f64,
        unit: "count",
        against: "decoders of stored bytes, run with `cargo test -p holdfast-sim --test decoders`".to_owned(),
        bar: None,
    })
}

/// The optimised program of the simulation.
pub(super) struct Simulation {
    program: std::path::PathBuf,
}

impl Simulation {
    pub(super) fn build(toolbox: &Toolbox) -> Result<Self> {
        report::step("cargo build the simulation");
        show(toolbox.cargo("build").args(["--release", "--package", "holdfast-sim"]))?;
        Ok(Self { program: toolbox.target().join("release/holdfast-sim") })
    }

    /// Runs it and parses its last line. Findings are no error here: the figures show them.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<Counts> {
        report::step(format_args!("holdfast-sim {}", arguments.join(" ")));
        // It exits with 1 on findings, which are a figure and not an error.
        let mut shell = Command::new("sh");
        let output =
            output(shell.args(["-c", "\"$0\" \"$@\" || [ $? -eq 1 ]"]).arg(&self.program).args(arguments))?;
        let last = output.lines().last().context("the simulation said nothing")?;
        let counts = serde_json::from_str(last).with_context(|| format!("not JSON: {last}"))?;
        let output = output.lines().rev().skip(1).collect::<Vec<_>>();
        for line in output.iter().rev() {
            report::step(line);
        }
        Ok(Counts(counts))
    }

    fn seeds(&self) -> Result<Vec<Figure>> {
        let counts = self.run(&["--seeds", SEEDS, "--operations", OPERATIONS])?;
        let seconds = format!("{} s on one core", counts.of("seconds")?);
        Ok(vec![
            counts.figure("sim_operations", "operations", "10 million", Some(Bar::AtLeast(10e6)))?,
            counts.figure(
                "sim_requests",
                "requests",
                "of the operations, what the applications asked for",
                None,
            )?,
            counts.figure("sim_seeds", "seeds", "1,000", Some(Bar::AtLeast(1000.0)))?,
            counts.figure("sim_violations", "violations", "none", Some(Bar::Exactly(0.0)))?,
            counts.figure(
                "sim_ops_per_second",
                "operations_per_second",
                &seconds,
                Some(Bar::AtLeast(100e3)),
            )?,
        ])
    }

    fn fleets(&self) -> Result<Vec<Figure>> {
        let arguments = ["--volumes", FLEET, "--seeds", FLEET_SEEDS, "--operations", FLEET_OPERATIONS];
        let counts = self.run(&arguments)?;
        let seconds = format!("4 million, in {} s on one core", counts.of("seconds")?);
        Ok(vec![
            counts.figure("sim_volumes_per_host", "volumes", "in two stores", Some(Bar::AtLeast(8.0)))?,
            counts.figure("sim_fleet_operations", "operations", &seconds, Some(Bar::AtLeast(4e6)))?,
            counts.figure("sim_fleet_violations", "violations", "none", Some(Bar::Exactly(0.0)))?,
        ])
    }

    fn planted_bugs(&self) -> Result<Vec<Figure>> {
        let counts = self.run(&["planted-bugs"])?;
        let all = Some(Bar::Exactly(counts.of("planted_bugs_total")?));
        let seconds = format!("found in {} s", counts.of("seconds")?);
        Ok(vec![
            counts.figure("planted_bugs_caught", "planted_bugs_caught", "all", all)?,
            counts.figure("planted_bugs_total", "planted_bugs_total", &seconds, None)?,
        ])
    }

    fn crash_points(&self) -> Result<Vec<Figure>> {
        let counts = self.run(&["crash-points", "--outcomes", OUTCOMES])?;
        let all = Some(Bar::Exactly(counts.of("crash_points_total")?));
        let deaths = format!(
            "{} deaths at {} visits; at {} of them every outcome of a power cut",
            counts.of("deaths")?,
            counts.of("visits")?,
            counts.of("visits_exhausted")?
        );
        Ok(vec![
            counts.figure("crash_points_total", "crash_points_total", &deaths, None)?,
            counts.figure("crash_points_visited", "crash_points_visited", "all", all)?,
            counts.figure("crash_point_violations", "violations", "none", Some(Bar::Exactly(0.0)))?,
        ])
    }
}

/// Numbers in the last line.
pub(super) struct Counts(pub(super) Value);

impl Counts {
    fn of(&self, key: &str) -> Result<f64> {
        self.0[key].as_f64().with_context(|| format!("the simulation names no {key}"))
    }

    fn figure(&self, name: &str, key: &str, against: &str, bar: Option<Bar>) -> Result<Figure> {
        let (name, against) = (name.to_owned(), against.to_owned());
        Ok(Figure { name, value: self.of(key)?, unit: "count", against, bar })
    }
}
