//! The stored pages of a memory volume: replacing, copying and discarding them.
//!
//! A page is replaced in this order:
//! 1. a free slot is taken, which no word names;
//! 2. the content is written into it;
//! 3. one store of the page's word names it;
//! 4. the slot that the word named before is free again.
//!
//! A process that ends between any two stores leaves a table whose words name whole contents. Its successor
//! derives the used slots from the table: a slot that was written and never named is free, and so is one
//! whose word was replaced. The kernel reissues a request that was not answered, and repeating a write
//! only changes the slots.
//!
//! A page that finds no slot goes to the spill file, if the volume has one (`disk_run.rs`): the caller
//! performs the [runs](StoredPages::disk_runs) that a request leaves. In place of steps 1 and 2 the disk
//! writes the page.
//!
//! Pages of sparse slabs move to other slabs by the same order while few slabs are left (`compaction.rs`).
//! So a volume whose limit is its size and 4 MiB always has a slot for a page.
//!
//! Owns: this order, the choice of a page's form, the volume's figures.
//! Runs on: one thread at a time, under the volume's lock. A request allocates nothing and runs no codec.
//! On failure: a page without a slot and without room on the disk keeps its content. A word that the volume
//! cannot have stored is damage: requests to its page fail, and the word stays unused and unchanged.

use holdfast_format::safeguard::{Safeguard, safeguard};

use crate::PAGE_BYTES;
use crate::codec::PageCodec;
use crate::compaction::Compaction;
use crate::disk_run::{DiskOperation, DiskRun, push_page};
use crate::figures::MemoryFigures;
use crate::growth::MemoryGrowth;
use crate::head::TableHead;
use crate::memory::PageMemory;
use crate::page_error::{PageError, RecoverError};
use crate::pool::{CLASS_BYTES, PAGE_CLASS, PageSlot, Pool, PoolRecovery, SLAB_BYTES, class_of};
use crate::same_filled::{fill, half};
use crate::word::{Form, Word};

/// Bytes in front of a compressed page: its length.
const LENGTH_BYTES: usize = 2;
/// Maximum size of a compressed page with its length: a page that takes more is stored as it is, and need not
/// be decompressed. In program files, lz4 compresses four pages in ten to more than three quarters, and one
/// in twenty to more than this.
const MOST_COMPRESSED: usize = PAGE_BYTES / 8 * 7;
/// An overwrite may take a slot that is longer than needed by one part in this many, to avoid another slab.
/// When 256 MiB of program files overwrite one another at random, 3.9 percent of the memory is outside used
/// slots with this rule, and 4.8 without it.
const NEAR: u8 = 8;

/// A page in the form in which it will be stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EncodedPage<'page> {
    /// This pattern, repeated.
    Filled(u64),
    /// Compressed, to [`MOST_COMPRESSED`](Self::MOST_COMPRESSED) bytes at most.
    Compressed(PageCodec, &'page [u8]),
    /// As it is.
    Plain(&'page [u8]),
    /// Not encoded: no slot was free.
    WithoutSlot,
}

impl EncodedPage<'_> {
    /// Maximum bytes of a compressed page.
    pub(crate) const MOST_COMPRESSED: usize = MOST_COMPRESSED - LENGTH_BYTES;
}

/// Part of the content of a page that was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageCopy {
    /// All of it.
    Whole,
    /// Its compressed bytes: their codec and number.
    Compressed(PageCodec, usize),
    /// None: the page is in the spill file.
    Spilled,
}

/// The stored pages of a volume.
#[derive(Debug)]
pub(crate) struct StoredPages<M> {
    memory: M,
    pages: u64,
    pool: Pool,
    /// Unused slab that keeps its memory, to be used next.
    spare: Option<u32>,
    compaction: Compaction,
    same_filled_pages: u64,
    compressed_pages: u64,
    plain_pages: u64,
    refused_pages: u64,
    spilled_pages: u64,
    /// Pages that are being written to the spill file, and those whose holes are being made.
    transit_pages: u64,
    spill_limit_pages: u64,
    /// Disk work of requests that the caller has not taken yet.
    disk_runs: Vec<DiskRun>,
}

