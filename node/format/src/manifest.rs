//! State of a volume at a position of its log: size, writer, runs, and the chunks that hold data.
//!
//! Owns: the state, and the checkpoint that holds all of it. Records change it ([`apply`]).
//!
//! Checkpoint payload inside the envelope (`wire`):
//! ```text
//! u8 length + text volume id   u8 n, n x (u8 length + text volume id): its ancestors, nearest first
//! u64 seq   u64 data seq   u64 sectors
//! u8 flags (1 attached, 2 A invalidated, 4 B invalidated, 8 replaced, 16 had snapshots)   u8 deleted
//! u8[16] identity   u8 length + text node of the newest attach   u64 its unix milliseconds
//! the writer that attach displaced, as in a record
//! u8[16] nonce of the newest commit   u64 its generation
//! u32 n, n x (u64 epoch, u8[16] nonce, u64 seq)     attach records, oldest first
//! u32 n, n x (u8 0 and segment reference, or u8 1 and run reference)    runs, newest first
//! set of chunks (`chunk_set`): those that hold data
//! u64 place before which merges are closed   u64 place of the newest merge that was carried
//! snapshots that are registered (`snapshot`), oldest first
//! ```

use std::sync::Arc;

use holdfast_types::{CHUNK_SECTORS, Chunk, Epoch, Lineage, Nonce, Place, Seq, SnapshotName, VolumeId};

use crate::chunk_set::ChunkSet;
use crate::displaced::Displaced;
use crate::fork::{Fork, put_ancestors, put_runs, take_lineage, take_runs};
use crate::index::Runs;
use crate::limit::MAX_SECTORS;
use crate::safeguard::{
    Safeguard::{ControlOnlyDetached, KeepAttachRecords, RootNamesAllRuns},
    safeguard,
};
use crate::side::SideSet;
use crate::snapshot::Snapshot;
use crate::wire::{self, DecodeError, Kind, Reader};

const WHAT: &str = "checkpoint";
/// Flag of a checkpoint: a writer was replaced at some time.
const REPLACED: u8 = 8;
/// Flag of a checkpoint: a snapshot was registered at some time.
const HAD_SNAPSHOTS: u8 = 16;

pub mod apply;
mod writers;

use writers::Writers;

/// A volume's state at a seq.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    seq: Seq,
    data_seq: Seq,
    sectors: u64,
    writers: Writers,
    invalidated: SideSet,
    deleted: bool,
    identity: Nonce,
    covered: Covered,
    checkpointed: Seq,
    /// Newest first.
    runs: Runs,
    /// Chunks for which any run ever had a frame.
    holds: ChunkSet,
    /// Later records add no merge with a place below this.
    closed: Place,
    /// The greatest place of a merge in a record.
    newest_merge: Place,
    /// Oldest first.
    snapshots: Vec<Snapshot>,
    /// True if a snapshot was ever registered.
    had_snapshots: bool,
}

/// The writer that is attached according to the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Writer {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its nonce.
    pub nonce: Nonce,
    /// Its node.
    pub node: String,
    /// Time of its attach, milliseconds since 1970 by its clock.
    pub since_unix_ms: u64,
}

/// The writer of the newest commit, and the newest durable-map generation in its commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Covered {
    writer: Nonce,
    /// The greatest generation in all commits of that writer.
    generation: u64,
}

impl Covered {
    /// Returns the state after a commit of `writer` with this generation.
    fn after(self, writer: Nonce, generation: u64) -> Self {
        let before = if self.writer == writer { self.generation } else { 0 };
        Self { writer, generation: before.max(generation) }
    }
}

