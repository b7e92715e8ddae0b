//! Times of the steps of attaches: in each one's log line, and as a histogram of the node.
//!
//! Does not own: the steps (`attach.rs`). A failed step is not counted: its time is that of the failure.

use std::fmt;
use std::time::{Duration, Instant};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

/// A step of an attach, in chronological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TimedStep {
    /// Connects to the store, and probes it before its first use.
    Store,
    /// Reads the log and the local files, and creates the record that acquires the volume.
    Acquire,
    /// Creates or opens the live map and passes the volume to its ring thread.
    Ring,
    /// Waits until the ring thread has made the initial state of the volume durable.
    Start,
    /// Adds and starts the ublk device.
    Device,
}

impl TimedStep {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Acquire => "acquire",
            Self::Ring => "ring",
            Self::Start => "start",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for TimedStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl EncodeLabelValue for TimedStep {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        fmt::Write::write_str(encoder, self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StepLabels {
    step: TimedStep,
}

/// The times of the steps of all attaches since the process started; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct AttachTimes(Family<StepLabels, Histogram>);

impl Default for AttachTimes {
    fn default() -> Self {
        Self(Family::new_with_constructor(histogram as fn() -> Histogram))
    }
}

/// From 1 ms to 65 s.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 17))
}

impl AttachTimes {
    /// Returns the histograms, by step.
    pub(crate) fn histograms(&self) -> Family<StepLabels, Histogram> {
        self.0.clone()
    }

    /// Starts the timer of an attach.
    pub(crate) fn begin(&self) -> AttachTimer<'_> {
        let now = Instant::now();
        AttachTimer { times: self, begun: now, last: now, steps: Vec::with_capacity(5) }
    }
}

/// The steps of one attach.
pub(crate) struct AttachTimer<'a> {
    times: &'a AttachTimes,
    begun: Instant,
    last: Instant,
    steps: Vec<(TimedStep, Duration)>,
}

impl AttachTimer<'_> {
    /// Ends a step and starts the next one.
    pub(crate) fn end(&mut self, step: TimedStep) {
        self.end_at(step, Instant::now());
    }

    fn end_at(&mut self, step: TimedStep, now: Instant) {
        let took = now - std::mem::replace(&mut self.last, now);
        self.times.0.get_or_create(&StepLabels { step }).observe(took.as_secs_f64());
        self.steps.push((step, took));
    }

    /// Returns the time since the attach started.
    pub(in crate::node) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns the longest step.
    pub(in crate::node) fn slowest(&self) -> Option<TimedStep> {
        self.steps.iter().max_by_key(|(_, took)| *took).map(|(step, _)| *step)
    }
}

/// Formats the steps with their times, such as `store 1.2ms, acquire 40.1ms`.
impl fmt::Display for AttachTimer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (step, took)) in self.steps.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{step} {took:.1?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_step_is_named() {
        let times = AttachTimes::default();
        let mut timer = times.begin();
        let begun = timer.begun;
        for (step, ms) in [(TimedStep::Store, 2), (TimedStep::Acquire, 42), (TimedStep::Ring, 43)] {
            timer.end_at(step, begun + Duration::from_millis(ms));
        }
        assert_eq!(timer.slowest(), Some(TimedStep::Acquire));
        assert_eq!(timer.to_string(), "store 2.0ms, acquire 40.0ms, ring 1.0ms");
    }
}
