//! Random schedules: any order of jobs and answers, any death at any point, writers that replace each other.

mod crowd;
mod family_member;
mod forks;

use holdfast_engine::event::Op;
use holdfast_engine::round_size::RoundSize;
use holdfast_engine::settings::{DirtyLimits, Durability, RuntimeSettings};
use holdfast_types::{Epoch, SectorRange, VolumeId};

use crate::host::HostFault;
use crate::invariant::Invariant;
use crate::profile::{Deaths, FaultRates, Profile};
use crate::rng::Rng;
use crate::trace::Trace;
use crate::world::{AttachResult, AttachStep, Faults, World};

/// Hosts of a run.
pub(crate) const HOSTS: usize = 3;
/// Three chunks, the last one partial.
const SECTORS: u64 = 70_000;
/// Initial size of some volumes: two chunks, the last page of the map partial. They grow later.
const FEWER_SECTORS: u64 = 50_001;
/// Positions at which something begins or ends: blocks, map pages, chunks, the volume.
const HOT_SECTORS: [u64; 7] = [0, 32, 4096, 32_768 - 20, 32_768, 65_536, SECTORS - 40];
/// Limits of the sides in sectors, for runs that have one.
const SHARES: [u64; 4] = [16, 64, 200, 600];
/// Steps after which a volume that has not come to rest is stuck.
const PATIENCE: u32 = 60_000;
/// Mean number of turns that a host's faults last, and that a sleeper pauses.
const FAULT_TURNS: u64 = 160;
const LONG_SLEEP: u64 = 500;
const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 96 * 4096, max_bytes: 192 * 4096, max_age_ms: 2000 };

/// One run in progress.
pub(crate) struct Schedule {
    pub(crate) world: World,
    seed: u64,
    /// Steps taken.
    pub(crate) steps_taken: u64,
    deaths: Deaths,
    fault_rates: FaultRates,
    home: usize,
    /// True if the volume is to leave its home, and attach there next.
    is_leaving: bool,
    /// The epoch of the attached writer when the API server was last queried.
    seen_epoch: Option<Epoch>,
    /// True if processes pause for a long time.
    has_long_pauses: bool,
    /// Number of volumes that share the faults of their hosts.
    crowd: u64,
    /// True if some writes are FUA writes.
    fua: bool,
}

fn range(rng: &mut Rng, sectors: u64) -> SectorRange {
    let longest = if rng.once_in(60) { 1500 } else { *rng.pick(&[1, 2, 8, 64]) };
    let length = 1 + rng.below(longest) as u64;
    let start = (rng.pick(&HOT_SECTORS) + rng.below(40) as u64).min(sectors - 1);
    SectorRange::new(start, length.min(sectors - start).min(1500))
}

/// Shortens the log: few runs are long enough to truncate a log of the usual length.
fn shorten_log(world: &mut World, profile: Profile) {
    let (records, seal_bytes, max_age_ms) = match (profile == Profile::Sleepers, profile.is_timely()) {
        (true, _) => (2, 4096, 300),
        // A commit may wait for a checkpoint, but not every one should.
        (false, true) => (8, 16 * 4096, LIMITS.max_age_ms),
        (false, false) => (*world.rng.pick(&[2, 3]), 16 * 4096, 300),
    };
    world.shorten_log(records);
    // Sleepers are to find their log truncated.
    let denies_deletes = profile != Profile::Sleepers && world.rng.once_in(3);
    world.failures.deny_deletes(denies_deletes);
    world.terms.limits = DirtyLimits { seal_bytes, max_age_ms, ..LIMITS };
}

impl Schedule {
    /// Creates three hosts around a new volume.
    pub(crate) fn new(seed: u64, story: usize) -> Self {
        Self::of_volume("model".parse().expect("a volume id"), seed, Profile::of(seed), story)
    }

