//! Requests and jobs that fail, and how often; and which of them ever did.
//!
//! Owns: the fate of each request to the store and of each job of a disk. A check that holds only while
//! something never failed asks here.

use crate::calls::StoreAsk;
use crate::rng::Rng;

/// Frequency of faults: once in so many times, `None` never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A local read, write or sync of the map.
    pub local: Option<u64>,
    /// A sync of a side: what it covered is lost at the next power cut, or not.
    pub sync: Option<u64>,
    /// A create.
    pub create: Option<u64>,
    /// Any other request to the store that changes something.
    pub store: Option<u64>,
    /// A request to the store that reads.
    pub read: Option<u64>,
    /// A LIST shows what was there some time ago.
    pub stale_list: Option<u64>,
}

/// Fates of a request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFate {
    Fine,
    /// It has no effect, and the sender knows.
    Before,
    /// It has its effect, and the answer is lost.
    ReplyLost,
    /// It is lost before it arrives; the sender does not know.
    RequestLost,
    /// It has its effect when its sender no longer waits.
    Late,
    /// Of a create: a retry below met its own success.
    MetItself,
}

/// The failures of one world.
pub(crate) struct Failures {
    faults: Faults,
    disks_are_sound: bool,
    lists_are_sound: bool,
    denies_deletes: bool,
    every_write_arrives: bool,
}

impl Failures {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            faults,
            disks_are_sound: spares_disks(&faults),
            lists_are_sound: faults.stale_list.is_none(),
            denies_deletes: false,
            every_write_arrives: false,
        }
    }

    /// From here on things fail so often.
    pub(crate) fn set(&mut self, faults: Faults) {
        self.disks_are_sound &= spares_disks(&faults);
        self.faults = faults;
    }

    /// A disk has failed.
    pub(crate) fn disk_failed(&mut self) {
        self.disks_are_sound = false;
    }

    /// No disk ever failed.
    pub(crate) fn disks_are_sound(&self) -> bool {
        self.disks_are_sound
    }

    /// LIST always showed what was there.
    pub(crate) fn lists_are_sound(&self) -> bool {
        self.lists_are_sound
    }

    /// The store denies every deletion, and does not change its mind.
    pub(crate) fn deny_deletes(&mut self, denies: bool) {
        self.denies_deletes = denies;
    }

    pub(crate) fn denies(&self, ask: &StoreAsk) -> bool {
        self.denies_deletes && matches!(ask, StoreAsk::Delete { .. })
    }

    /// From now on what a dying process had submitted is written and not synced.
    pub(crate) fn let_every_write_arrive(&mut self) {
        self.every_write_arrives = true;
    }

    pub(crate) fn every_write_arrives(&self) -> bool {
        self.every_write_arrives
    }

    /// True if a local read, write or sync of the map fails now.
    pub(crate) fn local(&self, rng: &mut Rng) -> bool {
        strikes(rng, self.faults.local)
    }

    /// The same of a sync of a side.
    pub(crate) fn sync(&self, rng: &mut Rng) -> bool {
        strikes(rng, self.faults.sync)
    }

    /// Changes of the store that an answer to `ask` does not show.
    pub(crate) fn behind(&self, ask: &StoreAsk, rng: &mut Rng) -> u64 {
        let lists = matches!(ask, StoreAsk::List { .. });
        if lists && strikes(rng, self.faults.stale_list) { 1 + rng.below(12) as u64 } else { 0 }
    }

    pub(crate) fn fate(&self, ask: &StoreAsk, rng: &mut Rng) -> RequestFate {
        use RequestFate::{Before, Late, MetItself, ReplyLost, RequestLost};
        let (once_in, fates): (_, &[RequestFate]) = match ask {
            StoreAsk::Create { .. } => {
                (self.faults.create, &[Before, ReplyLost, RequestLost, Late, MetItself])
            }
            StoreAsk::PutSegment { .. } | StoreAsk::Delete { .. } => {
                (self.faults.store, &[Before, ReplyLost, RequestLost, Late])
            }
            StoreAsk::Get { .. } | StoreAsk::GetRange { .. } | StoreAsk::List { .. } => {
                (self.faults.read, &[Before, ReplyLost])
            }
        };
        if strikes(rng, once_in) { *rng.pick(fates) } else { RequestFate::Fine }
    }
}

fn spares_disks(faults: &Faults) -> bool {
    faults.local.is_none() && faults.sync.is_none()
}

fn strikes(rng: &mut Rng, once_in: Option<u64>) -> bool {
    once_in.is_some_and(|times| rng.once_in(times))
}
