//! Blocks from the object store: the frames that make one up, and the retries of a read.
//!
//! Owns: the parts of indexes kept in memory, the retries. Does not own: the fetching of frames
//! (`fetches.rs`), the place where a block's bytes are kept.
//! On failure: a request is retried while the store is unreachable, refuses, or sends an invalid response.
//! Only two findings fail a read: the store says that the object does not exist, or the bytes are not those
//! that were written. A finding is final when a second read some seconds later finds the same. A failed read
//! makes a file system read-only, and bytes that a network changed, or a failover in progress, are
//! transient.

use std::error::Error;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_engine::DecodeError;
use holdfast_engine::compose::{Composition, Layer, compose};
use holdfast_engine::index::{Run, RunHead, RunPage, RunRef, Runs, SegmentObject};
use holdfast_engine::safeguard::{Safeguard::ReadOnlyWanted, safeguard};
use holdfast_engine::segment::{FrameError, FrameIndex, SegmentRef};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Block, Lineage, Mask, RunId, SectorRange, SegmentId};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::Environment;
use crate::backoff::JobBackoff;
use crate::line_limit::{LineLimit, Rest};

/// Time after a finding at which the object is read again, to confirm it.
const CONFIRM_AFTER: Duration = Duration::from_secs(3);

/// Reasons for which a cold read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColdError {
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
    /// The fetched block could not be kept.
    #[error("the slab could not be written")]
    Slab(#[from] io::Error),
}

impl ColdError {
    /// Returns true if a retry finds the same: an object is missing or damaged. All else may change, since
    /// credentials, policies and proxies are corrected while a read waits.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Store { source: StoreError::NotFound { .. } | StoreError::OutOfRange { .. }, .. }
            | Self::Index { .. }
            | Self::Frame { .. } => true,
            Self::Store { .. } | Self::Slab(_) => false,
        }
    }

    /// The store's answer that fails the read once it is confirmed; `None` for answers that a retry may
    /// change.
    pub(crate) fn finding(&self) -> Option<String> {
        let cause = self.source().map(ToString::to_string).unwrap_or_default();
        self.is_final().then(|| format!("{self}: {cause}"))
    }
}

/// Log lines of a volume's cold reads. Their span names the volume.
#[derive(Debug, Default)]
pub struct ColdLines {
    waits: LineLimit,
    unconfirmed: LineLimit,
}

impl ColdLines {
    /// Logs how many lines were held back.
    pub fn write(&self, rest: Rest) {
        if let Some(times) = self.waits.rest(rest) {
            tracing::warn!(times, "cold reads waited, since the last line about it");
        }
        if let Some(times) = self.unconfirmed.rest(rest) {
            tracing::warn!(times, "cold reads failed once, since the last line about it");
        }
    }
}

