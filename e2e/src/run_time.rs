//! The time limit of a complete run, and the choice of lanes that still fit.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The tests of a run are expected to end within this time, so that the source checks end within 45 minutes.
/// A lane that may be postponed does not start if it would end later.
const TESTS_WITHIN: Duration = Duration::from_secs(2500);

/// The time of a run, and the times of its lanes.
#[derive(Debug)]
pub struct RunTime {
    begun: Instant,
    /// The expected and the actual time of all parts that have passed.
    ended: Mutex<(Duration, Duration)>,
}

impl RunTime {
    /// Starts measuring the time of a run.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), ended: Mutex::default() }
    }

    /// Records a passed part of the run. A failed one has another duration.
    pub fn record(&self, expected: Duration, took: Duration) {
        let mut ended = self.ended.lock().expect("nothing panics while it holds this lock");
        ended.0 += expected;
        ended.1 += took;
    }

    /// Returns true if a lane with this expected time may start, before mandatory ones that need `later`.
    pub fn allows(&self, lane: Duration, later: Duration) -> bool {
        self.begun.elapsed() + (lane + later).mul_f64(self.slowness()) <= TESTS_WITHIN
    }

    /// Returns the ratio of actual to expected times of the run's parts, at least 1: the last parts run
    /// without concurrent ones, but the host may also become slower.
    fn slowness(&self) -> f64 {
        let (expected, took) = *self.ended.lock().expect("nothing panics while it holds this lock");
        if expected.is_zero() { 1.0 } else { took.div_duration_f64(expected).max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Regression: a machine of half the speed ran all lanes, and the source checks ended after 83 minutes.
    #[test]
    fn a_slow_machine_begins_fewer_lanes() {
        let run = RunTime::begin();
        assert!(run.allows(30 * MINUTE, 10 * MINUTE));
        assert!(!run.allows(30 * MINUTE, 20 * MINUTE), "the others would end too late");
        run.record(MINUTE, MINUTE / 2);
        assert!(!run.allows(50 * MINUTE, Duration::ZERO), "lanes that were fast make no time");
        run.record(MINUTE, 7 * MINUTE / 2);
        assert!(!run.allows(30 * MINUTE, 10 * MINUTE), "all take twice the time");
        assert!(run.allows(10 * MINUTE, 10 * MINUTE));
    }
}
