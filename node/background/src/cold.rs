//! Blocks out of the object store: which frames make one up, and their bytes.
//!
//! Owns: the segment indexes kept in memory, the fetching of frames, what is tried again. Nothing is handed out that
//! fails its checksum (invariant 3). Does not own: where a block's bytes are kept.
//! On failure: a store that is away is asked again until it answers; a damaged or missing object fails the reads of what it
//! alone holds, and is named.

use std::io;
use std::sync::Arc;

use futures::future::try_join_all;
use holdfast_engine::DecodeError;
use holdfast_engine::compose::{Composition, Piece, compose, place};
use holdfast_engine::manifest::Layers;
use holdfast_engine::planted::{Bug, is_planted};
use holdfast_engine::record::SegmentRef;
use holdfast_engine::segment::{FrameError, FrameIndex, unpack};
use holdfast_objects::{ErrorKind, ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Block, Mask, SectorRange, SegmentId, VolumeId};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::TimeAndChance;
use crate::backoff::Backoff;

/// Why a cold read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColdError {
    /// An object could not be read.
    #[error("object {key}")]
    Store {
        /// Its key.
        key: String,
        /// Why not.
        #[source]
        source: StoreError,
    },
    /// A segment's index is damaged.
    #[error("object {key} is damaged")]
    Index {
        /// The segment's key.
        key: String,
        /// How.
        #[source]
        source: DecodeError,
    },
    /// A frame is damaged.
    #[error("object {key} is damaged")]
    Frame {
        /// The segment's key.
        key: String,
        /// How.
        #[source]
        source: FrameError,
    },
    /// The fetched block could not be kept.
    #[error("the slab could not be written")]
    Slab(#[from] io::Error),
}

impl ColdError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Store { source, .. } => match source.kind() {
                // Credentials can be mended while the read waits.
                ErrorKind::Throttled | ErrorKind::Unavailable | ErrorKind::Conflict | ErrorKind::Denied => {
                    true
                }
                ErrorKind::NotFound
                | ErrorKind::Invalid
                | ErrorKind::Corrupt
                | ErrorKind::Ambiguous
                | ErrorKind::Exists => false,
            },
            Self::Slab(_) => true,
            Self::Index { .. } | Self::Frame { .. } => false,
        }
    }
}

/// Tries a read of all of `range`'s block until it succeeds or asking again cannot help; then one of `range` alone, which may
/// not need what is damaged. `read` is told which sectors to read.
///
/// # Errors
/// [`ColdError`] where asking again cannot help.
pub async fn patiently<V, F: Future<Output = Result<V, ColdError>>>(
    time: &impl TimeAndChance,
    volume: &VolumeId,
    range: SectorRange,
    read: impl Fn(Mask) -> F,
) -> Result<V, ColdError> {
    let mut backoff = Backoff::of_reads();
    let mut wanted = Mask::FULL;
    loop {
        match read(wanted).await {
            Err(error) if error.is_transient() => {
                let block = range.start.block().0;
                tracing::warn!(%volume, block, error = &error as &dyn std::error::Error, "cold read waits");
                backoff.wait(time).await;
            }
            Err(_) if wanted != Mask::of(range) && !is_planted(Bug::WholeBlockFails) => {
                wanted = Mask::of(range);
            }
            done => return done,
        }
    }
}

#[derive(Debug, Clone)]
struct IndexBytes;

impl Weighter<SegmentId, Arc<FrameIndex>> for IndexBytes {
    fn weight(&self, _id: &SegmentId, index: &Arc<FrameIndex>) -> u64 {
        (index.weight() as u64).max(64)
    }
}

/// Segment indexes kept in memory.
pub struct Indexes(Cache<SegmentId, Arc<FrameIndex>, IndexBytes>);

impl Indexes {
    /// Keeps at most `bytes` of them; `expected` is how many those may be.
    pub fn new(expected: usize, bytes: u64) -> Self {
        Self(Cache::with_weighter(expected, bytes, IndexBytes))
    }

    /// The frames that make up the sectors `wanted` of `block` as `layers` compose it.
    ///
    /// # Errors
    /// [`ColdError`], when an index cannot be had.
    pub async fn compose(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        block: Block,
        wanted: Mask,
        layers: &Layers,
    ) -> Result<Composition, ColdError> {
        let indexes = try_join_all(layers.iter().map(|segment| self.index(objects, volume, segment))).await?;
        Ok(compose(block, wanted, layers.iter().zip(indexes.iter().map(|index| &**index))))
    }

    async fn index(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        segment: &SegmentRef,
    ) -> Result<Arc<FrameIndex>, ColdError> {
        self.0
            .get_or_insert_async(&segment.id, async {
                let range = segment.index_offset..segment.index_offset + u64::from(segment.index_bytes);
                let bytes = objects
                    .get_range(&key(volume, segment), range)
                    .await
                    .map_err(|source| ColdError::Store { key: key(volume, segment), source })?;
                FrameIndex::decode(&bytes)
                    .map(Arc::new)
                    .map_err(|source| ColdError::Index { key: key(volume, segment), source })
            })
            .await
    }
}

/// Fills `block`, 128 KiB of zeros, as `plan` composes it.
///
/// # Errors
/// [`ColdError`], when a frame cannot be had or is not what was written.
pub async fn fetch(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    plan: &Composition,
    block: &mut [u8],
) -> Result<(), ColdError> {
    let frames = try_join_all(plan.pieces.iter().map(|piece| frame(objects, volume, piece))).await?;
    for (piece, stored) in plan.pieces.iter().zip(frames) {
        let plain = unpack(&piece.frame, &stored)
            .map_err(|source| ColdError::Frame { key: key(volume, &piece.segment), source })?;
        place(piece, &plain, block);
    }
    Ok(())
}

async fn frame(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    piece: &Piece,
) -> Result<bytes::Bytes, ColdError> {
    let range = piece.frame.offset..piece.frame.offset + u64::from(piece.frame.stored);
    objects
        .get_range(&key(volume, &piece.segment), range)
        .await
        .map_err(|source| ColdError::Store { key: key(volume, &piece.segment), source })
}

fn key(volume: &VolumeId, segment: &SegmentRef) -> String {
    ObjectKey::Segment(volume.clone(), segment.id).to_string()
}
