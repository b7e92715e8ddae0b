//! Records of a running writer: change, detach, and the check for another writer.
//!
//! 0. a record that the previous process stored for the next position is sent before any other is created,
//!    unchanged (`RecordRepeated`): it may already be in the log;
//! 1. the record is built (`RecordBuilt`) and its bytes are stored locally (`RecordStored`), so that a
//!    successor repeats the same bytes. A record that registers a snapshot is not sent, nor repeated, before
//!    the snapshot's root is stored (`RootStored`), which a dead process may not have done. If another root
//!    exists at that position, the record is stored and sent without the snapshot;
//! 2. `log/<seq>` is created once;
//! 3. an ambiguous answer (`RecordInDoubt`) is resolved by reading the key back (`RecordReadBack`): this
//!    writer's record means that the commit succeeded, another record that the writer is fenced (`Fenced`);
//!    if no record exists, the same bytes are sent again;
//! 4. the manifest applies the record (`RecordWon`).
//!
//! An idle writer checks its next position (`LogLookedAt`); after enough records a checkpoint is built
//! (`CheckpointBuilt`) and stored (`CheckpointStored`). The names are crash points. Upholds invariants 5, 11
//! and 12 (`docs/invariants.md`).

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::log_length::{checkpoint_every, max_records_after_checkpoint};
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{
    Safeguard::{NoticeOtherWriters, ReadBackAmbiguous, RootBeforeRecord, StoreRecordFirst},
    safeguard,
};
use holdfast_types::{Millis, Nonce, Seq, SnapshotUid};

use super::core::{Core, Memory};
use crate::action::{Action, Report};
use crate::event::{CreateAnswer, Errno};
use crate::settings::Pending;

/// State of the record in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Commit {
    Idle,
    /// A record that the previous process was about to create, or had created.
    Inherited(Record, Vec<u8>),
    Storing(Record),
    /// The root of the snapshot that the record registers is being stored.
    StoringRoot(Record, Vec<u8>),
    Creating(Record, Vec<u8>),
    Reading(Record, Vec<u8>),
    /// No record is in flight; the next sequence number is being checked.
    Probing(Seq),
}

/// Change of the log that a response of the store shows.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogNews {
    Nothing,
    /// This record of the writer is the next one in the log.
    Created(Box<Record>),
    /// The position holds another writer's record; the log before it is known.
    Fenced(Seq),
}

/// The writer's end of the log.
pub(super) struct LogWriter {
    nonce: Nonce,
    commit: Commit,
    /// The record stored by the previous process, until the log is known.
    pending: Option<Pending>,
    /// The newest checkpoint in the store.
    checkpointed: Seq,
    /// True while a checkpoint is being stored.
    checkpointing: bool,
    last_log_contact: Millis,
    /// The last error of the local disk when storing the record in flight, and the time of the first error.
    unkept: Option<(Errno, Millis)>,
}

impl LogWriter {
    pub(super) fn idle(nonce: Nonce, pending: Option<Pending>, now: Millis) -> Self {
        Self {
            nonce,
            commit: Commit::Idle,
            pending,
            checkpointed: Seq(0),
            checkpointing: false,
            last_log_contact: now,
            unkept: None,
        }
    }

    pub(super) fn nonce(&self) -> Nonce {
        self.nonce
    }

    pub(super) fn is_idle(&self) -> bool {
        self.commit == Commit::Idle
    }

    /// Returns the error with which the local disk fails to store the record in flight, and for how long:
    /// in the meantime no commit or detach can end.
    pub(super) fn unkept_for(&self, now: Millis) -> Option<(Errno, Millis)> {
        self.unkept.map(|(errno, since)| (errno, now.saturating_sub(since)))
    }

    /// Handles the log after it was read to its end. If the position of the stored record is taken, the
    /// record is in the log, or its writer is fenced; an incompletely stored record was never sent.
    pub(super) fn learned(&mut self, manifest: &Manifest, now: Millis) {
        if let Some(pending) = self.pending.take().filter(|pending| pending.seq == manifest.seq().next())
            && let Ok(record) = Record::decode(&pending.bytes)
            && record.nonce == self.nonce
            && record.seq == pending.seq
            && matches!(record.body, Body::Change { .. } | Body::Detach { .. })
        {
            self.commit = Commit::Inherited(record, pending.bytes);
        }
        self.checkpointed = manifest.checkpointed();
        self.last_log_contact = now;
    }

    /// Returns true if a record that registers this snapshot is in flight, or may be in the log already.
    pub(super) fn registers(&self, uid: SnapshotUid) -> bool {
        match &self.commit {
            Commit::Inherited(record, _)
            | Commit::Storing(record)
            | Commit::StoringRoot(record, _)
            | Commit::Creating(record, _)
            | Commit::Reading(record, _) => record.body.snapshot_taken() == Some(uid),
            Commit::Idle | Commit::Probing(_) => false,
        }
    }

