//! Sectors of damaged frames that no newer frame hides.
//!
//! If a listed segment is completely lost, all chunks for which it has frames are affected: without its index
//! its contents are unknown. The same holds for a merged run without its head; a damaged page affects the
//! blocks between its first and the next page's. For a segment named by a merged run, only the frames that
//! the run names count.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::index::{Run, RunPage, SegmentObject};
use holdfast_format::manifest::Manifest;
use holdfast_format::segment::{Frame, FrameIndex, SegmentRef};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{BLOCK_SECTORS, Block, CHUNK_SECTORS, Chunk, Mask, SectorRange, SegmentId, VolumeId};

use super::run::RunScan;
use super::segment::{ReferencedSegment, Scan, ScanVerdict, check, cut_off};
use super::{Damage, Effect, Finding};
use crate::error::{LogFailure, store};

/// Segments with a damaged frame, by block.
type Damaged = BTreeMap<u32, BTreeSet<SegmentId>>;
/// Sectors with visible damage, by segment.
type VisibleDamage = HashMap<SegmentId, Vec<SectorRange>>;

/// A volume's runs and their scans.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    pub(super) objects: &'a dyn ObjectStore,
    pub(super) volume: &'a VolumeId,
    pub(super) manifest: &'a Manifest,
    /// The scans of the merged runs, by their index in the list.
    pub(super) runs: &'a BTreeMap<usize, RunScan>,
}

/// Converts each scan into findings with their effect on the volume, in the order of the scans.
pub(super) async fn weigh(lookup: Lookup<'_>, scans: Vec<Scan>) -> Result<Vec<Finding>, LogFailure> {
    let named = lookup.named_by_runs(&scans).await?;
    let mut damaged = Damaged::new();
    for scan in &scans {
        let frames = match (&scan.verdict, named.get(&scan.id)) {
            (ScanVerdict::Frames(frames), _) => frames.iter().map(|(frame, _)| frame.block).collect(),
            (ScanVerdict::Lost(_), Some(frames)) => frames.iter().map(|frame| frame.block).collect(),
            (ScanVerdict::Lost(_), None) | (ScanVerdict::Whole, _) => Vec::new(),
        };
        for block in frames {
            damaged.entry(block).or_default().insert(scan.id);
        }
    }
    let mut shown = lookup.shown(&damaged).await?;
    let mut findings = Vec::new();
    for scan in scans {
        let harmless = |fault| Finding { key: scan.key.clone(), fault, effect: Effect::Harmless };
        findings.extend(scan.blemishes.into_iter().map(harmless));
        let visible = shown.remove(&scan.id).unwrap_or_default();
        let (fault, ranges) = match (scan.verdict, scan.named) {
            (ScanVerdict::Whole, _) => continue,
            (ScanVerdict::Lost(fault), ReferencedSegment::Listed(segment)) => {
                (fault, sector_ranges(lookup.manifest, &segment.chunks))
            }
            (ScanVerdict::Lost(fault), ReferencedSegment::Merged { .. }) => (fault, visible),
            (ScanVerdict::Frames(damaged), _) => {
                let count = damaged.len() as u64;
                let Some((frame, source)) = damaged.into_iter().next() else { continue };
                let first = frame.offset..frame.offset + u64::from(frame.stored);
                (Damage::Frames { count, first, source }, visible)
            }
        };
        findings.push(Finding { key: scan.key, fault, effect: effect(ranges) });
    }
    Ok(findings)
}

