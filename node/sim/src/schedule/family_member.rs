//! A schedule of one volume of a family.

use std::rc::Rc;

use holdfast_types::VolumeId;

use super::Schedule;
use crate::expect::CapturedContent;
use crate::profile::Profile;
use crate::trace::Trace;

impl Schedule {
    /// Creates a volume that is to be a fork in the same bucket. It has no hosts until it begins its life.
    pub(crate) fn create_fork(&self, volume: VolumeId, seed: u64, profile: Profile, story: usize) -> Self {
        let mut world = self.world.create_fork(volume, seed, profile.faults());
        world.trace = Trace::new(story);
        Self { fua: self.fua, ..Self::with_world(world, seed, profile) }
    }

    /// Begins its life after the fork was created from a snapshot that captured `cut`.
    pub(crate) fn begin_life(&mut self, sectors: u64, cut: &Rc<CapturedContent>) {
        self.world.begin_life(sectors, cut);
        let hosts = self.world.hosts.len();
        self.home = self.rng().below(hosts);
    }

    /// Runs some steps of the control plane.
    pub(crate) fn step_control(&mut self, steps: usize) {
        (0..steps).for_each(|_| self.world.step_control());
    }

    /// Checks the volume, which has left every host and is alone: reads it at home, from the store alone,
    /// and on another host.
    pub(crate) fn check_life(&mut self) {
        self.end_failures();
        self.read_everywhere();
        self.world.check_snapshots();
        self.world.check_whole();
    }

    /// Ends all failures, and completes the operation of the control plane.
    pub(crate) fn end_control(&mut self) {
        self.end_failures();
        self.settle_control();
    }
}