    /// Creates three hosts around a new volume of this name, with any profile.
    pub(crate) fn of_volume(volume: VolumeId, seed: u64, profile: Profile, story: usize) -> Self {
        let sectors = if Rng::new(seed).once_in(3) { FEWER_SECTORS } else { SECTORS };
        let mut world = World::of_volume(volume, seed, HOSTS, sectors, LIMITS, profile.faults());
        world.trace = Trace::new(story);
        world.terms.timely = profile.is_timely();
        // Every profile is run with both durabilities.
        if seed / Profile::ALL.len() as u64 % 2 == 1 {
            world.set_durability(Durability::Object);
        }
        if world.rng.once_in(2) {
            world.age_headers();
        }
        if world.rng.once_in(2) {
            let share = *world.rng.pick(&SHARES);
            world.limit_cache(share);
        }
        if matches!(profile, Profile::Sleepers | Profile::OtherDisks) || world.rng.once_in(3) {
            shorten_log(&mut world, profile);
        }
        // Concurrent changes rarely fill a group of the usual size. A job for each page takes a while.
        if !profile.is_timely() && world.rng.once_in(2) {
            let (copied, journaled, written) = *world.rng.pick(&[(1, 1, 1), (2, 5, 1), (3, 3, 2)]);
            // As with cuts: few runs of other disks reach their actual subject.
            let has_journal = profile != Profile::OtherDisks;
            let journal_slots = Some(if has_journal { *world.rng.pick(&[0, 2, 3, 5]) } else { 0 });
            world.slice_rounds(RoundSize { copied, journaled, written, saved: 1, journal_slots });
        }
        Self::with_world(world, seed, profile)
    }

    fn with_world(world: World, seed: u64, profile: Profile) -> Self {
        Self {
            world,
            seed,
            steps_taken: 0,
            deaths: profile.deaths(),
            fault_rates: profile.fault_rates(),
            home: 0,
            is_leaving: false,
            seen_epoch: None,
            has_long_pauses: profile == Profile::Sleepers,
            crowd: 1,
            // Every profile is run with and without, for both durabilities; but timely runs measure the
            // age of uncommitted data by writes that complete once they are stored.
            fua: !profile.is_timely() && (seed / (2 * Profile::ALL.len() as u64)).is_multiple_of(2),
        }
    }

    fn rng(&mut self) -> &mut Rng {
        &mut self.world.rng
    }

    fn step_client(&mut self, host: usize) {
        let Some(device) = &self.world.hosts[host].device else { return };
        let sectors = device.sectors;
        if self.world.hosts[host].is_shut() || !device.ready || device.closing || device.free_slot().is_none()
        {
            return;
        }
        let mut op = *self.rng().pick(&[
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Write,
            Op::Read,
            Op::Read,
            Op::Read,
            Op::Flush,
            Op::Discard,
            Op::WriteZeroes,
        ]);
        if op == Op::Write && self.fua && self.rng().once_in(3) {
            op = Op::WriteFua;
        }
        let mut range = range(self.rng(), sectors);
        // A client that gets a read error overwrites the sector.
        let lost = self.world.status(host).and_then(|status| status.unreadable);
        if let Some(lost) = lost
            && self.rng().once_in(4)
        {
            range = lost.first;
        }
        match op {
            Op::Flush => range = SectorRange::new(0, 0),
            Op::Read | Op::Write | Op::WriteFua => range.sectors = range.sectors.min(64),
            Op::Discard | Op::WriteZeroes => {}
        }
        self.world.request(host, op, range);
    }

    /// Runs one job of `host`.
    fn step_daemon(&mut self, host: usize) {
        let Some(process) = &self.world.hosts[host].process else { return };
        let jobs = process.jobs.len();
        if jobs == 0 {
            return;
        }
        let job = self.rng().below(jobs);
        let turns = self.world.mean_wait_turns(host, job);
        if self.world.is_due(host, job) && turns.is_none_or(|turns| self.rng().once_in(turns)) {
            self.world.step_job(host, job);
        }
    }

    fn roll(&mut self, once_in: Option<u64>) -> bool {
        once_in.is_some_and(|times| self.rng().once_in(times))
    }

    fn step_deaths(&mut self, host: usize) {
        if self.roll(self.deaths.kill) {
            self.world.kill(host);
        }
        // A record in flight is the worst state to leave behind, but a paused process resumes with it.
        let sleeps = self.has_long_pauses && self.world.hosts[host].fault.paused;
        if !sleeps
            && self.deaths.kill.is_some()
            && self.world.has_record_in_flight(host)
            && self.roll_death_during_create()
        {
            self.world.kill(host);
        }
        if self.roll(self.deaths.kill_inside) {
            let after = *self.rng().pick(&[0, 1, 3, 10, 60, 300]);
            self.world.kill_inside(host, after);
        }
        if self.roll(self.fault_rates.other_disk) {
            self.replace_state(host);
        }
        if self.roll(self.deaths.lose_host) {
            self.world.lose_host(host, None);
            if host == self.home && self.deaths.take_over.is_some() && self.rng().once_in(2) {
                self.home = self.pick_other_host();
            }
        }
        if host == self.home && self.roll(self.deaths.take_over) {
            self.home = self.pick_other_host();
        }
        if host == self.home && self.roll(self.deaths.detach) {
            self.is_leaving = true;
        }
    }

