//! Completions of commands of the device's queues, file operations and fetches of blocks, for the planner.

use holdfast_background::SlabBlock;
use holdfast_engine::event::{Errno, Event, Op, RequestId, Unprepared};
use holdfast_format::index::Runs;
use holdfast_fuse::{FuseCommand, FuseFault, FuseQueue};
use holdfast_ring::{HeapBuffer, IoResult};
use holdfast_types::{Chunk, Mask, Millis, SectorRange};
use holdfast_ublk::{BatchEvent, DeviceRequest, FetchedTags, Operation, QueueEvent};

use super::moves::is_large;
use super::queues::Queues;
use super::{ServedVolume, bytes};
use crate::operation::{FileOperation, VolumeKey, VolumeRing};
use crate::work::{BackgroundWork, ColdRead};

impl ServedVolume {
    /// Handles a completion of a command of one of the device's queues. Returns false, and drops the
    /// completion, if that queue was closed before.
    pub(crate) fn on_command(
        &mut self,
        ring: &mut VolumeRing,
        (queue, tag): (u16, u16),
        (outcome, continues): (IoResult, bool),
        now: Millis,
    ) -> bool {
        if self.queues.with_batches(queue).is_some() {
            self.on_batch_command(ring, (queue, tag), (outcome, continues), now);
            return true;
        }
        let Some(event) = self.queues.on_command(ring, queue, tag, outcome) else {
            self.lines.late_command(queue, tag, now);
            return false;
        };
        match event {
            QueueEvent::Request(request) if self.limits.is_limited => {
                self.begin_limited(ring, queue, request, now);
            }
            QueueEvent::Request(request) => self.begin_single(ring, queue, request, now),
            QueueEvent::Held | QueueEvent::Refused => {}
            QueueEvent::Aborted => self.device_ended(ring),
            QueueEvent::Failed { tag, errno } => self.queue_refused(ring, (queue, tag), errno, now),
        }
        true
    }

    /// Handles a completion of a command of a queue with batches.
    #[inline(never)] // its caller is on the path of each request of other queues
    fn on_batch_command(
        &mut self,
        ring: &mut VolumeRing,
        (number, command): (u16, u16),
        (outcome, continues): (IoResult, bool),
        now: Millis,
    ) {
        let Some(queue) = self.queues.with_batches(number) else { return };
        match queue.on_batch_completion(ring, command, outcome, continues) {
            BatchEvent::Fetched(mut tags) => {
                let next = |queues: &mut Queues, ring: &mut VolumeRing, tags: &mut FetchedTags| {
                    queues.with_batches(number)?.next_fetched(ring, tags)
                };
                while let Some(request) = next(&mut self.queues, ring, &mut tags) {
                    if self.limits.is_limited {
                        self.begin_limited(ring, number, request, now);
                    } else {
                        self.begin_request(ring, number, request, now);
                    }
                }
            }
            BatchEvent::Done => self.queues.finish_closing(ring),
            BatchEvent::Aborted => self.device_ended(ring),
            BatchEvent::Failed { command, errno } => {
                self.queue_refused(ring, (number, command), errno, now);
            }
        }
    }

    /// Handles the return of a tag by the kernel: the daemon, or another program, stops the device.
    #[cold]
    fn device_ended(&mut self, ring: &mut VolumeRing) {
        if !self.queues.is_closing() && !self.published.has_device_ended() {
            self.published.device_ended();
        }
        self.queues.finish_closing(ring);
    }

    #[cold]
    fn queue_refused(
        &mut self,
        ring: &mut VolumeRing,
        (queue, command): (u16, u16),
        errno: holdfast_ring::KernelErrno,
        now: Millis,
    ) {
        self.lines.queue_refused(queue, command, errno, now);
        self.published.queue_refused(errno);
        self.queues.finish_closing(ring);
    }

    /// Passes the answers of a queue since the last wait of the ring to the kernel.
    pub(crate) fn commit(&mut self, ring: &mut VolumeRing, queue: u16) {
        if let Some(queue) = self.queues.with_batches(queue) {
            queue.commit(ring);
        }
    }

