//! What ended: commands of the device's queues, file operations, fetches of blocks. Each becomes an event for the planner.

use holdfast_engine::event::{Errno, Event, Millis, Op, RequestId, Unprepared};
use holdfast_engine::sector_map::Side;
use holdfast_ring::{Completion, Ring, UserData};
use holdfast_types::{BLOCK_SECTORS, Chunk, SECTOR_BYTES, SectorRange};
use holdfast_ublk::{Operation, Part, QueueEvent, Request};

use super::Served;
use super::kind::{
    COLD_KIND, EVICT_KIND, LENGTH_BITS, MAP_WRITE_KIND, MOVE_KIND, PREPARE_DURABLE_KIND, PREPARE_KIND,
    PUNCH_KIND, SYNC_MAP_KIND, SYNC_SIDE_KIND, TURN_KIND, bytes,
};
use crate::node::store::block_cache::SlabSlot;

impl Served {
    /// A command of one of the device's queues ended.
    pub(in crate::node) fn on_command(&mut self, ring: &mut Ring, completion: &Completion, now: Millis) {
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
                self.lines.queue_refused(number, tag, errno, now);
                self.board.queue_refused(errno);
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
                if request.is_fua() { Op::WriteFua } else { Op::Write }
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
    pub(in crate::node) fn on_operation(&mut self, ring: &mut Ring, completion: &Completion, now: Millis) {
        self.operations -= 1;
        let data = completion.user_data;
        let event = match data.kind() {
            MOVE_KIND => {
                let length = data.aux() & ((1 << LENGTH_BITS) - 1);
                let id = RequestId((data.aux() >> LENGTH_BITS) * self.depth + u32::from(data.tag()));
                let request = self.requests[id.0 as usize].as_ref().expect("in flight");
                let is_write = request.operation() == Operation::Write;
                Event::Moved { id, result: moved(completion, length * SECTOR_BYTES as u32, is_write) }
            }
            COLD_KIND => {
                let ticket = self.tickets[data.aux() as usize].as_mut().expect("its read was in flight");
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
                Err(errno) => self.unprepared(data.aux(), Unprepared::RunDir(errno), now),
            },
            PREPARE_DURABLE_KIND => match plain(completion) {
                Ok(()) => Event::MapPrepared { chunk: Chunk(data.aux().into()), result: Ok(()) },
                Err(errno) => self.unprepared(data.aux(), Unprepared::Disk(errno), now),
            },
            TURN_KIND => Event::NextTurn,
            kind => unreachable!("nothing of kind {kind} was started"),
        };
        self.tell(ring, event, now);
    }

    fn unprepared(&mut self, number: u32, why: Unprepared, now: Millis) -> Event {
        self.lines.no_map(why, now);
        Event::MapPrepared { chunk: Chunk(number.into()), result: Err(why) }
    }

    /// The block of a cold read is in the slab, or is unavailable.
    pub(in crate::node) fn on_cold(
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
}

/// A write that ended early found no room for the rest: the next try hears what is amiss.
fn moved(completion: &Completion, expected_bytes: u32, is_write: bool) -> Result<(), Errno> {
    match completion.result() {
        Ok(bytes) if is_write && bytes < expected_bytes => Err(Errno::ENOSPC),
        Ok(_) | Err(_) => exactly(completion, expected_bytes),
    }
}

fn exactly(completion: &Completion, expected_bytes: u32) -> Result<(), Errno> {
    completion.exactly(expected_bytes).map_err(|errno| known(errno.number()))
}

fn plain(completion: &Completion) -> Result<(), Errno> {
    completion.result().map(|_| ()).map_err(|errno| known(errno.number()))
}

/// A quota that is used up is a disk that is full.
fn known(number: i32) -> Errno {
    if number == libc::EDQUOT { Errno::ENOSPC } else { Errno(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write over several extents that ran out of space in the middle was an I/O error for the client.
    #[test]
    fn a_write_cut_short_or_over_quota_waits_for_space() {
        let ended = |raw_result| Completion { user_data: UserData::new(MOVE_KIND, 0, 0, 0), raw_result };
        for (raw_result, is_write, expected) in [
            (8192, true, Ok(())),
            (4096, true, Err(Errno::ENOSPC)),
            (0, true, Err(Errno::ENOSPC)),
            (-libc::ENOSPC, true, Err(Errno::ENOSPC)),
            (-libc::EDQUOT, true, Err(Errno::ENOSPC)),
            (-libc::EIO, true, Err(Errno::EIO)),
            (4096, false, Err(Errno::EIO)),
        ] {
            assert_eq!(moved(&ended(raw_result), 8192, is_write), expected, "{raw_result} {is_write}");
        }
        assert_eq!(plain(&ended(-libc::EDQUOT)), Err(Errno::ENOSPC));
    }
}
