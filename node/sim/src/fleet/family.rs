//! Volumes of one bucket that are forked from each other and live at the same time, on the same hosts.
//!
//! ```text
//!   Unborn --made--> Living --chosen--> Leaving --on no host, and read--> Ending --removed--> Ended
//!     '-- its snapshot was forgotten ----------------------------------------------------------^
//! ```
//!
//! Owns: the creation and removal of volumes. Each keeps its own schedule, view of its log and model. Its
//! control plane creates it, takes and forgets its snapshots, sweeps the bucket and removes it. It does one
//! operation at a time, with requests that fail and wait. The control planes of all volumes work
//! concurrently.
//! Invariants: 22, 23 and 30 between living volumes, besides those of every volume.

mod case;

pub use case::FamilyCase;

use std::mem;
use std::rc::Rc;

use holdfast_types::SnapshotName;

use super::{Fleet, SharedHost};
use crate::expect::CapturedContent;
use crate::invariant::Invariant;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::schedule::{HOSTS, Schedule};
use crate::shared::{ProcessResources, UPLOAD_BYTES};
use crate::store::Bucket;
use crate::world::{Company, Settled, Victim};

use super::outages::Outages;

/// The profiles of families, used alternately.
const PROFILES: [Profile; 8] = [
    Profile::Sleepers,
    Profile::Calm,
    Profile::BadStore,
    Profile::Kills,
    Profile::Everything,
    Profile::PowerCuts,
    Profile::Rivals,
    Profile::Partitions,
];
/// Volumes created in a run, for each that lives at the same time.
const BIRTHS: u64 = 4;
/// Mean number of turns of a volume before it begins to leave.
const LIFE: u64 = 300;
/// Maximum steps of a control plane in a turn. Two of them may be close together.
const STRIDES: [usize; 3] = [1, 3, 12];

/// Stages of a volume's life.
enum LifeStage {
    /// Its control plane creates it, as a fork of this snapshot, which captured this content.
    Unborn(SnapshotName, Rc<CapturedContent>),
    Living,
    /// The volume leaves every host; the number of steps taken.
    Leaving(u32),
    /// No host has it, and its control plane removes it.
    Ending,
    /// The volume is removed, or was never created. Requests sent for it may still arrive.
    Ended,
}

/// One run in progress.
pub(crate) struct Family {
    fleet: Fleet,
    profile: Profile,
    story: usize,
    /// Maximum volumes at the same time.
    max_volumes: usize,
    /// Stages by volume of the fleet.
    stages: Vec<LifeStage>,
    /// Volumes that ended and whose slots others took.
    past: Vec<Schedule>,
    /// Volumes planned so far, including the first one.
    created_volumes: u64,
}

impl Family {
    /// Creates a family of one volume that grows up to `max_volumes`.
    pub(crate) fn new(seed: u64, max_volumes: usize, story: usize) -> Self {
        let profile = PROFILES[(seed % PROFILES.len() as u64) as usize];
        let mut rng = Rng::new(seed);
        let name = "volume".parse().expect("a volume id");
        let mut first = Schedule::of_volume(name, rng.bits(), profile, story);
        first.join_crowd(max_volumes as u64);
        first.world.join(0, Company::in_one_bucket(vec![ProcessResources::new(UPLOAD_BYTES); HOSTS]));
        let mut bucket = Bucket::default();
        first.world.store.swap_bucket(&mut bucket);
        let fleet = Fleet {
            volumes: vec![first],
            nodes: (0..HOSTS as u32).map(|host| SharedHost::new(host, max_volumes)).collect(),
            outages: Outages::new(&[]),
            upload_bytes: UPLOAD_BYTES,
            bucket: Some(bucket),
            seed,
            rng,
            steps_taken: 0,
        };
        Self {
            fleet,
            profile,
            story,
            max_volumes,
            stages: vec![LifeStage::Living],
            past: Vec::new(),
            created_volumes: 1,
        }
    }

