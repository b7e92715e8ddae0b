//! A memory volume: its pages are written, read and discarded here.
//!
//! A page is replaced in this order:
//! 1. a free slot is used, which no word names;
//! 2. the content is written into it;
//! 3. one store of the page's word names it;
//! 4. the slot that the word named before is free again.
//!
//! A process that ends between any two stores leaves a table whose words name whole contents. Its successor
//! reads off it which slots are used: one that was written and never named is free, and so is one that was
//! named until then. The kernel issues a request again that was not answered, and the same write again
//! changes nothing but slots.
//!
//! A page that finds no slot goes to the spill file, where the volume has one (`disk_run.rs`): the caller
//! makes the [runs](MemoryVolume::disk_runs) that a request leaves. In place of 1 and 2 the disk has the page
//! then.
//!
//! Owns: this order, what is stored in which form, the volume's figures.
//! Runs on: the ring thread that owns the volume, alone. No allocation for a request.
//! On failure: a page without a slot and without room on the disk keeps its content. A word that the volume
//! cannot have stored is damage: requests to its page fail, and it is neither followed nor replaced.

use holdfast_format::safeguard::{Safeguard, safeguard};

use crate::codec::{Codecs, PageCodec};
use crate::disk_run::{DiskOperation, DiskRun, join_holes, push_page};
use crate::head::TableHead;
use crate::memory::PageMemory;
use crate::pool::{
    CLASS_BYTES, PAGE_CLASS, PageSlot, Pool, PoolExtension, PoolRecovery, SLAB_BYTES, SlotTaken, class_of,
};
use crate::same_filled::{fill, half, pattern_of};
use crate::word::{Form, InvalidWord, Word};
use crate::{PAGE_BYTES, same_filled};

/// Bytes in front of a compressed page: its length.
const LENGTH_BYTES: usize = 2;
/// The most that a compressed page takes, with its length: one that takes more is stored as it is, and need
/// not be decompressed. Of programs four pages in ten take more than three quarters with lz4, and one in
/// twenty takes more than this.
const MOST_COMPRESSED: usize = PAGE_BYTES / 8 * 7;
/// The part of a slot's length by which that of an overwrite may be larger than it needs, where another slab
/// would be begun: one in so many. Where 256 MiB of programs overwrite one another at random, 3.9 percent of
/// the memory is no used slot with it, and 4.8 without.
const NEAR: u8 = 8;
/// Most pages of a run of a read.
const MOST_READ: u64 = 1 << 20;

/// Reason why a request to a page fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The limits of the volume are reached, or the system has no memory.
    #[error("the volume has no memory for another page, and no room in its spill file")]
    NoSpace,
    /// Its word or its content is none that the volume stored: another program changed its memory, or a bug.
    #[error("page {0} is damaged")]
    Damaged(u64),
}

/// Reason why the memory of a volume cannot be used by a successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// A word is none.
    #[error("page {page}: {source}")]
    Word {
        /// The page.
        page: u64,
        /// The word.
        #[source]
        source: InvalidWord,
    },
    /// A slot is used twice, or does not exist.
    #[error("page {page}: {source}")]
    Slot {
        /// The page.
        page: u64,
        /// The cause.
        #[source]
        source: SlotTaken,
    },
    /// Pages are in a spill file, and there is none, or it has fewer.
    #[error("{spilled} pages are in its spill file, which may have {limit}")]
    Spilled {
        /// Pages in the spill file.
        spilled: u64,
        /// Pages that it may have.
        limit: u64,
    },
}

/// MemoryFigures of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryFigures {
    /// Pages that are a pattern over and over, zeros apart.
    pub same_filled_pages: u64,
    /// Pages stored compressed.
    pub compressed_pages: u64,
    /// Pages stored as they are.
    pub plain_pages: u64,
    /// Bytes of the slots of these pages.
    pub slot_bytes: u64,
    /// Bytes of the slabs that have used slots.
    pub slab_bytes: u64,
    /// The most that `slab_bytes` may become.
    pub limit_bytes: u64,
    /// Pages that were not written for want of memory: of a write, the one that found none and those after
    /// it.
    pub refused_pages: u64,
    /// Pages in the spill file.
    pub spilled_pages: u64,
    /// The most of them; 0 without a spill file.
    pub spill_limit_pages: u64,
}

impl MemoryFigures {
    /// Pages that are not zeros.
    #[must_use]
    pub const fn content_pages(&self) -> u64 {
        self.same_filled_pages + self.compressed_pages + self.plain_pages + self.spilled_pages
    }
}

/// A larger size, and higher limits, of a volume that is served.
#[derive(Debug)]
pub struct MemoryGrowth<M> {
    /// The volume's memory, with room for as many pages and slabs: what it has shows in both from now on.
    pub memory: M,
    /// Pages of the volume; those that are new are zeros.
    pub pages: u64,
    /// Slabs that it may have in addition.
    pub slabs: PoolExtension,
    /// Pages that its spill file may have.
    pub spill_pages: u64,
}

