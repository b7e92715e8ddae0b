//! Hosts around one bucket: what the daemon does with actions, and what can go wrong.
//!
//! Owns: the order of everything. Each step is one job done or one answer given, so that a test can choose
//! the order and stop the world between any two of them.

mod answer;
mod attach;
mod company;
mod decay;
mod dirty;
mod kept;
mod life;
mod look;
mod other_disk;
mod perform;
mod space;
#[cfg(test)]
mod tests;
mod timing;
mod whole;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use holdfast_engine::action::Report;
use holdfast_engine::durable_map::holds_dirty;
use holdfast_engine::event::{Event, Op, RequestId};
use holdfast_engine::log_length;
use holdfast_engine::round_size;
use holdfast_engine::volume::{DirtyLimits, Durability};
use holdfast_types::{Millis, Nonce, Sector, SectorRange, VolumeId};

use crate::calls::{Ask, Call};
use crate::expect::Expect;
use crate::host::Host;
use crate::invariant::Invariant;
use crate::process::{Ended, Heard, Job, What};
use crate::rng::Rng;
use crate::store::{Landed, Store, stamps};
use crate::trace::Trace;

use answer::read_map;
pub(crate) use company::{Company, Death, Outage, Shared};
use life::failed_sync;
pub(crate) use other_disk::{Begun, Displaces, OtherDisk, Snapshot};

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

/// Everything there is.
pub struct World {
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: Store,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) faults: Faults,
    pub(crate) limits: DirtyLimits,
    /// Durability of a FLUSH.
    pub(crate) durability: Durability,
    pub(crate) sectors: u64,
    /// Sectors that the sides of a host may hold; `None`: any number.
    pub(crate) share: Option<u64>,
    pub(crate) now: Millis,
    /// Size to grow the volume to at the next attach, in sectors.
    pub(crate) grow_to: Option<u64>,
    /// With it, jobs take at most [`timing::JOB_MS`] each, and a commit comes in time.
    pub(crate) timely: bool,
    /// The store denies every deletion, and does not change its mind.
    pub(crate) denies_deletes: bool,
    serial: u64,
    /// The nonces of attaches that won, and their hosts.
    writers: Vec<(Nonce, usize)>,
    claims: Vec<Begun>,
    /// Commits that came into the log.
    commits: u64,
    /// `now`, for the pipeline.
    clock: Arc<AtomicU64>,
    last_writer: Option<usize>,
    /// No disk ever failed.
    sound_disks: bool,
    every_write_arrives: bool,
    /// LIST always showed what was there.
    sound_lists: bool,
    /// Sectors were made dirty that no request had written.
    repaired: bool,
    /// Number of times that an engine got the time.
    ticks: u64,
    /// The time of day on every host when the clock stood at zero, for the processes that begin from here on.
    unix_ms_at_zero: u64,
    /// Offset from the number of a request to its stamp.
    first_stamp: u64,
    /// The volume shares its hosts and its store with others.
    pub(crate) company: Option<Company>,
}

/// Requests a device can have in flight.
pub(crate) const DEPTH: u32 = 12;

/// Result of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// This host is the writer.
    Won,
    /// Another writer holds the volume.
    Refused,
    /// The process died, or the host, on the way.
    Died,
    /// The store or the local disk failed.
    Failed,
}

/// Steps of an attach after which it can die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttachStep {
    /// The intent stands in the header's file.
    HeaderWritten,
    /// It is synced.
    HeaderSynced,
    /// The record's PUT was sent.
    RecordSent,
}

impl World {
    /// Hosts with nothing on their disks around a store that holds a volume of `sectors` sectors.
    pub fn new(seed: u64, hosts: usize, sectors: u64, limits: DirtyLimits, faults: Faults) -> Self {
        let volume = "model".parse().expect("a volume id");
        Self::of_volume(volume, seed, hosts, sectors, limits, faults)
    }

