//! The state of a run's steps, and the lines that show it. Has no clock: each call gets the time since the
//! run's start.

use std::path::Path;
use std::time::Duration;

/// Minimum interval of lines without a terminal.
const MIN_PERIOD: Duration = Duration::from_secs(10);
/// Minimum interval as a part of the whole run, so that a run of an hour has as few lines as one of minutes.
const PART_OF_RUN: u32 = 32;
/// Number of upcoming steps that are named.
const MAX_UPCOMING: usize = 3;

/// All steps of a run.
#[derive(Debug, Default)]
pub struct Board {
    steps: Vec<Step>,
    /// Number of concurrent steps in each stage.
    places: Vec<u64>,
    /// Completed steps that no line has named yet.
    unreported: Vec<String>,
    /// Time of the previous line.
    last_line_at: Duration,
}

#[derive(Debug)]
struct Step {
    name: String,
    expected: Duration,
    stage: usize,
    state: StepState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    Pending,
    /// Start time.
    Running(Duration),
    Passed,
    Failed,
}

impl Board {
    /// Adds a stage of steps, `places` of which run concurrently.
    pub fn plan(&mut self, places: u64, steps: impl IntoIterator<Item = (String, Duration)>) {
        let stage = self.places.len();
        self.places.push(places.max(1));
        self.steps.extend(steps.into_iter().map(|(name, expected)| Step {
            name,
            expected,
            stage,
            state: StepState::Pending,
        }));
    }

    /// Returns the first line of a run.
    pub fn opening(&self, what: &str, logs: &Path) -> String {
        let (steps, left) = (self.steps.len(), format_minutes(self.remaining(Duration::ZERO)));
        let plural = if steps == 1 { "" } else { "s" };
        format!(
            "{what}: {steps} step{plural}, at most about {left}; the output of each is in {}",
            logs.display()
        )
    }

    /// Records the start of a step. An unplanned one is added.
    pub fn begin(&mut self, name: &str, now: Duration) {
        if !self.steps.iter().any(|step| step.name == name) {
            self.plan(1, [(name.to_owned(), Duration::ZERO)]);
        }
        self.step(name).into_iter().for_each(|step| step.state = StepState::Running(now));
    }

    /// Records the end of a step, and returns its time; `note` is shown next to it.
    pub fn end(&mut self, name: &str, now: Duration, passed: bool, note: &str) -> Duration {
        let Some(step) = self.step(name) else { return Duration::ZERO };
        let StepState::Running(since) = step.state else { return Duration::ZERO };
        let duration = now.saturating_sub(since);
        step.state = if passed { StepState::Passed } else { StepState::Failed };
        if passed {
            self.unreported.push(completed_line(name, duration, note));
        }
        duration
    }

    /// Removes a step that will not run.
    pub fn skip(&mut self, name: &str) {
        self.steps.retain(|step| step.name != name);
    }

    /// Returns the next line without a terminal, if it is due.
    pub fn line(&mut self, now: Duration) -> Option<String> {
        let whole = now + self.remaining(now);
        let due = self.last_line_at + MIN_PERIOD.max(whole / PART_OF_RUN);
        (now >= due && (self.is_running() || !self.unreported.is_empty())).then(|| self.format_line(now))
    }

    /// Returns the last line without a terminal, if something was not shown yet.
    pub fn last_line(&mut self, now: Duration) -> Option<String> {
        (!self.unreported.is_empty()).then(|| self.format_line(now))
    }

    fn format_line(&mut self, now: Duration) -> String {
        self.last_line_at = now;
        let mut line = format!("{} {}", clock(now), self.format_counts());
        if !self.unreported.is_empty() {
            line.push_str(&format!("; PASS {}", self.unreported.join(", ")));
            self.unreported.clear();
        }
        let running: Vec<String> = self.running(now).collect();
        if !running.is_empty() {
            line.push_str(&format!("; running {}", running.join(", ")));
        }
        self.upcoming(now).into_iter().for_each(|part| line.push_str(&format!("; {part}")));
        line
    }

