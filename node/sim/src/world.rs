//! Hosts around one bucket: the daemon's execution of actions, and the faults.
//!
//! Owns: the order of everything. A step is one completed job or one delivered answer. A test can choose the
//! order of steps, and stop the world between any two.

mod answer;
mod attach;
mod client;
mod company;
mod corruption;
mod cuts;
mod dirty;
mod family_member;
mod forks;
mod inspect;
mod life;
mod other_disk;
mod perform;
mod refuse;
mod snapshots;
mod space;
mod store_checks;
#[cfg(test)]
mod tests;
mod timing;
mod uncommitted;

use holdfast_engine::action::{Action, Report};
use holdfast_engine::event::{Errno, Event};
use holdfast_engine::round_size::{self, RoundSize};
use holdfast_engine::settings::DirtyLimits;
use holdfast_engine::snapshot::CutAnswer;
use holdfast_format::chunk_ranges;
use holdfast_format::index::policy;
use holdfast_format::log_length;
use holdfast_types::{Millis, Nonce, Sector, VolumeId};

use crate::calls::{Call, CallKind};
use crate::clock::Clock;
use crate::expect::VolumeModel;
use crate::failures::Failures;
use crate::host::Host;
use crate::invariant::Invariant;
use crate::process::{ColdBlock, Job, JobKind, JobResult, TaskResult, is_failed_sync};
use crate::rng::Rng;
use crate::store::{Landed, Store, stamps};
use crate::terms::Terms;
use crate::trace::Trace;
use crate::writers::WriterHistory;

pub use crate::attempt::{AttachResult, AttachStep};
pub use crate::failures::Faults;
use client::Stamps;
pub(crate) use company::{Company, Outage, Victim};
use dirty::DirtyCheck;
use forks::Ancestor;
pub(crate) use snapshots::Settled;
use snapshots::SimulatedControlPlane;

/// The whole simulated system.
pub struct World {
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: Store,
    /// An earlier state of the bucket.
    backup: Option<Box<Store>>,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) failures: Failures,
    pub(crate) terms: Terms,
    clock: Clock,
    writers: WriterHistory,
    stamps: Stamps,
    dirty_check: DirtyCheck,
    control: SimulatedControlPlane,
    /// Number of cuts begun.
    cuts: u64,
    /// The ancestors of the served volume.
    ancestors: Vec<Ancestor>,
    /// Set if the volume shares its hosts and its store with others.
    pub(crate) company: Option<Company>,
}

impl World {
    /// Creates hosts with empty disks around a store with a volume of `sectors` sectors.
    pub fn new(seed: u64, hosts: usize, sectors: u64, limits: DirtyLimits, faults: Faults) -> Self {
        let volume = "model".parse().expect("a volume id");
        Self::of_volume(volume, seed, hosts, sectors, limits, faults)
    }

    /// Creates hosts with empty disks around a store with a volume of this name.
    pub(crate) fn of_volume(
        volume: VolumeId,
        seed: u64,
        hosts: usize,
        sectors: u64,
        limits: DirtyLimits,
        faults: Faults,
    ) -> Self {
        crate::violation::silence();
        log_length::scale(None);
        round_size::scale(None);
        // Short runs then reach merges of several levels.
        policy::scale(Some(2));
        // Chunk 1 is between writes to chunks 0 and 2.
        chunk_ranges::scale(Some(1 + (seed % 2) as usize));
        let store = Store::new(volume, sectors, Nonce::default());
        Self::with_store(store, seed, hosts, Terms::new(sectors, limits), faults)
    }

    /// Creates new hosts around `store`.
    fn with_store(store: Store, seed: u64, hosts: usize, terms: Terms, faults: Faults) -> Self {
        Self {
            hosts: (0..hosts).map(Host::new).collect(),
            store,
            backup: None,
            rng: Rng::new(seed),
            trace: Trace::new(0),
            failures: Failures::new(faults),
            terms,
            clock: Clock::default(),
            writers: WriterHistory::default(),
            stamps: Stamps::default(),
            dirty_check: DirtyCheck::default(),
            control: SimulatedControlPlane::default(),
            cuts: 0,
            ancestors: Vec::new(),
            company: None,
        }
    }

