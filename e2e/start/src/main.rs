//! `cargo e2e`, first part: builds the harness, says that it does, and becomes it.
//!
//! Without dependencies, so that cargo compiles it within a second: building the harness takes minutes where
//! nothing is compiled yet, in which cargo would print nothing, or a line for each of 300 crates.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A build that is over sooner is not worth a line.
const QUIET: Duration = Duration::from_millis(300);
/// Time between two looks at cargo.
const TICK: Duration = Duration::from_millis(100);
/// Time between two lines where there is no terminal.
const PERIOD: Duration = Duration::from_secs(30);
/// Time that the build takes on two quiet cores where nothing is compiled yet.
const EXPECTED: Duration = Duration::from_secs(120);
/// Lines of cargo's output that a failure shows.
const SHOWN_LINES: usize = 40;

fn main() -> ExitCode {
    let error = match build() {
        // It returns only if it cannot start the harness.
        Ok(harness) => Command::new(harness).args(std::env::args_os().skip(1)).exec(),
        Err(error) => error,
    };
    eprintln!("error: {error}");
    ExitCode::from(2)
}

/// Builds the harness and returns its program, which is beside this one.
fn build() -> io::Result<PathBuf> {
    let this = std::env::current_exe()?;
    let beside = this.parent().ok_or_else(|| io::Error::other("this program is in no directory"))?;
    let target = beside.parent().ok_or_else(|| io::Error::other("cargo's target directory has no parent"))?;
    let runs = target.join("e2e");
    fs::create_dir_all(&runs)?;
    let log = runs.join("harness.log");
    let out = File::create(&log)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut cargo = Command::new(cargo)
        .args(["build", "--package", "holdfast-e2e"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
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
        return Ok(beside.join("holdfast-e2e"));
    }
    let text = fs::read_to_string(&log)?;
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
        eprintln!("  | {line}");
    }
    Err(io::Error::other(format!("cargo build of the harness: {status}; all of it is in {}", log.display())))
}

/// The lines that say how far the build is.
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
        if self.first && io::stderr().is_terminal() {
            eprint!("\r{}\x1b[K", progress(now, log));
            // A terminal that is gone shows nothing.
            drop(io::stderr().flush());
        } else if self.first && now >= self.next {
            self.next += PERIOD;
            eprintln!("{}", progress(now, log));
        }
    }

    fn end(&self, now: Duration) {
        if self.first {
            let begin = if io::stderr().is_terminal() { "\r\x1b[K" } else { "" };
            eprintln!("{begin}compile the harness: ended after {} s", now.as_secs());
        }
    }
}

fn progress(now: Duration, log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let compiling = text.lines().filter(|line| line.trim_start().starts_with("Compiling "));
    format!("compile the harness: {} s, {} crates", now.as_secs(), compiling.count())
}
