//! Access of tests to a world.

use holdfast_engine::action::Action;
use holdfast_engine::settings::Durability;
use holdfast_engine::volume::{Status, Volume};
use holdfast_format::index::Run;
use holdfast_types::key::ObjectKey;

use super::{Faults, World};
use crate::calls::{Ask, Call, StoreAsk};
use crate::process::What;
use crate::rng::Rng;

impl World {
    /// The figures of the process on `host`; `None` when none runs.
    pub fn status(&self, host: usize) -> Option<Status> {
        self.hosts[host].process.as_ref().and_then(|process| process.volume.as_ref()).map(Volume::status)
    }

    /// Actions of the engine on `host` that its own thread has not completed.
    pub fn jobs(&self, host: usize) -> impl Iterator<Item = &Action> {
        self.hosts[host].process.iter().flat_map(|process| &process.jobs).filter_map(|job| match &job.what {
            What::Action(action) => Some(action),
            What::Call(_) => None,
        })
    }

    /// True if a create of a log record of `host` is in flight, or its answer.
    pub fn creates_a_record(&self, host: usize) -> bool {
        let mut jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        jobs.any(|job| match &job.what {
            What::Call(call) => matches!(call.ask, Ask::Store(StoreAsk::Create { .. })),
            What::Action(_) => false,
        })
    }

    /// True if the process on `host` has anything to do.
    pub fn is_busy(&self, host: usize) -> bool {
        self.hosts[host].process.as_ref().is_some_and(|process| !process.jobs.is_empty())
    }

    /// Describes the jobs that the process on `host` waits for.
    pub(crate) fn describe_jobs(&self, host: usize) -> String {
        let jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        let words = jobs.map(|job| match &job.what {
            What::Action(action) => format!("{action:?}"),
            What::Call(call) => format!("{:?}", call.ask),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// True if a record of the process on `host` is in flight.
    pub(crate) fn is_creating(&self, host: usize) -> bool {
        let jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        jobs.into_iter().any(|job| match &job.what {
            What::Call(call) => matches!(call.ask, Ask::Store(StoreAsk::Create { .. })),
            What::Action(_) => false,
        })
    }

    /// Mean number of turns that the job at `index` lets pass before it proceeds; `None` if it takes the
    /// first.
    pub(crate) fn turns(&self, host: usize, index: usize) -> Option<u64> {
        let here = &self.hosts[host];
        let job = here.process.as_ref().and_then(|process| process.jobs.get(index))?;
        let local = !matches!(&job.what, What::Call(Call { ask: Ask::Store(_) | Ask::Sleep(_), .. }));
        // A read may outlive whole rounds: what it reads from must be there until it ends.
        let read = matches!(&job.what, What::Action(Action::Read { .. }));
        (job.slow || (local && here.fault.slow)).then_some(if read { 60 } else { 12 })
    }

    /// The oldest job on `host` that can proceed now.
    pub(crate) fn first_due(&self, host: usize) -> Option<usize> {
        let jobs = self.hosts[host].process.as_ref().map_or(0, |process| process.jobs.len());
        (0..jobs).find(|index| self.is_due(host, *index))
    }

    /// The same of those that read no object.
    pub(crate) fn first_due_beside_reads(&self, host: usize) -> Option<usize> {
        let jobs = &self.hosts[host].process.as_ref()?.jobs;
        (0..jobs.len()).find(|index| !jobs[*index].fetches() && self.is_due(host, *index))
    }

    /// True if the process on `host` waits for the store to do something that is `like` this.
    pub(crate) fn asks_store(&self, host: usize, like: impl Fn(&StoreAsk) -> bool) -> bool {
        let mut jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        jobs.any(|job| match &job.what {
            What::Call(Call { ask: Ask::Store(ask), .. }) => job.heard.is_none() && like(ask),
            What::Call(_) | What::Action(_) => false,
        })
    }

    /// True if `host` has the device.
    pub fn has_device(&self, host: usize) -> bool {
        self.hosts[host].device.is_some()
    }

    /// True if the client of `host` may ask.
    pub fn is_ready(&self, host: usize) -> bool {
        self.hosts[host].device.as_ref().is_some_and(|device| device.ready)
    }

    /// True if the writer on `host` reported that it was fenced.
    pub fn is_fenced(&self, host: usize) -> bool {
        self.hosts[host].device.as_ref().is_some_and(|device| device.fenced)
    }

    /// Requests the object store got.
    pub fn store_requests(&self) -> u64 {
        self.store.requests
    }

    /// True if any commit is in the log.
    pub fn holds_a_commit(&self) -> bool {
        self.store.last_cut().touched().next().is_some()
    }

    /// True if the log says that index runs were merged.
    pub(crate) fn holds_a_merge(&self) -> bool {
        self.store.manifest().runs().iter().any(|run| matches!(run, Run::Merged(_)))
    }

    /// True if a merge of index runs is stored.
    pub(crate) fn stores_a_merge(&self) -> bool {
        self.store.keys().iter().any(|key| matches!(ObjectKey::parse(key), Some(ObjectKey::Run(..))))
    }

    /// True if so many snapshots are registered, or more.
    pub fn holds_snapshots(&self, count: usize) -> bool {
        self.store.registered().len() >= count
    }

    /// The process on `host`, or the next one, dies inside the engine, at that many changes of the live map
    /// from now.
    pub fn kill_inside(&mut self, host: usize, changes: u32) {
        self.hosts[host].fuse.set(Some(changes));
    }

    /// From here on things go wrong so often.
    pub fn set_faults(&mut self, faults: Faults) {
        self.failures.set(faults);
    }

    /// Sets the durability of a FLUSH from the next attach on.
    pub fn set_durability(&mut self, durability: Durability) {
        self.terms.durability = durability;
    }

    /// The time of day is set, for the processes that begin from here on.
    pub fn set_time_of_day(&mut self, unix_ms_at_zero: u64) {
        self.clock.set_time_of_day(unix_ms_at_zero);
    }

    /// Continues with other randomness.
    pub fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    /// The records of the log, oldest first.
    pub fn log(&self) -> impl Iterator<Item = &[u8]> {
        self.store.log()
    }

    /// The checkpoints, oldest first.
    pub fn checkpoints(&self) -> impl Iterator<Item = &[u8]> {
        self.store.checkpoints()
    }

    /// The segments, each a whole object.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.store.segments()
    }

    /// Reads the durable map's file on `host` at `offset`; both whole multiples of 512.
    pub fn durable_map(&self, host: usize, offset: u64, bytes: usize) -> Vec<u8> {
        self.hosts[host].disk.lock().map.read(offset, bytes)
    }

    /// The live map that a dead process left on `host`.
    pub fn live_map(&self, host: usize) -> Option<Vec<u8>> {
        self.hosts[host].tmpfs.bytes()
    }
}