impl<M: PageMemory> StoredPages<M> {
    /// Opens the volume in this memory, which is new (all zeros) or comes from a predecessor. Reads the whole
    /// table, 8 bytes a page, and returns to the system the memory that no page needs.
    ///
    /// # Errors
    /// [`RecoverError`]: the table is damaged, and nothing was changed.
    pub(crate) fn open(memory: M, head: &TableHead) -> Result<Self, RecoverError> {
        let mut volume = Self {
            memory,
            pages: head.pages,
            pool: Pool::new(0),
            spare: None,
            compaction: Compaction::default(),
            same_filled_pages: 0,
            compressed_pages: 0,
            plain_pages: 0,
            refused_pages: 0,
            spilled_pages: 0,
            transit_pages: 0,
            spill_limit_pages: head.spill_pages,
            disk_runs: Vec::new(),
        };
        let mut recovery = PoolRecovery::new(head.slabs);
        for page in 0..head.pages {
            let word = volume.memory.word(page);
            let word = Word::of(word).map_err(|source| RecoverError::Word { page, source })?;
            if let Some(slot) = word.slot() {
                recovery.take(slot).map_err(|source| RecoverError::Slot { page, source })?;
            }
            volume.count(word, 1);
        }
        volume.pool = recovery.finish();
        let (spilled, limit) = (volume.spilled_pages, volume.spill_limit_pages);
        if spilled > limit {
            return Err(RecoverError::Spilled { spilled, limit });
        }
        let mut begin = 0;
        for slab in 0..=head.slabs {
            if slab == head.slabs || volume.pool.is_in_use(slab) {
                if begin < slab {
                    volume.memory.give_back(begin..slab);
                }
                begin = slab + 1;
            }
        }
        Ok(volume)
    }

    /// Enlarges the volume and raises its limits. Returns the previous memory, as large as the volume was,
    /// for another thread to drop.
    ///
    /// # Panics
    /// If a limit or the volume shrinks, or the extension was created for another number of slabs.
    pub(crate) fn grow(&mut self, growth: MemoryGrowth<M>) -> M {
        let MemoryGrowth { memory, pages, slabs, spill_pages } = growth;
        assert!(pages >= self.pages && spill_pages >= self.spill_limit_pages, "a volume only grows");
        self.pool.grow(slabs);
        self.pages = pages;
        self.spill_limit_pages = spill_pages;
        std::mem::replace(&mut self.memory, memory)
    }

    /// Returns the current figures.
    #[must_use]
    pub(crate) const fn figures(&self) -> MemoryFigures {
        MemoryFigures {
            same_filled_pages: self.same_filled_pages,
            compressed_pages: self.compressed_pages,
            plain_pages: self.plain_pages,
            slot_bytes: self.pool.slot_bytes(),
            slab_bytes: self.pool.slabs_in_use() as u64 * SLAB_BYTES as u64,
            limit_bytes: self.pool.slabs() as u64 * SLAB_BYTES as u64,
            refused_pages: self.refused_pages,
            moved_pages: self.compaction.moved_pages(),
            spilled_pages: self.spilled_pages,
            spill_limit_pages: self.spill_limit_pages,
        }
    }

    /// Returns its memory.
    pub(crate) fn into_memory(self) -> M {
        self.memory
    }

    /// Returns its memory.
    pub(crate) const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns its memory, which a test damages.
    #[cfg(test)]
    pub(crate) const fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Returns the number of pages that are moving to the spill file or whose holes are being made.
    #[cfg(test)]
    pub(crate) const fn transit_pages(&self) -> u64 {
        self.transit_pages
    }

    /// Returns true if the pool has a free slot or a slab without a class.
    pub(crate) fn has_room(&self) -> bool {
        self.pool.has_room()
    }

    /// Replaces the content of a page. A page that finds no slot goes to the spill file: the caller performs
    /// the [runs](Self::disk_runs).
    ///
    /// # Errors
    /// [`PageError`]: the page is unchanged.
    ///
    /// # Panics
    /// If the volume has no page `page`.
    pub(crate) fn replace(&mut self, page: u64, new: &EncodedPage<'_>) -> Result<(), PageError> {
        match self.replace_in_memory(page, new) {
            Err(PageError::NoSpace) => self.spill(page),
            other => other,
        }
    }

