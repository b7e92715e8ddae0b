//! Reading a durable map part by part: no more of it is in memory than the part that is read.
//!
//! ```text
//! page, page, page, ...   each that was written, lowest first
//! journal, journal, ...   its bytes in order, while they count
//! end
//! ``` Owns: the generations by which the newest part is known: 16 bytes a page. Does not own: the file, nor
//! what is made of the parts. A part that comes later replaces what came before of the same sectors.

use holdfast_format::safeguard::{Safeguard::ReplayOnlyNewer, safeguard};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Block, SectorRange, Seq};

use super::journal::{Replay, Unit};
use super::{DamagedMap, FoundPage, Header, PAGE, halves, newest_of};
use crate::sector_map::{BLOCK_MAP_BYTES, Nibble, PAGE_BLOCKS, PAGE_BYTES};

/// Part of a durable map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundPart {
    /// A page, as its slots have it.
    Page(FoundPage),
    /// A block that the journal has in a newer form than the slots of its page.
    Block(FoundBlock),
}

/// A block as the journal has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBlock {
    pub(crate) block: Block,
    pub(crate) generation: u64,
    /// The newest record that its writer knew.
    pub(crate) seq: Seq,
    pub(crate) nibbles: [u8; BLOCK_MAP_BYTES],
}

impl FoundPart {
    /// The page that it is of.
    pub fn page(&self) -> u64 {
        match self {
            Self::Page(page) => page.page,
            Self::Block(found) => found.block.0 / PAGE_BLOCKS,
        }
    }

    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Page(page) => page.generation,
            Self::Block(found) => found.generation,
        }
    }

    pub(super) fn seq(&self) -> Seq {
        match self {
            Self::Page(page) => page.seq,
            Self::Block(found) => found.seq,
        }
    }

    /// The first of the blocks that it says something of.
    pub(crate) fn first_block(&self) -> Block {
        match self {
            Self::Page(page) => Block(page.page * PAGE_BLOCKS),
            Self::Block(found) => found.block,
        }
    }

    /// The map's part of these blocks.
    pub(crate) fn nibbles(&self) -> &[u8] {
        match self {
            Self::Page(page) => &page.nibbles,
            Self::Block(found) => &found.nibbles,
        }
    }

    /// The blocks that it says something of, with what it says.
    pub fn blocks(&self) -> impl Iterator<Item = (Block, &[u8; BLOCK_MAP_BYTES])> {
        (self.first_block().0..).map(Block).zip(self.nibbles().as_chunks().0)
    }
}

/// The runs of sectors of a block whose newest bytes were never committed and the side that holds them,
/// lowest first.
pub fn dirty_runs_of(block: Block, nibbles: &[u8; BLOCK_MAP_BYTES]) -> Vec<(SectorRange, Side)> {
    let mut runs: Vec<(SectorRange, Side)> = Vec::new();
    let each = nibbles.iter().flat_map(|byte| [Nibble(byte & 15), Nibble(byte >> 4)]);
    for (sector, nibble) in (block.first_sector().0..).zip(each) {
        let Some(side) = nibble.after_host_loss(false).newest() else { continue };
        match runs.last_mut() {
            Some((run, of)) if *of == side && run.end() == sector => run.sectors += 1,
            Some(_) | None => runs.push((SectorRange::new(sector, 1), side)),
        }
    }
    runs
}

/// A durable map while it is read.
pub struct MapReader {
    synced_generation: u64,
    invalidated: SideSet,
    /// The generation that the slots of each page hold, lowest page first; the journal is compared with it.
    held: Vec<(u64, u64)>,
    replay: Option<Replay>,
}

impl MapReader {
    /// A reader of the map that `header` is of.
    pub fn new(header: &Header) -> Self {
        Self {
            synced_generation: header.synced_generation,
            invalidated: header.invalidated,
            held: Vec::new(),
            replay: header.has_journal.then(Replay::default),
        }
    }

    /// The newest synced form of a page in its slots, without what the header calls invalid; none where it
    /// was never written. `pair` are the 8192 bytes of both slots. Pages come lowest first, each once, before
    /// the journal; those never written may be left out.
    ///
    /// # Errors
    /// [`DamagedMap::Page`] when what was synced last may be lost.
    pub fn page(&mut self, page: u64, pair: &[u8]) -> Result<Option<FoundPart>, DamagedMap> {
        let newest = halves(PAGE, pair)
            .and_then(|(first, second)| newest_of(page, [first, second], self.synced_generation))
            .map_err(|source| DamagedMap::Page { page, source })?;
        let Some((held, mut found)) = newest else { return Ok(None) };
        debug_assert!(self.held.last().is_none_or(|(last, _)| *last < page), "pages come lowest first");
        if self.replay.is_some() {
            self.held.push((page, held));
        }
        found.forget(self.invalidated);
        Ok(Some(FoundPart::Page(found)))
    }

