//! Other volumes on the hosts of a volume: shared deaths, time, its store's failures, the daemon's memory.

use std::sync::Arc;

use holdfast_background::StoreKey;
use holdfast_types::Millis;

use super::World;
use super::client::Stamps;
use crate::host::Access;
use crate::invariant::Invariant;
use crate::shared::{ProcessResources, UPLOAD_BYTES};
use crate::slab::Slab;

/// Time for which a request waits for a silent store.
const REQUEST_MS: Millis = 20_000;
/// Time after a failure for which the volumes of a store may lag: a request that is still waiting, the
/// longest backoff, and commits.
const AFTERMATH_MS: Millis = REQUEST_MS + 20_000;

/// Kinds of store failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outage {
    /// Requests do not reach it, and the sender gets an error at once.
    Unreachable,
    /// The store rejects the credentials.
    Denies,
    /// The store accepts connections but never responds.
    Silent,
}

/// Victims of a death.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Process,
    Host,
}

/// External influences on one volume, and those that it passes to the others.
pub(crate) struct Company {
    /// Resources of each host's process.
    pub(crate) shared: Vec<ProcessResources>,
    pub(crate) store: StoreKey,
    /// Time that must pass for all.
    pub(crate) owed_ms: Millis,
    /// Deaths that the others have not had yet.
    pub(crate) deaths: Vec<(usize, Victim)>,
    pub(crate) outage: Option<Outage>,
    /// Time until which its store's last failure may delay it.
    pub(crate) failing_until: Millis,
    /// Delay of a commit by the other volumes of a host.
    pub(crate) queue_ms: Millis,
    /// True if they are in one bucket.
    pub(crate) shares_bucket: bool,
}

impl Company {
    pub(crate) fn new(shared: Vec<ProcessResources>, store: StoreKey, queue_ms: Millis) -> Self {
        let (deaths, outage) = (Vec::new(), None);
        Self { shared, store, owed_ms: 0, deaths, outage, failing_until: 0, queue_ms, shares_bucket: false }
    }

    /// Creates the company of a volume that shares its bucket with the other volumes.
    pub(crate) fn in_one_bucket(shared: Vec<ProcessResources>) -> Self {
        Self { shares_bucket: true, ..Self::new(shared, StoreKey(0), 0) }
    }
}

impl World {
    /// Joins several volumes; its stamps are distinct from theirs.
    pub(crate) fn join(&mut self, number: u64, company: Company) {
        self.stamps = Stamps::of_volume(number);
        self.rejoin(company);
    }

    /// Joins them again.
    pub(crate) fn rejoin(&mut self, company: Company) {
        self.company = Some(company);
        for here in &mut self.hosts {
            here.access = Some(Access::Shut);
        }
    }

    /// Separates it from the others. Returns their common state.
    pub(crate) fn leave_company(&mut self) -> Company {
        for here in &mut self.hosts {
            here.access = None;
        }
        self.company.take().expect("it is one of several")
    }

    fn company(&mut self) -> &mut Company {
        self.company.as_mut().expect("it is one of several")
    }

    /// Takes the deaths that the others have not had yet.
    pub(crate) fn take_deaths(&mut self) -> Vec<(usize, Victim)> {
        std::mem::take(&mut self.company().deaths)
    }

    /// Clears the deaths of `host`, which all volumes have had.
    pub(crate) fn forget_deaths(&mut self, host: usize) {
        self.company().deaths.retain(|(at, _)| *at != host);
    }

    /// Sets the state of the next process on `host`.
    pub(crate) fn set_shared(&mut self, host: usize, shared: ProcessResources) {
        self.company().shared[host] = shared;
    }

    /// Returns the slab of the current or last process on `host`.
    pub(crate) fn slab(&mut self, host: usize) -> Arc<Slab> {
        Arc::clone(self.company().shared[host].slab.as_ref().expect("volumes in company have a slab"))
    }

    /// Takes the time that must pass for all.
    pub(crate) fn take_owed(&mut self) -> Millis {
        std::mem::take(&mut self.company().owed_ms)
    }

    /// Polls the futures that another volume woke on `host`.
    pub(crate) fn run_woken(&mut self, host: usize) {
        let here = &self.hosts[host];
        let is_woken = here.process.as_ref().is_some_and(|process| process.tasks.is_woken());
        if is_woken && !here.fault.paused {
            self.run_tasks(host);
        }
    }

    /// Returns the resources that a new process on `host` shares.
    pub(super) fn shared(&self, host: usize) -> ProcessResources {
        let company = self.company.as_ref();
        let alone = || {
            if self.terms.has_slab {
                ProcessResources::new(UPLOAD_BYTES)
            } else {
                ProcessResources::for_one_volume()
            }
        };
        company.map_or_else(alone, |company| ProcessResources {
            store: company.store,
            ..company.shared[host].clone()
        })
    }

    pub(super) fn note_company_death(&mut self, host: usize, death: Victim) {
        if let Some(company) = &mut self.company {
            company.deaths.push((host, death));
        }
    }

    pub(super) fn outage(&self) -> Option<Outage> {
        self.company.as_ref().and_then(|company| company.outage)
    }

    /// Returns true if a request sent at `since` is answered by now, or has timed out.
    pub(super) fn is_answered(&self, since: Millis) -> bool {
        self.outage() != Some(Outage::Silent) || since + REQUEST_MS <= self.clock.now()
    }

    /// Makes the store of this volume fail from now on, or work again.
    pub(crate) fn set_outage(&mut self, outage: Option<Outage>) {
        let until = self.clock.now() + AFTERMATH_MS;
        let company = self.company();
        company.outage = outage;
        company.failing_until = until;
    }

    /// Returns true if commits may be late because of the volume's own store.
    pub(super) fn is_store_failing(&self) -> bool {
        self.company
            .as_ref()
            .is_some_and(|company| company.outage.is_some() || self.clock.now() < company.failing_until)
    }

    /// Returns the invariant that a late commit breaks, and its delay by other volumes.
    pub(super) fn lateness_rule(&self) -> (Invariant, Millis) {
        match &self.company {
            Some(company) => (Invariant::StoresAreIndependent, company.queue_ms),
            None => (Invariant::CommittedInTime, 0),
        }
    }
}
