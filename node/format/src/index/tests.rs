use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use holdfast_types::{Block, Epoch, Mask, Place, RunId, SegmentId, Seq};
use proptest::prelude::*;

use super::merge::{Input, MergeStep, RunMerge};
use super::page::PAGE_ENTRIES;
use super::relocate::{FEW_SMALL, MAX_RELOCATED, MovedFrames, MovedPart, groups, is_as_stored, mask_of};
use super::*;
use crate::compose::{Composition, Layer, Piece, compose};
use crate::segment::{Codec, Frame, FrameIndex};

const BLOCKS: u64 = 48;

/// A run of a list, with all its readable data.
#[derive(Debug, Clone)]
enum Stored {
    Segment(SegmentObject, Arc<FrameIndex>),
    Merged(RunRef, Arc<RunHead>, Vec<u8>),
}

impl Stored {
    /// Returns the segment number `n` with these frames.
    fn segment(n: u64, frames: Vec<Frame>) -> Self {
        let id = SegmentId::new(Place::until(Seq(n)), n, [0; 10]);
        let object = SegmentObject { id, bytes: 1 << 20, index_offset: 1 << 19, index_bytes: 1 << 10 };
        Self::Segment(object, Arc::new(FrameIndex::of(frames)))
    }

    fn input(&self) -> Input {
        match self {
            Self::Segment(object, index) => Input::Segment(*object, Arc::clone(index)),
            Self::Merged(_, head, _) => Input::Merged(Arc::clone(head)),
        }
    }

    fn page(&self, page: usize) -> RunPage {
        let Self::Merged(_, head, object) = self else { panic!("it has no pages") };
        let range = head.page_range(page);
        head.page(page, &object[range.start as usize..range.end as usize]).unwrap()
    }
}

/// Returns the merge of `inputs`, taken in small pieces.
fn merge(inputs: &[Stored], is_oldest: bool) -> Stored {
    merge_relocating(inputs, is_oldest, vec![])
}

/// The place of relocated segments.
const MOVED: Place = Place::first_merge(Epoch(1));

/// Checksum of a frame.
type Hash = [u8; 16];

/// For each frame combined from parts: the frame in which each sector was written.
static MADE: Mutex<BTreeMap<Hash, BTreeMap<u32, Hash>>> = Mutex::new(BTreeMap::new());

/// Returns the frame in which a sector was written, before any relocation.
fn written(hash: Hash, bit: u32) -> Hash {
    MADE.lock().unwrap().get(&hash).map_or(hash, |made| made[&bit])
}

/// Returns the frame combined from `parts`, in their new segment.
fn made(parts: &[MovedPart], offset: u64) -> Frame {
    let old = parts[0].frame;
    if is_as_stored(parts) {
        return Frame { offset, ..old };
    }
    let bits = parts.iter().flat_map(|part| {
        let bits = (0..32).filter(|bit| part.visible.contains(*bit));
        bits.map(|bit| (bit, written(part.frame.hash, bit)))
    });
    let bits: BTreeMap<u32, Hash> = bits.collect();
    let hash = crate::wire::checksum(format!("{bits:?}").as_bytes());
    MADE.lock().unwrap().insert(hash, bits);
    Frame { offset, stored: 11, mask: mask_of(parts), codec: Codec::Raw, hash, ..old }
}

