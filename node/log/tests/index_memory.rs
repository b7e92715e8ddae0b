//! Memory of the cache of indexes. In a program of its own, so that nothing else changes the resident memory.
#![allow(clippy::unwrap_used, reason = "tests panic where they fail")]

use holdfast_format::segment::{FrameIndex, SegmentBuilder};
use holdfast_log::Indexes;
use holdfast_types::{Block, Mask, Place, SECTOR_BYTES, SectorRange, SegmentId, Seq};

/// Returns the anonymous resident memory of this process, in bytes.
fn resident_bytes() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

fn id(seq: u64) -> SegmentId {
    SegmentId::new(Place::until(Seq(seq)), 1, [7; 10])
}

/// Returns the index of a segment with this many frames of one sector.
fn index(frames: u64) -> FrameIndex {
    let mut builder = SegmentBuilder::default();
    for block in 0..frames {
        let bytes = vec![(block % 250) as u8 + 1; SECTOR_BYTES as usize];
        builder.push(Block(block), Mask::of(SectorRange::new(0, 1)), &bytes);
    }
    builder.close(id(1)).1
}

/// Regression: only the entries of an index counted. Of segments with one block, the cache took several times
/// its limit.
#[test]
fn the_cache_knows_its_memory() {
    // Memory that is freed may stay resident.
    let mut caches = Vec::new();
    for (frames, count) in [(1, 200_000), (16, 50_000), (512, 2_000)] {
        let index = index(frames);
        let indexes = Indexes::new(4096, 1 << 30);
        let before = resident_bytes();
        for seq in 1..=count {
            indexes.keep(id(seq), index.clone());
        }
        let (taken, known) = (resident_bytes() - before, indexes.bytes() as f64);
        println!(
            "{frames} frames: {:.0} bytes each, known {:.0}",
            taken / count as f64,
            known / count as f64
        );
        assert!((0.8..1.1).contains(&(taken / known)), "{frames} frames: {taken} bytes, known are {known}");
        caches.push(indexes);
    }
}