    /// Returns the number of requests, jobs, answers and deaths of all volumes.
    fn operations(&self) -> u64 {
        self.fleet.operations() + self.past.iter().map(|volume| volume.world.trace.operations).sum::<u64>()
    }

    /// Takes step `number`. It has its own randomness, so that it makes the same choices even if earlier
    /// steps are left out.
    fn step(&mut self, number: u64) {
        self.fleet.begin_step(number);
        let fleet = &mut self.fleet;
        let (volume, host) = (fleet.rng.below(fleet.volumes.len()), fleet.rng.below(HOSTS));
        let world = &mut fleet.volumes[volume].world;
        world.trace.begin_step(number);
        world.reseed(fleet.rng.bits());
        match fleet.rng.below(24) {
            0 => fleet.step_other_program(host),
            1 if fleet.rng.once_in(100) => fleet.apply_death(host, Victim::Process),
            2 if fleet.rng.once_in(2) => self.fork(volume),
            2 | 3 => self.step_control(volume),
            4..=7 => {
                let home = fleet.volumes[volume].home();
                let at = if fleet.rng.once_in(3) { host } else { home };
                fleet.step_device(at, volume);
            }
            _ => self.step_volume(volume, number),
        }
    }

    fn step_volume(&mut self, volume: usize, number: u64) {
        match &mut self.stages[volume] {
            LifeStage::Living if self.fleet.rng.once_in(LIFE * self.max_volumes as u64) => {
                self.begin_leaving(volume)
            }
            LifeStage::Living => self.fleet.step_volume(volume, |schedule| schedule.step(number)),
            LifeStage::Leaving(taken) => {
                *taken += 1;
                let taken = *taken;
                self.leave_step(volume, taken);
            }
            LifeStage::Unborn(..) | LifeStage::Ending => self.step_control(volume),
            LifeStage::Ended => self.fleet.with_volume(volume, |schedule| schedule.world.land_late_request()),
        }
    }

    // ---- births ----

    /// Begins a fork of one of the volume's snapshots, if a slot is free: sometimes of a forgotten one.
    fn fork(&mut self, volume: usize) {
        let has_snapshots =
            matches!(self.stages[volume], LifeStage::Living | LifeStage::Leaving(_) | LifeStage::Ending);
        let ended = self.stages.iter().position(|stage| matches!(stage, LifeStage::Ended));
        let place = ended.or_else(|| (self.stages.len() < self.max_volumes).then_some(self.stages.len()));
        let (true, Some(place)) =
            (has_snapshots && self.created_volumes < BIRTHS * self.max_volumes as u64, place)
        else {
            return;
        };
        let any = self.fleet.rng.once_in(4);
        let choice = self.fleet.rng.bits();
        let found = self.fleet.with_volume(volume, |schedule| {
            let store = &schedule.world.store;
            let registered = store.registered().iter().map(|known| known.seq).collect();
            let seqs = if any { registered } else { store.live_snapshots() };
            let seq = *seqs.get(choice as usize % seqs.len().max(1))?;
            let cut = store.cut_of_snapshot(seq).expect("it is registered");
            Some((SnapshotName { volume: store.volume().clone(), seq }, cut))
        });
        let Some((source, cut)) = found else { return };
        if self.fleet.rng.once_in(3) {
            self.forget(&source);
        }
        let name = format!("fork-{}", self.created_volumes).parse().expect("a volume id");
        let seed = self.fleet.rng.bits();
        let parent = &self.fleet.volumes[volume];
        let mut fork = parent.create_fork(name, seed, self.profile, self.story);
        let company = parent.world.company.as_ref().expect("it is one of several");
        fork.world.join(self.created_volumes, Company::in_one_bucket(company.shared.clone()));
        fork.join_crowd(self.max_volumes as u64);
        self.created_volumes += 1;
        if place < self.stages.len() {
            self.past.push(mem::replace(&mut self.fleet.volumes[place], fork));
            self.stages[place] = LifeStage::Unborn(source, cut);
        } else {
            self.fleet.volumes.push(fork);
            self.stages.push(LifeStage::Unborn(source, cut));
        }
    }

