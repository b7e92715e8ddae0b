//! An attach: begun here, executed by the pipeline, completed here with a volume.

use holdfast_background::{Acquired, AttachError};
use holdfast_engine::action::MapWrite;
use holdfast_engine::attach::{AttachRefused, Claim, ForeignReason, Missing};
use holdfast_engine::durable_map::{Header, header_offset};
use holdfast_engine::limit::REMEMBERED_NONCES;
use holdfast_engine::sector_map::{RestoredMap, map_bytes};
use holdfast_engine::settings::AttachState;
use holdfast_engine::volume::Volume;
use holdfast_format::record::{Body, Record};
use holdfast_format::side::{Side, SideSet};
use holdfast_log::LogFailure;
use holdfast_types::{Epoch, Nonce, Seq};

use super::World;
use crate::attempt::{AttachResult, AttachStep};
use crate::calls::LocalError;
use crate::device::SimulatedDevice;
use crate::invariant::Invariant;
use crate::process::DaemonProcess;
use crate::surroundings::Restored;
use crate::terms::DEPTH;
use crate::writers::BegunAttach;

impl World {
    /// Attaches the volume at `host` and waits for the result. With `dies_after`, the process dies after that
    /// step.
    pub fn attach(&mut self, host: usize, take_over: bool, dies_after: Option<AttachStep>) -> AttachResult {
        let replaces = self.attached_epoch().filter(|_| take_over);
        self.begin_attach(host, replaces, dies_after);
        loop {
            if let Some(result) = self.hosts[host].attempt.take_result() {
                return result;
            }
            match self.first_due(host) {
                Some(index) => self.step_job(host, index),
                None => self.tick(host, 500),
            }
        }
    }

    /// Returns the epoch of the attached writer.
    pub fn attached_epoch(&self) -> Option<Epoch> {
        self.store.manifest().attached().map(|writer| writer.epoch)
    }

    /// Begins an attach in a process on `host`, with permission to replace the writer of one epoch.
    pub(crate) fn begin_attach(
        &mut self,
        host: usize,
        replaces: Option<Epoch>,
        dies_after: Option<AttachStep>,
    ) {
        let claim = Claim {
            node: host.to_string(),
            nonce: Nonce(self.rng.bytes()),
            unix_ms: self.clock.now(),
            grow_to: self.terms.grow_to,
            replaces,
        };
        let (nonce, here) = (claim.nonce, &self.hosts[host]);
        let (other_disk, disk) = (here.disk_past.replacement(), here.disk_past.disks());
        self.writers.begin(BegunAttach { nonce, host, replaces, other_disk, disk });
        self.begin_process(host);
        let here = &mut self.hosts[host];
        assert!(!here.tmpfs.has_map(), "attached already");
        here.attempt.begin(self.writers.count());
        here.snapshots.requested.clear();
        here.snapshots.released_cuts.clear();
        let process = here.process.as_mut().expect("just begun");
        process.dies_after = dies_after;
        process.attach(claim);
        self.trace.host_event(host, 67, "begins to attach");
        self.run_tasks(host);
    }

    /// Begins a process without a volume.
    pub(super) fn begin_process(&mut self, host: usize) {
        let seed = self.rng.bits();
        let shared = self.shared(host);
        let here = &mut self.hosts[host];
        assert!(here.process.is_none(), "one process at a time");
        here.process =
            Some(DaemonProcess::new(self.store.volume(), &here.disk, self.clock.counter(), shared, seed));
    }

    pub(super) fn attach_ended(
        &mut self,
        host: usize,
        result: Result<Acquired<Restored>, AttachError<LocalError>>,
    ) {
        self.check_rolled_back(host, &result);
        let result = match result {
            Ok(acquired) => return self.serve(host, acquired),
            Err(AttachError::Refused(
                AttachRefused::AttachedElsewhere { .. }
                | AttachRefused::LocalStateMissing { .. }
                | AttachRefused::ReplacedSince { .. },
            )) => {
                // An older LIST, or a log that was read before its record arrived late, may cause a
                // rejection: then the attach is retried.
                let was_informed = self.failures.lists_are_sound()
                    && self.hosts[host].attempt.has_no_rival(self.writers.count());
                let own = self.writers.is_last(host)
                    && was_informed
                    && self.hosts[host].disk_past.replacement().is_none();
                Invariant::FencedIsKept.check(!own, || "its own volume is refused to a writer".into());
                AttachResult::Refused
            }
            Err(AttachError::Local(LocalError::Damaged(words))) => {
                let has_cause = self.hosts[host].disk_past.header_decayed();
                Invariant::SyncedIsWhole.check(has_cause, || words);
                AttachResult::Failed
            }
            Err(
                AttachError::Log(LogFailure::Store { .. })
                | AttachError::Contended(_)
                | AttachError::Local(LocalError::Io(_)),
            ) => AttachResult::Failed,
            Err(AttachError::Log(failure)) => Invariant::LogIsAChain.broken(&format!("{failure:?}")),
            Err(AttachError::Refused(refused)) => panic!("{refused}"),
        };
        self.trace.host_event(host, 68, "does not attach");
        let here = &mut self.hosts[host];
        here.process = None;
        here.attempt.end(result);
    }