    /// Replaces the disk of a host, sets the bucket back, or creates the volume again in an emptied
    /// bucket.
    fn replace_state(&mut self, host: usize) {
        // Most snapshots are kept until commits have made them old.
        let is_old = self.world.has_old_snapshot(host);
        match self.rng().below(26) {
            0..=15 if is_old.is_none() || self.rng().once_in(8) => self.world.take_snapshot(host),
            16 => self.world.empty_disk(host),
            17..=20 if is_old == Some(true) || self.rng().once_in(8) => self.world.set_disk_back(host),
            21 | 22 => {
                let to = (host + 1) % self.world.hosts.len();
                self.world.copy_disk(host, to);
                if self.rng().once_in(2) {
                    self.home = to;
                }
            }
            23 => self.world.create_volume_again(),
            24 if !self.world.has_backup() || self.rng().once_in(2) => self.world.take_backup(),
            25 => self.world.set_bucket_back(),
            _ => {}
        }
    }

    /// Decides if the process of `host` pauses now. In a run of sleepers that is most likely after it has
    /// read the log or while a record is in flight; then the volume is moved to another host.
    fn decide_pause(&mut self, host: usize) -> bool {
        let Some(process) = &self.world.hosts[host].process else { return false };
        if self.has_long_pauses && self.world.hosts.iter().any(|host| host.fault.paused) {
            return false;
        }
        let often =
            match (self.has_long_pauses, process.volume.is_none(), self.world.has_record_in_flight(host)) {
                (true, true, true) => Some(3),
                (true, false, true) => Some(40),
                (true | false, ..) => self.fault_rates.pause,
            };
        let falls = self.roll(often);
        if falls && self.has_long_pauses && host == self.home {
            self.home = self.pick_other_host();
        }
        falls
    }

    /// Begins or ends the faults of limited duration.
    fn step_faults(&mut self, host: usize) {
        let HostFault { mut cut_off, mut paused, mut full, mut slow } = self.world.hosts[host].fault;
        let turn = |run: &mut Self, now: bool, begins| {
            if now { !run.rng().once_in(FAULT_TURNS) } else { run.roll(begins) }
        };
        cut_off = turn(self, cut_off, self.fault_rates.cut_off);
        let wakes = if self.has_long_pauses { LONG_SLEEP } else { FAULT_TURNS };
        paused = if paused { !self.rng().once_in(wakes) } else { self.decide_pause(host) };
        full = turn(self, full, self.fault_rates.fill);
        slow = turn(self, slow, self.fault_rates.slow);
        if self.roll(self.fault_rates.corruption) {
            let sector = self.rng().below(SECTORS as usize) as u64;
            let near = *self.rng().pick(&[sector, HOT_SECTORS[0], HOT_SECTORS[3]]);
            self.world.corrupt(host, near);
        }
        paused &= self.world.hosts[host].process.is_some();
        self.world.set_fault(host, HostFault { cut_off, paused, full, slow });
    }

    fn pick_other_host(&mut self) -> usize {
        let hosts = self.world.hosts.len();
        (self.home + 1 + self.rng().below(hosts - 1)) % hosts
    }

    /// Returns the writer that the next attach may replace, as the API server shows it to that host:
    /// sometimes none, sometimes an outdated one.
    fn pick_permission(&mut self) -> Option<Epoch> {
        if self.rng().once_in(4) {
            return None;
        }
        if !self.rng().once_in(3) {
            self.seen_epoch = self.world.attached_epoch();
        }
        self.seen_epoch
    }

    /// Starts missing processes and stops superfluous ones.
    fn start_or_stop_process(&mut self, host: usize) {
        let here = &self.world.hosts[host];
        if here.device.as_ref().is_some_and(|device| device.fenced && device.is_idle())
            && here.process.is_some()
        {
            return self.world.begin_detach(host);
        }
        if self.world.hosts[host].attempt.take_result() == Some(AttachResult::Died)
            && self.deaths.lose_host.is_some()
            && self.rng().once_in(2)
        {
            return self.world.lose_host(host, None);
        }
        let here = &self.world.hosts[host];
        if here.process.is_none() && here.tmpfs.has_map() {
            if self.rng().once_in(10) {
                // The time of day may have been changed in the meantime.
                let unix_ms = self.rng().bits() >> 23;
                self.world.set_time_of_day(unix_ms);
                self.world.resume(host);
            }
            return;
        }
        if host == self.home && here.process.is_none() && self.rng().once_in(10) {
            let step = *self.rng().pick(&[
                AttachStep::HeaderWritten,
                AttachStep::HeaderSynced,
                AttachStep::RecordSent,
            ]);
            let dies_after = (self.deaths.kill.is_some() && self.rng().once_in(6)).then_some(step);
            self.world.terms.grow_to = self.roll(self.deaths.grow).then_some(SECTORS);
            let replaces = self.pick_permission();
            self.world.begin_attach(host, replaces, dies_after);
        }
        if host == self.home && self.is_leaving {
            let here = &self.world.hosts[host];
            match (&here.device, &here.process) {
                (None, None) => {
                    self.is_leaving = false;
                    self.home = if self.rng().once_in(2) { host } else { self.pick_other_host() };
                }
                (Some(device), Some(_)) if !device.fenced => self.world.begin_detach(host),
                _ => {}
            }
        }
    }