/// Converts the scans of merged runs into findings.
pub(super) fn weigh_runs(manifest: &Manifest, scans: BTreeMap<usize, RunScan>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for scan in scans.into_values().rev() {
        let RunScan { run, key, head, lost, pages, blemishes } = scan;
        let harmless = |fault| Finding { key: key.clone(), fault, effect: Effect::Harmless };
        findings.extend(blemishes.into_iter().map(harmless));
        if let Some(fault) = lost {
            let ranges = sector_ranges(manifest, &run.chunks);
            findings.push(Finding { key, fault, effect: effect(ranges) });
            continue;
        }
        let Some(head) = head else { continue };
        let chunks = sector_ranges(manifest, &run.chunks);
        let mut ranges = Vec::new();
        for (page, _) in &pages {
            let blocks = head.blocks_of(*page);
            let sectors =
                SectorRange::new(blocks.start * BLOCK_SECTORS, (blocks.end - blocks.start) * BLOCK_SECTORS);
            ranges.extend(chunks.iter().filter_map(|chunk| chunk.intersect(sectors)));
        }
        let count = pages.len() as u64;
        let Some((page, source)) = pages.into_iter().next() else { continue };
        let fault = Damage::Pages { count, first: head.page_range(page), source };
        findings.push(Finding { key, fault, effect: effect(ranges) });
    }
    findings
}

