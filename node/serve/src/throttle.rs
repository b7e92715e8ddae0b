//! The limits in effect for one volume, which decide whether a request begins or waits for its turn.
//!
//! ```text
//!              the limits have tokens, and none waits
//!  request ───────────────────────────────────────────────────► begins
//!     └──────────────► waits, in order ──── a pause later, ────► begins
//!                                           or other limits
//! ```
//!
//! Owns: the buckets, and the requests that wait for them. Does not own: the memory of requests, which stays
//! with their queue; the ring's timer.
//! Invariants: requests begin in the order of their arrival, except flushes, which move nothing and cover
//! only completed writes; while a request waits, or if a request arrived since the last pause, another pause
//! follows.

use std::collections::VecDeque;

use holdfast_engine::event::{Op, RequestId};
use holdfast_types::{Millis, SectorRange};

use crate::io_limits::{IoLimits, LimitStatus};
use crate::token_bucket::TokenBucket;

/// A new request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NewRequest {
    pub(crate) id: RequestId,
    pub(crate) op: Op,
    pub(crate) range: SectorRange,
}

impl NewRequest {
    /// Returns the bytes that count: a discard moves none.
    fn bytes(&self) -> u64 {
        match self.op {
            Op::Read | Op::Write | Op::WriteFua => self.range.bytes(),
            Op::Discard | Op::WriteZeroes | Op::Flush => 0,
        }
    }
}

/// Limits of one volume.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    requests: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    /// Waiting requests, each with the start of its wait.
    waiting: VecDeque<(NewRequest, Millis)>,
    is_pausing: bool,
    /// True if a request arrived since the last pause began; another pause then keeps the thread's time
    /// recent.
    was_used: bool,
    /// Latest time that a caller passed. The thread's time may be older.
    now: Millis,
    /// True once the limits were removed and later ones are ignored.
    is_off: bool,
    status: LimitStatus,
}

impl Throttle {
    /// Returns true while every request may begin without a check.
    pub(crate) fn is_idle(&self) -> bool {
        self.status.limits == IoLimits::NONE && self.waiting.is_empty()
    }

    /// Replaces the limits, also for waiting requests.
    pub(crate) fn set(&mut self, limits: IoLimits, now: Millis) {
        let limits = if self.is_off { IoLimits::NONE } else { limits };
        let IoLimits { iops, bytes_per_second } = limits;
        set_rate(&mut self.requests, iops, now);
        set_rate(&mut self.bytes, bytes_per_second, now);
        self.status.limits = limits;
    }

    /// Removes all limits, and ignores later ones.
    pub(crate) fn turn_off(&mut self, now: Millis) {
        self.is_off = true;
        self.set(IoLimits::NONE, now);
    }

    /// Returns true if a new request may begin. Otherwise queues it until its turn.
    pub(crate) fn admit_or_queue(&mut self, request: NewRequest, now: Millis) -> bool {
        if request.op == Op::Flush {
            return true;
        }
        self.was_used = true;
        self.refill(now);
        if self.waiting.is_empty() && self.try_take(&request) {
            return true;
        }
        self.waiting.push_back((request, self.now));
        false
    }

    /// Returns the next waiting request, if it may begin.
    pub(crate) fn next_admitted(&mut self, now: Millis) -> Option<NewRequest> {
        let &(request, since) = self.waiting.front()?;
        self.refill(now);
        if !self.try_take(&request) {
            return None;
        }
        self.waiting.pop_front();
        self.status.delayed_requests += 1;
        self.status.delayed_ms += now.saturating_sub(since);
        Some(request)
    }

    /// Returns true while a pause is in flight.
    pub(crate) fn is_pausing(&self) -> bool {
        self.is_pausing
    }

    /// Marks a pause as in flight if one is needed. Returns true if so: the caller must start its timer.
    pub(crate) fn start_pause_if_needed(&mut self) -> bool {
        if self.is_pausing || (self.waiting.is_empty() && !self.was_used) {
            return false;
        }
        self.was_used = false;
        self.is_pausing = true;
        true
    }