    /// Returns true while more of the journal is needed.
    pub fn wants_journal(&self) -> bool {
        self.replay.as_ref().is_some_and(|replay| !replay.has_ended())
    }

    /// The blocks that the next bytes of the journal, whole units of 512, have in a newer form, oldest first.
    ///
    /// # Errors
    /// [`DamagedMap::Journal`] when a record that was synced may be lost.
    pub fn journal(&mut self, bytes: &[u8]) -> Result<Vec<FoundPart>, DamagedMap> {
        let mut found = Vec::new();
        let Some(replay) = &mut self.replay else { return Ok(found) };
        for unit in bytes.as_chunks().0 {
            if replay.has_ended() {
                break;
            }
            let record = replay.push(unit).map_err(DamagedMap::Journal)?;
            for Unit { generation, seq, entries, .. } in record {
                for (block, mut nibbles) in entries {
                    let page = block.0 / PAGE_BLOCKS;
                    let held = self.held.binary_search_by_key(&page, |(page, _)| *page);
                    let held = held.map_or(0, |at| self.held[at].1);
                    if generation > held || !safeguard(ReplayOnlyNewer) {
                        forget(&mut nibbles, self.invalidated);
                        found.push(FoundPart::Block(FoundBlock { block, generation, seq, nibbles }));
                    }
                }
            }
        }
        Ok(found)
    }

    /// All of the file was read, or all that is wanted of the journal.
    ///
    /// # Errors
    /// [`DamagedMap::Journal`] when the file ends within a record, or has no journal where there must be one.
    pub fn end(self) -> Result<(), DamagedMap> {
        self.replay.map_or(Ok(()), Replay::end).map_err(DamagedMap::Journal)
    }
}

/// Takes what `invalidated` sides hold out of a part of the map.
pub(super) fn forget(nibbles: &mut [u8], invalidated: SideSet) {
    if invalidated == SideSet::NONE {
        return;
    }
    for byte in nibbles {
        *byte = Nibble(*byte & 15).without(invalidated).0 | (Nibble(*byte >> 4).without(invalidated).0 << 4);
    }
}

/// Reads a map whose bytes are in memory: `pages` are page numbers with the 8192 bytes of both slots, lowest
/// first, `journal` the bytes of the file from [`super::JOURNAL_OFFSET`] on. Hands each part to `each`.
///
/// # Errors
/// [`DamagedMap`] when what was synced last may be lost.
pub fn read_parts<'a>(
    header: &Header,
    pages: impl IntoIterator<Item = (u64, &'a [u8])>,
    journal: &[u8],
    each: &mut dyn FnMut(FoundPart),
) -> Result<(), DamagedMap> {
    let mut reader = MapReader::new(header);
    for (page, pair) in pages {
        reader.page(page, pair)?.into_iter().for_each(&mut *each);
    }
    reader.journal(journal)?.into_iter().for_each(each);
    reader.end()
}

/// The newest synced form of each page of a map whose bytes are in memory, lowest first: see [`read_parts`].
///
/// # Errors
/// [`DamagedMap`] when what was synced last may be lost.
pub fn newest_pages(
    header: &Header,
    pages: &[(u64, Vec<u8>)],
    journal: &[u8],
) -> Result<Vec<FoundPage>, DamagedMap> {
    let mut all = std::collections::BTreeMap::new();
    let pages = pages.iter().map(|(page, pair)| (*page, pair.as_slice()));
    read_parts(header, pages, journal, &mut |part| {
        let page = part.page();
        match part {
            FoundPart::Page(found) => {
                all.insert(page, found);
            }
            FoundPart::Block(FoundBlock { block, generation, seq, nibbles }) => {
                let nothing =
                    || FoundPage { page, slot: None, generation, seq, nibbles: vec![0; PAGE_BYTES] };
                let found = all.entry(page).or_insert_with(nothing);
                let place = (block.0 % PAGE_BLOCKS) as usize * BLOCK_MAP_BYTES;
                found.nibbles[place..place + BLOCK_MAP_BYTES].copy_from_slice(&nibbles);
                found.generation = found.generation.max(generation);
                found.seq = found.seq.max(seq);
            }
        }
    })?;
    Ok(all.into_values().collect())
}
