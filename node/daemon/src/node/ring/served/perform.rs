//! What the planner asks for: file operations begin, requests are completed, work goes to the background.

use holdfast_background as background;
use holdfast_engine::action::{Action, MapWrite, Source};
use holdfast_engine::durable_map;
use holdfast_engine::event::RequestId;
use holdfast_engine::sector_map::{Side, chunk_extent};
use holdfast_engine::volume::Pending;
use holdfast_ring::{FileRange, FileSlot, HeapBuffer, Ring, UserData};
use holdfast_types::{Chunk, SectorRange};
use holdfast_ublk::Part;
use tokio::sync::mpsc::error::TrySendError;

use super::kind::{
    EVICT_KIND, LENGTH_BITS, MAP_WRITE_KIND, MOVE_KIND, PREPARE_DURABLE_KIND, PREPARE_KIND, PUNCH_KIND,
    SYNC_MAP_KIND, SYNC_SIDE_KIND, TURN_KIND, bytes,
};
use super::{Served, Ticket};
use crate::node::ring::work::Work;
use crate::node::store::block_cache::SlabSlot;

impl Served {
    pub(super) fn perform(&mut self, ring: &mut Ring, action: Action) {
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
            Action::WriteMap(writes) => self.write_map(ring, writes),
            Action::SyncMap => {
                ring.sync_data(self.slots.map, UserData::new(SYNC_MAP_KIND, self.index, 0, 0));
                self.operations += 1;
            }
            Action::NextTurn => {
                ring.no_operation(UserData::new(TURN_KIND, self.index, 0, 0));
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
            Action::Report(report) => self.report(&report),
        }
    }

    fn send(&mut self, work: Work) {
        match self.work.try_send(work) {
            Ok(()) => {
                let waiting = self.work.max_capacity() - self.work.capacity();
                self.tally.most_waiting_work = self.tally.most_waiting_work.max(waiting as u64);
            }
            // The receiver lives as long as this sender, unless the runtime is shutting down: then no task
            // waits any more.
            Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => panic!("a volume asked for more work than limit.rs says"),
        }
    }

    fn send_other(&mut self, work: background::Work) {
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

    pub(super) fn read_part(&mut self, ring: &mut Ring, id: RequestId, part: &Part) {
        let queue = &self.queues[(id.0 / self.depth) as usize];
        queue.read_part(ring, self.requests[id.0 as usize].as_ref().expect("in flight"), part);
        self.operations += 1;
    }

    /// A chunk's pages find their place in the durable map before anything is written there: no flush fails for space.
    pub(super) fn prepare_durable(&mut self, ring: &mut Ring, number: u32) {
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
    pub(super) fn fetch(&mut self, number: u32, unreadable: Option<SlabSlot>) {
        let ticket = self.tickets[number as usize].as_ref().expect("its read is in flight");
        let (range, layers) = (ticket.range, ticket.layers.clone());
        self.send(Work::Cold { ticket: number, range, layers, unreadable });
    }

    /// Each write's bytes are freed as soon as they lie in aligned memory: there is never a second copy of all of them.
    fn write_map(&mut self, ring: &mut Ring, writes: Vec<MapWrite>) {
        self.map_writes = u32::try_from(writes.len()).expect("MAP_WRITE_PAGES bounds them");
        self.operations += self.map_writes;
        for MapWrite { offset, bytes } in writes {
            let data = UserData::new(MAP_WRITE_KIND, self.index, 0, 0);
            ring.write(self.slots.map, offset, HeapBuffer::from_slice(&bytes), data);
        }
    }
}
