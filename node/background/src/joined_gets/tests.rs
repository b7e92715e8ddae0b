use futures::FutureExt;
use futures::future::join_all;
use holdfast_format::index::{Run, Runs};
use holdfast_format::segment::SegmentBuilder;
use holdfast_log::Indexes;
use holdfast_objects::{ErrorKind, Fault, MemoryStore, ReadyParts, Verb};
use holdfast_types::{Block, Mask, Place, Seq};

use super::*;
use crate::{ColdError, Fetches};

const BLOCKS: u64 = 128;

/// A volume whose blocks were written in one seal with incompressible bytes.
struct Volume {
    store: MemoryStore,
    runs: Runs,
    fetches: Fetches<Vec<u8>>,
}

type Fetched = Result<Arc<Vec<u8>>, ColdError>;

fn content(block: u64) -> Vec<u8> {
    let mut word = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..BLOCK_BYTES / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

impl Volume {
    fn new() -> Self {
        let (store, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
        let mut builder = SegmentBuilder::default();
        (0..BLOCKS).for_each(|block| builder.push(Block(block), Mask::FULL, &content(block)));
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [1; 10]));
        let mut parts = ReadyParts::from(Bytes::from(object));
        store.put_segment(&lineage.segment_key(segment.id), &mut parts).now_or_never().unwrap().unwrap();
        let runs = Runs::new(lineage.into(), [Run::Segment(segment.into())]);
        Self { store, runs, fetches: Fetches::new(|| vec![0; BLOCK_BYTES as usize]) }
    }

    fn key(&self) -> String {
        self.store.keys().remove(0)
    }

    fn plans(&self, blocks: impl Iterator<Item = u64>) -> Vec<Composition> {
        let indexes = Indexes::new(16, 1 << 20);
        let plan = |block| indexes.compose(&self.store, Block(block), Mask::FULL, &self.runs);
        blocks.map(|block| plan(block).now_or_never().unwrap().unwrap()).collect()
    }

    /// Fetches the blocks with joined requests. Returns them, and the number of requests.
    fn fetch(&self, plans: &[Composition]) -> (Vec<Fetched>, u64) {
        let before = self.store.counts().get;
        let gets = JoinedGets::new(&self.store, self.runs.lineage(), plans, None);
        let readers: Vec<_> = plans.iter().map(|_| self.fetches.reader()).collect();
        let lineage = self.runs.lineage();
        let blocks = readers.iter().zip(plans).map(|(reader, plan)| reader.block(&gets, lineage, plan));
        let blocks = join_all(blocks).now_or_never().unwrap();
        (blocks, self.store.counts().get - before)
    }
}

#[test]
fn neighbouring_blocks_come_with_one_request() {
    let volume = Volume::new();
    // 31 blocks and part of the next: 4 MiB hold 32.
    for (blocks, requests) in [(1, 1), (8, 1), (32, 1), (33, 2), (128, 4)] {
        let (fetched, gets) = volume.fetch(&volume.plans(0..blocks));
        assert_eq!(gets, requests, "{blocks} blocks");
        for (block, fetched) in (0..).zip(fetched) {
            assert!(*fetched.unwrap() == content(block), "block {block}");
        }
    }
}

#[test]
fn small_holes_are_requested_and_dropped() {
    let volume = Volume::new();
    for (step, requests) in [(2, 1), (3, 8)] {
        let (fetched, gets) = volume.fetch(&volume.plans((0..8).map(|number| number * step)));
        assert_eq!(gets, requests, "each {step}th block");
        for (number, fetched) in (0..).zip(fetched) {
            assert!(*fetched.unwrap() == content(number * step));
        }
    }
}

#[test]
fn a_damaged_frame_fails_its_own_block() {
    let volume = Volume::new();
    let plans = volume.plans(0..8);
    let damaged = plans[3].pieces[0].frame.offset as usize;
    volume.store.corrupt(&volume.key(), |bytes| bytes[damaged + 5] ^= 1);
    let (fetched, gets) = volume.fetch(&plans);
    let failed: Vec<bool> = fetched.iter().map(Result::is_err).collect();
    assert_eq!(failed, [false, false, false, true, false, false, false, false]);
    assert_eq!(gets, 1);
    for (block, fetched) in (0..).zip(fetched).filter(|(block, _)| *block != 3) {
        assert!(*fetched.unwrap() == content(block));
    }
}

/// Regression: overlapping frames of a damaged index are in the requests of others, and the readers of both
/// ended the daemon.
#[test]
fn frames_that_overlap_fail_their_blocks() {
    let volume = Volume::new();
    let mut plans = volume.plans(0..4);
    let frames = [(0, 100), (50, MAX_GET_BYTES as u32), (60, 10), (70, 10)];
    for (plan, (offset, stored)) in plans.iter_mut().zip(frames) {
        (plan.pieces[0].frame.offset, plan.pieces[0].frame.stored) = (offset, stored);
    }
    let (fetched, gets) = volume.fetch(&plans);
    assert_eq!(gets, 2);
    assert!(fetched.iter().all(Result::is_err));
}

/// The failure of a joined request is no finding about any of its frames.
#[test]
fn a_failed_request_is_a_finding_about_no_block() {
    let volume = Volume::new();
    let plans = volume.plans(0..4);
    for failure in [ErrorKind::NotFound, ErrorKind::Unavailable] {
        volume.store.fail_next(Verb::Get, Fault::Before(failure));
        let (fetched, gets) = volume.fetch(&plans);
        assert_eq!(gets, 1);
        for failed in fetched {
            let Err(ColdError::Object(error)) = failed else { panic!("the request failed") };
            assert!(!error.is_final(), "{error}");
        }
    }
    assert!(
        volume
            .fetches
            .reader()
            .block(&volume.store, volume.runs.lineage(), &plans[0])
            .now_or_never()
            .unwrap()
            .is_ok()
    );
}
