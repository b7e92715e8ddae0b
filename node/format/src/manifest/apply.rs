//! Applying the records of a log to a volume's state, in order.
//!
//! Invariants: records apply without a gap; an epoch never falls; no segment reaches beyond the volume; an
//! object is added only by a record that its place allows; a deleted volume accepts no more records.
//! On failure: the state is unchanged.

use std::sync::Arc;

use holdfast_types::{CHUNK_SECTORS, Epoch, Place, PlacedId, Seq, SnapshotUid, VolumeId};

use super::Manifest;
use super::writers::LoggedAttach;
use crate::chunk_set::ChunkSet;
use crate::fork::Fork;
use crate::index::{Run, Runs};
use crate::limit::MAX_SECTORS;
use crate::record::{Body, Merge, Record};
use crate::safeguard::{
    Safeguard::{AddOnlyOwn, NewestSegmentFirst},
    safeguard,
};
use crate::segment::SegmentRef;
use crate::side::SideSet;
use crate::snapshot::{Snapshot, SnapshotChange};

/// Reason why a record cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The record is of another volume.
    #[error("log record {seq} belongs to volume {found}, not {expected}")]
    Volume {
        /// The record's sequence number.
        seq: Seq,
        /// The record's volume.
        found: VolumeId,
        /// The volume whose log contains it.
        expected: VolumeId,
    },
    /// A record is missing, or is stored under another record's key.
    #[error("log record {expected} is missing: found {found} in its place")]
    Gap {
        /// The seq that must follow.
        expected: Seq,
        /// The seq found.
        found: Seq,
    },
    /// The log does not begin with the volume's creation.
    #[error("log record {0} comes before the volume was created")]
    NotCreated(Seq),
    /// The volume is created twice.
    #[error("log record {0} creates the volume a second time")]
    CreatedTwice(Seq),
    /// A record of a writer that does not hold the volume.
    #[error("log record {seq} has epoch {found}, but epoch {current} holds the volume")]
    Epoch {
        /// The record's sequence number.
        seq: Seq,
        /// The record's epoch.
        found: Epoch,
        /// The epoch that holds the volume.
        current: Epoch,
    },
    /// The volume was deleted.
    #[error("the volume was deleted; log record {0} comes after its tombstone")]
    Deleted(Seq),
    /// The size decreased.
    #[error("log record {seq} shrinks the volume from {from} to {to} sectors")]
    Shrunk {
        /// The record's sequence number.
        seq: Seq,
        /// Sectors before.
        from: u64,
        /// Sectors after.
        to: u64,
    },
    /// The formats limit volumes to fewer sectors.
    #[error("log record {seq} gives the volume {sectors} sectors, more than the maximum of {MAX_SECTORS}")]
    TooLarge {
        /// The record's sequence number.
        seq: Seq,
        /// Its sectors.
        sectors: u64,
    },
    /// An object is added after the log has passed its place.
    #[error("log record {seq} adds {object}, whose place the log has passed")]
    Place {
        /// The record's sequence number.
        seq: Seq,
        /// The object's id.
        object: Box<PlacedId>,
    },
    /// An object of another volume is added.
    #[error("log record {seq} adds {object} of another volume")]
    Foreign {
        /// The record's sequence number.
        seq: Seq,
        /// The object's id.
        object: Box<PlacedId>,
    },
    /// A fork is smaller than its snapshot, has too many ancestors, or has its own objects.
    #[error("log record {0} creates an invalid fork")]
    Fork(Seq),
    /// A record of the control plane changes more than the list of snapshots.
    #[error("log record {0} has no writer and changes more than the list of snapshots")]
    Control(Seq),
    /// The snapshot is already registered, exceeds the maximum, or is dropped without being registered.
    #[error("log record {0} makes an invalid change to the list of snapshots")]
    Snapshots(Seq),
    /// A merge of runs that are not in the list, or not in this order.
    #[error("log record {seq} merges runs into {output} that are not neighbours of the list")]
    Merge {
        /// The record's sequence number.
        seq: Seq,
        /// The id of the merge's output.
        output: Box<PlacedId>,
    },
    /// A segment or run of chunks is beyond the end of the volume.
    #[error("log record {seq} commits chunks from {first} on, but the volume has {chunks} chunks")]
    BeyondEnd {
        /// The record's sequence number.
        seq: Seq,
        /// The first chunk of the run.
        first: u32,
        /// Chunks of the volume.
        chunks: u64,
    },
}

