//! Snapshots: of the writer, asked for by its client; of the control plane, beside whatever the hosts do; and
//! sweeps of the store.
//!
//! Owns: the control plane's process, whose requests meet the faults of host 0's connection.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_engine::event::Event;
use holdfast_format::record::Labels;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::sweep::{SweepMemory, SweepOptions, SweepReport, sweep};
use holdfast_log::{LogFailure, SnapshotError, forget, snapshot_detached, store_origin};
use holdfast_objects::StoreError;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Nonce, Seq, SnapshotName, SnapshotUid, VolumeId};

use super::World;
use crate::calls::{Answer, Ask, Call, Calls, StoreAsk};
use crate::expect::Cut;
use crate::invariant::Invariant;
use crate::surroundings::SimObjects;
use crate::tasks::Tasks;

/// The host whose connection the control plane has.
const CONTROL: usize = 0;

/// No removal waits for a writer: each host was called lost, or has detached.
pub(super) const CUT_OFF: Option<Epoch> = Some(Epoch(u64::MAX));
/// A sweep that relies on nothing but what it reads: the age of an object counts for nothing.
pub(super) const AT_ONCE: SweepOptions =
    SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };

/// Settled of what the control plane did.
pub(super) enum Done {
    Taken(Result<Snapshot, SnapshotError>),
    Forgotten(Result<(), SnapshotError>),
    Swept(Result<SweepReport, LogFailure>, SweepMemory),
    Made(Result<u64, LogFailure>),
    Removed(Result<Vec<VolumeId>, SnapshotError>),
}

/// Outcomes of the creation of a fork, or of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The fork was made, with so many sectors.
    Made(u64),
    /// The fork came too late: it does not exist.
    Void,
    /// The volume is removed.
    Removed,
    /// The store failed: that is to be tried again.
    Unclear,
}

/// The control plane at work on the volume's snapshots and on what nothing needs any more: one thing at a
/// time.
#[derive(Default)]
pub(crate) struct ControlPlane {
    /// Left by its last sweep, for the next one.
    memory: SweepMemory,
    pub(super) calls: Calls,
    pub(super) tasks: Tasks<Done>,
    waiting: Option<Call>,
    /// Settled of the volume's creation as a fork, or of its removal.
    pub(super) settled: Option<Settled>,
    /// The last snapshot that was asked for anywhere.
    last: u64,
}

impl World {
    /// The client of `host` asks for a snapshot, or again for the last one.
    pub fn ask_snapshot(&mut self, host: usize, again: bool) {
        let uid = self.snapshot_uid(again);
        let forgotten = self.store.forgotten();
        let here = &mut self.hosts[host];
        let Some(process) = here.process.as_mut().filter(|process| process.volume.is_some()) else { return };
        process.snapshots.insert(uid);
        // One that is there already says nothing about what completed since.
        if self.store.registered().iter().all(|known| known.uid != uid) {
            here.asked.entry(uid).or_insert_with(|| here.content.expect.cut());
        }
        self.tell(host, Event::Snapshot { uid, forgotten });
    }

    pub(super) fn snapshot_uid(&mut self, again: bool) -> SnapshotUid {
        self.control.last += u64::from(!again || self.control.last == 0);
        SnapshotUid(u128::from(self.control.last).to_le_bytes())
    }

    /// The writer of `host` answered.
    pub(super) fn snapshot_taken(&mut self, host: usize, taken: Snapshot) {
        let cut = self.check_registered(taken);
        self.check_cut(host, taken.uid, &cut);
        let here = &self.hosts[host];
        // What a client was promised is looked up while its host is the newest writer.
        if let Some(asked) = here.asked.get(&taken.uid).filter(|_| self.writers.is_last(host)) {
            here.content.expect.check_snapshot(&cut, asked);
        }
    }

    fn check_registered(&self, taken: Snapshot) -> Rc<Cut> {
        let is_there = self.store.was_registered(&taken);
        Invariant::SnapshotIsItsCut.check(is_there, || format!("{taken:?} is said to be registered"));
        self.store.cut_of_snapshot(taken.seq).expect("it was registered")
    }

