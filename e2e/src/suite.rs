//! Runs scenarios, each in a separate process, and counts the results.
//!
//! Only the exit of a process ends a hanging thread and, through the kernel, everything that it started (see
//! [`holdfast_lab::process`]). The standard output of the process is the reason for the scenario's failure.

use std::cmp::Reverse;
use std::fs;
use std::io::{Read, Seek};
use std::iter;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use holdfast_lab::display::{Display, end_of};
use holdfast_lab::limit::{WorkClock, run_within};
use holdfast_lab::pins::{KERNEL, KernelPin, LTS_KERNEL};
use holdfast_lab::process::LoggedProcess;
use holdfast_lab::report;
use holdfast_lab::run_dir;
use holdfast_lab::setup::{BuildProfile, Toolbox};
use holdfast_lab::world::World;
use holdfast_scenarios::{
    BY_NAME, IN_TURN, ScenarioLane, day_order, lane, lanes, rotation_lane, usual_lanes,
};

use crate::host_tests;
use crate::run_time::RunTime;

/// Name of the lane that runs the workspace's own tests.
pub const HOST_TESTS: &str = "host-tests";
/// Expected time, with everything compiled.
pub const HOST_TESTS_EXPECTED: Duration = Duration::from_secs(250);
/// Kernels of the machines in a run without a filter.
pub const KERNELS: [KernelPin; 2] = [KERNEL, LTS_KERNEL];
/// The scenario shown by `cargo e2e demo`.
const DEMO: &str = "story-zero-copy";
/// Line printed before the ends of the logs.
const LOGS_FOLLOW: &str = "the ends of all logs";
/// Lines of each log printed after a failed scenario.
const LOG_LINES: usize = 60;
/// Time limit of fetching the logs from machines that may hang.
const LOGS_LIMIT: Duration = Duration::from_secs(60);

/// Memory needed by a scenario, in MiB: two machines, a Kubernetes API and an S3 server.
const SCENARIO_MIB: u64 = 5 << 10;
/// Maximum of concurrent scenarios, even on a large host.
const MAX_CONCURRENT: u64 = 4;

/// The results of a run.
#[derive(Debug, Default)]
struct Tally {
    passed: u32,
    /// One line per failed part: its name and the reason.
    failed: Vec<String>,
    skipped: u32,
}

impl Tally {
    /// Records the result of a part of the run.
    fn add(&mut self, name: &str, result: Result<()>) {
        match result {
            Ok(()) => self.passed += 1,
            Err(error) => self.failed.push(format!("FAIL {name}: {error:#}")),
        }
    }
}

/// A part of a run that may run concurrently with others.
enum SuitePart {
    HostTests,
    Lane(ScenarioLane),
    /// A lane that starts only while the run's time permits.
    IfTimeAllows(ScenarioLane),
}

impl SuitePart {
    /// Returns its name and expected time.
    fn expected(&self) -> (String, Duration) {
        match self {
            Self::HostTests => (HOST_TESTS.to_owned(), HOST_TESTS_EXPECTED),
            Self::Lane(lane) | Self::IfTimeAllows(lane) => (lane.to_string(), lane.scenario.expected),
        }
    }
}

/// State shared by all parts of a run.
struct SuiteRun<'a> {
    toolbox: &'a Toolbox,
    display: &'a Display,
    tally: &'a Mutex<Tally>,
    time: RunTime,
}

