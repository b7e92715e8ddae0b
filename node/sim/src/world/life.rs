//! How processes and hosts die, and what takes over from a dead process.

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::Event;
use holdfast_engine::volume::{Pending, Setup, Volume};

use super::{DEPTH, World};
use crate::device::Device;
use crate::disk::{Fate, sectors};
use crate::host::Job;
use crate::invariant::Invariant;

impl World {
    /// The guest is told to stop, and once it has, the engine to let go.
    pub fn begin_detach(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        let Some(device) = &mut here.device else { return };
        device.closing = true;
        if let Some(process) = &mut here.process
            && device.is_idle()
            && !std::mem::replace(&mut process.detaching, true)
        {
            self.tell(host, Event::Detach);
        }
    }

    /// `kill -9`.
    pub fn kill(&mut self, host: usize) {
        if self.hosts[host].process.is_some() {
            self.process_died(host);
        }
    }

    /// What was submitted may still be done, all or in part; nobody hears of it.
    pub(super) fn process_died(&mut self, host: usize) {
        let Some(process) = self.hosts[host].process.take() else { return };
        self.trace.befalls(host, 64, "the process dies");
        drop(process.volume);
        for job in process.jobs {
            let unheard = job.answer.is_none();
            let stays_open = self.every_write_arrives && changes_files(&job.action);
            if unheard && (stays_open || self.rng.once_in(2)) {
                self.finish_unheard(host, &job);
            }
        }
        self.take_note();
    }

    fn finish_unheard(&mut self, host: usize, job: &Job) {
        let here = &mut self.hosts[host];
        let open = self.every_write_arrives;
        let mut reaches = if open { 1 } else { 1 + self.rng.below(2) as u64 };
        match &job.action {
            Action::Write { id, range, side } => {
                let stamp = here.device.as_mut().expect("a write has a device").request(*id).serial;
                for sector in sectors(*range) {
                    if self.rng.once_in(reaches) {
                        here.disk.side(*side).write(sector, stamp);
                    }
                }
            }
            Action::Punch { range, side, .. } => {
                for sector in sectors(*range) {
                    if self.rng.once_in(reaches) {
                        here.disk.side(*side).write(sector, 0);
                    }
                }
            }
            Action::Evict { range, side } => here.disk.side(*side).punch(*range),
            Action::WriteMap(writes) => {
                for write in writes {
                    here.disk.map.write(write, || true);
                    reaches += 1;
                    if reaches > 3 && !open {
                        break;
                    }
                }
            }
            Action::SyncSide { .. } | Action::SyncMap if open => {}
            Action::SyncSide { side } => here.disk.side(*side).sync(job.mark.expect("a sync has a mark")),
            Action::SyncMap => here.disk.map.sync(job.mark.expect("a sync has a mark")),
            Action::StorePending { seq, bytes } => {
                here.disk.pending = Some(Pending { seq: *seq, bytes: bytes.clone() });
            }
            Action::CreateRecord { seq, bytes } => self.store.late.push((*seq, bytes.clone())),
            Action::WriteCheckpoint { seq, bytes } => self.store.put_checkpoint(*seq, bytes.clone()),
            Action::Upload(_)
            | Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Complete { .. }
            | Action::PrepareMap { .. }
            | Action::ReadRecord { .. }
            | Action::Report(_) => {}
        }
    }

    /// From now on what a dying process had submitted is written and not synced: a power cut right after it may leave any
    /// part of it, and [`Fate::Nth`] counts them all.
    pub fn keep_every_outcome_open(&mut self) {
        self.every_write_arrives = true;
    }

    /// How many states of the local files a power cut of `host` can leave now; at most `u64::MAX`.
    pub fn outcomes(&self, host: usize) -> u64 {
        self.hosts[host].disk.outcomes()
    }

    /// The host loses power: unsynced writes meet their fate, tmpfs and guest are gone.
    pub fn lose_host(&mut self, host: usize, fate: Option<Fate<'_>>) {
        self.process_died(host);
        self.trace.befalls(host, 65, "the host loses power");
        let here = &mut self.hosts[host];
        here.disk.lose_power(&mut fate.unwrap_or(Fate::Some(&mut self.rng)));
        here.tmpfs.remove();
        here.device = None;
        here.sealed = None;
        here.killed_inside = false;
        here.expect.lose_host();
    }

    /// A new process takes over from a dead one. Says whether there was a live map to take over.
    pub(crate) fn resume(&mut self, host: usize) -> bool {
        let here = &mut self.hosts[host];
        assert!(here.process.is_none(), "one process at a time");
        if !here.tmpfs.holds_a_map() {
            return false;
        }
        let slots = here.disk.map.read(0, 2 * 4096);
        let (header_generation, header) = match Header::newest(&slots) {
            Ok(Some(found)) => found,
            other => Invariant::SyncedIsWhole.broken(&format!("the header of a live volume: {other:?}")),
        };
        let memory = here.tmpfs.map(0, here.killed_after.clone());
        let (pending, now) = (here.disk.pending.clone(), self.now);
        let setup =
            Setup { requests: DEPTH, limits: self.limits, header, header_generation, unix_ms_at_zero: 0 };
        let Some(resumed) = here.run(|_| Volume::resume(setup, memory, pending, now)) else { return true };
        let Ok(volume) = resumed else {
            // The process died while it made the map: nothing was served from it.
            here.tmpfs.remove();
            here.device = None;
            return false;
        };
        self.trace.befalls(host, 66, "a new process takes over");
        here.begin(volume, Vec::new(), true, &mut self.trace);
        let device = here.device.get_or_insert_with(|| Device::new(DEPTH));
        device.ready |= !here.process.as_ref().expect("it began").volume.status().recovering;
        let again = device.reissue();
        for (id, op, range) in again {
            self.tell(host, Event::Request { id, op, range });
        }
        true
    }

    /// The manifest of a resumed volume arrives.
    pub(crate) fn load_manifest(&mut self, host: usize) {
        let Some(process) = &mut self.hosts[host].process else { return };
        if std::mem::take(&mut process.awaits_manifest) {
            let manifest = self.store.manifest();
            self.tell(host, Event::ManifestLoaded(Box::new(manifest)));
        }
    }

    /// A fenced writer gives up: its process ends, its files stay.
    pub(crate) fn give_up(&mut self, host: usize) {
        let here = &mut self.hosts[host];
        here.process = None;
        here.tmpfs.remove();
        here.device = None;
        here.sealed = None;
    }
}

fn changes_files(action: &Action) -> bool {
    matches!(action, Action::Write { .. } | Action::Punch { .. } | Action::Evict { .. } | Action::WriteMap(_))
}
