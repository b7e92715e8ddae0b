//! Work in lanes: the parts of a lane follow each other, the lanes run at the same time.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::report;

/// Work that is over sooner than this is not worth a line.
const QUIET: Duration = Duration::from_secs(2);

/// One part of the work.
pub(super) struct Part<'a> {
    name: String,
    expected: Duration,
    make: Box<dyn FnOnce() -> Result<()> + Send + 'a>,
}

impl<'a> Part<'a> {
    /// A part that takes about `expected` where nothing of it is there yet.
    pub(super) fn new<T>(
        name: impl Into<String>,
        expected: Duration,
        make: impl FnOnce() -> Result<T> + Send + 'a,
    ) -> Self {
        Self { name: name.into(), expected, make: Box::new(|| make().map(drop)) }
    }
}

/// Makes all parts and says, after each, which are still to come. The others are made even if one fails.
///
/// # Errors
/// The first failure.
pub(super) fn run(lanes: Vec<Vec<Part<'_>>>) -> Result<()> {
    let mut to_come: Vec<String> = lanes
        .iter()
        .flatten()
        .map(|part| format!("{} (about {} s)", part.name, part.expected.as_secs()))
        .collect();
    let all = to_come.len();
    let (done, ends) = mpsc::channel();
    thread::scope(|scope| {
        for lane in lanes {
            let done = done.clone();
            scope.spawn(move || {
                for Part { name, expected: _, make } in lane {
                    let made = make().with_context(|| format!("set up {name}"));
                    // The receiver below outlives every lane.
                    drop(done.send((name, made)));
                }
            });
        }
        drop(done);
        let mut result = Ok(());
        let mut shown = false;
        let mut failed = 0;
        loop {
            let (name, made) = match ends.recv_timeout(if shown { Duration::MAX } else { QUIET }) {
                Ok(end) => end,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    shown = true;
                    say(all, failed, &to_come);
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            };
            to_come.retain(|part| !part.starts_with(&format!("{name} (")));
            if let Err(error) = made {
                report::step(format_args!("setup: {error:#}"));
                result = result.and(Err(error));
                failed += 1;
            }
            if shown {
                say(all, failed, &to_come);
            }
        }
        result
    })
}

fn say(all: usize, failed: usize, to_come: &[String]) {
    let done = all - failed - to_come.len();
    match to_come {
        [] => report::step(format_args!("setup: {done} of {all} done")),
        left => report::step(format_args!("setup: {done} of {all} done; still to come: {}", left.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use anyhow::{anyhow, ensure};

    use super::*;

    #[test]
    fn lanes_run_at_the_same_time_and_parts_in_order() {
        let meeting = Barrier::new(2);
        let first = AtomicU32::new(0);
        let none = Duration::ZERO;
        let lane = vec![
            Part::new("one", none, || Ok(first.fetch_add(1, Ordering::SeqCst))),
            Part::new("two", none, || {
                ensure!(first.load(Ordering::SeqCst) == 1);
                Ok(meeting.wait())
            }),
        ];
        run(vec![lane, vec![Part::new("three", none, || Ok(meeting.wait()))]]).unwrap();
    }

    #[test]
    fn the_others_are_made_when_a_part_fails() {
        let made = AtomicU32::new(0);
        let part = |name: &str| Part::new(name, Duration::ZERO, || Ok(made.fetch_add(1, Ordering::SeqCst)));
        let bad = Part::new("bad", Duration::ZERO, || Err::<(), _>(anyhow!("no such package")));
        let error = run(vec![vec![bad, part("after it")], vec![part("one"), part("two")]]).unwrap_err();
        assert_eq!(format!("{error:#}"), "set up bad: no such package");
        assert_eq!(made.into_inner(), 3);
    }
}
