//! Performs the planner's actions: begins file operations, completes requests, sends background work.

use std::sync::Arc;

use holdfast_background::{self as background, SlabSlot};
use holdfast_engine::action::{Action, MapWrite, Source};
use holdfast_engine::durable_map;
use holdfast_engine::event::RequestId;
use holdfast_engine::limit::PAUSE_MS;
use holdfast_engine::sector_map::chunk_extent;
use holdfast_engine::settings::Pending;
use holdfast_format::side::Side;
use holdfast_ring::{FileRange, FileSlot, HeapBuffer, Pause};
use holdfast_types::{BLOCK_SECTORS, Chunk, Mask, SECTOR_BYTES, SectorRange};
use holdfast_ublk::RequestPart;
use tokio::sync::mpsc::error::TrySendError;

use super::moves::{PartMove, is_large};
use super::{ServedVolume, bytes};
use crate::operation::{FileOperation, InFlight, VolumeRing};
use crate::work::{BackgroundWork, ColdRead, UsedBlocks};

static PAUSE: Pause = Pause::millis(PAUSE_MS);

impl ServedVolume {
    pub(super) fn perform(&mut self, ring: &mut VolumeRing, action: Action) {
        match action {
            Action::Read { id, range, at, from } => {
                let (file, file_offset_bytes) = match from {
                    Source::Side(side) => (self.disk.slots.sides[side as usize], range.start.byte_offset()),
                    Source::Zeros => (self.disk.shared.zeros, 0),
                };
                let part = part(range, at, file, file_offset_bytes);
                let counts = matches!(from, Source::Side(_)) && self.is_large(id);
                let operation = FileOperation::MovePart { request: id, len_bytes: part.len_bytes, counts };
                self.read_part(ring, id, part, (operation, counts));
            }
            Action::ReadCold { id, range, at, runs } => {
                self.read_cold(ring, Box::new(ColdRead::of(id, range, at, runs)));
            }
            Action::Write { id, range, side } => self.move_part_of_side(ring, id, range, side, true),
            Action::Punch { id, range, side } => {
                self.punch(ring, side, range, FileOperation::Punch { request: id });
            }
            Action::Evict { range, side } => {
                self.disk.evictions.waiting.push_back((side, range));
                self.evict(ring);
            }
            Action::Complete { id, result } => {
                self.tally.errors += u64::from(result.is_err());
                let outcome = result.map_err(|errno| holdfast_ring::KernelErrno::new(errno.0));
                self.queues.complete(ring, id, outcome);
            }
            Action::PrepareMap { chunk } => self.prepare_live(ring, chunk),
            Action::ReleaseMap { chunk } => self.release_live(ring, chunk),
            Action::SyncSide { side } => {
                let operation = self.begin_file(FileOperation::SyncSide(side));
                ring.sync_data(self.disk.slots.sides[side as usize], operation);
            }
            Action::WriteMap(writes) => self.write_map(ring, writes),
            Action::SyncMap => {
                let operation = self.begin_file(FileOperation::SyncMap);
                ring.sync_data(self.disk.slots.map, operation);
            }
            Action::NextTurn => {
                let operation = self.begin_file(FileOperation::NextTurn);
                ring.no_operation(operation);
            }
            // A leaving thread waits for operations in flight; delayed writes are left to the successor.
            Action::Pause if self.is_draining => {}
            Action::Pause => {
                let operation = self.begin_file(FileOperation::Pause);
                ring.pause(&PAUSE, operation);
            }
            Action::Upload { place, blocks } => {
                self.send_other(background::Work::Upload { place, blocks });
            }
            Action::Merge(plan) => self.send_other(background::Work::Merge(plan)),
            Action::StorePending { seq, bytes } => {
                self.send_other(background::Work::StorePending(Pending { seq, bytes }));
            }
            Action::StoreRoot { seq, bytes } => {
                self.send_other(background::Work::StoreRoot { seq, bytes });
            }
            Action::CreateRecord { seq, bytes } => {
                self.send_other(background::Work::CreateRecord { seq, bytes });
            }
            Action::ReadRecord { seq } => self.send_other(background::Work::ReadRecord { seq }),
            Action::WriteCheckpoint { seq, bytes } => {
                self.send_other(background::Work::WriteCheckpoint { seq, bytes });
            }
            Action::Report(report) => self.report(&report),
        }
    }

    fn prepare_live(&mut self, ring: &mut VolumeRing, chunk: Chunk) {
        let (offset_bytes, len_bytes) = chunk_extent(chunk);
        let operation = self.begin_file(FileOperation::PrepareLive(chunk));
        ring.allocate(self.disk.slots.live, FileRange { offset_bytes, len_bytes }, operation);
    }

    fn release_live(&mut self, ring: &mut VolumeRing, chunk: Chunk) {
        let (offset_bytes, len_bytes) = chunk_extent(chunk);
        let operation = self.begin_file(FileOperation::ReleaseLive(chunk));
        ring.punch_hole(self.disk.slots.live, FileRange { offset_bytes, len_bytes }, operation);
    }

