//! How long requests take: histograms of a sample of them.
//!
//! A request is timed from the moment the ring thread takes it to its completion. The clock is read for one read
//! and one write of [`SAMPLE`], and for each flush and forced write, which wait for the disk anyway.

use std::num::NonZero;

use rustix::time::{ClockId, clock_gettime};

/// One read and one write of so many are timed; a power of two.
const SAMPLE: u64 = 16;
/// Number of buckets with a bound; what is slower than the last bound is counted without one.
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
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Flush];

    /// The name of it, as metrics have it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
        }
    }
}

/// True for the request of an operation that is its `count`th.
#[inline]
pub(crate) const fn is_in_sample(count: u64) -> bool {
    count.is_multiple_of(SAMPLE)
}

/// Upper bound of a bucket, in seconds: 16 microseconds and its doubles.
#[must_use]
pub fn bound_seconds(bucket: usize) -> f64 {
    bound_us(bucket) as f64 / 1e6
}

const fn bound_us(bucket: usize) -> u64 {
    16 << bucket
}

/// The begin of a request that is timed, in microseconds of a clock that no one sets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began(NonZero<u64>);

impl Began {
    /// Now.
    #[cold]
    pub(crate) fn now() -> Self {
        Self(NonZero::new(now_us()).unwrap_or(NonZero::<u64>::MIN))
    }
}

fn now_us() -> u64 {
    let since = clock_gettime(ClockId::Monotonic);
    since.tv_sec.unsigned_abs() * 1_000_000 + since.tv_nsec.unsigned_abs() / 1000
}

/// A histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LatencyHistogram {
    /// Number of requests in each bucket: slower than the bound of the one before, not slower than its own.
    pub buckets: [u64; BUCKETS],
    /// Number of requests slower than the last bound.
    pub beyond: u64,
    /// Sum of the times, in microseconds.
    pub sum_us: u64,
}

impl LatencyHistogram {
    fn add(&mut self, us: u64) {
        self.sum_us = self.sum_us.saturating_add(us);
        match (0..BUCKETS).find(|&bucket| us <= bound_us(bucket)) {
            Some(bucket) => self.buckets[bucket] += 1,
            None => self.beyond += 1,
        }
    }

    /// Number of requests that were timed.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum::<u64>() + self.beyond
    }
}

/// The histograms of a volume, since this process attached or recovered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Latencies([LatencyHistogram; TimedOperation::ALL.len()]);

impl Latencies {
    /// The histogram of an operation.
    #[must_use]
    pub const fn of(&self, operation: TimedOperation) -> &LatencyHistogram {
        &self.0[operation as usize]
    }

    /// A request ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn end(&mut self, operation: TimedOperation, began: Began) {
        self.add(operation, now_us().saturating_sub(began.0.get()));
    }

    /// Counts a request that took so many microseconds.
    pub fn add(&mut self, operation: TimedOperation, us: u64) {
        self.0[operation as usize].add(us);
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
    fn the_bounds_reach_from_a_fast_disk_to_a_store_that_is_away() {
        assert_eq!((bound_seconds(0), bound_seconds(BUCKETS - 1)), (0.000_016, 8.388_608));
    }

    #[test]
    fn one_request_of_sixteen_is_in_the_sample() {
        assert_eq!((1..=160).filter(|&count| is_in_sample(count)).count(), 10);
    }
}