    /// Returns the lines at the bottom of a terminal.
    pub fn bottom_lines(&self, now: Duration) -> Vec<String> {
        let mut lines: Vec<String> = self.running(now).map(|step| format!("  {step}")).collect();
        let upcoming = self.upcoming(now).into_iter().map(|part| format!("; {part}")).collect::<String>();
        lines.push(format!("{} {}{upcoming}", clock(now), self.format_counts()));
        lines
    }

    fn format_counts(&self) -> String {
        let count = |state| self.steps.iter().filter(|step| step.state == state).count();
        let (passed, failed) = (count(StepState::Passed), count(StepState::Failed));
        let ended = format!("{} of {} ended", passed + failed, self.steps.len());
        if failed == 0 { ended } else { format!("{ended}, {failed} failed") }
    }

    fn running(&self, now: Duration) -> impl Iterator<Item = String> {
        self.steps.iter().filter_map(move |step| match step.state {
            StepState::Running(since) => {
                let elapsed = now.saturating_sub(since);
                Some(format!("{} {} of {}", step.name, clock(elapsed), clock(step.expected)))
            }
            StepState::Pending | StepState::Passed | StepState::Failed => None,
        })
    }

    /// Returns the next steps and the expected end.
    fn upcoming(&self, now: Duration) -> Vec<String> {
        let to_come: Vec<&str> = self
            .steps
            .iter()
            .filter(|step| step.state == StepState::Pending)
            .map(|step| step.name.as_str())
            .collect();
        let mut parts = Vec::new();
        if !to_come.is_empty() {
            let more = if to_come.len() > MAX_UPCOMING { ", ..." } else { "" };
            parts.push(format!("next {}{more}", to_come[..to_come.len().min(MAX_UPCOMING)].join(", ")));
        }
        if self.is_running() || !to_come.is_empty() {
            parts.push(format!("about {} left", format_minutes(self.remaining(now))));
        }
        parts
    }

    fn is_running(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.state, StepState::Running(_)))
    }

    /// Returns the expected remaining time: stages are sequential, and each takes as long as its longest
    /// step, or as the sum of all divided by its places.
    fn remaining(&self, now: Duration) -> Duration {
        let stages = self.places.iter().enumerate().map(|(stage, &places)| {
            let steps = self.steps.iter().filter(|step| step.stage == stage);
            let left = steps.map(|step| match step.state {
                StepState::Pending => step.expected,
                StepState::Running(since) => step.expected.saturating_sub(now.saturating_sub(since)),
                StepState::Passed | StepState::Failed => Duration::ZERO,
            });
            let (longest, all) = left.fold((Duration::ZERO, Duration::ZERO), |(longest, all), left| {
                (longest.max(left), all + left)
            });
            longest.max(all / u32::try_from(places).unwrap_or(u32::MAX))
        });
        stages.sum()
    }

    fn step(&mut self, name: &str) -> Option<&mut Step> {
        self.steps.iter_mut().find(|step| step.name == name)
    }
}

/// Formats a completed step as a line.
pub fn completed_line(name: &str, duration: Duration, note: &str) -> String {
    let seconds = duration.as_secs_f64();
    if note.is_empty() {
        format!("{name} ({seconds:.1} s)")
    } else {
        format!("{name} ({seconds:.1} s, {note})")
    }
}

/// Formats a time as minutes and seconds.
fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