    /// Sets the sizes of rounds from now on.
    pub fn slice_rounds(&mut self, size: RoundSize) {
        round_size::scale(Some(size));
    }

    /// Sets the interval of checkpoints to `records`, and that of truncations in proportion.
    pub fn shorten_log(&mut self, records: u64) {
        log_length::scale(Some(records));
    }

    /// Advances the time, and sends it to the engine of `host`.
    pub fn tick(&mut self, host: usize, passed: Millis) {
        self.pass_time(passed);
        self.send_tick(host);
    }

    fn send_tick(&mut self, host: usize) {
        self.hosts[host].lag.note_tick(self.clock.now());
        self.send_event(host, Event::Tick);
        self.measure_space(host);
        if self.dirty_check.count_tick() {
            self.check_dirty(host);
        }
    }

    fn send_event(&mut self, host: usize, event: Event) {
        self.send_engine_event(host, event);
        self.run_tasks(host);
    }

    fn send_engine_event(&mut self, host: usize, event: Event) {
        let here = &mut self.hosts[host];
        let serves = here.process.as_ref().is_some_and(|process| process.volume.is_some());
        if serves && !here.send_event(self.clock.now(), event, &mut self.trace) {
            self.process_died(host);
        }
    }

    // ---- the daemon ----

    /// Returns true if the job at `index` can proceed now: only time itself ends a timer.
    pub(crate) fn is_due(&self, host: usize, index: usize) -> bool {
        let job = self.hosts[host].process.as_ref().and_then(|process| process.jobs.get(index));
        job.is_some_and(|job| match &job.kind {
            JobKind::Action(Action::Pause) | JobKind::Call(Call { kind: CallKind::Sleep(_), .. }) => {
                job.until.is_none_or(|until| until <= self.clock.now())
            }
            JobKind::Call(Call { kind: CallKind::Store(_), .. }) if job.result.is_none() => {
                self.is_answered(job.since)
            }
            JobKind::Action(_) | JobKind::Call(_) => true,
        })
    }

    /// Does one pending job, or delivers the answer of a completed one.
    pub(crate) fn step_job(&mut self, host: usize, index: usize) {
        let process = self.hosts[host].process.as_mut().expect("jobs belong to a process");
        if process.jobs[index].is_object_read()
            && process.jobs.iter().filter(|job| job.is_object_read()).count() > 1
        {
            return self.complete_object_reads(host);
        }
        let mut job = process.jobs.remove(index);
        match (job.result.take(), job.kind) {
            (Some(JobResult::Event(event)), _) => {
                let failed = is_failed_sync(&event);
                self.send_event(host, event);
                if self.hosts[host].process.is_none() {
                    self.note_unreported_failure(host, failed);
                }
            }
            (Some(JobResult::Answer(answer)), JobKind::Call(call)) => {
                call.answer(answer);
                self.run_tasks(host);
            }
            (Some(JobResult::Answer(_)), JobKind::Action(_)) => {
                unreachable!("an action is answered with an event")
            }
            (None, what) => {
                self.trace.operations += 1;
                job.result = match &what {
                    JobKind::Action(action) => self.perform(host, action, job.mark).map(JobResult::Event),
                    JobKind::Call(call) => self.answer(host, &call.kind).map(JobResult::Answer),
                };
                job.kind = what;
                job.since = self.clock.now();
                // At its old position: the test chooses the order of the others.
                if job.result.is_some()
                    && let Some(process) = &mut self.hosts[host].process
                {
                    process.jobs.insert(index.min(process.jobs.len()), job);
                }
            }
        }
        self.note_landed_records();
    }

    /// Completes concurrently requested objects together, as one operation: objects never change, so their
    /// order does not matter.
    fn complete_object_reads(&mut self, host: usize) {
        self.trace.operations += 1;
        let process = self.hosts[host].process.as_mut().expect("jobs belong to a process");
        let fetches: Vec<Job> = process.jobs.extract_if(.., |job| job.is_object_read()).collect();
        for job in fetches {
            if let JobKind::Call(call) = job.kind
                && let Some(answer) = self.answer(host, &call.kind)
            {
                call.answer(answer);
            }
        }
        self.run_tasks(host);
    }

