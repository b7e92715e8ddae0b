//! Forks: volumes that begin with the content of another volume's snapshot.
//!
//! The create record of a fork contains the list of runs from the snapshot's root. Nothing is copied: the
//! runs and their segments stay objects of the *ancestors*, and an id says how many forks away its owner is
//! ([`PlacedId::owner`]). An id in an object of an ancestor counts from that ancestor.
//!
//! ```text
//! u8 length + text volume id, u64 seq     the snapshot
//! u8 n, n x (u8 length + text volume id)  the ancestors of the snapshot's volume, nearest first
//! u64 sectors of the snapshot
//! u32 n, n x (u8 0 and segment reference, or u8 1 and run reference)    runs, newest first
//! set of chunks (`chunk_set`): those that hold data
//! ```
//!
//! [`PlacedId::owner`]: holdfast_types::PlacedId

use std::sync::Arc;

use holdfast_types::{CHUNK_SECTORS, Lineage, Seq, SnapshotName, VolumeId};

use crate::chunk_set::ChunkSet;
use crate::index::{Run, RunRef};
use crate::limit::MAX_SECTORS;
use crate::segment::SegmentRef;
use crate::wire::{self, DecodeError, Reader};

/// The initial content of a fork.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fork {
    /// The snapshot from which it was forked.
    pub snapshot: SnapshotName,
    /// The ancestors of the snapshot's volume, nearest first.
    ancestors: Vec<VolumeId>,
    /// Logical size of the snapshot.
    pub sectors: u64,
    /// Newest first; none of them belongs to the fork itself.
    pub(crate) runs: Arc<[Run]>,
    /// Chunks that hold data.
    pub(crate) holds: ChunkSet,
}

impl Fork {
    /// Creates a fork of a snapshot with these contents; `None` if it has too many ancestors.
    pub(crate) fn of(
        snapshot: SnapshotName,
        lineage: &Lineage,
        sectors: u64,
        runs: &[Run],
        holds: ChunkSet,
    ) -> Option<Self> {
        let ancestors = lineage.ancestors().to_vec();
        if ancestors.len() >= Lineage::MAX_ANCESTORS {
            return None;
        }
        let runs = runs.iter().map(inherited).collect::<Option<Vec<Run>>>()?;
        Some(Self { snapshot, ancestors, sectors, runs: runs.into(), holds })
    }

    /// Returns the lineage of the volume that begins as this fork; `None` if it is too long.
    pub(crate) fn lineage(&self, volume: VolumeId) -> Option<Lineage> {
        let mut ancestors = vec![self.snapshot.volume.clone()];
        ancestors.extend_from_slice(&self.ancestors);
        Lineage::with_ancestors(volume, ancestors)
    }

    /// Returns the volumes whose objects the fork reads, nearest first.
    pub fn ancestors(&self) -> impl Iterator<Item = &VolumeId> {
        std::iter::once(&self.snapshot.volume).chain(&self.ancestors)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        wire::put_text(out, self.snapshot.volume.as_str());
        out.extend_from_slice(&self.snapshot.seq.0.to_le_bytes());
        put_ancestors(&self.ancestors, out);
        out.extend_from_slice(&self.sectors.to_le_bytes());
        put_runs(&self.runs, out);
        self.holds.put(out);
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (volume, seq) = (take_volume(fields)?, Seq(fields.u64()?));
        let ancestors = take_ancestors(fields)?;
        if ancestors.len() >= Lineage::MAX_ANCESTORS {
            return Err(fields.bad("number of ancestors", ancestors.len() as u64));
        }
        let sectors = fields.u64()?;
        if sectors > MAX_SECTORS {
            return Err(fields.bad("sectors of the snapshot", sectors));
        }
        let chunks = sectors.div_ceil(CHUNK_SECTORS);
        let runs = take_runs(fields, chunks, ancestors.len() + 1)?;
        if let Some(own) = runs.iter().find(|run| run.id().owner == 0) {
            return Err(fields.bad("place of an inherited run", own.id().place.stored()));
        }
        let holds = ChunkSet::take(fields, chunks)?;
        Ok(Self { snapshot: SnapshotName { volume, seq }, ancestors, sectors, runs, holds })
    }
}

/// Returns a run of a snapshot, renamed for a fork.
fn inherited(run: &Run) -> Option<Run> {
    Some(match run {
        Run::Segment(segment) => {
            Run::Segment(Arc::new(SegmentRef { id: segment.id.inherited(1)?, ..SegmentRef::clone(segment) }))
        }
        Run::Merged(run) => Run::Merged(Arc::new(RunRef { id: run.id.inherited(1)?, ..RunRef::clone(run) })),
    })
}

pub(crate) fn take_volume(fields: &mut Reader<'_>) -> Result<VolumeId, DecodeError> {
    let name = fields.text()?;
    VolumeId::try_from(name).map_err(|bad| fields.bad("volume id length", bad.0.len() as u64))
}

pub(crate) fn put_ancestors(ancestors: &[VolumeId], out: &mut Vec<u8>) {
    out.push(u8::try_from(ancestors.len()).expect("MAX_ANCESTORS fits"));
    ancestors.iter().for_each(|volume| wire::put_text(out, volume.as_str()));
}

fn take_ancestors(fields: &mut Reader<'_>) -> Result<Vec<VolumeId>, DecodeError> {
    (0..fields.u8()?).map(|_| take_volume(fields)).collect()
}

/// Reads the lineage of `volume` that [`put_ancestors`] wrote.
pub(crate) fn take_lineage(volume: VolumeId, fields: &mut Reader<'_>) -> Result<Lineage, DecodeError> {
    let ancestors = take_ancestors(fields)?;
    let count = ancestors.len() as u64;
    Lineage::with_ancestors(volume, ancestors).ok_or_else(|| fields.bad("number of ancestors", count))
}

pub(crate) fn put_runs(runs: &[Run], out: &mut Vec<u8>) {
    let count = u32::try_from(runs.len()).expect("fewer than 2^32 runs");
    out.extend_from_slice(&count.to_le_bytes());
    runs.iter().for_each(|run| run.put(out));
}

/// Reads the runs of a volume with `chunks` chunks and `ancestors` ancestors.
pub(crate) fn take_runs(
    fields: &mut Reader<'_>,
    chunks: u64,
    ancestors: usize,
) -> Result<Arc<[Run]>, DecodeError> {
    let count = fields.count(Run::MIN_BYTES)?;
    let mut runs = Vec::with_capacity(count);
    for _ in 0..count {
        let run = Run::take(fields)?;
        if let Some((first, _)) = run.chunk_ranges().range_beyond(chunks) {
            return Err(fields.bad("chunk of a run", u64::from(first)));
        }
        if usize::from(run.id().owner) > ancestors {
            return Err(fields.bad("owner of a run", u64::from(run.id().owner)));
        }
        runs.push(run);
    }
    Ok(runs.into())
}
