use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::FutureExt;
use holdfast_format::side::Side;
use holdfast_types::{Block, Mask, Place, SectorRange, Seq};
use parking_lot::Mutex;

use super::*;
use crate::upload::MAX_UNREADABLE;
use crate::upload_memory::{MemoryNeed, StoreKey};
use crate::{SideReader, UploadMemory};

const MIB: u64 = 1 << 20;
const FULL_NEED: MemoryNeed = MemoryNeed { base_bytes: MIB, part_bytes: 10 * MIB };

/// A disk that cannot read these sectors of side A. Each block has different bytes, a few only zeros.
#[derive(Default)]
struct HoledSides(Vec<u64>);

impl SideReader for HoledSides {
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        if side == Side::A && self.0.iter().any(|sector| (range.start.0..range.end()).contains(sector)) {
            return Err(io::Error::other("a hole"));
        }
        let block = range.start.block().0;
        let mut state = if block % 7 < 3 { 0 } else { block };
        for byte in buffer {
            state = state.wrapping_mul(6_364_136_223_846_793_005);
            *byte = if block.is_multiple_of(2) { (state >> 56) as u8 } else { block as u8 };
        }
        Ok(())
    }
}

impl Sides for HoledSides {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        // Yields first, so that several are in progress.
        tokio::task::yield_now().await;
        batch.pack(self);
        batch
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: holdfast_engine::settings::Pending) -> io::Result<()> {
        Ok(())
    }
}

fn full(blocks: u64) -> Arc<[DirtyBlock]> {
    (0..blocks).map(|block| DirtyBlock { block: Block(block), a: Mask::FULL, b: Mask::EMPTY }).collect()
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn id() -> SegmentId {
    SegmentId::new(Place::until(Seq(1)), 1, [0; 10])
}

/// Returns the next part, if the free memory suffices for it.
fn next_of(parts: &mut SegmentParts<'_, HoledSides>) -> Option<Result<Part, PartFailed>> {
    let mut next = parts.next();
    (0..1000).find_map(|_poll| (&mut next).now_or_never())
}

fn room(memory: &UploadMemory, need: MemoryNeed) -> Arc<UploadReservation> {
    Arc::new(memory.room(StoreKey(0), need).now_or_never().expect("there is room"))
}

fn making(part_bytes: usize, compressors: usize) -> Making {
    let unsent_bytes = part_bytes + batch_bytes(part_bytes) as usize;
    let compressors = Arc::new(Compressors::new(compressors));
    Making { id: id(), part_bytes, unsent_bytes, compressors, is_small: false }
}

#[test]
fn parts_are_of_one_length_and_the_same_each_time() {
    let dirty = full(200);
    let make = |part_bytes, compressors| {
        let memory = UploadMemory::new(64 * MIB, part_bytes);
        let room = room(&memory, FULL_NEED);
        let sides = HoledSides::default();
        let mut maker = SegmentParts::new(&sides, room, Arc::clone(&dirty), making(part_bytes, compressors));
        let mut parts = Vec::new();
        loop {
            let Part { bytes, is_last } = block_on(maker.next()).expect("there are no holes");
            parts.push(bytes.to_vec());
            if is_last {
                break;
            }
        }
        let (last, whole) = parts.split_last().unwrap();
        assert!(whole.iter().all(|part| part.len() == part_bytes) && last.len() <= part_bytes);
        (parts.concat(), maker.into_segment().unwrap().unwrap())
    };
    let mut serial = SegmentBuilder::default();
    let mut buffer = vec![0; BLOCK_BYTES as usize];
    for DirtyBlock { block, a, .. } in dirty.iter() {
        let range = SectorRange::new(block.first_sector().0, u64::from(a.count()));
        HoledSides::default().read(Side::A, range, &mut buffer).unwrap();
        serial.push(*block, *a, &buffer);
    }
    let (segment, object) = serial.finish(id());
    for (part_bytes, compressors) in
        [(MIB as usize, 1), (MIB as usize, 4), (4096, 3), (5000, 2), (8 << 20, 8)]
    {
        let (bytes, (reference, _index)) = make(part_bytes, compressors);
        assert!(bytes == object && reference == segment, "{part_bytes} {compressors}");
    }
}

#[test]
fn exactly_the_unreadable_sectors_are_named() {
    let dirty: Arc<[DirtyBlock]> = [
        DirtyBlock { block: Block(0), a: Mask(0b1111_0000), b: Mask(0b1) },
        DirtyBlock { block: Block(3), a: Mask::FULL, b: Mask::EMPTY },
        DirtyBlock { block: Block(4), a: Mask::FULL, b: Mask::EMPTY },
        DirtyBlock { block: Block(5), a: Mask::FULL, b: Mask::EMPTY },
    ]
    .into();
    let build = |holes, part_bytes| {
        let (memory, sides) = (UploadMemory::new(64 * MIB, part_bytes), HoledSides(holes));
        let room = room(&memory, FULL_NEED);
        let mut parts = SegmentParts::new(&sides, room, Arc::clone(&dirty), making(part_bytes, 2));
        let made = block_on(parts.next());
        (made.is_ok(), parts.into_segment().map(drop).map_err(|found| found.ranges))
    };
    // All blocks are one batch, then each is one.
    for part_bytes in [16 << 20, 1 << 20] {
        let named = vec![SectorRange::new(5, 2), SectorRange::new(98, 1), SectorRange::new(130, 1)];
        assert_eq!(build(vec![0, 5, 6, 98, 130], part_bytes), (false, Err(named)));
        assert_eq!(build(vec![0, 3, 64, 192], part_bytes), (true, Ok(())), "nothing of that is asked for");
        let (is_made, found) = build((96..192).collect(), part_bytes);
        let found = found.unwrap_err();
        assert_eq!(found.iter().map(|range| range.sectors).sum::<u64>(), MAX_UNREADABLE);
        assert_eq!((is_made, found.last().unwrap().end()), (false, 160), "the search ends there");
    }
}

/// A disk with an unreadable sector in each block.
struct UnreadableSides {
    compressors: Arc<Compressors>,
    running: AtomicUsize,
    /// First block of each batch, and the batches in progress at its start.
    begun: Mutex<Vec<(u64, usize)>>,
    /// Block that was searched, and the free compressors at that time.
    free: Mutex<Vec<(u64, usize)>>,
}

impl SideReader for UnreadableSides {
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        let block = range.start.block().0;
        if range.sectors == 1 {
            let free: Vec<_> = std::iter::from_fn(|| self.compressors.try_borrow()).collect();
            self.free.lock().push((block, free.len()));
        }
        HoledSides(vec![Block(block).first_sector().0 + 5]).read(side, range, buffer)
    }
}

