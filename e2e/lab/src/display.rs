//! The display of a run: its steps that ended, those that run and for how long, those to come, the expected
//! end.
//!
//! Owns: standard error while a run lasts, and the raw output of each step, a file each below
//! `target/e2e/logs`. A step that fails shows the end of its file and names it.
//! On a terminal every step that ends has a line, and those that run are shown below, twice a second. Without
//! one, steps that ended share a line, and a line comes only now and then ([`board::Board::line`]).
//! Runs on: any thread; a thread of its own shows how time passes.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::report;
use board::Board;
use times::Times;

pub mod board;
pub mod times;

/// Lines of a file that a failure shows.
pub const SHOWN_LINES: usize = 40;
/// Shorter times of steps are not kept for the next run.
const LEAST_NOTED: Duration = Duration::from_secs(1);
/// Time between two looks at the clock.
const TICK: Duration = Duration::from_millis(500);

/// Chooses what a failure shows of a step's output.
pub type Excerpt = fn(&str) -> String;

/// The display; it ends when it is dropped.
pub struct Display {
    shared: Arc<SharedBoard>,
    logs: PathBuf,
    times: Times,
    ticker: OnceLock<(mpsc::Sender<()>, JoinHandle<()>)>,
}

struct SharedBoard {
    started: Instant,
    state: Mutex<Drawn>,
}

struct Drawn {
    board: Board,
    output: DisplayOutput,
}

enum DisplayOutput {
    /// The lines at the foot of the screen, below all that was printed.
    Terminal { screen: MultiProgress, foot: Vec<ProgressBar> },
    /// One line after the other.
    Plain(Box<dyn Write + Send>),
}

impl Display {
    /// A display on standard error that keeps the output of steps in `logs`, in place of that of the same
    /// steps in an earlier run. `times` are those of the earlier runs.
    ///
    /// # Errors
    /// If the directory cannot be made.
    pub fn open(logs: &Path, times: Times) -> Result<Self> {
        Self::on(DisplayOutput::of(MultiProgress::new(), io::stderr().is_terminal()), logs, times)
    }

    fn on(output: DisplayOutput, logs: &Path, times: Times) -> Result<Self> {
        fs::create_dir_all(logs).with_context(|| format!("create {}", logs.display()))?;
        let state = Mutex::new(Drawn { board: Board::default(), output });
        let shared = Arc::new(SharedBoard { started: Instant::now(), state });
        Ok(Self { shared, logs: logs.to_owned(), times, ticker: OnceLock::new() })
    }

    /// Adds steps that run with `places` of them at once, after all that were added before. A step whose time
    /// is known from an earlier run is expected to take that, and not `expected`.
    pub fn plan(&self, places: u64, steps: impl IntoIterator<Item = (String, Duration)>) {
        let steps = steps.into_iter().map(|(name, expected)| {
            let expected = self.times.of(&name).unwrap_or(expected);
            (name, expected)
        });
        self.shared.lock().board.plan(places, steps);
    }

    /// Prints the first line, and shows from now on how time passes.
    pub fn begin(&self, what: &str) {
        let opening = self.shared.lock().board.opening(what, &self.logs);
        self.shared.lock().print(&opening);
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&self.shared);
        let ticker = thread::spawn(move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                let now = shared.started.elapsed();
                shared.lock().tick(now);
            }
        });
        self.ticker.set((stop, ticker)).expect("a run begins once");
    }

    /// Does a step. What this thread says meanwhile, and what programs print that it starts, is in the
    /// step's file, which `work` gets. The text that `work` returns is shown next to the step's time.
    ///
    /// # Errors
    /// The error of `work`; it was shown, with `excerpt` of the file.
    pub fn step(
        &self,
        name: &str,
        excerpt: Excerpt,
        work: impl FnOnce(&File) -> Result<String>,
    ) -> Result<()> {
        let path = self.log(name);
        // Another run at the same time keeps its own file.
        fs::remove_file(&path).ok();
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        self.shared.lock().board.begin(name, self.shared.started.elapsed());
        let result = report::into(&file, || work(&file))?;
        let now = self.shared.started.elapsed();
        let mut state = self.shared.lock();
        let note = result.as_deref().ok().unwrap_or_default();
        let took = state.board.end(name, now, result.is_ok(), note);
        match &result {
            Ok(note) => {
                // What takes no time was there already, which says nothing about the next time.
                if took >= LEAST_NOTED {
                    self.times.note(name, took);
                }
                if let DisplayOutput::Terminal { .. } = state.output {
                    state.print(&format!("PASS {}", board::ended(name, took, note)));
                }
            }
            Err(error) => {
                let text = fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                let shown = excerpt(&text.unwrap_or_default());
                state.print(&format!("FAIL {}: {error:#}", board::ended(name, took, "")));
                shown.lines().for_each(|line| state.print(&format!("  | {line}")));
                state.print(&format!("  all of it is in {}", path.display()));
            }
        }
        state.tick(now);
        result.map(drop)
    }

    /// Prints a line above those that change.
    pub fn say(&self, line: &str) {
        self.shared.lock().print(line);
    }

    /// Takes a step that will not run from the plan.
    pub fn skip(&self, name: &str) {
        self.shared.lock().board.skip(name);
    }

    /// The file of a step's output.
    pub fn log(&self, name: &str) -> PathBuf {
        let file: String = name.chars().map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        self.logs.join(format!("{file}.log"))
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            // It does not panic; if it did, the lines below are still right.
            drop(ticker.join());
        }
        let now = self.shared.started.elapsed();
        let mut state = self.shared.lock();
        if let Some(line) = state.board.rest(now)
            && let DisplayOutput::Plain(_) = state.output
        {
            state.print(&line);
        }
        if let DisplayOutput::Terminal { screen, .. } = &state.output {
            // A terminal that is gone shows nothing.
            screen.clear().ok();
        }
        // Without them the next run expects what the source says.
        self.times.save().ok();
    }
}

