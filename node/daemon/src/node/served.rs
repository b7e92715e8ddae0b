//! One volume on a ring thread: where the engine and the device meet.
//!
//! Owns: the volume's planner, its device's queues, the requests in flight and the file operations under way.
//! Runs on: its ring thread. No lock, no wait, no allocation for a request that is served locally.
//! Invariants: a request stays in `requests` until it is completed; an operation's user data names the request (or the
//! step) whose answer it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_background as background;
use holdfast_engine::action::{Action, MapWrite, Report, Source};
use holdfast_engine::durable_map;
use holdfast_engine::event::{Errno, Event, Millis, Op, RequestId};
use holdfast_engine::manifest::Layers;
use holdfast_engine::sector_map::{Side, chunk_extent};
use holdfast_engine::volume::{Pending, Volume};
use holdfast_ring::{Completion, FileRange, FileSlot, HeapBuffer, Ring, RingError, UserData};
use holdfast_types::{BLOCK_SECTORS, Chunk, SECTOR_BYTES, SectorRange};
use holdfast_ublk::{Operation, Part, Queue, QueueError, QueueEvent, Request};
use tokio::sync::{mpsc, oneshot};

use super::background::Work;
use super::board::{Board, Phase};
use super::live_map::LiveMap;
use super::ring_thread::SharedFiles;
use super::slab::SlabSlot;

/// A part of a request; aux: bytes moved (in sectors) and the queue.
pub(super) const MOVE_KIND: u8 = 16;
/// A part of a request out of the slab; aux: the ticket.
pub(super) const COLD_KIND: u8 = 17;
/// A hole punched for a request; aux: the queue.
pub(super) const PUNCH_KIND: u8 = 18;
/// A side synced; aux: the side.
pub(super) const SYNC_SIDE_KIND: u8 = 19;
/// A piece of the durable map written.
pub(super) const MAP_WRITE_KIND: u8 = 20;
/// The durable map synced.
pub(super) const SYNC_MAP_KIND: u8 = 21;
/// Live-map memory allocated; aux: the chunk.
pub(super) const PREPARE_KIND: u8 = 22;
/// The chunk's place in the durable map allocated; aux: the chunk.
pub(super) const PREPARE_DURABLE_KIND: u8 = 24;
/// A hole punched where clean data was given up.
pub(super) const EVICT_KIND: u8 = 23;

/// Bits of a move's aux that hold its length in sectors.
const LENGTH_BITS: u32 = 14;

/// The volume's own files in the ring's table.
pub(super) struct Slots {
    pub(super) sides: [FileSlot; 2],
    pub(super) map: FileSlot,
    pub(super) live: FileSlot,
}

/// A cold read under way.
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

#[derive(Default)]
struct Tally {
    reads: u64,
    writes: u64,
    flushes: u64,
    discards: u64,
    read_bytes: u64,
    written_bytes: u64,
    cold_reads: u64,
    local_read_errors: u64,
    errors: u64,
}

/// One volume on a ring thread.
pub(super) struct Served {
    index: u16,
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
    tally: Tally,
    work: mpsc::UnboundedSender<Work>,
    board: Arc<Board>,
    closing: Option<oneshot::Sender<Result<(), QueueError>>>,
}

