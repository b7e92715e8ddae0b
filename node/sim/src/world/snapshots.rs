//! Snapshots: of the writer, requested by its client; of the control plane, concurrent with the hosts'
//! work; and sweeps of the store.
//!
//! Owns: the control plane's process, whose requests are subject to the faults of host 0's connection.

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
use holdfast_types::{Epoch, Nonce, Seq, SnapshotName, SnapshotUid};

use super::World;
use crate::calls::{Call, CallKind, CallResult, Calls, StoreCall};
use crate::expect::CapturedContent;
use crate::invariant::Invariant;
use crate::surroundings::SimObjects;
use crate::tasks::PolledTasks;

/// The host whose connection the control plane uses.
const CONTROL: usize = 0;

/// Removals do not wait for a writer: each host was declared lost, or has detached.
pub(super) const CUT_OFF: Option<Epoch> = Some(Epoch(u64::MAX));
/// A sweep that relies only on the data that it reads: the age of objects is ignored.
pub(super) const AT_ONCE: SweepOptions =
    SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };

/// Result of an operation of the control plane.
pub(super) enum ControlResult {
    Taken(Result<Snapshot, SnapshotError>),
    Forgotten(Result<(), SnapshotError>),
    Swept(Result<SweepReport, LogFailure>, Box<SweepMemory>),
    Made(Result<u64, LogFailure>),
    Listed(Result<bool, LogFailure>),
    Removed(Result<(), SnapshotError>),
}

/// Result of the creation of a fork, or of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The fork was created, with this many sectors.
    Made(u64),
    /// The fork came too late: it does not exist.
    Void,
    /// The volume is removed.
    Removed,
    /// The store failed: retry.
    Unclear,
}

/// The control plane, which works on the volume's snapshots and garbage, one operation at a time.
#[derive(Default)]
pub(crate) struct SimulatedControlPlane {
    /// State of its last sweep, for the next one.
    memory: SweepMemory,
    pub(super) calls: Calls,
    pub(super) tasks: PolledTasks<ControlResult>,
    pending_call: Option<Call>,
    /// Result of the volume's creation as a fork, or of its removal.
    pub(super) settled: Option<Settled>,
    /// The last requested snapshot of any host.
    last: u64,
}

impl World {
    /// Requests a snapshot as the client of `host`. With `repeat`, requests the last one again.
    pub fn request_snapshot(&mut self, host: usize, repeat: bool) {
        let uid = self.snapshot_uid(repeat);
        let forgotten = self.store.forgotten_snapshots();
        let here = &mut self.hosts[host];
        let Some(process) = here.process.as_mut().filter(|process| process.volume.is_some()) else { return };
        process.snapshots.insert(uid);
        // An existing snapshot says nothing about later completions.
        if self.store.registered().iter().all(|known| known.uid != uid) {
            here.snapshots.requested.entry(uid).or_insert_with(|| here.content.model.cut());
        }
        self.send_event(host, Event::Snapshot { uid, forgotten });
    }

    pub(super) fn snapshot_uid(&mut self, repeat: bool) -> SnapshotUid {
        self.control.last += u64::from(!repeat || self.control.last == 0);
        SnapshotUid(u128::from(self.control.last).to_le_bytes())
    }

    /// Handles the answer of the writer on `host`.
    pub(super) fn snapshot_taken(&mut self, host: usize, taken: Snapshot) {
        let cut = self.check_registered(taken);
        self.check_cut(host, taken.uid, &cut);
        let here = &self.hosts[host];
        // The guarantee to a client is checked while its host is the newest writer.
        if let Some(requested) =
            here.snapshots.requested.get(&taken.uid).filter(|_| self.writers.is_last(host))
        {
            here.content.model.check_snapshot(&cut, requested);
        }
    }

    fn check_registered(&self, taken: Snapshot) -> Rc<CapturedContent> {
        let is_there = self.store.was_registered(&taken);
        Invariant::SnapshotIsItsCut.check(is_there, || format!("{taken:?} is said to be registered"));
        self.store.cut_of_snapshot(taken.seq).expect("it was registered")
    }