impl Manifest {
    /// Returns the state before the first record.
    pub fn empty(volume: VolumeId) -> Self {
        Self {
            seq: Seq(0),
            data_seq: Seq(0),
            sectors: 0,
            writers: Writers::default(),
            invalidated: SideSet::NONE,
            deleted: false,
            identity: Nonce::default(),
            covered: Covered::default(),
            checkpointed: Seq(0),
            runs: Runs::new(Arc::new(Lineage::of(volume)), []),
            holds: ChunkSet::default(),
            closed: Place::default(),
            newest_merge: Place::default(),
            snapshots: Vec::new(),
            had_snapshots: false,
        }
    }

    /// Returns the state of a deleted volume whose log consists only of the tombstone at `seq`.
    pub fn tombstone(volume: VolumeId, seq: Seq) -> Self {
        Self { seq, deleted: true, ..Self::empty(volume) }
    }

    /// Returns the volume.
    pub fn volume(&self) -> &VolumeId {
        self.runs.lineage().volume()
    }

    /// Returns the volume, and the volumes whose objects it reads.
    pub fn lineage(&self) -> &Lineage {
        self.runs.lineage()
    }

    /// Returns true if a snapshot was ever registered: another volume may read this one's objects.
    pub fn had_snapshots(&self) -> bool {
        self.had_snapshots
    }

    /// Returns the last record applied; zero before the first.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Returns the last record that changed the volume's data; zero before the first.
    pub fn data_seq(&self) -> Seq {
        self.data_seq
    }

    /// Returns the newest checkpoint known when the log was read; zero without one.
    pub fn checkpointed(&self) -> Seq {
        self.checkpointed
    }

    /// Returns the logical size in sectors.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the epoch of the newest attach; zero before the first.
    pub fn epoch(&self) -> Epoch {
        self.writers.newest().map_or(Epoch(0), |newest| newest.epoch)
    }

    /// Returns the nonce of the newest attach.
    pub fn writer(&self) -> Option<Nonce> {
        self.writers.newest().map(|newest| newest.nonce)
    }

    /// Returns true if the newest attach was not followed by its detach.
    pub fn is_attached(&self) -> bool {
        self.writers.attached
    }

    /// Returns the attached writer; `None` after its detach.
    pub fn attached(&self) -> Option<Writer> {
        self.newest_writer().filter(|_| self.writers.attached)
    }

    /// Returns the writer of the newest attach, even after its detach.
    pub fn newest_writer(&self) -> Option<Writer> {
        let newest = self.writers.newest()?;
        Some(Writer {
            epoch: newest.epoch,
            nonce: newest.nonce,
            node: self.writers.node.clone(),
            since_unix_ms: self.writers.since_unix_ms,
        })
    }

    /// Returns the writer displaced by the newest attach, or by an earlier one of the same node and data.
    pub fn displaced(&self) -> Option<&Displaced> {
        self.writers.displaced.as_ref()
    }

    /// Returns true if any writer was replaced. The data that the writer had not uploaded is missing, even if
    /// the volume is empty.
    pub fn was_replaced(&self) -> bool {
        self.writers.replaced
    }

    /// Returns the nonce of the volume's create record.
    pub fn identity(&self) -> Nonce {
        self.identity
    }

    /// Returns the last record that the writer of this attach can have created: the one before the next
    /// attach, or the end of the log. `None` if the attach is not in the log.
    pub fn last_of(&self, epoch: Epoch, nonce: Nonce) -> Option<Seq> {
        Some(self.writers.next_after(epoch, nonce)?.map_or(self.seq, |next| Seq(next.seq.0 - 1)))
    }

    /// Returns true if a writer with one of `nonces` committed data that a durable map of `generation`
    /// lacks: that map is older than the log.
    pub fn is_beyond(&self, nonces: &[Nonce], generation: u64) -> bool {
        nonces.contains(&self.covered.writer) && self.covered.generation > generation
    }

    /// Returns the sides of the newest writer that its commits invalidated.
    pub fn invalidated(&self) -> SideSet {
        self.invalidated
    }

    /// Returns true if the volume was created and not deleted.
    pub fn exists(&self) -> bool {
        self.seq >= Seq::FIRST && !self.deleted
    }