    /// Makes a page read as zeros, and frees its slot or its room in the spill file.
    ///
    /// # Errors
    /// [`PageError::Damaged`]: the page is unchanged.
    ///
    /// # Panics
    /// If the volume has no page `page`.
    pub(crate) fn discard(&mut self, page: u64) -> Result<(), PageError> {
        let old = self.word(page)?;
        if old != Word::Zeros {
            self.publish(page, Word::Zeros);
            self.release(page, old);
        }
        Ok(())
    }

    /// Copies a page into `content`, or its compressed bytes into `compressed`.
    ///
    /// # Errors
    /// [`PageError::Damaged`].
    ///
    /// # Panics
    /// If the volume has no page `page`.
    pub(crate) fn copy(
        &self,
        page: u64,
        content: &mut [u8],
        compressed: &mut [u8; PAGE_BYTES],
    ) -> Result<PageCopy, PageError> {
        let compressed_by = |codec, slot: PageSlot, compressed: &mut [u8; PAGE_BYTES]| {
            let bytes = self.memory.bytes(slot.offset(), usize::from(slot.class()) * CLASS_BYTES);
            let (len, bytes) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
            let bytes = bytes.get(..usize::from(u16::from_le_bytes(*len)))?;
            compressed[..bytes.len()].copy_from_slice(bytes);
            Some(PageCopy::Compressed(codec, bytes.len()))
        };
        match self.word(page)? {
            Word::Zeros => content.fill(0),
            Word::Filled(half) => fill(content, u64::from(half) | u64::from(half) << 32),
            Word::Stored(Form::Pattern, slot) => {
                let pattern = self.memory.bytes(slot.offset(), size_of::<u64>());
                fill(content, u64::from_le_bytes(std::array::from_fn(|byte| pattern[byte])));
            }
            Word::Stored(Form::Plain, slot) => {
                content.copy_from_slice(self.memory.bytes(slot.offset(), PAGE_BYTES));
            }
            Word::Stored(Form::Lz4, slot) => {
                return compressed_by(PageCodec::Lz4, slot, compressed).ok_or(PageError::Damaged(page));
            }
            Word::Stored(Form::Zstd, slot) => {
                return compressed_by(PageCodec::Zstd, slot, compressed).ok_or(PageError::Damaged(page));
            }
            Word::Spilled => return Ok(PageCopy::Spilled),
        }
        Ok(PageCopy::Whole)
    }

    /// Returns true if the word of a page says that it is in the spill file.
    pub(crate) fn is_spilled(&self, page: u64) -> bool {
        self.memory.word(page) == Word::Spilled.bits()
    }

    /// Returns the disk work that was added since the caller last emptied the list.
    pub(crate) const fn disk_runs(&mut self) -> &mut Vec<DiskRun> {
        &mut self.disk_runs
    }

    /// Records the end of a run whose first `done` pages the disk has written. May add more runs.
    pub(crate) fn disk_ended(&mut self, run: &DiskRun, done: u32) {
        let &DiskRun { operation, first, pages, held } = run;
        let end = first + u64::from(done.min(pages));
        match operation {
            // No word changes.
            DiskOperation::Read | DiskOperation::Rewrite => {}
            DiskOperation::Hole => self.transit_pages -= u64::from(held),
            DiskOperation::Write => {
                for page in first..end {
                    // The page keeps its slot until here. A word that was damaged meanwhile stays as it is.
                    if let Ok(old) = self.word(page) {
                        self.publish_spilled(page, old);
                    }
                }
                self.transit_pages -= end - first;
                // The disk may have written some of the other pages.
                for page in end..first + u64::from(pages) {
                    push_page(&mut self.disk_runs, DiskOperation::Hole, page);
                }
            }
        }
    }

    /// Counts pages for which the disk had no room.
    pub(crate) const fn refuse(&mut self, pages: u32) {
        self.refused_pages += pages as u64;
    }