    /// Grows the volume while it is served.
    fn grow(&mut self, host: usize) {
        let Some(sectors) = self.world.device_sectors(host) else { return };
        let more = 1 + self.rng().below(SECTORS as usize) as u64;
        self.world.grow(host, (sectors + more).min(SECTORS));
    }

    /// Changes the settings of the served volume, or repeats the current ones.
    fn configure(&mut self, host: usize) {
        if self.world.status(host).is_none() {
            return;
        }
        let durability = *self.rng().pick(&[Durability::Local, Durability::Object]);
        let usual = self.world.terms.limits.max_age_ms;
        let max_age_ms = *self.rng().pick(&[usual / 2, usual, 2 * usual]);
        self.world.configure(host, RuntimeSettings { max_age_ms, durability });
        // In runs with long-lived processes, seals stay as large as the limits allow.
        if self.deaths.kill.is_some() {
            let soon = self.rng().once_in(8);
            self.world.commit_soon(host, soon);
        }
    }

    /// Acts on snapshots. The control plane hurries while no writer is attached.
    fn step_snapshots(&mut self, host: usize) {
        let repeat = self.rng().once_in(4);
        match self.rng().below(12) {
            0 | 1 => self.world.request_snapshot(host, repeat),
            2 => self.world.check_random_snapshot(),
            3 if self.world.control_is_idle() => self.world.begin_forget(),
            4 if self.world.control_is_idle() => self.world.begin_control_snapshot(repeat),
            5 if self.world.control_is_idle() => self.world.begin_sweep(),
            _ => {
                let steps = if self.rng().once_in(2) { 1 } else { 8 };
                (0..steps).for_each(|_| self.world.step_control());
            }
        }
    }

    /// Takes step `number`. It has its own randomness, so that it makes the same choices even if earlier
    /// steps are left out.
    pub(crate) fn step(&mut self, number: u64) {
        self.steps_taken += 1;
        self.world.trace.begin_step(number);
        let seed = Rng::new(self.seed).bits() ^ number;
        self.world.rng = Rng::new(Rng::new(seed).bits());
        let hosts = self.world.hosts.len();
        let host = if self.rng().once_in(3) { self.rng().below(hosts) } else { self.home };
        self.step_faults(host);
        if self.world.hosts[host].fault.paused {
            return self.step_deaths(host);
        }
        self.start_or_stop_process(host);
        match self.rng().below(20) {
            // Sleepers' clients send few requests, so that most of the run is commits.
            0..=3 if self.has_long_pauses => self.step_daemon(host),
            0..=4 => self.step_client(host),
            5 => {
                let passed = self.rng().below(400) as u64;
                self.world.tick(host, passed);
            }
            6 if self.rng().once_in(16) => self.world.land_late_request(),
            // The model treats a repair's commit as one without new data, which says nothing about time.
            7 if !self.world.terms.timely && self.rng().once_in(20) => {
                let sectors = self.world.terms.sectors;
                let ranges = (0..self.rng().below(4)).map(|_| range(self.rng(), sectors)).collect();
                let checkpoint = self.rng().once_in(4);
                self.world.repair(host, ranges, checkpoint);
            }
            8 if self.rng().once_in(3) => self.step_snapshots(host),
            // A cut survives neither its process nor its disk.
            11 if self.fault_rates.other_disk.is_none() && self.rng().once_in(3) => {
                let hasty = self.rng().once_in(8);
                self.world.advance_cut(host, hasty);
            }
            9 if self.roll(self.deaths.grow) => self.grow(host),
            10 if self.rng().once_in(4) => self.configure(host),
            _ => self.step_daemon(host),
        }
        self.step_deaths(host);
    }