impl Manifest {
    /// Applies the next record (invariant 11).
    ///
    /// # Errors
    /// [`LogError`] if the record cannot follow; the manifest is unchanged.
    pub fn apply(&mut self, record: &Record) -> Result<(), LogError> {
        self.check_place(record)?;
        let (seq, current) = (record.seq, self.epoch());
        let wrong_epoch = LogError::Epoch { seq, found: record.epoch, current };
        match &record.body {
            Body::Create { sectors, .. }
            | Body::Attach { sectors, .. }
            | Body::Change { sectors: Some(sectors), .. }
                if *sectors > MAX_SECTORS =>
            {
                return Err(LogError::TooLarge { seq, sectors: *sectors });
            }
            Body::Create { sectors, source, labels: _ } => {
                self.create(record, *sectors, source.as_deref())?
            }
            Body::Attach { .. } if record.epoch <= current => return Err(wrong_epoch),
            Body::Attach { sectors, node, displaced } => {
                self.check_size(seq, *sectors)?;
                self.sectors = *sectors;
                // An attach moves the invalidated sides to the node's header.
                self.invalidated = SideSet::NONE;
                let attach = LoggedAttach { epoch: record.epoch, nonce: record.nonce, seq };
                self.writers.attach(attach, record.unix_ms, node, displaced.as_ref());
                self.closed = self.closed.max(Place::first_merge(record.epoch));
            }
            Body::Change { snapshots, .. } if record.epoch == Epoch(0) && self.takes_control_records() => {
                self.control(record, snapshots)?;
            }
            Body::Change { .. } | Body::Detach { .. }
                if record.epoch != current || !self.writers.attached =>
            {
                return Err(wrong_epoch);
            }
            Body::Change {
                segments,
                chunks,
                invalidated,
                generation,
                merges,
                closed,
                snapshots,
                sectors,
            } => {
                let sectors = sectors.unwrap_or(self.sectors);
                self.check_size(seq, sectors)?;
                self.check_segments(seq, sectors, segments, chunks)?;
                let listed = self.with_snapshots(record, sectors, snapshots)?;
                self.runs = self.with_merges(seq, merges)?;
                self.sectors = sectors;
                self.closed = self.closed.max(*closed);
                let carried = merges.iter().map(|merge| merge.output.id.place());
                self.newest_merge = carried.fold(self.newest_merge, Place::max);
                self.snapshots = listed;
                self.had_snapshots |= snapshots.taken.is_some();
                self.holds.add_all(chunks);
                self.invalidated = self.invalidated.or(*invalidated);
                self.add_segments(record, segments, *generation);
            }
            Body::Detach { .. } => {
                self.writers.attached = false;
                self.closed = self.closed.max(Place::first_merge(current.next()));
            }
            Body::Delete => {
                self.deleted = true;
                self.writers.attached = false;
            }
        }
        self.seq = seq;
        Ok(())
    }

    /// Checks that a record is the next one of this volume.
    fn check_place(&self, record: &Record) -> Result<(), LogError> {
        let seq = record.seq;
        if record.volume != *self.volume() {
            return Err(LogError::Volume {
                seq,
                found: record.volume.clone(),
                expected: self.volume().clone(),
            });
        }
        if seq != self.seq.next() {
            return Err(LogError::Gap { expected: self.seq.next(), found: seq });
        }
        if self.deleted {
            return Err(LogError::Deleted(seq));
        }
        let is_create = matches!(record.body, Body::Create { .. });
        if (seq == Seq::FIRST) != is_create {
            return Err(if is_create { LogError::CreatedTwice(seq) } else { LogError::NotCreated(seq) });
        }
        Ok(())
    }

    fn create(&mut self, record: &Record, sectors: u64, source: Option<&Fork>) -> Result<(), LogError> {
        if let Some(fork) = source {
            self.inherit(fork, sectors)?;
        }
        self.sectors = sectors;
        self.identity = record.nonce;
        self.data_seq = record.seq;
        Ok(())
    }

    /// Applies a record of the control plane.
    fn control(&mut self, record: &Record, snapshots: &SnapshotChange) -> Result<(), LogError> {
        if record.body != Body::of_snapshots(snapshots.clone()) {
            return Err(LogError::Control(record.seq));
        }
        self.snapshots = self.with_snapshots(record, self.sectors, snapshots)?;
        self.had_snapshots |= snapshots.taken.is_some();
        Ok(())
    }

    /// Begins the volume with the content of another volume's snapshot.
    fn inherit(&mut self, fork: &Fork, sectors: u64) -> Result<(), LogError> {
        let volume = self.volume().clone();
        let lineage = fork.lineage(volume).filter(|_| sectors >= fork.sectors);
        let lineage = lineage.ok_or(LogError::Fork(Seq::FIRST))?;
        self.runs = Runs::new(Arc::new(lineage), Arc::clone(&fork.runs));
        self.holds = fork.holds.clone();
        Ok(())
    }

    /// # Errors
    /// [`LogError::Shrunk`] if the volume is larger than the size in the record at `seq`.
    fn check_size(&self, seq: Seq, sectors: u64) -> Result<(), LogError> {
        if sectors < self.sectors {
            return Err(LogError::Shrunk { seq, from: self.sectors, to: sectors });
        }
        Ok(())
    }