    /// The control plane does one step of what it does.
    pub(crate) fn step_control(&mut self) {
        let Some(call) = self.control.waiting.take() else { return };
        self.trace.operations += 1;
        let answer = match &call.ask {
            // Sweeps and removals rely on a LIST that shows the forks made before it.
            Ask::Store(ask) => self.ask_store(CONTROL, ask, !self.shares_bucket()),
            Ask::Sleep(_) => Answer::Slept,
            Ask::Local(_) => unreachable!("it has no disk"),
        };
        self.trace.call(CONTROL, &call.ask, &answer);
        call.answer(answer);
        self.run_control();
        self.take_note();
    }

    /// Returns true if the control plane waits for nothing.
    pub(crate) fn control_is_idle(&self) -> bool {
        self.control.waiting.is_none()
    }

    /// The control plane begins to take a snapshot, as if no writer was attached.
    pub(crate) fn begin_control_snapshot(&mut self, again: bool) {
        let (uid, nonce) = (self.snapshot_uid(again), Nonce(self.rng.bytes()));
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        let unix_ms = self.clock.now();
        self.control.tasks.start(async move {
            let taken = snapshot_detached(&objects, &volume, uid, nonce, unix_ms).await;
            if let Ok(taken) = &taken {
                let name = SnapshotName { volume, seq: taken.seq };
                if let Err(failure) = store_origin(&objects, &name, uid, &Labels::default()).await {
                    return Done::Taken(Err(failure.into()));
                }
            }
            Done::Taken(taken)
        });
        self.trace.host_event(CONTROL, 84, "the control plane begins a snapshot");
        self.run_control();
    }

    /// Returns true if the control plane is about to create a log record.
    pub(crate) fn control_creates_record(&self) -> bool {
        let Some(Call { ask: Ask::Store(StoreAsk::Create { key, .. }), .. }) = &self.control.waiting else {
            return false;
        };
        matches!(ObjectKey::parse(key), Some(ObjectKey::Log(..)))
    }

    /// Another process of the control plane takes a snapshot, with requests that are answered at once and
    /// truly.
    pub(crate) fn take_control_snapshot(&mut self) {
        let (uid, nonce) = (self.snapshot_uid(false), Nonce(self.rng.bytes()));
        let (volume, unix_ms) = (self.store.volume().clone(), self.clock.now());
        let taken = self.ask_soundly(|objects| async move {
            snapshot_detached(&objects, &volume, uid, nonce, unix_ms).await
        });
        self.check_registered(taken.expect("no writer is attached"));
        self.take_note();
    }

    /// The mark of a snapshot is in the next place of the log, whose end the bucket lost.
    pub(crate) fn leave_mark(&mut self) {
        let seq = self.store.manifest().seq().next();
        let mark = ObjectKey::Forgotten(self.store.volume().clone(), seq).to_string();
        self.store.replace(&mark, Some(Bytes::new()));
    }

    /// The root of a snapshot is there that is another one's: that of the newest registered one, for want of
    /// another history.
    pub(crate) fn leave_root(&mut self) {
        let newest = self.store.registered().last().expect("one is registered").seq;
        let key = |seq| ObjectKey::Snapshot(self.store.volume().clone(), seq).to_string();
        let (from, to) = (key(newest), key(self.store.manifest().seq().next()));
        let root = self.store.replace(&from, None);
        self.store.replace(&from, root.clone());
        self.store.replace(&to, root);
    }

    /// The control plane begins to forget one of the snapshots.
    pub(crate) fn begin_forget(&mut self) {
        let registered = self.store.registered();
        if registered.is_empty() {
            return;
        }
        let seq = registered[self.rng.below(registered.len())].seq;
        self.begin_forget_of(seq);
    }

