//! Crashes of processes and hosts, and the takeover from a dead process.

use std::rc::Rc;

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::{Header, header_offset};
use holdfast_engine::event::Event;
use holdfast_engine::sector_map::chunk_extent;
use holdfast_engine::volume::Volume;
use holdfast_format::safeguard::{Safeguard::DetachAfterDevice, safeguard};

use super::{Victim, World};
use crate::attempt::AttachResult;
use crate::calls::{CallKind, LocalCall, StoreCall};
use crate::device::SimulatedDevice;
use crate::disk::{Fate, SyncMark};
use crate::expect::CapturedContent;
use crate::host::HostFault;
use crate::invariant::Invariant;
use crate::process::{JobKind, JobResult, is_failed_sync};
use crate::terms::DEPTH;

impl World {
    /// Asks the client to stop, and then the engine to detach.
    pub fn begin_detach(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        let must_not_detach = here.must_not_detach();
        let Some(device) = &mut here.device else { return };
        device.closing = true;
        if let Some(process) = &mut here.process
            && process.volume.is_some()
            && device.is_idle()
            && (!must_not_detach || !safeguard(DetachAfterDevice))
            && !std::mem::replace(&mut process.detach_requested, true)
        {
            self.send_event(host, Event::Detach);
        }
    }

    /// Changes the current faults of `host`.
    pub(crate) fn set_fault(&mut self, host: usize, fault: HostFault) {
        let here = &mut self.hosts[host];
        if fault.full {
            here.disk_past.note_full();
        }
        let before = std::mem::replace(&mut here.fault, fault);
        for (now, before, tag, words) in [
            (fault.cut_off, before.cut_off, 70, ["the store answers again", "the store does not hear it"]),
            (fault.paused, before.paused, 72, ["the process resumes", "the process pauses"]),
            (fault.full, before.full, 74, ["the disk has room again", "the disk is full"]),
            (fault.slow, before.slow, 76, ["the disk is fast again", "the disk is slow"]),
        ] {
            if now != before {
                self.trace.host_event(host, tag + u8::from(now), words[usize::from(now)]);
            }
        }
    }

    /// Changes a byte in a slot of the durable map's header on `host`. Returns false if it was never
    /// written.
    pub fn decay_header(&mut self, host: usize, slot: u8) -> bool {
        let here = &mut self.hosts[host];
        let decays = here.disk.lock().map.decay(header_offset(slot));
        if decays {
            here.disk_past.note_decay();
            self.trace.host_event(host, 108, "a header of the durable map decays");
        }
        decays
    }

    /// Makes a sector with data unreadable on the disk of `host`, at or after `sector`, on both of its
    /// sides, until it is overwritten.
    pub fn corrupt(&mut self, host: usize, sector: u64) {
        self.failures.note_disk_failure();
        self.trace.host_event(host, 78, "the disk cannot read a sector");
        for side in &mut self.hosts[host].disk.lock().sides {
            side.corrupt(sector);
        }
    }

    /// Makes all data on the disk of `host` readable again.
    pub fn restore_reads(&mut self, host: usize) {
        for side in &mut self.hosts[host].disk.lock().sides {
            side.corrupted.clear();
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self, host: usize) {
        if self.hosts[host].process.is_some() {
            self.process_died(host);
        }
    }

    /// Ends the process. Its submitted jobs may still be done, all or in part, without an answer.
    pub(super) fn process_died(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.take() else { return };
        self.hosts[host].fault.paused = false;
        self.trace.host_event(host, 64, "the process dies");
        self.note_company_death(host, Victim::Process);
        if process.volume.is_none() {
            self.hosts[host].attempt.end(AttachResult::Died);
        }
        drop(process.volume);
        self.store.writer_died();
        let cut = process.upload.map(|(_, cut)| cut);
        for job in process.jobs {
            if let Some(job_result) = &job.result {
                if let JobResult::Event(event) = job_result {
                    self.note_unreported_failure(host, is_failed_sync(event));
                }
                continue;
            }
            let stays_open = self.failures.every_write_arrives() && changes_files(&job.kind);
            if stays_open || self.rng.once_in(2) {
                match &job.kind {
                    JobKind::Action(action) => self.finish_without_answer(host, action, job.mark),
                    JobKind::Call(call) => self.execute_without_answer(host, &call.kind, cut.as_ref()),
                }
            }
        }
        self.note_landed_records();
    }

    /// Records that the process died before it could react to a sync, if that failed.
    pub(super) fn note_unreported_failure(&mut self, host: usize, failed: bool) {
        self.hosts[host].disk.lock().unreported_failure |= failed;
    }

    fn finish_without_answer(&mut self, host: usize, action: &Action, mark: Option<SyncMark>) {
        let here = &mut self.hosts[host];
        let open = self.failures.every_write_arrives();
        let mut reaches = if open { 1 } else { 1 + self.rng.below(2) as u64 };
        let mut disk = here.disk.lock();
        match action {
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                disk.side(*side).write_part(*range, stamp, || self.rng.once_in(reaches));
            }
            Action::Punch { range, side, .. } => {
                disk.side(*side).write_part(*range, 0, || self.rng.once_in(reaches));
            }
            Action::Evict { range, side } => disk.side(*side).punch(*range),
            Action::ReleaseMap { chunk } => here.tmpfs.punch(chunk_extent(*chunk)),
            Action::WriteMap(writes) => {
                for write in writes {
                    disk.map.write(write, || true);
                    reaches += 1;
                    if reaches > 3 && !open {
                        break;
                    }
                }
            }
            Action::SyncSide { .. } | Action::SyncMap if open => {}
            Action::SyncSide { side } => disk.side(*side).sync(mark.expect("a sync has a mark")),
            Action::SyncMap => disk.map.sync(mark.expect("a sync has a mark")),
            Action::NextTurn
            | Action::Pause
            | Action::Upload { .. }
            | Action::Merge(_)
            | Action::StorePending { .. }
            | Action::StoreRoot { .. }
            | Action::CreateRecord { .. }
            | Action::WriteCheckpoint { .. }
            | Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Complete { .. }
            | Action::PrepareMap { .. }
            | Action::ReadRecord { .. }
            | Action::Report(_) => {}
        }
    }

