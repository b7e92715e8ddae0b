//! Several volumes on the same hosts, in several stores: their shared state, and the faults that hit all
//! of them at once.
//!
//! Owns: the order between volumes; the daemon's process on each host, which all of them share; the
//! kernel's devices; the stores, which fail one by one. Each volume keeps its own schedule, log and model.
//! Invariants: 25 and 26, besides those of every volume.

mod case;
mod devices;
mod family;
mod kernel;
mod outages;

pub use case::FleetCase;
pub use family::FamilyCase;

use holdfast_background::StoreKey;
use holdfast_types::Millis;

use crate::host::{Access, HostFault};
use crate::process::Job;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::schedule::{HOSTS, Schedule};
use crate::shared::{ProcessResources, UPLOAD_BYTES};
use crate::store::Bucket;
use crate::world::{Company, Outage, Victim, World};

use devices::{HostDevices, VolumeFacts};
use kernel::{DeviceOwner, UblkDeviceState, UblkDriver};
use outages::Outages;

/// Stores of a run.
const STORES: usize = 2;
/// The profiles of fleets, used alternately. Sleepers wait for events of a single volume.
const PROFILES: [Profile; 8] = [
    Profile::Timely,
    Profile::Kills,
    Profile::Timely,
    Profile::Everything,
    Profile::Timely,
    Profile::PowerCuts,
    Profile::Rivals,
    Profile::Partitions,
];
/// The index in [`PROFILES`] of fleets whose hosts have memory for one upload at a time.
const TIGHT: u64 = 4;
/// Every upload takes more, and thus runs alone.
const TIGHT_BYTES: u64 = 1;
/// Kinds of store failures.
const KINDS: [Outage; 3] = [Outage::Unreachable, Outage::Denies, Outage::Silent];
/// The same with tight memory: a silent store holds all of it until its request has timed out.
const TIGHT_KINDS: [Outage; 2] = [Outage::Unreachable, Outage::Denies];
/// The first byte of every tag of a Holdfast device.
const TAGS: u32 = 0xb100_0000;
/// Time advances for all volumes in steps of at most this.
const PIECE_MS: Millis = 50;
/// Delay of a commit by another volume of a host: reading its seal and a PUT, two halves of 50 ms each.
const TURN_MS: Millis = 4 * PIECE_MS;

/// The state of one host that its volumes share.
struct SharedHost {
    kernel: UblkDriver,
    devices: HostDevices,
}

impl SharedHost {
    fn new(host: u32, volumes: usize) -> Self {
        Self { kernel: UblkDriver::default(), devices: HostDevices::new(TAGS | host, volumes) }
    }
}

/// One run in progress.
pub(crate) struct Fleet {
    pub(crate) volumes: Vec<Schedule>,
    nodes: Vec<SharedHost>,
    outages: Outages,
    upload_bytes: u64,
    /// The bucket of all volumes; `None` if each has its own.
    bucket: Option<Bucket>,
    seed: u64,
    rng: Rng,
    /// Steps taken.
    pub(crate) steps_taken: u64,
}

/// The store of a volume.
fn store_of(volume: usize) -> usize {
    volume % STORES
}

impl Fleet {
    /// Creates `volumes` new volumes, distributed over the stores.
    pub(crate) fn new(seed: u64, volumes: usize, story: usize) -> Self {
        let turn = seed % PROFILES.len() as u64;
        let profile = PROFILES[turn as usize];
        let (upload_bytes, kinds) =
            if turn == TIGHT { (TIGHT_BYTES, &TIGHT_KINDS[..]) } else { (UPLOAD_BYTES, &KINDS[..]) };
        let mut rng = Rng::new(seed);
        let shared = vec![ProcessResources::new(upload_bytes); HOSTS];
        let crowd: Vec<Schedule> = (0..volumes)
            .map(|volume| {
                let name = format!("volume-{volume}").parse().expect("a volume id");
                let mut schedule = Schedule::of_volume(name, rng.bits(), profile, story);
                schedule.join_crowd(volumes as u64);
                let queue_ms = volumes as Millis * TURN_MS;
                schedule
                    .world
                    .join(volume as u64, Company::new(shared.clone(), StoreKey(store_of(volume)), queue_ms));
                schedule
            })
            .collect();
        Self {
            volumes: crowd,
            nodes: (0..HOSTS as u32).map(|host| SharedHost::new(host, volumes)).collect(),
            outages: Outages::new(kinds),
            upload_bytes,
            bucket: None,
            seed,
            rng,
            steps_taken: 0,
        }
    }

