//! Actions of the engine on the local host, executed by its own thread: files, the live map, answers to
//! the client.

use holdfast_engine::action::{Action, MapWrite, Source};
use holdfast_engine::event::{Errno, Event, Op, RequestId, Unprepared};
use holdfast_engine::sector_map::chunk_extent;
use holdfast_engine::settings::Durability;
use holdfast_format::side::Side;
use holdfast_types::{Chunk, SectorRange};

use super::World;
use crate::bug::{Mutation, is_mutated};
use crate::device::SimulatedDevice;
use crate::disk::{Disk, SyncMark};
use crate::invariant::Invariant;
use crate::rng::Rng;

impl World {
    /// Executes the action; returns the event for the engine.
    pub(super) fn perform(&mut self, host: usize, action: &Action, mark: Option<SyncMark>) -> Option<Event> {
        if let Some(refused) = self.refuse_action(host, action, mark) {
            return Some(refused);
        }
        let fails = self.failures.local_fails(&mut self.rng);
        let here = &mut self.hosts[host];
        let mut disk = here.disk.lock();
        let mut files = LocalFiles {
            disk: &mut disk,
            device: &mut here.device,
            rng: &mut self.rng,
            is_full: here.fault.full,
            fails,
        };
        Some(match action {
            Action::Read { id, range, at, from } => files.read(*id, *range, *at, *from),
            Action::Write { id, range, side } => files.write(*id, *range, *side),
            Action::Punch { id, range, side } => files.punch(*id, *range, *side),
            Action::Evict { range, side } => files.evict(*range, *side),
            Action::Complete { id, result } => {
                drop(disk);
                self.complete(host, *id, *result);
                return None;
            }
            Action::PrepareMap { chunk } => files.prepare_map(*chunk),
            Action::ReleaseMap { chunk } => {
                if !fails {
                    here.tmpfs.punch(chunk_extent(*chunk));
                }
                Event::MapReleased { chunk: *chunk }
            }
            Action::SyncSide { side } => {
                drop(disk);
                self.sync_side(host, *side, mark.expect("a sync has a mark"))
            }
            Action::WriteMap(writes) => files.write_map(writes),
            Action::SyncMap => files.sync_map(mark.expect("a sync has a mark")),
            Action::NextTurn => Event::NextTurn,
            Action::Pause => Event::PauseEnded,
            Action::Report(report) => {
                drop(disk);
                self.handle_report(host, *report);
                return None;
            }
            Action::ReadCold { .. }
            | Action::Upload { .. }
            | Action::Merge(_)
            | Action::StorePending { .. }
            | Action::StoreRoot { .. }
            | Action::CreateRecord { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. } => unreachable!("the pipeline does {action:?}"),
        })
    }

    /// Delivers the client's answer.
    fn complete(&mut self, host: usize, id: RequestId, result: Result<(), Errno>) {
        let here = &mut self.hosts[host];
        let device = here.device.as_mut().expect("requests come from a device");
        if self.failures.disks_are_sound() && result.is_err() {
            let process = here.process.as_ref().expect("it did the job");
            Invariant::CompletedOnce.check(process.fenced || device.request(id).was_replaced, || {
                format!("a request failed without a cause: {result:?}")
            });
        }
        // Zeroing unwritten data leaves nothing to commit, and a FUA write may be committed before it
        // ends.
        let op = device.request(id).op;
        let wrote = op == Op::Write;
        // The guarantee of a FLUSH is checked in the log while this host is its newest writer.
        let promises = device.request(id).answered_as == Durability::Object
            && self.writers.is_last(host)
            && result.is_ok();
        let in_store = (promises && op == Op::Flush).then(|| self.store.last_cut());
        if promises && op == Op::WriteFua {
            let request = device.request(id);
            for (sector, stamp) in self.store.read_sectors(request.range) {
                here.content.model.check_stored(sector, stamp, request.issued);
            }
        }
        device.complete(id, result, &mut here.content.model, in_store.as_deref());
        if is_mutated(Mutation::CompletedTwice) {
            device.complete(id, result, &mut here.content.model, in_store.as_deref());
        }
        if self.terms.timely && wrote {
            here.lag.note_write(here.content.model.now(), self.clock.now());
        }
    }

