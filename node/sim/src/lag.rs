//! A host's uncommitted client writes, against the clock.
//!
//! Owns: the ages of those writes, and the limit of invariant 14 for them. Used in timely worlds only.

use std::collections::VecDeque;

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

    /// Returns the end of the oldest write, and the deadline of its commit, with the age limit
    /// `max_age_ms`. After a takeover the commit of the dead process comes first.
    pub(crate) fn oldest_write(&self, max_age_ms: Millis) -> Option<(Millis, Millis)> {
        let (_, ended) = self.uncommitted.front()?;
        let due = (ended + max_age_ms).max(self.configured).max(self.down_until + COMMIT_MS);
        Some((*ended, due + TICK_MS + JOB_MS + COMMIT_MS))
    }
}