    /// The same of this one. It may be forgotten already.
    pub(crate) fn begin_forget_of(&mut self, seq: Seq) {
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        self.control.tasks.start(async move { Done::Forgotten(forget(&objects, &volume, seq).await) });
        self.trace.host_event(CONTROL, 85, "the control plane forgets a snapshot");
        self.run_control();
    }

    /// The control plane begins a sweep.
    pub(crate) fn begin_sweep(&mut self) {
        let (objects, mut memory) =
            (SimObjects(self.control.calls.clone()), mem::take(&mut self.control.memory));
        self.control.tasks.start(async move {
            let swept = sweep(&objects, &mut memory, AT_ONCE).await;
            Done::Swept(swept, memory)
        });
        self.trace.host_event(CONTROL, 87, "the control plane begins a sweep");
        self.run_control();
    }

    /// Everything is at rest: a sweep leaves what is needed, and nothing else.
    pub(crate) fn check_sweep(&mut self) {
        let swept =
            self.ask_soundly(
                |objects| async move { sweep(&objects, &mut SweepMemory::default(), AT_ONCE).await },
            );
        let skipped = swept.expect("this store answers").skipped;
        Invariant::GarbageGoes.check(skipped.is_empty(), || format!("a sweep cannot read {skipped:?}"));
        self.store.check_swept();
    }

    pub(super) fn run_control(&mut self) {
        if let Some(done) = self.control.tasks.next_ended() {
            self.control_done(done);
        }
        self.control.waiting = self.control.calls.take();
    }

    fn control_done(&mut self, done: Done) {
        let failed = match done {
            Done::Taken(Ok(taken)) => return drop(self.check_registered(taken)),
            Done::Forgotten(Ok(())) => return,
            Done::Made(made) => return self.fork_was_made(made),
            Done::Removed(removed) => return self.was_removed(removed),
            Done::Swept(swept, memory) => {
                self.control.memory = memory;
                match swept {
                    Ok(_) => return,
                    Err(failure) => SnapshotError::Log(failure),
                }
            }
            Done::Taken(Err(error)) | Done::Forgotten(Err(error)) => error,
        };
        let has_cause = if let SnapshotError::Log(failure) = &failed {
            is_passing(failure)
        } else {
            matches!(failed, SnapshotError::Attached { .. } | SnapshotError::NoSuchSnapshot { .. })
        };
        Invariant::LogIsAChain.check(has_cause, || format!("the control plane is told {failed:?}"));
    }

    /// Ends the control plane: requests of its are lost.
    pub(super) fn stop_control(&mut self) {
        let (last, memory) = (self.control.last, mem::take(&mut self.control.memory));
        self.control = ControlPlane { last, memory, ..ControlPlane::default() };
    }

    /// Reads one of the snapshots that count from what is stored of it.
    pub(crate) fn check_a_snapshot(&mut self) {
        let live = self.store.live();
        if !live.is_empty() {
            let seq = live[self.rng.below(live.len())];
            self.store.check_snapshot(seq);
        }
    }

    /// Reads all of them.
    pub(crate) fn check_snapshots(&self) {
        for seq in self.store.live() {
            self.store.check_snapshot(seq);
        }
    }

    /// Forgets all of them, with requests that are answered truly. Returns their places.
    pub(super) fn forget_all(&mut self) -> Vec<Seq> {
        let seqs: Vec<Seq> = self.store.registered().iter().map(|known| known.seq).collect();
        for seq in &seqs {
            let (volume, seq) = (self.store.volume().clone(), *seq);
            let forgotten = self.ask_soundly(|objects| async move { forget(&objects, &volume, seq).await });
            forgotten.expect("this store answers");
        }
        seqs
    }
}

/// Returns true for a failure of the store, which may end. In a fleet a store denies for a while.
pub(super) fn is_passing(failure: &LogFailure) -> bool {
    let denied = matches!(
        failure,
        LogFailure::Store { source: StoreError::Denied { .. }, .. }
            | LogFailure::Volumes { source: StoreError::Denied { .. } }
    );
    denied || failure.is_transient()
}