    /// # Errors
    /// [`LogError`] if the record at `seq`, with which the volume has `sectors`, cannot add one of
    /// `segments`, or the chunks `held`.
    fn check_segments(
        &self,
        seq: Seq,
        sectors: u64,
        segments: &[SegmentRef],
        held: &ChunkSet,
    ) -> Result<(), LogError> {
        let chunks = sectors.div_ceil(CHUNK_SECTORS);
        if held.end() > chunks {
            let first = u32::try_from(held.end() - 1).expect("a set has at most 2^22 chunks");
            return Err(LogError::BeyondEnd { seq, first, chunks });
        }
        for segment in segments {
            check_added(seq, segment.id.0, |place| place.seq().is_some_and(|last| last >= seq))?;
            if let Some((first, _)) = segment.chunks.range_beyond(chunks) {
                return Err(LogError::BeyondEnd { seq, first, chunks });
            }
        }
        Ok(())
    }

    /// Checks that the next record can carry `merges`.
    ///
    /// # Errors
    /// [`LogError`] if it cannot.
    pub fn check_merges(&self, merges: &[Merge]) -> Result<(), LogError> {
        self.with_merges(self.seq.next(), merges).map(drop)
    }

    /// Returns the list of snapshots after `record` with this change; the volume then has `sectors`.
    fn with_snapshots(
        &self,
        record: &Record,
        sectors: u64,
        change: &SnapshotChange,
    ) -> Result<Vec<Snapshot>, LogError> {
        let Record { seq, unix_ms, .. } = *record;
        let own = Snapshot { seq, uid: SnapshotUid([0; 16]), unix_ms, sectors };
        change.applied(&self.snapshots, own).ok_or(LogError::Snapshots(seq))
    }

    /// Returns the list with each merge's output in place of its inputs.
    ///
    /// # Errors
    /// [`LogError`] if the record at `seq` cannot carry one of `merges`.
    fn with_merges(&self, seq: Seq, merges: &[Merge]) -> Result<Runs, LogError> {
        let chunks = self.sectors.div_ceil(CHUNK_SECTORS);
        let mut runs = Runs::clone(&self.runs);
        for Merge { newest, oldest, output } in merges {
            check_added(seq, output.id.0, |place| place.seq().is_none() && place >= self.closed)?;
            if let Some((first, _)) = output.chunks.range_beyond(chunks) {
                return Err(LogError::BeyondEnd { seq, first, chunks });
            }
            let place_of = |id: &PlacedId| runs.iter().position(|run| run.id() == *id);
            let inputs = place_of(newest).zip(place_of(oldest)).filter(|(newest, oldest)| newest < oldest);
            let Some((newest, oldest)) = inputs else {
                return Err(LogError::Merge { seq, output: Box::new(output.id.0) });
            };
            let (newer, older) = (&runs[..newest], &runs[oldest + 1..]);
            let merged = [Run::Merged(Arc::new(output.clone()))];
            runs = runs.with(newer.iter().chain(&merged).chain(older).cloned().collect::<Vec<_>>());
        }
        Ok(runs)
    }

    /// Adds the segments of a record, which cover the data of its writer up to this generation of its map.
    fn add_segments(&mut self, record: &Record, segments: &[SegmentRef], generation: u64) {
        for segment in segments {
            self.add_segment(Arc::new(segment.clone()));
            self.data_seq = record.seq;
        }
        // A record with only merges has no data that a map could lack.
        if !segments.is_empty() {
            self.covered = self.covered.after(record.nonce, generation);
        }
    }

    fn add_segment(&mut self, segment: Arc<SegmentRef>) {
        if segment.chunks.is_exact() {
            self.holds.insert(&segment.chunks);
        }
        let newest = [Run::Segment(segment)];
        let list: Vec<Run> = if safeguard(NewestSegmentFirst) {
            newest.iter().chain(&*self.runs).cloned().collect()
        } else {
            self.runs.iter().chain(&newest).cloned().collect()
        };
        self.runs = self.runs.with(list);
    }

    /// Returns the state after the detach record `record`, which has this root. `checkpointed` is the
    /// newest known checkpoint: records are counted from it, as after any other way to read the log.
    ///
    /// # Errors
    /// Those of [`Manifest::apply`].
    pub fn detached_by(mut self, record: &Record, checkpointed: Seq) -> Result<Self, LogError> {
        self.checkpointed = checkpointed;
        self.apply(record)?;
        Ok(self)
    }
}

/// Checks that the record at `seq` can add `object`.
fn check_added(seq: Seq, object: PlacedId, is_open: impl Fn(Place) -> bool) -> Result<(), LogError> {
    if !is_open(object.place) {
        return Err(LogError::Place { seq, object: Box::new(object) });
    }
    if object.owner > 0 && safeguard(AddOnlyOwn) {
        return Err(LogError::Foreign { seq, object: Box::new(object) });
    }
    Ok(())
}