/// Retries a read of all of `range`'s block until it succeeds or the same finding came twice. After the first
/// finding it reads `range` alone, which may not need what is damaged. `read` gets the sectors to read.
///
/// # Errors
/// [`ColdError`]: a confirmed finding.
pub async fn retry_while_unavailable<V, F: Future<Output = Result<V, ColdError>>>(
    time: &impl Environment,
    lines: &ColdLines,
    range: SectorRange,
    read: impl Fn(Mask) -> F,
) -> Result<V, ColdError> {
    let block = range.start.block().0;
    let mut backoff = JobBackoff::of_reads();
    let mut wanted = Mask::FULL;
    let mut found: Option<String> = None;
    loop {
        let error = match read(wanted).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let Some(finding) = error.finding() else {
            if let Some(held_back) = lines.waits.one(time.now_ms()) {
                tracing::warn!(block, error = &error as &dyn Error, held_back, "cold read waits");
            }
            backoff.wait(time).await;
            continue;
        };
        if wanted != Mask::of(range) && safeguard(ReadOnlyWanted) {
            wanted = Mask::of(range);
        } else if found.as_ref() == Some(&finding) {
            return Err(error);
        } else {
            if let Some(held_back) = lines.unconfirmed.one(time.now_ms()) {
                tracing::warn!(
                    block,
                    error = &error as &dyn Error,
                    held_back,
                    "cold read failed; retrying to confirm it"
                );
            }
            found = Some(finding);
            time.sleep(CONFIRM_AFTER).await;
        }
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
    pub(crate) fn keep(&self, id: SegmentId, index: FrameIndex) {
        self.0.insert(PartName::Segment(id), IndexPart::Segment(Arc::new(index)));
    }

    /// Keeps the head of a run that this node has made itself.
    pub(crate) fn keep_head(&self, id: RunId, head: RunHead) {
        self.0.insert(PartName::Head(id), IndexPart::Head(Arc::new(head)));
    }

    /// The frames that make up the sectors `wanted` of `block` as `runs` compose it.
    ///
    /// # Errors
    /// [`ColdError`], when a part of an index is unavailable.
    pub async fn compose(
        &self,
        objects: &dyn ObjectStore,
        block: Block,
        wanted: Mask,
        runs: &Runs,
    ) -> Result<Composition, ColdError> {
        let near = runs.iter().filter(|run| run.fence().may_hold(block.chunk()));
        let known = all(near.map(|run| self.known(objects, runs.lineage(), block, run))).await?;
        Ok(compose(block, wanted, known.iter().flatten().map(PartOfRun::layer)))
    }

    /// The part of `run` that has the entries of `block`; `None` where it has no page for it.
    async fn known(
        &self,
        objects: &dyn ObjectStore,
        lineage: &Lineage,
        block: Block,
        run: &Run,
    ) -> Result<Option<PartOfRun>, ColdError> {
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
    /// [`ColdError`], when it is unavailable.
    pub(crate) async fn index(
        &self,
        objects: &dyn ObjectStore,
        lineage: &Lineage,
        segment: &SegmentRef,
    ) -> Result<Arc<FrameIndex>, ColdError> {
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
    /// [`ColdError`], when it is unavailable.
    pub(crate) async fn head(
        &self,
        objects: &dyn ObjectStore,
        lineage: &Lineage,
        run: &RunRef,
    ) -> Result<Arc<RunHead>, ColdError> {
        let decode = |bytes: &[u8]| RunHead::decode(run, bytes).map(|head| IndexPart::Head(head.into()));
        let read = read_stored(objects, lineage.run_key(run.id), run.head_range(), decode);
        match self.0.get_or_insert_async(&PartName::Head(run.id), read).await? {
            IndexPart::Head(head) => Ok(head),
            IndexPart::Segment(_) | IndexPart::Page(_) => unreachable!("it is kept under another name"),
        }
    }

    async fn page(
        &self,
        objects: &dyn ObjectStore,
        lineage: &Lineage,
        run: RunId,
        head: &RunHead,
        page: usize,
    ) -> Result<Arc<RunPage>, ColdError> {
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
    objects: &dyn ObjectStore,
    key: String,
    range: Range<u64>,
    decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
) -> Result<T, ColdError> {
    match objects.get_range(&key, range).await {
        Ok(bytes) => decode(&bytes).map_err(|source| ColdError::Index { key, source }),
        Err(source) => Err(ColdError::Store { key, source }),
    }
}

/// Waits until all of `reads` have ended: one that fails leaves the others their answers, which the next try
/// does not need again. So a try lasts as long as its slowest request.
///
/// # Errors
/// The first one that a retry finds again, else the first.
pub(crate) async fn all<T>(
    reads: impl IntoIterator<Item = impl Future<Output = Result<T, ColdError>>>,
) -> Result<Vec<T>, ColdError> {
    let (mut done, mut failed) = (Vec::new(), None);
    for ended in join_all(reads).await {
        match ended {
            Ok(read) => done.push(read),
            Err(error)
                if failed.as_ref().is_some_and(|first: &ColdError| first.is_final() >= error.is_final()) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(done), Err)
}

#[cfg(test)]
mod tests;