    /// Keeps a request of a dropped future in flight.
    fn execute_without_answer(&mut self, host: usize, call: &CallKind, cut: Option<&Rc<CapturedContent>>) {
        match call {
            CallKind::Store(
                call @ (StoreCall::Create { .. } | StoreCall::PutSegment { .. } | StoreCall::Delete { .. }),
            ) => self.store.late.push((call.clone(), cut.cloned())),
            CallKind::Local(LocalCall::StorePending(pending)) => {
                self.hosts[host].disk.lock().pending = Some(pending.clone());
            }
            CallKind::Local(LocalCall::WriteHeader(write)) => {
                self.hosts[host].disk.lock().map.write(write, || true);
            }
            CallKind::Store(_) | CallKind::Local(_) | CallKind::Sleep(_) => {}
        }
    }

    /// From now on, submitted writes of a dying process are stored but not synced: a power cut right after
    /// it may leave any part of them, and [`Fate::Nth`] counts them all.
    pub fn keep_all_outcomes(&mut self) {
        self.failures.let_every_write_arrive();
    }

    /// Returns the number of disk states that a power cut of `host` can leave; at most `u64::MAX`.
    pub fn outcomes(&self, host: usize) -> u64 {
        self.hosts[host].disk.lock().outcomes()
    }

    /// Cuts the power of the host: `fate` decides about unsynced writes; tmpfs and client are lost.
    pub fn lose_host(&mut self, host: usize, fate: Option<Fate<'_>>) {
        self.process_died(host);
        self.trace.host_event(host, 65, "the host loses power");
        self.note_company_death(host, Victim::Host);
        let here = &mut self.hosts[host];
        here.disk.lock().lose_power(&mut fate.unwrap_or(Fate::Some(&mut self.rng)));
        here.tmpfs.remove();
        here.device = None;
        here.lag.clear();
        here.fault = HostFault::default();
        here.content.lose_host();
        self.check_flushed_data(host);
    }

    /// Starts a process that takes over from a dead one. Returns true if a live map existed.
    pub(crate) fn resume(&mut self, host: usize) -> bool {
        let here = &mut self.hosts[host];
        if !here.tmpfs.has_map() {
            return false;
        }
        let (slots, pending) = {
            let disk = here.disk.lock();
            (disk.map.read(0, 2 * 4096), disk.pending.clone())
        };
        let (header_generation, header) = match Header::newest(&slots) {
            Ok(Some(found)) => found,
            other => Invariant::SyncedIsWhole.broken(&format!("the header of a live volume: {other:?}")),
        };
        let memory = here.tmpfs.map(0, here.death_counter.clone());
        let setup = self.terms.setup(here.settings, header, header_generation, self.clock.unix_ms_at_zero());
        let now = self.clock.now();
        let Some(resumed) = here.run(|_| Volume::resume(setup, memory, pending, now)) else { return true };
        let Ok(volume) = resumed else {
            // The process died while it created the map: it served nothing.
            here.tmpfs.remove();
            here.device = None;
            return false;
        };
        self.trace.host_event(host, 66, "a new process takes over");
        self.begin_process(host);
        let here = &mut self.hosts[host];
        let ready = !volume.status().recovering;
        let (sectors, had) = (volume.status().sectors, here.device.as_ref().map(|device| device.sectors));
        Invariant::SizeIsKept.check(had.is_none_or(|had| had <= sectors), || {
            format!("a device of {had:?} sectors is served by a volume of {sectors}")
        });
        here.process.as_mut().expect("just begun").load_manifest();
        here.begin(self.clock.now(), volume, Vec::new(), &mut self.trace);
        let device = here.device.get_or_insert_with(|| SimulatedDevice::new(DEPTH, sectors));
        device.ready |= ready;
        let again = device.reissue();
        for (id, op, range) in again {
            self.send_event(host, Event::Request { id, op, range });
        }
        self.run_tasks(host);
        true
    }

    /// Ends the process of `host`, whose writer released the volume; its files stay.
    pub(super) fn end_released_process(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        let unanswered = here.process.as_ref().map_or(0, |process| process.snapshots.len());
        Invariant::ComesToRest.check(unanswered == 0, || {
            format!("host {host} released the volume with {unanswered} snapshots unanswered")
        });
        here.process = None;
        here.tmpfs.remove();
        here.device = None;
        here.content.drop_seal();
    }
}

fn changes_files(kind: &JobKind) -> bool {
    match kind {
        JobKind::Action(action) => matches!(
            action,
            Action::Write { .. } | Action::Punch { .. } | Action::Evict { .. } | Action::WriteMap(_)
        ),
        JobKind::Call(call) => matches!(call.kind, CallKind::Local(LocalCall::WriteHeader(_))),
    }
}
