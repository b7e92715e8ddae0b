//! Scrub: reads all stored objects of a volume, and reports damage and its effect.
//!
//! 1. every record and every checkpoint; a checkpoint must equal the state replayed from the log (`log`);
//! 2. every merged run of the volume: it must exist, with the right length, an intact head and intact pages
//!    (`run`);
//! 3. every segment that the volume's runs name: it must exist, with the right length, an intact index and
//!    intact frames (`segment`);
//! 4. for damaged frames, the sectors that are still visible: a newer frame may hide them (`visible`).
//!
//! Owns: the order of reads and the meaning of a finding. Changes nothing; [`repair_checkpoints`] does.
//! Costs: a LIST and a GET per record and checkpoint; per segment two GETs and one for every 4 MiB.
//! On failure: if the store does not answer, the scrub ends without a report, because its findings would be
//! incomplete.

mod log;
mod repair;
mod run;
mod segment;
mod visible;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::{StreamExt, TryStreamExt, stream};
use holdfast_format::DecodeError;
use holdfast_format::index::{Run, RunHead, SegmentObject};
use holdfast_format::manifest::Manifest;
use holdfast_format::manifest::apply::LogError;
use holdfast_format::segment::FrameError;
use holdfast_objects::ObjectStore;
use holdfast_types::{SectorRange, Seq, VolumeId};

use crate::error::{LogFailure, or_damage};
use crate::read::read_manifest_to_end;
use crate::sweep::Needed;

pub use repair::repair_checkpoints;
use segment::ReferencedSegment;

/// Number of segments read in parallel; each uses memory for one read of 4 MiB and its index.
const PARALLEL_SEGMENTS: usize = 4;

/// Progress of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Bytes of segments read so far.
    pub read_bytes: u64,
    /// Bytes of all segments.
    pub total_bytes: u64,
}

/// Damage of an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Damage {
    /// The object does not exist.
    #[error("is missing")]
    Missing,
    /// The object's length differs from that in the log.
    #[error("has {have} bytes, but {need} according to the log")]
    Length {
        /// Actual length in bytes.
        have: u64,
        /// Stored length in bytes.
        need: u64,
    },
    /// The object's bytes differ from the stored ones.
    #[error("is damaged")]
    Bytes(#[source] DecodeError),
    /// A record that is not valid at its position.
    #[error("does not follow from the records before it")]
    Order(#[source] LogError),
    /// A checkpoint that differs from the log.
    #[error("differs from the log")]
    Differs,
    /// The trailer, which no reader needs.
    #[error("has a damaged trailer")]
    Trailer,
    /// Some pages of a merged run.
    #[error("has damaged pages ({count})")]
    Pages {
        /// Number of damaged pages.
        count: u64,
        /// Byte range of the first one in the object.
        first: Range<u64>,
        /// Damage of the first one.
        #[source]
        source: DecodeError,
    },
    /// Some frames of a segment.
    #[error("has damaged frames ({count})")]
    Frames {
        /// Number of damaged frames.
        count: u64,
        /// Byte range of the first one in the object.
        first: Range<u64>,
        /// Damage of the first one.
        #[source]
        source: FrameError,
    },
}

/// Effect of damage on the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// None: newer data replaces the damaged data, or no reader needs it.
    Harmless,
    /// Reads of these sectors fail, unless the serving node has them locally. Ascending and disjoint.
    Unreadable(Vec<SectorRange>),
    /// The volume cannot be attached.
    NoAttach,
}

/// One damaged object.
#[derive(Debug)]
pub struct Finding {
    /// Key of the object.
    pub key: String,
    /// The damage.
    pub fault: Damage,
    /// Its effect on the volume.
    pub effect: Effect,
}

/// Result of a scrub.
#[derive(Debug)]
pub struct ScrubReport {
    /// The volume as of its log's end or, if that is unknown, as of the last known seq.
    pub manifest: Manifest,
    /// Records read.
    pub records: u64,
    /// Checkpoints read.
    pub checkpoints: u64,
    /// Segments read.
    pub segments: u64,
    /// Frames whose bytes were read.
    pub frames: u64,
    /// Bytes of segments read.
    pub read_bytes: u64,
    /// Every damaged object.
    pub findings: Vec<Finding>,
    /// Damaged checkpoints that can be rebuilt from the rest of the log.
    replaceable: Vec<Seq>,
    /// True if a truncated log has no checkpoint, but one can be built from the rest of it.
    lacks_checkpoint: bool,
}