    /// Returns true if the log ends in the volume's tombstone.
    pub fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Returns those of `chunks` in which the volume has no data yet.
    pub fn not_held(&self, chunks: ChunkSet) -> ChunkSet {
        chunks.minus(&self.holds)
    }

    /// Returns false if the volume holds no data in `chunk`: all of it reads as zeros.
    pub fn may_hold(&self, chunk: Chunk) -> bool {
        self.holds.contains(chunk)
    }

    /// Returns the volume's runs, newest first.
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Returns true if no later record can add an object with this place.
    pub fn is_passed(&self, place: Place) -> bool {
        self.deleted || place.seq().map_or(place < self.closed, |last| last <= self.seq)
    }

    /// Returns the place of the first merge of a process, beyond the places of all merges that an earlier
    /// process may have begun since its last record.
    pub fn first_place_of_process(&self) -> Place {
        const BEGUN_AT_MOST: u64 = 1024;
        let known = self.closed.max(self.newest_merge.next());
        Place::from_stored(known.stored().saturating_add(BEGUN_AT_MOST))
    }

    /// Returns true for a fork that is not confirmed in the log yet: its log contains only its creation.
    pub fn is_unconfirmed(&self) -> bool {
        self.exists() && self.seq == Seq::FIRST && !self.lineage().ancestors().is_empty()
    }

    /// Returns the registered snapshots, oldest first, including forgotten ones that were not dropped yet.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// Returns true if the control plane may change the list of snapshots: no writer extends the log.
    pub fn takes_control_records(&self) -> bool {
        self.exists() && !(self.writers.attached && safeguard(ControlOnlyDetached))
    }

    /// Returns true if the attach of `epoch` is the one of `writer`, or too old to be remembered. Before
    /// its first attach the volume has epoch zero.
    pub fn has_attach(&self, epoch: Epoch, writer: Nonce) -> bool {
        self.writers.has_attach(epoch, writer)
    }

    /// Returns true if every attach after `epoch` carries one of `nonces`: local dirty data of that epoch is
    /// still the volume's newest.
    pub fn is_ours_since(&self, epoch: Epoch, nonces: &[Nonce]) -> bool {
        self.writers.are_all_of(epoch, nonces)
    }

    /// Returns true if the record at `seq` is unneeded once this manifest is stored as a checkpoint.
    ///
    /// The record that created the volume stays, so that it cannot be created again; so does every attach
    /// record, because a fenced writer tries to create its next record at that position.
    pub fn may_be_truncated(&self, seq: Seq) -> bool {
        let is_attach = safeguard(KeepAttachRecords) && self.writers.has_attach_at(seq);
        seq > Seq::FIRST && seq <= self.seq && !self.writers.forgot(seq) && !is_attach
    }

    /// Returns a fork of the snapshot with this root; `None` if it would have too many ancestors.
    pub fn fork(&self) -> Option<Fork> {
        let snapshot = SnapshotName { volume: self.volume().clone(), seq: self.seq };
        Fork::of(snapshot, self.lineage(), self.sectors, &self.runs, self.holds.clone())
    }

    /// Returns the bytes of the checkpoint as of [`Manifest::seq`].
    pub fn encode_checkpoint(&self) -> Vec<u8> {
        let mut out = Vec::new();
        wire::put_text(&mut out, self.volume().as_str());
        put_ancestors(self.lineage().ancestors(), &mut out);
        out.extend_from_slice(&self.seq.0.to_le_bytes());
        out.extend_from_slice(&self.data_seq.0.to_le_bytes());
        out.extend_from_slice(&self.sectors.to_le_bytes());
        let replaced = if self.writers.replaced { REPLACED } else { 0 };
        let had_snapshots = if self.had_snapshots { HAD_SNAPSHOTS } else { 0 };
        out.push(u8::from(self.writers.attached) | (self.invalidated.bits() << 1) | replaced | had_snapshots);
        out.push(u8::from(self.deleted));
        out.extend_from_slice(&self.identity.0);
        self.writers.put_newest(&mut out);
        out.extend_from_slice(&self.covered.writer.0);
        out.extend_from_slice(&self.covered.generation.to_le_bytes());
        self.writers.put_attaches(&mut out);
        put_runs(&self.runs, &mut out);
        self.holds.put(&mut out);
        out.extend_from_slice(&self.closed.stored().to_le_bytes());
        out.extend_from_slice(&self.newest_merge.stored().to_le_bytes());
        Snapshot::put_all(&self.snapshots, &mut out);
        wire::enclose(Kind::Checkpoint, &out)
    }

