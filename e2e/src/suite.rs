//! Runs scenarios, each in a process of its own, and counts the results.
//!
//! A process for each, because only the end of a process ends a thread that hangs and, through the kernel, everything that
//! it started (see [`holdfast_lab::process`]). Its standard output is the reason why the scenario failed.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use holdfast_lab::command;
use holdfast_lab::limit::{WorkClock, within};
use holdfast_lab::process::Process;
use holdfast_lab::report;
use holdfast_lab::run_dir;
use holdfast_lab::setup::{Profile, Toolbox};
use holdfast_lab::world::World;
use holdfast_scenarios::{ALL, Scenario};

/// Name of the lane that runs the workspace's own tests.
pub const HOST_TESTS: &str = "host-tests";
/// Duration, with everything compiled.
pub const HOST_TESTS_EXPECTED: Duration = Duration::from_secs(25);
/// Time limit, with all but the documentation's examples compiled.
const HOST_TESTS_LIMIT: Duration = Duration::from_secs(1200);
/// The scenario that `cargo e2e demo` shows.
const DEMO: &str = "story-zero-copy";
/// Lines of each log that are shown when a scenario fails.
const LOG_LINES: usize = 60;
/// Time limit of fetching these from machines that may hang.
const LOGS_LIMIT: Duration = Duration::from_secs(60);

/// The counts of a run.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    failed: u32,
    skipped: u32,
}

/// Runs the workspace's own tests, then every scenario whose name contains `filter`. Returns whether all
/// of it passed. With a filter only scenarios run.
///
/// # Errors
/// If the host cannot be set up.
pub fn run(filter: Option<&str>) -> Result<bool> {
    let toolbox = Toolbox::open()?;
    let mut tally = Tally::default();
    if filter.is_none() {
        tally.record(HOST_TESTS, || host_tests(&toolbox));
    } else {
        tally.skipped += 1;
    }
    for scenario in ALL {
        if filter.is_some_and(|filter| !scenario.name.contains(filter)) {
            tally.skipped += 1;
            continue;
        }
        tally.record(scenario.name, || start(&toolbox, scenario));
    }
    let Tally { passed, failed, skipped } = tally;
    report::line(format_args!("{passed} passed, {failed} failed, {skipped} skipped"));
    Ok(failed == 0)
}

/// Plays the main job and shows it as it goes.
///
/// # Errors
/// The reason why it failed; the logs were shown.
pub fn demo() -> Result<()> {
    start(&Toolbox::open()?, find(DEMO)?)?;
    report::line("the demo is over: everything it started is stopped, nothing is left behind");
    Ok(())
}

/// Plays a scenario in this process, which must end when this returns: a scenario that exceeded its time limit still
/// runs. Returns whether it passed, and prints the reason if it did not.
///
/// # Errors
/// If there is no such scenario or the host cannot be set up.
pub fn play(name: &str) -> Result<bool> {
    let scenario = find(name)?;
    let toolbox = Toolbox::open()?;
    let world = Arc::new(World::new(&toolbox, scenario.name, Profile::Dev)?);
    let played = Arc::clone(&world);
    let result = within(scenario.limit(), toolbox.clock(), move || (scenario.run)(&played));
    let Err(error) = result else { return Ok(true) };
    report::step(format_args!("{name}: {error:#}"));
    let shown = Arc::clone(&world);
    let logs = within(LOGS_LIMIT, &WorkClock::default(), move || {
        eprintln!("{}", shown.logs(LOG_LINES));
        Ok(())
    });
    if let Err(error) = logs {
        report::step(format_args!("the logs of {name} were not shown: {error}"));
    }
    report::step(format_args!("logs stay in {}", world.dir().display()));
    report::line(error);
    Ok(false)
}

fn find(name: &str) -> Result<&'static Scenario> {
    ALL.iter().find(|scenario| scenario.name == name).with_context(|| format!("no scenario {name:?}"))
}

/// Plays a scenario in a process of its own.
fn start(toolbox: &Toolbox, scenario: &Scenario) -> Result<()> {
    report::step(format_args!(
        "scenario {} (about {} s, at most {} s): {}",
        scenario.name,
        scenario.expected.as_secs(),
        scenario.limit().as_secs(),
        scenario.about
    ));
    // By this name the kernel finds this program even after `cargo test` has put another one in its place.
    let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
    command.args(["play", scenario.name]);
    let result = supervise(scenario.name, &command);
    run_dir::tidy(&toolbox.target())?;
    result
}