    /// Handles the end of a wait for requests of the volume's FUSE file. Returns false if its queue was
    /// closed before.
    pub(crate) fn on_fuse(
        &mut self,
        ring: &mut VolumeRing,
        command: FuseCommand<VolumeKey>,
        outcome: IoResult,
        now: Millis,
    ) -> bool {
        let Some(queue) = self.queues.fuse() else { return false };
        queue.on_completion(command, outcome);
        while let Some(request) = self.queues.fuse().and_then(FuseQueue::next_request) {
            if self.limits.is_limited {
                self.begin_limited(ring, 0, request, now);
            } else {
                self.begin_single(ring, 0, request, now);
            }
        }
        if let Some(queue) = self.queues.fuse() {
            queue.poll(ring);
            if let Some(fault) = queue.take_fault() {
                self.lines.fuse_fault(fault, now);
                if fault == FuseFault::Ended {
                    self.published.device_ended();
                }
            }
        }
        self.queues.finish_closing(ring);
        true
    }

    /// Begins a request that did not arrive in a batch.
    #[inline(never)]
    fn begin_single(&mut self, ring: &mut VolumeRing, queue: u16, request: DeviceRequest, now: Millis) {
        self.begin_request(ring, queue, request, now);
    }

    #[inline(always)] // on the path of each request
    fn begin_request(&mut self, ring: &mut VolumeRing, queue: u16, request: DeviceRequest, now: Millis) {
        let range = SectorRange::new(request.start_sector(), u64::from(request.sectors()));
        let op = self.count(&request);
        let id = self.queues.insert(queue, request);
        match self.volume.begin(now, id, op, range) {
            Some(side) if is_large(range.bytes()) => {
                self.move_part_of_side(ring, id, range, side, op == Op::Write);
            }
            Some(side) => self.move_whole(ring, id, range, side, op == Op::Write),
            None => self.begin_other(ring, (id, op, range), now),
        }
    }

    /// Begins a request that a single side operation does not complete.
    #[inline(never)]
    pub(super) fn begin_other(
        &mut self,
        ring: &mut VolumeRing,
        (id, op, range): (RequestId, Op, SectorRange),
        now: Millis,
    ) {
        if op == Op::Read {
            let known = |runs: &Runs| self.slab.known.find(range.start.block(), Mask::of(range), runs);
            if let Some(slot) = self.volume.begin_known(now, id, range, known) {
                self.tally.cold_reads += 1;
                self.tally.slab_hits += 1;
                self.slab.passed.read(range, true);
                let part = self.slab_part(range, 0, &slot);
                let counts = self.counts_copy(id, &slot);
                self.slab.copied[id.0 as usize] = Some(slot);
                return self.read_part(ring, id, part, (FileOperation::CopyKnown { request: id }, counts));
            }
        }
        self.handle(ring, Event::Request { id, op, range }, now);
    }

