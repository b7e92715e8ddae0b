//! Durations of requests: histograms of a sample.
//!
//! The duration of a request runs from the moment the ring thread takes it to its completion. The thread
//! reads the clock for one request in 64, for the first request after each tick (250 ms), and for each flush
//! and forced write, which wait for the disk anyway.

use std::num::NonZeroU64;

use holdfast_ublk::{DeviceRequest, Operation};
use rustix::time::{ClockId, clock_gettime};

/// One request in this many is timed.
pub(crate) const SAMPLE: u32 = 64;
/// Number of buckets with a bound; requests slower than the last bound are counted separately.
pub const BUCKETS: usize = 20;

/// The operations whose requests are timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimedOperation {
    /// Reads.
    Read,
    /// Writes that are not forced.
    Write,
    /// Flushes and forced writes.
    Flush,
}

impl TimedOperation {
    /// All timed operations.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Flush];

    /// Returns the operation under which a request is timed; `None` for a discard, which is not timed.
    pub(crate) const fn of(request: &DeviceRequest) -> Option<Self> {
        match request.operation() {
            Operation::Read => Some(Self::Read),
            Operation::Write if !request.is_fua() => Some(Self::Write),
            Operation::Write | Operation::Flush => Some(Self::Flush),
            Operation::Discard | Operation::WriteZeroes => None,
        }
    }

    /// Returns its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
    }
}

/// Returns the upper bound of a bucket in seconds: 16 microseconds, doubled for each further bucket.
#[must_use]
pub fn bound_seconds(bucket: usize) -> f64 {
    bound_us(bucket) as f64 / 1e6
}

const fn bound_us(bucket: usize) -> u64 {
    16 << bucket
}

/// Returns the microseconds of the monotonic clock.
#[cold]
pub(crate) fn now_us() -> u64 {
    let since = clock_gettime(ClockId::Monotonic);
    since.tv_sec.unsigned_abs() * 1_000_000 + since.tv_nsec.unsigned_abs() / 1000
}

/// Histogram of the durations of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyHistogram {
    /// Number of requests in each bucket: slower than the previous bucket's bound, not slower than its own.
    pub buckets: [u64; BUCKETS],
    /// Number of requests slower than the last bound.
    pub beyond: u64,
    /// Sum of the times, in microseconds.
    pub sum_us: u64,
}

impl LatencyHistogram {
    fn merge(&mut self, other: &Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.beyond += other.beyond;
        self.sum_us = self.sum_us.saturating_add(other.sum_us);
    }

    fn add(&mut self, us: u64) {
        self.sum_us = self.sum_us.saturating_add(us);
        // The bounds are powers of two.
        let bits = u64::BITS - us.saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(bound_us(0).ilog2()) as usize;
        *self.buckets.get_mut(bucket).unwrap_or(&mut self.beyond) += 1;
    }

    /// Returns the number of timed requests.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum::<u64>() + self.beyond
    }
}

/// The histograms of a volume, since this process attached or recovered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies([LatencyHistogram; TimedOperation::ALL.len()]);

impl Latencies {
    /// Returns the histogram of an operation.
    #[must_use]
    pub const fn of(&self, operation: TimedOperation) -> &LatencyHistogram {
        &self.0[operation as usize]
    }

    /// Adds the requests of another thread.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (histogram, more) in self.0.iter_mut().zip(&other.0) {
            histogram.merge(more);
        }
    }

    /// Counts a request that took `us` microseconds.
    pub fn add(&mut self, operation: TimedOperation, us: u64) {
        self.0[operation as usize].add(us);
    }
}

/// Chooses the requests that are timed: one in [`SAMPLE`], the first after each tick, and each flush and
/// forced write.
#[derive(Debug)]
pub(crate) struct LatencySample {
    /// Number of requests until the next timed one.
    left: u32,
}

impl LatencySample {
    pub(crate) const fn new() -> Self {
        Self { left: 1 }
    }

    /// Returns the start time of a request, in microseconds, if it is timed.
    #[inline]
    pub(crate) fn begin(&mut self, is_flush: bool) -> Option<NonZeroU64> {
        self.left -= 1;
        if self.left > 0 && !is_flush {
            return None;
        }
        self.left = if self.left == 0 { SAMPLE } else { self.left };
        NonZeroU64::new(now_us())
    }

    /// Times the next request.
    pub(crate) const fn tick(&mut self) {
        self.left = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let mut latencies = Latencies::default();
        for us in [0, 16, 17, 32, 33, bound_us(BUCKETS - 1), bound_us(BUCKETS - 1) + 1] {
            latencies.add(TimedOperation::Write, us);
        }
        let writes = latencies.of(TimedOperation::Write);
        assert_eq!((writes.buckets[..3].to_vec(), writes.buckets[BUCKETS - 1]), (vec![2, 2, 1], 1));
        assert_eq!((writes.beyond, writes.count()), (1, 7));
        assert_eq!(writes.sum_us, 98 + 2 * bound_us(BUCKETS - 1) + 1);
        assert_eq!(latencies.of(TimedOperation::Read).count(), 0);
    }

    #[test]
    fn one_request_of_64_is_timed_and_the_first_after_a_tick() {
        let mut sample = LatencySample::new();
        let mut timed = |requests: u32| (0..requests).filter(|_| sample.begin(false).is_some()).count();
        assert_eq!((timed(1), timed(SAMPLE - 1), timed(1), timed(10)), (1, 0, 1, 0));
        assert!(sample.begin(true).is_some() && sample.begin(false).is_none());
        sample.tick();
        assert!(sample.begin(false).is_some());
    }

    #[test]
    fn the_requests_of_all_threads_are_added() {
        let mut sum = Latencies::default();
        let mut one = Latencies::default();
        one.add(TimedOperation::Read, 3);
        one.add(TimedOperation::Read, u64::MAX);
        sum.add(TimedOperation::Read, 5);
        sum.merge(&one);
        let reads = sum.of(TimedOperation::Read);
        assert_eq!((reads.buckets[0], reads.beyond, reads.sum_us), (2, 1, u64::MAX));
    }

    #[test]
    fn the_bounds_reach_from_a_fast_disk_to_a_slow_store() {
        assert_eq!((bound_seconds(0), bound_seconds(BUCKETS - 1)), (0.000_016, 8.388_608));
    }
}
