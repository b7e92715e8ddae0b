//! Failing requests and jobs, with their frequency and history.
//!
//! Owns: the fate of each request to the store and of each job of a disk. Checks that hold only if a kind
//! of failure never happened query it.

use crate::calls::StoreCall;
use crate::rng::Rng;
use crate::strike::Strikes;

/// Frequency of faults: once in this many times, `None` never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A local read, write or sync of the map.
    pub local: Option<u64>,
    /// A sync of a side: the next power cut may lose the data it covered.
    pub sync: Option<u64>,
    /// A create.
    pub create: Option<u64>,
    /// Any other request that changes the store.
    pub store: Option<u64>,
    /// A request that reads the store.
    pub read: Option<u64>,
    /// A LIST that shows an older state.
    pub stale_list: Option<u64>,
}

/// Fates of a request to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RequestFate {
    /// The store executes the request and answers.
    Answered,
    /// The request has no effect, and the sender gets an error.
    Rejected,
    /// The store executes the request, but the answer is lost.
    ReplyLost,
    /// The request is lost before it arrives, and the sender gets no answer.
    RequestLost,
    /// The store executes the request after its sender stopped waiting.
    Late,
    /// A create whose internal retry found its own success.
    FoundItself,
}

/// The failures of one world.
pub(crate) struct Failures {
    faults: Faults,
    disks_are_sound: bool,
    lists_are_sound: bool,
    denies_deletes: bool,
    every_write_arrives: bool,
    /// Deliberate failures of local writes.
    pub(crate) strikes: Strikes,
}

impl Failures {
    pub(crate) fn new(faults: Faults) -> Self {
        Self {
            faults,
            disks_are_sound: spares_disks(&faults),
            lists_are_sound: faults.stale_list.is_none(),
            denies_deletes: false,
            every_write_arrives: false,
            strikes: Strikes::default(),
        }
    }

    /// Sets the frequency of faults from here on.
    pub(crate) fn set(&mut self, faults: Faults) {
        self.disks_are_sound &= spares_disks(&faults);
        self.faults = faults;
    }

    /// Notes that a disk has failed.
    pub(crate) fn note_disk_failure(&mut self) {
        self.disks_are_sound = false;
    }

    /// Returns true if no disk ever failed.
    pub(crate) fn disks_are_sound(&self) -> bool {
        self.disks_are_sound
    }

    /// Returns true if LIST always showed the current state.
    pub(crate) fn lists_are_sound(&self) -> bool {
        self.lists_are_sound
    }

    /// Makes the store permanently deny every deletion.
    pub(crate) fn deny_deletes(&mut self, denies: bool) {
        self.denies_deletes = denies;
    }

    pub(crate) fn denies(&self, call: &StoreCall) -> bool {
        self.denies_deletes && matches!(call, StoreCall::Delete { .. })
    }

    /// From now on, submitted writes of a dying process are stored but not synced.
    pub(crate) fn let_every_write_arrive(&mut self) {
        self.every_write_arrives = true;
    }

    pub(crate) fn every_write_arrives(&self) -> bool {
        self.every_write_arrives
    }

    /// Returns true if the next local read, write or sync of the map fails.
    pub(crate) fn local_fails(&self, rng: &mut Rng) -> bool {
        is_drawn(rng, self.faults.local)
    }

    /// Returns true if the next sync of a side fails.
    pub(crate) fn sync_fails(&self, rng: &mut Rng) -> bool {
        is_drawn(rng, self.faults.sync)
    }

    /// Returns the number of recent changes of the store that the answer to `call` omits.
    pub(crate) fn list_lag(&self, call: &StoreCall, rng: &mut Rng) -> u64 {
        let lists = matches!(call, StoreCall::List { .. });
        if lists && is_drawn(rng, self.faults.stale_list) { 1 + rng.below(12) as u64 } else { 0 }
    }

    pub(crate) fn fate(&self, call: &StoreCall, rng: &mut Rng) -> RequestFate {
        use RequestFate::{FoundItself, Late, Rejected, ReplyLost, RequestLost};
        let (once_in, fates): (_, &[RequestFate]) = match call {
            StoreCall::Create { .. } => {
                (self.faults.create, &[Rejected, ReplyLost, RequestLost, Late, FoundItself])
            }
            StoreCall::PutSegment { .. } | StoreCall::Delete { .. } => {
                (self.faults.store, &[Rejected, ReplyLost, RequestLost, Late])
            }
            StoreCall::Get { .. } | StoreCall::GetRange { .. } | StoreCall::List { .. } => {
                (self.faults.read, &[Rejected, ReplyLost])
            }
        };
        if is_drawn(rng, once_in) { *rng.pick(fates) } else { RequestFate::Answered }
    }
}

fn spares_disks(faults: &Faults) -> bool {
    faults.local.is_none() && faults.sync.is_none()
}

fn is_drawn(rng: &mut Rng, once_in: Option<u64>) -> bool {
    once_in.is_some_and(|times| rng.once_in(times))
}
