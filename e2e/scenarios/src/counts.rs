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

/// Most instructions, allocations and calls of `io_uring_enter` of a request. The first are 5 % above what is
/// measured, since the C library copies memory otherwise on other processors: lower them with the cost.
const BARS: &[(&str, f64, f64, f64)] = &[
    ("read4k", 979.0, 0.0, 0.07),
    ("read128k", 991.0, 0.0, 0.07),
    ("read1m", 1065.0, 0.0, 0.07),
    ("user_copy_read4k", 1128.0, 0.0, 0.07),
    ("write4k", 1137.0, 0.0, 0.07),
    ("write128k", 1150.0, 0.0, 0.07),
    ("write1m", 1223.0, 0.0, 0.07),
    ("user_copy_write4k", 1278.0, 0.0, 0.07),
    // These wait for worker threads of the kernel: the number of their turns is not always the same.
    ("flush", 28000.0, 9.0, 6.0),
    ("discard128k", 3252.0, 1.0, 4.0),
];

/// The cost of one request.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RequestCost {
    instructions: f64,
    allocations: f64,
    enters: f64,
}

pub(super) fn run(world: &World) -> Result<()> {
    ensure!(cfg!(target_arch = "x86_64"), "the bars are of x86_64, and this host has another processor");
    let program = world.toolbox().counts()?;
    let prefix = world.dir().join("callgrind");
    let mut callgrind = Command::new("valgrind");
    callgrind
        .args(["-q", "--tool=callgrind", "--collect-atstart=no"])
        .arg(format!("--callgrind-out-file={}", prefix.display()))
        .arg(program);
    let rows = output(&mut callgrind)?;
    let parts = parts(world.dir())?;
    let mut too_dear = Vec::new();
    for (row, bar) in rows.lines().zip(BARS) {
        let (name, cost) = cost(row, &parts)?;
        let &(expected, instructions, allocations, enters) = bar;
        ensure!(name == expected, "the program counts {name} where {expected} was expected");
        report::line(format_args!(
            "{name}: {:.1} instructions, {:.2} allocations, {:.3} io_uring_enter \
             (at most {instructions}, {allocations}, {enters})",
            cost.instructions, cost.allocations, cost.enters
        ));
        let is_too_dear =
            cost.instructions > instructions || cost.allocations > allocations || cost.enters > enters;
        if is_too_dear {
            too_dear.push(name);
        }
    }
    ensure!(rows.lines().count() == BARS.len(), "the program counts other rows than there are bars:\n{rows}");
    ensure!(too_dear.is_empty(), "requests cost more than before: {}", too_dear.join(" "));
    Ok(())
}

/// Instructions by name of the row, from the parts of callgrind's output in a directory.
fn parts(dir: &Path) -> Result<BTreeMap<String, f64>> {
    let mut parts = BTreeMap::new();
    for file in fs::read_dir(dir).context("list callgrind's output")? {
        let path = file.context("list callgrind's output")?.path();
        let is_part = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("callgrind."));
        if is_part {
            let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            parts.extend(part(&text));
        }
    }
    Ok(parts)
}

/// Name and instructions of a part. Source: "Callgrind Format Specification" of valgrind's manual.
fn part(text: &str) -> Option<(String, f64)> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key));
    let name = value("desc: Trigger: Client Request: ")?;
    Some((name.to_owned(), value("totals: ")?.trim().parse().ok()?))
}

/// Reads a row that the program printed: name, requests, allocations, calls of `io_uring_enter`.
fn cost<'a>(row: &'a str, parts: &BTreeMap<String, f64>) -> Result<(&'a str, RequestCost)> {
    let mut words = row.split_whitespace();
    let name = words.next().context("an empty row")?;
    let mut number =
        || words.next().and_then(|word| word.parse::<f64>().ok()).context("a row has three numbers");
    let (requests, allocations, enters) = (number()?, number()?, number()?);
    let instructions = parts.get(name).with_context(|| format!("callgrind wrote no part {name}"))?;
    let cost = RequestCost {
        instructions: instructions / requests,
        allocations: allocations / requests,
        enters: enters / requests,
    };
    Ok((name, cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_and_divided_by_its_requests() {
        let text = "version: 1\ndesc: Trigger: Client Request: read4k\nevents: Ir\nsummary: 9\n\
                    fn=x\n1 2\ntotals: 1024\n";
        let parts = BTreeMap::from([part(text).unwrap()]);
        let expected = RequestCost { instructions: 2.0, allocations: 0.25, enters: 0.0625 };
        assert_eq!(cost("read4k 512 128 32", &parts).unwrap(), ("read4k", expected));
        assert!(part("desc: Trigger: Program termination\ntotals: 1\n").is_none());
        assert!(cost("write4k 512 0 32", &parts).is_err());
    }
}