fn format_minutes(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..90 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// A run of five steps: their starts and ends, and the lines in between.
    #[test]
    fn a_run_without_a_terminal_prints_these_lines() {
        let mut board = Board::default();
        let steps = |steps: &[(&str, u64)]| {
            steps.iter().map(|(name, expected)| ((*name).to_owned(), seconds(*expected))).collect::<Vec<_>>()
        };
        board.plan(2, steps(&[("kernel", 20), ("programs", 30)]));
        board.plan(1, steps(&[("host-tests", 40)]));
        board.plan(2, steps(&[("smoke", 10), ("s3", 5), ("chart", 5), ("drain", 150)]));
        let mut lines = vec![board.opening("cargo e2e test", Path::new("target/e2e/logs"))];
        for second in 0..300 {
            let now = seconds(second);
            match second {
                0 => ["kernel", "programs"].iter().for_each(|name| board.begin(name, now)),
                8 => drop(board.end("kernel", now, true, "")),
                31 => {
                    board.end("programs", now, true, "");
                    board.begin("host-tests", now);
                }
                75 => {
                    board.end("host-tests", now, true, "7 passed");
                    ["smoke", "drain"].iter().for_each(|name| board.begin(name, now));
                }
                83 => {
                    board.end("smoke", now, true, "");
                    board.begin("s3", now);
                }
                85 => {
                    board.end("s3", now, false, "");
                    board.skip("chart");
                }
                99 => {
                    board.end("drain", now, true, "");
                }
                _ => {}
            }
            lines.extend(board.line(now));
        }
        lines.extend(board.last_line(seconds(300)));
        let expected = [
            "cargo e2e test: 7 steps, at most about 4 min; the output of each is in target/e2e/logs",
            "0:10 1 of 7 ended; PASS kernel (8.0 s); running programs 0:10 of 0:30; next host-tests, smoke, s3, ...; about 4 min left",
            "0:20 1 of 7 ended; running programs 0:20 of 0:30; next host-tests, smoke, s3, ...; about 3 min left",
            "0:30 1 of 7 ended; running programs 0:30 of 0:30; next host-tests, smoke, s3, ...; about 3 min left",
            "0:40 2 of 7 ended; PASS programs (31.0 s); running host-tests 0:09 of 0:40; next smoke, s3, chart, ...; about 3 min left",
            "0:50 2 of 7 ended; running host-tests 0:19 of 0:40; next smoke, s3, chart, ...; about 3 min left",
            "1:00 2 of 7 ended; running host-tests 0:29 of 0:40; next smoke, s3, chart, ...; about 3 min left",
            "1:10 2 of 7 ended; running host-tests 0:39 of 0:40; next smoke, s3, chart, ...; about 3 min left",
            "1:20 3 of 7 ended; PASS host-tests (44.0 s, 7 passed); running smoke 0:05 of 0:10, drain 0:05 of 2:30; next s3, chart; about 2 min left",
            "1:30 5 of 6 ended, 1 failed; PASS smoke (8.0 s); running drain 0:15 of 2:30; about 2 min left",
            "1:40 6 of 6 ended, 1 failed; PASS drain (24.0 s)",
        ];
        assert_eq!(lines, expected);
    }

    /// Has the number of steps of a complete run, at the expected speed and at half of it.
    #[test]
    fn a_long_run_has_at_most_sixty_lines() {
        for slower in [1, 2] {
            let mut board = Board::default();
            let names: Vec<String> = (0..70).map(|number| format!("scenario-{number}")).collect();
            board.plan(1, names.iter().map(|name| (name.clone(), seconds(40))));
            let mut lines = 1;
            for (number, name) in (0..).zip(&names) {
                let start = number * 40 * slower;
                board.begin(name, seconds(start));
                for second in 0..40 * slower {
                    lines += usize::from(board.line(seconds(start + second)).is_some());
                }
                board.end(name, seconds(start + 40 * slower), true, "");
            }
            lines += usize::from(board.last_line(seconds(70 * 40 * slower)).is_some());
            // In addition, a run prints the lanes of other days, and counts.
            assert!((20..=57).contains(&lines), "{lines} lines when it takes {slower} times as long");
        }
    }

    #[test]
    fn the_foot_of_a_terminal_shows_the_running_steps() {
        let mut board = Board::default();
        board.plan(2, [("smoke".to_owned(), seconds(12)), ("drain".to_owned(), seconds(150))]);
        board.begin("smoke", seconds(0));
        assert_eq!(
            board.bottom_lines(seconds(5)),
            ["  smoke 0:05 of 0:12", "0:05 0 of 2 ended; next drain; about 3 min left"]
        );
        board.end("smoke", seconds(11), true, "");
        board.begin("drain", seconds(11));
        board.end("drain", seconds(12), true, "");
        assert_eq!(board.bottom_lines(seconds(12)), ["0:12 2 of 2 ended"]);
    }
}
