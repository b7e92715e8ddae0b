//! Schedule of a sweep: a pure function of past events and their age.

use std::time::Duration;

use holdfast_types::{Backoff, Jitter};

/// Delay before a new leader's first sweep: other work has priority.
const FIRST_AFTER: Duration = Duration::from_mins(5);
/// Delays after failed sweeps.
const RETRY: Backoff =
    Backoff { first: Duration::from_mins(5), last: Duration::from_hours(6), jitter: Jitter::Fifth };
/// Maximum extension of an interval, as a fraction of it.
const SPREAD: f64 = 0.1;

/// Facts about the sweeps of one ObjectStore.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    /// Time between two sweeps.
    pub(crate) interval: Duration,
    /// Time since this instance became the leader.
    pub(crate) led_for: Duration,
    /// Time since the last completed sweep.
    pub(crate) ended_ago: Option<Duration>,
    /// Time since this instance's last failure, and the number of consecutive failures.
    pub(crate) failed: Option<(Duration, u32)>,
    /// A number in 0..1 that is constant until the next sweep.
    pub(crate) random: f64,
}

impl Facts {
    /// Returns true if a sweep may begin.
    pub(crate) fn is_due(&self) -> bool {
        let Self { interval, led_for, ended_ago, failed, random } = *self;
        let spread = 1.0 + SPREAD * random.clamp(0.0, 1.0);
        led_for >= FIRST_AFTER.mul_f64(spread)
            && ended_ago.is_none_or(|ago| ago >= interval.mul_f64(spread))
            && failed.is_none_or(|(ago, failures)| ago >= RETRY.delay(failures, random))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const FACTS: Facts = Facts {
        interval: Duration::from_hours(24),
        led_for: HOUR,
        ended_ago: None,
        failed: None,
        random: 0.0,
    };

    #[test]
    fn a_new_leader_waits_and_then_keeps_the_interval() {
        assert!(FACTS.is_due());
        for (minutes, expected) in [(0, false), (4, false), (5, true)] {
            let facts = Facts { led_for: Duration::from_mins(minutes), ..FACTS };
            assert_eq!(facts.is_due(), expected, "{minutes} minutes");
        }
        for (hours, random, expected) in
            [(0, 0.0, false), (23, 0.0, false), (24, 0.0, true), (25, 0.9, false), (27, 0.9, true)]
        {
            let facts = Facts { ended_ago: Some(hours * HOUR), random, ..FACTS };
            assert_eq!(facts.is_due(), expected, "{hours} hours");
        }
    }

    #[test]
    fn failures_in_a_row_are_retried_more_rarely() {
        for (minutes, failures, expected) in
            [(4, 1, false), (5, 1, true), (5, 2, false), (10, 2, true), (359, 30, false), (360, 30, true)]
        {
            let facts =
                Facts { failed: Some((Duration::from_mins(minutes), failures)), random: 0.5, ..FACTS };
            assert_eq!(facts.is_due(), expected, "{minutes} minutes after {failures}");
        }
    }
}
