//! A scenario in progress: its steps on the driven host, each followed by a check for the death.

use holdfast_engine::event::Op;
use holdfast_types::SectorRange;

use super::watch::has_ended_process;
use crate::drive;
use crate::world::World;

/// `Err` is the host whose process was ended.
pub(super) type Played = Result<(), usize>;

/// A scenario in progress, on the driven host.
pub(super) struct Stage<'a> {
    pub(super) world: &'a mut World,
    pub(super) host: usize,
}

impl Stage<'_> {
    pub(super) fn check_alive(&self) -> Played {
        if has_ended_process() || self.world.failed_host().is_some() { Err(self.host) } else { Ok(()) }
    }

    pub(super) fn step(&mut self) -> Played {
        drive::step(self.world, self.host);
        self.check_alive()
    }

    pub(super) fn run_until(&mut self, done: impl Fn(&World) -> bool) -> Played {
        for _ in 0..2000 {
            if done(self.world) {
                return Ok(());
            }
            self.step()?;
        }
        panic!("the scenario makes no progress: {:?}", self.world.status(self.host));
    }

    /// Runs until `done`, without completing object reads.
    pub(super) fn run_until_without_reads(&mut self, done: impl Fn(&World) -> bool) -> Played {
        for _ in 0..2000 {
            if done(self.world) {
                return Ok(());
            }
            match self.world.first_due_without_reads(self.host) {
                Some(index) => self.world.step_job(self.host, index),
                None => self.world.tick(self.host, 500),
            }
            self.check_alive()?;
        }
        panic!("the scenario makes no progress: {:?}", self.world.status(self.host));
    }

    /// Evicts all data from the sides.
    pub(super) fn evict_all(&mut self) -> Played {
        let host = self.host;
        self.world.limit_cache(0);
        self.run_until(|world| world.held_sectors(host) == 0)?;
        self.world.limit_cache(100);
        Ok(())
    }

    pub(super) fn issue(&mut self, requests: &[(Op, u64, u64)]) -> Played {
        let host = self.host;
        for (op, start, sectors) in requests {
            self.run_until(|world| world.is_ready(host))?;
            self.world.request(host, *op, SectorRange::new(*start, *sectors)).expect("the device has room");
            self.check_alive()?;
        }
        Ok(())
    }

    pub(super) fn snapshot(&mut self) -> Played {
        self.world.request_snapshot(self.host, false);
        self.check_alive()
    }

    /// Runs the control plane until `done`.
    pub(super) fn run_control_until(&mut self, done: impl Fn(&World) -> bool) -> Played {
        while !done(self.world) {
            assert!(!self.world.control_is_idle(), "the control plane has ended");
            self.world.step_control();
            self.check_alive()?;
        }
        Ok(())
    }

    /// Runs the control plane to its end.
    pub(super) fn end_control(&mut self) -> Played {
        self.run_control_until(World::control_is_idle)
    }

    pub(super) fn grow(&mut self, sectors: u64) -> Played {
        self.world.grow(self.host, sectors);
        self.check_alive()
    }

    pub(super) fn run_until_idle(&mut self) -> Played {
        let host = self.host;
        self.run_until(|world| drive::is_idle(world, host))
    }

    pub(super) fn complete(&mut self, requests: &[(Op, u64, u64)]) -> Played {
        self.issue(requests)?;
        self.run_until_idle()
    }

    pub(super) fn detach(&mut self) -> Played {
        while self.world.has_device(self.host) {
            self.world.begin_detach(self.host);
            self.check_alive()?;
            self.step()?;
        }
        Ok(())
    }
}
