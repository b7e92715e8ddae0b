//! The memory of a volume, which its owner provides.

use std::ops::Range;

use crate::PAGE_BYTES;
use crate::pool::SLAB_BYTES;

/// The system is out of memory for slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system has no memory for another slab")]
pub struct NoRoom;

/// Memory that outlives the process: a word for each page, and slabs. Offsets start at the first slab.
///
/// A successor process sees changes in the order in which they were made. A process that ends during
/// [`write`](Self::write) has written some of the bytes.
pub trait PageMemory {
    /// Returns the word of a page.
    fn word(&self, page: u64) -> u64;

    /// Replaces the word of a page, in one store.
    fn set_word(&mut self, page: u64, word: u64);

    /// Returns bytes of a [taken](Self::take_slab) slab.
    fn bytes(&self, offset: u64, len: usize) -> &[u8];

    /// Writes bytes of a taken slab.
    fn write(&mut self, offset: u64, bytes: &[u8]);

    /// Takes the memory of a slab, which may then be written.
    ///
    /// # Errors
    /// [`NoRoom`]: nothing changed.
    fn take_slab(&mut self, slab: u32) -> Result<(), NoRoom>;

    /// Returns the memory of slabs to the system. If that fails, the memory stays.
    fn give_back(&mut self, slabs: Range<u32>);
}

/// Memory of this process, for tests and simulations.
#[derive(Debug, Clone)]
pub struct HeapMemory {
    words: Vec<u64>,
    slabs: Vec<Option<Box<[u8]>>>,
    /// Number of slabs that the system has memory for.
    room: usize,
}

impl HeapMemory {
    /// Creates memory for `pages` pages and `slabs` slabs, in a system with memory for `room` slabs.
    #[must_use]
    pub fn new(pages: usize, slabs: usize, room: usize) -> Self {
        Self { words: vec![0; pages], slabs: vec![None; slabs], room }
    }

    /// Enlarges the memory to `pages` pages and `slabs` slabs, neither fewer than before.
    #[must_use]
    pub fn larger(mut self, pages: usize, slabs: usize) -> Self {
        assert!(pages >= self.words.len() && slabs >= self.slabs.len(), "memory only grows");
        self.words.resize(pages, 0);
        self.slabs.resize(slabs, None);
        self
    }

    /// Returns the number of slabs whose memory is taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.slabs.iter().flatten().count()
    }

    fn locate(offset: u64) -> (usize, usize) {
        let slab_bytes = SLAB_BYTES as u64;
        let in_slab = usize::try_from(offset % slab_bytes).expect("a slab is small");
        (usize::try_from(offset / slab_bytes).expect("a test has few slabs"), in_slab)
    }

    fn page(page: u64) -> usize {
        usize::try_from(page).expect("a test has few pages")
    }
}

impl PageMemory for HeapMemory {
    fn word(&self, page: u64) -> u64 {
        self.words[Self::page(page)]
    }

    fn set_word(&mut self, page: u64, word: u64) {
        self.words[Self::page(page)] = word;
    }

    fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        assert!(len <= PAGE_BYTES, "a slot holds a page at most");
        let (slab, at) = Self::locate(offset);
        &self.slabs[slab].as_ref().expect("the slab was taken")[at..at + len]
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let (slab, at) = Self::locate(offset);
        let slab = self.slabs[slab].as_mut().expect("the slab was taken");
        slab[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn take_slab(&mut self, slab: u32) -> Result<(), NoRoom> {
        let place = &mut self.slabs[slab as usize];
        if place.is_none() {
            self.room = self.room.checked_sub(1).ok_or(NoRoom)?;
            *place = Some(vec![0; SLAB_BYTES].into());
        }
        Ok(())
    }

    fn give_back(&mut self, slabs: Range<u32>) {
        for slab in slabs {
            self.room += usize::from(self.slabs[slab as usize].take().is_some());
        }
    }
}
