//! Virtual time: it passes between steps, and in a timely world every job is short.

use holdfast_engine::snapshot::CutAnswer;
use holdfast_types::Millis;

use super::World;
use crate::lag::JOB_MS;

impl World {
    /// Lets time pass on every host.
    pub(super) fn pass_time(&mut self, passed: Millis) {
        match &mut self.company {
            Some(company) => company.owed_ms += passed,
            None => self.pass_volume_time(passed),
        }
    }

    /// Lets time pass for this volume alone.
    pub(crate) fn pass_volume_time(&mut self, passed: Millis) {
        let end = self.clock.now() + passed;
        if !self.terms.timely {
            return self.clock.set(end);
        }
        while self.clock.now() < end {
            self.clock.set((self.clock.now() + JOB_MS).min(end));
            for host in 0..self.hosts.len() {
                if self.hosts[host].lag.is_tick_due(self.clock.now()) {
                    self.send_tick(host);
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
        (0..jobs.len())
            .find(|index| jobs[*index].since + JOB_MS <= self.clock.now() && self.is_due(host, *index))
    }

    /// Checks invariant 14: if this host was lost now, the store would have all but the last writes.
    fn check_age(&mut self) {
        let (invariant, queue_ms) = self.lateness_rule();
        let is_store_failing = self.is_store_failing();
        for here in
            self.hosts.iter_mut().filter(|host| host.device.as_ref().is_some_and(|device| device.ready))
        {
            let volume = here.process.as_ref().and_then(|process| process.volume.as_ref());
            if volume.is_none_or(|volume| volume.status().committed.is_none()) {
                here.lag.note_down(self.clock.now());
            }
            // A write captured by its seal before the client got the answer counts as younger than the seal.
            if volume.is_some_and(|volume| volume.status().dirty_bytes == 0) {
                here.lag.clear();
            }
            if matches!(here.snapshots.cut, Some((_, Some(CutAnswer::Prepared)))) {
                here.lag.note_deferral(self.clock.now());
            }
            let oldest = here.lag.oldest_write(here.settings.max_age_ms).filter(|_| !is_store_failing);
            let Some((ended, due)) = oldest else { continue };
            invariant.check(self.clock.now() <= due + queue_ms, || {
                format!(
                    "a write that ended {} ms ago is in no commit of {} yet",
                    self.clock.now() - ended,
                    self.store.volume()
                )
            });
        }
    }
}
