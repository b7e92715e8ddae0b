//! The share of memory volumes in a turn of a ring thread.
//!
//! The thread itself does the work of their requests: a codec needs up to 30 us per page. Without a bound, a
//! queue of 64 requests of 128 KiB blocked all other volumes of the thread while it compressed 8 MiB. A turn
//! therefore serves few bytes; the next turn follows immediately and includes new completions of other
//! volumes.
//!
//! Owns: the requests that wait for a turn. Runs on: the ring thread. Allocates only when more requests wait
//! than ever before.
//! Invariants: requests are served in the order of their arrival; while some wait, another turn follows.

use std::collections::VecDeque;

use crate::limit::MEMORY_TURN_BYTES;

/// The turns of a thread, and the requests that wait for one.
#[derive(Debug)]
pub(super) struct MemoryTurn<R> {
    left_bytes: u64,
    /// Waiting requests, each with its length.
    waiting: VecDeque<(R, u64)>,
    /// True if the next turn is scheduled.
    is_called: bool,
}

impl<R> Default for MemoryTurn<R> {
    fn default() -> Self {
        Self { left_bytes: MEMORY_TURN_BYTES, waiting: VecDeque::new(), is_called: false }
    }
}

impl<R> MemoryTurn<R> {
    /// Returns the request if this turn serves it; otherwise keeps it for a later turn.
    #[inline]
    pub(super) fn admit(&mut self, request: R, len_bytes: u64) -> Option<R> {
        if self.waiting.is_empty() && self.takes(len_bytes) {
            return Some(request);
        }
        self.waiting.push_back((request, len_bytes));
        None
    }

    /// Returns the next waiting request if this turn serves it.
    pub(super) fn next(&mut self) -> Option<R> {
        let &(_, len_bytes) = self.waiting.front()?;
        if !self.takes(len_bytes) {
            return None;
        }
        self.waiting.pop_front().map(|(request, _)| request)
    }

    /// Ends a turn. Returns the first waiting request if the caller must schedule another turn.
    #[inline]
    pub(super) fn end(&mut self) -> Option<&R> {
        self.left_bytes = MEMORY_TURN_BYTES;
        let (first, _) = self.waiting.front()?;
        (!std::mem::replace(&mut self.is_called, true)).then_some(first)
    }

    /// Records that the scheduled turn has begun.
    pub(super) const fn called(&mut self) {
        self.is_called = false;
    }

    /// Returns true if no request waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes all waiting requests, for a thread that is about to end.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = R> {
        self.waiting.drain(..).map(|(request, _)| request)
    }

    /// Takes a request's bytes from the turn's budget, unless it is exhausted.
    #[inline]
    const fn takes(&mut self, len_bytes: u64) -> bool {
        let takes = self.left_bytes > 0;
        self.left_bytes = self.left_bytes.saturating_sub(len_bytes);
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: u64 = MEMORY_TURN_BYTES / 2;

    /// Regression: a queue of large requests blocked the other volumes of its thread until all were served.
    #[test]
    fn a_turn_serves_few_bytes_and_the_next_one_follows() {
        let mut turn = MemoryTurn::default();
        assert_eq!(turn.end(), None, "nothing waits");
        let now: Vec<u32> = (0..7).filter_map(|request| turn.admit(request, REQUEST)).collect();
        assert_eq!(now, [0, 1]);
        assert_eq!(turn.end(), Some(&2));
        assert_eq!(turn.end(), None, "one is scheduled");
        assert_eq!(turn.admit(7, 0), None, "others came before");
        for expected in [vec![2, 3], vec![4, 5], vec![6, 7]] {
            turn.called();
            let served: Vec<u32> = std::iter::from_fn(|| turn.next()).collect();
            assert_eq!(turn.end().is_some(), !expected.contains(&7));
            assert_eq!(served, expected);
        }
        assert_eq!(turn.admit(8, 100 * REQUEST), Some(8), "a long request is served whole");
        assert_eq!(turn.admit(9, 0), None);
        assert_eq!(turn.leave().collect::<Vec<_>>(), [9]);
        assert_eq!(turn.end(), None);
    }
}
