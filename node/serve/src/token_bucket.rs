//! A token bucket: a rate, and a burst of at most the tokens of one second.
//!
//! Owns: tokens of one kind, counted in thousandths, so that each millisecond adds a whole number of them and
//! no rate is rounded. Does not own: a clock, and the requests that wait for tokens.
//! Invariants: the tokens taken in any span of time never exceed those that the rate adds in it, plus the
//! credit; a clock that is late or goes back adds no tokens twice.

use holdfast_types::Millis;

use crate::limit::CREDIT_MS;

/// Tokens of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TokenBucket {
    per_second: u64,
    /// Thousandths of tokens.
    thousandths: u64,
    /// Time up to which tokens were added.
    at: Millis,
}

impl TokenBucket {
    /// Creates an empty bucket, so that a volume whose owner changes often gets no credit each time.
    pub(crate) const fn empty(per_second: u64, now: Millis) -> Self {
        Self { per_second, thousandths: 0, at: now }
    }

    /// Changes the rate. Keeps the tokens up to the new credit.
    pub(crate) fn set_rate(&mut self, per_second: u64, now: Millis) {
        self.refill(now);
        self.per_second = per_second;
        self.thousandths = self.thousandths.min(self.most());
    }

    /// Adds the tokens for the time until `now`.
    pub(crate) fn refill(&mut self, now: Millis) {
        let passed = now.saturating_sub(self.at).min(CREDIT_MS);
        self.at = self.at.max(now);
        self.thousandths = (self.thousandths + self.per_second * passed).min(self.most());
    }

    /// Returns true if the bucket has this many tokens.
    pub(crate) fn has(&self, tokens: u64) -> bool {
        self.thousandths >= self.thousandths_of(tokens)
    }

    /// Takes tokens, which the bucket must have.
    pub(crate) fn take(&mut self, tokens: u64) {
        self.thousandths -= self.thousandths_of(tokens);
    }

    /// Returns the thousandths of this many tokens, at most a full bucket, so that no request waits forever.
    fn thousandths_of(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(1000).min(self.most())
    }

    const fn most(&self) -> u64 {
        self.per_second * CREDIT_MS
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Takes all tokens one by one. Returns their number.
    fn drain(bucket: &mut TokenBucket) -> u64 {
        let mut taken = 0;
        while bucket.has(1) {
            bucket.take(1);
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_bucket_holds_a_second_of_its_rate() {
        let mut bucket = TokenBucket::empty(300, 5000);
        assert_eq!(drain(&mut bucket), 0, "it begins empty");
        bucket.refill(5010);
        assert_eq!(drain(&mut bucket), 3);
        bucket.refill(1_000_000);
        assert_eq!(drain(&mut bucket), 300);
        bucket.refill(1_000_500);
        bucket.set_rate(100, 1_000_500);
        assert_eq!(drain(&mut bucket), 100, "the credit of the new rate");
    }

    #[test]
    fn more_than_a_full_bucket_has_takes_all_of_it() {
        let mut bucket = TokenBucket::empty(10, 0);
        bucket.refill(999);
        assert!(!bucket.has(11) && bucket.has(9));
        bucket.refill(1000);
        assert!(bucket.has(11));
        bucket.take(11);
        assert!(!bucket.has(1));
    }

    /// Makes steps of a client: a movement of the clock, maybe backwards, and a number of wanted tokens.
    fn steps() -> impl Strategy<Value = Vec<(i64, u64)>> {
        prop::collection::vec((-20_i64..300, 0_u64..400), 1..200)
    }

    proptest! {
        /// With any clock, no window has more tokens than its time makes plus one credit.
        #[test]
        fn no_window_has_more_than_rate_and_credit(rate in 1_u64..2000, steps in steps()) {
            let mut bucket = TokenBucket::empty(rate, 10_000);
            let (mut now, mut latest) = (10_000_i64, 10_000_u64);
            // Time and number of each take.
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (passed, wanted) in steps {
                now += passed;
                latest = latest.max(now as u64);
                bucket.refill(now as u64);
                let wanted = wanted.min(rate);
                if bucket.has(wanted) {
                    bucket.take(wanted);
                    taken.push((latest, wanted));
                }
            }
            for first in 0..taken.len() {
                let mut sum = 0;
                for &(at, tokens) in &taken[first..] {
                    sum += tokens;
                    let span_ms = at - taken[first].0;
                    prop_assert!(sum * 1000 <= rate * (span_ms + CREDIT_MS), "{sum} in {span_ms} ms");
                }
            }
        }

        /// A client that always wants more gets all tokens that the rate makes, and each change of the rate
        /// has immediate effect.
        #[test]
        fn nothing_of_the_rate_is_lost(rates in prop::collection::vec((10_u64..5000, 1_u64..900), 1..50)) {
            let mut bucket = TokenBucket::empty(rates[0].0, 0);
            let (mut now, mut thousandths, mut taken) = (0, 0, 0);
            for (rate, passed) in rates {
                bucket.set_rate(rate, now);
                now += passed;
                thousandths += rate * passed;
                bucket.refill(now);
                taken += drain(&mut bucket);
                prop_assert_eq!(taken, thousandths / 1000);
            }
        }
    }
}
