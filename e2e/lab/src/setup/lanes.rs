//! Work in lanes: the parts of a lane run sequentially, the lanes concurrently.

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::display::{Display, end_of};

/// One part of the work.
pub(super) struct SetupPart<'a> {
    name: String,
    expected: Duration,
    make: Box<dyn FnOnce() -> Result<()> + Send + 'a>,
}

impl<'a> SetupPart<'a> {
    /// Creates a part that takes about `expected` from scratch.
    pub(super) fn new<T>(
        name: impl Into<String>,
        expected: Duration,
        make: impl FnOnce() -> Result<T> + Send + 'a,
    ) -> Self {
        Self { name: name.into(), expected, make: Box::new(|| make().map(drop)) }
    }
}

/// Planned parts: concurrent lanes in sequential stages.
pub struct SetupPlan<'a> {
    display: &'a Display,
    stages: Vec<Vec<Vec<SetupPart<'a>>>>,
}

impl<'a> SetupPlan<'a> {
    /// Adds all parts to the plan of `display`. On two cores, those of a stage take as long as with two
    /// concurrent lanes, regardless of the number of lanes.
    pub(super) fn plan(
        display: &'a Display,
        stages: impl IntoIterator<Item = Vec<Vec<SetupPart<'a>>>>,
    ) -> Self {
        let stages: Vec<_> = stages.into_iter().collect();
        for lanes in &stages {
            let steps = lanes.iter().flatten().map(|part| (part.name.clone(), part.expected));
            display.plan(lanes.len().min(2) as u64, steps);
        }
        Self { display, stages }
    }

    /// Runs all parts, stage by stage. If one fails, the rest of its stage still runs, but no later stage.
    ///
    /// # Errors
    /// The first failure.
    pub fn make(self) -> Result<()> {
        self.stages.into_iter().try_for_each(|lanes| run(self.display, lanes))
    }
}

/// Runs all parts, each as a step of `display`. A failure does not stop the others.
///
/// # Errors
/// The first failure.
fn run(display: &Display, lanes: Vec<Vec<SetupPart<'_>>>) -> Result<()> {
    let result = Mutex::new(Ok(()));
    thread::scope(|scope| {
        for lane in lanes {
            let result = &result;
            scope.spawn(move || {
                for SetupPart { name, expected: _, make } in lane {
                    let made = display.step(&name, end_of, |_| make().map(|()| String::new()));
                    if let Err(error) = made.with_context(|| format!("set up {name}")) {
                        let mut first = result.lock().expect("nothing panics while it holds this lock");
                        *first = std::mem::replace(&mut *first, Ok(())).and(Err(error));
                    }
                }
            });
        }
    });
    result.into_inner().expect("nothing panics while it holds this lock")
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    use anyhow::{anyhow, ensure};

    use super::*;
    use crate::display::times::Times;

    fn run(lanes: Vec<Vec<SetupPart<'_>>>) -> Result<()> {
        let dir = tempfile::tempdir().unwrap();
        let display = Display::open(dir.path(), Times::default()).unwrap();
        SetupPlan::plan(&display, [lanes]).make()
    }

    #[test]
    fn lanes_run_at_the_same_time_and_parts_in_order() {
        let meeting = Barrier::new(2);
        let first = AtomicU32::new(0);
        let none = Duration::ZERO;
        let lane = vec![
            SetupPart::new("one", none, || Ok(first.fetch_add(1, Ordering::SeqCst))),
            SetupPart::new("two", none, || {
                ensure!(first.load(Ordering::SeqCst) == 1);
                Ok(meeting.wait())
            }),
        ];
        run(vec![lane, vec![SetupPart::new("three", none, || Ok(meeting.wait()))]]).unwrap();
    }

    #[test]
    fn the_other_parts_are_built_if_one_fails() {
        let made = AtomicU32::new(0);
        let part =
            |name: &str| SetupPart::new(name, Duration::ZERO, || Ok(made.fetch_add(1, Ordering::SeqCst)));
        let bad = SetupPart::new("bad", Duration::ZERO, || Err::<(), _>(anyhow!("no such package")));
        let error = run(vec![vec![bad, part("after it")], vec![part("one"), part("two")]]).unwrap_err();
        assert_eq!(format!("{error:#}"), "set up bad: no such package");
        assert_eq!(made.into_inner(), 3);
    }
}