    /// Returns the number of requests, jobs, answers and deaths of all volumes.
    pub(crate) fn operations(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.world.trace.operations).sum()
    }

    /// Takes step `number`. It has its own randomness, so that it makes the same choices even if earlier
    /// steps are left out.
    pub(crate) fn step(&mut self, number: u64) {
        self.begin_step(number);
        let volume = self.rng.below(self.volumes.len());
        let host = self.rng.below(HOSTS);
        self.volumes[volume].world.trace.begin_step(number);
        match self.rng.below(24) {
            0 => self.outages.step(&mut self.rng, &mut self.volumes),
            1 => self.step_other_program(host),
            2 if self.rng.once_in(100) => self.apply_death(host, Victim::Process),
            3..=6 => {
                let home = self.volumes[volume].home();
                let at = if self.rng.once_in(3) { host } else { home };
                self.step_device(at, volume);
            }
            // Otherwise few deaths would be in the middle of a slot, or before it is named.
            _ if self.rng.once_in(64) && self.fills_slot(host) => self.apply_death(host, Victim::Process),
            _ => self.step_volume(volume, |schedule| schedule.step(number)),
        }
    }

    /// Returns true if the process of a host is storing a block in its slab.
    fn fills_slot(&self, host: usize) -> bool {
        let processes = self.volumes.iter().filter_map(|volume| volume.world.hosts[host].process.as_ref());
        processes.flat_map(|process| &process.jobs).any(Job::fills_slot)
    }

    fn begin_step(&mut self, number: u64) {
        self.steps_taken += 1;
        let seed = Rng::new(!self.seed).bits() ^ number;
        self.rng = Rng::new(Rng::new(seed).bits());
    }

    /// Lets one volume act, with the shared bucket if one exists.
    fn with_volume<T>(&mut self, volume: usize, act: impl FnOnce(&mut Schedule) -> T) -> T {
        let schedule = &mut self.volumes[volume];
        let Some(bucket) = &mut self.bucket else { return act(schedule) };
        schedule.world.store.swap_bucket(bucket);
        let done = act(schedule);
        schedule.world.store.swap_bucket(bucket);
        done
    }

    /// Lets one volume take a step, and applies the effects on their hosts to the others.
    fn step_volume(&mut self, volume: usize, step: impl FnOnce(&mut Schedule)) {
        self.with_volume(volume, step);
        self.share_deaths();
        self.share_fault(volume);
        self.share_time();
        self.forget_devices(volume);
        self.poll();
    }

    /// Ends the process of a host for all volumes after it ended for one.
    fn share_deaths(&mut self) {
        for volume in 0..self.volumes.len() {
            for (host, death) in self.volumes[volume].world.take_deaths() {
                self.apply_death(host, death);
            }
        }
    }

    fn apply_death(&mut self, host: usize, death: Victim) {
        for volume in 0..self.volumes.len() {
            self.with_volume(volume, |schedule| match death {
                Victim::Process => schedule.world.kill(host),
                Victim::Host => schedule.world.lose_host(host, None),
            });
        }
        let old = self.volumes[0].world.slab(host);
        let slab = match death {
            Victim::Process => old.of_next_process(),
            Victim::Host => old.after_power_cut(&mut self.rng),
        };
        let shared = ProcessResources::with_slab(slab, self.upload_bytes);
        for schedule in &mut self.volumes {
            let world = &mut schedule.world;
            // All volumes have had this death; one of another host can come only from a volume's own step.
            world.forget_deaths(host);
            world.set_shared(host, shared.clone());
        }
        let SharedHost { kernel, devices } = &mut self.nodes[host];
        match death {
            Victim::Process => {
                kernel.daemon_died();
                devices.daemon_died();
            }
            Victim::Host => {
                kernel.lose_power();
                devices.lose_power();
            }
        }
        for volume in 0..self.volumes.len() {
            self.update_access(host, volume);
        }
    }

    /// Applies the faults of one volume of a host to the others; those of the connection to a store, to
    /// the volumes of that store.
    fn share_fault(&mut self, volume: usize) {
        for host in 0..HOSTS {
            let here = &self.volumes[volume].world.hosts[host];
            let (now, runs) = (here.fault, here.process.is_some());
            for other in (0..self.volumes.len()).filter(|other| *other != volume) {
                let world = &mut self.volumes[other].world;
                let fault = world.hosts[host].fault;
                let paused =
                    if runs { now.paused && world.hosts[host].process.is_some() } else { fault.paused };
                let is_same_store = self.bucket.is_some() || store_of(other) == store_of(volume);
                let cut_off = if is_same_store { now.cut_off } else { fault.cut_off };
                world.set_fault(host, HostFault { cut_off, paused, ..now });
            }
        }
    }

    /// Applies the time that each volume let pass to all of them.
    fn share_time(&mut self) {
        let mut owed: Millis = self.volumes.iter_mut().map(|volume| volume.world.take_owed()).sum();
        while owed > 0 {
            let piece = owed.min(PIECE_MS);
            owed -= piece;
            for volume in 0..self.volumes.len() {
                self.with_volume(volume, |schedule| schedule.world.pass_volume_time(piece));
            }
            self.share_deaths();
            self.poll();
        }
    }

    /// Polls all futures: a future of one volume may wait for memory that another returned.
    fn poll(&mut self) {
        for volume in 0..self.volumes.len() {
            self.with_volume(volume, |schedule| (0..HOSTS).for_each(|host| schedule.world.run_woken(host)));
        }
        self.share_deaths();
    }

    // ---- devices ----

    fn step_device(&mut self, host: usize, volume: usize) {
        let world = &mut self.volumes[volume].world;
        let Some(now) = served(world, host) else { return };
        if world.hosts[host].fault.paused {
            return;
        }
        let SharedHost { kernel, devices } = &mut self.nodes[host];
        if let Some((number, words)) = devices.step(kernel, volume, now) {
            world.trace.host_event(host, number, words);
        }
        self.update_access(host, volume);
        if self.nodes[host].devices.access(volume) == Access::Gone {
            self.step_volume(volume, |schedule| schedule.world.begin_detach(host));
        }
    }

    /// Allows requests while the device is served, and the engine's detach once it is removed.
    fn update_access(&mut self, host: usize, volume: usize) {
        let access = self.nodes[host].devices.access(volume);
        self.volumes[volume].world.hosts[host].access = Some(access);
    }

    /// Clears the records of a volume on hosts that it has left.
    fn forget_devices(&mut self, volume: usize) {
        for host in 0..HOSTS {
            let here = &self.volumes[volume].world.hosts[host];
            let runs = here.process.as_ref().is_some_and(|process| process.volume.is_some());
            if !runs && !here.tmpfs.has_map() {
                let SharedHost { kernel, devices } = &mut self.nodes[host];
                devices.forget_volume(kernel, volume);
                self.update_access(host, volume);
            }
        }
    }

    /// Adds, serves or deletes a device of another program; or deletes one whose server has exited.
    fn step_other_program(&mut self, host: usize) {
        let SharedHost { kernel, devices } = &mut self.nodes[host];
        let foreign: Vec<_> = kernel.list().filter(|device| device.is_foreign()).collect();
        match (self.rng.below(6), foreign.last()) {
            (0, _) if foreign.len() < 2 => {
                // The second installation on a host marks its devices like the first.
                let tag = if self.rng.once_in(2) {
                    0
                } else {
                    u64::from(TAGS | 0xff) << 32 | self.rng.bits() >> 32
                };
                kernel.add(tag, DeviceOwner::Foreign);
            }
            (1, Some(device)) => kernel.serve(device.id, DeviceOwner::Foreign),
            (2, Some(device)) => kernel.delete(device.id, DeviceOwner::Foreign),
            (3, _) if self.rng.once_in(8) => {
                let unserved = |id| devices.is_unserved(id);
                let left = kernel.list().find(|device| {
                    !device.is_foreign() && device.state != UblkDeviceState::Live && unserved(device.id)
                });
                if let Some(device) = left {
                    kernel.discard(device.id);
                }
            }
            _ => {}
        }
    }

    // ---- the end ----

    /// Detaches everything from every host; then reads each volume at home, from the store alone, and
    /// elsewhere.
    pub(crate) fn finish(&mut self) {
        self.outages.end(&mut self.volumes);
        for volume in 0..self.volumes.len() {
            self.step_volume(volume, Schedule::begin_leaving);
        }
        let mut taken = vec![0; self.volumes.len()];
        while let Some(volume) = self.remaining_volume() {
            taken[volume] += 1;
            self.step_volume(volume, |schedule| schedule.leave_step(taken[volume]));
            for host in 0..HOSTS {
                self.step_device(host, volume);
            }
        }
        for node in &mut self.nodes {
            node.devices.check_end(&mut node.kernel);
        }
        for schedule in &mut self.volumes {
            schedule.world.leave_company();
            schedule.finish();
        }
    }

    /// Returns any volume that has not left.
    fn remaining_volume(&mut self) -> Option<usize> {
        let first = self.rng.below(self.volumes.len());
        let mut order = (0..self.volumes.len()).map(|at| (first + at) % self.volumes.len());
        order.find(|volume| !self.volumes[*volume].has_left())
    }
}

/// Returns the daemon's facts about a volume that it serves on this host.
fn served(world: &World, host: usize) -> Option<VolumeFacts> {
    let here = &world.hosts[host];
    here.process.as_ref()?.volume.as_ref()?;
    let [a, b, c, d, ..] = here.nonce?.0;
    Some(VolumeFacts {
        is_ready: here.device.as_ref().is_some_and(|device| device.ready),
        is_closed: here.device.as_ref().is_none_or(|device| device.closing && device.is_idle()),
        attach: u32::from_le_bytes([a, b, c, d]),
    })
}
