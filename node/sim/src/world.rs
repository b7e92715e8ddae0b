//! Hosts around one bucket: what the daemon does with actions, and what can go wrong.
//!
//! Owns: the order of everything. Each step is one job done or one answer given, so that a test can choose the order and
//! stop the world between any two of them.

mod attach;
mod life;
mod look;
mod space;

use holdfast_engine::action::{Action, Report, Source};
use holdfast_engine::event::{CreateAnswer, Errno, Event, Millis, Op, RequestId};
use holdfast_engine::volume::{DirtyLimits, Pending};
use holdfast_types::{BLOCK_SECTORS, Nonce, Sector, SectorRange, SegmentId, Seq, VolumeId};

use crate::disk::sectors;
use crate::expect::Expect;
use crate::host::{Host, Job};
use crate::invariant::Invariant;
use crate::rng::Rng;
use crate::store::Store;
use crate::trace::Trace;

/// How often things go wrong: once in so many times, `None` never.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// A local read, write or sync.
    pub local: Option<u64>,
    /// The answer to a create.
    pub create: Option<u64>,
    /// A checkpoint's PUT.
    pub checkpoint: Option<u64>,
}

/// Everything there is.
pub struct World {
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: Store,
    pub(crate) rng: Rng,
    pub(crate) trace: Trace,
    pub(crate) faults: Faults,
    pub(crate) limits: DirtyLimits,
    pub(crate) sectors: u64,
    /// Sectors that the sides of a host may hold; `None`: any number.
    pub(crate) share: Option<u64>,
    pub(crate) now: Millis,
    /// Dirty data of fenced writers that was set aside.
    pub(crate) set_aside: u32,
    serial: u64,
    /// Attaches: nonce, host, and whether the host's own data counts in it.
    claims: Vec<(Nonce, usize, bool)>,
    last_writer: Option<usize>,
    /// No disk ever failed.
    sound_disks: bool,
    every_write_arrives: bool,
}

/// Requests a device can have in flight.
pub(crate) const DEPTH: u32 = 12;

