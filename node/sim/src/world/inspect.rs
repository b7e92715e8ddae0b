//! Access of tests to a world.

use holdfast_engine::action::Action;
use holdfast_engine::settings::Durability;
use holdfast_engine::volume::{Status, Volume};
use holdfast_format::index::Run;
use holdfast_types::key::ObjectKey;

use super::{Faults, World};
use crate::calls::{Call, CallKind, StoreCall};
use crate::process::JobKind;
use crate::rng::Rng;

impl World {
    /// Returns the figures of the process on `host`; `None` without a process.
    pub fn status(&self, host: usize) -> Option<Status> {
        self.hosts[host].process.as_ref().and_then(|process| process.volume.as_ref()).map(Volume::status)
    }

    /// Returns the actions of the engine on `host` that its own thread has not completed.
    pub fn jobs(&self, host: usize) -> impl Iterator<Item = &Action> {
        self.hosts[host].process.iter().flat_map(|process| &process.jobs).filter_map(|job| match &job.kind {
            JobKind::Action(action) => Some(action),
            JobKind::Call(_) => None,
        })
    }

    /// Returns true if a create of a log record of `host`, or its answer, is in flight.
    pub fn has_record_in_flight(&self, host: usize) -> bool {
        let mut jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        jobs.any(|job| match &job.kind {
            JobKind::Call(call) => matches!(call.kind, CallKind::Store(StoreCall::Create { .. })),
            JobKind::Action(_) => false,
        })
    }

    /// Returns true if the process on `host` has work.
    pub fn is_busy(&self, host: usize) -> bool {
        self.hosts[host].process.as_ref().is_some_and(|process| !process.jobs.is_empty())
    }

    /// Describes the jobs that the process on `host` waits for.
    pub(crate) fn describe_jobs(&self, host: usize) -> String {
        let jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        let words = jobs.map(|job| match &job.kind {
            JobKind::Action(action) => format!("{action:?}"),
            JobKind::Call(call) => format!("{:?}", call.kind),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// Returns the mean number of turns that the job at `index` waits before it proceeds; `None` for no
    /// wait.
    pub(crate) fn mean_wait_turns(&self, host: usize, index: usize) -> Option<u64> {
        let here = &self.hosts[host];
        let job = here.process.as_ref().and_then(|process| process.jobs.get(index))?;
        let local =
            !matches!(&job.kind, JobKind::Call(Call { kind: CallKind::Store(_) | CallKind::Sleep(_), .. }));
        // A read may outlive whole rounds: its source must exist until it ends.
        let read = matches!(&job.kind, JobKind::Action(Action::Read { .. }));
        (job.slow || (local && here.fault.slow)).then_some(if read { 60 } else { 12 })
    }

    /// Returns the oldest job on `host` that can proceed now.
    pub(crate) fn first_due(&self, host: usize) -> Option<usize> {
        let jobs = self.hosts[host].process.as_ref().map_or(0, |process| process.jobs.len());
        (0..jobs).find(|index| self.is_due(host, *index))
    }

    /// Returns the oldest job on `host` that can proceed now and reads no object.
    pub(crate) fn first_due_without_reads(&self, host: usize) -> Option<usize> {
        let jobs = &self.hosts[host].process.as_ref()?.jobs;
        (0..jobs.len()).find(|index| !jobs[*index].is_object_read() && self.is_due(host, *index))
    }

    /// Returns true if the process on `host` has a pending request to the store that is `like` this.
    pub(crate) fn has_store_call(&self, host: usize, like: impl Fn(&StoreCall) -> bool) -> bool {
        let mut jobs = self.hosts[host].process.iter().flat_map(|process| &process.jobs);
        jobs.any(|job| match &job.kind {
            JobKind::Call(Call { kind: CallKind::Store(call), .. }) => job.result.is_none() && like(call),
            JobKind::Call(_) | JobKind::Action(_) => false,
        })
    }

    /// Returns true if `host` has the device.
    pub fn has_device(&self, host: usize) -> bool {
        self.hosts[host].device.is_some()
    }

    /// Returns true if the client of `host` may send requests.
    pub fn is_ready(&self, host: usize) -> bool {
        self.hosts[host].device.as_ref().is_some_and(|device| device.ready)
    }

    /// Returns true if the writer on `host` reported that it was fenced.
    pub fn is_fenced(&self, host: usize) -> bool {
        self.hosts[host].device.as_ref().is_some_and(|device| device.fenced)
    }

    /// Returns the number of requests to the object store.
    pub fn store_requests(&self) -> u64 {
        self.store.requests
    }

    /// Returns true if any commit is in the log.
    pub fn has_commit(&self) -> bool {
        self.store.last_cut().touched().next().is_some()
    }

    /// Returns true if a merge of index runs is in the log.
    pub(crate) fn has_merge(&self) -> bool {
        self.store.manifest().runs().iter().any(|run| matches!(run, Run::Merged(_)))
    }

    /// Returns true if a merge of index runs is stored.
    pub(crate) fn has_stored_merge(&self) -> bool {
        self.store.keys().iter().any(|key| matches!(ObjectKey::parse(key), Some(ObjectKey::Run(..))))
    }

    /// Returns true if at least `count` snapshots are registered.
    pub fn has_snapshots(&self, count: usize) -> bool {
        self.store.registered().len() >= count
    }

    /// Makes the current or next process on `host` die inside the engine, after that many more changes of
    /// the live map.
    pub fn kill_inside(&mut self, host: usize, changes: u32) {
        self.hosts[host].death_counter.set(Some(changes));
    }

    /// Sets the frequency of faults from here on.
    pub fn set_faults(&mut self, faults: Faults) {
        self.failures.set(faults);
    }

    /// Sets the durability of a FLUSH from the next attach on.
    pub fn set_durability(&mut self, durability: Durability) {
        self.terms.durability = durability;
    }

    /// Sets the time of day, for the processes that begin from here on.
    pub fn set_time_of_day(&mut self, unix_ms_at_zero: u64) {
        self.clock.set_time_of_day(unix_ms_at_zero);
    }

    /// Continues with other randomness.
    pub fn reseed(&mut self, seed: u64) {
        self.rng = Rng::new(seed);
    }

    /// Returns the records of the log, oldest first.
    pub fn log(&self) -> impl Iterator<Item = &[u8]> {
        self.store.log()
    }

    /// Returns the checkpoints, oldest first.
    pub fn checkpoints(&self) -> impl Iterator<Item = &[u8]> {
        self.store.checkpoints()
    }

    /// Returns the segments, each a whole object.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        self.store.segments()
    }

    /// Reads the durable map's file on `host` at `offset`; both are multiples of 512.
    pub fn durable_map(&self, host: usize, offset: u64, bytes: usize) -> Vec<u8> {
        self.hosts[host].disk.lock().map.read(offset, bytes)
    }

    /// Returns the live map that a dead process left on `host`.
    pub fn live_map(&self, host: usize) -> Option<Vec<u8>> {
        self.hosts[host].tmpfs.bytes()
    }
}