    /// Polls the futures of `host` until each waits.
    pub(crate) fn run_tasks(&mut self, host: usize) {
        loop {
            let here = &mut self.hosts[host];
            if here.process.is_none() {
                return;
            }
            let Some(ended) = here.run_pipeline() else { return self.process_died(host) };
            here.process.as_mut().expect("it lives").accept_calls(self.clock.now());
            match ended {
                Some(ended) => self.task_ended(host, ended),
                None => return,
            }
        }
    }

    fn task_ended(&mut self, host: usize, ended: TaskResult) {
        let event = match ended {
            TaskResult::Answered(event, tidy) => {
                let process = self.hosts[host].process.as_mut().expect("it ran the task");
                if matches!(event, Event::Uploaded(_) | Event::SidesUnreadable(_)) {
                    process.upload = None;
                }
                if let Some(tidy) = tidy {
                    process.start_tidy(tidy);
                }
                event
            }
            TaskResult::Tidied => return,
            TaskResult::Manifest(manifest) => Event::ManifestLoaded(Box::new(manifest)),
            TaskResult::Attached(result) => return self.attach_ended(host, *result),
            TaskResult::Cold { id, range, at, block } => {
                let bytes = match block {
                    Ok(ColdBlock { bytes, found }) => {
                        let process = self.hosts[host].process.as_mut().expect("it ran the task");
                        if let Some((found, runs)) = found {
                            process.known.found(range.start.block(), &found, &runs);
                        }
                        bytes
                    }
                    Err(error) => {
                        // Its plan may be older than a merge.
                        let broken = if self.store.is_fork() {
                            Invariant::ForkIsItsSnapshot
                        } else {
                            Invariant::NothingReferencedIsMissing
                        };
                        broken.check(self.store.is_swept(&error), || format!("{error}"));
                        let was_replaced = !self.writers.is_last(host);
                        let device = self.hosts[host].device.as_mut().expect("a read has a device");
                        device.fail_piece(id, was_replaced);
                        let result = Err(Errno::EIO);
                        return self.send_engine_event(host, Event::ColdReadCompleted { id, result });
                    }
                };
                let first = range.start.in_block() as usize;
                let stamps = stamps(range.start.block(), &bytes).skip(first).take(range.sectors as usize);
                let request = self.hosts[host].device.as_mut().expect("a read has a device").request(id);
                request.fill(range, at, stamps);
                Event::ColdReadCompleted { id, result: Ok(()) }
            }
        };
        self.send_engine_event(host, event);
    }

    fn handle_report(&mut self, host: usize, report: Report) {
        let here = &mut self.hosts[host];
        match report {
            Report::Ready => {
                if let Some(device) = &mut here.device {
                    device.ready = true;
                }
            }
            Report::Fenced => {
                Invariant::FencedChangesNothing.check(!self.writers.is_last(host), || {
                    "the newest writer is told that it is fenced".into()
                });
                if let Some(device) = &mut here.device {
                    device.fenced = true;
                    device.closing = true;
                }
            }
            Report::LocalDiskFailed(_)
            | Report::CleanUnreadable(_)
            | Report::DirtyUnreadable(_)
            | Report::UploadUnreadable(_) => {
                Invariant::CompletedOnce
                    .check(!self.failures.disks_are_sound() || here.disk_past.was_full(), || {
                        "a sound disk is said to have failed".into()
                    });
            }
            Report::Grown { sectors } => {
                let in_log = self.store.manifest().sectors();
                let knows = self.writers.is_last(host) && !self.writers.log_was_rolled_back();
                Invariant::SizeIsKept.check(in_log >= sectors || !knows, || {
                    format!("a device gets {sectors} sectors, and the log says {in_log}")
                });
                if let Some(device) = &mut here.device {
                    device.sectors = device.sectors.max(sectors);
                }
            }
            Report::SnapshotTaken(taken) => self.snapshot_taken(host, taken),
            Report::Cut { uid, answer } => {
                if let Some((asked, last)) = &mut here.snapshots.cut
                    && *asked == uid
                {
                    *last = Some(answer);
                    if answer == CutAnswer::Prepared {
                        here.lag.note_prepared(self.clock.now());
                    }
                }
                let registered = self.store.registered().iter().find(|known| known.uid == uid);
                if let Some(cut) = registered.and_then(|known| self.store.cut_of_snapshot(known.seq)) {
                    self.check_cut(host, uid, &cut);
                }
            }
            Report::SnapshotRefused { .. }
            | Report::Committed(_)
            | Report::Repaired
            | Report::UploadReadable => {}
            Report::Preserved { complete } => {
                if complete {
                    self.check_uncommitted_data(host);
                    let here = &mut self.hosts[host];
                    here.disk_past.set_unpreserved_data(here.disk.lock().holds_dirty());
                }
                self.end_released_process(host);
            }
            Report::Detached => self.end_released_process(host),
        }
    }