    /// Returns true if a record that merges runs is in flight, or may be in the log already.
    pub(super) fn carries_merges(&self) -> bool {
        match &self.commit {
            Commit::Inherited(record, _)
            | Commit::Storing(record)
            | Commit::StoringRoot(record, _)
            | Commit::Creating(record, _)
            | Commit::Reading(record, _) => record.body.has_merges(),
            Commit::Idle | Commit::Probing(_) => false,
        }
    }

    /// Returns true if a checkpoint must be stored before the next commit.
    pub(super) fn is_full(&self, manifest: &Manifest) -> bool {
        self.records_after_checkpoint(manifest) >= max_records_after_checkpoint()
    }

    fn records_after_checkpoint(&self, manifest: &Manifest) -> u64 {
        manifest.seq().0.saturating_sub(self.checkpointed.0)
    }

    /// Creates the next record of this writer and sends it.
    pub(super) fn create_record<M: Memory>(&mut self, body: Body, core: &Core<M>, out: &mut Vec<Action>) {
        let manifest = core.manifest.as_ref().expect("a writer without a manifest creates no record");
        assert!(self.is_idle(), "one record is created at a time");
        let record = Record {
            volume: core.header.volume.clone(),
            seq: manifest.seq().next(),
            epoch: core.header.epoch,
            nonce: self.nonce,
            unix_ms: core.unix_ms(),
            body,
        };
        reach(CrashPoint::RecordBuilt);
        let bytes = record.encode();
        if safeguard(StoreRecordFirst) {
            out.push(Action::StorePending { seq: record.seq, bytes });
            self.commit = Commit::Storing(record);
        } else {
            self.send(record, bytes, core, out);
        }
    }

    /// Sends the record, preceded by the root of the snapshot that it registers (invariant 29).
    fn send<M: Memory>(&mut self, record: Record, bytes: Vec<u8>, core: &Core<M>, out: &mut Vec<Action>) {
        if record.body.snapshot_taken().is_some() {
            let manifest = core.manifest.as_ref().expect("the record was made from it");
            out.push(Action::StoreRoot { seq: record.seq, bytes: root(manifest, &record) });
            if safeguard(RootBeforeRecord) {
                self.commit = Commit::StoringRoot(record, bytes);
                return;
            }
        }
        self.create(record, bytes, out);
    }

