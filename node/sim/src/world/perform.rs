//! Actions of the engine on the local host, executed by its own thread: files, the live map, answers to
//! the client.

use holdfast_engine::action::{Action, Source};
use holdfast_engine::event::{Errno, Event, Op, RequestId, Unprepared};
use holdfast_engine::sector_map::chunk_extent;
use holdfast_engine::settings::Durability;
use holdfast_format::side::Side;

use super::World;
use crate::bug::{Mutation, is_mutated};
use crate::disk::SyncMark;
use crate::invariant::Invariant;

impl World {
    /// Executes the action; returns the event for the engine.
    pub(super) fn perform(&mut self, host: usize, action: &Action, mark: Option<SyncMark>) -> Option<Event> {
        if let Some(refused) = self.refuse_action(host, action, mark) {
            return Some(refused);
        }
        let fails = self.failures.local_fails(&mut self.rng);
        let result = if fails { Err(Errno::EIO) } else { Ok(()) };
        let here = &mut self.hosts[host];
        let mut disk = here.disk.lock();
        Some(match action {
            Action::Read { id, range, at, from } => {
                let stamps = disk.read(*range, *from, fails);
                let device = here.device.as_mut().expect("a read has a device");
                let skips = *from == Source::Zeros && is_mutated(Mutation::ZerosNotFilled);
                let result = if skips { Ok(()) } else { device.end_piece(*id, *range, *at, stamps) };
                Event::IoCompleted { id: *id, result }
            }
            Action::Write { id, range, side } if here.fault.full => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                let has_room = disk.overwrite(*side, *range, stamp);
                Event::IoCompleted { id: *id, result: if has_room { Ok(()) } else { Err(Errno::ENOSPC) } }
            }
            // A hole in the middle of an extent splits it.
            Action::Punch { id, .. } if here.fault.full && self.rng.once_in(2) => {
                Event::IoCompleted { id: *id, result: Err(Errno::ENOSPC) }
            }
            Action::Evict { .. } if here.fault.full && self.rng.once_in(2) => {
                Event::Evicted { result: Err(Errno::ENOSPC) }
            }
            Action::PrepareMap { chunk } if here.fault.full => {
                Event::MapPrepared { chunk: *chunk, result: Err(Unprepared::Disk(Errno::ENOSPC)) }
            }
            Action::WriteMap(writes)
                if here.fault.full && !writes.iter().all(|write| disk.has_room(write)) =>
            {
                Event::MapWritten { result: Err(Errno::ENOSPC) }
            }
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                disk.side(*side).write_part(*range, stamp, || !fails || self.rng.once_in(2));
                let full = fails && self.rng.once_in(2);
                Event::IoCompleted { id: *id, result: if full { Err(Errno::ENOSPC) } else { result } }
            }
            Action::Punch { id, range, side } => {
                disk.side(*side).write_part(*range, 0, || !fails || self.rng.once_in(2));
                Event::IoCompleted { id: *id, result }
            }
            Action::Evict { range, side } => {
                if !fails {
                    disk.side(*side).punch(*range);
                }
                Event::Evicted { result }
            }
            Action::Complete { id, result } => {
                drop(disk);
                self.complete(host, *id, *result);
                return None;
            }
            Action::PrepareMap { chunk } => {
                Event::MapPrepared { chunk: *chunk, result: result.map_err(Unprepared::RunDir) }
            }
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
            Action::WriteMap(writes) => {
                for write in writes {
                    disk.map.write(write, || !fails || self.rng.once_in(2));
                }
                Event::MapWritten { result }
            }
            Action::SyncMap => {
                disk.map.end_sync(mark.expect("a sync has a mark"), fails);
                Event::MapSynced { result }
            }
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
        let at = disk.side(side);
        let fails = std::mem::take(&mut at.unreported_failure) || self.failures.sync_fails(&mut self.rng);
        at.end_sync(mark, fails);
        Event::SideSynced { side, result: if fails { Err(Errno::EIO) } else { Ok(()) } }
    }
}