impl ScrubReport {
    /// Returns every sector whose reads fail, ascending and disjoint.
    pub fn unreadable(&self) -> Vec<SectorRange> {
        let ranges = self.findings.iter().flat_map(|finding| match &finding.effect {
            Effect::Unreadable(ranges) => ranges.as_slice(),
            Effect::Harmless | Effect::NoAttach => &[],
        });
        visible::join(ranges.copied().collect())
    }

    /// Returns true if no damage affects the volume.
    pub fn is_harmless(&self) -> bool {
        self.findings.iter().all(|finding| finding.effect == Effect::Harmless)
    }
}

/// Reads all of `volume` and reports damage; calls `tell` with the progress. For a volume that does not exist
/// or was deleted, the report contains only its manifest.
///
/// # Errors
/// [`LogFailure::Store`]: the store did not answer.
pub async fn scrub(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    tell: &(dyn Fn(Progress) + Send + Sync),
) -> Result<ScrubReport, LogFailure> {
    let log::LogState { manifest, records, checkpoints, mut findings, replaceable, lacks_checkpoint } =
        log::read(objects, volume).await?;
    let lineage = manifest.lineage();
    let mut runs = run::scan_heads(objects, manifest.runs()).await?;
    let named = named_segments(&manifest, &runs);
    let total_bytes = named.iter().map(ReferencedSegment::bytes).sum::<u64>()
        + runs.values().map(|scan| scan.run.bytes).sum::<u64>();
    let read = AtomicU64::new(0);
    let meter = |bytes: u64| {
        let read_bytes = read.fetch_add(bytes, Ordering::Relaxed) + bytes;
        tell(Progress { read_bytes, total_bytes });
    };
    for scan in runs.values_mut() {
        scan.scan_pages(objects, volume, &meter).await?;
    }
    let scans: Vec<segment::Scan> = stream::iter(named)
        .map(|segment| segment::scan(objects, lineage, segment, &meter))
        .buffered(PARALLEL_SEGMENTS)
        .try_collect()
        .await?;
    let frames = scans.iter().map(|scan| scan.frames).sum();
    let segments = scans.len() as u64;
    let lookup = visible::Lookup { objects, volume, manifest: &manifest, runs: &runs };
    // Beyond the readable part of a log, later records may have replaced an object that was then swept.
    let may_be_swept = findings.iter().any(|finding| finding.effect == Effect::NoAttach);
    let mut of_objects = visible::weigh(lookup, scans).await?;
    of_objects.extend(visible::weigh_runs(&manifest, runs));
    let is_missing = |finding: &Finding| matches!(finding.fault, Damage::Missing);
    if may_be_swept {
        of_objects.retain(|finding| !is_missing(finding));
    } else if of_objects.iter().any(is_missing) {
        let needed = needed_now(objects, volume).await?;
        of_objects
            .retain(|finding| !is_missing(finding) || needed.as_ref().is_some_and(|it| it.has(&finding.key)));
    }
    findings.extend(of_objects);
    Ok(ScrubReport {
        manifest,
        records,
        checkpoints,
        segments,
        frames,
        read_bytes: read.into_inner(),
        findings,
        replaceable,
        lacks_checkpoint,
    })
}

/// Returns the objects that the volume needs now, because others may have been swept since its log was read.
/// Returns `None` if they are unknown.
async fn needed_now(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Option<Needed>, LogFailure> {
    let needed = async {
        let manifest = read_manifest_to_end(objects, volume).await?;
        Needed::of_one(objects, &manifest).await
    };
    Ok(or_damage(needed).await?.ok())
}

/// Returns every segment that the volume refers to and a reader can find, oldest first.
fn named_segments(manifest: &Manifest, scans: &BTreeMap<usize, run::RunScan>) -> Vec<ReferencedSegment> {
    let runs = manifest.runs().iter().enumerate().rev();
    let named = runs.flat_map(|(number, run)| match run {
        Run::Segment(segment) => vec![ReferencedSegment::Listed(Arc::clone(segment))],
        Run::Merged(_) => {
            let head = scans.get(&number).and_then(|scan| scan.head.as_ref());
            let segments = head.map(RunHead::segments).unwrap_or_default();
            let merged = |(ordinal, object): (u32, &SegmentObject)| ReferencedSegment::Merged {
                run: number,
                ordinal,
                object: *object,
            };
            (0..).zip(segments).map(merged).collect()
        }
    });
    named.collect()
}