impl Sides for UnreadableSides {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        let running = self.running.fetch_add(1, Ordering::Relaxed);
        self.begun.lock().push((batch.blocks()[0].block.0, running));
        tokio::task::yield_now().await;
        batch.pack(self);
        self.running.fetch_sub(1, Ordering::Relaxed);
        batch
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: holdfast_engine::settings::Pending) -> io::Result<()> {
        Ok(())
    }
}

/// Regression: a disk that took seconds per bad sector held all compressors of the node for minutes.
#[test]
fn a_search_for_bad_sectors_occupies_no_compressor() {
    const COMPRESSORS: usize = 4;
    let part_bytes = MIB as usize;
    let memory = UploadMemory::new(64 * MIB, part_bytes);
    let making = making(part_bytes, COMPRESSORS);
    let sides = UnreadableSides {
        compressors: Arc::clone(&making.compressors),
        running: AtomicUsize::new(0),
        begun: Mutex::default(),
        free: Mutex::default(),
    };
    let mut parts = SegmentParts::new(&sides, room(&memory, FULL_NEED), full(10), making);
    assert!(block_on(parts.next()).is_err());
    assert_eq!(parts.into_segment().map(drop).unwrap_err().ranges.len(), 10);
    let is_search = |block: u64| block >= COMPRESSORS as u64;
    let free = sides.free.into_inner();
    assert!(
        free.iter().all(|(block, free)| *free >= if is_search(*block) { COMPRESSORS } else { 1 }),
        "{free:?}"
    );
    let begun = sides.begun.into_inner();
    assert!(begun.iter().all(|(block, running)| !is_search(*block) || *running == 0), "{begun:?}");
}

