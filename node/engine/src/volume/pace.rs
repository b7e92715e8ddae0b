//! Pace of writes while a commit is in progress: it slows writes down to the speed of the commits before
//! the limit of dirty bytes stops them.
//!
//! The dirty bytes that the active side may have over time, from the start of the seal:
//!
//! ```text
//!  max_bytes  - - - - - - - - - - - - - - - - - - - +-----   the commit does not come: no pace, and writes
//!                              _________------------|        stop at the limit
//!  3/4        - - - - - - -.-'''
//!                       .-'|
//!  start   ----------.-'   |
//!                          expected                 8 x expected
//! ```
//!
//! *Start* plus the sealed side is half of `max_bytes`: below it nothing is delayed. The expected duration
//! of the commit is derived from its bytes and the rate of the last two commits, each measured from its
//! seal to its end. When a commit ends as expected, the side is thus at three quarters of the limit, writers
//! are as fast as the store, and the next commit is as large. If a commit takes longer, the remaining quarter
//! is granted at a decreasing rate.
//!
//! Owns: the grant, the durations of commits, the figures of delayed writes. Does not own: the waiting
//! writes (`volume/requests.rs`), the limit itself.
//! Runs on: the ring thread of the volume.
//! Invariants: the pace delays only writes that could otherwise be planned; it never stops writes by itself.

use holdfast_types::Millis;

use crate::limit::{
    ASSUMED_UPLOAD_BYTES_PER_SECOND, COMMIT_EXPECTED_AT_LEAST_MS, NO_PACE_AFTER_MS, NO_PACE_AFTER_TIMES,
    PAUSE_MS,
};

/// A commit: the dirty bytes of its seal, and its duration from the seal to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CommitTime {
    bytes: u64,
    ms: Millis,
}

impl CommitTime {
    /// Returns the time that `bytes` take at the same rate.
    fn time_of(self, bytes: u64) -> Millis {
        scaled(bytes, self.ms, self.bytes)
    }

    fn with(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, ms: self.ms + other.ms }
    }
}

/// Returns `value * times / of`, for values of any size.
fn scaled(value: u64, times: u64, of: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(times) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// The commit in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CommitInProgress {
    since: Millis,
    bytes: u64,
    expected_ms: Millis,
    /// True if this process saw the whole commit.
    is_whole: bool,
}

impl CommitInProgress {
    /// Returns true if the commit takes so long that the store counts as unresponsive.
    fn is_silent(self, now: Millis) -> bool {
        let bound_ms = self.expected_ms.saturating_mul(NO_PACE_AFTER_TIMES).max(NO_PACE_AFTER_MS);
        now.saturating_sub(self.since) >= bound_ms
    }

    /// Returns the number of dirty bytes that the active side may have now, of `max_bytes`.
    fn allowed(self, now: Millis, max_bytes: u64) -> u64 {
        if self.is_silent(now) {
            return max_bytes;
        }
        let Self { since, bytes, expected_ms, .. } = self;
        let passed = now.saturating_sub(since);
        let start = (max_bytes / 2).saturating_sub(bytes);
        let target = max_bytes - max_bytes / 4;
        match passed.checked_sub(expected_ms) {
            None => start + scaled(target - start, passed, expected_ms),
            Some(_late) => max_bytes - scaled(max_bytes - target, expected_ms, passed),
        }
    }
}

/// Delays caused by the pace since this process took over the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PaceStatus {
    /// Writes that wait for the pace now.
    pub waiting: usize,
    /// Writes that have waited for the pace.
    pub delayed_writes: u64,
    /// Sum of the times that they waited.
    pub delayed_ms: u64,
}

/// The pace of a volume's writes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes that may be written before the dirty bytes are checked again.
    granted: u64,
    /// Bytes granted by the last check.
    granted_at_look: u64,
    /// Time of the last check during this commit.
    looked_at: Option<Millis>,
    running: Option<CommitInProgress>,
    /// The last two commits of full seals.
    last: Option<CommitTime>,
    before: Option<CommitTime>,
    /// True if the previous commit took as long as with an unresponsive store.
    was_silent: bool,
    /// True while [`Action::Pause`](crate::action::Action::Pause) is unanswered.
    is_pausing: bool,
    status: PaceStatus,
}