    /// Ends all failures and requests.
    fn end_failures(&mut self) {
        self.world.set_faults(Faults::default());
        self.deaths = Deaths::default();
        self.fault_rates = FaultRates::default();
        for host in 0..self.world.hosts.len() {
            self.world.restore_reads(host);
        }
        for host in &mut self.world.hosts {
            host.death_counter.set(None);
            host.fault = HostFault::default();
            if let Some(process) = &mut host.process {
                process.dies_after = None;
            }
        }
    }

    /// Takes one step towards rest, on any host.
    fn settle_step(&mut self) {
        let hosts = self.world.hosts.len();
        let host = self.rng().below(hosts);
        if self.world.hosts[host].fault.paused {
            return;
        }
        self.start_or_stop_process(host);
        if self.rng().once_in(30) {
            self.world.tick(host, 200);
        } else {
            self.step_daemon(host);
        }
    }

    /// Brings everything to rest.
    fn settle(&mut self, until: impl Fn(&Self) -> bool) {
        self.end_failures();
        for _ in 0..PATIENCE {
            if until(self) {
                return;
            }
            self.settle_step();
        }
        self.fail_as_stuck()
    }

    fn fail_as_stuck(&self) -> ! {
        let home = &self.world.hosts[self.home];
        let jobs = self.world.describe_jobs(self.home);
        Invariant::ComesToRest.broken(&format!(
            "stuck: {:?} with {jobs}, device {:?}",
            self.world.status(self.home),
            home.device.as_ref().map(|d| (d.ready, d.closing, d.fenced, d.is_idle()))
        ));
    }

    fn device_is_idle(&self) -> bool {
        let device = self.world.hosts[self.home].device.as_ref();
        device.is_some_and(|device| device.ready && device.is_idle())
    }

    fn read_all(&mut self) {
        let touched = self.world.hosts[self.home].content.model.touched();
        for pair in touched.chunks(24) {
            let (first, last) = (pair[0], pair[pair.len() - 1]);
            let pieces: Vec<_> = if last - first < 200 {
                vec![SectorRange::new(first, last - first + 1)]
            } else {
                pair.iter().map(|sector| SectorRange::new(*sector, 1)).collect()
            };
            for piece in pieces {
                self.settle(|run| {
                    let device = run.world.hosts[run.home].device.as_ref();
                    device.is_some_and(|device| device.ready && device.free_slot().is_some())
                });
                self.world.request(self.home, Op::Read, piece);
            }
        }
        self.settle(Self::device_is_idle);
    }

    /// Checks everything at home, from the store alone, and on another host.
    pub(crate) fn finish(&mut self) {
        self.read_everywhere();
        self.world.check_sweep();
        self.world.check_snapshots();
        self.world.check_whole();
        // Every profile is run with and without this.
        if self.world.company.is_none() && (self.seed / Profile::ALL.len() as u64).is_multiple_of(3) {
            self.continue_in_forks();
        }
        self.world.check_decay(Rng::new(self.seed));
        self.world.check_removal();
    }

    /// Reads the clients' data in these three ways.
    fn read_everywhere(&mut self) {
        let mut left = false;
        for _ in 0..3 {
            if !left {
                left = self.read_and_leave();
            }
        }
        Invariant::ComesToRest.check(left, || "a home that was fenced is fenced again and again".into());
        self.settle_control();
        self.world.check_store(self.home);
        self.home = (self.home + 1) % self.world.hosts.len();
        while !self.read_and_leave() {}
        self.world.check_store(self.home);
    }

    /// Completes the operation of the control plane.
    fn settle_control(&mut self) {
        for _ in 0..PATIENCE {
            if self.world.control_is_idle() {
                return;
            }
            self.world.step_control();
        }
        Invariant::ComesToRest.broken("the control plane asks and asks");
    }

    /// Returns true if the home detached; if it was fenced instead, it is ready to attach again.
    fn read_and_leave(&mut self) -> bool {
        self.is_leaving = false;
        self.settle(|run| {
            let device = run.world.hosts[run.home].device.as_ref();
            device.is_some_and(|device| device.fenced || device.closing || (device.ready && device.is_idle()))
        });
        let home = self.home;
        if self.device_is_idle() && !self.world.hosts[home].device.as_ref().is_some_and(|d| d.closing) {
            self.read_all();
        }
        self.is_leaving = true;
        self.settle(|run| run.world.hosts[home].device.is_none());
        self.is_leaving = false;
        self.world.has_released(home)
    }
}