/// Returns the merge with these segments relocated.
fn merge_relocating(inputs: &[Stored], is_oldest: bool, sparse: Vec<SegmentId>) -> Stored {
    let mut merge = RunMerge::new(inputs.iter().map(Stored::input), is_oldest)
        .relocating(groups(sparse.iter().map(|id| (*id, 9)).collect()));
    let (mut object, mut all_moved) = (Vec::new(), Vec::new());
    loop {
        match merge.advance() {
            MergeStep::NeedsPage { input, page } => merge.feed(input, inputs[input].page(page)),
            MergeStep::Wrote => object.extend(merge.take(1000)),
            MergeStep::Move(MovedFrames { ordinal, parts, .. }) => {
                assert!(parts.iter().all(|part| sparse.contains(&part.from)));
                assert!(parts.iter().all(|part| part.visible.minus(part.frame.mask).is_empty()));
                let mut end = 0;
                let frames = parts.chunk_by(|a, b| a.frame.block == b.frame.block).map(|parts| {
                    let sectors: u32 = parts.iter().map(|part| part.visible.count()).sum();
                    assert_eq!(mask_of(parts).count(), sectors, "a sector is moved twice");
                    let frame = made(parts, end);
                    end += u64::from(frame.stored);
                    frame
                });
                let frames: Vec<Frame> = frames.collect();
                assert!(frames.is_sorted_by(|a, b| a.block < b.block));
                all_moved.extend(frames.iter().map(|frame| (ordinal, frame.offset, frame.hash)));
                let id = SegmentId::new(MOVED, u64::from(ordinal), [0; 10]);
                let object = SegmentObject { id, bytes: end, index_offset: end, index_bytes: 0 };
                merge.moved(ordinal, object, Arc::new(FrameIndex::of(frames)));
            }
            MergeStep::Ended => break,
        }
    }
    let (run, head) = merge.close(RunId::new(Place::until(Seq(1)), 1, [1; 10]), 1);
    while merge.ready() > 0 {
        object.extend(merge.take(5000));
    }
    assert_eq!(run.bytes, object.len() as u64);
    let at = run.head_offset as usize;
    let stored = &object[at..at + run.head_bytes as usize];
    assert_eq!(RunHead::decode(&run, stored).as_ref(), Ok(&head));
    assert_eq!(object[at + run.head_bytes as usize..], trailer(&run));
    assert!(head.segments().iter().all(|segment| !sparse.contains(&segment.id)), "it is named still");
    let merged = Stored::Merged(run, Arc::new(head), object);
    let Stored::Merged(_, head, _) = &merged else { unreachable!() };
    let pages: Vec<RunPage> = (0..head.pages()).map(|page| merged.page(page)).collect();
    let entries = pages.iter().flat_map(RunPage::entries).filter(|entry| !entry.is_zero());
    let mut named: Vec<_> = entries
        .filter(|entry| head.segments()[entry.segment as usize].id.place() == MOVED)
        .map(|entry| (entry.segment, entry.frame.offset, entry.frame.hash))
        .collect();
    named.sort_unstable();
    all_moved.sort_unstable();
    if inputs.iter().all(|input| matches!(input, Stored::Segment(..))) {
        assert_eq!(named, all_moved, "each frame is named where it was moved to");
    }
    merged
}

fn read(list: &[Stored], block: u64, wanted: Mask) -> Composition {
    let block = Block(block);
    let pages: Vec<Option<RunPage>> = list
        .iter()
        .map(|run| match run {
            Stored::Segment(..) => None,
            Stored::Merged(_, head, _) => head.page_of(block).map(|page| run.page(page)),
        })
        .collect();
    let layers = list.iter().zip(&pages).filter_map(|(run, page)| match run {
        Stored::Segment(object, index) => Some(Layer::Segment(object.id, index)),
        Stored::Merged(_, head, _) => Some(Layer::Merged(head, page.as_ref()?)),
    });
    compose(block, wanted, layers)
}

/// Returns true if every block reads the same from both lists, at any location; and with the same content
/// key, if none of its frames was combined with others.
fn says_the_same(one: &[Stored], other: &[Stored]) -> bool {
    let masks = [Mask::FULL, Mask(0b1), Mask(0b1110), Mask(0x8001_0000)];
    let mut cases = (0..BLOCKS).flat_map(|block| masks.map(|mask| (block, mask)));
    cases.all(|(block, wanted)| {
        let (one, other) = (read(one, block, wanted), read(other, block, wanted));
        let sectors = |it: &Composition| -> BTreeMap<u32, Hash> {
            let of_piece = |piece: &Piece| {
                let (hash, visible) = (piece.frame.hash, piece.visible);
                (0..32).filter(move |bit| visible.contains(*bit)).map(move |bit| (bit, written(hash, bit)))
            };
            it.pieces.iter().flat_map(of_piece).collect()
        };
        let is_made = |it: &Composition| {
            it.pieces.iter().any(|piece| MADE.lock().unwrap().contains_key(&piece.frame.hash))
        };
        sectors(&one) == sectors(&other) && (one.key == other.key || is_made(&one) || is_made(&other))
    })
}

fn data(block: u32, mask: u32, content: u8) -> Frame {
    let hash = [content; 16];
    Frame { block, run: 1, mask: Mask(mask), offset: 7, stored: 9, codec: Codec::Raw, hash }
}

fn zeros(block: u32, run: u32, mask: u32) -> Frame {
    Frame { block, run, mask: Mask(mask), offset: 7, stored: 0, codec: Codec::Zero, hash: [0; 16] }
}

