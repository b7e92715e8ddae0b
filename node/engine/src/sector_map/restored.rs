//! The live map of a volume during its attach, while it is filled from the durable map.
//!
//! Owns: the choice of the entries kept after the loss of the host. Does not own: the allocation of the
//! memory. Runs on: a thread that may block, because the duration grows with the map.

use holdfast_format::side::SideSet;
use holdfast_types::{CHUNK_SECTORS, Chunk};

use super::layout::PAGE_SECTORS;
use super::{Nibble, SectorMap};
use crate::durable_map::{FoundPart, Header};

/// Rules for restoring the pages of a durable map.
#[derive(Debug, Clone)]
pub struct Restore {
    /// The header found with the map.
    pub found: Header,
    /// Sides whose data is invalid, regardless of the pages.
    pub invalidated: SideSet,
    /// True if clean data counts too: the header was closed clean and the log ended at its seq.
    pub trust_clean: bool,
}

/// A live map that does not belong to a volume yet.
pub struct RestoredMap<M> {
    map: SectorMap<M>,
    /// New state of each pair of sectors.
    kept: [u8; 256],
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> RestoredMap<M> {
    /// Creates a map of `sectors` sectors over zeroed memory.
    ///
    /// # Panics
    /// If the memory is shorter than [`super::map_bytes`].
    pub fn new(memory: M, sectors: u64, restore: &Restore) -> Self {
        let kept = |nibble: usize| {
            let valid = Nibble((nibble & 15) as u8).without(restore.invalidated);
            valid.after_host_loss(restore.trust_clean).0
        };
        let kept = std::array::from_fn(|pair| kept(pair) | (kept(pair >> 4) << 4));
        Self { map: SectorMap::over(memory, sectors), kept }
    }

    /// Returns the chunk whose memory `part` needs and no earlier part needed: it must be allocated before
    /// [`Self::add`].
    pub fn needs(&self, part: &FoundPart) -> Option<Chunk> {
        let chunk = chunk_of(part);
        (!self.map.is_prepared(chunk)).then_some(chunk)
    }

    /// Adds the next part.
    pub fn add(&mut self, part: &FoundPart) {
        self.map.set_prepared(chunk_of(part));
        let nibbles: Vec<u8> = part.nibbles().iter().map(|pair| self.kept[usize::from(*pair)]).collect();
        self.map.set_blocks(part.first_block(), &nibbles);
        if let FoundPart::Page(page) = part {
            self.map.set_synced_slot(page.page, page.slot);
        }
    }

    /// Returns the memory, for [`crate::volume::Volume::attach`].
    pub fn into_memory(self) -> M {
        self.map.memory
    }
}

fn chunk_of(part: &FoundPart) -> Chunk {
    Chunk(part.page() * PAGE_SECTORS / CHUNK_SECTORS)
}
