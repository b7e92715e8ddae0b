//! One volume on a ring thread: the link between the engine and the device.
//!
//! Owns: the volume's planner, its device's queues, the requests and the file operations in flight.
//! Runs on: its ring thread. No lock, no wait, no allocation for a request that is served locally.
//! Invariants: a request stays in `queues` until it is completed; an operation in the ring names its purpose
//! ([`FileOperation`](crate::operation::FileOperation)).

use std::collections::VecDeque;
use std::sync::Arc;

use holdfast_background::{KnownBlocks, PassedStreams, Rest, SlabSlot};
use holdfast_engine::action::Action;
use holdfast_engine::event::{Errno, Event};
use holdfast_engine::settings::RuntimeSettings;
use holdfast_engine::volume::{Status, Volume};
use holdfast_format::side::Side;
use holdfast_ring::{FileSlot, RingError};
use holdfast_types::{Millis, SectorRange, Seq};
use holdfast_ublk::Device;
use tokio::sync::mpsc;

use crate::clock::unix_ms_at_zero;
use crate::idle_ticks::IdleTicks;
use crate::io_limits::IoLimits;
use crate::label::Label;
use crate::limit::EVICTIONS_IN_FLIGHT;
use crate::live_map::LiveMap;
use crate::message::Reply;
use crate::operation::{VolumeKey, VolumeRing};
use crate::planned::Planned;
use crate::published_status::{PublishedStatus, ServedCounts};
use crate::throttle::Throttle;
use crate::volume_queue::VolumeQueue;
use crate::work::BackgroundWork;

mod completion;
mod limiting;
mod lines;
mod moves;
mod perform;
mod queues;
mod report;

use lines::Lines;
use moves::Moves;
use queues::Queues;

/// Files from which every volume reads: open, or in a ring's table.
#[derive(Clone, Copy)]
pub struct SharedFiles<F> {
    /// The file of fetched blocks.
    pub slab: F,
    /// A file in memory for blocks that the disk rejects.
    pub memory: F,
    /// A file that reads as zeros.
    pub zeros: F,
}

/// The volume's own files in the ring's table.
pub(crate) struct Slots {
    pub(crate) sides: [FileSlot; 2],
    pub(crate) map: FileSlot,
    pub(crate) live: FileSlot,
}

impl Slots {
    /// Removes the files from the ring.
    pub(crate) fn release(self, ring: &mut VolumeRing) -> Result<(), RingError> {
        let Self { sides: [a, b], map, live } = self;
        [a, b, map, live].into_iter().try_for_each(|slot| ring.unregister_file(slot))
    }
}

/// The pieces of the durable map that are being written.
#[derive(Default)]
struct MapWrites {
    in_flight: u32,
    failed: Option<Errno>,
}

impl MapWrites {
    /// Records the end of one write. Returns the combined result after the last.
    fn end(&mut self, result: Result<(), Errno>) -> Option<Result<(), Errno>> {
        self.failed = self.failed.or(result.err());
        self.in_flight -= 1;
        (self.in_flight == 0).then(|| self.failed.take().map_or(Ok(()), Err))
    }
}

/// Ranges that an eviction frees, a few at a time.
#[derive(Default)]
struct Evictions {
    in_flight: u32,
    waiting: VecDeque<(Side, SectorRange)>,
}

