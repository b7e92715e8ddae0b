//! Line coverage, by the simulation alone, of the crates that hold the data.
//!
//! The simulation is compiled with the compiler's coverage counters into its own target directory, and
//! played: random seeds, fleets and deaths at crash points. Unit tests do not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::{output, show};
use holdfast_lab::report;
use holdfast_lab::setup::Toolbox;

/// The measured crates, below `node/`.
const CRATES: [&str; 5] = ["background", "engine", "format", "log", "objects"];
/// Their parts for tests only: the reference store, its faults, the conformance suite of stores.
const FOR_TESTS: [&str; 3] =
    ["node/objects/src/conformance", "node/objects/src/memory.rs", "node/objects/src/fault.rs"];
/// Arguments of the simulation. Few operations per seed: deaths and attaches matter more than long lives.
/// Only fleets run the code for resources that the volumes of a host share.
const PLAYED: [&[&str]; 3] = [
    &["--seeds", "96", "--operations", "4000"],
    &["--volumes", "4", "--seeds", "8", "--operations", "8000"],
    &["crash-points", "--seeds", "1", "--outcomes", "4"],
];

/// Measured coverage.
#[derive(Debug)]
pub struct Coverage {
    /// The files, by path relative to the workspace.
    files: BTreeMap<String, File>,
}

/// Lines of a file that have code.
#[derive(Debug, Default)]
struct File {
    run: BTreeSet<u32>,
    missed: BTreeSet<u32>,
}

impl Coverage {
    /// Builds and plays the simulation, and counts the lines that it ran.
    ///
    /// # Errors
    /// If a step fails, the simulation finds a violation, or it contains no code of a crate.
    pub fn measure(toolbox: &Toolbox) -> Result<Self> {
        let llvm = toolbox.llvm()?;
        let target = toolbox.target().join("coverage");
        let profiles = tempfile::tempdir().context("make a directory for profiles")?;
        report::step("cargo build the simulation with counters");
        show(
            toolbox
                .cargo("build")
                .args(["--package", "holdfast-sim", "--target-dir"])
                .arg(&target)
                .env("RUSTFLAGS", "-C instrument-coverage")
                // Build scripts write profiles too: keep those out of the source tree.
                .env("LLVM_PROFILE_FILE", profiles.path().join("build-%m-%p")),
        )?;
        let program = target.join("debug/holdfast-sim");
        for arguments in PLAYED {
            report::step(format_args!("holdfast-sim {}", arguments.join(" ")));
            show(
                std::process::Command::new(&program)
                    .args(arguments)
                    .env("LLVM_PROFILE_FILE", profiles.path().join("played-%p.profraw")),
            )?;
        }
        let merged = profiles.path().join("merged");
        let mut merge = llvm.program("llvm-profdata");
        merge.args(["merge", "--sparse", "-o"]).arg(&merged);
        for entry in fs::read_dir(profiles.path())? {
            let path = entry?.path();
            if path.extension().is_some_and(|kind| kind == "profraw") {
                merge.arg(path);
            }
        }
        output(&mut merge)?;
        let sources = CRATES.map(|name| toolbox.workspace().join("node").join(name).join("src"));
        let mut export = llvm.program("llvm-cov");
        export.args(["export", "--format=lcov", "--instr-profile"]).arg(&merged).arg(&program).args(&sources);
        let mut files = parse(&output(&mut export)?, toolbox.workspace())?;
        files.retain(|name, _| !FOR_TESTS.iter().any(|part| name.starts_with(part)));
        let found = Self { files };
        for (name, source) in CRATES.iter().zip(&sources) {
            let below = source.strip_prefix(toolbox.workspace()).unwrap_or(source);
            let seen = found.files.keys().any(|file| Path::new(file).starts_with(below));
            ensure!(seen, "the simulation has nothing of {name}: its lines cannot be counted");
        }
        Ok(found)
    }

    /// Returns the percentage of lines with code that were run.
    pub fn percent(&self) -> f64 {
        let run: usize = self.files.values().map(|file| file.run.len()).sum();
        let missed: usize = self.files.values().map(|file| file.missed.len()).sum();
        run as f64 * 100.0 / (run + missed) as f64
    }

    /// Prints the percentage and the missed lines of each file, then the total.
    pub fn print(&self) {
        for (name, file) in &self.files {
            let lines = file.run.len() + file.missed.len();
            let percent = file.run.len() as f64 * 100.0 / lines as f64;
            report::line(format_args!("{percent:5.1} % of {lines:4}  {name}  {}", spans(&file.missed)));
        }
        report::line(format_args!("{:.2} % of the lines are run by the simulation alone", self.percent()));
    }
}

/// Parses the lines of each file. Source: the `SF`, `DA` and `end_of_record` lines of `man geninfo`.
fn parse(lcov: &str, workspace: &Path) -> Result<BTreeMap<String, File>> {
    let mut files = BTreeMap::new();
    let mut name = PathBuf::new();
    let mut file = File::default();
    for line in lcov.lines() {
        if let Some(path) = line.strip_prefix("SF:") {
            name = Path::new(path).strip_prefix(workspace).unwrap_or(Path::new(path)).to_owned();
        } else if let Some(counted) = line.strip_prefix("DA:") {
            let (number, count) = counted.split_once(',').context("a line without its count")?;
            let number = number.parse().with_context(|| format!("line {number:?}"))?;
            if count == "0" {
                file.missed.insert(number)
            } else {
                file.run.insert(number)
            };
        } else if line == "end_of_record" {
            files.insert(name.display().to_string(), std::mem::take(&mut file));
        }
    }
    Ok(files)
}

/// Formats lines 3, 7, 8 and 9 as `3 7-9`.
fn spans(lines: &BTreeSet<u32>) -> String {
    let lines: Vec<u32> = lines.iter().copied().collect();
    let span = |run: &[u32]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    lines.chunk_by(|one, next| next - one == 1).map(span).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_file() {
        let lcov = "SF:/w/node/a.rs\nDA:3,0\nDA:4,17\nDA:7,0\nDA:8,0\nend_of_record\nSF:/w/b.rs\nDA:1,1\nend_of_record\n";
        let found = Coverage { files: parse(lcov, Path::new("/w")).unwrap() };
        assert_eq!(found.files.keys().collect::<Vec<_>>(), ["b.rs", "node/a.rs"]);
        assert_eq!(spans(&found.files["node/a.rs"].missed), "3 7-8");
        assert!((found.percent() - 40.0).abs() < f64::EPSILON);
    }
}
