//! Benchmarks: figures that mean the same on every machine.
//!
//! A test machine whose clock counts instructions makes them (see [`Options::benchmark`]), so they are
//! ratios of two things measured in one boot, or counts; never times of the host.
//!
//! [`Options::benchmark`]: crate::vm::machine::Options::benchmark

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::report;
use crate::setup::{Profile, Toolbox};
use crate::world::World;

pub mod fio;
pub mod kublk;
mod ring;

/// One benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Benchmark {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it measures.
    pub about: &'static str,
    /// How long it takes on two quiet cores, set-up and compilation excepted.
    pub expected: Duration,
    /// Runs it in a world of its own and returns its figures.
    pub run: fn(&World) -> Result<Vec<Figure>>,
}

/// All benchmarks.
pub const ALL: &[Benchmark] = &[Benchmark {
    name: "ring",
    about: "ublk devices of node/ublk against the kernel's own server, files on ext4 on a ramdisk",
    expected: Duration::from_secs(120),
    run: ring::run,
}];

/// One number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name, in snake case.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its unit; `ratio` for ratios.
    pub unit: &'static str,
    /// What it is compared with, or the bound it must keep.
    pub against: String,
}

/// Runs the benchmarks whose name contains `filter`, prints their figures as a table and then as one JSON
/// object a line.
///
/// # Errors
/// When none has that name, or one fails.
pub fn run(filter: Option<&str>) -> Result<()> {
    let chosen: Vec<&Benchmark> =
        ALL.iter().filter(|benchmark| filter.is_none_or(|filter| benchmark.name.contains(filter))).collect();
    ensure!(!chosen.is_empty(), "no such benchmark; `cargo e2e list` names them all");
    let toolbox = Toolbox::open()?;
    let mut figures = Vec::new();
    for benchmark in chosen {
        report::step(format_args!("benchmark {}: {}", benchmark.name, benchmark.about));
        let world = World::new(&toolbox, benchmark.name, Profile::Release)?;
        let measured = (benchmark.run)(&world);
        if measured.is_err() {
            eprintln!("{}", world.logs(60));
        }
        figures.extend(measured?);
    }
    report::line("| figure | value | unit | against |");
    report::line("|---|---|---|---|");
    for figure in &figures {
        let Figure { name, value, unit, against } = figure;
        report::line(format_args!("| {name} | {value:.3} | {unit} | {against} |"));
    }
    for figure in &figures {
        report::line(serde_json::to_string(figure)?);
    }
    Ok(())
}

/// The middle one of an odd number of values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(vec![9.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }
}