impl SuiteRun<'_> {
    /// Plays a scenario in a separate process, as a step of the display.
    fn scenario(&self, lane: ScenarioLane) {
        let name = lane.to_string();
        let begun = Instant::now();
        let result = self.display.step(&name, end_of_progress, |log| {
            start(self.toolbox, lane, log.try_clone().context("share a step's file")?.into())?;
            Ok(String::new())
        });
        if result.is_ok() {
            self.time.record(lane.scenario.expected, begun.elapsed());
        }
        lock(self.tally).add(&name, result);
    }

    /// Plays the lane unless the run's time does not permit it: lanes that need `later` still follow. `again`
    /// is the time at which a skipped lane runs.
    fn scenario_if_time_allows(&self, lane: ScenarioLane, later: Duration, again: &str) {
        if self.time.allows(lane.scenario.expected, later) {
            return self.scenario(lane);
        }
        let name = lane.to_string();
        self.display.print_line(&format!("SKIP {name}: no time is left for it; {again}"));
        self.display.skip(&name);
        lock(self.tally).skipped += 1;
    }

    /// Runs the workspace's own tests, as a step of the display.
    fn host_tests(&self) {
        let begun = Instant::now();
        let result = self.display.step(HOST_TESTS, host_tests::failures, |log| {
            host_tests::run(self.toolbox, log)?;
            host_tests::passed(&self.display.log(HOST_TESTS))
        });
        if result.is_ok() {
            self.time.record(HOST_TESTS_EXPECTED, begun.elapsed());
        }
        lock(self.tally).add(HOST_TESTS, result);
    }

    /// Runs today's lane of the rotation, unless the rest took too long or the archive of its kernel does not
    /// answer, and names those that did not run.
    fn run_rotation_lane(&self, lane: ScenarioLane) -> Result<()> {
        let chosen = lane.to_string();
        let others: Vec<&str> = IN_TURN.iter().copied().filter(|name| **name != chosen).collect();
        self.display.print_line(&format!("SKIP one of these runs each day: {}", others.join(" ")));
        lock(self.tally).skipped += u32::try_from(others.len())?;
        if let Err(error) = self.toolbox.find_kernel(lane.kernel) {
            self.display.print_line(&format!("SKIP {chosen}: {error:#}"));
            self.display.skip(&chosen);
            lock(self.tally).skipped += 1;
            return Ok(());
        }
        self.scenario_if_time_allows(lane, Duration::ZERO, "run it by name");
        Ok(())
    }
}

/// Runs the workspace's own tests and every lane selected by `filter` ([`lanes`]): first these tests and the
/// lanes that may run concurrently, ending with those that start only while the run's time permits; then each
/// of the others alone, the last one being today's of [`IN_TURN`]. Returns true if all have passed. With a
/// filter, only scenarios run, and all of them.
///
/// # Errors
/// If the filter names no pinned kernel, or the host cannot be set up.
pub fn run(filter: Option<&str>) -> Result<bool> {
    let time = RunTime::begin();
    let mut chosen = filter.map_or_else(|| Ok(usual_lanes()), lanes)?;
    // A long one that starts last would run without concurrent ones.
    chosen.sort_by_key(|lane| (lane.scenario.alone, Reverse(lane.scenario.expected)));
    let skipped = match filter {
        Some(_) => u32::try_from((1 + usual_lanes().len() + BY_NAME.len()).saturating_sub(chosen.len()))?,
        None => 0,
    };
    let (alone, concurrent): (Vec<ScenarioLane>, Vec<ScenarioLane>) =
        chosen.into_iter().partition(|lane| lane.scenario.alone);
    let places = max_concurrent(concurrent.len());
    let concurrent = match filter {
        Some(_) => concurrent.into_iter().map(SuitePart::Lane).collect(),
        None => parts_of_a_whole_run(concurrent, today()?),
    };

    let tally = Mutex::new(Tally { skipped, ..Tally::default() });
    let toolbox = Toolbox::find()?;
    {
        let display = toolbox.display()?;
        let expected = |lane: &ScenarioLane| (lane.to_string(), lane.scenario.expected);
        let whole = match filter {
            Some(_) => None,
            None => Some((toolbox.prepare(&display, &KERNELS, true), rotation_lane(today()?)?)),
        };
        display.plan(places, concurrent.iter().map(SuitePart::expected));
        display.plan(1, alone.iter().chain(whole.iter().map(|(_, lane)| lane)).map(expected));
        display
            .begin(&filter.map_or("cargo e2e test".to_owned(), |filter| format!("cargo e2e test {filter}")));

        let run = SuiteRun { toolbox: &toolbox, display: &display, tally: &tally, time };
        let in_turn = whole.map(|(preparation, lane)| {
            // A failed part was shown; the scenarios that need it fail, the others run.
            preparation.make().ok();
            lane
        });
        let later = alone.iter().chain(&in_turn).map(|lane| lane.scenario.expected).sum();
        run_concurrently(places, concurrent, |part| match part {
            SuitePart::HostTests => run.host_tests(),
            SuitePart::Lane(lane) => run.scenario(lane),
            SuitePart::IfTimeAllows(lane) => {
                run.scenario_if_time_allows(lane, later, "another day it runs in any case");
            }
        });
        alone.into_iter().for_each(|lane| run.scenario(lane));
        if let Some(lane) = in_turn {
            run.run_rotation_lane(lane)?;
        }
    }
    let tally = lock(&tally);
    // Repeated at the end of a long log.
    tally.failed.iter().for_each(report::line);
    let failed = tally.failed.len();
    report::line(format_args!("{} passed, {failed} failed, {} skipped", tally.passed, tally.skipped));
    Ok(failed == 0)
}

