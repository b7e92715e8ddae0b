//! Ends of the server and of the keeper while threads write, read and verify with direct I/O.

use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::report;
use holdfast_lab::vm::{Vm, bash};

use super::server::{MOUNT_POINT, RunningUring};
use crate::{Bar, Figure};

/// Maximum time on the host for all ends in one way.
const LIMIT: Duration = Duration::from_secs(900);
/// Seconds after the last end within which requests must be answered.
const ANSWERED_WITHIN: u32 = 60;

/// Ends of a process.
struct UringEnds {
    name: &'static str,
    about: &'static str,
    way: &'static str,
    number: u32,
    /// Number of threads of the load.
    threads: u32,
    /// Script of one end.
    script: &'static str,
    /// True if programs must see no error.
    is_promised: bool,
}

const ENDS: [UringEnds; 6] = [
    UringEnds {
        name: "copy_kill",
        about: "kills of the server",
        way: "keeper-copy",
        number: 20,
        threads: 16,
        script: "kill -9 $(cat /run/uring/server)",
        is_promised: true,
    },
    UringEnds {
        name: "zc_kill",
        about: "kills of the server, zero copy",
        way: "keeper-zero",
        number: 20,
        threads: 16,
        script: "kill -9 $(cat /run/uring/server)",
        is_promised: true,
    },
    UringEnds {
        name: "zc_sqpoll_kill",
        about: "kills of the server, zero copy, IORING_SETUP_SQPOLL",
        way: "kernel-zero",
        number: 20,
        threads: 16,
        script: "kill -9 $(cat /run/uring/server)",
        is_promised: true,
    },
    UringEnds {
        name: "zc_keeper_kill",
        about: "kills of the keeper alone",
        way: "keeper-zero",
        number: 20,
        threads: 16,
        script: "kill -9 $(cat /run/uring/keeper)",
        is_promised: false,
    },
    UringEnds {
        name: "zc_lonely_keeper_kill",
        about: "kills of the keeper alone, one request at a time",
        way: "keeper-zero",
        number: 20,
        threads: 1,
        script: "kill -9 $(cat /run/uring/keeper)",
        is_promised: false,
    },
    UringEnds {
        name: "zc_both_kill",
        about: "kills of keeper and server at once, two requests at a time",
        way: "keeper-zero",
        number: 20,
        threads: 2,
        script: "kill -9 $(cat /run/uring/keeper) $(cat /run/uring/server)",
        is_promised: false,
    },
];

pub(super) fn run(vm: &Vm) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for ends in &ENDS {
        figures.extend(play(vm, ends).with_context(|| ends.about)?);
    }
    Ok(figures)
}

fn play(
    vm: &Vm,
    UringEnds { name, about, way, number, threads, script, is_promised }: &UringEnds,
) -> Result<[Figure; 2]> {
    let server = RunningUring::start(vm, way)?;
    let seconds = 3 * number + 5;
    // The load must run until after the last end, and then exit.
    let script = format!(
        "uring load {MOUNT_POINT}/disk {seconds} {threads} > /run/load & load=$!; sleep 1\n\
         for round in $(seq {number}); do sleep 1; {script} || exit; done\n\
         kill -0 $load || exit\n\
         for second in $(seq $(({seconds} + {ANSWERED_WITHIN}))); do kill -0 $load 2> /dev/null || break; sleep 1; done\n\
         if kill -0 $load 2> /dev/null; then echo a request hangs; exit 1; fi; wait $load && cat /run/load"
    );
    let done = vm.run(&bash(&script), LIMIT)?;
    let numbers: Vec<f64> = done.stdout.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [operations, errors, longest_us] = numbers[..] else {
        anyhow::bail!("{:?}: {}{}\n{}", done.exit, done.stdout, done.stderr, server.log()?);
    };
    report::step(format_args!("{number} {about}: {operations} operations, {errors} errors"));
    server.end()?;
    let figure = |figure: &str, value, unit, bar| Figure {
        name: format!("fuse_{name}_{figure}"),
        value,
        unit,
        against: format!("{number} {about}, {operations} operations"),
        bar,
    };
    Ok([
        figure("errors", errors, "count", is_promised.then_some(Bar::Exactly(0.0))),
        figure("longest_ms", longest_us / 1e3, "ms", None),
    ])
}
