//! A memory volume, as the threads of its queues use it at once.
//!
//! Codecs work outside the lock: a write compresses its page before, a read copies the compressed page out
//! and decompresses it after. Under the lock a page is copied and a slot is looked for; once for 16 pages or
//! more the memory of a slab is taken, or given back.
//!
//! Owns: the lock, and the order of work for a request of many pages. Does not own: how a page is replaced
//! (`stored_pages.rs`).
//! Runs on: the ring threads of the volume's queues; growth on any thread. No allocation for a request.
//! Invariants: a page is read whole, as it was before a write at the same time or after it. Of the pages of a
//! request each is written by itself. A volume with a spill file has one queue: the order of its requests is
//! that of [`SpillRequests`](crate::SpillRequests).

use parking_lot::RwLock;

use crate::PAGE_BYTES;
use crate::codec::{Codecs, PageCodec};
use crate::disk_run::{DiskOperation, DiskRun, join_holes};
use crate::figures::MemoryFigures;
use crate::growth::MemoryGrowth;
use crate::head::TableHead;
use crate::memory::PageMemory;
use crate::page_error::{PageError, RecoverError};
use crate::same_filled::pattern_of;
use crate::stored_pages::{EncodedPage, PageCopy, StoredPages};

/// Most pages of a run of a read.
const MOST_READ: u64 = 1 << 20;
/// Pages that a discard frees under the lock in one piece.
const DISCARDED_AT_ONCE: u64 = 64;

/// A memory volume.
#[derive(Debug)]
pub struct MemoryVolume<M> {
    codec: PageCodec,
    pages: RwLock<StoredPages<M>>,
}

impl<M: PageMemory> MemoryVolume<M> {
    /// The volume in this memory, new (all zeros) or left by a predecessor. Reads the whole table: 8 bytes a
    /// page. Memory that no page needs is given back.
    ///
    /// # Errors
    /// [`RecoverError`]: the table is damaged, and nothing was changed.
    pub fn open(memory: M, head: &TableHead) -> Result<Self, RecoverError> {
        Ok(Self { codec: head.codec, pages: RwLock::new(StoredPages::open(memory, head)?) })
    }

    /// Makes the volume larger, and its limits higher. Returns the memory that it had, which is as large as
    /// the volume was: to give it back takes a time that grows with its content.
    ///
    /// # Panics
    /// If anything becomes smaller, or the slabs are for a volume with another number of them.
    pub fn grow(&self, growth: MemoryGrowth<M>) -> M {
        self.pages.write().grow(growth)
    }

    /// The codec of the pages that it writes.
    #[must_use]
    pub const fn codec(&self) -> PageCodec {
        self.codec
    }

    /// Figures now.
    #[must_use]
    pub fn figures(&self) -> MemoryFigures {
        self.pages.read().figures()
    }

    /// Its memory, without the volume.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.pages.into_inner().into_memory()
    }

    /// Looks at its memory, in which no store is made meanwhile.
    pub fn with_memory<T>(&self, look: impl FnOnce(&M) -> T) -> T {
        look(self.pages.read().memory())
    }

    /// Writes pages from `first` on.
    ///
    /// # Errors
    /// [`PageError::NoSpace`] and [`PageError::Damaged`]: pages before the one without a slot, or
    /// the damaged one, are written, it and those after it are as they were. Also then the
    /// [runs](Self::take_disk_runs) of those before it have to be made.
    ///
    /// # Panics
    /// If `data` is not whole pages of the volume.
    pub fn write(&self, codecs: &mut Codecs, first: u64, data: &[u8]) -> Result<(), PageError> {
        let (pages, rest) = data.as_chunks::<PAGE_BYTES>();
        assert!(rest.is_empty(), "a request has whole pages");
        for (written, (page, content)) in (first..).zip(pages).enumerate() {
            let encoded = self.encode(codecs, content);
            let mut stored_pages = self.pages.write();
            stored_pages.replace(page, &encoded).inspect_err(|error| {
                if *error == PageError::NoSpace {
                    let rest = pages.len() - written;
                    stored_pages.refuse(u32::try_from(rest).expect("a request has few pages"));
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
        let mut spilled = 0;
        for (page, content) in (first..).zip(pages) {
            // The lock is released before the page is decompressed.
            let copy = self.pages.read().copy(page, content, codecs.compressed())?;
            match copy {
                PageCopy::Whole => {}
                PageCopy::Compressed(codec, len) => {
                    if !codecs.decompress_copy(codec, len, content) {
                        return Err(PageError::Damaged(page));
                    }
                }
                PageCopy::Spilled => spilled += 1,
            }
        }
        Ok(spilled)
    }

    /// Makes `pages` pages from `first` on read as zeros, and frees what they took.
    ///
    /// # Errors
    /// [`PageError::Damaged`]: the pages before it are zeros, it and those after it are as they
    /// were. Also then the [runs](Self::take_disk_runs) of those before it have to be made.
    ///
    /// # Panics
    /// If they are not pages of the volume.
    pub fn discard(&self, first: u64, pages: u64) -> Result<(), PageError> {
        let (mut next, end) = (first, first + pages);
        loop {
            let piece = next..end.min(next + DISCARDED_AT_ONCE);
            next = piece.end;
            let mut stored_pages = self.pages.write();
            let discarded = { piece }.try_for_each(|page| stored_pages.discard(page));
            if next == end || discarded.is_err() {
                // Pages between two holes are zeros by now.
                join_holes(stored_pages.disk_runs());
                return discarded;
            }
        }
    }

    /// Moves the work of the disk for the requests since the last call to the end of `runs`. The caller gives
    /// each run to the disk, and its end to [`disk_ended`](Self::disk_ended). Meanwhile no other request to
    /// the pages of the request is given to this volume ([`SpillRequests`](crate::SpillRequests)).
    pub fn take_disk_runs(&self, runs: &mut Vec<DiskRun>) {
        runs.append(self.pages.write().disk_runs());
    }

    /// A run ended, whose first `done` pages the disk has written. May leave more runs.
    pub fn disk_ended(&self, run: &DiskRun, done: u32) {
        self.pages.write().disk_ended(run, done);
    }

    /// Counts pages that the disk had no room for.
    pub fn refuse(&self, pages: u32) {
        self.pages.write().refuse(pages);
    }

    /// Reads of those of `pages` pages from `first` on that are in the spill file.
    pub fn spilled_runs(&self, first: u64, pages: u64) -> impl Iterator<Item = DiskRun> + '_ {
        let end = first + pages;
        let mut next = first;
        std::iter::from_fn(move || {
            let stored_pages = self.pages.read();
            let begin = (next..end).find(|page| stored_pages.is_spilled(*page))?;
            let most = end.min(begin + MOST_READ);
            next = (begin..most).find(|page| !stored_pages.is_spilled(*page)).unwrap_or(most);
            let pages = u32::try_from(next - begin).expect("it is MOST_READ at most");
            Some(DiskRun::of(DiskOperation::Read, begin, pages))
        })
    }

    /// A page as it is to be stored.
    fn encode<'page>(&self, codecs: &'page mut Codecs, content: &'page [u8]) -> EncodedPage<'page> {
        match pattern_of(content) {
            Some(pattern) => EncodedPage::Filled(pattern),
            None if !self.pages.read().has_room() => EncodedPage::WithoutSlot,
            None => codecs
                .compress(self.codec, content, EncodedPage::MOST_COMPRESSED)
                .map_or(EncodedPage::Plain(content), |bytes| EncodedPage::Compressed(self.codec, bytes)),
        }
    }
}

#[cfg(test)]
mod tests;