/// What came of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// This host is the writer.
    Won,
    /// Another writer holds the volume.
    Refused,
    /// The process died, or the host, on the way.
    Died,
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
        crate::violation::silence();
        let volume: VolumeId = "model".parse().expect("a volume id");
        Self {
            hosts: (0..hosts).map(Host::new).collect(),
            store: Store::new(volume, sectors),
            rng: Rng::new(seed),
            trace: Trace::new(0),
            faults,
            limits,
            sectors,
            share: None,
            now: 0,
            set_aside: 0,
            serial: 0,
            claims: Vec::new(),
            last_writer: None,
            sound_disks: faults.local.is_none(),
            every_write_arrives: false,
        }
    }

    fn fails(rng: &mut Rng, once_in: Option<u64>) -> bool {
        once_in.is_some_and(|times| rng.once_in(times))
    }

    // ---- the guest ----

    /// The guest asks; `None` when the device is full.
    pub fn request(&mut self, host: usize, op: Op, range: SectorRange) -> Option<RequestId> {
        let here = &mut self.hosts[host];
        let device = here.device.as_mut().expect("a guest has a device");
        let id = device.free_slot()?;
        self.serial += 1;
        device.issue(id, op, range, self.serial, &mut here.expect);
        if here.process.is_some() && !here.tell(self.now, Event::Request { id, op, range }, &mut self.trace) {
            self.process_died(host);
        }
        Some(id)
    }

    pub(crate) fn tick(&mut self, host: usize, passed: Millis) {
        self.now += passed;
        self.tell(host, Event::Tick);
        self.measure_space(host);
    }

    fn tell(&mut self, host: usize, event: Event) {
        if self.hosts[host].process.is_some() && !self.hosts[host].tell(self.now, event, &mut self.trace) {
            self.process_died(host);
        }
    }

    // ---- the daemon ----

    /// Does one job that was not done yet, or answers one that was.
    pub(crate) fn step_job(&mut self, host: usize, index: usize) {
        let process = self.hosts[host].process.as_mut().expect("jobs belong to a process");
        if process.jobs[index].answer.is_some() {
            let job = process.jobs.remove(index);
            self.tell(host, job.answer.expect("just seen"));
        } else {
            let job = process.jobs.remove(index);
            self.do_job(host, index, job);
        }
        self.take_note();
    }

    fn do_job(&mut self, host: usize, index: usize, mut job: Job) {
        self.trace.operations += 1;
        let answer = self.perform(host, &job);
        if let Some(event) = answer {
            job.answer = Some(event);
            // In its old place: the order of the others is for the test to choose.
            let jobs = &mut self.hosts[host].process.as_mut().expect("it did the job").jobs;
            jobs.insert(index.min(jobs.len()), job);
        }
    }

    fn perform(&mut self, host: usize, job: &Job) -> Option<Event> {
        let here = &mut self.hosts[host];
        let local = Self::fails(&mut self.rng, self.faults.local);
        let result = if local { Err(Errno::EIO) } else { Ok(()) };
        Some(match &job.action {
            Action::Read { id, range, at, from } => {
                if !local {
                    let side = |side| &here.disk.sides[side as usize];
                    let stamps: Vec<u64> = sectors(*range)
                        .map(|sector| match from {
                            Source::Side(from) => side(*from).read(sector),
                            Source::Zeros => 0,
                        })
                        .collect();
                    let request = here.device.as_mut().expect("a read has a device").request(*id);
                    request.fill(*range, *at, stamps.into_iter());
                }
                Event::Moved { id: *id, result }
            }
            Action::ReadCold { id, range, at, layers } => {
                let block = range.start.block();
                assert!(range.start.in_block() as u64 + range.sectors <= BLOCK_SECTORS);
                let stamps = self.store.read_block(block, layers.iter());
                let first = range.start.in_block() as usize;
                let request = here.device.as_mut().expect("a read has a device").request(*id);
                request.fill(*range, *at, stamps[first..].iter().copied().take(range.sectors as usize));
                Event::Moved { id: *id, result: Ok(()) }
            }
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                for sector in sectors(*range) {
                    if !local || self.rng.once_in(2) {
                        here.disk.side(*side).write(sector, stamp);
                    }
                }
                let full = local && self.rng.once_in(2);
                Event::Moved { id: *id, result: if full { Err(Errno::ENOSPC) } else { result } }
            }
            Action::Punch { id, range, side } => {
                for sector in sectors(*range) {
                    if !local || self.rng.once_in(2) {
                        here.disk.side(*side).write(sector, 0);
                    }
                }
                Event::Moved { id: *id, result }
            }
            Action::Evict { range, side } => {
                if !local {
                    here.disk.side(*side).punch(*range);
                }
                Event::Evicted { result }
            }
            Action::Complete { id, result } => {
                let device = here.device.as_mut().expect("requests come from a device");
                if self.sound_disks && result.is_err() {
                    let process = here.process.as_ref().expect("it did the job");
                    Invariant::CompletedOnce.check(process.volume.status().fenced, || {
                        format!("a request failed without a cause: {result:?}")
                    });
                }
                device.complete(*id, *result, &mut here.expect);
                return None;
            }
            Action::PrepareMap { chunk } => Event::MapPrepared { chunk: *chunk, result },
            Action::SyncSide { side } => {
                if !local {
                    here.disk.side(*side).sync(job.mark.expect("a sync has a mark"));
                }
                Event::SideSynced { side: *side, result }
            }
            Action::WriteMap(writes) => {
                for write in writes {
                    here.disk.map.write(write, || !local || self.rng.once_in(2));
                }
                Event::MapWritten { result }
            }
            Action::SyncMap => {
                if !local {
                    here.disk.map.sync(job.mark.expect("a sync has a mark"));
                }
                Event::MapSynced { result }
            }
            Action::Upload(dirty) => {
                let id = SegmentId::new(self.now, self.rng.bytes());
                let cut = here.sealed.clone().expect("an upload belongs to a seal");
                let sides = &here.disk.sides;
                let read = |sector, from_b| sides[usize::from(from_b)].read(sector);
                Event::Uploaded(self.store.upload(id, dirty, cut, read))
            }
            Action::StorePending { seq, bytes } => {
                if !local {
                    here.disk.pending = Some(Pending { seq: *seq, bytes: bytes.clone() });
                }
                Event::PendingStored { result }
            }
            Action::CreateRecord { seq, bytes } => {
                let answer = self.create(*seq, bytes);
                Event::CreateAnswered(answer)
            }
            Action::ReadRecord { seq } => Event::RecordRead { seq: *seq, bytes: self.store.record(*seq) },
            Action::WriteCheckpoint { seq, bytes } => {
                let written = !Self::fails(&mut self.rng, self.faults.checkpoint);
                if written {
                    self.store.put_checkpoint(*seq, bytes.clone());
                }
                Event::CheckpointWritten { seq: *seq, written }
            }
            Action::Report(report) => {
                self.reported(host, *report);
                return None;
            }
        })
    }

    fn create(&mut self, seq: Seq, bytes: &[u8]) -> CreateAnswer {
        if Self::fails(&mut self.rng, self.faults.create) {
            return match self.rng.below(4) {
                0 => CreateAnswer::Ambiguous,
                1 => {
                    self.store.create(seq, bytes);
                    CreateAnswer::Ambiguous
                }
                2 => {
                    // A retry met its own success.
                    self.store.create(seq, bytes);
                    CreateAnswer::Exists
                }
                _ => {
                    self.store.late.push((seq, bytes.to_vec()));
                    CreateAnswer::Ambiguous
                }
            };
        }
        if self.store.create(seq, bytes) { CreateAnswer::Created } else { CreateAnswer::Exists }
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
            Report::LocalDiskFailed(_) => {
                Invariant::CompletedOnce
                    .check(!self.sound_disks, || "a sound disk is said to have failed".into());
            }
            Report::Committed(_) => {}
            Report::Detached => {
                here.process = None;
                here.tmpfs.remove();
                here.device = None;
                here.sealed = None;
            }
        }
    }

    /// Takes note of records that came into the log.
    fn take_note(&mut self) {
        for landed in std::mem::take(&mut self.store.landed) {
            let claim = self.claims.iter().find(|(nonce, ..)| *nonce == landed.nonce);
            let &(nonce, host, keeps) = claim.expect("only these hosts write");
            match landed.commit {
                Some(cut) => {
                    if self.hosts[host].nonce == Some(nonce) {
                        self.hosts[host].expect.is_durable(cut.at);
                    }
                }
                None => {
                    let here = &mut self.hosts[host];
                    here.nonce = Some(nonce);
                    if keeps {
                        Invariant::FencedIsKept.check(self.last_writer == Some(host), || {
                            "own data is kept although another wrote since".into()
                        });
                    } else {
                        here.expect = Expect::after(&self.store.last_cut());
                    }
                    self.last_writer = Some(host);
                }
            }
        }
    }

    /// A PUT whose sender gave up arrives.
    pub(crate) fn land_late(&mut self) {
        if !self.store.late.is_empty() {
            let at = self.rng.below(self.store.late.len());
            let (seq, bytes) = self.store.late.swap_remove(at);
            self.store.create(seq, &bytes);
            self.take_note();
        }
    }

    /// Whether the log ends in the detach of `host`.
    pub(crate) fn has_let_go(&mut self, host: usize) -> bool {
        let manifest = self.store.manifest();
        !manifest.is_attached() && manifest.writer() == self.hosts[host].nonce
    }

    /// Reads every sector the guest of `host` ever touched, from the store alone.
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
