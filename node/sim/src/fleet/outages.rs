//! Stores that fail for a long time, one by one.

use super::{STORES, store_of};
use crate::rng::Rng;
use crate::schedule::Schedule;
use crate::world::Outage;

/// Mean number of turns before a store fails, and before it recovers.
const TURNS_TO_FAILURE: u64 = 40;
const TURNS_TO_RECOVERY: u64 = 60;

/// Outages of stores, and their kinds.
pub(super) struct Outages {
    failing: [Option<Outage>; STORES],
    kinds: &'static [Outage],
}

impl Outages {
    pub(super) fn new(kinds: &'static [Outage]) -> Self {
        Self { failing: [None; STORES], kinds }
    }

    /// Lets a store begin to fail, or recover. One store always answers.
    pub(super) fn step(&mut self, rng: &mut Rng, volumes: &mut [Schedule]) {
        let store = rng.below(STORES);
        let outage = match self.failing[store] {
            Some(_) if rng.once_in(TURNS_TO_RECOVERY) => None,
            None if rng.once_in(TURNS_TO_FAILURE)
                && self.failing.iter().filter(|failing| failing.is_none()).count() > 1 =>
            {
                Some(*rng.pick(self.kinds))
            }
            unchanged => unchanged,
        };
        if outage != self.failing[store] {
            self.set(store, outage, volumes);
        }
    }

    /// Lets all stores recover.
    pub(super) fn end(&mut self, volumes: &mut [Schedule]) {
        for store in 0..STORES {
            self.set(store, None, volumes);
        }
    }

    fn set(&mut self, store: usize, outage: Option<Outage>, volumes: &mut [Schedule]) {
        self.failing[store] = outage;
        for (_, schedule) in volumes.iter_mut().enumerate().filter(|(volume, _)| store_of(*volume) == store) {
            schedule.world.set_outage(outage);
        }
    }
}
