//! Caches parts of indexes in the slab, for use after their eviction from memory or a restart.
//!
//! Owns: splitting a part into pieces of a block's length. The key of a piece is the name of its object and
//! its offset; it is looked up like a block.
//! No reader waits until a part is stored: with many writes in progress, or no free slot, it is not stored.
//! On failure: the part is fetched from the store.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::future::join_all;
use holdfast_format::compose::ContentKey;
use holdfast_log::IndexSource;
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_ring::HeapBuffer;
use holdfast_types::BLOCK_BYTES;

use crate::node::run_blocking::BlockingCall;
use crate::node::store::block_cache::BlockSlab;

/// Maximum length of a stored part; no block read needs a larger one.
const MOST_BYTES: u64 = 2 << 20;

/// The indexes of a store, cached in the slab.
pub(super) struct KeptIndexes<'a> {
    pub(super) objects: &'a dyn ObjectStore,
    pub(super) slab: &'a Arc<BlockSlab>,
}

/// Returns the pieces of a part, with their offsets in the object and their lengths.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, usize)> {
    let end = range.end;
    range.step_by(BLOCK_BYTES as usize).map(move |at| (at, (end - at).min(BLOCK_BYTES) as usize))
}

fn is_kept(range: &Range<u64>) -> bool {
    range.end - range.start <= MOST_BYTES
}

impl IndexSource for KeptIndexes<'_> {
    async fn kept(&self, key: &str, range: Range<u64>) -> Option<Bytes> {
        if !is_kept(&range) {
            return None;
        }
        let mut part = BytesMut::new();
        let read = pieces(range).map(async |(at, length)| {
            let piece = self.slab.read(&ContentKey::of_index(key, at)).await?;
            Some((piece, length))
        });
        for piece in join_all(read).await {
            let (piece, length) = piece?;
            part.extend_from_slice(&piece[..length]);
        }
        Some(part.freeze())
    }

    async fn stored(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.objects.get_range(key, range).await
    }

    async fn keep(&self, key: &str, range: Range<u64>, bytes: Bytes) {
        let contents = (range.end - range.start).div_ceil(BLOCK_BYTES) as u32;
        let Some(right) = is_kept(&range).then(|| self.slab.may_keep(contents)).flatten() else { return };
        let (slab, key, call) = (Arc::clone(self.slab), key.to_owned(), BlockingCall::begin());
        tokio::spawn(async move {
            let start = range.start;
            let kept = pieces(range).map(async |(at, length)| {
                let from = (at - start) as usize;
                let mut piece = HeapBuffer::zeroed(BLOCK_BYTES as usize);
                piece[..length].copy_from_slice(&bytes[from..from + length]);
                slab.keep(&ContentKey::of_index(&key, at), piece).await;
            });
            join_all(kept).await;
            drop((call, right));
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_objects::MemoryStore;

    use super::*;
    use crate::node::run_blocking::run_blocking;
    use crate::node::store::block_cache::KEEPING;

    #[tokio::test]
    async fn a_part_is_read_as_it_was_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("slab");
        let bytes: Vec<u8> = (0..MOST_BYTES + 1).map(|at| (at / 997) as u8).collect();
        let store = MemoryStore::new();
        for length in [1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES - 7, MOST_BYTES, MOST_BYTES + 1] {
            let (key, range) = (format!("object-{length}"), 5000..5000 + length);
            let part = Bytes::copy_from_slice(&bytes[..length as usize]);
            let slab = Arc::new(BlockSlab::open(&path, 0).unwrap());
            let kept = KeptIndexes { objects: &store, slab: &slab };
            assert_eq!(kept.kept(&key, range.clone()).await, None);
            kept.keep(&key, range.clone(), part.clone()).await;
            slab.kept().await;
            drop(slab);
            let slab = Arc::new(BlockSlab::open(&path, 0).unwrap());
            let kept = KeptIndexes { objects: &store, slab: &slab };
            assert_eq!(kept.kept(&key, range.clone()).await, (length <= MOST_BYTES).then_some(part));
            assert_eq!(kept.kept("another", range).await, None);
        }
    }

    /// Regression: each read of a part waited for the disk, and a slow disk held any number of them.
    #[test]
    fn no_reader_waits_until_a_part_is_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let slab = Arc::new(BlockSlab::open(&dir.path().join("slab"), 0).unwrap());
            let kept = KeptIndexes { objects: &MemoryStore::new(), slab: &slab };
            let (end, ends) = std::sync::mpsc::channel::<()>();
            // Writes wait for the only thread.
            let busy = tokio::spawn(run_blocking(move || ends.recv().is_err()));
            tokio::task::yield_now().await;
            let part = Bytes::from_static(&[1]);
            for object in 0..KEEPING + 20 {
                let key = object.to_string();
                let kept = kept.keep(&key, 0..1, part.clone()).now_or_never();
                assert!(kept.is_some(), "{object} waits");
            }
            drop(end);
            assert!(busy.await.unwrap());
            slab.kept().await;
            for (object, found) in [(0, true), (KEEPING - 1, true), (KEEPING, false), (KEEPING + 19, false)] {
                assert_eq!(kept.kept(&object.to_string(), 0..1).await.is_some(), found, "{object}");
            }
        });
    }

    /// A part with an evicted piece counts as missing.
    #[tokio::test]
    async fn a_part_of_which_a_piece_is_gone_is_requested() {
        let dir = tempfile::tempdir().unwrap();
        let slab = Arc::new(BlockSlab::open(&dir.path().join("slab"), 0).unwrap());
        let kept = KeptIndexes { objects: &MemoryStore::new(), slab: &slab };
        let one = Bytes::from(vec![1; BLOCK_BYTES as usize]);
        kept.keep("object", 0..BLOCK_BYTES, one.clone()).await;
        slab.kept().await;
        assert_eq!(kept.kept("object", 0..BLOCK_BYTES + 1).await, None);
        assert_eq!(kept.kept("object", 0..BLOCK_BYTES).await, Some(one));
    }
}
