//! State that the daemon's process on a host shares between its volumes: segment indexes, memory for
//! uploads, fetches in progress, the slab.

use std::sync::Arc;

use holdfast_background::{Compressors, Fetches, Pools, StoreKey, UploadMemory};
use holdfast_log::Indexes;
use holdfast_types::BLOCK_BYTES;

use crate::slab::Slab;

/// Segment indexes cached by a process, and their bytes: more than a run needs.
pub(crate) const INDEXES: usize = 64;
pub(crate) const INDEX_BYTES: u64 = 1 << 30;
/// Memory for the uploads of a process, and the length of a segment's parts: most segments have one part,
/// some more, and a few uploads take all of the memory.
pub(crate) const UPLOAD_BYTES: u64 = 1 << 20;
const PART_BYTES: usize = 64 << 10;
/// Compressors of a process.
const COMPRESSORS: usize = 2;

/// Resources that the daemon's process on a host shares between all volumes.
#[derive(Clone)]
pub(crate) struct ProcessResources {
    pub(crate) pools: Pools,
    pub(crate) fetches: Arc<Fetches<Vec<u8>>>,
    /// The store of this volume.
    pub(crate) store: StoreKey,
    /// The slab for fetched blocks; `None` for a volume alone on its hosts.
    pub(crate) slab: Option<Arc<Slab>>,
}

impl ProcessResources {
    /// Creates the resources of a new process with one volume.
    pub(crate) fn for_one_volume() -> Self {
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

    /// Creates the resources of a new process with several volumes and this upload memory, on a separate
    /// host.
    pub(crate) fn new(upload_bytes: u64) -> Self {
        Self::with_slab(Slab::new(), upload_bytes)
    }

    /// Creates the resources of a new process with several volumes, on a host with this slab.
    pub(crate) fn with_slab(slab: Slab, upload_bytes: u64) -> Self {
        Self { slab: Some(Arc::new(slab)), ..Self::with(upload_bytes) }
    }
}

/// Returns fetches into memory.
pub(crate) fn fetches() -> Fetches<Vec<u8>> {
    Fetches::new(|| vec![0; BLOCK_BYTES as usize])
}