impl Evictions {
    /// Returns the next waiting range, if another hole may be punched now.
    fn next(&mut self) -> Option<(Side, SectorRange)> {
        if self.in_flight == EVICTIONS_IN_FLIGHT {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.in_flight += 1;
        Some(next)
    }
}

/// Files of a volume, and its operations on them in the ring.
struct DiskWork {
    slots: Slots,
    shared: SharedFiles<FileSlot>,
    map_writes: MapWrites,
    evictions: Evictions,
    moves: Moves,
    /// All operations of the volume in the ring, without commands of the device.
    operations: u32,
}

/// Reads of a volume from the slab.
struct SlabReads {
    /// Blocks of the volume that are known to be in the slab. `passed`: the reads that they answered since
    /// the last background work.
    known: KnownBlocks,
    passed: PassedStreams,
    /// The slots from which whole requests are copied, by request id; each is held until the end of the copy.
    copied: Vec<Option<SlabSlot>>,
    /// Shared until the slab has processed a report of used blocks.
    used_in_progress: Arc<()>,
}

/// The limits of a volume.
#[derive(Default)]
struct LimitGate {
    /// True if each request passes `throttle` first.
    is_limited: bool,
    throttle: Throttle,
}

/// One volume on a ring thread.
pub(crate) struct ServedVolume {
    key: VolumeKey,
    lines: Lines,
    volume: Volume<LiveMap>,
    queues: Queues,
    disk: DiskWork,
    slab: SlabReads,
    limits: LimitGate,
    /// True once requests are left to the successor.
    is_draining: bool,
    actions: Vec<Action>,
    tally: ServedCounts,
    work: mpsc::Sender<BackgroundWork>,
    published: Arc<PublishedStatus>,
    /// The newest registered snapshot that was published.
    newest_snapshot: Option<Seq>,
    idle_ticks: IdleTicks,
    _place: Box<dyn Send>,
}

/// Resources for a volume on its ring thread.
pub(crate) struct ServedParts {
    pub(crate) key: VolumeKey,
    pub(crate) label: Arc<Label>,
    pub(crate) slots: Slots,
    pub(crate) shared: SharedFiles<FileSlot>,
    pub(crate) work: mpsc::Sender<BackgroundWork>,
    pub(crate) published: Arc<PublishedStatus>,
    pub(crate) place: Box<dyn Send>,
}

impl ServedVolume {
    pub(crate) fn new(planned: Planned, made: ServedParts) -> Self {
        let Planned { requests, volume, actions } = planned;
        let ServedParts { key, label, slots, shared, work, published, place } = made;
        Self {
            key,
            lines: Lines::new(label),
            volume,
            queues: Queues::new(requests),
            disk: DiskWork {
                slots,
                shared,
                map_writes: MapWrites::default(),
                evictions: Evictions::default(),
                moves: Moves::default(),
                operations: 0,
            },
            slab: SlabReads {
                known: KnownBlocks::default(),
                passed: PassedStreams::default(),
                copied: vec![None; requests as usize],
                used_in_progress: Arc::default(),
            },
            limits: LimitGate::default(),
            is_draining: false,
            actions,
            tally: ServedCounts::default(),
            work,
            published,
            newest_snapshot: None,
            idle_ticks: IdleTicks::default(),
            _place: place,
        }
    }

    /// Starts serving the queues of the volume's device.
    pub(crate) fn open(&mut self, ring: &mut VolumeRing, device: Device, queues: Vec<VolumeQueue>) {
        self.lines.set_device(device);
        self.queues.open(ring, queues);
    }

    /// Passes an event to the planner and performs its actions.
    pub(crate) fn handle(&mut self, ring: &mut VolumeRing, event: Event, now: Millis) {
        let mut actions = std::mem::take(&mut self.actions);
        self.volume.handle(now, event, &mut actions);
        // A request without follow-up work causes one action at a time.
        if actions.len() == 1
            && let Some(only) = actions.pop()
        {
            self.perform(ring, only);
        } else {
            for action in actions.drain(..) {
                self.perform(ring, action);
            }
        }
        let empty = std::mem::replace(&mut self.actions, actions);
        debug_assert!(empty.capacity() == 0, "an action passes no event to the planner");
        // The empty list has nothing to drop.
        std::mem::forget(empty);
    }

    /// Changes the settings and limits of the volume, and publishes those in effect.
    pub(crate) fn configure(
        &mut self,
        ring: &mut VolumeRing,
        settings: RuntimeSettings,
        limits: IoLimits,
        now: Millis,
    ) {
        self.handle(ring, Event::Configure(settings), now);
        self.set_limits(ring, limits, now);
        self.show();
    }

    /// Grows the volume to this many sectors, for which `live_map` has room.
    pub(crate) fn grow(&mut self, ring: &mut VolumeRing, live_map: LiveMap, sectors: u64, now: Millis) {
        // The map is a mapping of the same file, which the ring already has open.
        *self.volume.memory_mut() = live_map;
        self.handle(ring, Event::Grow { sectors }, now);
    }

