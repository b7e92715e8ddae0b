//! The time that a whole run may take, and what still fits into it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The tests of a run are expected to end within this time, so that the checks of the source end within an
/// hour. A lane that may wait for another day does not begin where it would end later.
const TESTS_WITHIN: Duration = Duration::from_secs(2900);

/// The time of a run, and how long its lanes took.
#[derive(Debug)]
pub struct RunTime {
    begun: Instant,
    /// Of all parts that have passed: the time that was expected, and the time that they took.
    ended: Mutex<(Duration, Duration)>,
}

impl RunTime {
    /// The time of a run that begins now.
    pub fn begin() -> Self {
        Self { begun: Instant::now(), ended: Mutex::default() }
    }

    /// Notes a part of the run that has passed. One that fails takes another time.
    pub fn note(&self, expected: Duration, took: Duration) {
        let mut ended = self.ended.lock().expect("nothing panics while it holds this lock");
        ended.0 += expected;
        ended.1 += took;
    }

    /// True if a lane of this expected time may begin, before others that need `later` and run in any case.
    pub fn allows(&self, lane: Duration, later: Duration) -> bool {
        self.begun.elapsed() + (lane + later).mul_f64(self.slowness()) <= TESTS_WITHIN
    }

    /// Time that parts of the run took, by the time that was expected, and no less than 1: what begins last
    /// runs with nothing else at once, but the host may also become slower.
    fn slowness(&self) -> f64 {
        let (expected, took) = *self.ended.lock().expect("nothing panics while it holds this lock");
        if expected.is_zero() { 1.0 } else { took.div_duration_f64(expected).max(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// A machine of half the speed ran all lanes, and the checks of the source ended after 83 minutes.
    #[test]
    fn a_slow_machine_begins_fewer_lanes() {
        let run = RunTime::begin();
        assert!(run.allows(30 * MINUTE, 10 * MINUTE));
        assert!(!run.allows(30 * MINUTE, 20 * MINUTE), "the others would end too late");
        run.note(MINUTE, MINUTE / 2);
        assert!(!run.allows(50 * MINUTE, Duration::ZERO), "lanes that were fast make no time");
        run.note(MINUTE, 7 * MINUTE / 2);
        assert!(!run.allows(30 * MINUTE, 10 * MINUTE), "all take twice the time");
        assert!(run.allows(14 * MINUTE, 10 * MINUTE));
    }
}
