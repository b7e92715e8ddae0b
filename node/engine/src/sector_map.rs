//! The live sector map: for each sector, the location of its newest bytes, and the sides on which it is
//! dirty.
//!
//! The map is in memory that outlives the process (a tmpfs file) but not the host; `layout.rs` describes its
//! bytes. A chunk without local data releases its 16 KiB (`volume/give_back.rs`).
//! Owns: these bytes. Runs on: the ring thread that owns the volume, alone.
//! Invariants: a chunk's bytes are accessed only after its allocated bit was set; the newest copy of a sector
//! that is dirty on the active side is on the active side.
//!
//! A dirty sector *counts* for the side on which it is dirty, unless its newest copy is there and is zeros:
//! zeros take no space and almost no upload. An older copy always counts, because it has no flag for zeros.

mod block_set;
mod layout;
mod nibble;
mod page_set;
mod restored;
mod side;

use std::sync::atomic::{Ordering, compiler_fence};

use holdfast_format::safeguard::{
    Safeguard::{ActiveSideIsNewest, ResumeAsGrown, WriteEndsZeros},
    safeguard,
};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{
    BLOCK_SECTORS, Block, CHUNK_SECTORS, Chunk, Epoch, Mask, Millis, Sector, SectorRange, Seq, VolumeId,
};

pub(crate) use block_set::{BlockSet, Blocks, PAGE_BLOCKS};
use layout::{
    ACTIVE_AT, EPOCH_AT, GROUP_CHUNKS, GROUP_SECTORS, MAGIC, SECTORS_AT, SEQ_AT, VERSION, index, nibble_at,
    prepared_at, side_at, since_at, slot_at, volume_hash,
};
pub(crate) use layout::{BLOCK_MAP_BYTES, chunk_pages};
pub use layout::{
    HEAD_BYTES, LiveMapError, PAGE_BYTES, PAGE_SECTORS, chunk_extent, fixed_extents, map_bytes, sectors_of,
};
pub(crate) use nibble::Nibble;
use nibble::Nibbles;
pub(crate) use page_set::PageSet;
pub use restored::{Restore, RestoredMap};
pub use side::Newest;
pub(crate) use side::PerSide;
use side::{dirty_bit, newest_bits};

/// Sectors per word of the map.
const WORD_SECTORS: u64 = 16;
/// Flag in the byte of [`SectorMap::flushed_sides`].
const SYNC_FAILED: u8 = 128;

/// Scope of a commit of dirty data: one side at a time, or both together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CommitScope {
    /// One side at a time.
    OneSide = 0,
    /// Both sides, before the volume serves: the loss of the host left both dirty.
    BothBeforeServing = 1,
    /// Both sides, while the volume serves requests.
    Both = 2,
}

/// The map over memory `M`.
pub struct SectorMap<M> {
    memory: M,
    sectors: u64,
    /// Cached from the memory when it is opened: each request needs it.
    active: Side,
    counted: PerSide<u64>,
}

