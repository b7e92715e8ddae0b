//! The indexes of a volume's runs: which frames make up a block.
//!
//! Owns: the parts of indexes that are kept in memory. Does not own: the frames, and retries.

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

/// Reasons for which an index or a frame of a volume could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// An object could not be read.
    #[error("object {key}")]
    Store {
        /// Its key.
        key: String,
        /// The store's error.
        #[source]
        source: StoreError,
    },
    /// A part of an index is damaged.
    #[error("object {key} is damaged")]
    Index {
        /// The key of the segment or the run.
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
    /// Returns true if a retry finds the same: an object is missing or damaged. All else may change, since
    /// credentials, policies and proxies are corrected while a read waits.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Store { source: StoreError::NotFound { .. } | StoreError::OutOfRange { .. }, .. }
            | Self::Index { .. }
            | Self::Frame { .. } => true,
            Self::Store { .. } => false,
        }
    }

    /// The error in words if it is final; a read that finds the same again fails with it.
    pub fn finding(&self) -> Option<String> {
        let cause = self.source().map(ToString::to_string).unwrap_or_default();
        self.is_final().then(|| format!("{self}: {cause}"))
    }
}

/// A source of the parts of indexes: the store, or one that keeps them nearer too. Nothing of it is checked
/// yet.
pub trait IndexSource: Sync {
    /// The bytes `range` of the object `key`, if they are kept nearer than in the store.
    fn kept(&self, _key: &str, _range: Range<u64>) -> impl Future<Output = Option<Bytes>> + Send {
        std::future::ready(None)
    }

    /// The same from the store.
    ///
    /// # Errors
    /// The reason for which they did not come.
    fn stored(&self, key: &str, range: Range<u64>) -> impl Future<Output = Result<Bytes, StoreError>> + Send;

    /// Keeps what came from the store, and was found right.
    fn keep(&self, _key: &str, _range: Range<u64>, _bytes: Bytes) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

impl<S: ObjectStore + ?Sized> IndexSource for S {
    async fn stored(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.get_range(key, range).await
    }
}

/// The name of a part of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum PartName {
    Segment(SegmentId),
    Head(RunId),
    Page(RunId, usize),
}

/// A part of an index.
#[derive(Debug, Clone)]
enum IndexPart {
    Segment(Arc<FrameIndex>),
    Head(Arc<RunHead>),
    Page(Arc<RunPage>),
}

/// Weighs a part by its bytes, and none heavier than `most`: the cache refuses what is larger than itself.
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
        (bytes as u64).clamp(64, self.most)
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

/// Indexes kept in memory: whole ones of segments, of merged runs the heads and single pages.
pub struct Indexes(Cache<PartName, IndexPart, PartBytes>);

impl Indexes {
    /// Keeps at most `bytes` of them, at least 1024; `expected` is their expected number. A part that is
    /// larger is kept alone: without it, each read of its run would fetch all of it.
    ///
    /// The cache has one shard, on any number of CPUs: it refuses what does not fit the share of a shard.
    pub fn new(expected: usize, bytes: u64) -> Self {
        let options = OptionsBuilder::new()
            .shards(1)
            .estimated_items_capacity(expected)
            .weight_capacity(bytes)
            .build()
            .expect("both capacities are set");
        // A 32nd of it is for what was not read twice.
        let weighter = PartBytes { most: bytes - bytes.div_ceil(16) };
        Self(Cache::with_options(
            options,
            weighter,
            DefaultHashBuilder::default(),
            DefaultLifecycle::default(),
        ))
    }

    /// Keeps the index of a segment that this node has made itself.
    pub fn keep(&self, id: SegmentId, index: FrameIndex) {
        self.0.insert(PartName::Segment(id), IndexPart::Segment(Arc::new(index)));
    }

    /// Keeps the head of a run that this node has made itself.
    pub fn keep_head(&self, id: RunId, head: RunHead) {
        self.0.insert(PartName::Head(id), IndexPart::Head(Arc::new(head)));
    }

    /// The frames that make up the sectors `wanted` of `block` as `runs` compose it.
    ///
    /// # Errors
    /// [`ObjectError`], when a part of an index is unavailable.
    pub async fn compose(
        &self,
        objects: &(impl IndexSource + ?Sized),
        block: Block,
        wanted: Mask,
        runs: &Runs,
    ) -> Result<Composition, ObjectError> {
        let near = runs.iter().filter(|run| run.fence().may_hold(block.chunk()));
        let known = join_reads(near.map(|run| self.known(objects, runs.lineage(), block, run))).await?;
        Ok(compose(block, wanted, known.iter().flatten().map(PartOfRun::layer)))
    }

    /// The part of `run` that has the entries of `block`; `None` where it has no page for it.
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

    /// The index of a segment.
    ///
    /// # Errors
    /// [`ObjectError`], when it is unavailable.
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

    /// The head of a merged run.
    ///
    /// # Errors
    /// [`ObjectError`], when it is unavailable.
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

/// Reads a part of an index.
async fn read_stored<T>(
    objects: &(impl IndexSource + ?Sized),
    key: String,
    range: Range<u64>,
    decode: impl Fn(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, ObjectError> {
    // What is kept and damaged says nothing about the store.
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

/// Waits until all of `reads` have ended: one that fails leaves the others their answers, which the next try
/// does not need again. So a try lasts as long as its slowest request.
///
/// # Errors
/// The first one that a retry finds again, else the first.
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
