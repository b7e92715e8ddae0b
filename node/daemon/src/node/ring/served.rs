//! One volume on a ring thread: where the engine and the device meet.
//!
//! Owns: the volume's planner, its device's queues, the requests and the file operations in flight.
//! Runs on: its ring thread. No lock, no wait, no allocation for a request that is served locally.
//! Invariants: a request stays in `requests` until it is completed; an operation's user data names the request (or the
//! step) whose answer it is.

use std::sync::Arc;

use holdfast_engine::action::Action;
use holdfast_engine::event::{Errno, Event, Millis, RequestId};
use holdfast_engine::manifest::Layers;
use holdfast_engine::volume::Volume;
use holdfast_ring::{FileSlot, Ring, RingError};
use holdfast_types::SectorRange;
use holdfast_ublk::{Device, Queue, Request};
use tokio::sync::mpsc;

use crate::node::clock::unix_ms_at_zero;
use crate::node::local::live_map::LiveMap;
use crate::node::ring::board::{Board, ServedCounts};
use crate::node::ring::label::Label;
use crate::node::ring::message::{Reply, RingRefusal};
use crate::node::ring::planned::Planned;
use crate::node::ring::room::Place;
use crate::node::ring::work::Work;
use crate::node::store::block_cache::SlabSlot;

mod completion;
mod kind;
mod lines;
mod perform;
mod report;

use lines::Lines;

/// Files every volume reads from, in the ring's table.
#[derive(Clone, Copy)]
pub(in crate::node) struct SharedFiles {
    pub(in crate::node) slab: FileSlot,
    pub(in crate::node) zeros: FileSlot,
}

/// The volume's own files in the ring's table.
pub(in crate::node) struct Slots {
    pub(in crate::node) sides: [FileSlot; 2],
    pub(in crate::node) map: FileSlot,
    pub(in crate::node) live: FileSlot,
}

impl Slots {
    /// Takes the files off the ring.
    pub(in crate::node) fn release(self, ring: &mut Ring) -> Result<(), RingError> {
        let Self { sides: [a, b], map, live } = self;
        [a, b, map, live].into_iter().try_for_each(|slot| ring.unregister_file(slot))
    }
}

/// A cold read in progress.
struct Ticket {
    id: RequestId,
    range: SectorRange,
    at: u32,
    layers: Layers,
    /// Held from the fetch to the end of the read.
    slot: Option<SlabSlot>,
    /// A slot could not be read before.
    again: bool,
}

/// One volume on a ring thread.
pub(in crate::node) struct Served {
    index: u16,
    lines: Lines,
    label: Arc<Label>,
    volume: Volume<LiveMap>,
    sectors: u64,
    slots: Slots,
    shared: SharedFiles,
    depth: u32,
    queues: Vec<Queue>,
    requests: Vec<Option<Request>>,
    tickets: Vec<Option<Ticket>>,
    map_writes: u32,
    map_write_failed: Option<Errno>,
    /// Operations of this volume in the ring, commands of the device apart.
    operations: u32,
    actions: Vec<Action>,
    tally: ServedCounts,
    work: mpsc::Sender<Work>,
    board: Arc<Board>,
    closing: Option<Reply>,
    /// The device's queues are with the kernel.
    is_open: bool,
    _place: Place,
}

/// What a volume is given on its ring thread.
pub(in crate::node) struct Made {
    /// Its place on the thread.
    pub(in crate::node) index: u16,
    pub(in crate::node) label: Arc<Label>,
    pub(in crate::node) slots: Slots,
    pub(in crate::node) shared: SharedFiles,
    pub(in crate::node) work: mpsc::Sender<Work>,
    pub(in crate::node) board: Arc<Board>,
    pub(in crate::node) place: Place,
}