    /// Takes one step of the control plane.
    pub(crate) fn step_control(&mut self) {
        let Some(call) = self.control.pending_call.take() else { return };
        self.trace.operations += 1;
        let answer = match &call.kind {
            // Sweeps and removals rely on a LIST that shows the forks created before it.
            CallKind::Store(call) => self.execute_store_call(CONTROL, call, !self.shares_bucket()),
            CallKind::Sleep(_) => CallResult::Slept,
            CallKind::Local(_) => unreachable!("it has no disk"),
        };
        self.trace.call(CONTROL, &call.kind, &answer);
        call.answer(answer);
        self.run_control();
        self.note_landed_records();
    }

    /// Returns true if the control plane is idle.
    pub(crate) fn control_is_idle(&self) -> bool {
        self.control.pending_call.is_none()
    }

    /// Begins a snapshot by the control plane, as if no writer was attached.
    pub(crate) fn begin_control_snapshot(&mut self, repeat: bool) {
        let (uid, nonce) = (self.snapshot_uid(repeat), Nonce(self.rng.bytes()));
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        let unix_ms = self.clock.now();
        self.control.tasks.start(async move {
            let taken = snapshot_detached(&objects, &volume, uid, nonce, unix_ms).await;
            if let Ok(taken) = &taken {
                let name = SnapshotName { volume, seq: taken.seq };
                if let Err(failure) = store_origin(&objects, &name, uid, &Labels::default()).await {
                    return ControlResult::Taken(Err(failure.into()));
                }
            }
            ControlResult::Taken(taken)
        });
        self.trace.host_event(CONTROL, 84, "the control plane begins a snapshot");
        self.run_control();
    }

    /// Returns true if the control plane is about to create a log record.
    pub(crate) fn control_creates_record(&self) -> bool {
        let Some(Call { kind: CallKind::Store(StoreCall::Create { key, .. }), .. }) =
            &self.control.pending_call
        else {
            return false;
        };
        matches!(ObjectKey::parse(key), Some(ObjectKey::Log(..)))
    }

    /// Takes a snapshot in another process of the control plane, with reliable requests that are answered
    /// at once.
    pub(crate) fn take_control_snapshot(&mut self) {
        let (uid, nonce) = (self.snapshot_uid(false), Nonce(self.rng.bytes()));
        let (volume, unix_ms) = (self.store.volume().clone(), self.clock.now());
        let taken = self.run_reliably(|objects| async move {
            snapshot_detached(&objects, &volume, uid, nonce, unix_ms).await
        });
        self.check_registered(taken.expect("no writer is attached"));
        self.note_landed_records();
    }

    /// Leaves the mark of a snapshot at the next position of the log, whose end the bucket lost.
    pub(crate) fn leave_mark(&mut self) {
        let seq = self.store.manifest().seq().next();
        let mark = ObjectKey::Forgotten(self.store.volume().clone(), seq).to_string();
        self.store.replace(&mark, Some(Bytes::new()));
    }

    /// Leaves a root of another snapshot: that of the newest registered one, for lack of another history.
    pub(crate) fn leave_root(&mut self) {
        let newest = self.store.registered().last().expect("one is registered").seq;
        let key = |seq| ObjectKey::Snapshot(self.store.volume().clone(), seq).to_string();
        let (from, to) = (key(newest), key(self.store.manifest().seq().next()));
        let root = self.store.replace(&from, None);
        self.store.replace(&from, root.clone());
        self.store.replace(&to, root);
    }

    /// Begins to forget one of the snapshots.
    pub(crate) fn begin_forget(&mut self) {
        let registered = self.store.registered();
        if registered.is_empty() {
            return;
        }
        let seq = registered[self.rng.below(registered.len())].seq;
        self.begin_forget_of(seq);
    }

    /// Begins to forget the snapshot of this seq, which may be forgotten already.
    pub(crate) fn begin_forget_of(&mut self, seq: Seq) {
        let (objects, volume) = (SimObjects(self.control.calls.clone()), self.store.volume().clone());
        self.control
            .tasks
            .start(async move { ControlResult::Forgotten(forget(&objects, &volume, seq).await) });
        self.trace.host_event(CONTROL, 85, "the control plane forgets a snapshot");
        self.run_control();
    }