impl Served {
    #[expect(
        clippy::too_many_arguments,
        reason = "called once, by the ring thread, with what it has just opened"
    )]
    pub(super) fn new(
        index: u16,
        volume: Volume<LiveMap>,
        sectors: u64,
        slots: Slots,
        shared: SharedFiles,
        requests: u32,
        actions: Vec<Action>,
        work: mpsc::UnboundedSender<Work>,
        board: Arc<Board>,
    ) -> Self {
        Self {
            index,
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
            tally: Tally::default(),
            work,
            board,
            closing: None,
        }
    }

    /// Serves the queues of the volume's device from now on.
    pub(super) fn open(&mut self, ring: &mut Ring, queues: Vec<Queue>) {
        self.depth = u32::try_from(self.requests.len() / queues.len()).expect("a count of requests");
        self.queues = queues;
        for queue in &mut self.queues {
            queue.arm(ring);
        }
    }

    /// A command of one of the device's queues ended.
    pub(super) fn on_command(&mut self, ring: &mut Ring, completion: &Completion, now: Millis) {
        let number = completion.user_data.aux();
        let Some(queue) = self.queues.get_mut(number as usize) else { return };
        match queue.on_completion(ring, completion) {
            QueueEvent::Request(request) => {
                let id = RequestId(number * self.depth + u32::from(request.tag()));
                let range = SectorRange::new(request.start_sector(), u64::from(request.sectors()));
                let op = self.count(&request);
                let slot = &mut self.requests[id.0 as usize];
                assert!(slot.is_none(), "the kernel hands out a tag once");
                *slot = Some(request);
                self.tell(ring, Event::Request { id, op, range }, now);
            }
            QueueEvent::Held | QueueEvent::Refused => {}
            QueueEvent::Aborted { .. } => self.finish_closing(ring),
            QueueEvent::Failed { tag, errno } => {
                tracing::error!(device = self.index, queue = number, tag, %errno, "the kernel refused a queue command");
                self.finish_closing(ring);
            }
        }
    }

    fn count(&mut self, request: &Request) -> Op {
        let tally = &mut self.tally;
        match request.operation() {
            Operation::Read => {
                tally.reads += 1;
                tally.read_bytes += request.len_bytes();
                Op::Read
            }
            Operation::Write => {
                tally.writes += 1;
                tally.written_bytes += request.len_bytes();
                Op::Write
            }
            Operation::Flush => {
                tally.flushes += 1;
                Op::Flush
            }
            Operation::Discard => {
                tally.discards += 1;
                Op::Discard
            }
            Operation::WriteZeroes => {
                tally.discards += 1;
                Op::WriteZeroes
            }
        }
    }

    /// A file operation of this volume ended.
    pub(super) fn on_operation(&mut self, ring: &mut Ring, completion: &Completion, now: Millis) {
        self.operations -= 1;
        let data = completion.user_data;
        let event = match data.kind() {
            MOVE_KIND => {
                let length = data.aux() & ((1 << LENGTH_BITS) - 1);
                let id = RequestId((data.aux() >> LENGTH_BITS) * self.depth + u32::from(data.tag()));
                Event::Moved { id, result: exactly(completion, length * SECTOR_BYTES as u32) }
            }
            COLD_KIND => {
                let ticket = self.tickets[data.aux() as usize].as_mut().expect("its read was under way");
                let result = exactly(completion, bytes(ticket.range));
                let slot = ticket.slot.take();
                if result.is_err() && !std::mem::replace(&mut ticket.again, true) {
                    self.tally.local_read_errors += 1;
                    return self.fetch(data.aux(), slot);
                }
                let id = ticket.id;
                self.tickets[data.aux() as usize] = None;
                Event::Fetched { id, result }
            }
            PUNCH_KIND => {
                let id = RequestId(data.aux() * self.depth + u32::from(data.tag()));
                Event::Moved { id, result: plain(completion) }
            }
            EVICT_KIND => Event::Evicted { result: plain(completion) },
            SYNC_SIDE_KIND => {
                let side = if data.aux() == 0 { Side::A } else { Side::B };
                Event::SideSynced { side, result: plain(completion) }
            }
            MAP_WRITE_KIND => {
                let written = ring.reclaim(data).map_or(0, |buffer| buffer.len());
                let result = exactly(completion, u32::try_from(written).unwrap_or(u32::MAX));
                self.map_write_failed = self.map_write_failed.or(result.err());
                self.map_writes -= 1;
                if self.map_writes > 0 {
                    return;
                }
                Event::MapWritten { result: self.map_write_failed.take().map_or(Ok(()), Err) }
            }
            SYNC_MAP_KIND => Event::MapSynced { result: plain(completion) },
            PREPARE_KIND => match plain(completion) {
                Ok(()) => return self.prepare_durable(ring, data.aux()),
                failed => Event::MapPrepared { chunk: Chunk(data.aux().into()), result: failed },
            },
            PREPARE_DURABLE_KIND => {
                Event::MapPrepared { chunk: Chunk(data.aux().into()), result: plain(completion) }
            }
            kind => unreachable!("nothing of kind {kind} was started"),
        };
        self.tell(ring, event, now);
    }

    /// The block of a cold read is in the slab, or cannot be had.
    pub(super) fn on_cold(
        &mut self,
        ring: &mut Ring,
        number: u32,
        slot: Result<SlabSlot, Errno>,
        now: Millis,
    ) {
        let Some(ticket) = self.tickets.get_mut(number as usize).and_then(Option::as_mut) else { return };
        match slot {
            Ok(slot) => {
                let in_block = (ticket.range.start.0 % BLOCK_SECTORS) * SECTOR_BYTES;
                let part = Part {
                    request_offset_bytes: ticket.at,
                    len_bytes: bytes(ticket.range),
                    file: self.shared.slab,
                    file_offset_bytes: slot.offset_bytes() + in_block,
                    user_data: UserData::new(COLD_KIND, self.index, 0, number),
                };
                let id = ticket.id;
                ticket.slot = Some(slot);
                self.read_part(ring, id, &part);
            }
            Err(errno) => {
                let id = ticket.id;
                self.tickets[number as usize] = None;
                self.tell(ring, Event::Fetched { id, result: Err(errno) }, now);
            }
        }
    }

    /// Passes an event to the planner and does what it answers.
    pub(super) fn tell(&mut self, ring: &mut Ring, event: Event, now: Millis) {
        let mut actions = std::mem::take(&mut self.actions);
        self.volume.handle(now, event, &mut actions);
        for action in actions.drain(..) {
            self.perform(ring, action);
        }
        self.actions = actions;
    }

    /// Does what the planner asked for when the volume was made.
    pub(super) fn begin(&mut self, ring: &mut Ring) {
        for action in std::mem::take(&mut self.actions) {
            self.perform(ring, action);
        }
    }

    fn perform(&mut self, ring: &mut Ring, action: Action) {
        match action {
            Action::Read { id, range, at, from } => {
                let (file, file_offset_bytes) = match from {
                    Source::Side(side) => (self.slots.sides[side as usize], range.start.byte_offset()),
                    Source::Zeros => return self.read_zeros(ring, id, range, at),
                };
                self.read_part(ring, id, &self.part(id, range, at, file, file_offset_bytes));
            }
            Action::ReadCold { id, range, at, layers } => {
                self.tally.cold_reads += 1;
                let number = self.new_ticket(Ticket { id, range, at, layers, slot: None, again: false });
                self.fetch(number, None);
            }
            Action::Write { id, range, side } => {
                let part =
                    self.part(id, range, 0, self.slots.sides[side as usize], range.start.byte_offset());
                let queue = &self.queues[(id.0 / self.depth) as usize];
                queue.write_part(ring, self.requests[id.0 as usize].as_ref().expect("in flight"), &part);
                self.operations += 1;
            }
            Action::Punch { id, range, side } => {
                let data = UserData::new(PUNCH_KIND, self.index, self.tag(id), id.0 / self.depth);
                self.punch(ring, side, range, data);
            }
            Action::Evict { range, side } => {
                self.punch(ring, side, range, UserData::new(EVICT_KIND, self.index, 0, 0));
            }
            Action::Complete { id, result } => {
                let request =
                    self.requests[id.0 as usize].take().expect("the planner completes what is in flight");
                self.tally.errors += u64::from(result.is_err());
                let outcome = result.map_err(|errno| holdfast_ring::Errno::new(errno.0));
                self.queues[(id.0 / self.depth) as usize].complete(ring, request, outcome);
            }
            Action::PrepareMap { chunk } => {
                let (offset_bytes, len_bytes) = chunk_extent(self.sectors, chunk);
                let number = u32::try_from(chunk.0).expect("MAX_SECTORS bounds the chunk number");
                let data = UserData::new(PREPARE_KIND, self.index, 0, number);
                ring.allocate(self.slots.live, FileRange { offset_bytes, len_bytes }, data);
                self.operations += 1;
            }
            Action::SyncSide { side } => {
                let data = UserData::new(SYNC_SIDE_KIND, self.index, 0, side as u32);
                ring.sync_data(self.slots.sides[side as usize], data);
                self.operations += 1;
            }
            Action::WriteMap(writes) => self.write_map(ring, &writes),
            Action::SyncMap => {
                ring.sync_data(self.slots.map, UserData::new(SYNC_MAP_KIND, self.index, 0, 0));
                self.operations += 1;
            }
            Action::Upload(blocks) => self.send_other(background::Work::Upload(blocks)),
            Action::StorePending { seq, bytes } => {
                self.send_other(background::Work::StorePending(Pending { seq, bytes }));
            }
            Action::CreateRecord { seq, bytes } => {
                self.send_other(background::Work::CreateRecord { seq, bytes });
            }
            Action::ReadRecord { seq } => self.send_other(background::Work::ReadRecord { seq }),
            Action::WriteCheckpoint { seq, bytes } => {
                self.send_other(background::Work::WriteCheckpoint { seq, bytes });
            }
            Action::Report(report) => self.report(report),
        }
    }

    fn report(&mut self, report: Report) {
        match report {
            Report::Ready => self.board.set_phase(Phase::Ready),
            Report::Fenced => {
                tracing::error!(
                    device = self.index,
                    "another writer holds the volume: all I/O fails from here on"
                );
                self.board.set_phase(Phase::Fenced);
            }
            Report::LocalDiskFailed(errno) => {
                tracing::error!(
                    device = self.index,
                    errno = errno.0,
                    "the local disk failed to keep the volume's data or map"
                );
            }
            Report::CleanUnreadable(range) => {
                self.tally.local_read_errors += 1;
                tracing::warn!(
                    device = self.index,
                    sector = range.start.0,
                    sectors = range.sectors,
                    "the local disk cannot read cached data: it is read from the object store"
                );
            }
            Report::DirtyUnreadable(range) => {
                self.tally.local_read_errors += 1;
                tracing::error!(
                    device = self.index,
                    sector = range.start.0,
                    sectors = range.sectors,
                    "the local disk cannot read data that is nowhere else: the read fails"
                );
            }
            Report::Committed(seq) => tracing::debug!(device = self.index, %seq, "committed"),
            Report::Detached => self.board.set_phase(Phase::Detached),
            Report::Kept { whole } => self.board.set_phase(Phase::Kept { whole }),
            Report::Repaired => self.board.repaired(),
        }
        self.board.show(self.volume.status());
    }

    fn send(&self, work: Work) {
        // The receiver lives as long as this sender, unless the runtime is shutting down: then nobody waits any more.
        drop(self.work.send(work));
    }

    fn send_other(&self, work: background::Work) {
        self.send(Work::Other(work));
    }

    fn tag(&self, id: RequestId) -> u16 {
        u16::try_from(id.0 % self.depth).expect("a queue has at most 4096 tags")
    }

    fn part(
        &self,
        id: RequestId,
        range: SectorRange,
        at: u32,
        file: FileSlot,
        file_offset_bytes: u64,
    ) -> Part {
        let sectors = u32::try_from(range.sectors).expect("a request is small");
        let aux = ((id.0 / self.depth) << LENGTH_BITS) | sectors;
        Part {
            request_offset_bytes: at,
            len_bytes: bytes(range),
            file,
            file_offset_bytes,
            user_data: UserData::new(MOVE_KIND, self.index, self.tag(id), aux),
        }
    }

    fn read_part(&mut self, ring: &mut Ring, id: RequestId, part: &Part) {
        let queue = &self.queues[(id.0 / self.depth) as usize];
        queue.read_part(ring, self.requests[id.0 as usize].as_ref().expect("in flight"), part);
        self.operations += 1;
    }

    /// A chunk's pages find their place in the durable map before anything is written there: no flush fails for space.
    fn prepare_durable(&mut self, ring: &mut Ring, number: u32) {
        let (offset_bytes, len_bytes) = durable_map::chunk_extent(self.sectors, Chunk(number.into()));
        let data = UserData::new(PREPARE_DURABLE_KIND, self.index, 0, number);
        ring.allocate(self.slots.map, FileRange { offset_bytes, len_bytes }, data);
        self.operations += 1;
    }

    fn punch(&mut self, ring: &mut Ring, side: Side, range: SectorRange, data: UserData) {
        let whole = FileRange { offset_bytes: range.start.byte_offset(), len_bytes: range.bytes() };
        ring.punch_hole(self.slots.sides[side as usize], whole, data);
        self.operations += 1;
    }

    fn read_zeros(&mut self, ring: &mut Ring, id: RequestId, range: SectorRange, at: u32) {
        self.read_part(ring, id, &self.part(id, range, at, self.shared.zeros, 0));
    }

    fn new_ticket(&mut self, ticket: Ticket) -> u32 {
        let free = self.tickets.iter().position(Option::is_none).unwrap_or_else(|| {
            self.tickets.push(None);
            self.tickets.len() - 1
        });
        self.tickets[free] = Some(ticket);
        u32::try_from(free).expect("at most a few for each request")
    }

    /// Asks for the block of a ticket, which was not readable in the slot it was in.
    fn fetch(&self, number: u32, unreadable: Option<SlabSlot>) {
        let ticket = self.tickets[number as usize].as_ref().expect("its read is under way");
        let (block, layers) = (ticket.range.start.block(), ticket.layers.clone());
        self.send(Work::Cold { ticket: number, block, layers, unreadable });
    }

    fn write_map(&mut self, ring: &mut Ring, writes: &[MapWrite]) {
        for write in writes {
            let data = UserData::new(MAP_WRITE_KIND, self.index, 0, 0);
            ring.write(self.slots.map, write.offset, HeapBuffer::from_slice(&write.bytes), data);
        }
        self.map_writes = u32::try_from(writes.len()).expect("fewer than 2^32 pages");
        self.operations += self.map_writes;
    }

    /// Time passed: limits are looked at, figures shown.
    pub(super) fn tick(&mut self, ring: &mut Ring, now: Millis) {
        self.tell(ring, Event::Tick, now);
        self.board.show(self.volume.status());
        let (tally, shown) = (&self.tally, &self.board.counters);
        for (value, counter) in [
            (tally.reads, &shown.reads),
            (tally.writes, &shown.writes),
            (tally.flushes, &shown.flushes),
            (tally.discards, &shown.discards),
            (tally.read_bytes, &shown.read_bytes),
            (tally.written_bytes, &shown.written_bytes),
            (tally.cold_reads, &shown.cold_reads),
            (tally.local_read_errors, &shown.local_read_errors),
            (tally.errors, &shown.errors),
        ] {
            counter.store(value, Ordering::Relaxed);
        }
    }

    /// Lets go of the device's queues once all tags are back; the device was told to stop.
    pub(super) fn close(&mut self, ring: &mut Ring, done: oneshot::Sender<Result<(), QueueError>>) {
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
            let closed = self.queues.drain(..).try_for_each(|queue| queue.close(ring));
            // Whoever asked may have given up waiting.
            drop(done.send(closed));
        }
    }

    /// From now on requests are left to the successor.
    pub(super) fn drain(&mut self) {
        for queue in &mut self.queues {
            queue.drain();
        }
    }

    /// Whether no file operation is under way.
    pub(super) fn is_still(&self) -> bool {
        self.operations == 0
    }

    /// Gives up every request, for the process to end: the kernel hands them to the successor.
    pub(super) fn leave(&mut self) {
        for request in self.requests.iter_mut().filter_map(Option::take) {
            request.leave_to_successor();
        }
    }

    /// Takes the volume's files off the ring.
    pub(super) fn release(self, ring: &mut Ring) -> Result<(), RingError> {
        for slot in [self.slots.sides[0], self.slots.sides[1], self.slots.map, self.slots.live] {
            ring.unregister_file(slot)?;
        }
        Ok(())
    }
}

fn bytes(range: SectorRange) -> u32 {
    u32::try_from(range.bytes()).expect("a request is smaller than 4 GiB")
}

fn exactly(completion: &Completion, expected_bytes: u32) -> Result<(), Errno> {
    completion.exactly(expected_bytes).map_err(|errno| Errno(errno.number()))
}

fn plain(completion: &Completion) -> Result<(), Errno> {
    completion.result().map(|_| ()).map_err(|errno| Errno(errno.number()))
}
