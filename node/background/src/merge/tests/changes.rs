//! Changes between snapshots, over runs that were merged in between.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_format::segment::SegmentBuilder;
use holdfast_log::Changes;
use holdfast_objects::{MemoryStore, ReadyParts};
use holdfast_types::key::ObjectKey;
use holdfast_types::{CHUNK_SECTORS, Chunk, Place, Sector, SectorRange, SegmentId};

use super::*;

/// Returns the sectors reported for the first `chunks` chunks.
fn reported_sectors(store: &MemoryStore, changes: &Changes) -> Vec<SectorRange> {
    let indexes = Indexes::new(64, 1 << 20);
    let chunks: Vec<Chunk> = changes.chunks(Sector(0)).collect();
    let in_chunk = |chunk| changes.in_chunk(store, &indexes, chunk).now_or_never().unwrap().unwrap();
    chunks.into_iter().flat_map(in_chunk).collect()
}

fn discard(written: &mut WrittenVolume, blocks: Range<u64>) {
    let mut builder = SegmentBuilder::default();
    for block in blocks {
        builder.push(Block(block), Mask::FULL, &[0; 128 << 10]);
    }
    let seq = written.log.seq().next();
    let (segment, object) = builder.finish(SegmentId::new(Place::until(seq), seq.0, [2; 10]));
    let key = ObjectKey::Segment(volume(), segment.id).to_string();
    let mut parts = ReadyParts::from(Bytes::from(object));
    written.store.put_segment(&key, &mut parts).now_or_never().unwrap().unwrap();
    written.add(&Run::Segment(Arc::new(segment)));
}

/// Returns the blocks whose first sector was reported; nothing else was written.
fn blocks(ranges: &[SectorRange]) -> Vec<u64> {
    assert!(
        ranges.iter().all(|range| range.sectors == 1 && range.start.0.is_multiple_of(BLOCK_SECTORS)),
        "{ranges:?}"
    );
    ranges.iter().map(|range| range.start.0 / BLOCK_SECTORS).collect()
}

#[test]
fn writes_and_discards_since_a_snapshot_are_reported() {
    let mut written = WrittenVolume::new(4096);
    written.commit(&[0, 1, 2, 3000]);
    let base = written.log.clone();
    written.commit(&[1, 9]);
    discard(&mut written, 2..4);
    let target = written.log.clone();
    let all = |root: &Manifest| blocks(&reported_sectors(&written.store, &Changes::all_of(root.clone())));
    assert_eq!((all(&base), all(&target)), (vec![0, 1, 2, 3000], vec![0, 1, 9, 3000]));
    let between = Changes::between(base.clone(), target.clone());
    assert_eq!(blocks(&reported_sectors(&written.store, &between)), [1, 2, 9]);
    assert_eq!(reported_sectors(&written.store, &Changes::between(target.clone(), target)), []);
    // The state before anything was written.
    let empty = WrittenVolume::new(4096).log;
    assert_eq!(blocks(&reported_sectors(&written.store, &Changes::between(empty, base))), [0, 1, 2, 3000]);
}

/// An unwritten chunk costs no request; the first reported one is the first that comes after the requested
/// sector.
#[test]
fn only_chunks_whose_runs_differ_are_read() {
    let mut written = WrittenVolume::new(4096);
    written.commit(&[0, 2000, 4000]);
    let base = written.log.clone();
    written.commit(&[4000]);
    let changes = Changes::between(base.clone(), written.log.clone());
    assert_eq!(changes.chunks(Sector(0)).collect::<Vec<_>>(), [Chunk(3)]);
    let before = written.store.counts().get;
    assert_eq!(blocks(&reported_sectors(&written.store, &changes)), [4000]);
    assert_eq!(written.store.counts().get - before, 2, "the index of each segment");
    let held: Vec<Chunk> = Changes::all_of(base).chunks(Sector(CHUNK_SECTORS + 5)).collect();
    assert_eq!(held, [Chunk(1), Chunk(3)]);
}

/// Random overwrites, with the policy's merges and relocations, between many snapshots.
#[test]
fn merges_hide_no_changed_block() {
    const BLOCKS: u64 = 400;
    let mut state = 1u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut written = WrittenVolume::new(BLOCKS);
    let mut snapshots = vec![written.log.clone()];
    for commit in 1..=300u64 {
        if commit % 20 == 0 {
            let first = random(BLOCKS - 10);
            discard(&mut written, first..first + 10);
        } else {
            let mut some: Vec<u64> = (0..8).map(|_| random(BLOCKS)).collect();
            some.sort_unstable();
            some.dedup();
            written.commit(&some);
        }
        if commit % 50 == 0 {
            snapshots.push(written.log.clone());
        }
    }
    let merged = |root: &Manifest| root.runs().iter().filter(|run| matches!(run, Run::Merged(_))).count();
    assert!(merged(&written.log) > 0, "nothing was merged");
    let indexes = Indexes::new(1024, 1 << 24);
    let (mut missing, mut more, mut exact) = (0, 0, 0);
    for (number, base) in snapshots.iter().enumerate() {
        for target in &snapshots[number..] {
            let reported =
                blocks(&reported_sectors(&written.store, &Changes::between(base.clone(), target.clone())));
            for block in 0..BLOCKS {
                let [old, new] = [base, target]
                    .map(|root| content(&indexes, &written.store, block, root.runs())[..4096].to_vec());
                match (old != new, reported.contains(&block)) {
                    (true, false) => missing += 1,
                    (false, true) => more += 1,
                    (true, true) => exact += 1,
                    (false, false) => {}
                }
            }
        }
    }
    println!("{exact} changed blocks told, {more} that had not changed");
    assert_eq!(missing, 0);
    assert!(more * 100 <= exact, "{more} of {exact}");
}

#[test]
fn nothing_beyond_the_end_of_the_volume_is_reported() {
    let mut written = WrittenVolume::new(1);
    written.commit(&[0, 1]);
    assert_eq!(blocks(&reported_sectors(&written.store, &Changes::all_of(written.log.clone()))), [0]);
}

#[test]
fn a_lost_index_is_an_error_not_a_gap() {
    let mut written = WrittenVolume::new(64);
    written.commit(&[1]);
    let key = written.store.keys().into_iter().find(|key| key.contains("/segments/")).unwrap();
    written.store.delete(&[&key]).now_or_never().unwrap().unwrap();
    let (changes, indexes) = (Changes::all_of(written.log.clone()), Indexes::new(64, 1 << 20));
    let error = changes.in_chunk(&written.store, &indexes, Chunk(0)).now_or_never().unwrap().unwrap_err();
    assert!(error.to_string().contains(&key), "{error}");
}