    /// Continues after the snapshot's root was stored.
    pub(super) fn root_stored(&mut self, out: &mut Vec<Action>) {
        match self.take_commit() {
            Commit::StoringRoot(record, bytes) => {
                reach(CrashPoint::RootStored);
                self.create(record, bytes, out);
            }
            other @ (Commit::Idle
            | Commit::Inherited(..)
            | Commit::Storing(_)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_)) => {
                assert!(!safeguard(RootBeforeRecord), "no root was being stored in {other:?}");
                self.commit = other;
            }
        }
    }

    /// Handles another root at the snapshot's position. The record, which this process never sent, drops
    /// the snapshot, which is registered later, unless a dead process's record is already at the position.
    pub(super) fn root_barred(&mut self, out: &mut Vec<Action>) {
        match self.take_commit() {
            Commit::StoringRoot(mut record, _) => {
                record.body.take_no_snapshot();
                out.push(Action::StorePending { seq: record.seq, bytes: record.encode() });
                self.commit = Commit::Storing(record);
            }
            other @ (Commit::Idle
            | Commit::Inherited(..)
            | Commit::Storing(_)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_)) => {
                assert!(!safeguard(RootBeforeRecord), "no root was being stored in {other:?}");
                self.commit = other;
            }
        }
    }

    fn create(&mut self, record: Record, bytes: Vec<u8>, out: &mut Vec<Action>) {
        out.push(Action::CreateRecord { seq: record.seq, bytes: bytes.clone() });
        self.commit = Commit::Creating(record, bytes);
    }

    /// Returns the record that must be sent before any other is created.
    pub(super) fn inherited(&self) -> Option<&Record> {
        match &self.commit {
            Commit::Inherited(record, _) => Some(record),
            Commit::Idle
            | Commit::Storing(_)
            | Commit::StoringRoot(..)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_) => None,
        }
    }

    /// Sends the stored record of the previous process, unchanged.
    pub(super) fn repeat<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        let Commit::Inherited(record, bytes) = self.take_commit() else {
            unreachable!("no record was inherited")
        };
        reach(CrashPoint::RecordRepeated);
        self.send(record, bytes, core, out);
    }

    pub(super) fn pending_stored<M: Memory>(
        &mut self,
        result: Result<(), Errno>,
        core: &Core<M>,
        out: &mut Vec<Action>,
    ) {
        let Commit::Storing(record) = self.take_commit() else { unreachable!("no record was being stored") };
        let bytes = record.encode();
        match result {
            Ok(()) => {
                self.unkept = None;
                reach(CrashPoint::RecordStored);
                self.send(record, bytes, core, out);
            }
            Err(errno) => {
                self.unkept = Some((errno, self.unkept.map_or(core.now, |(_, since)| since)));
                out.push(Action::Report(Report::LocalDiskFailed(errno)));
                out.push(Action::StorePending { seq: record.seq, bytes });
                self.commit = Commit::Storing(record);
            }
        }
    }

    pub(super) fn create_answered(&mut self, answer: CreateAnswer, out: &mut Vec<Action>) -> LogNews {
        let Commit::Creating(record, bytes) = self.take_commit() else {
            unreachable!("no record was in flight")
        };
        match answer {
            CreateAnswer::Created => LogNews::Created(Box::new(record)),
            CreateAnswer::Ambiguous if !safeguard(ReadBackAmbiguous) => LogNews::Created(Box::new(record)),
            CreateAnswer::Exists | CreateAnswer::Ambiguous => {
                reach(CrashPoint::RecordInDoubt);
                out.push(Action::ReadRecord { seq: record.seq });
                self.commit = Commit::Reading(record, bytes);
                LogNews::Nothing
            }
        }
    }

    pub(super) fn record_read(
        &mut self,
        seq: Seq,
        found: Option<&[u8]>,
        now: Millis,
        out: &mut Vec<Action>,
    ) -> LogNews {
        match self.take_commit() {
            Commit::Reading(record, bytes) if record.seq == seq => {
                reach(CrashPoint::RecordReadBack);
                let Some(there) = found else {
                    self.create(record, bytes, out);
                    return LogNews::Nothing;
                };
                match Record::decode(there) {
                    // A predecessor's late request may have created the same record with the snapshot: then
                    // the snapshot was registered, and forgotten since.
                    Ok(found)
                        if found.nonce == self.nonce && found.body.is_same_but_snapshot(&record.body) =>
                    {
                        LogNews::Created(Box::new(found))
                    }
                    Ok(_) | Err(_) if safeguard(NoticeOtherWriters) => LogNews::Fenced(Seq(seq.0 - 1)),
                    Ok(_) | Err(_) => LogNews::Created(Box::new(record)),
                }
            }
            Commit::Probing(at) if at == seq => {
                reach(CrashPoint::LogLookedAt);
                self.last_log_contact = now;
                match found {
                    None => LogNews::Nothing,
                    Some(_) if safeguard(NoticeOtherWriters) => LogNews::Fenced(Seq(seq.0 - 1)),
                    Some(_) => LogNews::Nothing,
                }
            }
            other @ (Commit::Idle
            | Commit::Inherited(..)
            | Commit::Storing(_)
            | Commit::StoringRoot(..)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_)) => unreachable!("log record {seq} was not asked for in {other:?}"),
        }
    }

    /// Notes that the record is in the log.
    pub(super) fn created(&mut self, now: Millis) {
        self.last_log_contact = now;
        reach(CrashPoint::RecordWon);
    }

    /// Checks the next position in the log after a time without contact, so that a writer that commits
    /// nothing learns that it is fenced. After the detach record of a predecessor, any record may follow.
    pub(super) fn probe<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        let Some(manifest) = core.manifest.as_ref().filter(|manifest| manifest.is_attached()) else { return };
        let quiet = core.now.saturating_sub(self.last_log_contact);
        if self.is_idle() && quiet >= core.limits.max_age_ms {
            let seq = manifest.seq().next();
            self.commit = Commit::Probing(seq);
            out.push(Action::ReadRecord { seq });
        }
    }

    /// Requests a checkpoint if one is `wanted` or due.
    pub(super) fn advance_checkpoint<M: Memory>(
        &mut self,
        core: &Core<M>,
        wanted: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(manifest) = &core.manifest else { return };
        let is_due = wanted || self.records_after_checkpoint(manifest) >= checkpoint_every();
        if is_due && !self.checkpointing {
            self.checkpointing = true;
            reach(CrashPoint::CheckpointBuilt);
            out.push(Action::WriteCheckpoint { seq: manifest.seq(), bytes: manifest.encode_checkpoint() });
        }
    }

    /// Handles the result of storing the checkpoint of `seq`.
    pub(super) fn checkpoint_written(&mut self, seq: Seq, written: bool) {
        self.checkpointing = false;
        if written {
            reach(CrashPoint::CheckpointStored);
            self.checkpointed = self.checkpointed.max(seq);
        }
    }

    fn take_commit(&mut self) -> Commit {
        std::mem::replace(&mut self.commit, Commit::Idle)
    }
}

/// Returns the root of the snapshot that `record` registers.
fn root(manifest: &Manifest, record: &Record) -> Vec<u8> {
    let mut manifest = manifest.clone();
    if let Err(error) = manifest.apply(record) {
        unreachable!("a record made from the manifest follows it: {error}")
    }
    manifest.encode_root()
}

#[cfg(test)]
mod tests;
