//! Runs scenarios and counts what came of them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::report;
use crate::scenario::{ALL, Scenario};
use crate::setup::{Profile, Toolbox};
use crate::world::World;

/// Name of the lane that runs the workspace's own tests.
pub const HOST_TESTS: &str = "host-tests";
/// How long it takes, with everything compiled.
pub const HOST_TESTS_EXPECTED: Duration = Duration::from_secs(25);
/// The scenario that `cargo e2e demo` shows.
const DEMO: &str = "story-zero-copy";
/// How many lines of each log are shown when a scenario fails.
const LOG_LINES: usize = 60;

/// Runs the workspace's own tests, then every scenario whose name contains `filter`. Returns whether all
/// of it passed. With a filter only scenarios run.
///
/// # Errors
/// When the host cannot be set up.
pub fn run(filter: Option<&str>) -> Result<bool> {
    let toolbox = Toolbox::open()?;
    let mut passed = 0;
    let mut failed = 0;
    let mut skipped = 0;
    if filter.is_none() {
        record(HOST_TESTS, &mut passed, &mut failed, || host_tests(&toolbox));
    } else {
        skipped += 1;
    }
    for scenario in ALL {
        if filter.is_some_and(|filter| !scenario.name.contains(filter)) {
            skipped += 1;
            continue;
        }
        record(scenario.name, &mut passed, &mut failed, || play(&toolbox, scenario));
    }
    report::line(format_args!("{passed} passed, {failed} failed, {skipped} skipped"));
    Ok(failed == 0)
}

/// Plays the main job and shows it as it goes.
///
/// # Errors
/// What went wrong; the logs were shown.
pub fn demo() -> Result<()> {
    let toolbox = Toolbox::open()?;
    let demo =
        ALL.iter().find(|scenario| scenario.name == DEMO).context("the story is among the scenarios")?;
    play(&toolbox, demo)?;
    report::line("the demo is over: everything it started is stopped, nothing is left behind");
    Ok(())
}

fn record(name: &str, passed: &mut u32, failed: &mut u32, work: impl FnOnce() -> Result<()>) {
    let started = Instant::now();
    let result = work();
    let seconds = started.elapsed().as_secs_f64();
    match result {
        Ok(()) => {
            *passed += 1;
            report::line(format_args!("PASS {name} ({seconds:.1} s)"));
        }
        Err(error) => {
            *failed += 1;
            report::step(format_args!("{name}: {error:#}"));
            report::line(format_args!("FAIL {name} ({seconds:.1} s): {error}"));
        }
    }
}

fn play(toolbox: &Toolbox, scenario: &Scenario) -> Result<()> {
    report::step(format_args!(
        "scenario {} (about {} s): {}",
        scenario.name,
        scenario.expected.as_secs(),
        scenario.about
    ));
    let world = World::new(toolbox, scenario.name, Profile::Dev)?;
    // A failed assertion in one scenario must not keep the others from running.
    let result = catch_unwind(AssertUnwindSafe(|| (scenario.run)(&world)))
        .unwrap_or_else(|_| Err(anyhow::anyhow!("panicked; the message is above")));
    if result.is_err() {
        eprintln!("{}", world.logs(LOG_LINES));
        report::step(format_args!("logs stay in {}", world.dir().display()));
    }
    result
}

/// `cargo test --workspace`, and then the tests that are ignored without the S3 server, which is here.
fn host_tests(toolbox: &Toolbox) -> Result<()> {
    let versitygw = toolbox.versitygw()?;
    for arguments in [&[][..], &["--test", "s3", "--", "--ignored", "versitygw"]] {
        let status = toolbox
            .cargo("test")
            .arg("--workspace")
            .args(arguments)
            .env("HOLDFAST_TEST_VERSITYGW", &versitygw)
            .status()
            .context("start cargo test")?;
        ensure!(status.success(), "cargo test --workspace {}: {status}", arguments.join(" "));
    }
    Ok(())
}
