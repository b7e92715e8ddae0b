//! Cold reads: a block of the object store, through the slab.
//!
//! Owns: the cache of segment indexes and the fetching of frames. Nothing is served that fails its checksum.
//! On failure: a store that is away is asked again until it answers; a damaged or missing object fails the read and is
//! named in the log.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use holdfast_engine::DecodeError;
use holdfast_engine::compose::{Piece, compose, place};
use holdfast_engine::manifest::Layers;
use holdfast_engine::record::SegmentRef;
use holdfast_engine::segment::{FrameError, FrameIndex, unpack};
use holdfast_objects::{ErrorKind, ObjectStore, StoreError};
use holdfast_ring::HeapBuffer;
use holdfast_types::key::ObjectKey;
use holdfast_types::{BLOCK_BYTES, Block, SegmentId, VolumeId};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::slab::{Slab, SlabSlot};

/// Segment indexes kept in memory, in bytes.
const INDEX_CACHE_BYTES: u64 = 256 << 20;
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Why a cold read failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ColdError {
    #[error("object {key}")]
    Store {
        key: String,
        #[source]
        source: StoreError,
    },
    #[error("object {key} is damaged")]
    Index {
        key: String,
        #[source]
        source: DecodeError,
    },
    #[error("object {key} is damaged")]
    Frame {
        key: String,
        #[source]
        source: FrameError,
    },
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

#[derive(Debug, Clone)]
struct IndexBytes;

impl Weighter<SegmentId, Arc<FrameIndex>> for IndexBytes {
    fn weight(&self, _id: &SegmentId, index: &Arc<FrameIndex>) -> u64 {
        (index.weight() as u64).max(64)
    }
}

/// The node's cold reads.
pub(crate) struct ColdReads {
    slab: Slab,
    indexes: Cache<SegmentId, Arc<FrameIndex>, IndexBytes>,
}

impl ColdReads {
    pub(crate) fn new(slab: Slab) -> Self {
        Self { slab, indexes: Cache::with_weighter(4096, INDEX_CACHE_BYTES, IndexBytes) }
    }

    /// The slab slot that holds `block` as `layers` compose it.
    ///
    /// # Errors
    /// [`ColdError`] only where asking again cannot help.
    pub(crate) async fn block(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        block: Block,
        layers: &Layers,
    ) -> Result<SlabSlot, ColdError> {
        let mut wait = FIRST_RETRY;
        loop {
            match self.try_block(objects, volume, block, layers).await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(%volume, block = block.0, error = &error as &dyn std::error::Error, "cold read waits");
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LAST_RETRY);
                }
                done => return done,
            }
        }
    }

    async fn try_block(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        block: Block,
        layers: &Layers,
    ) -> Result<SlabSlot, ColdError> {
        let indexes = try_join_all(layers.iter().map(|segment| self.index(objects, volume, segment))).await?;
        let plan = compose(block, layers.iter().zip(indexes.iter().map(|index| &**index)));
        let fetch = async {
            let frames = try_join_all(plan.pieces.iter().map(|piece| frame(objects, volume, piece))).await?;
            let mut whole = HeapBuffer::zeroed(BLOCK_BYTES as usize);
            for (piece, stored) in plan.pieces.iter().zip(frames) {
                let plain = unpack(&piece.frame, &stored)
                    .map_err(|source| ColdError::Frame { key: key(volume, &piece.segment), source })?;
                place(piece, &plain, &mut whole);
            }
            Ok(whole)
        };
        self.slab.slot(&plan.key, fetch).await
    }

    async fn index(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        segment: &SegmentRef,
    ) -> Result<Arc<FrameIndex>, ColdError> {
        self.indexes
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