impl Lookup<'_> {
    /// Returns the damaged frames that merged runs name in segments whose own index is unusable.
    async fn named_by_runs(&self, scans: &[Scan]) -> Result<HashMap<SegmentId, Vec<Frame>>, LogFailure> {
        let mut wanted: BTreeMap<usize, BTreeMap<u32, &Scan>> = BTreeMap::new();
        for scan in scans {
            if let (ReferencedSegment::Merged { run, ordinal, .. }, ScanVerdict::Lost(_)) =
                (&scan.named, &scan.verdict)
            {
                wanted.entry(*run).or_default().insert(*ordinal, scan);
            }
        }
        let mut damaged = HashMap::new();
        for (run, wanted) in wanted {
            let ordinals = wanted.keys().map(|ordinal| (*ordinal, Vec::new())).collect();
            let named = self.runs[&run].frames_of(self.objects, self.volume, ordinals).await?;
            for (ordinal, frames) in named {
                let scan = wanted[&ordinal];
                damaged.insert(scan.id, self.unsound(scan, frames).await?);
            }
        }
        Ok(damaged)
    }

    /// Returns the damaged ones of `frames` in a lost segment.
    async fn unsound(&self, scan: &Scan, frames: Vec<Frame>) -> Result<Vec<Frame>, LogFailure> {
        let object_bytes = match &scan.verdict {
            ScanVerdict::Lost(Damage::Missing) => 0,
            ScanVerdict::Lost(Damage::Length { have, .. }) => *have,
            ScanVerdict::Lost(_) | ScanVerdict::Frames(_) | ScanVerdict::Whole => u64::MAX,
        };
        let ends = |frame: &Frame| frame.offset.saturating_add(u64::from(frame.stored));
        let (inside, outside): (Vec<Frame>, _) =
            frames.into_iter().partition(|frame| ends(frame) <= object_bytes);
        let damaged = check(self.objects, self.volume, &scan.key, &inside, &|_bytes| ()).await?;
        let damaged = damaged.unwrap_or_else(|| inside.iter().map(cut_off).collect());
        Ok(damaged.into_iter().map(|(frame, _)| frame).chain(outside).collect())
    }

    /// Returns the sectors of damaged frames that no newer frame covers, by segment.
    async fn shown(&self, damaged: &Damaged) -> Result<VisibleDamage, LogFailure> {
        let mut shown = VisibleDamage::new();
        let mut chunks: BTreeMap<Chunk, Damaged> = BTreeMap::new();
        for (block, segments) in damaged {
            let chunk = Block(u64::from(*block)).chunk();
            chunks.entry(chunk).or_default().insert(*block, segments.clone());
        }
        for (chunk, damaged) in chunks {
            let mut search = BlockSearch { damaged: &damaged, covered: HashMap::new(), shown: &mut shown };
            for (number, run) in self.manifest.runs().iter().enumerate() {
                if run.chunk_ranges().may_hold(chunk) {
                    self.search_run(number, run, &mut search).await?;
                }
            }
        }
        Ok(shown)
    }

    async fn search_run(
        &self,
        number: usize,
        run: &Run,
        search: &mut BlockSearch<'_>,
    ) -> Result<(), LogFailure> {
        match run {
            Run::Segment(segment) => {
                let Some(index) = self.index(segment).await? else { return Ok(()) };
                for block in search.damaged.keys() {
                    if let Some(frame) = index.find(Block(u64::from(*block))) {
                        search.cover(*block, Some(segment.id), frame.mask);
                    }
                }
            }
            Run::Merged(_) => {
                let Some(scan) = self.runs.get(&number) else { return Ok(()) };
                let Some(head) = &scan.head else { return Ok(()) };
                let mut last: Option<(usize, Option<RunPage>)> = None;
                for block in search.damaged.keys() {
                    let at = Block(u64::from(*block));
                    let Some(page) = head.page_of(at) else { continue };
                    if last.as_ref().is_none_or(|(there, _)| *there != page) {
                        last = Some((page, scan.page_of(self.objects, self.volume, at).await?));
                    }
                    let Some((_, Some(page))) = &last else { continue };
                    for entry in page.find(at) {
                        search.cover(*block, head.segment_of(entry), entry.visible);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the index of a segment; `None` if it is damaged, which is reported separately.
    async fn index(&self, segment: &SegmentRef) -> Result<Option<FrameIndex>, LogFailure> {
        let key = self.manifest.lineage().segment_key(segment.id);
        match self.objects.get_range(&key, SegmentObject::from(segment).index_range()).await {
            Ok(bytes) => Ok(FrameIndex::decode(&bytes).ok()),
            Err(StoreError::NotFound { .. } | StoreError::OutOfRange { .. }) => Ok(None),
            Err(error) => Err(store("read a segment", self.volume)(error)),
        }
    }
}

/// Search for the damaged blocks of a chunk, run by run, newest first.
struct BlockSearch<'a> {
    damaged: &'a Damaged,
    covered: HashMap<u32, Mask>,
    shown: &'a mut VisibleDamage,
}

impl BlockSearch<'_> {
    /// Records that a run covers the sectors `mask` of `block` with this segment's frame, or with zeros.
    fn cover(&mut self, block: u32, segment: Option<SegmentId>, mask: Mask) {
        let covered = self.covered.entry(block).or_default();
        let visible = mask.minus(*covered);
        *covered = covered.union(mask);
        let Some(segment) = segment.filter(|segment| self.damaged[&block].contains(segment)) else { return };
        let first = Block(u64::from(block)).first_sector().0;
        let ranges = visible.runs().map(|(bit, sectors)| (first + u64::from(bit), u64::from(sectors)));
        let shown = self.shown.entry(segment).or_default();
        shown.extend(ranges.map(|(start, sectors)| SectorRange::new(start, sectors)));
    }
}

/// Returns the sectors of the ranges of `chunks` that hold data.
fn sector_ranges(manifest: &Manifest, chunks: &ChunkRanges) -> Vec<SectorRange> {
    let volume = SectorRange::new(0, manifest.sectors());
    let chunks = chunks.ranges().iter().flat_map(|(first, count)| *first..*first + *count);
    let held = chunks.map(|chunk| Chunk(u64::from(chunk))).filter(|chunk| manifest.may_hold(*chunk));
    held.filter_map(|chunk| SectorRange::new(chunk.first_sector().0, CHUNK_SECTORS).intersect(volume))
        .collect()
}

fn effect(ranges: Vec<SectorRange>) -> Effect {
    let ranges = join(ranges);
    if ranges.is_empty() { Effect::Harmless } else { Effect::Unreadable(ranges) }
}

/// Returns the same sectors as ascending, disjoint runs.
pub(super) fn join(mut ranges: Vec<SectorRange>) -> Vec<SectorRange> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<SectorRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start.0 <= last.end() => {
                last.sectors = last.end().max(range.end()) - last.start.0;
            }
            Some(_) | None => joined.push(range),
        }
    }
    joined
}
