//! Parts that the daemon's process on a host has once for all its volumes: segment indexes, memory for
//! uploads, fetches in progress, the slab.

use std::sync::Arc;

use holdfast_background::{Compressors, Fetches, Pools, StoreKey, UploadMemory};
use holdfast_log::Indexes;
use holdfast_types::BLOCK_BYTES;

use crate::slab::Slab;

/// Segment indexes that a process keeps, and their bytes: more than a run has.
pub(crate) const INDEXES: usize = 64;
pub(crate) const INDEX_BYTES: u64 = 1 << 30;
/// Memory for the uploads of a process, and the length of a segment's parts: most segments have one part,
/// some more, and a few uploads are enough to take all.
pub(crate) const UPLOAD_BYTES: u64 = 1 << 20;
const PART_BYTES: usize = 64 << 10;
/// Compressors of a process.
const COMPRESSORS: usize = 2;

/// Resources that the daemon's process on a host has once for all volumes.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) pools: Pools,
    pub(crate) fetches: Arc<Fetches<Vec<u8>>>,
    /// The store of the volume that has this.
    pub(crate) store: StoreKey,
    /// The slab that fetched blocks go through; a volume alone on its hosts has none.
    pub(crate) slab: Option<Arc<Slab>>,
}

impl Shared {
    /// That of a new process with one volume.
    pub(crate) fn alone() -> Self {
        Self::with(UPLOAD_BYTES)
    }

    fn with(upload_bytes: u64) -> Self {
        let indexes = Arc::new(Indexes::new(INDEXES, INDEX_BYTES));
        let upload_memory = UploadMemory::new(upload_bytes, PART_BYTES);
        Self {
            pools: Pools {
                indexes,
                upload_memory,
                compressors: Arc::new(Compressors::new(COMPRESSORS)),
                merging: Arc::default(),
            },
            fetches: Arc::new(fetches()),
            store: StoreKey(0),
            slab: None,
        }
    }

    /// That of a new process with several, whose uploads have so much memory, on a host of its own.
    pub(crate) fn new(upload_bytes: u64) -> Self {
        Self::over(Slab::new(), upload_bytes)
    }

    /// The same on a host with this slab.
    pub(crate) fn over(slab: Slab, upload_bytes: u64) -> Self {
        Self { slab: Some(Arc::new(slab)), ..Self::with(upload_bytes) }
    }
}

/// Fetches into memory.
pub(crate) fn fetches() -> Fetches<Vec<u8>> {
    Fetches::new(|| vec![0; BLOCK_BYTES as usize])
}
