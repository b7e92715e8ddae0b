//! A schedule that shares its hosts with others.

use super::{PATIENCE, Schedule};
use crate::profile::{Deaths, FaultRates};

/// One in this many steps during the creation of a record ends in the death of the process.
const STEPS_PER_CREATE_DEATH: u64 = 25;

impl Schedule {
    /// Joins `volumes` schedules that share their hosts: each causes a share of their common faults.
    pub(crate) fn join_crowd(&mut self, volumes: u64) {
        self.crowd = volumes;
        let Deaths { kill, kill_inside, lose_host, .. } = &mut self.deaths;
        let FaultRates { cut_off, pause, fill, slow, .. } = &mut self.fault_rates;
        for often in [kill, kill_inside, lose_host, cut_off, pause, fill, slow] {
            *often = often.map(|times| times * volumes);
        }
    }

    /// Returns the host that is to serve the volume.
    pub(crate) fn home(&self) -> usize {
        self.home
    }

    pub(super) fn roll_death_during_create(&mut self) -> bool {
        let times = STEPS_PER_CREATE_DEATH * self.crowd;
        self.rng().once_in(times)
    }

    /// Begins to leave every host, without further failures.
    pub(crate) fn begin_leaving(&mut self) {
        self.end_failures();
        self.is_leaving = true;
    }

    /// Takes a step towards leaving; `number` counts them.
    pub(crate) fn leave_step(&mut self, number: u32) {
        if number > PATIENCE {
            self.fail_as_stuck();
        }
        self.is_leaving = true;
        for host in 0..self.world.hosts.len() {
            if host != self.home && !self.world.hosts[host].fault.paused {
                self.world.begin_detach(host);
            }
        }
        self.settle_step();
    }

    /// Returns true if no host serves the volume, or is to serve it again.
    pub(crate) fn has_left(&self) -> bool {
        self.world
            .hosts
            .iter()
            .all(|host| host.process.is_none() && host.device.is_none() && !host.tmpfs.has_map())
    }
}