/// A memory volume.
#[derive(Debug)]
pub struct MemoryVolume<M> {
    memory: M,
    pages: u64,
    codec: PageCodec,
    pool: Pool,
    /// A slab that has no used slot and keeps its memory, for the next that is needed.
    spare: Option<u32>,
    same_filled_pages: u64,
    compressed_pages: u64,
    plain_pages: u64,
    refused_pages: u64,
    spilled_pages: u64,
    /// Pages that the spill file is to have once their runs have ended, and those whose holes are being made.
    transit_pages: u64,
    spill_limit_pages: u64,
    /// Work of the requests that the disk has not got yet.
    disk_runs: Vec<DiskRun>,
}

impl<M: PageMemory> MemoryVolume<M> {
    /// The volume in this memory, new (all zeros) or left by a predecessor. Reads the whole table twice: 8
    /// bytes a page. Memory that no page needs is given back.
    ///
    /// # Errors
    /// [`RecoverError`]: the table is damaged, and nothing was changed.
    pub fn open(memory: M, head: &TableHead) -> Result<Self, RecoverError> {
        let mut volume = Self {
            memory,
            pages: head.pages,
            codec: head.codec,
            pool: Pool::new(0),
            spare: None,
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
                recovery.look(slot).map_err(|source| RecoverError::Slot { page, source })?;
            }
            volume.count(word, 1);
        }
        recovery.make_room();
        for page in 0..head.pages {
            if let Some(slot) = Word::of(volume.memory.word(page)).ok().and_then(Word::slot) {
                recovery.take(slot).map_err(|source| RecoverError::Slot { page, source })?;
            }
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

    /// Makes the volume larger, and its limits higher. Returns the memory that it had, which is as large as
    /// the volume was: another thread gives it back.
    ///
    /// # Panics
    /// If anything becomes smaller, or the slabs are for a volume with another number of them.
    pub fn grow(&mut self, growth: MemoryGrowth<M>) -> M {
        let MemoryGrowth { memory, pages, slabs, spill_pages } = growth;
        assert!(pages >= self.pages && spill_pages >= self.spill_limit_pages, "a volume only grows");
        self.pool.grow(slabs);
        self.pages = pages;
        self.spill_limit_pages = spill_pages;
        std::mem::replace(&mut self.memory, memory)
    }

    /// The codec of the pages that it writes.
    #[must_use]
    pub const fn codec(&self) -> PageCodec {
        self.codec
    }

    /// Figures now.
    #[must_use]
    pub const fn figures(&self) -> MemoryFigures {
        MemoryFigures {
            same_filled_pages: self.same_filled_pages,
            compressed_pages: self.compressed_pages,
            plain_pages: self.plain_pages,
            slot_bytes: self.pool.slot_bytes(),
            slab_bytes: self.pool.slabs_in_use() as u64 * SLAB_BYTES as u64,
            limit_bytes: self.pool.slabs() as u64 * SLAB_BYTES as u64,
            refused_pages: self.refused_pages,
            spilled_pages: self.spilled_pages,
            spill_limit_pages: self.spill_limit_pages,
        }
    }

    /// Its memory.
    #[must_use]
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Writes pages from `first` on.
    ///
    /// # Errors
    /// [`PageError::NoSpace`] and [`PageError::Damaged`]: pages before the one without a slot, or
    /// the damaged one, are written, it and those after it are as they were. Also then the
    /// [runs](Self::disk_runs) of those before it have to be made.
    ///
    /// # Panics
    /// If `data` is not whole pages of the volume.
    pub fn write(&mut self, codecs: &mut Codecs, first: u64, data: &[u8]) -> Result<(), PageError> {
        let (pages, rest) = data.as_chunks::<PAGE_BYTES>();
        assert!(rest.is_empty(), "a request has whole pages");
        self.check(first, pages.len() as u64);
        for (written, (page, content)) in (first..).zip(pages).enumerate() {
            let stored = match self.write_page(codecs, page, content) {
                Err(PageError::NoSpace) => self.spill(page),
                other => other,
            };
            stored.inspect_err(|error| {
                if *error == PageError::NoSpace {
                    self.refused_pages += (pages.len() - written) as u64;
                }
            })?;
        }
        Ok(())
    }

    /// Reads pages from `first` on, and returns how many of them are [in the spill
    /// file](Self::spilled_runs): those the caller reads.
    ///
    /// # Errors
    /// [`PageError::Damaged`].
    ///
    /// # Panics
    /// If `data` is not whole pages of the volume.
    pub fn read(&self, codecs: &mut Codecs, first: u64, data: &mut [u8]) -> Result<u32, PageError> {
        let (pages, rest) = data.as_chunks_mut::<PAGE_BYTES>();
        assert!(rest.is_empty(), "a request has whole pages");
        self.check(first, pages.len() as u64);
        let mut spilled = 0;
        for (page, content) in (first..).zip(pages) {
            let is_spilled = self.read_page(codecs, page, content).ok_or(PageError::Damaged(page))?;
            spilled += u32::from(is_spilled);
        }
        Ok(spilled)
    }

    /// Makes `pages` pages from `first` on read as zeros, and frees what they took.
    ///
    /// # Errors
    /// [`PageError::Damaged`]: the pages before it are zeros, it and those after it are as they
    /// were. Also then the [runs](Self::disk_runs) of those before it have to be made.
    ///
    /// # Panics
    /// If they are not pages of the volume.
    pub fn discard(&mut self, first: u64, pages: u64) -> Result<(), PageError> {
        self.check(first, pages);
        let mut discard = || {
            for page in first..first + pages {
                let old = self.word(page)?;
                if old != Word::Zeros {
                    self.publish(page, Word::Zeros);
                    self.release(page, old);
                }
            }
            Ok(())
        };
        let discarded = discard();
        // Pages between two holes are zeros by now.
        join_holes(&mut self.disk_runs);
        discarded
    }

    /// Work of the disk for the requests since this was last emptied. The caller takes all of it, gives each
    /// run to the disk, and its end to [`disk_ended`](Self::disk_ended). Meanwhile no other request to the
    /// pages of the request is given to this volume ([`SpillRequests`](crate::SpillRequests)).
    #[inline]
    pub const fn disk_runs(&mut self) -> &mut Vec<DiskRun> {
        &mut self.disk_runs
    }

    /// A run ended, whose first `done` pages the disk has written. May leave more runs.
    pub fn disk_ended(&mut self, run: &DiskRun, done: u32) {
        let &DiskRun { operation, first, pages, held } = run;
        let end = first + u64::from(done.min(pages));
        match operation {
            // No word changes.
            DiskOperation::Read | DiskOperation::Rewrite => {}
            DiskOperation::Hole => self.transit_pages -= u64::from(held),
            DiskOperation::Write => {
                for page in first..end {
                    // Its slot is the page's until now. A word that was damaged meanwhile stays so.
                    if let Ok(old) = self.word(page) {
                        self.publish_spilled(page, old);
                    }
                }
                self.transit_pages -= end - first;
                // The disk may have taken part of the others.
                for page in end..first + u64::from(pages) {
                    push_page(&mut self.disk_runs, DiskOperation::Hole, page);
                }
            }
        }
    }

    /// Counts pages that the disk had no room for.
    pub const fn refuse(&mut self, pages: u32) {
        self.refused_pages += pages as u64;
    }

    /// Reads of those of `pages` pages from `first` on that are in the spill file.
    pub fn spilled_runs(&self, first: u64, pages: u64) -> impl Iterator<Item = DiskRun> + '_ {
        let end = first + pages;
        let is_spilled = |page: u64| self.memory.word(page) == Word::Spilled.bits();
        let mut next = first;
        std::iter::from_fn(move || {
            let begin = (next..end).find(|page| is_spilled(*page))?;
            let most = end.min(begin + MOST_READ);
            next = (begin..most).find(|page| !is_spilled(*page)).unwrap_or(most);
            let pages = u32::try_from(next - begin).expect("it is MOST_READ at most");
            Some(DiskRun::of(DiskOperation::Read, begin, pages))
        })
    }

