//! Actions of the engine on the local host, done by its own thread: files, the live map, answers to the
//! client.

use holdfast_engine::action::{Action, Source};
use holdfast_engine::event::{Errno, Event, Op, Unprepared};
use holdfast_engine::volume::Durability;

use super::World;
use crate::bug::{Mutation, is_mutated};
use crate::disk::{SyncMark, sectors};
use crate::invariant::Invariant;

impl World {
    /// Does it; returns the event for the engine.
    pub(super) fn perform(&mut self, host: usize, action: &Action, mark: Option<SyncMark>) -> Option<Event> {
        let here = &mut self.hosts[host];
        let local = Self::fails(&mut self.rng, self.faults.local);
        let result = if local { Err(Errno::EIO) } else { Ok(()) };
        let mut disk = here.disk.lock();
        Some(match action {
            Action::Read { id, range, at, from } => {
                let request = here.device.as_mut().expect("a read has a device").request(*id);
                if *from == Source::Zeros && is_mutated(Mutation::ZerosNotFilled) {
                    return Some(Event::IoCompleted { id: *id, result: Ok(()) });
                }
                let stamps: Vec<u64> = match from {
                    Source::Side(side) if local || !disk.sides[*side as usize].reads(*range) => {
                        let result = Err(Errno::EIO);
                        request.fail_part();
                        return Some(Event::IoCompleted { id: *id, result });
                    }
                    Source::Side(side) => {
                        sectors(*range).map(|sector| disk.sides[*side as usize].read(sector)).collect()
                    }
                    // A hole: the disk is not asked.
                    Source::Zeros => vec![0; range.sectors as usize],
                };
                request.fill(*range, *at, stamps.into_iter());
                Event::IoCompleted { id: *id, result: Ok(()) }
            }
            Action::Write { id, .. } if here.fault.full => {
                Event::IoCompleted { id: *id, result: Err(Errno::ENOSPC) }
            }
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                for sector in sectors(*range) {
                    if !local || self.rng.once_in(2) {
                        disk.side(*side).write(sector, stamp);
                    }
                }
                let full = local && self.rng.once_in(2);
                Event::IoCompleted { id: *id, result: if full { Err(Errno::ENOSPC) } else { result } }
            }
            Action::Punch { id, range, side } => {
                for sector in sectors(*range) {
                    if !local || self.rng.once_in(2) {
                        disk.side(*side).write(sector, 0);
                    }
                }
                Event::IoCompleted { id: *id, result }
            }
            Action::Evict { range, side } => {
                if !local {
                    disk.side(*side).punch(*range);
                }
                Event::Evicted { result }
            }
            Action::Complete { id, result } => {
                let device = here.device.as_mut().expect("requests come from a device");
                if self.sound_disks && result.is_err() {
                    let process = here.process.as_ref().expect("it did the job");
                    Invariant::CompletedOnce
                        .check(process.fenced, || format!("a request failed without a cause: {result:?}"));
                }
                // What is zeroed where nothing was leaves nothing to commit, and a FUA write may be committed
                // before it ends.
                let op = device.request(*id).op;
                let wrote = op == Op::Write;
                // What a FLUSH promises is looked up in the log while this host is its newest writer.
                let promises =
                    self.durability == Durability::Object && self.last_writer == Some(host) && result.is_ok();
                let in_store = (promises && op == Op::Flush).then(|| self.store.last_cut());
                if promises && op == Op::WriteFua {
                    let request = device.request(*id);
                    for (sector, stamp) in self.store.read_sectors(request.range) {
                        here.expect.check_stored(sector, stamp, request.issued);
                    }
                }
                device.complete(*id, *result, &mut here.expect, in_store.as_deref());
                if is_mutated(Mutation::CompletedTwice) {
                    device.complete(*id, *result, &mut here.expect, in_store.as_deref());
                }
                if self.timely && wrote {
                    here.uncommitted.push_back((here.expect.now(), self.now));
                }
                return None;
            }
            Action::PrepareMap { chunk } => {
                Event::MapPrepared { chunk: *chunk, result: result.map_err(Unprepared::RunDir) }
            }
            Action::SyncSide { side } => {
                let at = disk.side(*side);
                let fails =
                    std::mem::take(&mut at.failed_unheard) || Self::fails(&mut self.rng, self.faults.sync);
                if fails {
                    at.fail_sync();
                } else {
                    at.sync(mark.expect("a sync has a mark"));
                }
                Event::SideSynced { side: *side, result: if fails { Err(Errno::EIO) } else { Ok(()) } }
            }
            Action::WriteMap(writes) => {
                for write in writes {
                    disk.map.write(write, || !local || self.rng.once_in(2));
                }
                Event::MapWritten { result }
            }
            Action::SyncMap => {
                if local {
                    disk.map.fail_sync();
                } else {
                    disk.map.sync(mark.expect("a sync has a mark"));
                }
                Event::MapSynced { result }
            }
            Action::NextTurn => Event::NextTurn,
            Action::Report(report) => {
                drop(disk);
                self.reported(host, *report);
                return None;
            }
            Action::ReadCold { .. }
            | Action::Upload(_)
            | Action::StorePending { .. }
            | Action::CreateRecord { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. } => unreachable!("the pipeline does {action:?}"),
        })
    }
}