    fn sync_side(&mut self, host: usize, side: Side, mark: SyncMark) -> Event {
        let mut disk = self.hosts[host].disk.lock();
        let fails = std::mem::take(&mut disk.unreported_failure) || self.failures.sync_fails(&mut self.rng);
        disk.end_sync(side, mark, fails);
        Event::SideSynced { side, result: if fails { Err(Errno::EIO) } else { Ok(()) } }
    }
}

/// The disk and the device of a host during one action, and the fate of the action.
struct LocalFiles<'a> {
    disk: &'a mut Disk,
    device: &'a mut Option<SimulatedDevice>,
    rng: &'a mut Rng,
    /// True if the disk accepts no more data.
    is_full: bool,
    fails: bool,
}

impl LocalFiles<'_> {
    /// Returns the result of the action, unless the disk is full.
    fn result(&self) -> Result<(), Errno> {
        if self.fails { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Reads a piece of a request.
    fn read(&mut self, id: RequestId, range: SectorRange, at: u32, from: Source) -> Event {
        let stamps = self.disk.read(range, from, self.fails);
        let device = self.device.as_mut().expect("a read has a device");
        let skips = from == Source::Zeros && is_mutated(Mutation::ZerosNotFilled);
        let result = if skips { Ok(()) } else { device.end_piece(id, range, at, stamps) };
        Event::IoCompleted { id, result }
    }

    /// Writes the data of a request. A full disk accepts only what overwrites other data.
    fn write(&mut self, id: RequestId, range: SectorRange, side: Side) -> Event {
        let stamp = self.device.as_mut().expect("a write has a device").request(id).serial;
        if self.is_full {
            let has_room = self.disk.overwrite(side, range, stamp);
            return Event::IoCompleted { id, result: if has_room { Ok(()) } else { Err(Errno::ENOSPC) } };
        }
        self.disk.side(side).write_part(range, stamp, || !self.fails || self.rng.once_in(2));
        let full = self.fails && self.rng.once_in(2);
        Event::IoCompleted { id, result: if full { Err(Errno::ENOSPC) } else { self.result() } }
    }

    /// Makes a hole for a request.
    fn punch(&mut self, id: RequestId, range: SectorRange, side: Side) -> Event {
        // A hole in the middle of an extent splits it.
        if self.is_full && self.rng.once_in(2) {
            return Event::IoCompleted { id, result: Err(Errno::ENOSPC) };
        }
        self.disk.side(side).write_part(range, 0, || !self.fails || self.rng.once_in(2));
        Event::IoCompleted { id, result: self.result() }
    }

    /// Makes a hole in place of clean data.
    fn evict(&mut self, range: SectorRange, side: Side) -> Event {
        if self.is_full && self.rng.once_in(2) {
            return Event::Evicted { result: Err(Errno::ENOSPC) };
        }
        if !self.fails {
            self.disk.side(side).punch(range);
        }
        Event::Evicted { result: self.result() }
    }

    /// Reserves the disk space and the memory of a chunk.
    fn prepare_map(&self, chunk: Chunk) -> Event {
        if self.is_full {
            return Event::MapPrepared { chunk, result: Err(Unprepared::Disk(Errno::ENOSPC)) };
        }
        Event::MapPrepared { chunk, result: self.result().map_err(Unprepared::RunDir) }
    }

    /// Writes to the durable map.
    fn write_map(&mut self, writes: &[MapWrite]) -> Event {
        if self.is_full && !writes.iter().all(|write| self.disk.has_room(write)) {
            return Event::MapWritten { result: Err(Errno::ENOSPC) };
        }
        for write in writes {
            self.disk.map.write(write, || !self.fails || self.rng.once_in(2));
        }
        Event::MapWritten { result: self.result() }
    }

    /// Syncs the durable map.
    fn sync_map(&mut self, mark: SyncMark) -> Event {
        self.disk.end_map_sync(mark, self.fails);
        Event::MapSynced { result: self.result() }
    }
}
