//! Figures of the source: what the tests of its structure count.

use std::process::Command;

use anyhow::{Context, Result};
use holdfast_lab::command::output;
use holdfast_lab::world::World;

use super::{Bar, Figure};

/// Figures that the tests print: name, meaning and bar.
const FIGURES: &[(&str, &str, Option<Bar>)] = &[
    ("circles", "circles of files that import each other", Some(Bar::Exactly(0.0))),
    ("arrows_up", "imports from a lower layer of the workspace to a higher one", Some(Bar::Exactly(0.0))),
    ("type_names_twice", "type names that several programs define, each with its reason", None),
    ("words", "listed words that are used", Some(Bar::Exactly(0.0))),
    ("largest_file", "lines of a file without its tests", Some(Bar::AtMost(700.0))),
    ("longest_function", "lines of a function; the longest is a table", None),
    ("largest_struct", "fields of a struct; the largest is the status of a Volume", None),
    ("hand_written_lines", "lines of Rust without tests", None),
];

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let mut tests = Command::new("cargo");
    tests.args(["test", "--quiet", "--locked", "--package", "holdfast-e2e", "--no-fail-fast"]);
    tests.args(["--test", "structure", "--test", "dependencies", "--test", "words"]);
    tests.args(["--", "--nocapture", "--test-threads=1"]).current_dir(world.toolbox().workspace());
    let printed = output(&mut tests)?;
    let figures = FIGURES.iter().map(|&(name, against, bar)| {
        let value = value_of(&printed, name)?;
        Ok(Figure { name: name.to_owned(), value, unit: "count", against: against.to_owned(), bar })
    });
    figures.collect()
}

/// Returns the value of the line `figure NAME VALUE`.
fn value_of(printed: &str, name: &str) -> Result<f64> {
    let line = printed.lines().find_map(|line| line.split_once(&format!("figure {name} ")));
    let (_, value) = line.with_context(|| format!("no test printed `figure {name}`"))?;
    value.trim().parse().with_context(|| format!("`figure {name}`: {value}"))
}
