//! Sectors with content in a snapshot, and sectors changed between two snapshots of a volume.
//!
//! Reads only indexes, no data, and only for chunks whose runs differ. Unchanged sectors are detected by the
//! hashes of their frames.

use std::ops::Range;

use holdfast_format::compose::Composition;
use holdfast_format::index::Run;
use holdfast_format::manifest::Manifest;
use holdfast_objects::ObjectStore;
use holdfast_types::{BLOCK_SECTORS, Block, CHUNK_BLOCKS, Chunk, Mask, PlacedId, Sector, SectorRange};

use crate::indexes::{Indexes, ObjectError};

/// Sectors of the target that a backup of the base lacks; without a base, all sectors with content.
#[derive(Debug)]
pub struct Changes {
    base: Option<Manifest>,
    target: Manifest,
}

impl Changes {
    /// Selects the whole content of the snapshot with this root.
    pub fn all_of(target: Manifest) -> Self {
        Self { base: None, target }
    }

    /// Selects the difference between two snapshots of one volume, given by their roots.
    ///
    /// # Panics
    /// If they belong to different volumes: the same name would refer to different objects.
    pub fn between(base: Manifest, target: Manifest) -> Self {
        assert_eq!(base.volume(), target.volume(), "both are of one volume");
        Self { base: Some(base), target }
    }

    /// Returns the number of sectors of the target.
    pub fn sectors(&self) -> u64 {
        self.target.sectors()
    }

    /// Returns the chunks that may differ, starting with the one of sector `first`.
    pub fn chunks(&self, first: Sector) -> impl Iterator<Item = Chunk> {
        let end = Sector(self.sectors().saturating_sub(1)).chunk().0;
        (first.chunk().0..=end).map(Chunk).filter(|chunk| self.may_differ(*chunk))
    }

    fn may_differ(&self, chunk: Chunk) -> bool {
        let is_held = |root: &Manifest| root.may_hold(chunk);
        let Some(base) = &self.base else { return is_held(&self.target) };
        match (is_held(base), is_held(&self.target)) {
            (false, false) => false,
            (true, true) => !runs_of(base, chunk).eq(runs_of(&self.target, chunk)),
            (true, false) | (false, true) => true,
        }
    }

    /// Returns the sectors of `chunk` that differ, as ascending, disjoint runs. Sectors that a merge moved
    /// between the snapshots may be included although their bytes are the same.
    ///
    /// # Errors
    /// [`ObjectError`] if a part of an index is unavailable or damaged.
    pub async fn in_chunk(
        &self,
        objects: &dyn ObjectStore,
        indexes: &Indexes,
        chunk: Chunk,
    ) -> Result<Vec<SectorRange>, ObjectError> {
        let volume = SectorRange::new(0, self.sectors());
        let mut changed: Vec<SectorRange> = Vec::new();
        for block in blocks_of(chunk).map(Block) {
            let new = composed(objects, indexes, &self.target, block).await?;
            let mask = match &self.base {
                Some(base) => new.changed_since(&composed(objects, indexes, base, block).await?),
                None => new.held(),
            };
            let first = block.first_sector().0;
            let runs = mask.runs().map(|(bit, count)| SectorRange::new(first + u64::from(bit), count.into()));
            for run in runs.filter_map(|run| run.intersect(volume)) {
                match changed.last_mut().filter(|last| last.end() == run.start.0) {
                    Some(last) => last.sectors += run.sectors,
                    None => changed.push(run),
                }
            }
        }
        Ok(changed)
    }
}

fn blocks_of(chunk: Chunk) -> Range<u64> {
    let first = chunk.first_sector().0 / BLOCK_SECTORS;
    first..first + CHUNK_BLOCKS
}

/// Returns the runs that may have entries for `chunk`, newest first.
fn runs_of(root: &Manifest, chunk: Chunk) -> impl Iterator<Item = PlacedId> {
    root.runs().iter().filter(move |run| run.chunk_ranges().may_hold(chunk)).map(Run::id)
}

async fn composed(
    objects: &dyn ObjectStore,
    indexes: &Indexes,
    root: &Manifest,
    block: Block,
) -> Result<Composition, ObjectError> {
    let runs = root.runs();
    if root.may_hold(block.chunk()) {
        indexes.compose(objects, block, Mask::FULL, runs).await
    } else {
        indexes.compose(objects, block, Mask::FULL, &runs.with([])).await
    }
}