/// Runs a scenario's process to its end, and ends with it everything that it started.
fn supervise(name: &str, command: &Command) -> Result<()> {
    let mut reason = tempfile::tempfile().context("make a file for the reason of a failure")?;
    let out = reason.try_clone().context("share the file for the reason")?;
    let mut process = Process::spawn_shown(name, command, out.into())?;
    let status = process.end()?;
    drop(process);
    if status.success() {
        return Ok(());
    }
    let mut text = String::new();
    reason.rewind().and_then(|()| reason.read_to_string(&mut text)).context("read the reason")?;
    match text.trim_end() {
        "" => bail!("its process ended: {status}"),
        reason => bail!("{reason}"),
    }
}

/// `cargo test --workspace`, and then the tests that are ignored without the S3 server, which is here.
fn host_tests(toolbox: &Toolbox) -> Result<()> {
    let versitygw = toolbox.versitygw()?;
    command::show(toolbox.cargo("test").args(["--workspace", "--no-run"]))?;
    for arguments in [&[][..], &["--test", "s3", "--", "--ignored", "versitygw"]] {
        let mut command = toolbox.cargo("test");
        command.arg("--workspace").args(arguments).env("HOLDFAST_TEST_VERSITYGW", &versitygw);
        let mut tests = Process::spawn_shown("cargo test", &command, Stdio::inherit())?;
        let status = tests.wait(HOST_TESTS_LIMIT)?;
        ensure!(status.success(), "cargo test --workspace {}: {status}", arguments.join(" "));
    }
    Ok(())
}

impl Tally {
    fn record(&mut self, name: &str, work: impl FnOnce() -> Result<()>) {
        let started = Instant::now();
        let result = work();
        let seconds = started.elapsed().as_secs_f64();
        match result {
            Ok(()) => {
                self.passed += 1;
                report::line(format_args!("PASS {name} ({seconds:.1} s)"));
            }
            Err(error) => {
                self.failed += 1;
                report::line(format_args!("FAIL {name} ({seconds:.1} s): {error:#}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use holdfast_lab::run_dir::RunDir;
    use holdfast_lab::wait::until;

    /// Directory of the run of the test's process below.
    const TARGET: &str = "HOLDFAST_TEST_HUNG_SCENARIO";

    /// Plays a scenario's process in the test below.
    #[test]
    #[ignore = "hangs: the next test starts it"]
    fn hung_scenario() {
        let Some(target) = std::env::var_os(TARGET) else { return };
        let run = RunDir::create(Path::new(&target), "hung").unwrap();
        fs::write(run.path().join("state.ext4"), "a disk").unwrap();
        let mut machine = Command::new("sh");
        machine.args(["-c", "echo $$; exec sleep 1000"]);
        let machine = Process::spawn("machine", &machine, &run.path().join("machine.log")).unwrap();
        let error = within(Duration::from_secs(2), &WorkClock::default(), move || {
            let _parts = (run, machine);
            loop {
                std::thread::park();
            }
        });
        report::line(error.unwrap_err());
        std::process::exit(1);
    }

    /// Its machine is killed, its disk removed, its log kept, and the run continues with the next one.
    #[test]
    fn a_hung_scenario_fails_and_leaves_only_logs() {
        let target = tempfile::tempdir().unwrap();
        let mut hung = Command::new(std::env::current_exe().unwrap());
        hung.args(["--exact", "suite::tests::hung_scenario", "--ignored", "--nocapture", "--quiet"]);
        let mut tally = Tally::default();
        let mut reason = String::new();
        tally.record("hung", || {
            let result = supervise("hung", hung.env(TARGET, target.path()));
            reason = result.as_ref().err().map(ToString::to_string).unwrap_or_default();
            result
        });
        tally.record("next", || supervise("next", &Command::new("true")));
        assert_eq!((tally.passed, tally.failed), (1, 1));
        assert!(reason.ends_with("exceeded its time limit of 2 s"), "{reason}");

        run_dir::tidy(target.path()).unwrap();
        let run = fs::read_dir(target.path().join("e2e")).unwrap().next().unwrap().unwrap().path();
        let left: Vec<_> = fs::read_dir(&run).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["machine.log"]);
        let machine = fs::read_to_string(run.join("machine.log")).unwrap();
        until("the machine to be gone", Duration::from_secs(10), || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", machine.trim()));
            Ok(stat.map_or(true, |stat| stat.contains(") Z ")).then_some(()))
        })
        .unwrap();
    }

    #[test]
    fn a_process_that_says_nothing_fails_with_its_status() {
        let mut command = Command::new("sh");
        let error = supervise("silent", command.args(["-c", "kill -9 $$"])).unwrap_err();
        assert!(error.to_string().contains("signal: 9"), "{error}");
    }
}
