//! Records of a running writer: change, detach, and the check for another writer.
//!
//! 0. a record that the previous process had stored for the next place is sent before any other is made, with
//!    the same bytes (`RecordRepeated`): it may be in the log already;
//! 1. the record is made (`RecordMade`) and its bytes are stored locally (`RecordStored`), so that a
//!    successor repeats the same bytes;
//!    A record that registers a snapshot is not sent before the snapshot's root is stored (`RootStored`), nor
//!    repeated before that: the dead process may not have come so far. Where another root is in that place,
//!    the record is stored again without the snapshot, and sent so;
//! 2. `log/<seq>` is created once;
//! 3. an ambiguous answer (`RecordInDoubt`) is resolved by reading the key back (`RecordReadBack`): this
//!    writer's record there means committed, another one fenced (`Fenced`), none that it is sent again with
//!    the same bytes;
//! 4. the manifest takes the record (`RecordWon`).
//!
//! An idle writer looks at its next place (`LogLookedAt`); after enough records a checkpoint is made
//! (`CheckpointMade`) and stored (`CheckpointStored`). The names are crash points. Upholds invariants 5, 11
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
    /// The previous process was about to create this record, or had created it.
    Left(Record, Vec<u8>),
    Storing(Record),
    /// The root of the snapshot that the record registers is being stored.
    Rooting(Record, Vec<u8>),
    Creating(Record, Vec<u8>),
    Reading(Record, Vec<u8>),
    /// No record is in flight; the next sequence number is being checked.
    Probing(Seq),
}

/// News of the log in an answer of the store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogNews {
    Nothing,
    /// This record of the writer is the next one in the log.
    Created(Box<Record>),
    /// Another writer's record is there. The log up to this one is known.
    Fenced(Seq),
}

/// The writer's end of the log.
pub(super) struct LogWriter {
    nonce: Nonce,
    commit: Commit,
    /// The record that the previous process left, until the log is known.
    pending: Option<Pending>,
    /// The newest checkpoint in the store.
    checkpointed: Seq,
    /// A checkpoint is being stored.
    checkpointing: bool,
    last_log_contact: Millis,
    /// The local disk could not keep the record in flight: the error of the last try, and when the first was.
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

    /// Error with which the local disk does not keep the record in flight, and for how long it has not: no
    /// commit and no detach ends meanwhile.
    pub(super) fn unkept_for(&self, now: Millis) -> Option<(Errno, Millis)> {
        self.unkept.map(|(errno, since)| (errno, now.saturating_sub(since)))
    }

    /// The log was read to its end. What the previous process left for a place that is taken now is in the
    /// log, or its writer is fenced; what it never stored completely was never sent.
    pub(super) fn learned(&mut self, manifest: &Manifest, now: Millis) {
        if let Some(pending) = self.pending.take().filter(|pending| pending.seq == manifest.seq().next())
            && let Ok(record) = Record::decode(&pending.bytes)
            && record.nonce == self.nonce
            && record.seq == pending.seq
            && matches!(record.body, Body::Change { .. } | Body::Detach { .. })
        {
            self.commit = Commit::Left(record, pending.bytes);
        }
        self.checkpointed = manifest.checkpointed();
        self.last_log_contact = now;
    }

    /// Returns true if a record that registers this snapshot is in flight, or may be in the log already.
    pub(super) fn registers(&self, uid: SnapshotUid) -> bool {
        match &self.commit {
            Commit::Left(record, _)
            | Commit::Storing(record)
            | Commit::Rooting(record, _)
            | Commit::Creating(record, _)
            | Commit::Reading(record, _) => record.body.snapshot_taken() == Some(uid),
            Commit::Idle | Commit::Probing(_) => false,
        }
    }

    /// Returns true if a record that merges runs is in flight, or may be in the log already.
    pub(super) fn carries_merges(&self) -> bool {
        match &self.commit {
            Commit::Left(record, _)
            | Commit::Storing(record)
            | Commit::Rooting(record, _)
            | Commit::Creating(record, _)
            | Commit::Reading(record, _) => record.body.has_merges(),
            Commit::Idle | Commit::Probing(_) => false,
        }
    }

    /// Returns true if no commit may be made before a checkpoint is stored.
    pub(super) fn is_full(&self, manifest: &Manifest) -> bool {
        self.records_after_checkpoint(manifest) >= max_records_after_checkpoint()
    }

    fn records_after_checkpoint(&self, manifest: &Manifest) -> u64 {
        manifest.seq().0.saturating_sub(self.checkpointed.0)
    }