    /// Lets the control plane of a volume work for a while. It creates a volume that is not born, and
    /// removes one that no host has.
    fn step_control(&mut self, volume: usize) {
        let stride = *self.fleet.rng.pick(&STRIDES);
        let steps = 1 + self.fleet.rng.below(stride);
        self.fleet.with_volume(volume, |schedule| schedule.step_control(steps));
        match &self.stages[volume] {
            LifeStage::Unborn(source, cut) => {
                let (source, cut) = (source.clone(), Rc::clone(cut));
                self.create_fork(volume, source, &cut);
            }
            LifeStage::Ending => self.remove(volume),
            LifeStage::Living | LifeStage::Leaving(_) | LifeStage::Ended => {}
        }
    }

    /// Begins to forget the snapshot, if its volume lives.
    fn forget(&mut self, snapshot: &SnapshotName) {
        let volumes = self.fleet.volumes.iter();
        let owner = volumes.zip(&self.stages).position(|(schedule, stage)| {
            *schedule.world.store.volume() == snapshot.volume && matches!(stage, LifeStage::Living)
        });
        if let Some(owner) = owner {
            self.begin(owner, |schedule| schedule.world.begin_forget_of(snapshot.seq));
        }
    }

    fn create_fork(&mut self, volume: usize, source: SnapshotName, cut: &Rc<CapturedContent>) {
        let dies = self.fleet.rng.once_in(30);
        let settled = self.fleet.with_volume(volume, |schedule| {
            let world = &mut schedule.world;
            if dies {
                world.lose_control();
            }
            world.take_settled()
        });
        match settled {
            Some(Settled::Made(sectors)) => {
                self.fleet.with_volume(volume, |schedule| schedule.begin_life(sectors, cut));
                self.stages[volume] = LifeStage::Living;
                self.begin(volume, |schedule| schedule.world.begin_prefetch_list());
                // Like the snapshot of a clone, which exists only for it.
                if self.fleet.rng.once_in(2) {
                    self.forget(&source);
                }
            }
            Some(Settled::Void) => self.stages[volume] = LifeStage::Ended,
            Some(Settled::Unclear | Settled::Removed) | None => {
                self.begin(volume, |schedule| schedule.world.begin_fork(source));
            }
        }
    }

    /// Begins an operation of the control plane, if it is idle.
    fn begin(&mut self, volume: usize, begin: impl FnOnce(&mut Schedule)) {
        self.fleet.with_volume(volume, |schedule| {
            if schedule.world.control_is_idle() {
                begin(schedule);
            }
        });
    }

    // ---- ends ----

    /// Marks the volume for removal, unless it is the last one.
    fn begin_leaving(&mut self, volume: usize) {
        let living = self.stages.iter().filter(|stage| matches!(stage, LifeStage::Living)).count();
        if living > 1 {
            self.stages[volume] = LifeStage::Leaving(0);
            self.fleet.step_volume(volume, Schedule::begin_leaving);
        }
    }

    fn leave_step(&mut self, volume: usize, taken: u32) {
        self.fleet.step_volume(volume, |schedule| schedule.leave_step(taken));
        for host in 0..HOSTS {
            self.fleet.step_device(host, volume);
        }
        if !self.fleet.volumes[volume].has_left() {
            return;
        }
        self.fleet.with_volume(volume, |schedule| {
            let company = schedule.world.leave_company();
            schedule.check_life();
            schedule.world.rejoin(company);
        });
        self.update_access(volume);
        self.stages[volume] = LifeStage::Ending;
    }

    fn update_access(&mut self, volume: usize) {
        for host in 0..HOSTS {
            self.fleet.update_access(host, volume);
        }
    }