    /// Handles records that reached the log.
    fn note_landed_records(&mut self) {
        for landed in self.store.take_landed() {
            match landed {
                Landed::Commit(nonce, cut) => {
                    self.writers.count_commit();
                    for host in &mut self.hosts {
                        host.content.note_commit(&cut);
                    }
                    let writer = self.writers.host_of(nonce).expect("only these hosts write");
                    let here = &mut self.hosts[writer];
                    if here.nonce == Some(nonce) {
                        here.lag.note_commit(cut.at);
                        here.content.note_own_commit(cut);
                    }
                }
                Landed::Attach(nonce, node, replaced) => {
                    let host: usize = node.parse().expect("a host's name is its number");
                    self.check_replaced(host, nonce, replaced.as_ref());
                    self.writers.note_attach(nonce, host);
                    self.writer_attached(host, nonce);
                }
            }
        }
    }

    /// Keeps the attached writer's own data if no other writer wrote since; otherwise there must be none.
    fn writer_attached(&mut self, host: usize, nonce: Nonce) {
        let here = &mut self.hosts[host];
        here.nonce = Some(nonce);
        here.lag.clear();
        here.content.note_attach_after(self.store.last_cut());
        if here.disk_past.replacement().is_some() {
            self.attached_with_other_disk(host, nonce);
        } else if !self.writers.is_last(host) {
            let holds = here.disk.lock().holds_dirty();
            Invariant::FencedIsKept
                .check(!holds, || "what a fenced writer left is mistaken for the volume's".into());
            here.content.model = VolumeModel::from_cut(&self.store.last_cut());
        }
        self.writers.set_last(Some(host));
    }

    /// Lets a request arrive whose sender no longer waits.
    pub(crate) fn land_late_request(&mut self) {
        if !self.store.late.is_empty() {
            let at = self.rng.below(self.store.late.len());
            let (call, cut) = self.store.late.swap_remove(at);
            self.store.apply(&call, cut.as_ref(), 0);
            self.note_landed_records();
        }
    }

    /// Returns true if the log ends in the detach of `host`.
    pub(crate) fn has_released(&mut self, host: usize) -> bool {
        let manifest = self.store.manifest();
        !manifest.is_attached() && manifest.writer() == self.hosts[host].nonce
    }

    /// Reads every sector that the client of `host` ever touched, from the store alone.
    pub fn check_store(&mut self, host: usize) {
        let manifest = self.store.manifest();
        let cut = self.store.last_cut();
        let mut touched = self.hosts[host].content.model.touched();
        touched.extend(cut.touched());
        let mut read = (u64::MAX, Vec::new());
        for sector in touched {
            let block = Sector(sector).block();
            if read.0 != block.0 {
                read = (block.0, self.store.read_remote(&manifest, block));
            }
            let stamp = read.1[Sector(sector).in_block() as usize];
            let allowed = self.hosts[host].content.model.allowed(sector);
            Invariant::StoreIsAPrefix.check(allowed.contains(&stamp), || {
                format!("the store has write {stamp} in sector {sector}; allowed: {allowed:?}")
            });
        }
    }
}