    /// Reads a part that is on no side: at once, if its block is known to be in the slab.
    fn read_cold(&mut self, ring: &mut VolumeRing, mut read: Box<ColdRead>) {
        self.tally.cold_reads += 1;
        let range = read.range;
        if let Some(slot) = self.slab.known.find(range.start.block(), Mask::of(range), &read.runs) {
            self.tally.slab_hits += 1;
            self.slab.passed.read(range, read.at == 0);
            return self.copy_cold(ring, read, slot);
        }
        let request = self.queues.described(read.request);
        let end = request.start_sector() + u64::from(request.sectors());
        // True if no later part of the request needs a task.
        let is_last_of_work = SectorRange::new(range.end(), end - range.end())
            .split_at_multiples(BLOCK_SECTORS)
            .all(|rest| self.slab.known.find(rest.start.block(), Mask::of(rest), &read.runs).is_some());
        read.remote_after = is_last_of_work.then(|| self.volume.remote_after(range.start.block()));
        read.passed = self.slab.passed.take();
        self.send(BackgroundWork::Cold(read));
    }

    /// Copies a part of a read out of a slot of the slab.
    pub(super) fn copy_cold(&mut self, ring: &mut VolumeRing, mut read: Box<ColdRead>, slot: SlabSlot) {
        let (request, part) = (read.request, self.slab_part(read.range, read.at, &slot));
        let counts = self.counts_copy(request, &slot);
        read.slot = Some(slot);
        self.read_part(ring, request, part, (FileOperation::CopyCold(read), counts));
    }

    /// Returns true if copies out of a slot count towards the volume's share of the disk.
    pub(super) fn counts_copy(&self, request: RequestId, slot: &SlabSlot) -> bool {
        !slot.is_in_memory() && self.is_large(request)
    }

    /// Returns true if a request is large: each of its moves then counts, even a short one.
    pub(super) fn is_large(&self, request: RequestId) -> bool {
        is_large(self.queues.described(request).len_bytes())
    }

    /// Returns the location in the slab of the part of a read that begins `at` bytes into the request.
    pub(super) fn slab_part(&self, range: SectorRange, at: u32, slot: &SlabSlot) -> RequestPart {
        let in_block = (range.start.0 % BLOCK_SECTORS) * SECTOR_BYTES;
        let file = if slot.is_in_memory() { self.disk.shared.memory } else { self.disk.shared.slab };
        part(range, at, file, slot.offset_bytes() + in_block)
    }

    /// Reports the blocks read on this thread to the slab, once it has processed the previous report.
    pub(super) fn send_used(&mut self) {
        if Arc::strong_count(&self.slab.used_in_progress) > 1 {
            return;
        }
        let slots = self.slab.known.take_used();
        if !slots.is_empty() {
            let in_progress = Arc::clone(&self.slab.used_in_progress);
            self.send(BackgroundWork::Used(UsedBlocks { slots, in_progress }));
        }
    }

    /// Moves a whole request between its pages and a side.
    #[inline(always)] // on the path of each request
    pub(super) fn move_whole(
        &mut self,
        ring: &mut VolumeRing,
        id: RequestId,
        range: SectorRange,
        side: Side,
        is_write: bool,
    ) {
        let operation = self.begin_file(FileOperation::MoveWhole { request: id });
        let (queue, request) = self.queues.request(id);
        let part = RequestPart {
            request_offset_bytes: 0,
            // A request has at most 1 MiB.
            len_bytes: request.len_bytes() as u32,
            file: self.disk.slots.sides[side as usize],
            file_offset_bytes: range.start.byte_offset(),
        };
        debug_assert_eq!(u64::from(part.len_bytes), range.bytes(), "all of the request");
        if is_write {
            queue.write_part(ring, request, &part, operation);
        } else {
            queue.read_part(ring, request, &part, operation);
        }
    }

    /// Moves a whole request that is, or may be, large between its pages and a side.
    #[cold] // so that the path of small requests is compiled as if it were the only one
    #[inline(never)]
    pub(super) fn move_part_of_side(
        &mut self,
        ring: &mut VolumeRing,
        id: RequestId,
        range: SectorRange,
        side: Side,
        is_write: bool,
    ) {
        let part = part(range, 0, self.disk.slots.sides[side as usize], range.start.byte_offset());
        let operation = self.begin_file(FileOperation::MoveWhole { request: id });
        let counts = is_large(range.bytes());
        self.move_part(ring, PartMove { request: id, part, is_write, operation }, counts);
    }

    /// Reads a part of a request.
    pub(super) fn read_part(
        &mut self,
        ring: &mut VolumeRing,
        request: RequestId,
        part: RequestPart,
        (operation, counts): (FileOperation, bool),
    ) {
        let operation = self.begin_file(operation);
        self.move_part(ring, PartMove { request, part, is_write: false, operation }, counts);
    }

