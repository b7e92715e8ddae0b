//! Work of a ring thread in one turn for one volume, while the other devices of the thread wait.
//!
//! The tests in `node/engine/tests/rounds.rs` print it: optimised, in a machine whose clock counts
//! instructions.

use anyhow::{Context, Result};
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;
use serde::Deserialize;

use super::{Bar, Figure};

/// Maximum length of a turn, in instructions.
const MAX_INSTRUCTIONS: f64 = 5e6;
/// Maximum memory in addition to the live map, in bytes.
const MAX_MEMORY_BYTES: f64 = 67_108_864.0;
/// `MAP_WRITE_PAGES` of the engine.
const MAX_PAGES: f64 = 64.0;

/// Figures that a test prints on one line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Turns {
    turns_of: String,
    longest_ns: u64,
    max_pages: u64,
    memory_bytes: u64,
}

/// Runs these tests of `rounds` and returns their output, in which an instruction is a nanosecond.
pub(super) fn output_of(world: &World, tests: &str) -> Result<String> {
    world.share(&world.toolbox().test_program("rounds", BuildProfile::Release)?, "bin/rounds")?;
    let vm = world.vm_with("bench", MachineOptions::benchmark)?;
    let output = vm.exec(&format!("rounds {tests} --nocapture --test-threads=1"))?;
    vm.power_off()?;
    Ok(output)
}

pub(super) fn run(world: &World) -> Result<Vec<Figure>> {
    let output = output_of(world, "no_turn_of")?;
    let mut figures = Vec::new();
    for (of, about) in [("flush", "a FLUSH after a restart"), ("seal", "a seal and its commit")] {
        let turns = output
            .lines()
            .filter_map(|line| serde_json::from_str::<Turns>(line).ok())
            .find(|turns| turns.turns_of == of)
            .with_context(|| format!("no turns of a {of} in {output}"))?;
        let figure = |name: &str, value: u64, unit, most| Figure {
            name: format!("{of}_{name}"),
            value: value as f64,
            unit,
            against: format!("{about}, 1 TiB with a sector written in each map page"),
            bar: Some(Bar::AtMost(most)),
        };
        figures.extend([
            figure("longest_ring_turn_instructions", turns.longest_ns, "instructions", MAX_INSTRUCTIONS),
            figure("longest_ring_turn_pages", turns.max_pages, "count", MAX_PAGES),
            figure("memory_bytes", turns.memory_bytes, "bytes", MAX_MEMORY_BYTES),
        ]);
    }
    Ok(figures)
}
