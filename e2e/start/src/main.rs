//! `cargo e2e`, first part: builds the harness with progress output, and executes it.
//!
//! Has no dependencies, so that cargo compiles it within a second: building the harness from scratch takes
//! minutes, in which cargo would print nothing, or a line for each of 300 crates.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Shorter builds are not reported.
const QUIET: Duration = Duration::from_millis(300);
/// Interval of checks of cargo.
const TICK: Duration = Duration::from_millis(100);
/// Interval of lines without a terminal.
const PERIOD: Duration = Duration::from_secs(30);
/// Time of a build from scratch on two quiet cores.
const EXPECTED: Duration = Duration::from_secs(120);
/// Lines of cargo's output shown after a failure.
const SHOWN_LINES: usize = 40;

fn main() -> ExitCode {
    let error = match build() {
        // It returns only if it cannot start the harness, which builds the rest in the same directory.
        Ok((harness, target)) => {
            let arguments = std::env::args_os().skip(1);
            let mut command = Command::new(&harness);
            command.args(arguments).env("CARGO_TARGET_DIR", target).env_remove("CARGO_BUILD_TARGET");
            at(&harness)(command.exec())
        }
        Err(error) => error,
    };
    eprintln!("error: {error}");
    ExitCode::from(2)
}

/// Adds the file name to an error.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::other(format!("{}: {error}", path.display()))
}

/// Builds the harness. Returns its program, which is in this one's directory, and cargo's target directory.
fn build() -> io::Result<(PathBuf, PathBuf)> {
    let this = std::env::current_exe()?;
    let beside = this.parent().ok_or_else(|| io::Error::other("this program is in no directory"))?;
    let target = beside.parent().ok_or_else(|| io::Error::other("cargo's target directory has no parent"))?;
    let runs = target.join("e2e");
    fs::create_dir_all(&runs).map_err(at(&runs))?;
    let log = runs.join("harness.log");
    let out = File::create(&log).map_err(at(&log))?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo)
        .args(["build", "--package", "holdfast-e2e", "--manifest-path"])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        // The directory of this program, regardless of cargo's configuration, so that the harness is found
        // there.
        .arg("--target-dir")
        .arg(target)
        .env_remove("CARGO_BUILD_TARGET")
        .env("CARGO_TERM_COLOR", "never")
        .env("CARGO_TERM_QUIET", "false")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    let mut shown = BuildLines::default();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = cargo.try_wait()? {
            break status;
        }
        shown.tick(started.elapsed(), &log);
        thread::sleep(TICK);
    };
    shown.end(started.elapsed());
    if status.success() {
        return Ok((beside.join("holdfast-e2e"), target.to_owned()));
    }
    let text = fs::read(&log).map_err(at(&log))?;
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
        eprintln!("  | {line}");
    }
    Err(io::Error::other(format!("cargo build of the harness: {status}; all of it is in {}", log.display())))
}

/// The lines that show the progress of the build.
#[derive(Default)]
struct BuildLines {
    first: bool,
    next: Duration,
}

impl BuildLines {
    fn tick(&mut self, now: Duration, log: &Path) {
        if !self.first && now >= QUIET {
            self.first = true;
            self.next = PERIOD;
            eprintln!(
                "compile the harness: {} s where nothing is compiled yet; output in {}",
                EXPECTED.as_secs(),
                log.display()
            );
        }
        if self.first && changes_lines() {
            eprint!("\r{}\x1b[K", progress(now, log));
            // A closed terminal shows nothing.
            drop(io::stderr().flush());
        } else if self.first && now >= self.next {
            self.next += PERIOD;
            eprintln!("{}", progress(now, log));
        }
    }

    fn end(&self, now: Duration) {
        if self.first {
            let begin = if changes_lines() { "\r\x1b[K" } else { "" };
            eprintln!("{begin}compile the harness: ended after {} s", now.as_secs());
        }
    }
}

/// Returns true if standard error is a terminal that supports rewriting a line.
fn changes_lines() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_some_and(|kind| kind != "dumb")
}

fn progress(now: Duration, log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let compiling = text.lines().filter(|line| line.trim_start().starts_with("Compiling "));
    format!("compile the harness: {} s, {} crates", now.as_secs(), compiling.count())
}
