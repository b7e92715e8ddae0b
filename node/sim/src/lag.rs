//! A host's uncommitted client writes, against the clock.
//!
//! Owns: the ages of those writes, and the limit of invariant 14 for them. Used in timely worlds only.

use std::collections::VecDeque;

use holdfast_engine::limit::PREPARED_MS;
use holdfast_types::Millis;

/// Maximum duration of half a job in a timely world: until it is done, and until the answer is received.
pub(crate) const JOB_MS: Millis = 50;
/// Maximum duration of a commit there: an eviction in progress, a round that waits for another, the upload
/// and the record are at most this many sequential halves of jobs.
const COMMIT_MS: Millis = 50 * JOB_MS;
/// Maximum interval between two ticks of an engine there.
const TICK_MS: Millis = 400;

/// One host's lag.
#[derive(Default)]
pub(crate) struct Lag {
    /// Time of its engine's last tick.
    ticked: Millis,
    /// End times of the uncommitted writes, oldest first: by the model's clock, and by the virtual one.
    uncommitted: VecDeque<(u64, Millis)>,
    /// Time until which its process did not run, or had not read the log.
    down_until: Millis,
    /// Time at which its age limit was last set.
    configured: Millis,
    /// Time until which the last cut for which it was prepared may defer the seal of overdue data.
    may_defer_until: Millis,
    /// Time until which a cut deferred it.
    deferred_until: Millis,
}

impl Lag {
    /// Notes a tick of the engine.
    pub(crate) fn note_tick(&mut self, now: Millis) {
        self.ticked = now;
    }

    pub(crate) fn is_tick_due(&self, now: Millis) -> bool {
        self.ticked + TICK_MS <= now
    }

    /// Notes that a write ended, at this time of the model's clock.
    pub(crate) fn note_write(&mut self, ended: u64, now: Millis) {
        self.uncommitted.push_back((ended, now));
    }

    /// Notes a commit of the writes that had ended by this time of the model's clock.
    pub(crate) fn note_commit(&mut self, at: u64) {
        self.uncommitted.retain(|(ended, _)| *ended > at);
    }

    /// Notes a change of the age limit: older data must be committed now.
    pub(crate) fn note_age_limit(&mut self, now: Millis) {
        self.configured = now;
    }

    /// Drops all writes.
    pub(crate) fn clear(&mut self) {
        self.uncommitted.clear();
    }

    /// Notes that the process does not run now, or has not read the log.
    pub(crate) fn note_down(&mut self, now: Millis) {
        self.down_until = now;
    }

    /// Notes that the volume is prepared for a cut from now on. Requests to prepare are not repeated here.
    pub(crate) fn note_prepared(&mut self, now: Millis) {
        self.may_defer_until = now + PREPARED_MS;
    }

    /// Notes that it is still prepared now.
    pub(crate) fn note_deferral(&mut self, now: Millis) {
        self.deferred_until = now.min(self.may_defer_until);
    }

    /// Returns the end of the oldest write, and the deadline of its commit, with the age limit
    /// `max_age_ms`. After a takeover the commit of the dead process comes first.
    pub(crate) fn oldest_write(&self, max_age_ms: Millis) -> Option<(Millis, Millis)> {
        let (_, ended) = self.uncommitted.front()?;
        let begun_by = (ended + max_age_ms).max(self.configured).max(self.deferred_until);
        let due = begun_by.max(self.down_until + COMMIT_MS);
        Some((*ended, due + TICK_MS + JOB_MS + COMMIT_MS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prepared_volume_may_commit_later_for_a_limited_time() {
        let mut lag = Lag::default();
        lag.note_write(1, 0);
        let due = |lag: &Lag| lag.oldest_write(2000).map(|(_, due)| due);
        let usual = due(&lag);
        lag.note_prepared(1000);
        assert_eq!(due(&lag), usual, "not unless the cut lasts that long");
        lag.note_deferral(1500);
        assert_eq!(due(&lag), usual, "the age limit is later");
        lag.note_deferral(30_000);
        assert_eq!(due(&lag), usual.map(|due| due - COMMIT_MS + 1000 + PREPARED_MS));
    }
}
