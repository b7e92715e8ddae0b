//! The end of some runs: the volume continues as a fork of one of its snapshots, for some generations.

use super::Schedule;
use crate::invariant::Invariant;
use crate::rng::Rng;

/// Maximum generations.
const GENERATIONS: usize = 3;
/// Steps of each.
const STEPS: u64 = 400;

impl Schedule {
    /// Forks the volume, writes to the fork, and repeats this with the fork.
    pub(super) fn continue_in_forks(&mut self) {
        let mut rng = Rng::new(!self.seed);
        for _ in 0..=rng.below(GENERATIONS) {
            self.world.check_fork_during_removal(&mut rng);
            self.world.continue_as_fork(&mut rng);
            (self.home, self.is_leaving, self.seen_epoch) = (0, false, None);
            for number in self.steps_taken..self.steps_taken + STEPS {
                self.step(number);
            }
            let left = (0..3).any(|_| self.read_and_leave());
            Invariant::ComesToRest.check(left, || "the host of a fork is fenced again and again".into());
            self.settle_control();
            self.world.check_store(self.home);
            self.world.check_snapshots();
            self.world.check_whole();
            self.world.check_ancestors();
        }
    }
}