    /// Begins a sweep by the control plane.
    pub(crate) fn begin_sweep(&mut self) {
        let (objects, mut memory) =
            (SimObjects(self.control.calls.clone()), mem::take(&mut self.control.memory));
        self.control.tasks.start(async move {
            let swept = sweep(&objects, &mut memory, AT_ONCE).await;
            ControlResult::Swept(swept, Box::new(memory))
        });
        self.trace.host_event(CONTROL, 87, "the control plane begins a sweep");
        self.run_control();
    }

    /// Checks, at rest, that a sweep keeps exactly the needed objects.
    pub(crate) fn check_sweep(&mut self) {
        let swept = self.run_reliably(|objects| async move {
            sweep(&objects, &mut SweepMemory::default(), AT_ONCE).await
        });
        let skipped = swept.expect("this store answers").skipped;
        Invariant::GarbageGoes.check(skipped.is_empty(), || format!("a sweep cannot read {skipped:?}"));
        self.store.check_swept();
    }

    pub(super) fn run_control(&mut self) {
        if let Some(done) = self.control.tasks.next_ended() {
            self.handle_control_result(done);
        }
        self.control.pending_call = self.control.calls.pop();
    }

    fn handle_control_result(&mut self, done: ControlResult) {
        let failed = match done {
            ControlResult::Taken(Ok(taken)) => return drop(self.check_registered(taken)),
            ControlResult::Forgotten(Ok(())) => return,
            ControlResult::Made(made) => return self.handle_fork_result(made),
            ControlResult::Removed(removed) => return self.handle_removal_result(removed),
            ControlResult::Swept(swept, memory) => {
                self.control.memory = *memory;
                match swept {
                    Ok(_) => return,
                    Err(failure) => SnapshotError::Log(failure),
                }
            }
            ControlResult::Listed(Ok(true | false)) => return,
            ControlResult::Listed(Err(failure)) => SnapshotError::Log(failure),
            ControlResult::Taken(Err(error)) | ControlResult::Forgotten(Err(error)) => error,
        };
        let has_cause = if let SnapshotError::Log(failure) = &failed {
            is_temporary(failure)
        } else {
            matches!(failed, SnapshotError::Attached { .. } | SnapshotError::NoSuchSnapshot { .. })
        };
        Invariant::LogIsAChain.check(has_cause, || format!("the control plane is told {failed:?}"));
    }

    /// Ends the control plane, and loses its requests.
    pub(super) fn stop_control(&mut self) {
        let (last, memory) = (self.control.last, mem::take(&mut self.control.memory));
        self.control = SimulatedControlPlane { last, memory, ..SimulatedControlPlane::default() };
    }

    /// Reads one of the snapshots that count from its stored objects.
    pub(crate) fn check_random_snapshot(&mut self) {
        let live = self.store.live_snapshots();
        if !live.is_empty() {
            let seq = live[self.rng.below(live.len())];
            self.store.check_snapshot(seq);
        }
    }

    /// Reads all snapshots that count from their stored objects.
    pub(crate) fn check_snapshots(&self) {
        for seq in self.store.live_snapshots() {
            self.store.check_snapshot(seq);
        }
    }

    /// Forgets all snapshots, with reliable requests. Returns their places.
    pub(super) fn forget_all(&mut self) -> Vec<Seq> {
        let seqs: Vec<Seq> = self.store.registered().iter().map(|known| known.seq).collect();
        for seq in &seqs {
            let (volume, seq) = (self.store.volume().clone(), *seq);
            let forgotten = self.run_reliably(|objects| async move { forget(&objects, &volume, seq).await });
            forgotten.expect("this store answers");
        }
        seqs
    }
}

/// Returns true for a temporary failure of the store. In a fleet a store denies requests for a while.
pub(super) fn is_temporary(failure: &LogFailure) -> bool {
    let denied = matches!(
        failure,
        LogFailure::Store { source: StoreError::Denied { .. }, .. }
            | LogFailure::Volumes { source: StoreError::Denied { .. } }
    );
    denied || failure.is_transient()
}