    /// Has a page that found no slot written to the spill file.
    #[cold]
    fn spill(&mut self, page: u64) -> Result<(), PageError> {
        let old = self.word(page)?;
        if old == Word::Spilled {
            push_page(&mut self.disk_runs, DiskOperation::Rewrite, page);
            return Ok(());
        }
        if self.spilled_pages + self.transit_pages >= self.spill_limit_pages {
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

    fn publish_spilled(&mut self, page: u64, old: Word) {
        if old != Word::Spilled {
            self.publish(page, Word::Spilled);
            self.release(page, old);
        }
    }

    fn check(&self, first: u64, pages: u64) {
        let fits = first.checked_add(pages).is_some_and(|end| end <= self.pages);
        assert!(fits, "the pages are the volume's");
    }

    /// The word of a page. The volume alone writes them, so one that means nothing, or names a slot that is
    /// not used, is damage.
    fn word(&self, page: u64) -> Result<Word, PageError> {
        let word = Word::of(self.memory.word(page)).map_err(|_meaningless| PageError::Damaged(page))?;
        let is_whole = word.slot().is_none_or(|slot| self.pool.has(slot));
        if is_whole { Ok(word) } else { Err(PageError::Damaged(page)) }
    }

    fn write_page(&mut self, codecs: &mut Codecs, page: u64, content: &[u8]) -> Result<(), PageError> {
        let old = self.word(page)?;
        if !safeguard(Safeguard::FreeSlotAfterWord) {
            self.release(page, old);
        }
        let new = match pattern_of(content) {
            Some(0) => {
                self.publish(page, Word::Zeros);
                Word::Zeros
            }
            Some(pattern) => match half(pattern) {
                Some(half) => {
                    self.publish(page, Word::Filled(half));
                    Word::Filled(half)
                }
                None => self.store(page, old, Form::Pattern, &[&pattern.to_le_bytes()])?,
            },
            // No slot, whatever it compresses to.
            None if !self.pool.has_room() => return Err(PageError::NoSpace),
            None => match codecs.compress(self.codec, content, MOST_COMPRESSED - LENGTH_BYTES) {
                Some(bytes) => {
                    let len = u16::try_from(bytes.len()).expect("it is less than a page");
                    self.store(page, old, self.codec.form(), &[&len.to_le_bytes(), bytes])?
                }
                None => self.store(page, old, Form::Plain, &[content])?,
            },
        };
        debug_assert_eq!(self.memory.word(page), new.bits(), "the page was published");
        if safeguard(Safeguard::FreeSlotAfterWord) {
            self.release(page, old);
        }
        Ok(())
    }

    /// Steps 1 to 3 for content that needs a slot.
    fn store(&mut self, page: u64, old: Word, form: Form, content: &[&[u8]]) -> Result<Word, PageError> {
        let len_bytes = content.iter().map(|part| part.len()).sum();
        let slot = self.take(class_of(len_bytes), old)?;
        let word = Word::Stored(form, slot);
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
        Ok(word)
    }

    /// Uses a slot of a class. Where no slab can get the class, a free slot of a greater one does; for an
    /// overwrite one that is a little greater does before that.
    fn take(&mut self, class: u8, old: Word) -> Result<PageSlot, PageError> {
        let largest = if old.slot().is_some() { class + class / NEAR } else { class };
        if let Some(slot) = (class..=largest.min(PAGE_CLASS)).find_map(|class| self.pool.take(class)) {
            return Ok(slot);
        }
        if let Some(slab) = self.pool.next_slab()
            && (self.spare == Some(slab) || self.memory.take_slab(slab).is_ok())
        {
            self.spare = self.spare.filter(|spare| *spare != slab);
            return Ok(self.pool.take_first(class));
        }
        (class + 1..=PAGE_CLASS).find_map(|class| self.pool.take(class)).ok_or(PageError::NoSpace)
    }

    fn publish(&mut self, page: u64, word: Word) {
        self.memory.set_word(page, word.bits());
        self.count(word, 1);
    }

    /// Frees what a page took before.
    fn release(&mut self, page: u64, old: Word) {
        self.count(old, -1);
        if old == Word::Spilled {
            self.transit_pages += 1;
            push_page(&mut self.disk_runs, DiskOperation::Hole, page);
        }
        if let Some(slot) = old.slot()
            && let Some(slab) = self.pool.free(slot)
        {
            // It is the next to be used; only the one before it goes.
            if let Some(before) = self.spare.replace(slab) {
                self.memory.give_back(before..before + 1);
            }
        }
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

    /// True if the page is in the spill file, `None` if it is damaged.
    fn read_page(&self, codecs: &mut Codecs, page: u64, content: &mut [u8]) -> Option<bool> {
        match self.word(page).ok()? {
            Word::Zeros => content.fill(0),
            Word::Filled(half) => fill(content, u64::from(half) | u64::from(half) << 32),
            Word::Stored(Form::Pattern, slot) => {
                let pattern = self.memory.bytes(slot.offset(), size_of::<u64>());
                same_filled::fill(content, u64::from_le_bytes(pattern.try_into().ok()?));
            }
            Word::Stored(Form::Plain, slot) => {
                content.copy_from_slice(self.memory.bytes(slot.offset(), PAGE_BYTES));
            }
            Word::Stored(Form::Lz4, slot) => self.decompress(codecs, PageCodec::Lz4, slot, content)?,
            Word::Stored(Form::Zstd, slot) => self.decompress(codecs, PageCodec::Zstd, slot, content)?,
            Word::Spilled => return Some(true),
        }
        Some(false)
    }

    fn decompress(
        &self,
        codecs: &mut Codecs,
        codec: PageCodec,
        slot: PageSlot,
        content: &mut [u8],
    ) -> Option<()> {
        let bytes = self.memory.bytes(slot.offset(), usize::from(slot.class()) * CLASS_BYTES);
        let (len, bytes) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
        let bytes = bytes.get(..usize::from(u16::from_le_bytes(*len)))?;
        codecs.decompress(codec, bytes, content).then_some(())
    }
}

#[cfg(test)]
mod tests;