    /// Makes the next record of this writer and sends it.
    pub(super) fn create_record<M: Memory>(&mut self, body: Body, core: &Core<M>, out: &mut Vec<Action>) {
        let manifest = core.manifest.as_ref().expect("a writer without its manifest makes no record");
        assert!(self.is_idle(), "one record is made at a time");
        let record = Record {
            volume: core.header.volume.clone(),
            seq: manifest.seq().next(),
            epoch: core.header.epoch,
            nonce: self.nonce,
            unix_ms: core.unix_ms(),
            body,
        };
        reach(CrashPoint::RecordMade);
        let bytes = record.encode();
        if safeguard(StoreRecordFirst) {
            out.push(Action::StorePending { seq: record.seq, bytes });
            self.commit = Commit::Storing(record);
        } else {
            self.send(record, bytes, core, out);
        }
    }

    /// Sends the record; the root of the snapshot that it registers goes first (invariant 29).
    fn send<M: Memory>(&mut self, record: Record, bytes: Vec<u8>, core: &Core<M>, out: &mut Vec<Action>) {
        if record.body.snapshot_taken().is_some() {
            let manifest = core.manifest.as_ref().expect("the record was made from it");
            out.push(Action::StoreRoot { seq: record.seq, bytes: root(manifest, &record) });
            if safeguard(RootBeforeRecord) {
                self.commit = Commit::Rooting(record, bytes);
                return;
            }
        }
        self.create(record, bytes, out);
    }

    /// The root of the snapshot is stored.
    pub(super) fn root_stored(&mut self, out: &mut Vec<Action>) {
        match self.take_commit() {
            Commit::Rooting(record, bytes) => {
                reach(CrashPoint::RootStored);
                self.create(record, bytes, out);
            }
            other @ (Commit::Idle
            | Commit::Left(..)
            | Commit::Storing(_)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_)) => {
                assert!(!safeguard(RootBeforeRecord), "no root was being stored in {other:?}");
                self.commit = other;
            }
        }
    }

    /// Another root is in the snapshot's place. The record, which this process never sent, takes the place
    /// without the snapshot: that is registered later, unless the record of a dead process is there already.
    pub(super) fn root_barred(&mut self, out: &mut Vec<Action>) {
        match self.take_commit() {
            Commit::Rooting(mut record, _) => {
                record.body.take_no_snapshot();
                out.push(Action::StorePending { seq: record.seq, bytes: record.encode() });
                self.commit = Commit::Storing(record);
            }
            other @ (Commit::Idle
            | Commit::Left(..)
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

    /// The record that is to be sent before any other is made.
    pub(super) fn left(&self) -> Option<&Record> {
        match &self.commit {
            Commit::Left(record, _) => Some(record),
            Commit::Idle
            | Commit::Storing(_)
            | Commit::Rooting(..)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_) => None,
        }
    }

    /// Sends what the previous process had stored, unchanged.
    pub(super) fn repeat<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        let Commit::Left(record, bytes) = self.take_commit() else { unreachable!("no record was left") };
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
                    // A predecessor of this very writer may have made the same record at another time, and
                    // its request may have been late: then the snapshot was registered, and since forgotten.
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
            | Commit::Left(..)
            | Commit::Storing(_)
            | Commit::Rooting(..)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Probing(_)) => unreachable!("log record {seq} was not asked for in {other:?}"),
        }
    }

    /// The record is in the log.
    pub(super) fn created(&mut self, now: Millis) {
        self.last_log_contact = now;
        reach(CrashPoint::RecordWon);
    }

    /// Checks the next place in the log after a time without contact, so that a writer that commits nothing
    /// learns of its fencing. Behind the detach record of a predecessor there may be any record.
    pub(super) fn probe<M: Memory>(&mut self, core: &Core<M>, out: &mut Vec<Action>) {
        let Some(manifest) = core.manifest.as_ref().filter(|manifest| manifest.is_attached()) else { return };
        let quiet = core.now.saturating_sub(self.last_log_contact);
        if self.is_idle() && quiet >= core.limits.max_age_ms {
            let seq = manifest.seq().next();
            self.commit = Commit::Probing(seq);
            out.push(Action::ReadRecord { seq });
        }
    }

    /// Has a checkpoint stored if one is `wanted` or due.
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
            reach(CrashPoint::CheckpointMade);
            out.push(Action::WriteCheckpoint { seq: manifest.seq(), bytes: manifest.encode_checkpoint() });
        }
    }

    /// Storing the checkpoint of `seq` ended.
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

/// The root of the snapshot that `record` registers.
fn root(manifest: &Manifest, record: &Record) -> Vec<u8> {
    let mut manifest = manifest.clone();
    if let Err(error) = manifest.apply(record) {
        unreachable!("a record made from the manifest follows it: {error}")
    }
    manifest.encode_root()
}

#[cfg(test)]
mod tests;