    /// Returns the bytes of the root of a snapshot at [`Manifest::seq`]: a checkpoint with only the
    /// content of the volume. Every process that derives the root from the same state thus gets the same
    /// bytes.
    pub fn encode_root(&self) -> Vec<u8> {
        let Self { seq, data_seq, sectors, identity, runs, holds, .. } = self.clone();
        let nothing = Self::empty(self.volume().clone());
        Self { seq, data_seq, sectors, identity, runs, holds, ..nothing }.encode_checkpoint()
    }

    /// Returns the state for a detach record, equal to the state that results from reading its checkpoint.
    pub(crate) fn as_root(&self) -> Self {
        let runs = if safeguard(RootNamesAllRuns) {
            self.runs.clone()
        } else {
            self.runs.with(self.runs.iter().skip(1).cloned().collect::<Vec<_>>())
        };
        Self { runs, checkpointed: self.seq, ..self.clone() }
    }

    /// Reads a stored checkpoint.
    ///
    /// # Errors
    /// [`DecodeError`] names the defect.
    pub fn decode_checkpoint(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Reader::new(WHAT, wire::open(Kind::Checkpoint, WHAT, bytes)?);
        let name = fields.text()?;
        let volume =
            VolumeId::try_from(name).map_err(|bad| fields.bad("volume id length", bad.0.len() as u64))?;
        let mut manifest = Self::empty(volume.clone());
        let lineage = take_lineage(volume, &mut fields)?;
        manifest.seq = Seq(fields.u64()?);
        manifest.checkpointed = manifest.seq;
        manifest.data_seq = Seq(fields.u64()?);
        if manifest.data_seq > manifest.seq {
            return Err(fields.bad("data seq", manifest.data_seq.0));
        }
        manifest.sectors = fields.u64()?;
        if manifest.sectors > MAX_SECTORS {
            return Err(fields.bad("sectors", manifest.sectors));
        }
        let flags = fields.u8()?;
        manifest.had_snapshots = flags & HAD_SNAPSHOTS != 0;
        manifest.invalidated = SideSet::from_bits((flags & !(REPLACED | HAD_SNAPSHOTS)) >> 1)
            .ok_or_else(|| fields.bad("flags", u64::from(flags)))?;
        manifest.deleted = fields.u8()? != 0;
        manifest.identity = Nonce(fields.array()?);
        let mut writers = Writers::take_newest(&mut fields)?;
        writers.attached = flags & 1 != 0;
        writers.replaced = flags & REPLACED != 0;
        manifest.covered = Covered { writer: Nonce(fields.array()?), generation: fields.u64()? };
        writers.take_attaches(&mut fields)?;
        manifest.writers = writers;
        let chunks = manifest.sectors.div_ceil(CHUNK_SECTORS);
        let list = take_runs(&mut fields, chunks, lineage.ancestors().len())?;
        manifest.runs = Runs::new(Arc::new(lineage), list);
        manifest.holds = ChunkSet::take(&mut fields, chunks)?;
        manifest.closed = Place::from_stored(fields.u64()?);
        manifest.newest_merge = Place::from_stored(fields.u64()?);
        manifest.snapshots = Snapshot::take_all(&mut fields, manifest.seq)?;
        fields.end()?;
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests;
