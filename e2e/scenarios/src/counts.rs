//! The cost of a request on a ring thread, in counts that do not depend on the host:
//! `node/serve/examples/counts.rs` under callgrind.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::report;
use holdfast_lab::world::World;

/// Maximum instructions, allocations, calls of `io_uring_enter` and other system calls per request: with
/// batches unless the row says `single` or `memory`. The first ones are 2 to 5 % above the measured values,
/// because the C library copies memory differently on other processors: lower them with the cost. Under
/// valgrind, reading the clock is a system call, two for a timed request: one in 64, and each flush. Other
/// system calls of memory volumes allocate or free the memory of slabs.
const BARS: &[(&str, f64, f64, f64, f64)] = &[
    ("read4k", 600.0, 0.0, 0.07, 0.04),
    ("read128k", 945.0, 0.0, 0.1, 0.04),
    ("read1m", 1385.0, 0.0, 0.55, 0.04),
    ("user_copy_read4k", 739.0, 0.0, 0.07, 1.04),
    ("single_read4k", 804.0, 0.0, 0.07, 0.04),
    ("single_user_copy_read4k", 946.0, 0.0, 0.07, 1.04),
    ("write4k", 694.0, 0.0, 0.07, 0.04),
    ("write128k", 990.0, 0.0, 0.1, 0.04),
    ("write1m", 1425.0, 0.0, 0.55, 0.04),
    ("user_copy_write4k", 825.0, 0.0, 0.07, 1.04),
    ("single_write4k", 868.0, 0.0, 0.07, 0.04),
    ("single_user_copy_write4k", 1026.0, 0.0, 0.07, 1.04),
    ("cached_read4k", 1254.0, 0.01, 0.07, 0.04),
    // These wait for worker threads of the kernel, which are not scheduled equally often in each run.
    ("flush", 25900.0, 9.0, 6.0, 2.1),
    ("discard128k", 3152.0, 1.0, 4.0, 0.0),
    ("memory_lz4_write4k", 98200.0, 0.0, 0.04, 0.07),
    ("memory_lz4_read4k", 23650.0, 0.0, 0.04, 0.04),
    ("memory_zstd_write4k", 181100.0, 0.0, 0.04, 0.07),
    ("memory_zstd_read4k", 36400.0, 0.0, 0.04, 0.04),
    ("memory_zeros_write4k", 1200.0, 0.0, 0.04, 0.04),
    ("memory_zeros_read4k", 4776.0, 0.0, 0.04, 0.04),
];

/// The cost of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RequestCost {
    instructions: f64,
    allocations: f64,
    enters: f64,
    other_calls: f64,
}

/// Counts of callgrind between two dumps.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct CountedPart {
    instructions: f64,
    system_calls: f64,
}

pub(super) fn run(world: &World) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the bars are of x86_64, and this host has another processor");
    let program = world.toolbox().build_counting_program()?;
    let prefix = world.dir().join("callgrind");
    let mut callgrind = Command::new("valgrind");
    callgrind
        .args(["-q", "--tool=callgrind", "--collect-atstart=no", "--collect-systime=yes"])
        .arg(format!("--callgrind-out-file={}", prefix.display()))
        .arg(program);
    let rows = output(&mut callgrind)?;
    let parts = parts(world.dir())?;
    let mut too_dear = Vec::new();
    for (row, bar) in rows.lines().zip(BARS) {
        let (name, cost) = cost(row, &parts)?;
        let &(expected, instructions, allocations, enters, other_calls) = bar;
        ensure!(name == expected, "the program counts {name} where {expected} was expected");
        report::line(format_args!(
            "{name}: {:.1} instructions, {:.2} allocations, {:.3} io_uring_enter, {:.3} other system calls \
             (at most {instructions}, {allocations}, {enters}, {other_calls})",
            cost.instructions, cost.allocations, cost.enters, cost.other_calls
        ));
        let is_too_dear = cost.instructions > instructions
            || cost.allocations > allocations
            || cost.enters > enters
            || cost.other_calls > other_calls;
        if is_too_dear {
            too_dear.push(name);
        }
    }
    ensure!(rows.lines().count() == BARS.len(), "the program counts other rows than there are bars:\n{rows}");
    ensure!(too_dear.is_empty(), "requests cost more than before: {}", too_dear.join(" "));
    Ok(())
}

/// Returns the counts by row name, from callgrind's output files in a directory: a row may have several.
fn parts(dir: &Path) -> Result<BTreeMap<String, CountedPart>> {
    let mut parts = BTreeMap::<String, CountedPart>::new();
    for file in fs::read_dir(dir).context("list callgrind's output")? {
        let path = file.context("list callgrind's output")?.path();
        let is_part = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("callgrind."));
        if is_part {
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            if let Some((name, part)) = part(&text) {
                let of_row = parts.entry(name).or_default();
                of_row.instructions += part.instructions;
                of_row.system_calls += part.system_calls;
            }
        }
    }
    Ok(parts)
}

/// Returns name and counts of a part: instructions of the counted code, and all system calls since the last
/// part, counted or not. Source: "Callgrind Format Specification" of valgrind's manual.
fn part(text: &str) -> Option<(String, CountedPart)> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let name = value("desc: Trigger: Client Request: ")?;
    let number =
        |line: &str, at: usize| line.split_whitespace().nth(at).map_or(Some(0.0), |word| word.parse().ok());
    let part = CountedPart {
        instructions: number(value("totals: ")?, 0)?,
        system_calls: number(value("summary: ")?, 1)?,
    };
    Some((name.to_owned(), part))
}

/// Parses a row printed by the program: name, requests, allocations, calls of `io_uring_enter`, and its own
/// system calls, which do not belong to requests.
fn cost<'a>(row: &'a str, parts: &BTreeMap<String, CountedPart>) -> Result<(&'a str, RequestCost)> {
    let mut words = row.split_whitespace();
    let name = words.next().context("an empty row")?;
    let mut number =
        || words.next().and_then(|word| word.parse::<f64>().ok()).context("a row has four numbers");
    let (requests, allocations, enters, own) = (number()?, number()?, number()?, number()?);
    let part = parts.get(name).with_context(|| format!("callgrind wrote no part {name}"))?;
    let cost = RequestCost {
        instructions: part.instructions / requests,
        allocations: allocations / requests,
        enters: enters / requests,
        other_calls: (part.system_calls - enters - own) / requests,
    };
    Ok((name, cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_and_divided_by_its_requests() {
        let text = "version: 1\ndesc: Trigger: Client Request: read4k\nevents: Ir sysCount sysTime\n\
                    summary: 9 60 5\n\
                    fn=x\n1 2\ntotals: 1024\n";
        let parts = BTreeMap::from([part(text).unwrap()]);
        let expected =
            RequestCost { instructions: 2.0, allocations: 0.25, enters: 0.0625, other_calls: 0.03125 };
        assert_eq!(cost("read4k 512 128 32 12", &parts).unwrap(), ("read4k", expected));
        assert!(part("desc: Trigger: Program termination\nsummary: 1\ntotals: 1\n").is_none());
        assert!(cost("write4k 512 0 32 0", &parts).is_err());
    }
}
