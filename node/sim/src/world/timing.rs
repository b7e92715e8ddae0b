//! Virtual time: it passes between steps, and in a timely world no job takes long.

use std::sync::atomic::Ordering;

use holdfast_types::Millis;

use super::World;

/// The longest that half a job takes in a timely world: until it is done, and until that is heard.
pub(super) const JOB_MS: Millis = 50;
/// The longest that a commit takes there: an eviction in progress, a round that waits for another, the upload
/// and the record are at most so many halves of jobs, one after the other.
const COMMIT_MS: Millis = 50 * JOB_MS;
/// The longest between two ticks of an engine there.
const TICK_MS: Millis = 400;

impl World {
    /// Time passes on every host.
    pub(super) fn pass(&mut self, passed: Millis) {
        match &mut self.company {
            Some(company) => company.owed += passed,
            None => self.pass_here(passed),
        }
    }

    /// The same, of this volume alone.
    pub(crate) fn pass_here(&mut self, passed: Millis) {
        if !self.timely {
            self.now += passed;
            return self.clock.store(self.now, Ordering::Relaxed);
        }
        let end = self.now + passed;
        while self.now < end {
            self.now = (self.now + JOB_MS).min(end);
            self.clock.store(self.now, Ordering::Relaxed);
            for host in 0..self.hosts.len() {
                if self.hosts[host].ticked + TICK_MS <= self.now {
                    self.tell_time(host);
                }
                while let Some(index) = self.first_overdue(host) {
                    self.step_job(host, index);
                }
            }
        }
        self.check_age();
    }

    fn first_overdue(&self, host: usize) -> Option<usize> {
        let jobs = &self.hosts[host].process.as_ref()?.jobs;
        (0..jobs.len()).find(|index| jobs[*index].since + JOB_MS <= self.now && self.is_due(host, *index))
    }

    /// Invariant 14: were this host lost now, the store would hold all but the last writes. After a takeover
    /// the commit that the dead process had begun comes first.
    fn check_age(&mut self) {
        let (invariant, queue_ms) = self.in_time();
        let is_store_failing = self.is_store_failing();
        for here in
            self.hosts.iter_mut().filter(|host| host.device.as_ref().is_some_and(|device| device.ready))
        {
            let volume = here.process.as_ref().and_then(|process| process.volume.as_ref());
            if volume.is_none_or(|volume| volume.status().committed.is_none()) {
                here.away_until = self.now;
            }
            // A write that its seal captured before the client heard of it counts as younger than the seal.
            if volume.is_some_and(|volume| volume.status().dirty_bytes == 0) {
                here.uncommitted.clear();
            }
            let Some((_, ended)) = here.uncommitted.front().filter(|_| !is_store_failing) else { continue };
            let due = (ended + self.limits.max_age_ms).max(here.away_until + COMMIT_MS);
            let most = due + TICK_MS + JOB_MS + COMMIT_MS + queue_ms;
            invariant.check(self.now <= most, || {
                format!(
                    "a write that ended {} ms ago is in no commit of {} yet",
                    self.now - ended,
                    self.store.volume()
                )
            });
        }
    }
}