    #[inline(always)] // one of its two callers is on the path of each request
    pub(super) fn count(&mut self, request: &DeviceRequest) -> Op {
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
                if request.is_fua() {
                    self.queues.time_next_too();
                    Op::WriteFua
                } else {
                    Op::Write
                }
            }
            Operation::Flush => {
                tally.flushes += 1;
                self.queues.time_next_too();
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

    /// Handles the end of the move of a whole request.
    #[inline]
    pub(crate) fn on_moved(&mut self, ring: &mut VolumeRing, id: RequestId, outcome: IoResult, now: Millis) {
        self.disk.operations -= 1;
        self.moved_whole(ring, id, outcome, now);
    }

    #[inline(never)] // so that its caller stays small enough for the loop of the ring thread
    fn moved_whole(&mut self, ring: &mut VolumeRing, id: RequestId, outcome: IoResult, now: Millis) {
        // A request has at most 1 MiB.
        let len_bytes = self.queues.described(id).len_bytes() as u32;
        if is_large(len_bytes.into()) {
            self.moved_large(ring, (id, len_bytes), outcome, now);
        } else {
            self.whole_ended(ring, (id, len_bytes), outcome, now);
        }
    }

    #[inline(never)] // so that small requests do not pay for this
    fn moved_large(
        &mut self,
        ring: &mut VolumeRing,
        whole: (RequestId, u32),
        outcome: IoResult,
        now: Millis,
    ) {
        self.large_move_ended(ring, whole.1);
        self.whole_ended(ring, whole, outcome, now);
    }

    #[inline(always)] // on the path of each request
    fn whole_ended(
        &mut self,
        ring: &mut VolumeRing,
        (id, len_bytes): (RequestId, u32),
        outcome: IoResult,
        now: Millis,
    ) {
        if outcome == IoResult(len_bytes.cast_signed()) && self.volume.end(now, id) {
            return self.queues.complete(ring, id, Ok(()));
        }
        let is_write = self.queues.described(id).operation() == Operation::Write;
        let result = moved(outcome, len_bytes, is_write);
        self.handle(ring, Event::IoCompleted { id, result }, now);
    }

    /// Handles the end of a file operation of this volume.
    pub(crate) fn on_file(
        &mut self,
        ring: &mut VolumeRing,
        operation: FileOperation,
        (outcome, buffer): (IoResult, Option<HeapBuffer>),
        now: Millis,
    ) {
        self.disk.operations -= 1;
        let event = match operation {
            FileOperation::MoveWhole { request } => {
                return self.moved_whole(ring, request, outcome, now);
            }
            FileOperation::MovePart { request: id, len_bytes, counts } => {
                if counts {
                    self.large_move_ended(ring, len_bytes);
                }
                Event::IoCompleted { id, result: exactly(outcome, len_bytes) }
            }
            FileOperation::CopyKnown { request: id } => {
                return self.copied_known(ring, id, outcome, now);
            }
            FileOperation::CopyCold(read) => {
                if read.slot.as_ref().is_some_and(|slot| self.counts_copy(read.request, slot)) {
                    self.large_move_ended(ring, bytes(read.range));
                }
                match self.copied(read, outcome) {
                    Some(fetched) => fetched,
                    None => return,
                }
            }
            FileOperation::Punch { request: id } => Event::IoCompleted { id, result: plain(outcome) },
            FileOperation::Evict => {
                self.disk.evictions.in_flight -= 1;
                self.evict(ring);
                Event::Evicted { result: plain(outcome) }
            }
            FileOperation::SyncSide(side) => Event::SideSynced { side, result: plain(outcome) },
            FileOperation::WriteMap => {
                let len_bytes = buffer.map_or(0, |buffer| buffer.len());
                let written = exactly(outcome, u32::try_from(len_bytes).unwrap_or(u32::MAX));
                match self.disk.map_writes.end(written) {
                    Some(result) => Event::MapWritten { result },
                    None => return,
                }
            }
            FileOperation::SyncMap => Event::MapSynced { result: plain(outcome) },
            FileOperation::PrepareLive(chunk) => match plain(outcome) {
                Ok(()) => return self.prepare_durable(ring, chunk),
                Err(errno) => self.unprepared(chunk, Unprepared::RunDir(errno), now),
            },
            // After a failure the memory stays allocated.
            FileOperation::ReleaseLive(chunk) => Event::MapReleased { chunk },
            FileOperation::PrepareDurable(chunk) => match plain(outcome) {
                Ok(()) => Event::MapPrepared { chunk, result: Ok(()) },
                Err(errno) => self.unprepared(chunk, Unprepared::Disk(errno), now),
            },
            FileOperation::NextTurn => Event::NextTurn,
            FileOperation::Pause => Event::PauseEnded,
            FileOperation::LimitPause => return self.limit_pause_ended(ring, now),
        };
        self.handle(ring, event, now);
    }

    /// Handles the end of a read of a whole request from a block known to be in the slab.
    #[inline]
    fn copied_known(&mut self, ring: &mut VolumeRing, id: RequestId, outcome: IoResult, now: Millis) {
        let slot = self.slab.copied[id.0 as usize].take();
        let request = self.queues.described(id);
        let range = SectorRange::new(request.start_sector(), u64::from(request.sectors()));
        if slot.as_ref().is_some_and(|slot| self.counts_copy(id, slot)) {
            self.large_move_ended(ring, bytes(range));
        }
        let result = exactly(outcome, bytes(range));
        if result.is_ok() && self.volume.end(now, id) {
            return self.queues.complete(ring, id, Ok(()));
        }
        match self.volume.runs() {
            Some(runs) if result.is_err() => {
                let mut read = Box::new(ColdRead::of(id, range, 0, runs.clone()));
                read.slot = slot;
                self.fetch_again(read);
            }
            Some(_) | None => self.handle(ring, Event::ColdReadCompleted { id, result }, now),
        }
    }

    fn unprepared(&mut self, chunk: Chunk, why: Unprepared, now: Millis) -> Event {
        self.lines.no_map(why, now);
        Event::MapPrepared { chunk, result: Err(why) }
    }

    /// Handles the end of a copy out of the slab. Returns the event, unless it fetches the block again.
    fn copied(&mut self, read: Box<ColdRead>, outcome: IoResult) -> Option<Event> {
        let result = exactly(outcome, bytes(read.range));
        if result.is_err() && !read.again {
            self.fetch_again(read);
            return None;
        }
        Some(Event::ColdReadCompleted { id: read.request, result })
    }

    /// Fetches the block of a read again, because the disk could not read its slot.
    fn fetch_again(&mut self, mut read: Box<ColdRead>) {
        read.again = true;
        self.slab.known.forget(read.range.start.block());
        self.tally.local_read_errors += 1;
        self.send(BackgroundWork::Cold(read));
    }

    /// Handles the end of a fetch: the block of a cold read is in the slab, or unavailable.
    pub(crate) fn on_cold(
        &mut self,
        ring: &mut VolumeRing,
        read: Box<ColdRead>,
        found: Result<SlabBlock, Errno>,
        now: Millis,
    ) {
        let id: RequestId = read.request;
        match found {
            Ok(found) => {
                self.slab.known.found(read.range.start.block(), &found, &read.runs);
                self.copy_cold(ring, read, found.slot);
            }
            Err(errno) => self.handle(ring, Event::ColdReadCompleted { id, result: Err(errno) }, now),
        }
    }
}

/// Returns the result of a move. A write that ended early found no space for the rest. If it moved nothing,
/// its data could not be copied from the kernel: a full disk reports an error.
fn moved(outcome: IoResult, expected_bytes: u32, is_write: bool) -> Result<(), Errno> {
    match outcome.result() {
        Ok(bytes) if is_write && (1..expected_bytes).contains(&bytes) => Err(Errno::ENOSPC),
        Ok(_) | Err(_) => exactly(outcome, expected_bytes),
    }
}

fn exactly(outcome: IoResult, expected_bytes: u32) -> Result<(), Errno> {
    outcome.exactly(expected_bytes).map_err(|errno| known(errno.number()))
}

fn plain(outcome: IoResult) -> Result<(), Errno> {
    outcome.result().map(|_| ()).map_err(|errno| known(errno.number()))
}

/// Converts an error number. An exhausted quota counts as a full disk.
fn known(number: i32) -> Errno {
    if number == libc::EDQUOT { Errno::ENOSPC } else { Errno(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write over several extents that ran out of space in the middle was an I/O error to the client.
    #[test]
    fn a_write_cut_short_or_over_quota_waits_for_space() {
        for (outcome, is_write, expected) in [
            (8192, true, Ok(())),
            (4096, true, Err(Errno::ENOSPC)),
            (0, true, Err(Errno::EIO)),
            (-libc::ENOSPC, true, Err(Errno::ENOSPC)),
            (-libc::EDQUOT, true, Err(Errno::ENOSPC)),
            (-libc::EIO, true, Err(Errno::EIO)),
            (4096, false, Err(Errno::EIO)),
        ] {
            assert_eq!(moved(IoResult(outcome), 8192, is_write), expected, "{outcome} {is_write}");
        }
        assert_eq!(plain(IoResult(-libc::EDQUOT)), Err(Errno::ENOSPC));
    }
}
