//! The display of a run: its completed steps, the running ones with their times, the remaining ones, the
//! expected end.
//! Owns: standard error during a run, and the raw output of each step, in a file each below
//! `target/e2e/logs`. A failed step shows the end of its file and names it.
//! On a terminal every completed step has a line, and the running ones are shown below, updated twice a
//! second. Otherwise, completed steps share a line, and lines are printed at intervals
//! ([`board::Board::line`]).
//! Runs on: any thread; a separate thread updates the times.

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

/// Lines of a file shown after a failure.
pub const SHOWN_LINES: usize = 40;
/// Shorter times of steps are not recorded for the next run.
const MIN_RECORDED: Duration = Duration::from_secs(1);
/// Interval of updates of the times.
const TICK: Duration = Duration::from_millis(500);

/// Selects the part of a step's output to show after a failure.
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
    state: Mutex<BoardState>,
}

struct BoardState {
    board: Board,
    output: DisplayOutput,
}

enum DisplayOutput {
    /// The lines at the bottom of the screen, below all printed ones.
    Terminal { screen: MultiProgress, foot: Vec<ProgressBar> },
    /// Plain consecutive lines.
    Plain(Box<dyn Write + Send>),
}

impl Display {
    /// Opens a display on standard error that writes the output of steps to `logs`, replacing that of the
    /// same steps in an earlier run. `times` are those of earlier runs.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(logs: &Path, times: Times) -> Result<Self> {
        Self::with_output(DisplayOutput::of(MultiProgress::new(), io::stderr().is_terminal()), logs, times)
    }

    fn with_output(output: DisplayOutput, logs: &Path, times: Times) -> Result<Self> {
        fs::create_dir_all(logs).with_context(|| format!("create {}", logs.display()))?;
        let state = Mutex::new(BoardState { board: Board::default(), output });
        let shared = Arc::new(SharedBoard { started: Instant::now(), state });
        Ok(Self { shared, logs: logs.to_owned(), times, ticker: OnceLock::new() })
    }

    /// Adds steps, of which `places` run concurrently, after all steps added before. The time of an earlier
    /// run takes precedence over `expected`.
    pub fn plan(&self, places: u64, steps: impl IntoIterator<Item = (String, Duration)>) {
        let steps = steps.into_iter().map(|(name, expected)| {
            let expected = self.times.of(&name).unwrap_or(expected);
            (name, expected)
        });
        self.shared.lock().board.plan(places, steps);
    }

    /// Prints the first line, and shows the times from now on.
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

    /// Runs a step. Messages of this thread, and the output of programs that it starts, go to the step's
    /// file, which `work` gets. The text returned by `work` is shown next to the step's time.
    ///
    /// # Errors
    /// The error of `work`, after it was shown with `excerpt` of the file.
    pub fn step(
        &self,
        name: &str,
        excerpt: Excerpt,
        work: impl FnOnce(&File) -> Result<String>,
    ) -> Result<()> {
        let path = self.log(name);
        // A concurrent run keeps its own file.
        fs::remove_file(&path).ok();
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        self.shared.lock().board.begin(name, self.shared.started.elapsed());
        let result = report::into(&file, || work(&file))?;
        let now = self.shared.started.elapsed();
        let mut state = self.shared.lock();
        let note = result.as_deref().ok().unwrap_or_default();
        let duration = state.board.end(name, now, result.is_ok(), note);
        match &result {
            Ok(note) => {
                // A step without duration was complete before, which says nothing about the next time.
                if duration >= MIN_RECORDED {
                    self.times.record(name, duration);
                }
                if let DisplayOutput::Terminal { .. } = state.output {
                    state.print(&format!("PASS {}", board::completed_line(name, duration, note)));
                }
            }
            Err(error) => {
                let text = fs::read(&path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
                let shown = excerpt(&text.unwrap_or_default());
                state.print(&format!("FAIL {}: {error:#}", board::completed_line(name, duration, "")));
                shown.lines().for_each(|line| state.print(&format!("  | {line}")));
                state.print(&format!("  all of it is in {}", path.display()));
            }
        }
        state.tick(now);
        result.map(drop)
    }

    /// Prints a line above the changing ones.
    pub fn print_line(&self, line: &str) {
        self.shared.lock().print(line);
    }

    /// Removes a step that will not run from the plan.
    pub fn skip(&self, name: &str) {
        self.shared.lock().board.skip(name);
    }

    /// Returns the path of a step's output.
    pub fn log(&self, name: &str) -> PathBuf {
        let file: String = name.chars().map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        self.logs.join(format!("{file}.log"))
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some((stop, ticker)) = self.ticker.take() {
            drop(stop);
            // It does not panic; if it did, the following steps are still correct.
            drop(ticker.join());
        }
        let now = self.shared.started.elapsed();
        let mut state = self.shared.lock();
        if let Some(line) = state.board.last_line(now)
            && let DisplayOutput::Plain(_) = state.output
        {
            state.print(&line);
        }
        if let DisplayOutput::Terminal { screen, .. } = &state.output {
            // A closed terminal shows nothing.
            screen.clear().ok();
        }
        // Without them, the next run uses the default times.
        self.times.save().ok();
    }
}

impl DisplayOutput {
    /// Uses terminal output only if lines can be changed: on a terminal that cannot (`TERM=dumb`), nothing
    /// would be visible.
    fn of(screen: MultiProgress, is_terminal: bool) -> Self {
        if is_terminal && !screen.is_hidden() {
            Self::Terminal { screen, foot: Vec::new() }
        } else {
            Self::Plain(Box::new(io::stderr()))
        }
    }
}

impl SharedBoard {
    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl BoardState {
    fn print(&mut self, line: &str) {
        // A closed standard error is not an error: no process reads it.
        match &mut self.output {
            DisplayOutput::Terminal { screen, .. } => drop(screen.println(line)),
            DisplayOutput::Plain(out) => drop(writeln!(out, "{line}")),
        }
    }

    fn tick(&mut self, now: Duration) {
        if let DisplayOutput::Terminal { screen, foot } = &mut self.output {
            let lines = self.board.bottom_lines(now);
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

/// Returns the last [`SHOWN_LINES`] lines of a text.
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
        let display = Display::with_output(output, &dir.path().join("logs"), Times::default()).unwrap();
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
