//! Pace of writes while a commit is in progress: they become as slow as the commits before the limit of dirty
//! bytes stops them.
//!
//! The active side may hold so many dirty bytes at a time, from the begin of the seal on:
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
//! *Start* is what makes half of `max_bytes` with the side that is sealed: nothing is delayed below it. The
//! time that the commit is expected to take is its bytes by the rate of the last two, each as long as it
//! took from its seal to its end. So one that comes as expected finds the side at three quarters, its
//! writers as fast as the store, and the next is as large. One that takes longer finds a quarter left, of
//! which ever less may be taken.
//!
//! Owns: the grant, how long commits took, and what waited for it. Does not own: the writes that wait
//! (`volume/requests.rs`), the limit itself.
//! Runs on: the ring thread of the volume.
//! Invariants: a write that the pace delays could be planned but for it; the pace alone never stops writes.

use holdfast_types::Millis;

use crate::limit::{
    ASSUMED_UPLOAD_BYTES_PER_SECOND, COMMIT_EXPECTED_AT_LEAST_MS, NO_PACE_AFTER_MS, NO_PACE_AFTER_TIMES,
    PAUSE_MS,
};

/// A commit: the dirty bytes of its seal, and the time it took from that to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CommitTime {
    bytes: u64,
    ms: Millis,
}

impl CommitTime {
    /// The time that so many bytes take at the same rate.
    fn time_of(self, bytes: u64) -> Millis {
        scaled(bytes, self.ms, self.bytes)
    }

    fn with(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, ms: self.ms + other.ms }
    }
}

/// `value * times / of`, whatever the sizes.
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
    /// This process saw all of it.
    is_whole: bool,
}

impl CommitInProgress {
    /// Returns true if it takes so long that the store counts as one that does not answer.
    fn is_silent(self, now: Millis) -> bool {
        let bound_ms = self.expected_ms.saturating_mul(NO_PACE_AFTER_TIMES).max(NO_PACE_AFTER_MS);
        now.saturating_sub(self.since) >= bound_ms
    }

    /// Dirty bytes that the active side may have now, of `max_bytes`.
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

/// Delays that the pace made since this process took the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PaceStatus {
    /// Writes that wait for it now.
    pub waiting: usize,
    /// Writes that waited for it.
    pub delayed_writes: u64,
    /// Sum of the times that they waited.
    pub delayed_ms: u64,
}

/// The pace of a volume's writes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Bytes that may be written before the dirty bytes are looked at again.
    granted: u64,
    /// Bytes that the last look granted.
    granted_at_look: u64,
    /// Time at which they last were, with this commit in progress.
    looked_at: Option<Millis>,
    running: Option<CommitInProgress>,
    /// The last commit of a full seal, and the one before.
    last: Option<CommitTime>,
    before: Option<CommitTime>,
    /// The commit before took as long as one of a store that does not answer.
    was_silent: bool,
    /// [`Action::Pause`](crate::action::Action::Pause) is not answered yet.
    is_pausing: bool,
    status: PaceStatus,
}

impl Pace {
    /// The commit of a seal of so many dirty bytes begins.
    pub(super) fn commit_began(&mut self, bytes: u64, now: Millis) {
        let expected_ms = self.expected_ms(bytes);
        self.running = Some(CommitInProgress { since: now, bytes, expected_ms, is_whole: true });
        (self.granted, self.looked_at) = (0, None);
    }

    /// A commit of so many dirty bytes that another process began continues.
    pub(super) fn commit_taken_over(&mut self, bytes: u64, now: Millis) {
        self.commit_began(bytes, now);
        self.running = self.running.map(|running| CommitInProgress { is_whole: false, ..running });
    }

    /// Everything of the seal is clean. What commits of less than `full_bytes` take says little of the store.
    /// One that waited for a store that did not answer says nothing of its rate, unless the one before was as
    /// slow.
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

    /// The commit cannot be made: how long it takes is no measure, and nothing is delayed for it.
    pub(super) fn commit_failed(&mut self) {
        self.running = None;
        (self.granted, self.looked_at) = (0, None);
    }

    /// A store that became slower is believed at once, one that became faster after two commits.
    fn expected_ms(&self, bytes: u64) -> Millis {
        let expected = match (self.last, self.before) {
            (Some(last), Some(before)) => last.time_of(bytes).max(last.with(before).time_of(bytes)),
            (Some(only), None) => only.time_of(bytes),
            (None, _) => scaled(bytes, 1000, ASSUMED_UPLOAD_BYTES_PER_SECOND),
        };
        expected.max(COMMIT_EXPECTED_AT_LEAST_MS)
    }

    /// Returns true if a write may begin without another look.
    #[inline]
    pub(super) fn has_grant(&self) -> bool {
        self.granted > 0
    }

    /// A write begins.
    #[inline]
    pub(super) fn take(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_sub(bytes);
    }

    /// Returns true if a look may grant something: time has passed since the last.
    pub(super) fn may_look(&self, now: Millis) -> bool {
        self.looked_at.is_none_or(|looked| looked < now)
    }

    /// Grants what the active side may hold beyond its dirty bytes and those that are being written to it.
    pub(super) fn look(&mut self, dirty_bytes: u64, max_bytes: u64, now: Millis) {
        self.looked_at = Some(now);
        self.granted = match self.running {
            // The next look comes after a pause.
            Some(running) => running.allowed(now + PAUSE_MS, max_bytes).saturating_sub(dirty_bytes),
            None => u64::MAX,
        };
        self.granted_at_look = self.granted;
    }

    /// Returns true if writes began since the last look, and another one may tell something.
    pub(super) fn was_used(&self) -> bool {
        self.running.is_some() && self.granted != self.granted_at_look
    }

    /// A look is to follow. Returns true if [`Action::Pause`](crate::action::Action::Pause) is to be asked
    /// for.
    pub(super) fn pauses(&mut self) -> bool {
        !std::mem::replace(&mut self.is_pausing, true)
    }

    /// The pause is over.
    pub(super) fn pause_ended(&mut self) {
        self.is_pausing = false;
    }

    /// A write that began to wait for the pace at `since` does no longer.
    pub(super) fn waited(&mut self, since: Millis, now: Millis) {
        self.status.delayed_writes += 1;
        self.status.delayed_ms += now.saturating_sub(since);
    }

    /// Figures while so many writes wait.
    pub(super) fn status(&self, waiting: usize) -> PaceStatus {
        PaceStatus { waiting, ..self.status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 4000;

    /// A pace that measured a commit of each of these bytes and times.
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

    /// Found by reading: the time of an outage was taken for the store's rate, and the next commit let a
    /// write in every few seconds.
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
