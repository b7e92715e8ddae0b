//! The log extended by a writer of this node, and the check that a store has it.
//!
//! A bucket of the same name may be a different one: on another server, of another tenant of the same server,
//! or a copy without the newest records. A writer that continued there would split its volume.
//!
//! Owns: the proof that a log is the same one.
//! Does not own: the times of this check (`store/change.rs`).

use holdfast_engine::durable_map::Header;
use holdfast_engine::settings::Pending;
use holdfast_format::record::Record;
use holdfast_log::{LogFailure, read_manifest_to_end, read_record};
use holdfast_objects::{Blocker, ErrorKind, ObjectStore, StoreError};
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::node::error::{ForeignLog, NodeError};
use crate::node::local::attached_record::AttachedRecord;
use crate::node::local::volume_files::Local;

/// The log of an attached volume, as known to its writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::node) struct OwnLog {
    pub(in crate::node) volume: VolumeId,
    /// The nonce of the record that created the volume.
    identity: Nonce,
    /// The epoch of the writer.
    epoch: Epoch,
    nonce: Nonce,
    /// The newest record of the writer that is known to be in the log.
    seq: Option<Seq>,
}

/// Reason why a log could not be verified.
#[derive(Debug, thiserror::Error)]
pub(in crate::node) enum Unproven {
    /// It is a different one.
    #[error(transparent)]
    Foreign(#[from] ForeignLog),
    /// It could not be read.
    #[error(transparent)]
    Unread(#[from] LogFailure),
}

impl Unproven {
    /// Returns true for a fault of the volume's own objects, with any configuration: one is damaged, or in an
    /// archive class.
    pub(in crate::node) fn is_of_volume(&self) -> bool {
        let Self::Unread(failure) = self else { return false };
        if let LogFailure::Store { source, .. } = failure {
            return source.kind() == ErrorKind::Blocked(Blocker::Archived);
        }
        matches!(failure, LogFailure::Damaged { .. })
    }
}

impl OwnLog {
    /// Returns the log that the writer of `header`, attached as `epoch`, extends. `pending` is the record
    /// that it was about to create.
    pub(in crate::node) fn of(header: &Header, epoch: u64, pending: Option<&Pending>) -> Self {
        let nonce = header.nonces.last().copied().unwrap_or_default();
        let pending = pending.and_then(|pending| Record::decode(&pending.bytes).ok());
        let before = pending.filter(|record| record.nonce == nonce).map(|record| Seq(record.seq.0 - 1));
        let (volume, identity) = (header.volume.clone(), header.identity);
        Self { volume, identity, epoch: Epoch(epoch), nonce, seq: before }
    }

    /// Returns the log of a volume that is not on a ring thread, from its local files, with the record of its
    /// attach; `None` if it was not served.
    pub(in crate::node) fn left(local: &Local) -> Result<Option<(AttachedRecord, Self)>, NodeError> {
        let Some(record) = local.read_record()? else { return Ok(None) };
        let Some((_generation, header)) = local.read_header()? else { return Ok(None) };
        let log = Self::of(&header, record.epoch, local.read_pending()?.as_ref());
        Ok(Some((record, log)))
    }

    /// Returns the same log, known by the writer to reach `seq`.
    pub(in crate::node) fn up_to(&self, seq: Option<Seq>) -> Self {
        Self { seq: seq.or(self.seq), ..self.clone() }
    }

    /// Finds this log in `objects`: two GETs if the newest record is known and exists.
    ///
    /// # Errors
    /// [`Unproven`].
    pub(in crate::node) async fn find(&self, objects: &dyn ObjectStore) -> Result<(), Unproven> {
        let first = self.read(objects, Seq::FIRST).await?.ok_or(ForeignLog::Absent)?;
        if first.nonce != self.identity {
            return Err(ForeignLog::OtherVolume.into());
        }
        if let Some(seq) = self.seq
            && let Some(newest) = self.read(objects, seq).await?
        {
            let is_own = newest.epoch == self.epoch && newest.nonce == self.nonce;
            return if is_own { Ok(()) } else { Err(ForeignLog::OtherWriter(seq).into()) };
        }
        // The newest record is unknown, or it was truncated.
        let manifest = read_manifest_to_end(objects, &self.volume).await?;
        let found = manifest.last_of(self.epoch, self.nonce).ok_or(ForeignLog::NotAttached(self.epoch))?;
        match self.seq {
            Some(due) if found < due => Err(ForeignLog::Behind { found, due }.into()),
            Some(_) | None => Ok(()),
        }
    }

    async fn read(&self, objects: &dyn ObjectStore, seq: Seq) -> Result<Option<Record>, LogFailure> {
        match read_record(objects, &self.volume, seq).await {
            Ok(record) => Ok(Some(record)),
            Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