/// Generates the frames of one segment: each step advances by a gap and adds data, zeros or a run of zeros.
fn frames() -> impl Strategy<Value = Vec<Frame>> {
    let mask =
        prop_oneof![Just(u32::MAX), Just(0b1), Just(0b11), Just(0b110), Just(0xffff_0000), any::<u32>()];
    let step = (0..6u32, 0..4u8, 1..20u32, mask, any::<u8>());
    proptest::collection::vec(step, 0..20).prop_map(|steps| {
        let mut frames = Vec::new();
        let mut block = 0;
        for (gap, kind, run, mask, content) in steps {
            block += gap;
            let frame = match kind {
                0 => zeros(block, run, u32::MAX),
                1 => zeros(block, 1, mask | 1 << (run % 32)),
                _ => data(block, mask | 1 << (run % 32), content),
            };
            block += frame.run;
            frames.push(frame);
        }
        frames
    })
}

fn list() -> impl Strategy<Value = Vec<Stored>> {
    proptest::collection::vec(frames(), 1..9)
        .prop_map(|all| (1..).zip(all).map(|(n, frames)| Stored::segment(n, frames)).collect())
}

proptest! {
    /// Invariant 28, for any series of merges of neighbours.
    #[test]
    fn merges_say_what_their_inputs_said(
        before in list(),
        ranges in proptest::collection::vec((any::<prop::sample::Index>(), 1..5usize, any::<u8>()), 1..6),
    ) {
        let mut after = before.clone();
        for (start, length, relocated) in ranges {
            let start = start.index(after.len());
            let end = (start + length).min(after.len());
            let sparse = (0..8).filter(|bit| relocated >> bit & 1 == 1);
            let sparse = sparse.map(|n| SegmentId::new(Place::until(Seq(n + 1)), n + 1, [0; 10])).collect();
            let merged = merge_relocating(&after[start..end], end == after.len(), sparse);
            let Stored::Merged(run, head, _) = &merged else { unreachable!() };
            let pages: Vec<RunPage> = (0..head.pages()).map(|page| merged.page(page)).collect();
            let entries: Vec<IndexEntry> = pages.iter().flat_map(RunPage::entries).copied().collect();
            let sectors = |entry: &IndexEntry| u64::from(entry.frame.run) * u64::from(entry.visible.count());
            prop_assert_eq!(run.sectors, entries.iter().map(sectors).sum::<u64>());
            for entry in &entries {
                for block in [u64::from(entry.frame.block), entry.end() - 1] {
                    prop_assert!(run.chunks.may_hold(Block(block).chunk()));
                }
                prop_assert!(end < after.len() || !entry.is_zero(), "zeros that hide nothing are kept");
            }
            let named: std::collections::BTreeSet<u32> =
                entries.iter().filter(|entry| !entry.is_zero()).map(|entry| entry.segment).collect();
            prop_assert_eq!(named.len(), head.segments().len(), "a segment is named that no entry needs");
            after.splice(start..end, [merged]);
            prop_assert!(says_the_same(&before, &after));
        }
    }
}

/// Deliberate mistakes that the property must detect.
#[test]
fn a_wrong_merge_says_something_else() {
    let newest = Stored::segment(3, vec![data(0, 0b11, 3), zeros(4, 8, u32::MAX)]);
    let middle = Stored::segment(2, vec![data(0, 0b10, 2), data(6, 0b1, 2)]);
    let oldest = Stored::segment(1, vec![data(0, u32::MAX, 1), data(5, u32::MAX, 1)]);
    let list = [newest.clone(), middle.clone(), oldest.clone()];
    assert!(says_the_same(&list, &[merge(&list, true)]));
    assert!(says_the_same(&list, &[merge(&list[..2], false), oldest.clone()]));
    let out_of_order = merge(&[middle.clone(), newest.clone()], false);
    assert!(!says_the_same(&list, &[out_of_order, oldest.clone()]));
    let without_zeros = merge(&list[..2], true);
    assert!(!says_the_same(&list, &[without_zeros, oldest.clone()]));
    let not_neighbours = merge(&[newest, oldest], false);
    assert!(!says_the_same(&list, &[middle, not_neighbours]));
}

#[test]
fn zeros_are_cut_by_data_and_joined_again() {
    let newest = Stored::segment(2, vec![data(10, u32::MAX, 1), zeros(20, 1, 0b1), zeros(21, 1, u32::MAX)]);
    let oldest = Stored::segment(1, vec![zeros(0, 30, u32::MAX)]);
    let merged = merge(&[newest, oldest], false);
    let entries: Vec<(u32, u32, bool)> = merged
        .page(0)
        .entries()
        .iter()
        .map(|entry| (entry.frame.block, entry.frame.run, entry.is_zero()))
        .collect();
    assert_eq!(entries, [(0, 10, true), (10, 1, false), (11, 19, true)]);
}

