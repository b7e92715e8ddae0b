//! Records of a running writer: commit, detach, and the look whether another writer came.
//!
//! 1. the record is made (`RecordMade`) and its bytes are stored locally (`RecordStored`), so that a successor repeats the
//!    same bytes (`RecordRepeated`);
//! 2. `log/<seq>` is created once;
//! 3. anything but a clear yes (`RecordInDoubt`) is resolved by reading the key back (`RecordReadBack`): what this writer
//!    says there means won, anything else fenced (`Fenced`), nothing that it may be tried again with the same bytes;
//! 4. the manifest takes the record (`RecordWon`).
//!
//! An idle writer looks at its next place (`LogLookedAt`); after enough records a checkpoint is made (`CheckpointMade`) and
//! stored (`CheckpointStored`). The names are crash points. Upholds invariants 5, 11 and 12 (`docs/invariants.md`).

use holdfast_types::Seq;

use super::seal::Seal;
use super::{Lifecycle, Pending, Volume};
use crate::action::{Action, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::event::{CreateAnswer, Errno, Millis};
use crate::log_length::checkpoint_every;
use crate::record::{Body, Record};
use crate::safeguard::{
    Safeguard::{NoticeOtherWriters, ReadBackAmbiguous, StoreRecordFirst},
    safeguard,
};

/// State of the record in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Commit {
    Idle,
    Storing(Record),
    Creating(Record, Vec<u8>),
    Reading(Record, Vec<u8>),
    /// No record is in flight; the next sequence number is being checked.
    Looking(Seq),
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// Makes the next record of this writer and sends it.
    pub(super) fn create_record(&mut self, body: Body, out: &mut Vec<Action>) {
        let manifest = self.manifest.as_ref().expect("a writer without its manifest makes no record");
        let record = Record {
            volume: self.header.volume.clone(),
            seq: manifest.seq().next(),
            epoch: self.header.epoch,
            nonce: self.nonce,
            unix_ms: self.unix_ms_at_zero + self.now,
            body,
        };
        reach(CrashPoint::RecordMade);
        let bytes = record.encode();
        if safeguard(StoreRecordFirst) {
            out.push(Action::StorePending { seq: record.seq, bytes });
            self.commit = Commit::Storing(record);
        } else {
            out.push(Action::CreateRecord { seq: record.seq, bytes: bytes.clone() });
            self.commit = Commit::Creating(record, bytes);
        }
    }

    /// Sends what a predecessor had stored, unchanged.
    pub(super) fn repeat_record(&mut self, pending: Pending, out: &mut Vec<Action>) {
        match Record::decode(&pending.bytes) {
            Ok(record)
                if record.nonce == self.nonce
                    && record.seq == pending.seq
                    && matches!(record.body, Body::Commit { .. }) =>
            {
                reach(CrashPoint::RecordRepeated);
                out.push(Action::CreateRecord { seq: pending.seq, bytes: pending.bytes.clone() });
                self.commit = Commit::Creating(record, pending.bytes);
            }
            // Not of this writer, or never wholly stored: then it was never sent.
            Ok(_) | Err(_) => {
                self.commit = Commit::Idle;
                let super::Seal::Committing(sides) = self.seal else {
                    unreachable!("a commit belongs to a seal")
                };
                let number = self.want_sealing_round(out);
                self.seal = super::Seal::Round(sides, number);
            }
        }
    }

    pub(super) fn pending_stored(&mut self, result: Result<(), Errno>, out: &mut Vec<Action>) {
        let Commit::Storing(record) = std::mem::replace(&mut self.commit, Commit::Idle) else {
            unreachable!("no record was stored")
        };
        let bytes = record.encode();
        match result {
            Ok(()) => {
                reach(CrashPoint::RecordStored);
                out.push(Action::CreateRecord { seq: record.seq, bytes: bytes.clone() });
                self.commit = Commit::Creating(record, bytes);
            }
            Err(errno) => {
                out.push(Action::Report(Report::LocalDiskFailed(errno)));
                out.push(Action::StorePending { seq: record.seq, bytes });
                self.commit = Commit::Storing(record);
            }
        }
    }

    pub(super) fn create_answered(&mut self, answer: CreateAnswer, out: &mut Vec<Action>) {
        let Commit::Creating(record, bytes) = std::mem::replace(&mut self.commit, Commit::Idle) else {
            unreachable!("no record was in flight")
        };
        match answer {
            CreateAnswer::Created => self.won(record, out),
            CreateAnswer::Ambiguous if !safeguard(ReadBackAmbiguous) => self.won(record, out),
            CreateAnswer::Exists | CreateAnswer::Ambiguous => {
                reach(CrashPoint::RecordInDoubt);
                out.push(Action::ReadRecord { seq: record.seq });
                self.commit = Commit::Reading(record, bytes);
            }
        }
    }

    pub(super) fn record_read(&mut self, seq: Seq, found: Option<&[u8]>, out: &mut Vec<Action>) {
        match std::mem::replace(&mut self.commit, Commit::Idle) {
            Commit::Reading(record, bytes) if record.seq == seq => {
                reach(CrashPoint::RecordReadBack);
                let Some(there) = found else {
                    out.push(Action::CreateRecord { seq, bytes: bytes.clone() });
                    self.commit = Commit::Creating(record, bytes);
                    return;
                };
                match Record::decode(there) {
                    // A predecessor of this very writer may have made the same record at another time.
                    Ok(found) if found.nonce == self.nonce && found.body == record.body => {
                        self.won(found, out)
                    }
                    Ok(_) | Err(_) if !safeguard(NoticeOtherWriters) => self.won(record, out),
                    Ok(_) | Err(_) => self.fence(Seq(seq.0 - 1), out),
                }
            }
            Commit::Looking(at) if at == seq => {
                reach(CrashPoint::LogLookedAt);
                self.heard_from_log = self.now;
                match found.map(Record::decode) {
                    None => {}
                    // A predecessor's, sent before it died: its device was gone, and this writer is told to detach too.
                    Some(Ok(record)) if record.nonce == self.nonce && record.body == Body::Detach => {
                        self.follow(&record);
                    }
                    Some(_) if !safeguard(NoticeOtherWriters) => {}
                    Some(_) => self.fence(Seq(seq.0 - 1), out),
                }
            }
            other @ (Commit::Idle
            | Commit::Storing(_)
            | Commit::Creating(..)
            | Commit::Reading(..)
            | Commit::Looking(_)) => unreachable!("log record {seq} was not asked for in {other:?}"),
        }
    }

    /// A record of this writer is the next one in the log.
    fn follow(&mut self, record: &Record) {
        let manifest = self.manifest.as_mut().expect("a record was made from it");
        if let Err(error) = manifest.apply(record) {
            unreachable!("a record made from the manifest follows it: {error}")
        }
    }

    fn won(&mut self, record: Record, out: &mut Vec<Action>) {
        self.follow(&record);
        self.heard_from_log = self.now;
        reach(CrashPoint::RecordWon);
        match record.body {
            Body::Commit { .. } => self.sealed_is_committed(out),
            Body::Detach => self.close(record.seq, out),
            Body::Create { .. } | Body::Attach { .. } | Body::Delete => {
                unreachable!("a running writer makes none of these")
            }
        }
    }

    /// A writer that commits nothing looks at its next place in the log, so that it learns of its fencing: one that is idle,
    /// or cannot read what it is to commit.
    pub(super) fn look_for_fence(&mut self, out: &mut Vec<Action>) {
        let Some(manifest) = &self.manifest else { return };
        let quiet: Millis = self.now.saturating_sub(self.heard_from_log);
        let at_rest = match self.lifecycle {
            Lifecycle::Serving => matches!(self.seal, Seal::Open | Seal::Unreadable(_)),
            Lifecycle::Detaching => matches!(self.seal, Seal::Unreadable(_)),
            Lifecycle::Recovering | Lifecycle::Closing | Lifecycle::Detached | Lifecycle::Fenced => false,
        };
        if self.commit == Commit::Idle && at_rest && quiet >= self.limits.max_age_ms {
            let seq = manifest.seq().next();
            self.commit = Commit::Looking(seq);
            out.push(Action::ReadRecord { seq });
        }
    }

    pub(super) fn advance_checkpoint(&mut self, out: &mut Vec<Action>) {
        let Some(manifest) = &self.manifest else { return };
        let due =
            self.records_after_checkpoint(manifest) >= checkpoint_every() || self.repair.wants_checkpoint();
        if !self.checkpointing && due {
            self.checkpointing = true;
            reach(CrashPoint::CheckpointMade);
            out.push(Action::WriteCheckpoint { seq: manifest.seq(), bytes: manifest.encode_checkpoint() });
        }
    }

    pub(super) fn checkpoint_written(&mut self, seq: Seq, written: bool) {
        self.checkpointing = false;
        if written {
            reach(CrashPoint::CheckpointStored);
            self.repair.checkpointed();
            self.checkpointed = self.checkpointed.max(seq);
        }
    }
}