    /// Records the end of the pause.
    pub(crate) fn pause_ended(&mut self) {
        self.is_pausing = false;
    }

    pub(crate) fn status(&self) -> LimitStatus {
        LimitStatus { waiting: self.waiting.len() as u64, ..self.status }
    }

    fn refill(&mut self, now: Millis) {
        self.now = self.now.max(now);
        for bucket in [&mut self.requests, &mut self.bytes].into_iter().flatten() {
            bucket.refill(now);
        }
    }

    /// Takes the tokens of a request if the buckets have all of them.
    fn try_take(&mut self, request: &NewRequest) -> bool {
        let (one, bytes) = (1, request.bytes());
        let has = |bucket: &Option<TokenBucket>, tokens| bucket.as_ref().is_none_or(|it| it.has(tokens));
        let begins = has(&self.requests, one) && has(&self.bytes, bytes);
        if begins {
            for (bucket, tokens) in [(&mut self.requests, one), (&mut self.bytes, bytes)] {
                if let Some(bucket) = bucket {
                    bucket.take(tokens);
                }
            }
        }
        begins
    }
}

fn set_rate(bucket: &mut Option<TokenBucket>, per_second: Option<u64>, now: Millis) {
    match (bucket.as_mut(), per_second) {
        (Some(bucket), Some(rate)) => bucket.set_rate(rate, now),
        (None, Some(rate)) => *bucket = Some(TokenBucket::empty(rate, now)),
        (_, None) => *bucket = None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(iops: u64, bytes_per_second: u64) -> IoLimits {
        let some = |limit| (limit > 0).then_some(limit);
        IoLimits { iops: some(iops), bytes_per_second: some(bytes_per_second) }
    }

    /// Creates a throttle with these limits at time 0.
    fn limited(limits: IoLimits) -> Throttle {
        let mut throttle = Throttle::default();
        throttle.set(limits, 0);
        throttle
    }

    fn request(id: u32, op: Op, sectors: u64) -> NewRequest {
        NewRequest { id: RequestId(id), op, range: SectorRange::new(0, sectors) }
    }

    /// Returns the ids of requests that may begin now.
    fn released(throttle: &mut Throttle, now: Millis) -> Vec<u32> {
        std::iter::from_fn(|| throttle.next_admitted(now)).map(|request| request.id.0).collect()
    }

    #[test]
    fn requests_beyond_the_limit_wait_in_order() {
        let mut throttle = limited(limits(100, 0));
        for id in 0..5 {
            assert!(!throttle.admit_or_queue(request(id, Op::Write, 1), 0));
        }
        assert!(throttle.admit_or_queue(request(9, Op::Flush, 0), 0), "a flush needs no token");
        assert_eq!(released(&mut throttle, 25), [0, 1]);
        assert!(
            !throttle.admit_or_queue(request(5, Op::Read, 1), 35),
            "one token is there, and others came before"
        );
        assert_eq!(released(&mut throttle, 60), [2, 3, 4, 5]);
        let LimitStatus { waiting, delayed_requests, delayed_ms, .. } = throttle.status();
        assert_eq!((waiting, delayed_requests, delayed_ms), (0, 6, 2 * 25 + 3 * 60 + 25));
    }

    #[test]
    fn a_discard_is_one_request_without_bytes() {
        let mut throttle = limited(limits(0, 1 << 20));
        assert!(throttle.admit_or_queue(request(0, Op::Discard, 1 << 20), 0));
        assert!(throttle.admit_or_queue(request(1, Op::WriteZeroes, 1 << 20), 0));
        assert!(!throttle.admit_or_queue(request(2, Op::WriteFua, 1), 0));
        let mut throttle = limited(limits(100, 1 << 30));
        assert!(!throttle.admit_or_queue(request(0, Op::Discard, 1), 0));
    }

    #[test]
    fn a_request_takes_of_both_limits_or_of_none() {
        let mut throttle = limited(limits(1000, 1 << 20));
        // 256 sectors need a second's bytes.
        assert!(!throttle.admit_or_queue(request(0, Op::Write, 256), 0));
        assert_eq!(released(&mut throttle, 999), [0; 0]);
        assert_eq!(released(&mut throttle, 1000), [0]);
        for id in 1..=999 {
            assert!(throttle.admit_or_queue(request(id, Op::Discard, 1), 1000), "{id}");
        }
        assert!(!throttle.admit_or_queue(request(1000, Op::Discard, 1), 1000));
    }

    #[test]
    fn other_limits_are_in_effect_at_once() {
        let mut throttle = limited(limits(10, 0));
        for id in 0..30 {
            assert!(!throttle.admit_or_queue(request(id, Op::Read, 1), 0));
        }
        assert_eq!(released(&mut throttle, 100), [0]);
        throttle.set(limits(100, 0), 100);
        assert_eq!(released(&mut throttle, 150).len(), 5);
        throttle.set(IoLimits::NONE, 150);
        assert!(!throttle.is_idle(), "some wait");
        assert!(!throttle.admit_or_queue(request(30, Op::Read, 1), 150));
        assert_eq!(released(&mut throttle, 150).len(), 25);
        assert!(throttle.is_idle());
    }

    /// The inbox may have a change of the limits when the volume is fenced.
    #[test]
    fn limits_that_come_after_the_end_are_ignored() {
        let mut throttle = limited(limits(10, 0));
        assert!(!throttle.admit_or_queue(request(0, Op::Read, 1), 0));
        throttle.turn_off(0);
        throttle.set(limits(10, 1 << 20), 0);
        assert_eq!(throttle.status().limits, IoLimits::NONE);
        assert_eq!(released(&mut throttle, 0), [0]);
        assert!(throttle.is_idle());
    }

    #[test]
    fn a_pause_follows_while_requests_come() {
        let mut throttle = limited(limits(1000, 0));
        assert!(!throttle.start_pause_if_needed(), "nothing came");
        assert!(throttle.admit_or_queue(request(0, Op::Read, 1), 10));
        assert!(throttle.start_pause_if_needed() && !throttle.start_pause_if_needed(), "one at a time");
        throttle.pause_ended();
        assert!(!throttle.start_pause_if_needed(), "nothing came since");
        for id in 0..20 {
            throttle.admit_or_queue(request(id, Op::Read, 1), 10);
        }
        for _ in 0..3 {
            assert!(throttle.start_pause_if_needed(), "some wait");
            throttle.pause_ended();
        }
    }

    proptest! {
        /// For any requests and changes of the limits, no request is lost, and all begin in order.
        #[test]
        fn all_begin_in_order(
            steps in prop::collection::vec((0_u64..50, 0_u64..300, 0_u64..40, 1_u64..256), 1..100)
        ) {
            let mut throttle = limited(limits(50, 1 << 20));
            let (mut now, mut next_id, mut begun) = (0, 0, Vec::new());
            for (passed, iops, count, sectors) in steps {
                now += passed;
                begun.extend(released(&mut throttle, now));
                for _ in 0..count {
                    if throttle.admit_or_queue(request(next_id, Op::Write, sectors), now) {
                        begun.push(next_id);
                    }
                    next_id += 1;
                }
                if iops < 20 {
                    throttle.set(limits(iops * 10, (1 << 20) + iops), now);
                }
            }
            let mut turns = 0;
            while throttle.status().waiting > 0 {
                now += 1000;
                begun.extend(released(&mut throttle, now));
                turns += 1;
                prop_assert!(turns <= next_id, "each second one begins");
            }
            prop_assert!(begun.into_iter().eq(0..next_id));
        }
    }
}