impl Pace {
    /// Begins the commit of a seal with `bytes` dirty bytes.
    pub(super) fn commit_began(&mut self, bytes: u64, now: Millis) {
        let expected_ms = self.expected_ms(bytes);
        self.running = Some(CommitInProgress { since: now, bytes, expected_ms, is_whole: true });
        (self.granted, self.looked_at) = (0, None);
    }

    /// Continues a commit of `bytes` dirty bytes that another process began.
    pub(super) fn commit_taken_over(&mut self, bytes: u64, now: Millis) {
        self.commit_began(bytes, now);
        self.running = self.running.map(|running| CommitInProgress { is_whole: false, ..running });
    }

    /// Ends the commit: its data is clean. A commit of less than `full_bytes` is no measurement of the store,
    /// and neither is a commit that waited for an unresponsive store, unless the previous commit was as slow.
    pub(super) fn commit_ended(&mut self, full_bytes: u64, now: Millis) {
        let Some(running) = self.running.take() else { return };
        let CommitInProgress { since, bytes, is_whole, .. } = running;
        if !is_whole || bytes < full_bytes.max(1) {
            return;
        }
        let was_silent = std::mem::replace(&mut self.was_silent, running.is_silent(now));
        if was_silent || !self.was_silent {
            self.before = self.last;
            self.last = Some(CommitTime { bytes, ms: now.saturating_sub(since).max(1) });
        }
    }

    /// Ends a commit that cannot complete: its duration is no measurement, and writes are not delayed for it.
    pub(super) fn commit_failed(&mut self) {
        self.running = None;
        (self.granted, self.looked_at) = (0, None);
    }

    /// Returns true if the commit in progress is expected to end within `ms`. One that is late by some time
    /// is expected to take as long again.
    pub(super) fn ends_within(&self, ms: Millis, now: Millis) -> bool {
        let left =
            |running: CommitInProgress| running.expected_ms.abs_diff(now.saturating_sub(running.since));
        self.running.is_some_and(|running| left(running) <= ms)
    }

    /// Returns the expected duration of a commit: one slow commit makes it longer, but only two fast commits
    /// make it shorter.
    fn expected_ms(&self, bytes: u64) -> Millis {
        let expected = match (self.last, self.before) {
            (Some(last), Some(before)) => last.time_of(bytes).max(last.with(before).time_of(bytes)),
            (Some(only), None) => only.time_of(bytes),
            (None, _) => scaled(bytes, 1000, ASSUMED_UPLOAD_BYTES_PER_SECOND),
        };
        expected.max(COMMIT_EXPECTED_AT_LEAST_MS)
    }

    /// Returns true if a write may begin without another check.
    #[inline]
    pub(super) fn has_grant(&self) -> bool {
        self.granted > 0
    }