    /// The same of a volume with a name of its own.
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
        Self {
            hosts: (0..hosts).map(Host::new).collect(),
            store: Store::new(volume, sectors, Nonce::default()),
            rng: Rng::new(seed),
            trace: Trace::new(0),
            faults,
            limits,
            durability: Durability::Local,
            sectors,
            share: None,
            now: 0,
            grow_to: None,
            timely: false,
            denies_deletes: false,
            serial: 0,
            writers: Vec::new(),
            claims: Vec::new(),
            commits: 0,
            clock: Arc::default(),
            last_writer: None,
            sound_disks: faults.local.is_none() && faults.sync.is_none(),
            every_write_arrives: false,
            sound_lists: faults.stale_list.is_none(),
            repaired: false,
            ticks: 0,
            unix_ms_at_zero: 0,
            first_stamp: 0,
            company: None,
        }
    }

    /// Rounds copy `copied` map pages at a time from now on, and write `written`.
    pub fn slice_rounds(&mut self, copied: usize, written: usize) {
        round_size::scale(Some((copied, written)));
    }

    /// Checkpoints are `records` apart from now on, and the log is truncated as often in proportion.
    pub fn shorten_log(&mut self, records: u64) {
        log_length::scale(Some(records));
    }

    fn fails(rng: &mut Rng, once_in: Option<u64>) -> bool {
        once_in.is_some_and(|times| rng.once_in(times))
    }

    // ---- the client ----

    /// The client asks; `None` when the device is full.
    pub fn request(&mut self, host: usize, op: Op, range: SectorRange) -> Option<RequestId> {
        let here = &mut self.hosts[host];
        let device = here.device.as_mut().expect("a client has a device");
        let id = device.free_slot()?;
        self.serial += 1;
        device.issue(id, op, range, self.first_stamp + self.serial, &mut here.expect);
        self.tell(host, Event::Request { id, op, range });
        Some(id)
    }

    /// A reader found what is stored for these sectors damaged.
    pub(crate) fn repair(&mut self, host: usize, ranges: Vec<SectorRange>, checkpoint: bool) {
        self.repaired = true;
        self.tell(host, Event::Repair { ranges, checkpoint });
    }

    /// Time passes, and the engine of `host` gets the new time.
    pub fn tick(&mut self, host: usize, passed: Millis) {
        self.pass(passed);
        self.tell_time(host);
    }

    fn tell_time(&mut self, host: usize) {
        self.hosts[host].ticked = self.now;
        self.tell(host, Event::Tick);
        self.measure_space(host);
        // All that was ever written is looked at: not every time.
        self.ticks += 1;
        if self.ticks.is_multiple_of(16) {
            self.check_dirty(host);
        }
    }

    fn tell(&mut self, host: usize, event: Event) {
        self.tell_engine(host, event);
        self.run_tasks(host);
    }

    fn tell_engine(&mut self, host: usize, event: Event) {
        let here = &mut self.hosts[host];
        let serves = here.process.as_ref().is_some_and(|process| process.volume.is_some());
        if serves && !here.tell(self.now, event, &mut self.trace) {
            self.process_died(host);
        }
    }

    // ---- the daemon ----

    /// True if the job at `index` can proceed now: only time itself makes a timer end.
    pub(crate) fn is_due(&self, host: usize, index: usize) -> bool {
        let job = self.hosts[host].process.as_ref().and_then(|process| process.jobs.get(index));
        job.is_some_and(|job| match &job.what {
            What::Call(Call { ask: Ask::Sleep(_), .. }) => job.until.is_none_or(|until| until <= self.now),
            What::Call(Call { ask: Ask::Store(_), .. }) if job.heard.is_none() => self.is_heard(job.since),
            What::Action(_) | What::Call(_) => true,
        })
    }

    /// Does one job that was not done yet, or delivers the answer of one that was.
    pub(crate) fn step_job(&mut self, host: usize, index: usize) {
        let process = self.hosts[host].process.as_mut().expect("jobs belong to a process");
        if process.jobs[index].fetches() && process.jobs.iter().filter(|job| job.fetches()).count() > 1 {
            return self.fetch(host);
        }
        let mut job = process.jobs.remove(index);
        match (job.heard.take(), job.what) {
            (Some(Heard::Event(event)), _) => {
                let failed = failed_sync(&event);
                self.tell(host, event);
                if self.hosts[host].process.is_none() {
                    self.fail_unheard(host, failed);
                }
            }
            (Some(Heard::Answer(answer)), What::Call(call)) => {
                call.answer(answer);
                self.run_tasks(host);
            }
            (Some(Heard::Answer(_)), What::Action(_)) => unreachable!("an action is answered with an event"),
            (None, what) => {
                self.trace.operations += 1;
                job.heard = match &what {
                    What::Action(action) => self.perform(host, action, job.mark).map(Heard::Event),
                    What::Call(call) => self.answer(host, &call.ask).map(Heard::Answer),
                };
                job.what = what;
                job.since = self.now;
                // In its old place: the order of the others is for the test to choose.
                if job.heard.is_some()
                    && let Some(process) = &mut self.hosts[host].process
                {
                    process.jobs.insert(index.min(process.jobs.len()), job);
                }
            }
        }
        self.take_note();
    }

    /// Objects that were asked for together come together, and count as one operation: they never change, so
    /// that it does not matter which of them is read first.
    fn fetch(&mut self, host: usize) {
        self.trace.operations += 1;
        let process = self.hosts[host].process.as_mut().expect("jobs belong to a process");
        let fetches: Vec<Job> = process.jobs.extract_if(.., |job| job.fetches()).collect();
        for job in fetches {
            if let What::Call(call) = job.what
                && let Some(answer) = self.answer(host, &call.ask)
            {
                call.answer(answer);
            }
        }
        self.run_tasks(host);
    }

    /// Polls the futures of `host` until each waits for something.
    pub(crate) fn run_tasks(&mut self, host: usize) {
        loop {
            let here = &mut self.hosts[host];
            if here.process.is_none() {
                return;
            }
            let Some(ended) = here.run_pipeline() else { return self.process_died(host) };
            here.process.as_mut().expect("it lives").accept_calls(self.now);
            match ended {
                Some(ended) => self.task_ended(host, ended),
                None => return,
            }
        }
    }

    fn task_ended(&mut self, host: usize, ended: Ended) {
        let event = match ended {
            Ended::Answered(event, tidy) => {
                let process = self.hosts[host].process.as_mut().expect("it ran the task");
                if matches!(event, Event::Uploaded(_) | Event::SidesUnreadable(_)) {
                    process.upload = None;
                }
                if let Some(tidy) = tidy {
                    process.tidy(tidy);
                }
                event
            }
            Ended::Tidied => return,
            Ended::Manifest(manifest) => Event::ManifestLoaded(Box::new(manifest)),
            Ended::Attached(came_of) => return self.attach_ended(host, *came_of),
            Ended::Cold { id, range, at, block } => {
                let bytes = match block {
                    Ok(bytes) => bytes,
                    Err(error) => Invariant::NothingReferencedIsMissing.broken(&format!("{error}")),
                };
                let first = range.start.in_block() as usize;
                let stamps = stamps(range.start.block(), &bytes).skip(first).take(range.sectors as usize);
                let request = self.hosts[host].device.as_mut().expect("a read has a device").request(id);
                request.fill(range, at, stamps);
                Event::ColdReadCompleted { id, result: Ok(()) }
            }
        };
        self.tell_engine(host, event);
    }

    fn reported(&mut self, host: usize, report: Report) {
        let here = &mut self.hosts[host];
        match report {
            Report::Ready => {
                if let Some(device) = &mut here.device {
                    device.ready = true;
                }
            }
            Report::Fenced => {
                Invariant::FencedChangesNothing.check(self.last_writer != Some(host), || {
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
                Invariant::CompletedOnce.check(!self.sound_disks || here.was_full, || {
                    "a sound disk is said to have failed".into()
                });
            }
            Report::Committed(_) | Report::Repaired | Report::UploadReadable => {}
            Report::Kept { whole } => {
                if whole {
                    self.check_kept(host);
                    let here = &mut self.hosts[host];
                    let left = read_map(&mut here.disk.lock());
                    here.keeps = left.is_ok_and(|map| map.is_some_and(|map| holds_dirty(&map.pages)));
                }
                self.has_ended(host);
            }
            Report::Detached => self.has_ended(host),
        }
    }

    /// Takes note of records that came into the log.
    fn take_note(&mut self) {
        for landed in std::mem::take(&mut self.store.landed) {
            match landed {
                Landed::Commit(nonce, cut) => {
                    self.commits += 1;
                    for host in &mut self.hosts {
                        host.committed = Rc::clone(&cut);
                    }
                    let writer = self.writers.iter().rfind(|(theirs, _)| *theirs == nonce);
                    let here = &mut self.hosts[writer.expect("only these hosts write").1];
                    if here.nonce == Some(nonce) {
                        here.base = Rc::clone(&cut);
                        here.expect.is_durable(cut.at);
                        here.uncommitted.retain(|(ended, _)| *ended > cut.at);
                    }
                }
                Landed::Attach(nonce, node, replaced) => {
                    let host: usize = node.parse().expect("a host's name is its number");
                    self.check_replaced(host, nonce, replaced.as_ref());
                    self.writers.push((nonce, host));
                    self.writer_attached(host, nonce);
                }
            }
        }
    }

    /// Its own data counts on in the volume if no other writer wrote since it did; else there must be none.
    fn writer_attached(&mut self, host: usize, nonce: Nonce) {
        let here = &mut self.hosts[host];
        here.nonce = Some(nonce);
        here.uncommitted.clear();
        here.base = self.store.last_cut();
        if here.other_disk.is_some() {
            self.attached_with_other_disk(host, nonce);
        } else if self.last_writer != Some(host) {
            let kept = read_map(&mut here.disk.lock());
            let holds = kept.is_ok_and(|map| map.is_some_and(|map| holds_dirty(&map.pages)));
            Invariant::FencedIsKept
                .check(!holds, || "what a fenced writer left is taken for the volume's".into());
            here.expect = Expect::after(&self.store.last_cut());
        }
        self.last_writer = Some(host);
    }

    /// A request arrives whose sender no longer waits.
    pub(crate) fn land_late(&mut self) {
        if !self.store.late.is_empty() {
            let at = self.rng.below(self.store.late.len());
            let (ask, cut) = self.store.late.swap_remove(at);
            self.store.apply(&ask, cut.as_ref(), 0);
            self.take_note();
        }
    }

    /// True if the log ends in the detach of `host`.
    pub(crate) fn has_released(&mut self, host: usize) -> bool {
        let manifest = self.store.manifest();
        !manifest.is_attached() && manifest.writer() == self.hosts[host].nonce
    }

    /// Reads every sector the client of `host` ever touched, from the store alone.
    pub fn check_store(&mut self, host: usize) {
        let manifest = self.store.manifest();
        let cut = self.store.last_cut();
        let mut touched = self.hosts[host].expect.touched();
        touched.extend(cut.touched());
        let mut read = (u64::MAX, Vec::new());
        for sector in touched {
            let block = Sector(sector).block();
            if read.0 != block.0 {
                read = (block.0, self.store.read_remote(&manifest, block));
            }
            let stamp = read.1[Sector(sector).in_block() as usize];
            let allowed = self.hosts[host].expect.allowed(sector);
            Invariant::StoreIsAPrefix.check(allowed.contains(&stamp), || {
                format!("the store has write {stamp} in sector {sector}; allowed: {allowed:?}")
            });
        }
    }
}