/// Returns the workspace's tests and these lanes, ending with those that start only while the run's time
/// permits, except today's first one, which always runs.
fn parts_of_a_whole_run(lanes: Vec<ScenarioLane>, day: u64) -> Vec<SuitePart> {
    let mut each_run = vec![SuitePart::HostTests];
    let mut if_time_allows = Vec::new();
    for lane in lanes {
        match day_order(&lane, day) {
            Some(place) => if_time_allows.push((place, lane)),
            None => each_run.push(SuitePart::Lane(lane)),
        }
    }
    if_time_allows.sort_by_key(|(place, _)| *place);
    each_run.extend(if_time_allows.into_iter().map(|(place, lane)| match place {
        0 => SuitePart::Lane(lane),
        _ => SuitePart::IfTimeAllows(lane),
    }));
    each_run
}

/// Returns the number of days since 1970.
fn today() -> Result<u64> {
    const SECONDS_A_DAY: u64 = 86_400;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    Ok(now.as_secs() / SECONDS_A_DAY)
}

/// Runs `work` for all items in order, with up to `places` concurrently.
fn run_concurrently<T: Send>(places: u64, items: Vec<T>, work: impl Fn(T) + Sync) {
    let next = Mutex::new(items.into_iter());
    thread::scope(|scope| {
        for _ in 0..places {
            scope.spawn(|| iter::from_fn(|| lock(&next).next()).for_each(&work));
        }
    });
}

/// Returns the number of these scenarios that may run concurrently: limited by memory and by cores plus one,
/// because each waits at times (for leases, time limits, its machines).
fn max_concurrent(scenarios: usize) -> u64 {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let memory = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_mib(&text)).unwrap_or(0);
    (memory / SCENARIO_MIB).min(cores + 1).min(scenarios as u64).clamp(1, MAX_CONCURRENT)
}

/// Returns the memory available to programs, in MiB. Source: `man proc_meminfo`.
fn available_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// Plays the main workflow with live output.
///
/// # Errors
/// The reason of the failure; the logs were shown.
pub fn demo() -> Result<()> {
    let toolbox = Toolbox::find()?;
    prepare(&toolbox, "cargo e2e demo", &[KERNEL], false)?;
    let lane = lane(DEMO)?;
    report::step(format_args!("{} (about {} s)", lane.scenario.about, lane.scenario.expected.as_secs()));
    start(&toolbox, lane, Stdio::inherit())?;
    report::line("the demo is over: everything it started is stopped, nothing is left behind");
    Ok(())
}

/// Downloads and builds the requirements of runs, including machines with these kernels, with a display.
///
/// # Errors
/// If a part fails; it was shown, and the others are completed.
pub fn prepare(toolbox: &Toolbox, what: &str, kernels: &[KernelPin], tests: bool) -> Result<()> {
    let display = toolbox.display()?;
    let preparation = toolbox.prepare(&display, kernels, tests);
    display.begin(what);
    preparation.make()
}

