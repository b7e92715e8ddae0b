//! Hits of the node's cache against those of foyer's disk cache, and against a ring that does nothing else:
//! `node/serve/examples/slab_hits.rs` and `e2e/bench/foyer`.
//!
//! Both programs run on the host, because foyer's thread of io_uring never sleeps: in a machine with one
//! processor it would take half of it from foyer's other threads. Their files are in memory, so no disk is
//! measured.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::command::{output, show};
use holdfast_lab::report;
use holdfast_lab::setup::Toolbox;
use holdfast_lab::world::World;
use rustix::fs::statvfs;

use super::{Bar, Figure};

/// Directory of the files.
const DIR: &str = "/dev/shm";
/// Maximum length of the files at a time: with values of 4 KiB, foyer's take 1 GiB.
const FREE_BYTES: u64 = 3 << 29;
/// Number of rounds. The figures compare the fastest of each: other work of the host slows a program down,
/// and most of all the one with more threads.
const ROUNDS: u32 = 3;
/// Time of each row in a round, in seconds.
const ROW_SECONDS: &str = "1";
/// Reads in flight.
const DEPTHS: [u32; 3] = [1, 16, 64];
/// Minimum of our hits relative to those of foyer's io_uring engine, each of a whole block.
const LEAST_VS_FOYER: f64 = 1.3;

/// A kind of read: its name in the programs' output, and in a figure after `slab_hit`.
struct ComparedKind {
    kind: &'static str,
    suffix: &'static str,
}

/// Kinds that our hits are compared with.
const COMPARED: [ComparedKind; 3] = [
    ComparedKind { kind: "uring", suffix: "vs_foyer" },
    ComparedKind { kind: "psync", suffix: "vs_foyer_psync" },
    ComparedKind { kind: "ring", suffix: "vs_ring" },
];

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let free = statvfs(DIR).with_context(|| format!("ask for the room in {DIR}"))?;
    let free_bytes = free.f_bavail * free.f_frsize;
    ensure!(free_bytes >= FREE_BYTES, "{DIR} has room for {free_bytes} bytes, {FREE_BYTES} are needed");
    let programs = [slab_hits(world.toolbox())?, foyer_hits(world.toolbox())?];
    let (mut rows, mut with_workers) = (HitRows::default(), HitRows::default());
    for round in 1..=ROUNDS {
        for (rows, argument) in [(&mut rows, None), (&mut with_workers, Some("workers"))] {
            for program in &programs {
                report::step(format_args!("round {round}: {} {}", program.display(), argument.unwrap_or("")));
                let dir = tempfile::Builder::new().prefix("holdfast-hits-").tempdir_in(DIR)?;
                let mut command = Command::new(program);
                rows.add(&output(command.arg(dir.path()).arg(ROW_SECONDS).args(argument))?)?;
            }
        }
    }
    let mut figures = Vec::new();
    for (bytes, name) in [(128 << 10, "slab_hit"), (4 << 10, "slab_hit_4k")] {
        for ComparedKind { kind, suffix } in &COMPARED {
            for depth in DEPTHS {
                let has_bar = *kind == "uring" && bytes == 128 << 10;
                let theirs = (*kind, bytes, depth);
                figures.push(Figure {
                    bar: has_bar.then_some(Bar::AtLeast(LEAST_VS_FOYER)),
                    ..rows.speeds(format!("{name}_{suffix}_qd{depth}"), theirs)?
                });
                figures.push(rows.costs(format!("{name}_cpu_{suffix}_qd{depth}"), theirs)?);
                figures.push(with_workers.speeds(format!("{name}_workers_{suffix}_qd{depth}"), theirs)?);
            }
        }
    }
    Ok(figures)
}

/// Builds the program that measures our hits.
fn slab_hits(toolbox: &Toolbox) -> Result<PathBuf> {
    report::step("cargo build the example slab_hits");
    let mut build = toolbox.cargo("build");
    build.args(["--release", "--locked", "--package", "holdfast-serve", "--example", "slab_hits"]);
    toolbox.clock().time(|| show(build.args(["--features", "holdfast-serve/fake"])))?;
    Ok(toolbox.target().join("release/examples/slab_hits"))
}

