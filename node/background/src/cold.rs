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
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

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

/// Weighs an index by its bytes, and none as more than `most`: the cache refuses what is larger than itself.
#[derive(Debug, Clone)]
struct IndexBytes {
    most: u64,
}

impl Weighter<SegmentId, Arc<FrameIndex>> for IndexBytes {
    fn weight(&self, _id: &SegmentId, index: &Arc<FrameIndex>) -> u64 {
        (index.weight() as u64).clamp(64, self.most)
    }
}

/// Segment indexes kept in memory.
pub struct Indexes(Cache<SegmentId, Arc<FrameIndex>, IndexBytes>);

impl Indexes {
    /// Keeps at most `bytes` of them, at least 1024; `expected` is how many those may be. An index that is larger is kept
    /// alone: without it, each read of its segment would fetch all of it.
    ///
    /// The cache has one part, on any number of CPUs: it refuses what does not fit the share of a part.
    pub fn new(expected: usize, bytes: u64) -> Self {
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(expected)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are set");
        // A 32nd of it is for what was not read twice.
        let weighter = IndexBytes { most: bytes - bytes.div_ceil(16) };
        Self(Cache::with_options(
            options,
            weighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ))
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use holdfast_engine::segment::SegmentBuilder;
    use holdfast_objects::MemoryStore;

    use super::*;

    /// A segment of `frames` frames, in a store.
    fn stored(frames: u64) -> (MemoryStore, VolumeId, Layers) {
        let (store, volume): (_, VolumeId) = (MemoryStore::new(), "v".parse().unwrap());
        let mut builder = SegmentBuilder::default();
        for block in 0..frames {
            builder.push(Block(block), Mask(1), &[7; 4096]);
        }
        let (segment, object) = builder.finish(SegmentId::new(1, [0; 10]));
        let parts = vec![Bytes::from(object)];
        store.put_segment(&key(&volume, &segment), parts).now_or_never().unwrap().unwrap();
        (store, volume, [Arc::new(segment)].into())
    }

    /// What did not fit the share of one part of the cache, of which there were four for each CPU, was fetched for every
    /// read: 12 MiB with 8 CPUs, 3 MiB with 32.
    #[test]
    fn an_index_is_fetched_once_however_large() {
        const FRAMES: u64 = 12_000;
        let (store, volume, layers) = stored(FRAMES);
        let index_bytes = FRAMES * 48;
        for (cache_bytes, what) in
            [(2 * index_bytes, "half the cache"), (index_bytes / 4, "four times the cache")]
        {
            let indexes = Indexes::new(4096, cache_bytes);
            let before = store.counts().get;
            for block in 0..100 {
                let composed = indexes.compose(&store, &volume, Block(block), Mask::FULL, &layers);
                assert_eq!(composed.now_or_never().unwrap().unwrap().pieces.len(), 1);
            }
            assert_eq!(store.counts().get - before, 1, "an index of {what}");
        }
    }
}
