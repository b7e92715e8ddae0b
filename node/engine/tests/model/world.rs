//! Hosts around one bucket: what the daemon does with actions, and what can go wrong.
//!
//! Owns: the order of everything. Each step is one job done or one answer given, so that a test can choose the order and
//! stop the world between any two of them.

use holdfast_engine::action::MapWrite;
use holdfast_engine::action::{Action, Report, Source};
use holdfast_engine::attach::{AttachRefused, Claim, LocalData, plan_attach};
use holdfast_engine::durable_map::{Header, header_offset, holds_dirty, newest_pages, page_offset};
use holdfast_engine::event::{CreateAnswer, Errno, Event, Millis, Op, RequestId};
use holdfast_engine::limit::REMEMBERED_NONCES;
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::{Body, Record};
use holdfast_engine::sector_map::{PAGE_SECTORS, Side, map_bytes};
use holdfast_engine::volume::{DirtyLimits, Pending, Setup, Volume};
use holdfast_types::{BLOCK_SECTORS, Epoch, Nonce, Sector, SectorRange, SegmentId, Seq, VolumeId};

use crate::device::Device;
use crate::disk::{Fate, sectors};
use crate::expect::Expect;
use crate::host::{Host, Job};
use crate::rng::Rng;
use crate::store::Store;

/// How often things go wrong: once in so many times, `None` never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// A local read, write or sync.
    pub(crate) local: Option<u64>,
    /// The answer to a create.
    pub(crate) create: Option<u64>,
    /// A checkpoint's PUT.
    pub(crate) checkpoint: Option<u64>,
}

/// Everything there is.
pub(crate) struct World {
    pub(crate) hosts: Vec<Host>,
    pub(crate) store: Store,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) limits: DirtyLimits,
    pub(crate) sectors: u64,
    pub(crate) now: Millis,
    /// Dirty data of fenced writers that was set aside.
    pub(crate) set_aside: u32,
    serial: u64,
    /// Attaches: nonce, host, and whether the host's own data counts in it.
    claims: Vec<(Nonce, usize, bool)>,
    last_writer: Option<usize>,
    /// No disk ever failed.
    sound_disks: bool,
}

/// Requests a device can have in flight.
pub(crate) const DEPTH: u32 = 12;

/// What came of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attach {
    Won,
    Refused,
    /// The process died, or the host, on the way.
    Died,
}

/// Steps of an attach after which it can die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttachStep {
    HeaderWritten,
    HeaderSynced,
    RecordSent,
}

impl World {
    pub(crate) fn new(seed: u64, hosts: usize, sectors: u64, limits: DirtyLimits, faults: Faults) -> Self {
        crate::memory::silence_kills();
        let volume: VolumeId = "model".parse().expect("a volume id");
        Self {
            hosts: (0..hosts).map(|_| Host::new()).collect(),
            store: Store::new(volume, sectors),
            rng: Rng::new(seed),
            faults,
            limits,
            sectors,
            now: 0,
            set_aside: 0,
            serial: 0,
            claims: Vec::new(),
            last_writer: None,
            sound_disks: faults.local.is_none(),
        }
    }

    fn fails(rng: &mut Rng, once_in: Option<u64>) -> bool {
        once_in.is_some_and(|times| rng.once_in(times))
    }

    // ---- the guest ----

    /// The guest asks; `None` when the device is full.
    pub(crate) fn request(&mut self, host: usize, op: Op, range: SectorRange) -> Option<RequestId> {
        let here = &mut self.hosts[host];
        let device = here.device.as_mut().expect("a guest has a device");
        let id = device.free_slot()?;
        self.serial += 1;
        device.issue(id, op, range, self.serial, &mut here.expect);
        if here.process.is_some() && !here.tell(self.now, Event::Request { id, op, range }) {
            self.process_died(host);
        }
        Some(id)
    }

    pub(crate) fn tick(&mut self, host: usize, passed: Millis) {
        self.now += passed;
        self.tell(host, Event::Tick);
    }