    fn remove(&mut self, volume: usize) {
        match self.fleet.with_volume(volume, |schedule| schedule.world.take_settled()) {
            Some(Settled::Removed) => self.stages[volume] = LifeStage::Ended,
            Some(Settled::Unclear | Settled::Made(_) | Settled::Void) | None => {
                self.begin(volume, |schedule| schedule.world.begin_removal());
            }
        }
    }

    // ---- the end ----

    /// Detaches everything from every host and brings it to rest; each volume is read at home, from the store
    /// alone, and elsewhere. Then all are removed in random order, and after each removal the others must be
    /// unchanged.
    fn finish(&mut self) {
        self.leave_hosts();
        for volume in 0..self.stages.len() {
            let stage = mem::replace(&mut self.stages[volume], LifeStage::Ended);
            self.stages[volume] = self.settle_volume(volume, stage);
        }
        self.sweep();
        for volume in self.living_volumes() {
            self.fleet.with_volume(volume, Schedule::check_life);
        }
        loop {
            self.sweep();
            let living = self.living_volumes();
            for volume in &living {
                self.fleet.with_volume(*volume, |schedule| schedule.world.check_last_commit());
            }
            if living.is_empty() {
                break;
            }
            let volume = *self.fleet.rng.pick(&living);
            self.fleet.with_volume(volume, |schedule| schedule.world.remove_reliably());
            self.stages[volume] = LifeStage::Ended;
        }
        self.fleet.with_volume(0, |schedule| schedule.world.store.check_all_removed());
    }

    fn living_volumes(&self) -> Vec<usize> {
        let stages = self.stages.iter().enumerate();
        stages.filter(|(_, stage)| matches!(stage, LifeStage::Living)).map(|(volume, _)| volume).collect()
    }

    fn sweep(&mut self) {
        self.fleet.with_volume(0, |schedule| schedule.world.check_sweep());
    }

    fn leave_hosts(&mut self) {
        for volume in self.living_volumes() {
            self.fleet.step_volume(volume, Schedule::begin_leaving);
        }
        let mut taken = vec![0; self.stages.len()];
        while let Some(volume) = self.fleet.remaining_volume() {
            taken[volume] += 1;
            self.fleet.step_volume(volume, |schedule| schedule.leave_step(taken[volume]));
            for host in 0..HOSTS {
                self.fleet.step_device(host, volume);
            }
        }
        for node in &mut self.fleet.nodes {
            node.devices.check_end(&mut node.kernel);
        }
        for volume in &mut self.fleet.volumes {
            volume.world.leave_company();
        }
    }

    /// Completes the creation or removal of a volume, with a store that answers.
    fn settle_volume(&mut self, volume: usize, stage: LifeStage) -> LifeStage {
        self.fleet.with_volume(volume, |schedule| {
            schedule.end_control();
            let world = &mut schedule.world;
            let settled = world.take_settled();
            match stage {
                LifeStage::Living => LifeStage::Living,
                LifeStage::Leaving(_) => {
                    schedule.check_life();
                    LifeStage::Living
                }
                LifeStage::Unborn(source, cut) => {
                    if !matches!(settled, Some(Settled::Made(_) | Settled::Void)) {
                        world.create_fork_reliably(source);
                    }
                    match settled.into_iter().chain(world.take_settled()).last() {
                        Some(Settled::Made(sectors)) => {
                            schedule.begin_life(sectors, &cut);
                            LifeStage::Living
                        }
                        Some(Settled::Void) => LifeStage::Ended,
                        Some(Settled::Removed | Settled::Unclear) | None => {
                            Invariant::ComesToRest.broken("a fork is neither made nor void")
                        }
                    }
                }
                LifeStage::Ending => {
                    world.remove_reliably();
                    LifeStage::Ended
                }
                LifeStage::Ended => LifeStage::Ended,
            }
        })
    }
}