    /// Adds a disk run that writes a page without a slot to the spill file.
    #[cold]
    fn spill(&mut self, page: u64) -> Result<(), PageError> {
        let old = self.word(page)?;
        if old == Word::Spilled {
            push_page(&mut self.disk_runs, DiskOperation::Rewrite, page);
            return Ok(());
        }
        if !self.can_spill(old) {
            return Err(PageError::NoSpace);
        }
        self.transit_pages += 1;
        push_page(&mut self.disk_runs, DiskOperation::Write, page);
        if !safeguard(Safeguard::SpillBeforeWord) {
            self.publish_spilled(page, old);
        } else if !safeguard(Safeguard::KeepSlotWhileSpilling)
            && let Some(slot) = old.slot()
        {
            self.pool.free(slot);
        }
        Ok(())
    }

    /// Returns true if the spill file may have a page with this word.
    fn can_spill(&self, old: Word) -> bool {
        old == Word::Spilled || self.spilled_pages + self.transit_pages < self.spill_limit_pages
    }

    fn publish_spilled(&mut self, page: u64, old: Word) {
        if old != Word::Spilled {
            self.publish(page, Word::Spilled);
            self.release(page, old);
        }
    }

    /// Returns the word of a page. Only the volume writes words, so one without a meaning, or with a slot
    /// that is not used, is damage.
    fn word(&self, page: u64) -> Result<Word, PageError> {
        assert!(page < self.pages, "the page is the volume's");
        let word = Word::of(self.memory.word(page)).map_err(|_meaningless| PageError::Damaged(page))?;
        let is_whole = word.slot().is_none_or(|slot| self.pool.has(slot));
        if is_whole { Ok(word) } else { Err(PageError::Damaged(page)) }
    }

    fn replace_in_memory(&mut self, page: u64, new: &EncodedPage<'_>) -> Result<(), PageError> {
        let old = self.word(page)?;
        if !safeguard(Safeguard::FreeSlotAfterWord) {
            self.release(page, old);
        }
        let new = match *new {
            EncodedPage::Filled(0) => {
                self.publish(page, Word::Zeros);
                Word::Zeros
            }
            EncodedPage::Filled(pattern) => match half(pattern) {
                Some(half) => {
                    self.publish(page, Word::Filled(half));
                    Word::Filled(half)
                }
                None => self.store(page, old, Form::Pattern, &[&pattern.to_le_bytes()])?,
            },
            EncodedPage::Compressed(codec, bytes) => {
                let len = u16::try_from(bytes.len()).expect("it is less than a page");
                self.store(page, old, codec.form(), &[&len.to_le_bytes(), bytes])?
            }
            EncodedPage::Plain(content) => self.store(page, old, Form::Plain, &[content])?,
            EncodedPage::WithoutSlot => return Err(PageError::NoSpace),
        };
        debug_assert_eq!(self.memory.word(page), new.bits(), "the page was published");
        if safeguard(Safeguard::FreeSlotAfterWord) {
            self.release(page, old);
        }
        Ok(())
    }

    /// Performs steps 1 to 3 for content that needs a slot.
    fn store(&mut self, page: u64, old: Word, form: Form, content: &[&[u8]]) -> Result<Word, PageError> {
        let len_bytes = content.iter().map(|part| part.len()).sum();
        let slot = self.take(class_of(len_bytes), page, old)?;
        Ok(self.fill_slot(page, Word::Stored(form, slot), slot, content))
    }

    /// Performs steps 2 and 3: writes the content into a slot that was taken, and publishes the word.
    fn fill_slot(&mut self, page: u64, word: Word, slot: PageSlot, content: &[&[u8]]) -> Word {
        if !safeguard(Safeguard::StoreSlotFirst) {
            self.publish(page, word);
        }
        let mut at = slot.offset();
        for part in content {
            self.memory.write(at, part);
            at += part.len() as u64;
        }
        if safeguard(Safeguard::StoreSlotFirst) {
            self.publish(page, word);
        }
        word
    }

