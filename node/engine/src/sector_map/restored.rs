//! The live map of a volume that is attached, while it is filled from the durable map.
//!
//! Owns: what is taken over of each part after the loss of the host. Does not own: the allocation of the
//! memory. Runs on: a thread that may block, since it takes as long as the map is large.

use holdfast_format::side::SideSet;
use holdfast_types::{CHUNK_SECTORS, Chunk};

use super::{Nibble, PAGE_SECTORS, SectorMap};
use crate::durable_map::{FoundPart, Header};

/// Way in which the pages of a durable map are taken over.
#[derive(Debug, Clone)]
pub struct Restore {
    /// The header that the map was found with.
    pub found: Header,
    /// Sides whose data is invalid, whatever the pages say.
    pub invalidated: SideSet,
    /// Clean data counts too: the header was closed clean and the log ended at its seq.
    pub trust_clean: bool,
}

/// A live map that is not a volume's yet.
pub struct RestoredMap<M> {
    map: SectorMap<M>,
    /// New state of each pair of sectors.
    kept: [u8; 256],
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> RestoredMap<M> {
    /// A map of `sectors` sectors over zeroed memory.
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

    /// The memory of a chunk that `part` needs and that no part before it needed: it must be allocated before
    /// [`Self::add`].
    pub fn needs(&self, part: &FoundPart) -> Option<Chunk> {
        let chunk = chunk_of(part);
        (!self.map.is_prepared(chunk)).then_some(chunk)
    }

    /// Takes the next part over.
    pub fn add(&mut self, part: &FoundPart) {
        self.map.set_prepared(chunk_of(part));
        let nibbles: Vec<u8> = part.nibbles().iter().map(|pair| self.kept[usize::from(*pair)]).collect();
        self.map.set_blocks(part.first_block(), &nibbles);
        if let FoundPart::Page(page) = part {
            self.map.set_synced_slot(page.page, page.slot);
        }
    }

    /// The memory, for [`crate::volume::Volume::attach`].
    pub fn into_memory(self) -> M {
        self.map.memory
    }
}

fn chunk_of(part: &FoundPart) -> Chunk {
    Chunk(part.page() * PAGE_SECTORS / CHUNK_SECTORS)
}