    /// Checks that an attach reports a log that was rolled back only if it was.
    fn check_rolled_back(&self, host: usize, result: &Result<Acquired<Restored>, AttachError<LocalError>>) {
        let says_so = match result {
            Ok(acquired) => {
                acquired.preserved.is_some_and(|preserved| preserved.why == ForeignReason::LogRolledBack)
            }
            Err(AttachError::Refused(AttachRefused::LocalStateMissing { missing, .. })) => {
                *missing == Missing::Differs(ForeignReason::LogRolledBack)
            }
            Err(_) => false,
        };
        let is_of_other_volume = self.hosts[host].disk_past.is_of_other_volume();
        let broken = if is_of_other_volume { Invariant::OneVolumeOneState } else { Invariant::FencedIsKept };
        broken.check(!says_so || self.writers.log_was_rolled_back(), || {
            "a log that was never rolled back is said to have been".into()
        });
    }

    fn serve(&mut self, host: usize, acquired: Acquired<Restored>) {
        // The record may have reached the log with this very step.
        self.note_landed_records();
        Invariant::LogIsAChain
            .check(self.store.has_attach(acquired.manifest.seq(), acquired.manifest.writer()), || {
                "a host serves whose attach is not in the log".into()
            });
        self.check_displaced(host, acquired.displaced.as_ref());
        let Acquired { manifest, header, header_generation, found, files: restored, .. } = acquired;
        let (now, sectors) = (self.clock.now(), header.sectors);
        let settings = self.terms.settings();
        let setup = self.terms.setup(settings, header, header_generation, self.clock.unix_ms_at_zero());
        let here = &mut self.hosts[host];
        here.settings = settings;
        let memory = here.tmpfs.map(map_bytes(sectors), here.death_counter.clone());
        let mut out = Vec::new();
        here.content.drop_seal();
        let state = AttachState { manifest, generation: found.generation() };
        let volume = here.run(|_| {
            let memory = match restored {
                Some((restore, parts)) => {
                    let mut map = RestoredMap::new(memory, sectors, &restore);
                    parts.iter().for_each(|part| map.add(part));
                    map.into_memory()
                }
                None => memory,
            };
            Volume::attach(setup, memory, state, now, &mut out)
        });
        here.device = Some(SimulatedDevice::new(DEPTH, sectors));
        match volume {
            Some(volume) => {
                here.attempt.end(AttachResult::Acquired);
                here.begin(now, volume, out, &mut self.trace);
            }
            None => self.process_died(host),
        }
    }

    /// Attaches on each host, without writes, until its header is full of nonces.
    pub fn age_headers(&mut self) {
        for host in &mut self.hosts {
            let header = Header {
                volume: self.store.volume().clone(),
                identity: self.store.manifest().identity(),
                sectors: self.terms.sectors,
                epoch: Epoch(0),
                writer: Nonce::default(),
                nonces: (0..REMEMBERED_NONCES).map(|_| Nonce(self.rng.bytes())).collect(),
                active: Side::A,
                closed_clean: false,
                invalidated: SideSet::NONE,
                has_journal: false,
                seq: Seq(0),
                synced_generation: 0,
            };
            let write = MapWrite { offset: header_offset(1), bytes: header.encode(1) };
            let mut disk = host.disk.lock();
            disk.map.write(&write, || true);
            let mark = disk.map.mark();
            disk.map.sync(mark);
        }
    }

    /// Fills the log with records of former writers.
    pub fn age_log(&mut self, records: u64) {
        for count in 0..records {
            let manifest = self.store.manifest();
            let (epoch, body) = if manifest.is_attached() {
                (manifest.epoch(), Body::Detach { root: None })
            } else {
                (
                    manifest.epoch().next(),
                    Body::Attach { sectors: self.terms.sectors, node: String::new(), displaced: None },
                )
            };
            let nonce =
                manifest.writer().filter(|_| manifest.is_attached()).unwrap_or(Nonce([count as u8; 16]));
            let volume = manifest.volume().clone();
            let record = Record { volume, seq: manifest.seq().next(), epoch, nonce, unix_ms: 0, body };
            self.store.append(&record);
        }
        self.store.take_landed();
    }
}
