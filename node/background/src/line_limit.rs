//! Rate limit for log lines that single requests can cause.
//!
//! Invariants: at most one line per second per [`LineLimit`], and a last one when its subject ends
//! ([`Rest::All`]); the next line counts the suppressed ones.

use std::sync::atomic::{AtomicU64, Ordering};

/// Minimum time between two log lines of a kind, in milliseconds.
const LINE_EVERY_MS: u64 = 1000;

/// Suppressed log lines to report before another line of the same kind arrives.
#[derive(Debug, Clone, Copy)]
pub enum Rest {
    /// Those due at this time, in milliseconds of the caller's clock.
    Due(u64),
    /// All of them, because their subject ends.
    All,
}

/// Log lines of one kind: the first immediately, then one per second with the count of those suppressed.
#[derive(Debug, Default)]
pub struct LineLimit {
    /// Time of the last line, in milliseconds of the caller's clock, plus one; 0 before the first.
    last: AtomicU64,
    held_back: AtomicU64,
}

impl LineLimit {
    /// Counts a line; if it may be written, returns the number of lines suppressed before it. A clock that
    /// was set back allows a line.
    pub fn admit(&self, now_ms: u64) -> Option<u64> {
        if self.is_early(now_ms) {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.last.store(now_ms + 1, Ordering::Relaxed);
        Some(self.held_back.swap(0, Ordering::Relaxed))
    }

    /// Takes the number of suppressed lines to report; `None` if there are none or none are due.
    pub fn take_suppressed(&self, rest: Rest) -> Option<u64> {
        if self.held_back.load(Ordering::Relaxed) == 0 {
            return None;
        }
        if let Rest::Due(now_ms) = rest {
            if self.is_early(now_ms) {
                return None;
            }
            self.last.store(now_ms + 1, Ordering::Relaxed);
        }
        Some(self.held_back.swap(0, Ordering::Relaxed))
    }

    fn is_early(&self, now_ms: u64) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        (last..last + LINE_EVERY_MS).contains(&(now_ms + 1)) && last > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: each request to a bad sector wrote a line, from the thread that serves all devices.
    #[test]
    fn one_line_a_second_counts_the_others() {
        let lines = LineLimit::default();
        assert_eq!(lines.admit(10), Some(0), "the first at once");
        for now in 11..1000 {
            assert_eq!((lines.admit(now), lines.take_suppressed(Rest::Due(now))), (None, None));
        }
        assert_eq!(lines.admit(1010), Some(989));
        assert_eq!(lines.admit(1011), None);
        assert_eq!(lines.take_suppressed(Rest::Due(2009)), None);
        assert_eq!(lines.take_suppressed(Rest::Due(2010)), Some(1), "the last are counted too");
        assert_eq!(lines.take_suppressed(Rest::Due(9000)), None);
        assert_eq!(lines.admit(9000), Some(0));
        assert_eq!(
            (lines.admit(9001), lines.take_suppressed(Rest::All), lines.take_suppressed(Rest::All)),
            (None, Some(1), None)
        );
    }

    /// A time of day set back by an hour would suppress the lines of that hour.
    #[test]
    fn a_clock_set_back_allows_a_line() {
        let lines = LineLimit::default();
        assert_eq!(lines.admit(3_600_000), Some(0));
        assert_eq!(lines.admit(5), Some(0));
        assert_eq!(lines.admit(6), None);
    }
}