    /// Takes the bytes of a write that begins.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_sub(bytes);
    }

    /// Returns true if a check may grant bytes, because time has passed since the last check.
    pub(super) fn may_look(&self, now: Millis) -> bool {
        self.looked_at.is_none_or(|looked| looked < now)
    }

    /// Grants the bytes that the active side may hold beyond its dirty bytes and those in flight to it.
    pub(super) fn look(&mut self, dirty_bytes: u64, max_bytes: u64, now: Millis) {
        self.looked_at = Some(now);
        self.granted = match self.running {
            // The grant lasts until the next check, which comes after a pause.
            Some(running) => running.allowed(now + PAUSE_MS, max_bytes).saturating_sub(dirty_bytes),
            None => u64::MAX,
        };
        self.granted_at_look = self.granted;
    }

    /// Returns true if writes began since the last check, so that another check may change the grant.
    pub(super) fn was_used(&self) -> bool {
        self.running.is_some() && self.granted != self.granted_at_look
    }

    /// Notes that a check is pending. Returns true if [`Action::Pause`](crate::action::Action::Pause) is
    /// needed for it.
    pub(super) fn pauses(&mut self) -> bool {
        !std::mem::replace(&mut self.is_pausing, true)
    }

    /// Ends the pause.
    pub(super) fn pause_ended(&mut self) {
        self.is_pausing = false;
    }

    /// Counts a write that waited for the pace since `since` and stops waiting.
    pub(super) fn waited(&mut self, since: Millis, now: Millis) {
        self.status.delayed_writes += 1;
        self.status.delayed_ms += now.saturating_sub(since);
    }

    /// Returns the figures with `waiting` writes waiting.
    pub(super) fn status(&self, waiting: usize) -> PaceStatus {
        PaceStatus { waiting, ..self.status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 4000;

    /// Returns a pace that measured a commit for each of these bytes and durations.
    fn measured(commits: &[(u64, Millis)]) -> Pace {
        let mut pace = Pace::default();
        for &(bytes, ms) in commits {
            pace.commit_began(bytes, 0);
            pace.commit_ended(100, ms);
        }
        pace
    }

    fn allowed(pace: &Pace, now: Millis) -> u64 {
        pace.running.unwrap().allowed(now, MAX)
    }

    #[test]
    fn a_commit_in_time_finds_three_quarters() {
        let mut pace = measured(&[(1000, 1000), (1000, 1000)]);
        pace.commit_began(3000, 10_000);
        let at = [10_000, 11_000, 13_000].map(|now| allowed(&pace, now));
        assert_eq!(at, [0, 1000, 3000], "as fast as the store");
        assert_eq!([16_000, 22_000].map(|now| allowed(&pace, now)), [3500, 3750], "ever slower");
        assert_eq!(allowed(&pace, 10_000 + 8 * 3000), MAX, "the limit stops what comes");
    }

    #[test]
    fn little_dirty_data_is_not_delayed() {
        let mut pace = measured(&[(1000, 60_000)]);
        pace.commit_began(500, 0);
        assert_eq!(allowed(&pace, 0), MAX / 2 - 500);
    }

    #[test]
    fn a_slower_store_is_believed_at_once() {
        let expected = |commits: &[(u64, Millis)]| measured(commits).expected_ms(1000);
        assert_eq!(expected(&[]), COMMIT_EXPECTED_AT_LEAST_MS);
        assert_eq!(expected(&[(1000, 1000), (1000, 3000)]), 3000);
        assert_eq!(expected(&[(1000, 3000), (1000, 1000)]), 2000);
        assert_eq!(expected(&[(1000, 3000), (1000, 1000), (1000, 1000)]), 1000);
        assert_eq!(expected(&[(1000, 1000), (99, 3000)]), 1000, "one of little data");
        let mut assumed = Pace::default();
        assert_eq!(assumed.expected_ms(2 * ASSUMED_UPLOAD_BYTES_PER_SECOND), 2000);
        assumed.commit_began(1000, 0);
        assumed.commit_failed();
        assumed.look(0, MAX, 1);
        assert_eq!(assumed.granted, u64::MAX, "nothing is known of when it comes");
    }

    #[test]
    fn a_late_commit_is_expected_to_take_as_long_again() {
        let mut pace = measured(&[(1000, 1000), (1000, 1000)]);
        assert!(!pace.ends_within(u64::MAX, 0), "none is in progress");
        pace.commit_began(5000, 10_000);
        let ends = [10_000, 12_000, 13_000, 15_000, 17_000, 18_000].map(|now| pace.ends_within(2000, now));
        assert_eq!(ends, [false, false, true, true, true, false]);
    }

    /// Regression: the duration of an outage was taken for the store's rate, and the next commit admitted
    /// one write every few seconds.
    #[test]
    fn an_outage_is_no_rate() {
        let usual = [(1000, 1000), (1000, 1000)];
        let expected = |more: &[(u64, Millis)]| measured(&[&usual, more].concat()).expected_ms(1000);
        assert_eq!(expected(&[(1000, 600_000)]), 1000);
        assert_eq!(expected(&[(1000, 600_000), (1000, 1000)]), 1000);
        assert_eq!(expected(&[(1000, 60_000), (1000, 60_000)]), 60_000, "as slow again");
        let mut resumed = measured(&usual);
        resumed.commit_taken_over(1000, 0);
        resumed.commit_ended(100, 2000);
        assert_eq!(resumed.expected_ms(1000), 1000, "its begin was not seen");
    }

    #[test]
    fn a_grant_is_taken_before_the_next_look() {
        let mut pace = measured(&[(1000, 1000)]);
        pace.commit_began(3000, 0);
        assert!(!pace.has_grant() && pace.may_look(0));
        pace.look(900, MAX, 1000 - PAUSE_MS);
        assert!(!pace.may_look(1000 - PAUSE_MS) && !pace.was_used());
        pace.take(60);
        assert!(pace.has_grant() && pace.was_used());
        pace.take(60);
        assert!(!pace.has_grant() && pace.may_look(1000));
        assert!(pace.pauses() && !pace.pauses(), "one pause at a time");
    }
}
