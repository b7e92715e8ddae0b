//! A memory volume, shared by the threads of its queues.
//!
//! Codecs run outside the lock: a write compresses its page before it takes the lock, a read copies the
//! compressed page and decompresses it after the lock. Under the lock a thread copies a page and searches for
//! a slot; once in 16 pages or more it also takes or returns the memory of a slab.
//!
//! Owns: the lock, and the order of work for a request of many pages. Does not own: the replacement of a page
//! (`stored_pages.rs`).
//! Runs on: the ring threads of the volume's queues; growth on any thread. A request allocates nothing.
//! Invariants: a read returns a page whole, as before a concurrent write or as after it. A request writes its
//! pages independently of one another. A volume with a spill file has one queue, whose requests
//! [`SpillRequests`](crate::SpillRequests) orders.

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

/// Maximum pages of a run that reads.
const MOST_READ: u64 = 1 << 20;
/// Pages that a discard frees each time it takes the lock.
const DISCARDED_AT_ONCE: u64 = 64;

/// A memory volume.
#[derive(Debug)]
pub struct MemoryVolume<M> {
    codec: PageCodec,
    pages: RwLock<StoredPages<M>>,
}

impl<M: PageMemory> MemoryVolume<M> {
    /// Opens the volume in this memory, which is new (all zeros) or comes from a predecessor. Reads the whole
    /// table, 8 bytes a page, and returns to the system the memory that no page needs.
    ///
    /// # Errors
    /// [`RecoverError`]: the table is damaged, and nothing was changed.
    pub fn open(memory: M, head: &TableHead) -> Result<Self, RecoverError> {
        Ok(Self { codec: head.codec, pages: RwLock::new(StoredPages::open(memory, head)?) })
    }

    /// Enlarges the volume and raises its limits. Returns the previous memory, which another thread should
    /// drop: the time for this grows with its content.
    ///
    /// # Panics
    /// If a limit or the volume shrinks, or the extension was created for another number of slabs.
    pub fn grow(&self, growth: MemoryGrowth<M>) -> M {
        self.pages.write().grow(growth)
    }

    /// Returns the codec of the pages that the volume writes.
    #[must_use]
    pub const fn codec(&self) -> PageCodec {
        self.codec
    }

    /// Returns the current figures.
    #[must_use]
    pub fn figures(&self) -> MemoryFigures {
        self.pages.read().figures()
    }

    /// Returns the memory without the volume.
    #[must_use]
    pub fn into_memory(self) -> M {
        self.pages.into_inner().into_memory()
    }

    /// Calls `look` with the memory, which no request changes meanwhile.
    pub fn with_memory<T>(&self, look: impl FnOnce(&M) -> T) -> T {
        look(self.pages.read().memory())
    }

    /// Writes pages from `first` on.
    ///
    /// # Errors
    /// [`PageError::NoSpace`] and [`PageError::Damaged`]: the pages before the failed one are written, it and
    /// those after it are unchanged. The caller must still perform the [runs](Self::take_disk_runs) of those
    /// before it.
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

    /// Reads pages from `first` on. Returns the number of those [in the spill file](Self::spilled_runs),
    /// which the caller must read.
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

    /// Makes `pages` pages from `first` on read as zeros, and frees their slots and room in the spill file.
    ///
    /// # Errors
    /// [`PageError::Damaged`]: the pages before it are zeros, it and those after it are unchanged. The caller
    /// must still perform the [runs](Self::take_disk_runs) of those before it.
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

    /// Moves the disk work of the requests since the last call to the end of `runs`. The caller passes each
    /// run to the disk, and its end to [`disk_ended`](Self::disk_ended). Meanwhile it gives this volume no
    /// other request to the same pages ([`SpillRequests`](crate::SpillRequests)).
    pub fn take_disk_runs(&self, runs: &mut Vec<DiskRun>) {
        runs.append(self.pages.write().disk_runs());
    }

    /// Records the end of a run whose first `done` pages the disk has written. May add more runs.
    pub fn disk_ended(&self, run: &DiskRun, done: u32) {
        self.pages.write().disk_ended(run, done);
    }

    /// Counts pages for which the disk had no room.
    pub fn refuse(&self, pages: u32) {
        self.pages.write().refuse(pages);
    }

    /// Returns runs that read the pages in the spill file among the `pages` pages from `first` on.
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

    /// Encodes a page for storage.
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