impl Served {
    pub(in crate::node) fn new(planned: Planned, made: Made) -> Self {
        let Planned { sectors, requests, volume, actions } = planned;
        let Made { index, label, slots, shared, work, board, place } = made;
        Self {
            index,
            lines: Lines::new(Arc::clone(&label)),
            label,
            volume,
            sectors,
            slots,
            shared,
            depth: requests,
            queues: Vec::new(),
            requests: (0..requests).map(|_| None).collect(),
            tickets: Vec::new(),
            map_writes: 0,
            map_write_failed: None,
            operations: 0,
            actions,
            tally: ServedCounts::default(),
            work,
            board,
            closing: None,
            is_open: false,
            _place: place,
        }
    }

    /// Serves the queues of the volume's device from now on.
    pub(in crate::node) fn open(&mut self, ring: &mut Ring, device: Device, queues: Vec<Queue>) {
        self.label.set_device(device);
        let number = queues.len().max(1);
        self.depth = u32::try_from(self.requests.len() / number).expect("a count of requests");
        self.queues = queues;
        self.is_open = true;
        for queue in &mut self.queues {
            queue.arm(ring);
        }
    }

    /// Passes an event to the planner and does what it answers.
    pub(in crate::node) fn tell(&mut self, ring: &mut Ring, event: Event, now: Millis) {
        let mut actions = std::mem::take(&mut self.actions);
        self.volume.handle(now, event, &mut actions);
        for action in actions.drain(..) {
            self.perform(ring, action);
        }
        self.actions = actions;
    }

    /// Does what the planner asked for when the volume was made, and shows its first figures.
    pub(in crate::node) fn begin(&mut self, ring: &mut Ring) {
        for action in std::mem::take(&mut self.actions) {
            self.perform(ring, action);
        }
        self.show();
    }

    /// Time passed: limits are looked at, figures shown.
    pub(in crate::node) fn tick(&mut self, ring: &mut Ring, now: Millis) {
        self.volume.set_time_of_day(unix_ms_at_zero());
        self.tell(ring, Event::Tick, now);
        self.lines.held_back(now);
        self.show();
    }

    fn show(&self) {
        self.board.show(self.volume.status(), self.tally);
    }

    /// Releases the device's queues once all tags are back; the device was told to stop.
    pub(in crate::node) fn close(&mut self, ring: &mut Ring, done: Reply) {
        self.closing = Some(done);
        self.finish_closing(ring);
    }

    fn finish_closing(&mut self, ring: &mut Ring) {
        let all_back =
            self.queues.iter().all(|queue| queue.tags_with_kernel() + queue.requests_with_owner() == 0);
        if !all_back {
            return;
        }
        if let Some(done) = self.closing.take() {
            let mut queues = self.queues.drain(..);
            let closed = queues.try_for_each(|queue| queue.close(ring)).map_err(RingRefusal::from);
            drop(queues);
            self.is_open = false;
            // The caller may have stopped waiting.
            drop(done.send(closed));
        }
    }

    /// From now on requests are left to the successor.
    pub(in crate::node) fn drain(&mut self) {
        for queue in &mut self.queues {
            queue.drain();
        }
    }

    /// Whether no file operation is in flight.
    pub(in crate::node) fn is_still(&self) -> bool {
        self.operations == 0
    }

    /// Whether the device's queues are with the kernel: completions of theirs name this volume's index.
    pub(in crate::node) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Leaves every request to the successor, for the process to end: the kernel hands them to it.
    pub(in crate::node) fn leave(&mut self) {
        let is_still = self.is_still();
        for (number, slot) in self.requests.iter_mut().enumerate() {
            let Some(request) = slot.take() else { continue };
            match self.queues.get_mut(number / self.depth as usize) {
                Some(queue) if is_still => queue.leave(request),
                // What moves its data may still be in flight.
                Some(_) | None => request.leave_to_successor(),
            }
        }
    }

    /// Takes the volume's files off the ring.
    pub(in crate::node) fn release(self, ring: &mut Ring) -> Result<(), RingError> {
        self.slots.release(ring)
    }
}