    /// Performs the actions that the planner requested when it was created, and publishes its first figures.
    pub(crate) fn begin(&mut self, ring: &mut VolumeRing, limits: IoLimits, now: Millis) {
        self.set_limits(ring, limits, now);
        for action in std::mem::take(&mut self.actions) {
            self.perform(ring, action);
        }
        self.show();
    }

    /// Performs the work that depends on time and publishes figures; while the volume is idle, only at few
    /// ticks. Returns true if the volume is idle.
    pub(crate) fn tick(&mut self, ring: &mut VolumeRing, now: Millis) -> bool {
        let requests = self.tally.requests();
        let works = self.disk.operations > 0 || self.queues.with_owner() > 0;
        if !self.idle_ticks.is_due(requests, works) {
            return true;
        }
        self.volume.set_time_of_day(unix_ms_at_zero());
        self.handle(ring, Event::Tick, now);
        self.send_used();
        self.lines.write(Rest::Due(now));
        self.queues.time_next();
        let status = self.show();
        let works = works || self.disk.operations > 0 || self.volume.is_evicting();
        self.idle_ticks.passed(requests, works || !status.is_idle())
    }

    /// Makes the next tick due, because a message came for the volume.
    pub(crate) fn wake(&mut self) {
        self.idle_ticks.wake();
    }

    fn show(&mut self) -> Status {
        let served = ServedCounts { latencies: *self.queues.latencies(), ..self.tally };
        let status = self.volume.status();
        self.published.show(status, served, self.limits.throttle.status());
        self.show_snapshots();
        status
    }

    /// Publishes the log positions of the registered snapshots if they changed. The newest snapshot shows a
    /// change, because a record that drops a snapshot registers another.
    fn show_snapshots(&mut self) {
        let snapshots = self.volume.snapshots();
        let newest = snapshots.last().map(|known| known.seq);
        if self.newest_snapshot != newest {
            self.newest_snapshot = newest;
            self.published.snapshots_registered(snapshots.iter().map(|known| known.seq).collect());
        }
    }

    /// Releases the queues of a stopped device once the kernel has returned all tags.
    pub(crate) fn close(&mut self, ring: &mut VolumeRing, done: Reply) {
        self.queues.close(ring, done);
    }

    /// Leaves further requests to the successor. If `leaves_waiting`, also large requests that wait for
    /// others: a full queue of them would take the disk seconds.
    pub(crate) fn drain(&mut self, leaves_waiting: bool) {
        self.is_draining = true;
        self.queues.drain();
        if leaves_waiting {
            self.disk.operations -= self.disk.moves.forget_waiting();
        }
    }

    /// Returns true if no file operation is in flight.
    pub(crate) fn is_still(&self) -> bool {
        self.disk.operations == 0
    }

    /// Returns the number of requests that the kernel handed over and that are not completed.
    pub(crate) fn requests(&self) -> u32 {
        self.queues.with_owner()
    }

    /// Returns true if the device's queues are open.
    pub(crate) fn is_open(&self) -> bool {
        self.queues.is_open()
    }

    /// Leaves every request to the successor, before the process ends: the kernel hands them to it.
    pub(crate) fn leave(&mut self) {
        self.queues.leave(self.is_still());
    }

    /// Removes the volume's files from the ring.
    pub(crate) fn release(self, ring: &mut VolumeRing) -> Result<(), RingError> {
        debug_assert!(self.disk.moves.is_idle(), "each move that began has ended");
        self.disk.slots.release(ring)
    }
}

/// Returns the length of a range, in bytes.
fn bytes(range: SectorRange) -> u32 {
    u32::try_from(range.bytes()).expect("a request is smaller than 4 GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Found by reading: an eviction of a hundred thousand ranges put all of them into the ring at once.
    #[test]
    fn few_holes_are_punched_at_a_time() {
        let mut evictions = Evictions::default();
        evictions.waiting.extend((0..1000).map(|number| (Side::A, SectorRange::new(2 * number, 1))));
        for _ in 0..2 {
            let mut begun = 0;
            while evictions.next().is_some() {
                begun += 1;
            }
            assert_eq!((begun, evictions.in_flight), (EVICTIONS_IN_FLIGHT, EVICTIONS_IN_FLIGHT));
            evictions.in_flight = 0;
        }
        assert_eq!(evictions.waiting.len(), 1000 - 2 * EVICTIONS_IN_FLIGHT as usize);
    }
}