    /// Takes a slot of a class for a page. If no slab can get the class, this takes a free slot of a greater
    /// class; for an overwrite it tries slightly greater classes before it begins a slab.
    pub(crate) fn take(&mut self, class: u8, page: u64, old: Word) -> Result<PageSlot, PageError> {
        let largest = if old.slot().is_some() { class + class / NEAR } else { class };
        if let Some(slot) = (class..=largest.min(PAGE_CLASS)).find_map(|class| self.pool.take(class)) {
            return Ok(slot);
        }
        let can_spill = self.can_spill(old);
        if self.compaction.is_due(&self.pool) {
            self.compact((page, old), can_spill);
        }
        if let Some(slot) = self.begin_slab(class) {
            return Ok(slot);
        }
        if let Some(slot) = (class + 1..=PAGE_CLASS).find_map(|class| self.pool.take(class)) {
            return Ok(slot);
        }
        while !can_spill && self.compaction.gain(&self.pool) > 0 {
            let continues = self.compact((page, old), false);
            if self.spare.is_some() {
                return self.begin_slab(class).ok_or(PageError::NoSpace);
            }
            if !continues {
                break;
            }
        }
        Err(PageError::NoSpace)
    }

    /// Gives the next slab a class and takes its first slot, if the limit and the system have room for it.
    fn begin_slab(&mut self, class: u8) -> Option<PageSlot> {
        let slab = self.pool.next_slab()?;
        if self.spare == Some(slab) {
            self.spare = None;
        } else {
            self.compaction.is_short = self.memory.take_slab(slab).is_err();
            if self.compaction.is_short {
                return None;
            }
        }
        Some(self.pool.take_first(class))
    }

    /// Moves pages of sparse slabs, but not `busy`, whose word the caller has read. Returns false if no page
    /// of the table can move.
    #[cold]
    fn compact(&mut self, (busy, old): (u64, Word), can_spill: bool) -> bool {
        let step = Compaction::step(&self.pool, self.pages, can_spill);
        let (mut words, mut bytes) = (0, 0);
        while words < step.words && bytes < step.bytes {
            words += 1;
            let page = self.compaction.next_page(self.pages);
            let stays = page == busy && safeguard(Safeguard::KeepReplacedPage);
            if let Some(slot) = if stays { None } else { self.move_page(page) } {
                self.compaction.moved();
                bytes += slot.len_bytes();
            }
        }
        if bytes > 0 || !self.compaction.idle(words, self.pages) {
            return true;
        }
        // The page that is being replaced was skipped, and can move later.
        if !old.slot().is_some_and(|slot| self.pool.is_movable(slot)) {
            self.compaction.found_none(&self.pool);
        }
        false
    }

    /// Moves a page to another slab. Returns its new slot, or `None` if the page stays: its slab is dense,
    /// the move would not help to free a slab, the page has no slot, or it is damaged.
    fn move_page(&mut self, page: u64) -> Option<PageSlot> {
        let Ok(old @ Word::Stored(form, from)) = self.word(page) else { return None };
        let slot = self.pool.take_denser(from)?;
        let mut content = [0; PAGE_BYTES];
        let content = &mut content[..from.len_bytes()];
        content.copy_from_slice(self.memory.bytes(from.offset(), from.len_bytes()));
        self.fill_slot(page, Word::Stored(form, slot), slot, &[content]);
        self.release(page, old);
        Some(slot)
    }

    fn publish(&mut self, page: u64, word: Word) {
        self.memory.set_word(page, word.bits());
        self.count(word, 1);
    }

    /// Frees the slot of a page's old word, or its room in the spill file.
    fn release(&mut self, page: u64, old: Word) {
        self.count(old, -1);
        if old == Word::Spilled {
            self.transit_pages += 1;
            push_page(&mut self.disk_runs, DiskOperation::Hole, page);
        }
        if let Some(slot) = old.slot()
            && let Some(slab) = self.free(slot)
        {
            // The slab is used next and keeps its memory; the previous spare slab loses its own.
            if let Some(before) = self.spare.replace(slab) {
                self.memory.give_back(before..before + 1);
            }
        }
    }

    fn free(&mut self, slot: PageSlot) -> Option<u32> {
        self.compaction.freed();
        self.pool.free(slot)
    }

    fn count(&mut self, word: Word, change: i64) {
        let pages = match word {
            Word::Zeros => return,
            Word::Filled(_) | Word::Stored(Form::Pattern, _) => &mut self.same_filled_pages,
            Word::Stored(Form::Lz4 | Form::Zstd, _) => &mut self.compressed_pages,
            Word::Stored(Form::Plain, _) => &mut self.plain_pages,
            Word::Spilled => &mut self.spilled_pages,
        };
        *pages = pages.wrapping_add_signed(change);
    }
}

#[cfg(test)]
mod tests;