    /// Moves data for a request. A move that counts may wait until fewer bytes of the volume are in flight.
    fn move_part(&mut self, ring: &mut VolumeRing, next: PartMove, counts: bool) {
        if !counts || self.disk.moves.begins(next.part.len_bytes) {
            self.begin_move(ring, next);
        } else {
            self.disk.moves.wait(next);
        }
    }

    #[inline(never)] // so that functions inlined into the path of each request have few callers
    fn begin_move(
        &mut self,
        ring: &mut VolumeRing,
        PartMove { request, part, is_write, operation }: PartMove,
    ) {
        let (queue, request) = self.queues.request(request);
        if is_write {
            queue.write_part(ring, request, &part, operation);
        } else {
            queue.read_part(ring, request, &part, operation);
        }
    }

    /// Records the end of a move that counts, and begins others.
    #[inline(never)]
    pub(super) fn large_move_ended(&mut self, ring: &mut VolumeRing, len_bytes: u32) {
        self.disk.moves.end(len_bytes);
        while let Some(next) = self.disk.moves.next() {
            self.begin_move(ring, next);
        }
    }

    pub(super) fn send(&mut self, work: BackgroundWork) {
        match self.work.try_send(work) {
            Ok(()) => {
                let waiting = self.work.max_capacity() - self.work.capacity();
                self.tally.max_waiting_work = self.tally.max_waiting_work.max(waiting as u64);
            }
            // The receiver outlives this sender unless the runtime is shutting down, and then no task waits
            // any more.
            Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => panic!("a volume requested more work than limit.rs allows"),
        }
    }

    fn send_other(&mut self, work: background::Work) {
        self.send(BackgroundWork::Other(work));
    }

    /// Counts a file operation of this volume. Returns it for the ring.
    pub(super) fn begin_file(&mut self, operation: FileOperation) -> InFlight {
        self.disk.operations += 1;
        InFlight::File { volume: self.key, operation }
    }

    /// Allocates a chunk's pages in the durable map before anything is written there, so that no flush fails
    /// for lack of space.
    pub(super) fn prepare_durable(&mut self, ring: &mut VolumeRing, chunk: Chunk) {
        let (offset_bytes, len_bytes) = durable_map::chunk_extent(chunk);
        let operation = self.begin_file(FileOperation::PrepareDurable(chunk));
        ring.allocate(self.disk.slots.map, FileRange { offset_bytes, len_bytes }, operation);
    }

    fn punch(&mut self, ring: &mut VolumeRing, side: Side, range: SectorRange, operation: FileOperation) {
        let whole = FileRange { offset_bytes: range.start.byte_offset(), len_bytes: range.bytes() };
        let operation = self.begin_file(operation);
        ring.punch_hole(self.disk.slots.sides[side as usize], whole, operation);
    }

    /// Adds a large request that waits for another one.
    #[cfg(test)]
    pub(crate) fn add_waiting_move(&mut self) {
        let request = RequestId(0);
        let operation = self.begin_file(FileOperation::MoveWhole { request });
        let file = self.disk.slots.map;
        let part = RequestPart { request_offset_bytes: 0, len_bytes: 1 << 20, file, file_offset_bytes: 0 };
        self.disk.moves.wait(PartMove { request, part, is_write: false, operation });
    }

    /// Adds ranges to evict. Returns the number of holes in flight.
    #[cfg(test)]
    pub(crate) fn add_evictions(&mut self, ring: &mut VolumeRing) -> u32 {
        self.disk.evictions.waiting.extend([(Side::A, SectorRange::new(0, 1)); 2]);
        self.evict(ring);
        self.disk.evictions.in_flight
    }

    /// Punches holes for ranges that an eviction frees, as many as may be in flight.
    pub(super) fn evict(&mut self, ring: &mut VolumeRing) {
        // As after a kill: the successor finds again what can be evicted.
        if self.is_draining {
            return;
        }
        while let Some((side, range)) = self.disk.evictions.next() {
            self.punch(ring, side, range, FileOperation::Evict);
        }
    }

    /// Writes pages of the durable map. Frees each write's bytes as soon as they are copied to aligned
    /// memory, so that all of them never exist twice.
    fn write_map(&mut self, ring: &mut VolumeRing, writes: Vec<MapWrite>) {
        self.disk.map_writes.in_flight = u32::try_from(writes.len()).expect("MAP_WRITE_PAGES bounds them");
        for MapWrite { offset, bytes } in writes {
            let operation = self.begin_file(FileOperation::WriteMap);
            ring.write(self.disk.slots.map, offset, HeapBuffer::from_slice(&bytes), operation);
        }
    }
}

fn part(range: SectorRange, at: u32, file: FileSlot, file_offset_bytes: u64) -> RequestPart {
    RequestPart { request_offset_bytes: at, len_bytes: bytes(range), file, file_offset_bytes }
}
