//! The indexes of a volume's runs, which map blocks to frames.
//!
//! Owns: the in-memory cache of index parts. Does not own: the frames, and retries.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use holdfast_format::DecodeError;
use holdfast_format::compose::{Composition, Layer, compose};
use holdfast_format::index::{Run, RunHead, RunPage, RunRef, Runs, SegmentObject};
use holdfast_format::segment::{FrameError, FrameIndex, SegmentRef};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Block, Lineage, Mask, RunId, SegmentId};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// Reason why an index or a frame of a volume could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// An object could not be read.
    #[error("object {key}")]
    Store {
        /// Key of the object.
        key: String,
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// A part of an index is damaged.
    #[error("object {key} is damaged")]
    Index {
        /// Key of the segment or the run.
        key: String,
        /// The damage.
        #[source]
        source: DecodeError,
    },
    /// A frame is damaged.
    #[error("object {key} is damaged")]
    Frame {
        /// The segment's key.
        key: String,
        /// The damage.
        #[source]
        source: FrameError,
    },
}

impl ObjectError {
    /// Returns true if a retry cannot succeed: an object is missing or damaged. All other errors may clear,
    /// because users correct credentials, policies and proxies while a read waits.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Store { source: StoreError::NotFound { .. } | StoreError::OutOfRange { .. }, .. }
            | Self::Index { .. }
            | Self::Frame { .. } => true,
            Self::Store { .. } => false,
        }
    }

    /// Returns the description of a final error; a read that hits it again fails with this text.
    pub fn finding(&self) -> Option<String> {
        let cause = self.source().map(ToString::to_string).unwrap_or_default();
        self.is_final().then(|| format!("{self}: {cause}"))
    }
}

/// A source of index parts: the store, or a closer cache in front of it. Its data is unverified.
pub trait IndexSource: Sync {
    /// Returns the bytes `range` of the object `key` from the closer cache, if it has them.
    fn kept(&self, _key: &str, _range: Range<u64>) -> impl Future<Output = Option<Bytes>> + Send {
        std::future::ready(None)
    }

    /// Returns the bytes from the store.
    ///
    /// # Errors
    /// Reason why the read failed.
    fn stored(&self, key: &str, range: Range<u64>) -> impl Future<Output = Result<Bytes, StoreError>> + Send;

    /// Caches verified bytes from the store.
    fn keep(&self, _key: &str, _range: Range<u64>, _bytes: Bytes) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<S: ObjectStore + ?Sized> IndexSource for S {
    async fn stored(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.get_range(key, range).await
    }
}

/// Name of an index part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PartName {
    Segment(SegmentId),
    Head(RunId),
    Page(RunId, usize),
}

/// An index part.
#[derive(Debug, Clone)]
enum IndexPart {
    Segment(Arc<FrameIndex>),
    Head(Arc<RunHead>),
    Page(Arc<RunPage>),
}

/// Memory of a part in addition to its entries: its place in the cache, and two allocations.
const PART_BYTES: u64 = 160;

/// Weighs a part by its bytes, up to `most`: the cache rejects entries larger than itself.
#[derive(Debug, Clone)]
struct PartBytes {
    most: u64,
}

impl Weighter<PartName, IndexPart> for PartBytes {
    fn weight(&self, _name: &PartName, part: &IndexPart) -> u64 {
        let bytes = match part {
            IndexPart::Segment(index) => index.weight(),
            IndexPart::Head(head) => head.weight(),
            IndexPart::Page(page) => page.weight(),
        };
        (bytes as u64 + PART_BYTES).min(self.most)
    }
}

/// The part of a run that has the entries of a block.
enum PartOfRun {
    Segment(SegmentId, Arc<FrameIndex>),
    Merged(Arc<RunHead>, Arc<RunPage>),
}

impl PartOfRun {
    fn layer(&self) -> Layer<'_> {
        match self {
            Self::Segment(segment, index) => Layer::Segment(*segment, index),
            Self::Merged(head, page) => Layer::Merged(head, page),
        }
    }
}

/// In-memory cache: whole indexes of segments, heads and single pages of merged runs.
pub struct Indexes(Cache<PartName, IndexPart, PartBytes>);