#[inline]
fn is_in_one_chunk(range: SectorRange) -> bool {
    range.end() <= (range.start.chunk().0 + 1) * CHUNK_SECTORS
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> SectorMap<M> {
    fn over(memory: M, sectors: u64) -> Self {
        assert!(memory.as_ref().len() as u64 >= map_bytes(sectors), "the memory holds the whole map");
        let active = side_at(memory.as_ref());
        Self { memory, sectors, active, counted: PerSide::default() }
    }

    /// Every change of the map goes through this function. The process may be killed between any two changes,
    /// and its successor must find one of the states in between: the compiler must not move a store past a
    /// later change. The processor needs no fence, because every executed store reaches the memory and the
    /// successor starts after the process has exited.
    fn bytes_mut(&mut self) -> &mut [u8] {
        compiler_fence(Ordering::SeqCst);
        self.memory.as_mut()
    }

    /// Creates a map over zeroed memory, with every sector remote and clean, or over that of a
    /// [`RestoredMap`]. It cannot be opened before `publish`.
    ///
    /// # Panics
    /// If the memory is shorter than [`map_bytes`].
    pub fn format(memory: M, sectors: u64, volume: &VolumeId) -> Self {
        let mut map = Self::over(memory, sectors);
        let head = map.bytes_mut();
        head[8..16].copy_from_slice(&sectors.to_le_bytes());
        head[16..32].copy_from_slice(&volume_hash(volume));
        head[4..8].copy_from_slice(&VERSION.to_le_bytes());
        map
    }

    /// Marks the map as complete: from here on a successor may open it.
    pub(crate) fn publish(&mut self) {
        self.bytes_mut()[..4].copy_from_slice(&MAGIC);
    }

    /// Opens the map of a dead predecessor. A map for a smaller volume becomes one of `sectors` sectors;
    /// one for a larger volume keeps its size: the predecessor crashed while the volume grew.
    ///
    /// # Errors
    /// [`LiveMapError`] if these bytes are not the volume's map.
    pub fn open(memory: M, sectors: u64, volume: &VolumeId) -> Result<Self, LiveMapError> {
        let found = sectors_of(memory.as_ref(), volume)?;
        let sectors = if safeguard(ResumeAsGrown) { sectors.max(found) } else { sectors };
        let (bytes, needed) = (memory.as_ref().len() as u64, map_bytes(sectors));
        if bytes < needed {
            return Err(LiveMapError::Size { found: bytes, sectors, needed });
        }
        let mut map = Self::over(memory, sectors);
        if found < sectors {
            map.set_number(SECTORS_AT, sectors);
        }
        Ok(map)
    }

    /// Returns the memory, to replace it with a longer mapping of the same bytes.
    pub(crate) fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Grows the map to this many sectors.
    ///
    /// # Panics
    /// If the memory is shorter than [`map_bytes`].
    pub(crate) fn grow(&mut self, sectors: u64) {
        assert!(self.memory.as_ref().len() as u64 >= map_bytes(sectors), "a longer map was mapped before");
        self.sectors = sectors;
        self.set_number(SECTORS_AT, sectors);
    }

    /// Returns the number of sectors of the volume.
    #[inline]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the number of map pages.
    pub fn pages(&self) -> u64 {
        self.sectors.div_ceil(PAGE_SECTORS)
    }

    #[inline]
    pub(crate) fn active(&self) -> Side {
        self.active
    }

    pub(crate) fn set_active(&mut self, side: Side) {
        self.bytes_mut()[ACTIVE_AT] = side as u8;
        self.active = side;
    }

    /// Returns the scope of the next commit of dirty data.
    pub(crate) fn commit_scope(&self) -> CommitScope {
        match self.memory.as_ref()[41] {
            0 => CommitScope::OneSide,
            1 => CommitScope::BothBeforeServing,
            _ => CommitScope::Both,
        }
    }

    pub(crate) fn set_commit_scope(&mut self, scope: CommitScope) {
        self.bytes_mut()[41] = scope as u8;
    }

    /// Returns the sides that were dirty when the last successful flush round began, and were not
    /// committed since: the durable map covers their contents.
    pub(crate) fn flushed_sides(&self) -> SideSet {
        SideSet::from_bits(self.memory.as_ref()[42] & 3).expect("two bits")
    }

    pub(crate) fn set_flushed_sides(&mut self, sides: SideSet) {
        let byte = &mut self.bytes_mut()[42];
        *byte = (*byte & !3) | sides.bits();
    }

    /// Returns true if a sync of a side or of the durable map failed since the attach.
    pub(crate) fn is_sync_failed(&self) -> bool {
        self.memory.as_ref()[42] & SYNC_FAILED != 0
    }

    pub(crate) fn set_sync_failed(&mut self) {
        self.bytes_mut()[42] |= SYNC_FAILED;
    }

    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.memory.as_ref()[at..at + 8].try_into().expect("8 bytes"))
    }

    fn set_number(&mut self, at: usize, number: u64) {
        self.bytes_mut()[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }

    /// Returns the time since which `side` is dirty, by the clock of the host; meaningless while it is clean.
    pub(crate) fn dirty_since(&self, side: Side) -> Millis {
        self.number(since_at(side))
    }

    pub(crate) fn set_dirty_since(&mut self, side: Side, since: Millis) {
        self.set_number(since_at(side), since);
    }

    /// Returns the epoch of the attach; the durable header may still have the previous one.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.number(EPOCH_AT))
    }

    pub(crate) fn set_epoch(&mut self, epoch: Epoch) {
        self.set_number(EPOCH_AT, epoch.0);
    }

    /// Returns the newest record that a writer of this map knew; clean data may be in the store only with
    /// this record.
    pub(crate) fn seq(&self) -> Seq {
        Seq(self.number(SEQ_AT))
    }

    pub(crate) fn set_seq(&mut self, seq: Seq) {
        self.set_number(SEQ_AT, seq.0);
    }

    /// Returns the generation of the newest durable write; each write takes the next.
    pub(crate) fn generation(&self) -> u64 {
        self.number(32)
    }

    pub(crate) fn set_generation(&mut self, generation: u64) {
        self.set_number(32, generation);
    }

    /// Returns the durable slot of `page` that holds its last synced bytes; `None` before its first sync.
    pub(crate) fn synced_slot(&self, page: u64) -> Option<u8> {
        let at = index(slot_at(page));
        let bits = (self.memory.as_ref()[at] >> (page % 4 * 2)) & 3;
        (bits != 0).then_some(u8::from(bits != 1))
    }

    pub(crate) fn set_synced_slot(&mut self, page: u64, slot: Option<u8>) {
        let at = index(slot_at(page));
        let byte = &mut self.bytes_mut()[at];
        let shift = page % 4 * 2;
        *byte = (*byte & !(3 << shift)) | (slot.map_or(0, |slot| slot + 1) << shift);
    }

    /// Returns true if the chunk's part of the map may be accessed; otherwise every sector of it is remote
    /// and clean.
    #[inline(always)] // of each request
    pub(crate) fn is_prepared(&self, chunk: Chunk) -> bool {
        self.memory.as_ref()[index(prepared_at(chunk))] & (1 << (chunk.0 % 8)) != 0
    }

    /// Marks the chunk's part of the map as allocated and zeroed.
    pub(crate) fn set_prepared(&mut self, chunk: Chunk) {
        self.bytes_mut()[index(prepared_at(chunk))] |= 1 << (chunk.0 % 8);
    }

    /// Marks the chunk's part of the map as not allocated if it is allocated and every sector is remote
    /// and clean. Returns true if it did.
    pub(crate) fn unprepare(&mut self, chunk: Chunk) -> bool {
        let (offset, length) = chunk_extent(chunk);
        let at = index(offset);
        let holds_nothing = self.is_prepared(chunk)
            && self.memory.as_ref()[at..at + index(length)].iter().all(|nibbles| *nibbles == 0);
        if holds_nothing {
            self.bytes_mut()[index(prepared_at(chunk))] &= !(1 << (chunk.0 % 8));
        }
        holds_nothing
    }

    /// Returns true if any chunk is prepared; all data ever written to other chunks is committed.
    pub(crate) fn is_any_prepared(&self) -> bool {
        let memory = self.memory.as_ref();
        (0..self.sectors.div_ceil(GROUP_SECTORS)).any(|group| {
            let at = index(prepared_at(Chunk(group * GROUP_CHUNKS)));
            memory[at..at + (GROUP_CHUNKS / 8) as usize].iter().any(|byte| *byte != 0)
        })
    }

    /// Returns the pages of the prepared chunks.
    pub(crate) fn prepared_pages(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.sectors.div_ceil(CHUNK_SECTORS))
            .filter(|chunk| self.is_prepared(Chunk(*chunk)))
            .flat_map(move |chunk| chunk_pages(Chunk(chunk)).filter(|page| *page < self.pages()))
    }

    pub(crate) fn page(&self, page: u64) -> &[u8] {
        let at = index(nibble_at(page * PAGE_SECTORS));
        &self.memory.as_ref()[at..at + PAGE_BYTES]
    }

    /// Returns the map's part of a block.
    pub(crate) fn block(&self, block: Block) -> [u8; BLOCK_MAP_BYTES] {
        let at = index(nibble_at(block.first_sector().0));
        *self.memory.as_ref()[at..].first_chunk().expect("a page has whole blocks")
    }

    /// Returns those of the 128 blocks after `block`, the next one in the lowest bit, with any sector on
    /// no side. Blocks past the end of the volume are not included.
    pub(crate) fn remote_after(&self, block: Block) -> u128 {
        let after = (block.0 + 1..self.sectors.div_ceil(BLOCK_SECTORS)).take(u128::BITS as usize);
        (0..)
            .zip(after)
            .fold(0, |remote, (bit, block)| remote | u128::from(self.has_remote(Block(block))) << bit)
    }

    fn has_remote(&self, block: Block) -> bool {
        let is_remote = |word: &[u8; 8]| Nibbles(u64::from_le_bytes(*word)).any_remote();
        !self.is_prepared(block.chunk()) || self.block(block).as_chunks().0.iter().any(is_remote)
    }

    /// Sets the map's part of whole blocks, from `block` on.
    fn set_blocks(&mut self, block: Block, bytes: &[u8]) {
        let at = index(nibble_at(block.first_sector().0));
        self.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[inline(always)] // of each read and write
    fn nibble(&self, sector: u64) -> Nibble {
        let byte = self.memory.as_ref()[index(nibble_at(sector))];
        Nibble((byte >> ((sector % 2) * 4)) & 15)
    }

    /// Returns the sixteen sectors that include `sector`.
    fn nibbles(&self, sector: u64) -> Nibbles {
        let at = index(nibble_at(sector - sector % WORD_SECTORS));
        let bytes = self.memory.as_ref()[at..].first_chunk().expect("a chunk has whole words");
        Nibbles(u64::from_le_bytes(*bytes))
    }

    /// Counts the sectors before `end` that are in the same state as the first of them, `sector`: at least
    /// that one, at most those of its word. Returns their number and state.
    fn alike(&self, sector: u64, end: u64) -> (u64, Nibble) {
        let (alike, nibble) = self.nibbles(sector).alike(sector % WORD_SECTORS);
        (alike.min(end - sector), nibble)
    }

    /// Changes `sectors` sectors from `first` on, in one word and all `old`, to `new`. Returns true if
    /// they differ. A process that dies meanwhile leaves each sector either old or new, because a sector's
    /// bits are in one byte, whose other bits do not change.
    fn set_alike(&mut self, (first, sectors): (u64, u64), old: Nibble, new: Nibble) -> bool {
        if new == old {
            return false;
        }
        let word = self.nibbles(first).with(first % WORD_SECTORS, sectors, new);
        let at = index(nibble_at(first - first % WORD_SECTORS));
        self.bytes_mut()[at..at + 8].copy_from_slice(&word.0.to_le_bytes());
        for side in Side::BOTH {
            let counted = &mut self.counted[side];
            *counted =
                *counted + sectors * u64::from(new.counts(side)) - sectors * u64::from(old.counts(side));
        }
        true
    }

    /// Applies `new` to each sector of `range`. Returns true if the map changed. Equal sectors in one word
    /// change together.
    fn change(&mut self, range: SectorRange, new: impl Fn(&Self, Nibble) -> Nibble) -> bool {
        let (mut sector, mut changed) = (range.start.0, false);
        while sector < range.end() {
            let (alike, old) = self.alike(sector, range.end());
            let new = new(self, old);
            changed |= self.set_alike((sector, alike), old, new);
            sector += alike;
        }
        changed
    }

    /// Counts the dirty sectors of `page`, which was not counted yet. Returns the blocks with any.
    pub(crate) fn count(&mut self, page: u64) -> PerSide<Blocks> {
        let mut dirty = PerSide::<Blocks>::default();
        let first = page * PAGE_SECTORS;
        let end = (first + PAGE_SECTORS).min(self.sectors);
        let at = index(nibble_at(first));
        let whole = self.memory.as_ref()[at..].first_chunk::<PAGE_BYTES>().expect("a chunk has whole pages");
        for (index, word) in (0..).zip(whole.as_chunks::<8>().0) {
            let word = u64::from_le_bytes(*word);
            // Most sectors of a page, and all sectors of most pages, are only in the store.
            if word != 0 {
                let left = end.saturating_sub(first + u64::from(index) * 16);
                let nibbles = Nibbles(if left >= 16 { word } else { word & ((1 << (4 * left)) - 1) });
                for side in Side::BOTH {
                    if nibbles.any_dirty(side) {
                        dirty[side].insert(index / 2);
                    }
                    self.counted[side] += u64::from(nibbles.counted(side));
                }
            }
        }
        dirty
    }

    /// Returns the number of sectors that count as dirty in `side`.
    pub(crate) fn counted(&self, side: Side) -> u64 {
        self.counted[side]
    }

    pub(crate) fn newest(&self, sector: u64) -> Newest {
        if self.is_prepared(Sector(sector).chunk()) { self.nibble(sector).newest() } else { None }
    }

    /// Returns the first run of sectors of `range` with the same `newest`, cut at chunk borders.
    pub(crate) fn first_run(&self, range: SectorRange) -> (SectorRange, Newest) {
        let chunk = range.start.chunk();
        let stop = range.end().min((chunk.0 + 1) * CHUNK_SECTORS);
        let first = self.newest(range.start.0);
        let mut end = range.start.0 + 1;
        if self.is_prepared(chunk) {
            while end < stop {
                let (alike, nibble) = self.alike(end, stop);
                if nibble.newest() != first {
                    break;
                }
                end += alike;
            }
        } else {
            end = stop;
        }
        (SectorRange::new(range.start.0, end - range.start.0), first)
    }

    /// Returns the side that has the newest bytes of all of `range`, if the range is in one chunk.
    #[inline(always)] // of each read
    pub(crate) fn newest_of_all(&self, range: SectorRange) -> Newest {
        if !is_in_one_chunk(range) || !self.is_prepared(range.start.chunk()) {
            return None;
        }
        let first = self.nibble(range.start.0);
        let side = first.newest()?;
        // Most requests have one sector.
        if range.sectors == 1 {
            return Some(side);
        }
        (self.are_all(range, first) || self.first_run(range) == (range, Some(side))).then_some(side)
    }

    /// Returns true if `range` is in one chunk and each of its sectors is `nibble`. The bytes after a chunk's
    /// sectors may belong to the next chunk, or to the start of the next group.
    #[inline(always)] // of each read and write
    fn are_all(&self, range: SectorRange, nibble: Nibble) -> bool {
        if range.sectors == 1 {
            return self.nibble(range.start.0) == nibble;
        }
        if range.sectors == 0 || !is_in_one_chunk(range) {
            return false;
        }
        let (first, last) = (range.start.0 / WORD_SECTORS, (range.end() - 1) / WORD_SECTORS);
        let at = index(nibble_at(first * WORD_SECTORS));
        let words = &self.memory.as_ref()[at..at + 8 * (last - first + 1) as usize];
        Nibbles::are_all(words.as_chunks::<8>().0, range.start.0 % WORD_SECTORS, range.sectors, nibble)
    }

    /// Records a write of `range` to `side`. Returns true if the map changed.
    #[inline(always)] // of each write
    pub(crate) fn mark_written(&mut self, range: SectorRange, side: Side) -> bool {
        // Overwrites of dirty sectors are the most frequent writes to a volume in use.
        let as_written = Nibble::encode(side, dirty_bit(side), false);
        if side == self.active() && self.are_all(range, as_written) {
            return false;
        }
        self.change(range, |map, old| map.marked(old, side, false))
    }

    /// Invariant 2: a completion on the formerly active side never hides a newer copy in the active one.
    fn marked(&self, old: Nibble, side: Side, zeros: bool) -> Nibble {
        let dirty = old.0 & Nibble::DIRTY | dirty_bit(side);
        let active = self.active();
        let hidden = side != active && old.is_dirty(active) && safeguard(ActiveSideIsNewest);
        if hidden {
            Nibble::encode(active, dirty, old.is_zeros())
        } else {
            let is_ended = safeguard(WriteEndsZeros) || !old.is_zeros();
            Nibble::encode(side, dirty, zeros || !is_ended)
        }
    }

    /// Appends the sectors of `range` that are not dirty in `side` to `rest`.
    pub(crate) fn not_dirty(&self, range: SectorRange, side: Side, rest: &mut Vec<SectorRange>) {
        for sector in range.start.0..range.end() {
            if !self.nibble(sector).is_dirty(side) {
                append(rest, SectorRange::new(sector, 1));
            }
        }
    }

    /// Records a failed write of `range` to `side`: if the side held the newest bytes, they may now be the
    /// old or the new ones, so they count as different from the object store and not as zeros. Returns true
    /// if the map changed.
    pub(crate) fn mark_uncertain(&mut self, range: SectorRange, side: Side) -> bool {
        self.change(range, |_, old| {
            let dirty = old.0 & Nibble::DIRTY | dirty_bit(side);
            if old.newest() == Some(side) { Nibble::encode(side, dirty, false) } else { old }
        })
    }

    /// Records zeros in `side` for the sectors of `range` that may hold data; the others stay unmarked.
    /// Returns true if the map changed.
    pub(crate) fn mark_zeroed(&mut self, range: SectorRange, side: Side, remote_data: bool) -> bool {
        self.change(range, |map, old| {
            if remote_data || old.newest().is_some() { map.marked(old, side, true) } else { old }
        })
    }

    /// Returns the sectors of these blocks of `page` that are dirty in `side`, block by block.
    pub(crate) fn dirty_blocks(
        &self,
        page: u64,
        blocks: Blocks,
        side: Side,
    ) -> impl Iterator<Item = (Block, Mask)> + '_ {
        let dirty = in_each(dirty_bit(side));
        blocks.iter().filter_map(move |number| {
            let block = Block(page * PAGE_BLOCKS + u64::from(number));
            let start = block.first_sector().0;
            let mut left = u128::from_le_bytes(self.block(block)) & dirty;
            let mut mask = 0u32;
            while left != 0 {
                let sector = left.trailing_zeros() / 4;
                if start + u64::from(sector) < self.sectors {
                    mask |= 1 << sector;
                }
                left &= left - 1;
            }
            (mask != 0).then_some((block, Mask(mask)))
        })
    }

    /// Marks the clean data of `side` in `page` as remote, in every block without a dirty sector on the side.
    /// Appends the ranges of those blocks, even if the side did not hold their newest bytes. Returns the
    /// number of sectors that became remote, and their blocks.
    pub(crate) fn release(&mut self, page: u64, side: Side, ranges: &mut Vec<SectorRange>) -> (u64, Blocks) {
        let first = page * PAGE_SECTORS;
        let end = (first + PAGE_SECTORS).min(self.sectors);
        let (newest, dirty) = (in_each(newest_bits(side)), in_each(dirty_bit(side)));
        let elsewhere = in_each(newest_bits(side.other()));
        let (mut released, mut changed) = (0, Blocks::default());
        for (number, block) in
            (0..).zip(SectorRange::new(first, end - first).split_at_multiples(BLOCK_SECTORS))
        {
            let at = index(nibble_at(block.start.0));
            let bytes = &self.memory.as_ref()[at..at + 16];
            let nibbles = u128::from_ne_bytes(bytes.try_into().expect("16 bytes"));
            if nibbles & dirty != 0 {
                continue;
            }
            // Both bits together mean that the other side holds zeros.
            let both = match side {
                Side::A => (nibbles & elsewhere) >> 1,
                Side::B => (nibbles & elsewhere) << 1,
            };
            let punchable = nibbles & newest & !both;
            if punchable != 0 {
                released += u64::from(punchable.count_ones());
                changed.insert(number);
                self.bytes_mut()[at..at + 16].copy_from_slice(&(nibbles & !punchable).to_ne_bytes());
            }
            append(ranges, block);
        }
        (released, changed)
    }

    /// Marks as remote every sector of `range` that is dirty on no side but has its newest bytes on one.
    /// Returns the number of sectors that became remote.
    pub(crate) fn forget_clean(&mut self, range: SectorRange) -> u64 {
        let mut forgotten = 0;
        for sector in range.start.0..range.end() {
            // Only of a prepared chunk may the map be read.
            if self.newest(sector).is_none() {
                continue;
            }
            let old = self.nibble(sector);
            if old.0 & Nibble::DIRTY == 0 {
                self.set_alike((sector, 1), old, Nibble::REMOTE);
                forgotten += 1;
            }
        }
        forgotten
    }

    /// Clears the dirty mark of `side` in every sector of these blocks of `page`; the data stays as cache.
    pub(crate) fn clear_dirty(&mut self, page: u64, blocks: Blocks, side: Side) {
        let mut uncounted = 0;
        for number in blocks.iter() {
            let at = index(nibble_at(page * PAGE_SECTORS)) + number as usize * BLOCK_MAP_BYTES;
            for word in self.bytes_mut()[at..at + BLOCK_MAP_BYTES].as_chunks_mut::<8>().0 {
                let nibbles = Nibbles(u64::from_le_bytes(*word));
                if nibbles.any_dirty(side) {
                    uncounted += u64::from(nibbles.counted(side));
                    *word = nibbles.clean(side).0.to_le_bytes();
                }
            }
        }
        self.counted[side] -= uncounted;
    }
}

/// Returns the map's part of a block, 16 bytes, with `nibble` for every sector.
const fn in_each(nibble: u8) -> u128 {
    u128::from_ne_bytes([nibble | (nibble << 4); 16])
}

/// Appends `range`, merged with the last one if they are adjacent.
pub(crate) fn append(ranges: &mut Vec<SectorRange>, range: SectorRange) {
    match ranges.last_mut() {
        Some(last) if last.end() == range.start.0 => last.sectors += range.sectors,
        Some(_) | None => ranges.push(range),
    }
}

#[cfg(test)]
mod tests;