#[test]
fn pages_are_full_and_a_block_stands_in_one() {
    let layers: Vec<Stored> = (0..3)
        .map(|layer| {
            let frames = (0..3000).map(|block| data(block, 0b1 << layer, layer)).collect();
            Stored::segment(u64::from(layer) + 1, frames)
        })
        .collect();
    let merged = merge(&layers, true);
    let Stored::Merged(run, head, object) = &merged else { unreachable!() };
    let pages: Vec<RunPage> = (0..head.pages()).map(|page| merged.page(page)).collect();
    assert_eq!((run.sectors, pages.len()), (9000, 9000_usize.div_ceil(PAGE_ENTRIES)));
    let (_last, full) = pages.split_last().unwrap();
    assert!(full.iter().all(|page| page.entries().len() > PAGE_ENTRIES - 3));
    for block in [0, 545, 546, 2999] {
        let page = head.page_of(Block(block)).unwrap();
        assert_eq!(pages[page].find(Block(block)).len(), 3, "block {block}");
    }
    assert_eq!(pages[head.page_of(Block(5000)).unwrap()].find(Block(5000)), []);
    assert!(object.len() as u64 <= 9000 * 40 + 4096);
    let other = head.page_range(1);
    let bytes = &object[other.start as usize..other.end as usize];
    assert!(head.page(1, bytes).is_ok() && head.page(0, bytes).is_err(), "a page is mistaken for another");
}

#[test]
fn a_merge_of_zeros_alone_is_empty() {
    let merged = merge(&[Stored::segment(1, vec![zeros(0, u32::MAX, u32::MAX)])], true);
    let Stored::Merged(run, head, _) = &merged else { unreachable!() };
    assert_eq!((run.sectors, head.pages(), run.chunks.ranges()), (0, 0, &[][..]));
    assert_eq!(head.page_of(Block(0)), None);
}

/// Returns the segments that a merge of `inputs` relocates.
fn sparse(inputs: &[Stored]) -> Vec<SegmentId> {
    let mut survey = RunMerge::survey(inputs.iter().map(Stored::input));
    loop {
        match survey.advance() {
            MergeStep::NeedsPage { input, page } => survey.feed(input, inputs[input].page(page)),
            MergeStep::Ended => return survey.to_relocate().into_iter().map(|(id, _)| id).collect(),
            MergeStep::Wrote | MergeStep::Move(_) => panic!("a survey has no output"),
        }
    }
}

#[test]
fn the_sparsest_own_segments_are_relocated() {
    let of_bytes = |n: u64, owner: u8, bytes, frames: &[Frame]| {
        let Stored::Segment(object, index) = Stored::segment(n, frames.to_vec()) else { unreachable!() };
        let id = SegmentId(holdfast_types::PlacedId { owner, ..object.id.0 });
        // The size of the index does not count: for data that compresses well it is most of the object.
        let (index_offset, bytes) = (bytes, 10 * bytes);
        Stored::Segment(SegmentObject { id, bytes, index_offset, ..object }, index)
    };
    let ids = |sparse: Vec<SegmentId>| sparse.iter().map(|id| id.place().stored()).collect::<Vec<u64>>();
    // Each frame has 9 bytes.
    let frames: Vec<Frame> = (0..10).map(|block| data(block, 1, 1)).collect();
    let newest = of_bytes(9, 0, 90, &frames[..7]);
    let list = [
        newest.clone(),
        of_bytes(1, 0, 67, &frames),
        of_bytes(2, 0, 90, &(10..17).map(|block| data(block, 1, 1)).collect::<Vec<_>>()),
        of_bytes(3, 1, 1000, &[data(20, 1, 1)]),
        of_bytes(4, 0, 1000, &[data(21, 1, 1)]),
        of_bytes(5, 0, 100, &frames),
    ];
    assert_eq!(
        ids(sparse(&list)),
        [4],
        "27 of 67 bytes are too many, one is a fork's, nothing is left of one"
    );
    assert_eq!(ids(sparse(&[newest, of_bytes(1, 0, 68, &frames)])), [1]);
    let many = (1..=MAX_RELOCATED as u64 + 10).map(|n| of_bytes(n, 0, 900 + n, &[data(n as u32, 1, 1)]));
    let relocated = ids(sparse(&many.collect::<Vec<_>>()));
    assert_eq!((relocated.len(), relocated[0]), (MAX_RELOCATED, MAX_RELOCATED as u64 + 10));
}