impl DisplayOutput {
    /// A terminal only if lines can be changed on it: on one that cannot (`TERM=dumb`), nothing would be
    /// seen.
    fn of(screen: MultiProgress, is_terminal: bool) -> Self {
        if is_terminal && !screen.is_hidden() {
            Self::Terminal { screen, foot: Vec::new() }
        } else {
            Self::Plain(Box::new(io::stderr()))
        }
    }
}

impl SharedBoard {
    fn lock(&self) -> MutexGuard<'_, Drawn> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl Drawn {
    fn print(&mut self, line: &str) {
        // A standard error that is closed is not an error: nothing reads it.
        match &mut self.output {
            DisplayOutput::Terminal { screen, .. } => drop(screen.println(line)),
            DisplayOutput::Plain(out) => drop(writeln!(out, "{line}")),
        }
    }

    fn tick(&mut self, now: Duration) {
        if let DisplayOutput::Terminal { screen, foot } = &mut self.output {
            let lines = self.board.foot(now);
            while foot.len() > lines.len() {
                foot.pop().inspect(ProgressBar::finish_and_clear);
            }
            while foot.len() < lines.len() {
                let style = ProgressStyle::with_template("{wide_msg}").expect("the template is valid");
                foot.push(screen.add(ProgressBar::new_spinner().with_style(style)));
            }
            for (bar, line) in foot.iter().zip(lines) {
                bar.set_message(line);
            }
        } else if let Some(line) = self.board.line(now) {
            self.print(&line);
        }
    }
}

/// The last [`SHOWN_LINES`] lines of a text.
pub fn end_of(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use indicatif::ProgressDrawTarget;

    use super::*;

    #[derive(Clone, Default)]
    struct Screen(Arc<Mutex<Vec<u8>>>);

    impl Write for Screen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_terminal_that_cannot_change_lines_gets_plain_ones() {
        let hidden = MultiProgress::with_draw_target(ProgressDrawTarget::hidden());
        assert!(matches!(DisplayOutput::of(hidden, true), DisplayOutput::Plain(_)));
    }

    #[test]
    fn a_failed_step_shows_the_end_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let screen = Screen::default();
        let output = DisplayOutput::Plain(Box::new(screen.clone()));
        let display = Display::on(output, &dir.path().join("logs"), Times::default()).unwrap();
        display.plan(1, [("fetch it".to_owned(), Duration::ZERO), ("build it".to_owned(), Duration::ZERO)]);
        display.step("fetch it", end_of, |_| Ok(String::new())).unwrap();
        let error = display
            .step("build it", end_of, |mut log| {
                (0..50).for_each(|number| writeln!(log, "line {number}").unwrap());
                report::step("said by the step");
                crate::command::show(std::process::Command::new("sh").args(["-c", "echo printed; exit 3"]))?;
                bail!("not reached")
            })
            .unwrap_err();
        assert_eq!(error.to_string(), "sh -c echo printed; exit 3: exit status: 3");
        let log = display.log("build it");
        drop(display);
        let text = String::from_utf8(screen.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("FAIL build it (0.0 s): sh -c"), "{text}");
        assert_eq!(lines[1], "  | line 12");
        assert_eq!(lines[39..41], ["  | == said by the step", "  | printed"]);
        assert_eq!(lines[41], format!("  all of it is in {}", log.display()));
        assert!(lines[42].ends_with("2 of 2 ended, 1 failed; PASS fetch it (0.0 s)"), "{text}");
        assert_eq!(lines.len(), 43);
    }
}
