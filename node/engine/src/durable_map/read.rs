//! Reads a durable map with one part in memory at a time. A later part overrides earlier parts for the same
//! sectors.
//!
//! ```text
//! page, page, page, ...   all written ones, lowest first
//! journal, journal, ...   its bytes in order, while they count
//! end
//! ```
//! Owns: the generations that identify the newest part: 16 bytes a page. Does not own: the file.

use holdfast_format::safeguard::{Safeguard::ReplayOnlyNewer, safeguard};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Block, SectorRange, Seq};

use super::journal::{JournalReplay, JournalUnit};
use super::{DamagedMap, FoundPage, Header, PAGE, halves, newest_of};
use crate::sector_map::{BLOCK_MAP_BYTES, Nibble, PAGE_BLOCKS, PAGE_BYTES};

/// Part of a durable map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoundPart {
    /// A page from its slots.
    Page(FoundPage),
    /// A block that is newer in the journal than in the slots of its page.
    Block(FoundBlock),
}

/// A block from the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundBlock {
    pub(crate) block: Block,
    pub(crate) generation: u64,
    /// The newest record that its writer knew.
    pub(crate) seq: Seq,
    pub(crate) nibbles: [u8; BLOCK_MAP_BYTES],
}

impl FoundPart {
    /// Returns the page of this part.
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

    /// Returns the first block that it describes.
    pub(crate) fn first_block(&self) -> Block {
        match self {
            Self::Page(page) => Block(page.page * PAGE_BLOCKS),
            Self::Block(found) => found.block,
        }
    }

    /// Returns the map's part of these blocks.
    pub(crate) fn nibbles(&self) -> &[u8] {
        match self {
            Self::Page(page) => &page.nibbles,
            Self::Block(found) => &found.nibbles,
        }
    }

    /// Returns the blocks that it describes, each with its part of the map.
    pub fn blocks(&self) -> impl Iterator<Item = (Block, &[u8; BLOCK_MAP_BYTES])> {
        (self.first_block().0..).map(Block).zip(self.nibbles().as_chunks().0)
    }
}

/// Returns the runs of sectors of a block whose newest bytes were never committed, each with its side,
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

/// A reader of a durable map.
pub struct MapReader {
    synced_generation: u64,
    invalidated: SideSet,
    /// The generation of each page's slots, lowest page first; compared with the journal.
    held: Vec<(u64, u64)>,
    replay: Option<JournalReplay>,
}

impl MapReader {
    /// Creates a reader of the map with this header.
    pub fn new(header: &Header) -> Self {
        Self {
            synced_generation: header.synced_generation,
            invalidated: header.invalidated,
            held: Vec::new(),
            replay: header.has_journal.then(JournalReplay::default),
        }
    }

    /// Returns the newest synced form of a page in its slots, without data that the header calls invalid;
    /// `None` if the page was never written. `pair` are the 8192 bytes of both slots. The caller passes each
    /// page once, lowest first, before the journal; it may omit pages that were never written.
    ///
    /// # Errors
    /// [`DamagedMap::Page`] if the last synced data may be lost.
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

    /// Returns the blocks that are newer in the next bytes of the journal, whole units of 512, oldest first.
    ///
    /// # Errors
    /// [`DamagedMap::Journal`] if a synced record may be lost.
    pub fn journal(&mut self, bytes: &[u8]) -> Result<Vec<FoundPart>, DamagedMap> {
        let mut found = Vec::new();
        let Some(replay) = &mut self.replay else { return Ok(found) };
        for unit in bytes.as_chunks().0 {
            if replay.has_ended() {
                break;
            }
            let record = replay.push(unit).map_err(DamagedMap::Journal)?;
            for JournalUnit { generation, seq, entries, .. } in record {
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

    /// Ends the read, after the whole file or the needed part of the journal.
    ///
    /// # Errors
    /// [`DamagedMap::Journal`] if the file ends within a record, or a required journal is missing.
    pub fn end(self) -> Result<(), DamagedMap> {
        self.replay.map_or(Ok(()), JournalReplay::end).map_err(DamagedMap::Journal)
    }
}

/// Drops the contents of the `invalidated` sides from a part of the map.
pub(super) fn forget(nibbles: &mut [u8], invalidated: SideSet) {
    if invalidated == SideSet::NONE {
        return;
    }
    for byte in nibbles {
        *byte = Nibble(*byte & 15).without(invalidated).0 | (Nibble(*byte >> 4).without(invalidated).0 << 4);
    }
}

/// Reads a map in memory: `pages` are page numbers with the 8192 bytes of both slots, lowest first,
/// `journal` the bytes of the file from [`super::JOURNAL_OFFSET`] on. Passes each part to `each`.
///
/// # Errors
/// [`DamagedMap`] if the last synced data may be lost.
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

/// Returns the newest synced form of each page of a map in memory, lowest first: see [`read_parts`].
///
/// # Errors
/// [`DamagedMap`] if the last synced data may be lost.
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