/// Builds the program that measures those of foyer, which is in no workspace of ours.
fn foyer_hits(toolbox: &Toolbox) -> Result<PathBuf> {
    report::step("cargo build foyer-hits");
    let target = toolbox.target().join("foyer");
    let mut build = toolbox.cargo("build");
    build.args(["--release", "--locked", "--manifest-path"]).arg(Path::new("e2e/bench/foyer/Cargo.toml"));
    toolbox.clock().time(|| show(build.arg("--target-dir").arg(&target)))?;
    Ok(target.join("release/foyer-hits"))
}

/// A row of a program: kind, length of a read in bytes, reads in flight.
type HitRow<'a> = (&'a str, u32, u32);

/// Reads a second, and microseconds of processor time of a read, by row in each round.
#[derive(Debug, Default)]
struct HitRows(BTreeMap<(String, u32, u32), [Vec<f64>; 2]>);

impl HitRows {
    /// Adds the rows that a program printed.
    fn add(&mut self, output: &str) -> Result<()> {
        for line in output.lines() {
            let row: Vec<&str> = line.split_whitespace().collect();
            let [kind, bytes, depth, speed, cost] = row[..] else { bail!("not a row: {line}") };
            let key = (kind.to_owned(), bytes.parse()?, depth.parse()?);
            let [speeds, costs] = self.0.entry(key).or_default();
            speeds.push(speed.parse()?);
            costs.push(cost.parse()?);
        }
        Ok(())
    }

    /// Returns the highest speed and the lowest cost of a row.
    fn best(&self, (kind, bytes, depth): HitRow<'_>) -> Result<[f64; 2]> {
        let row = self.0.get(&(kind.to_owned(), bytes, depth));
        let [speeds, costs] = row.with_context(|| format!("no row {kind} {bytes} {depth} was printed"))?;
        let highest = speeds.iter().copied().fold(0.0, f64::max);
        Ok([highest, costs.iter().copied().fold(f64::INFINITY, f64::min)])
    }

    /// Returns those of our hits and of a row.
    fn both(&self, theirs: HitRow<'_>) -> Result<[[f64; 2]; 2]> {
        Ok([self.best(("slab", theirs.1, theirs.2))?, self.best(theirs)?])
    }

    /// Compares the speed of our hits with that of a row.
    fn speeds(&self, name: String, theirs: HitRow<'_>) -> Result<Figure> {
        let [[ours, _], [theirs, _]] = self.both(theirs)?;
        let processors = available_parallelism()?;
        let against = format!("{ours:.0} to {theirs:.0} reads a second, {processors} processors");
        Ok(Figure { name, value: ours / theirs, unit: "ratio", against, bar: None })
    }

    /// Compares the cost of our hits with that of a row.
    fn costs(&self, name: String, theirs: HitRow<'_>) -> Result<Figure> {
        let [[_, ours], [_, theirs]] = self.both(theirs)?;
        let against = format!("{ours:.2} to {theirs:.2} us of processor time for a read");
        Ok(Figure { name, value: ours / theirs, unit: "ratio", against, bar: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fastest_rounds_of_equal_rows_are_compared() {
        let mut rows = HitRows::default();
        for (slab, uring) in [(800, 400), (900, 100), (100, 450)] {
            rows.add(&format!("slab 4096 16 {slab} 1.5\nring 4096 16 1 1\n")).unwrap();
            rows.add(&format!("uring 4096 16 {uring} 3\nuring 4096 1 7 1\n")).unwrap();
        }
        let theirs = ("uring", 4096, 16);
        let speeds = rows.speeds("speeds".to_owned(), theirs).unwrap();
        assert!((speeds.value - 2.0).abs() < f64::EPSILON);
        assert!(speeds.against.starts_with("900 to 450 reads a second"));
        let costs = rows.costs("costs".to_owned(), theirs).unwrap();
        assert!((costs.value - 0.5).abs() < f64::EPSILON);
        assert!(rows.speeds("none".to_owned(), ("uring", 4096, 64)).is_err(), "no such row");
        assert!(rows.add("thread main panicked").is_err());
    }
}
