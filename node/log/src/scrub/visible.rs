//! Sectors of damaged frames that no newer frame hides.
//!
//! A segment that is completely lost affects every chunk it has frames for: without its index its contents
//! are unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use holdfast_engine::manifest::Manifest;
use holdfast_engine::segment::{Frame, FrameIndex, SegmentRef};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Block, CHUNK_SECTORS, Chunk, Mask, SectorRange, SegmentId, VolumeId};

use super::segment::{Scan, Verdict};
use super::{Effect, Fault, Finding};
use crate::{LogFailure, store};

/// Damaged frames of one chunk, by segment.
type InChunk = HashMap<SegmentId, Vec<Frame>>;

/// Turns each scan into findings with their effect on the volume.
pub(super) async fn weigh(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    manifest: &Manifest,
    scans: Vec<Scan>,
) -> Result<Vec<Finding>, LogFailure> {
    let mut chunks: BTreeMap<Chunk, InChunk> = BTreeMap::new();
    for scan in &scans {
        let Verdict::Frames(damaged) = &scan.verdict else { continue };
        for (frame, _) in damaged {
            let chunk = chunks.entry(Block(u64::from(frame.block)).chunk()).or_default();
            chunk.entry(scan.id).or_default().push(*frame);
        }
    }
    let mut shown: HashMap<SegmentId, Vec<SectorRange>> = HashMap::new();
    for (chunk, damaged) in chunks {
        look_at_chunk(objects, volume, manifest, chunk, &damaged, &mut shown).await?;
    }
    let mut findings = Vec::new();
    for (scan, segment) in scans.into_iter().zip(manifest.segments()) {
        let harmless = |fault| Finding { key: scan.key.clone(), fault, effect: Effect::Harmless };
        findings.extend(scan.blemishes.into_iter().map(harmless));
        let (fault, ranges) = match scan.verdict {
            Verdict::Whole => continue,
            Verdict::Lost(fault) => (fault, chunk_ranges(segment, manifest.sectors())),
            Verdict::Frames(damaged) => {
                let count = damaged.len() as u64;
                let Some((frame, source)) = damaged.into_iter().next() else { continue };
                let first = frame.offset..frame.offset + u64::from(frame.stored);
                (Fault::Frames { count, first, source }, shown.remove(&scan.id).unwrap_or_default())
            }
        };
        let ranges = join(ranges);
        let effect = if ranges.is_empty() { Effect::Harmless } else { Effect::Unreadable(ranges) };
        findings.push(Finding { key: scan.key, fault, effect });
    }
    Ok(findings)
}

/// Visits the chunk's layers, newest first, with the sectors that the newer ones cover.
async fn look_at_chunk(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    manifest: &Manifest,
    chunk: Chunk,
    damaged: &InChunk,
    shown: &mut HashMap<SegmentId, Vec<SectorRange>>,
) -> Result<(), LogFailure> {
    let blocks: BTreeSet<u32> = damaged.values().flatten().map(|frame| frame.block).collect();
    let mut covered: BTreeMap<u32, Mask> = blocks.into_iter().map(|block| (block, Mask::EMPTY)).collect();
    let mut to_come = damaged.len();
    for segment in manifest.layers(chunk).map(|layers| &layers[..]).unwrap_or_default() {
        if let Some(frames) = damaged.get(&segment.id) {
            let ranges = shown.entry(segment.id).or_default();
            for frame in frames {
                let hidden = covered.get(&frame.block).copied().unwrap_or_default();
                let first = Block(u64::from(frame.block)).first_sector().0;
                let visible = frame.mask.minus(hidden).runs();
                ranges.extend(
                    visible
                        .map(|(bit, sectors)| SectorRange::new(first + u64::from(bit), u64::from(sectors))),
                );
            }
            to_come -= 1;
            if to_come == 0 {
                return Ok(());
            }
        }
        let Some(index) = index(objects, volume, segment).await? else { continue };
        for (block, mask) in &mut covered {
            if let Some(frame) = index.find(Block(u64::from(*block))) {
                *mask = mask.union(frame.mask);
            }
        }
    }
    Ok(())
}

/// The index of a segment; `None` where it is damaged, which is a finding of its own.
async fn index(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    segment: &SegmentRef,
) -> Result<Option<FrameIndex>, LogFailure> {
    let key = ObjectKey::Segment(volume.clone(), segment.id).to_string();
    let range = segment.index_offset..segment.index_offset + u64::from(segment.index_bytes);
    match objects.get_range(&key, range).await {
        Ok(bytes) => Ok(FrameIndex::decode(&bytes).ok()),
        Err(StoreError::NotFound { .. } | StoreError::OutOfRange { .. }) => Ok(None),
        Err(error) => Err(store("read a segment", volume)(error)),
    }
}

/// The sectors of the chunks that a segment has frames for.
fn chunk_ranges(segment: &SegmentRef, sectors: u64) -> Vec<SectorRange> {
    let volume = SectorRange::new(0, sectors);
    let run = |(first, count): &(u32, u32)| {
        let run = SectorRange::new(u64::from(*first) * CHUNK_SECTORS, u64::from(*count) * CHUNK_SECTORS);
        run.intersect(volume)
    };
    segment.chunks.runs().iter().filter_map(run).collect()
}

/// The same sectors as runs that ascend and do not touch.
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