/// Regression: a compressor was returned with frames, which became part of another volume's segment.
#[test]
fn a_batch_holds_only_its_own_frames() {
    let memory = UploadMemory::new(64 * MIB, MIB as usize);
    let compressors = Arc::new(Compressors::new(1));
    let pack = || {
        let (room, dirty) = (room(&memory, FULL_NEED), full(8));
        let borrowed = compressors.try_borrow().expect("it is free");
        let mut batch = UploadBatch::new(dirty, 4..8, borrowed, false, room);
        batch.pack(&HoledSides::default());
        let mut builder = SegmentBuilder::default();
        builder.append(batch.finish().unwrap());
        builder.finish(id())
    };
    let own = pack();
    let mut borrowed = compressors.try_borrow().expect("it is free");
    borrowed.with_permit().0.builder.push(Block(1), Mask(1), &[7; SECTOR_BYTES as usize]);
    drop(borrowed);
    assert!(pack() == own, "it has a foreign frame");
}

/// Regression: all parts of the first upload after an outage were sent sequentially.
#[test]
fn a_trial_sends_more_at_once_after_its_first_part() {
    let part_bytes = MIB as usize;
    let memory = UploadMemory::new(64 * MIB, part_bytes);
    room(&memory, FULL_NEED).set_failing(true);
    let sides = HoledSides::default();
    let mut parts = SegmentParts::new(&sides, room(&memory, FULL_NEED), full(200), making(part_bytes, 2));
    assert_eq!(parts.max_at_once(), 1);
    assert!(block_on(parts.next()).is_ok());
    assert_eq!(parts.max_at_once(), 1, "the store has taken none yet");
    assert!(block_on(parts.next()).is_ok());
    assert_eq!(parts.max_at_once(), MAX_SENDING);
}

/// Regression: the memory of a seal was one growing buffer.
#[test]
fn an_upload_holds_no_more_than_was_granted() {
    let part_bytes = 2 << 20;
    let memory = UploadMemory::new(16 * MIB, part_bytes);
    let _attached = memory.attach(StoreKey(0));
    let need = MemoryNeed { base_bytes: MIB, part_bytes: part_bytes as u64 + batch_bytes(part_bytes) };
    let (sides, dirty) = (HoledSides::default(), full(512));
    let mut parts = SegmentParts::new(&sides, room(&memory, need), dirty, making(part_bytes, 4));
    let mut sending = Vec::new();
    // The store accepts nothing: parts are created until the memory is full, then none.
    while let Some(part) = next_of(&mut parts) {
        sending.push(part.expect("there are no holes").bytes);
        assert!(sending.len() < 8, "they are more than the memory");
    }
    assert!(sending.len() >= 5, "{} parts of 2 MiB in 16 MiB", sending.len());
    assert!(memory.peak_bytes() <= 16 * MIB);
    sending.clear();
    assert!(block_on(parts.next()).is_ok(), "a part was stored");
    drop(parts);
    assert_eq!(memory.held_bytes(), 0);
}

/// A disk whose batches are packed as soon as they start.
struct InstantSides;

impl Sides for InstantSides {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        batch.pack(&HoledSides::default());
        batch
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: holdfast_engine::settings::Pending) -> io::Result<()> {
        Ok(())
    }
}

/// A batch is in progress, and nothing polls it.
#[test]
fn an_unresponsive_store_occupies_no_compressor() {
    // The first batch fills a part.
    let part_bytes = 16 << 10;
    let memory = UploadMemory::new(64 * MIB, part_bytes);
    let making = making(part_bytes, 2);
    let compressors = Arc::clone(&making.compressors);
    let noisy = |block| DirtyBlock { block: Block(block), a: Mask::FULL, b: Mask::EMPTY };
    let dirty = [4, 6, 12, 18].map(noisy).into();
    let mut silent = SegmentParts::new(&InstantSides, room(&memory, FULL_NEED), dirty, making);
    assert!(block_on(silent.next()).is_ok());
    let free = [compressors.try_borrow(), compressors.try_borrow()];
    assert!(free.iter().all(Option::is_some));
}
