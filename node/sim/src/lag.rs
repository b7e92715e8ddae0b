//! Writes of a host's client that no commit captured yet, against the clock.
//!
//! Owns: the ages of those writes, and the limit of invariant 14 for them. Used in timely worlds only.

use std::collections::VecDeque;

use holdfast_types::Millis;

/// The longest that half a job takes in a timely world: until it is done, and until that is heard.
pub(crate) const JOB_MS: Millis = 50;
/// The longest that a commit takes there: an eviction in progress, a round that waits for another, the upload
/// and the record are at most so many halves of jobs, one after the other.
const COMMIT_MS: Millis = 50 * JOB_MS;
/// The longest between two ticks of an engine there.
const TICK_MS: Millis = 400;

/// One host's lag.
#[derive(Default)]
pub(crate) struct Lag {
    /// Time that its engine last got.
    ticked: Millis,
    /// End times of the writes that no commit captured yet, oldest first: by the model's clock, and by the
    /// virtual one.
    uncommitted: VecDeque<(u64, Millis)>,
    /// Time until which its process did not run, or had not reached the log.
    down_until: Millis,
    /// Time at which its age limit was last set.
    configured: Millis,
}

impl Lag {
    /// The engine gets the time.
    pub(crate) fn tick(&mut self, now: Millis) {
        self.ticked = now;
    }

    pub(crate) fn is_tick_due(&self, now: Millis) -> bool {
        self.ticked + TICK_MS <= now
    }

    /// A write ended, at this time of the model's clock.
    pub(crate) fn wrote(&mut self, ended: u64, now: Millis) {
        self.uncommitted.push_back((ended, now));
    }

    /// A commit captured what had ended by this time of the model's clock.
    pub(crate) fn committed(&mut self, at: u64) {
        self.uncommitted.retain(|(ended, _)| *ended > at);
    }

    /// The age limit is set: what is older than it from now on is to be committed now.
    pub(crate) fn configured(&mut self, now: Millis) {
        self.configured = now;
    }

    /// Nothing is to be committed.
    pub(crate) fn clear(&mut self) {
        self.uncommitted.clear();
    }

    /// Notes that the process does not run now, or has not reached the log.
    pub(crate) fn down(&mut self, now: Millis) {
        self.down_until = now;
    }

    /// The oldest write's end, and when it is to be in a commit at the latest, with dirty data of
    /// `max_age_ms`. After a takeover the commit that the dead process had begun comes first.
    pub(crate) fn oldest(&self, max_age_ms: Millis) -> Option<(Millis, Millis)> {
        let (_, ended) = self.uncommitted.front()?;
        let due = (ended + max_age_ms).max(self.configured).max(self.down_until + COMMIT_MS);
        Some((*ended, due + TICK_MS + JOB_MS + COMMIT_MS))
    }
}