    fn tell(&mut self, host: usize, event: Event) {
        if self.hosts[host].process.is_some() && !self.hosts[host].tell(self.now, event) {
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
            Action::Complete { id, result } => {
                let device = here.device.as_mut().expect("requests come from a device");
                if self.sound_disks && result.is_err() {
                    let process = here.process.as_ref().expect("it did the job");
                    assert!(process.volume.status().fenced, "a request failed without a cause: {result:?}");
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
                assert_ne!(self.last_writer, Some(host), "only a writer that was replaced is fenced");
                if let Some(device) = &mut here.device {
                    device.fenced = true;
                    device.closing = true;
                }
            }
            Report::LocalDiskFailed(_) => assert!(!self.sound_disks, "the disk did not fail"),
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
                        assert_eq!(self.last_writer, Some(host), "somebody else wrote since");
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

    // ---- life and death ----

    /// The guest is told to stop, and once it has, the engine to let go.
    pub(crate) fn begin_detach(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        let Some(device) = &mut here.device else { return };
        device.closing = true;
        if let Some(process) = &mut here.process
            && device.is_idle()
            && !std::mem::replace(&mut process.detaching, true)
        {
            self.tell(host, Event::Detach);
        }
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self, host: usize) {
        if self.hosts[host].process.is_some() {
            self.process_died(host);
        }
    }

    /// What was submitted may still be done, all or in part; nobody hears of it.
    fn process_died(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.take() else { return };
        drop(process.volume);
        for job in process.jobs {
            let unheard = job.answer.is_none();
            if unheard && self.rng.once_in(2) {
                self.finish_unheard(host, &job);
            }
        }
        self.take_note();
    }

    fn finish_unheard(&mut self, host: usize, job: &Job) {
        let here = &mut self.hosts[host];
        let mut reaches = 1 + self.rng.below(2) as u64;
        match &job.action {
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                for sector in sectors(*range) {
                    if self.rng.once_in(reaches) {
                        here.disk.side(*side).write(sector, stamp);
                    }
                }
            }
            Action::Punch { range, side, .. } => {
                for sector in sectors(*range) {
                    if self.rng.once_in(reaches) {
                        here.disk.side(*side).write(sector, 0);
                    }
                }
            }
            Action::WriteMap(writes) => {
                for write in writes {
                    here.disk.map.write(write, || true);
                    reaches += 1;
                    if reaches > 3 {
                        break;
                    }
                }
            }
            Action::SyncSide { side } => here.disk.side(*side).sync(job.mark.expect("a sync has a mark")),
            Action::SyncMap => here.disk.map.sync(job.mark.expect("a sync has a mark")),
            Action::StorePending { seq, bytes } => {
                here.disk.pending = Some(Pending { seq: *seq, bytes: bytes.clone() });
            }
            Action::CreateRecord { seq, bytes } => self.store.late.push((*seq, bytes.clone())),
            Action::WriteCheckpoint { seq, bytes } => self.store.put_checkpoint(*seq, bytes.clone()),
            Action::Upload(_)
            | Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Complete { .. }
            | Action::PrepareMap { .. }
            | Action::ReadRecord { .. }
            | Action::Report(_) => {}
        }
    }

    /// The host loses power: unsynced writes meet their fate, tmpfs and guest are gone.
    pub(crate) fn lose_host(&mut self, host: usize, fate: Option<Fate<'_>>) {
        self.process_died(host);
        let here = &mut self.hosts[host];
        here.disk.lose_power(&mut fate.unwrap_or(Fate::Some(&mut self.rng)));
        here.tmpfs.remove();
        here.device = None;
        here.sealed = None;
        here.killed_inside = false;
        here.expect.lose_host();
    }

    /// A new process takes over from a dead one. Says whether there was a live map to take over.
    pub(crate) fn resume(&mut self, host: usize) -> bool {
        let here = &mut self.hosts[host];
        assert!(here.process.is_none(), "one process at a time");
        if !here.tmpfs.holds_a_map() {
            return false;
        }
        let slots = here.disk.map.read(0, 2 * 4096);
        let (header_generation, header) =
            Header::newest(&slots).expect("no header is damaged").expect("an attach writes its header");
        let memory = here.tmpfs.map(0, here.killed_after.clone());
        let setup =
            Setup { requests: DEPTH, limits: self.limits, header, header_generation, unix_ms_at_zero: 0 };
        let Ok(volume) = Volume::resume(setup, memory, here.disk.pending.clone(), self.now) else {
            // The process died while it made the map: nothing was served from it.
            here.tmpfs.remove();
            here.device = None;
            return false;
        };
        here.begin(volume, Vec::new(), true);
        let device = here.device.get_or_insert_with(|| Device::new(DEPTH));
        device.ready |= !here.process.as_ref().expect("it began").volume.status().recovering;
        let again = device.reissue();
        for (id, op, range) in again {
            self.tell(host, Event::Request { id, op, range });
        }
        true
    }

    /// The manifest of a resumed volume arrives.
    pub(crate) fn load_manifest(&mut self, host: usize) {
        let Some(process) = &mut self.hosts[host].process else { return };
        if std::mem::take(&mut process.awaits_manifest) {
            let manifest = self.store.manifest();
            self.tell(host, Event::ManifestLoaded(Box::new(manifest)));
        }
    }

    /// Attaches the volume at `host`. With `dies`, the process or the whole host dies after that step.
    pub(crate) fn attach(&mut self, host: usize, take_over: bool, dies: Option<AttachStep>) -> Attach {
        loop {
            let here = &mut self.hosts[host];
            assert!(here.process.is_none() && !here.tmpfs.holds_a_map(), "attached already");
            // What a dead process wrote and did not sync is no ground to write the other slot on.
            here.disk.map.sync(here.disk.map.mark());
            let found = Header::newest(&here.disk.map.read(0, 2 * 4096)).expect("no header is damaged");
            let manifest = self.store.manifest();
            let claim = Claim {
                node: host.to_string(),
                nonce: Nonce(self.rng.bytes()),
                unix_ms: self.now,
                grow_to: None,
                take_over,
            };
            let plan = match plan_attach(&manifest, found.as_ref().map(|(_, header)| header), &claim) {
                Ok(plan) => plan,
                Err(AttachRefused::AttachedElsewhere { .. }) => {
                    assert_ne!(self.last_writer, Some(host));
                    return Attach::Refused;
                }
                Err(refused) => panic!("{refused}"),
            };
            let mut pages = Vec::new();
            if let Some((_, header)) = &found {
                let count = header.sectors.div_ceil(PAGE_SECTORS);
                let pairs: Vec<_> =
                    (0..count).map(|page| (page, here.disk.map.read(page_offset(page, 0), 8192))).collect();
                pages = newest_pages(header, &pairs).expect("no page is damaged");
            }
            let mut generation = found.as_ref().map_or(0, |(generation, _)| *generation);
            if plan.local == LocalData::Foreign {
                assert_ne!(self.last_writer, Some(host), "own data is never foreign");
                self.set_aside += u32::from(holds_dirty(&pages));
                here.disk = Default::default();
                pages.clear();
                generation = 0;
            }
            generation += 1;
            let keeps = self.last_writer == Some(host) && plan.local != LocalData::Absent;
            if !keeps && matches!(plan.local, LocalData::Ours { .. }) {
                // An attach was intended here and never won: there is nothing yet.
                assert!(!holds_dirty(&pages) && plan.local == LocalData::Ours { trust_clean: false });
            }
            self.claims.push((claim.nonce, host, keeps));

            let slot = u8::from(generation % 2 == 1);
            let write = MapWrite { offset: header_offset(slot), bytes: plan.header.encode(generation) };
            here.disk.map.write(&write, || true);
            if dies == Some(AttachStep::HeaderWritten) {
                return Attach::Died;
            }
            here.disk.map.sync(here.disk.map.mark());
            if dies == Some(AttachStep::HeaderSynced) {
                return Attach::Died;
            }
            let won = self.create_attach(&plan.record);
            self.take_note();
            if dies == Some(AttachStep::RecordSent) {
                return Attach::Died;
            }
            if !won {
                continue;
            }
            let trust_clean = plan.local == LocalData::Ours { trust_clean: true };
            let mut header = plan.header;
            header.epoch = plan.record.epoch;
            return self.serve(host, header, generation, &pages, trust_clean);
        }
    }

    /// Each host attached this volume so often, without writing, that its header is longer than one 512-byte unit.
    pub(crate) fn age_headers(&mut self) {
        for host in &mut self.hosts {
            let header = Header {
                volume: self.store.manifest().volume().clone(),
                sectors: self.sectors,
                epoch: Epoch(0),
                nonces: (0..REMEMBERED_NONCES).map(|_| Nonce(self.rng.bytes())).collect(),
                active: Side::A,
                closed_clean: false,
                seq: Seq(0),
                synced_generation: 0,
            };
            let write = MapWrite { offset: header_offset(1), bytes: header.encode(1) };
            host.disk.map.write(&write, || true);
            host.disk.map.sync(host.disk.map.mark());
        }
    }

    /// Fills the log with records of writers that came and went.
    pub(crate) fn age_log(&mut self, records: u64) {
        for count in 0..records {
            let manifest = self.store.manifest();
            let (epoch, body) = if manifest.is_attached() {
                (manifest.epoch(), Body::Detach)
            } else {
                (manifest.epoch().next(), Body::Attach { sectors: self.sectors, node: String::new() })
            };
            let nonce =
                manifest.writer().filter(|_| manifest.is_attached()).unwrap_or(Nonce([count as u8; 16]));
            let volume = manifest.volume().clone();
            let record = Record { volume, seq: manifest.seq().next(), epoch, nonce, unix_ms: 0, body };
            assert!(self.store.create(record.seq, &record.encode()));
        }
        self.store.landed.clear();
    }

    /// Creates the attach record; whether this writer's is the one that stands there.
    fn create_attach(&mut self, record: &Record) -> bool {
        let bytes = record.encode();
        if self.rng.once_in(4) {
            self.land_late();
        }
        loop {
            if self.create(record.seq, &bytes) == CreateAnswer::Created {
                return true;
            }
            match self.store.record(record.seq) {
                Some(there) => {
                    return Record::decode(&there).expect("nobody damages records").nonce == record.nonce;
                }
                None => continue,
            }
        }
    }

    fn serve(
        &mut self,
        host: usize,
        header: Header,
        header_generation: u64,
        pages: &[holdfast_engine::durable_map::FoundPage],
        trust_clean: bool,
    ) -> Attach {
        let manifest: Manifest = self.store.manifest();
        let now = self.now;
        let limits = self.limits;
        let here = &mut self.hosts[host];
        let setup = Setup { requests: DEPTH, limits, header, header_generation, unix_ms_at_zero: 0 };
        let memory = here.tmpfs.map(map_bytes(self.sectors), here.killed_after.clone());
        let mut out = Vec::new();
        here.sealed = None;
        let volume = here.run(|_| Volume::attach(setup, memory, manifest, pages, trust_clean, now, &mut out));
        here.device = Some(Device::new(DEPTH));
        match volume {
            Some(volume) => {
                here.begin(volume, out, false);
                Attach::Won
            }
            None => Attach::Died,
        }
    }

    /// Reads every sector the guest of `host` ever touched, from the store alone.
    pub(crate) fn check_store(&mut self, host: usize) {
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
            assert!(
                allowed.contains(&stamp),
                "the store has write {stamp} in sector {sector}; allowed: {allowed:?}"
            );
        }
    }

    /// A fenced writer gives up: its process ends, its files stay.
    pub(crate) fn give_up(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        here.process = None;
        here.tmpfs.remove();
        here.device = None;
        here.sealed = None;
    }
}