/// Found in review: a run named each small segment that stayed visible, however many there were. After a
/// million commits of a few sectors, a cold read needed a head of 50 MB.
#[test]
fn many_small_segments_are_combined() {
    let of = |n: u64, index_offset: u64| {
        let Stored::Segment(object, index) = Stored::segment(n, vec![data(n as u32, 1, 1)]) else {
            unreachable!()
        };
        Stored::Segment(SegmentObject { index_offset, bytes: 2 * index_offset, ..object }, index)
    };
    // A frame of 9 bytes, which is all of its segment, or a small part of it.
    let full = |numbers: std::ops::Range<u64>| numbers.map(|n| of(n, 9 + n % 2));
    let sparse_ones = |numbers: std::ops::Range<u64>| numbers.map(|n| of(n, 900));
    let few = FEW_SMALL as u64;
    assert_eq!(sparse(&full(0..few).collect::<Vec<_>>()), []);
    let relocated = sparse(&full(0..few + 1).collect::<Vec<_>>());
    assert_eq!(relocated.len() as u64, few + 1);
    assert_eq!(relocated[0].place().stored() % 2, 0, "the smallest first");
    // Sparse ones beyond the maximum are small, too.
    let most = MAX_RELOCATED as u64;
    let many: Vec<Stored> = sparse_ones(0..most + few).chain(full(most + few..most + few + 1)).collect();
    assert_eq!(sparse(&many).len(), many.len());
    let large: Vec<Stored> = (0..few + 1).map(|n| of(n, 9)).chain([of(few + 1, 22)]).collect();
    assert_eq!(sparse(&large).len() as u64, few + 2, "22 bytes of which 9 are visible are not sparse");
}

/// As many old segments as fill a new one go to it, so that the new one is not small.
#[test]
fn a_group_fills_a_new_segment() {
    let id = |n: u64| SegmentId::new(Place::until(Seq(n)), 7, [9; 10]);
    let of_each = |count: u64, bytes: u64| {
        let groups = groups((0..count).map(|n| (id(n), bytes)).collect());
        let mut sizes = std::collections::BTreeMap::new();
        groups.into_values().for_each(|group| *sizes.entry(group).or_insert(0) += 1);
        sizes.into_values().collect::<Vec<u64>>()
    };
    assert_eq!(of_each(10_000, 4096), [4096, 4096, 10_000 - 2 * 4096]);
    assert_eq!(of_each(150, 10 << 20), [64, 64, 22], "of large ones not fewer than before");
}

/// Pages after an entry whose segment is not stored wait for it. If many do, it is stored before it is
/// full.
#[test]
fn entries_wait_for_their_segment_within_bounds() {
    const BLOCKS: u32 = 600_000;
    let sparse = Stored::segment(1, vec![data(0, 1, 1)]);
    let other = Stored::segment(2, (1..BLOCKS).map(|block| data(block, 1, 2)).collect());
    let Stored::Segment(SegmentObject { id, .. }, _) = sparse else { unreachable!() };
    let inputs = [other, sparse];
    let mut merge = RunMerge::new(inputs.iter().map(Stored::input), true).relocating(groups(vec![(id, 9)]));
    let MergeStep::Move(MovedFrames { ordinal, parts, .. }) = merge.advance() else {
        panic!("nothing can be written before the first block is stored")
    };
    assert_eq!((parts.len(), merge.ready()), (1, 0));
    let frames = vec![made(&parts, 0)];
    let (bytes, id) = (9, SegmentId::new(MOVED, 0, [0; 10]));
    let object = SegmentObject { id, bytes, index_offset: bytes, index_bytes: 0 };
    merge.moved(ordinal, object, Arc::new(FrameIndex::of(frames)));
    let waited = merge.ready();
    assert!((500_000 * 40..BLOCKS as usize * 40).contains(&waited), "{waited} bytes waited");
    while merge.advance() != MergeStep::Ended {}
    let (run, head) = merge.close(RunId::new(Place::until(Seq(1)), 1, [1; 10]), 1);
    assert_eq!((run.sectors, head.pages()), (u64::from(BLOCKS), (BLOCKS as usize).div_ceil(PAGE_ENTRIES)));
}