/// Plays a scenario in this process, which must exit when this returns: a scenario that exceeded its time
/// limit is still running. Returns true if it passed, otherwise prints the reason.
///
/// # Errors
/// If the scenario does not exist or the host cannot be set up.
pub fn play(name: &str) -> Result<bool> {
    let ScenarioLane { scenario, kernel } = lane(name)?;
    let toolbox = Toolbox::open()?;
    let world = Arc::new(World::new(&toolbox, name, kernel, BuildProfile::Dev)?);
    let played = Arc::clone(&world);
    let result = run_within(scenario.limit(), toolbox.clock(), move || {
        (scenario.run)(&played)?;
        played.check_kernels()
    });
    let Err(error) = result else { return Ok(true) };
    report::step(format_args!("{name}: {error:#}"));
    report::step(LOGS_FOLLOW);
    let shown = Arc::clone(&world);
    let logs = run_within(LOGS_LIMIT, &WorkClock::default(), move || {
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

/// Plays a scenario in a separate process, whose progress goes to `said`.
fn start(toolbox: &Toolbox, lane: ScenarioLane, output: Stdio) -> Result<()> {
    let name = lane.to_string();
    // With this name, the kernel finds this program even after `cargo test` has replaced it.
    let mut command = Command::new(format!("/proc/{}/exe", std::process::id()));
    command.args(["play", &name]);
    let result = supervise(&name, &command, output);
    run_dir::tidy(&toolbox.target())?;
    result
}

/// Returns the end of a failed scenario's progress, without the logs of its programs.
fn end_of_progress(output: &str) -> String {
    let logs = format!("== {LOGS_FOLLOW}");
    end_of(output.split_once(&logs).map_or(output, |(progress, _)| progress))
}

/// Runs a scenario's process to completion, then ends everything that it started.
fn supervise(name: &str, command: &Command, output: Stdio) -> Result<()> {
    let mut reason = tempfile::tempfile().context("make a file for the reason of a failure")?;
    let out = reason.try_clone().context("share the file for the reason")?;
    let mut process = LoggedProcess::spawn_to(name, command, out.into(), output)?;
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

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().expect("nothing panics while it holds this lock")
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Barrier;

    use super::*;
    use holdfast_lab::run_dir::RunDir;
    use holdfast_lab::wait::until;

    /// Run directory of the test's process below.
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
        let machine = LoggedProcess::spawn("machine", &machine, &run.path().join("machine.log")).unwrap();
        let error = run_within(Duration::from_secs(2), &WorkClock::default(), move || {
            let _parts = (run, machine);
            loop {
                std::thread::park();
            }
        });
        report::line(error.unwrap_err());
        std::process::exit(1);
    }

    /// The machine of a hung scenario is killed, its disk removed and its log kept. The run continues with
    /// the next scenario.
    #[test]
    fn a_hung_scenario_fails_and_leaves_only_logs() {
        let target = tempfile::tempdir().unwrap();
        let mut hung = Command::new(std::env::current_exe().unwrap());
        hung.args(["--exact", "suite::tests::hung_scenario", "--ignored", "--nocapture", "--quiet"]);
        let mut tally = Tally::default();
        let result = supervise("hung", hung.env(TARGET, target.path()), Stdio::null());
        tally.add("hung", result);
        tally.add("next", supervise("next", &Command::new("true"), Stdio::null()));
        assert_eq!((tally.passed, tally.failed.len()), (1, 1));
        assert!(tally.failed[0].ends_with("exceeded its time limit of 2 s"), "{:?}", tally.failed);

        run_dir::tidy(target.path()).unwrap();
        let runs = fs::read_dir(target.path().join("e2e")).unwrap().map(|entry| entry.unwrap().path());
        let run = runs.into_iter().find(|path| path.is_dir()).unwrap();
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
    fn a_silent_process_fails_with_its_status() {
        let mut command = Command::new("sh");
        let error = supervise("silent", command.args(["-c", "kill -9 $$"]), Stdio::null()).unwrap_err();
        assert!(error.to_string().contains("signal: 9"), "{error}");
    }

    #[test]
    fn a_failure_shows_the_progress_and_no_logs_of_programs() {
        let output = format!("== boot test machine a\n== it broke\n== {LOGS_FOLLOW}\n--- console\nLinux\n");
        assert_eq!(end_of_progress(&output), "== boot test machine a\n== it broke");
        assert_eq!(end_of_progress("== killed\n"), "== killed");
    }

    #[test]
    fn two_scenarios_run_concurrently() {
        let both = Arc::new(Barrier::new(2));
        run_within(Duration::from_secs(60), &WorkClock::default(), move || {
            run_concurrently(2, vec![(), ()], |()| {
                both.wait();
            });
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn available_memory_is_read_and_one_scenario_gets_one_place() {
        assert_eq!(available_mib("MemTotal:  24000 kB\nMemAvailable:   22528 kB\n"), Some(22));
        assert_eq!(available_mib("MemFree: 1 kB\n"), None);
        assert_eq!(max_concurrent(1), 1);
    }
}
