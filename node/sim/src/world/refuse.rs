//! Writes that a file system fails at a chosen step ([`crate::strike`]).

use std::io;

use holdfast_engine::action::Action;
use holdfast_engine::event::{Event, Unprepared};

use super::World;
use crate::calls::{LocalCall, LocalError};
use crate::disk::SyncMark;
use crate::host::HostFault;
use crate::strike::{Condition, Strike, WriteStep};

impl World {
    /// Arms the failure of a write.
    pub(crate) fn arm(&mut self, strike: Strike) {
        self.failures.strikes.arm(strike);
    }

    /// Returns the host whose write failed.
    pub(crate) fn failed_host(&self) -> Option<usize> {
        self.failures.strikes.failed_host()
    }

    /// Returns true if the engine on `host` detaches.
    pub(crate) fn is_detaching(&self, host: usize) -> bool {
        self.hosts[host].process.as_ref().is_some_and(|process| process.detach_requested)
    }

    /// Ends the failure: the file system has space again, and accepts writes.
    pub(crate) fn end_strike(&mut self) {
        if let Some(host) = self.failures.strikes.end() {
            let fault = self.hosts[host].fault;
            self.set_fault(host, HostFault { full: false, ..fault });
        }
    }

    fn count_write(&mut self, host: usize, step: WriteStep) -> Option<Strike> {
        let (strike, is_first) = self.failures.strikes.count_write(host, step)?;
        if is_first {
            self.hosts[host].disk_past.note_full();
            if strike.may_fail_requests() {
                self.failures.note_disk_failure();
            }
            if strike.fills_disk() {
                let fault = self.hosts[host].fault;
                self.set_fault(host, HostFault { full: true, ..fault });
            }
        }
        Some(strike)
    }

    /// Fails the action, if armed, and returns the answer. Parts of its data may be written.
    pub(super) fn refuse_action(
        &mut self,
        host: usize,
        action: &Action,
        mark: Option<SyncMark>,
    ) -> Option<Event> {
        let (step, strike) = WriteStep::of_action(action)
            .iter()
            .find_map(|step| Some((*step, self.count_write(host, *step)?)))?;
        let errno = strike.condition.errno();
        let result = Err(errno);
        let Self { hosts, rng, .. } = self;
        let here = &mut hosts[host];
        let mut disk = here.disk.lock();
        let mut reaches = || strike.condition == Condition::Broken && rng.once_in(2);
        Some(match action {
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                if strike.condition == Condition::Full {
                    disk.overwrite(*side, *range, stamp);
                } else {
                    disk.side(*side).write_part(*range, stamp, reaches);
                }
                Event::IoCompleted { id: *id, result }
            }
            Action::Punch { id, range, side } => {
                disk.side(*side).write_part(*range, 0, reaches);
                Event::IoCompleted { id: *id, result }
            }
            Action::Evict { .. } => Event::Evicted { result },
            Action::PrepareMap { chunk } => {
                let is_run_dir = step == WriteStep::GrowLiveMap;
                let why = if is_run_dir { Unprepared::RunDir(errno) } else { Unprepared::Disk(errno) };
                Event::MapPrepared { chunk: *chunk, result: Err(why) }
            }
            Action::SyncSide { side } => {
                disk.end_sync(*side, mark.expect("a sync has a mark"), true);
                Event::SideSynced { side: *side, result }
            }
            Action::WriteMap(writes) => {
                for write in writes {
                    disk.map.write(write, &mut reaches);
                }
                Event::MapWritten { result }
            }
            Action::SyncMap => {
                disk.end_map_sync(mark.expect("a sync has a mark"), true);
                Event::MapSynced { result }
            }
            Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::ReleaseMap { .. }
            | Action::Complete { .. }
            | Action::NextTurn
            | Action::Pause
            | Action::Report(_)
            | Action::Upload { .. }
            | Action::Merge(_)
            | Action::StorePending { .. }
            | Action::StoreRoot { .. }
            | Action::CreateRecord { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. } => unreachable!("{action:?} is no write"),
        })
    }

    /// Fails a request of the pipeline, if armed, and returns the error.
    pub(super) fn refuse_call(&mut self, host: usize, call: &LocalCall) -> Option<LocalError> {
        let strike = self.count_write(host, WriteStep::of_call(call)?)?;
        let mut disk = self.hosts[host].disk.lock();
        let rng = &mut self.rng;
        match call {
            LocalCall::WriteHeader(write) => {
                disk.map.write(write, || strike.condition == Condition::Broken && rng.once_in(2));
            }
            LocalCall::SyncHeader => disk.fail_sync(),
            LocalCall::StorePending(_)
            | LocalCall::Preserve
            | LocalCall::Discard
            | LocalCall::WriteSlot { .. }
            | LocalCall::NameSlot
            | LocalCall::ReadSides
            | LocalCall::ReadMap
            | LocalCall::ReadSlot => {}
        }
        Some(io::Error::from_raw_os_error(strike.condition.errno().0).into())
    }
}