impl Indexes {
    /// Returns the memory of the cached parts, in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.weight()
    }

    /// Creates a cache of at most `bytes`, at least 1024; `expected` is the expected number of parts. A
    /// part larger than the cache is cached alone, because otherwise each read of its run would fetch the
    /// whole part.
    ///
    /// The cache has one shard on any number of CPUs, because it rejects entries larger than a shard's share.
    pub fn new(expected: usize, bytes: u64) -> Self {
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(expected)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are set");
        // A 32nd of the capacity is for parts read only once.
        let weighter = PartBytes { most: bytes - bytes.div_ceil(16) };
        Self(Cache::with_options(
            options,
            weighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ))
    }

    /// Caches the index of a segment that this node has created.
    pub fn keep(&self, id: SegmentId, index: FrameIndex) {
        self.0.insert(PartName::Segment(id), IndexPart::Segment(Arc::new(index)));
    }

    /// Caches the head of a run that this node has created.
    pub fn keep_head(&self, id: RunId, head: RunHead) {
        self.0.insert(PartName::Head(id), IndexPart::Head(Arc::new(head)));
    }

    /// Drops the parts of a run that was merged into another one. Its volume does not read them any more, and
    /// the limit of the cache would keep them for long.
    pub fn forget(&self, run: &Run) {
        match run {
            Run::Segment(segment) => drop(self.0.remove(&PartName::Segment(segment.id))),
            Run::Merged(run) => {
                let Some((_, IndexPart::Head(head))) = self.0.remove(&PartName::Head(run.id)) else { return };
                for page in 0..head.pages() {
                    self.0.remove(&PartName::Page(run.id, page));
                }
            }
        }
    }

    /// Returns the frames that compose the sectors `wanted` of `block` from `runs`.
    ///
    /// # Errors
    /// [`ObjectError`] if a part of an index is unavailable.
    pub async fn compose(
        &self,
        objects: &(impl IndexSource + ?Sized),
        block: Block,
        wanted: Mask,
        runs: &Runs,
    ) -> Result<Composition, ObjectError> {
        let near = runs.iter().filter(|run| run.chunk_ranges().may_hold(block.chunk()));
        let known = join_reads(near.map(|run| self.known(objects, runs.lineage(), block, run))).await?;
        Ok(compose(block, wanted, known.iter().flatten().map(PartOfRun::layer)))
    }

    /// Returns the part of `run` that has the entries of `block`; `None` if the run has no page for the
    /// block.
    async fn known(
        &self,
        objects: &(impl IndexSource + ?Sized),
        lineage: &Lineage,
        block: Block,
        run: &Run,
    ) -> Result<Option<PartOfRun>, ObjectError> {
        match run {
            Run::Segment(segment) => {
                let index = self.index(objects, lineage, segment).await?;
                Ok(Some(PartOfRun::Segment(segment.id, index)))
            }
            Run::Merged(run) => {
                let head = self.head(objects, lineage, run).await?;
                let Some(page) = head.page_of(block) else { return Ok(None) };
                let page = self.page(objects, lineage, run.id, &head, page).await?;
                Ok(Some(PartOfRun::Merged(head, page)))
            }
        }
    }

    /// Returns the index of a segment.
    ///
    /// # Errors
    /// [`ObjectError`] if it is unavailable.
    pub async fn index(
        &self,
        objects: &(impl IndexSource + ?Sized),
        lineage: &Lineage,
        segment: &SegmentRef,
    ) -> Result<Arc<FrameIndex>, ObjectError> {
        let range = SegmentObject::from(segment).index_range();
        let decode = |bytes: &[u8]| FrameIndex::decode(bytes).map(|index| IndexPart::Segment(index.into()));
        let read = read_stored(objects, lineage.segment_key(segment.id), range, decode);
        match self.0.get_or_insert_async(&PartName::Segment(segment.id), read).await? {
            IndexPart::Segment(index) => Ok(index),
            IndexPart::Head(_) | IndexPart::Page(_) => unreachable!("it is kept under another name"),
        }
    }

    /// Returns the head of a merged run.
    ///
    /// # Errors
    /// [`ObjectError`] if it is unavailable.
    pub async fn head(
        &self,
        objects: &(impl IndexSource + ?Sized),
        lineage: &Lineage,
        run: &RunRef,
    ) -> Result<Arc<RunHead>, ObjectError> {
        let decode = |bytes: &[u8]| RunHead::decode(run, bytes).map(|head| IndexPart::Head(head.into()));
        let read = read_stored(objects, lineage.run_key(run.id), run.head_range(), decode);
        match self.0.get_or_insert_async(&PartName::Head(run.id), read).await? {
            IndexPart::Head(head) => Ok(head),
            IndexPart::Segment(_) | IndexPart::Page(_) => unreachable!("it is kept under another name"),
        }
    }

    async fn page(
        &self,
        objects: &(impl IndexSource + ?Sized),
        lineage: &Lineage,
        run: RunId,
        head: &RunHead,
        page: usize,
    ) -> Result<Arc<RunPage>, ObjectError> {
        let decode = |bytes: &[u8]| head.page(page, bytes).map(|page| IndexPart::Page(page.into()));
        let read = read_stored(objects, lineage.run_key(run), head.page_range(page), decode);
        match self.0.get_or_insert_async(&PartName::Page(run, page), read).await? {
            IndexPart::Page(page) => Ok(page),
            IndexPart::Segment(_) | IndexPart::Head(_) => unreachable!("it is kept under another name"),
        }
    }
}

/// Reads an index part.
async fn read_stored<T>(
    objects: &(impl IndexSource + ?Sized),
    key: String,
    range: Range<u64>,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, ObjectError> {
    // Damage in the closer cache does not imply damage in the store.
    if let Some(kept) = objects.kept(&key, range.clone()).await
        && let Ok(part) = decode(&kept)
    {
        return Ok(part);
    }
    let bytes = match objects.stored(&key, range.clone()).await {
        Ok(bytes) => bytes,
        Err(source) => return Err(ObjectError::Store { key, source }),
    };
    match decode(&bytes) {
        Ok(part) => {
            objects.keep(&key, range, bytes).await;
            Ok(part)
        }
        Err(source) => Err(ObjectError::Index { key, source }),
    }
}

/// Waits until all of `reads` have ended. After a failure the results of the other reads are still used, so
/// that the next attempt need not repeat them. An attempt thus lasts as long as its slowest request.
///
/// # Errors
/// The first final error, otherwise the first error.
pub async fn join_reads<T>(
    reads: impl IntoIterator<Item = impl Future<Output = Result<T, ObjectError>>>,
) -> Result<Vec<T>, ObjectError> {
    let (mut done, mut failed) = (Vec::new(), None);
    for ended in join_all(reads).await {
        match ended {
            Ok(read) => done.push(read),
            Err(error)
                if failed
                    .as_ref()
                    .is_some_and(|first: &ObjectError| first.is_final() >= error.is_final()) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(done), Err)
}

#[cfg(test)]
mod tests;
