//! The durable form of the map, next to the sides: a header and the map's pages, each in two slots written
//! alternately.
//!
//! ```text
//! 0      4096  header slot 0        4096   4096  header slot 1
//! 8192 + 8192 * page       4096     slot 0 of the page
//! 8192 + 8192 * page + 4096         slot 1 of the page
//! JOURNAL_OFFSET       ..           the journal (see `journal`)
//! ```
//! A header slot is one envelope (see `wire`), zero-padded. A page slot is eight units of 512 bytes, each
//! a separate zero-padded envelope:
//! `u64 page, u64 generation, u64 seq, u8 unit, u8 first, 256 bytes`. The header's payload:
//! ```text
//! u64 generation, u8 length + text volume id, u8[16] identity, u64 sectors, u64 epoch, u8[16] writer,
//! u8 active side, u8 flags (1 closed clean, 2 A invalidated, 4 B invalidated, 8 has a journal), u64 seq,
//! u64 synced generation, u32 n, n x u8[16] nonce
//! ```
//!
//! A header fits in one unit (`REMEMBERED_NONCES`), so its write is never torn. After a power cut or a
//! failed sync each of the two headers is whole, or zeros if it was never synced. Any other content is
//! corrupted, and may have been the newer header: then the map has no header.
//!
//! Each page has the sequence number of the newest record that its writer knew, because its clean data may be
//! in the store only with that record. A round writes its header after its pages, so the header may know
//! fewer records.
//!
//! An attach syncs the file before reading it: a slot written but never synced by a dead process must not
//! cause the other slot to be overwritten.
//!
//! Invariant 13 (`docs/invariants.md`): recovery takes the newer whole slot. The defect of the other slot
//! decides whether this is also the newest synced slot. A power cut leaves each unit either old or new, so a
//! unit that is neither whole nor, in a slot never filled, zeros is corrupted; its neighbouring units show
//! whether it was part of something newer. The first write of a page fills both slots, and a header written
//! later proves this: from then on zeros are corruption, too.

mod journal;
mod read;
mod summary;

use holdfast_format::limit::MAX_SECTORS;
use holdfast_format::safeguard::{Safeguard::PagesNameRecords, safeguard};
use holdfast_format::side::{Side, SideSet};
use holdfast_format::wire::{self, DecodeError, ENVELOPE_BYTES, Kind, Reader};
use holdfast_types::{Chunk, Epoch, Nonce, SectorRange, Seq, VolumeId};

use crate::limit::REMEMBERED_NONCES;
use crate::sector_map::{LiveMapError, Nibble, PAGE_BYTES, PAGE_SECTORS, SectorMap, chunk_pages, map_bytes};

pub use journal::{JOURNAL_OFFSET, journal_extent};
pub(crate) use journal::{
    JournalEntry, encode_fill, encode_record, journal_offset, journal_slots, record_slots,
};
pub use read::{FoundBlock, FoundPart, MapReader, dirty_runs_of, newest_pages, read_parts};
pub use summary::PageSummary;

/// Bytes of one slot.
pub const SLOT_BYTES: usize = 4096;
const HEADER: &str = "durable map header";
const PAGE: &str = "durable map page";
/// Unit of atomicity: after a power cut these bytes are either all old or all new.
const UNIT_BYTES: usize = 512;
const UNITS: usize = SLOT_BYTES / UNIT_BYTES;
/// Bytes of a page in one unit.
const UNIT_NIBBLES: usize = PAGE_BYTES / UNITS;
/// Used bytes of a unit.
const UNIT_USED: usize = ENVELOPE_BYTES + 26 + UNIT_NIBBLES;

/// Description of a volume's local state: its identity, its writer, and the validity of its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The volume.
    pub volume: VolumeId,
    /// The nonce of its create record, which distinguishes it from a volume of the same name in another
    /// store, or created later.
    pub identity: Nonce,
    /// Its size when the map was created.
    pub sectors: u64,
    /// The epoch up to which the local data matches the volume.
    pub epoch: Epoch,
    /// The nonce of that epoch's attach, by this node or another: a log that was rolled back may reissue the
    /// epoch.
    pub writer: Nonce,
    /// The nonces of this node's attaches since that epoch, newest last; some never reached the log.
    pub nonces: Vec<Nonce>,
    /// The side that takes writes.
    pub active: Side,
    /// True if the writer detached after its last round: clean data may be trusted if no record after `seq`
    /// changed the content of the volume.
    pub closed_clean: bool,
    /// Sides whose data a commit invalidated (`Body::Change`), regardless of the pages, which no round has
    /// written since.
    pub invalidated: SideSet,
    /// True if the journal may have changes that the pages' slots lack.
    pub has_journal: bool,
    /// The last record known to the writer when the round that wrote this header began. A log that ends
    /// earlier was rolled back.
    pub seq: Seq,
    /// Every page whose first write had this generation or an older one is synced.
    pub synced_generation: u64,
}

impl Header {
    /// Stores the nonce of an attach before its record is sent. Returns the nonce that the record must
    /// carry. If the list is full, this is the newest stored nonce: the record of any stored nonce may still
    /// reach the log, and the local data must not be mistaken for foreign then.
    pub fn intend(&mut self, nonce: Nonce) -> Nonce {
        self.closed_clean = false;
        match self.nonces.last() {
            Some(newest) if self.nonces.len() >= REMEMBERED_NONCES => *newest,
            Some(_) | None => {
                self.nonces.push(nonce);
                nonce
            }
        }
    }

    /// Sets the epoch up to which the local data is the volume's, and its writer. Records of earlier
    /// intended attaches cannot reach the log any more, because their position is at most that of this
    /// epoch's record.
    pub fn claim_as_of(&mut self, epoch: Epoch, writer: Option<Nonce>) {
        if epoch > self.epoch {
            self.epoch = epoch;
            self.writer = writer.unwrap_or_default();
            self.nonces.retain(|nonce| Some(*nonce) == writer);
        }
    }

    /// Returns the slot to write as `generation`.
    pub fn encode(&self, generation: u64) -> Vec<u8> {
        let mut out = generation.to_le_bytes().to_vec();
        wire::put_text(&mut out, self.volume.as_str());
        out.extend_from_slice(&self.identity.0);
        out.extend_from_slice(&self.sectors.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.writer.0);
        out.push(self.active as u8);
        out.push(
            u8::from(self.closed_clean) | (self.invalidated.bits() << 1) | (u8::from(self.has_journal) << 3),
        );
        out.extend_from_slice(&self.seq.0.to_le_bytes());
        out.extend_from_slice(&self.synced_generation.to_le_bytes());
        out.extend_from_slice(
            &u32::try_from(self.nonces.len()).expect("REMEMBERED_NONCES fits").to_le_bytes(),
        );
        for nonce in &self.nonces {
            out.extend_from_slice(&nonce.0);
        }
        slot(Kind::MapHeader, &out)
    }

    fn decode(bytes: &[u8]) -> Result<(u64, Self), DecodeError> {
        let mut fields = Reader::new(HEADER, wire::open(Kind::MapHeader, HEADER, bytes)?);
        let generation = fields.u64()?;
        let name = fields.text()?;
        let volume =
            VolumeId::try_from(name).map_err(|bad| fields.bad("volume id length", bad.0.len() as u64))?;
        let identity = Nonce(fields.array()?);
        let sectors = fields.u64()?;
        if sectors > MAX_SECTORS {
            return Err(fields.bad("sectors", sectors));
        }
        let epoch = Epoch(fields.u64()?);
        let writer = Nonce(fields.array()?);
        let active = if fields.u8()? == 0 { Side::A } else { Side::B };
        let flags = fields.u8()?;
        let closed_clean = flags & 1 != 0;
        if flags > 15 {
            return Err(fields.bad("flags", u64::from(flags)));
        }
        let invalidated = SideSet::from_bits((flags >> 1) & 3).expect("two bits");
        let has_journal = flags & 8 != 0;
        let seq = Seq(fields.u64()?);
        let synced_generation = fields.u64()?;
        let mut nonces = Vec::new();
        for _ in 0..fields.count(16)? {
            nonces.push(Nonce(fields.array()?));
        }
        fields.end()?;
        Ok((
            generation,
            Self {
                volume,
                identity,
                sectors,
                epoch,
                writer,
                nonces,
                active,
                closed_clean,
                invalidated,
                has_journal,
                seq,
                synced_generation,
            },
        ))
    }

    /// Returns the newer header in the file's first 8192 bytes, with its generation; `None` if no header
    /// was ever written.
    ///
    /// # Errors
    /// [`DecodeError`] if a slot was written but is not whole: no power cut causes that, and it may have
    /// been the newer one. The older header may lack invalidated sides and attaches of this node.
    pub fn newest(slots: &[u8]) -> Result<Option<(u64, Self)>, DecodeError> {
        let (first, second) = halves(HEADER, slots)?;
        match (Self::decode(first), Self::decode(second)) {
            (Ok(a), Ok(b)) => Ok(Some(if a.0 > b.0 { a } else { b })),
            (Ok(whole), Err(_)) if is_blank(second) => Ok(Some(whole)),
            (Err(_), Ok(whole)) if is_blank(first) => Ok(Some(whole)),
            (Err(_), Err(_)) if is_blank(first) && is_blank(second) => Ok(None),
            (Ok(_), Err(error)) => Err(error),
            (Err(error), Ok(_)) => Err(error),
            (Err(error), Err(other)) => Err(if is_blank(first) { other } else { error }),
        }
    }
}

/// Returns the byte offset of slot `slot` of the header.
pub const fn header_offset(slot: u8) -> u64 {
    slot as u64 * SLOT_BYTES as u64
}

/// Returns the byte offset of slot `slot` of `page`.
pub const fn page_offset(page: u64, slot: u8) -> u64 {
    2 * SLOT_BYTES as u64 + (page * 2 + slot as u64) * SLOT_BYTES as u64
}

/// Returns the bytes of the file for the pages of `chunk`: `(offset, length)`. They cover the whole chunk
/// even if the volume ends within it, because it may grow.
pub fn chunk_extent(chunk: Chunk) -> (u64, u64) {
    let pages = chunk_pages(chunk);
    (page_offset(pages.start, 0), page_offset(pages.end, 0) - page_offset(pages.start, 0))
}

/// Returns the length of the file for a map of `pages` pages.
pub const fn file_bytes(pages: u64) -> u64 {
    page_offset(pages, 0)
}

fn slot(kind: Kind, payload: &[u8]) -> Vec<u8> {
    let mut out = wire::enclose(kind, payload);
    assert!(out.len() <= SLOT_BYTES, "a slot holds the structure");
    out.resize(SLOT_BYTES, 0);
    out
}

fn halves<'a>(what: &'static str, pair: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), DecodeError> {
    let short = DecodeError::Short { what, have: pair.len(), need: 2 * SLOT_BYTES };
    let (first, rest) = pair.split_at_checked(SLOT_BYTES).ok_or(short.clone())?;
    Ok((first, rest.get(..SLOT_BYTES).ok_or(short)?))
}

/// Returns true for zeros, which a power cut leaves in a unit that was never written.
fn is_blank(unit: &[u8]) -> bool {
    unit[..UNIT_BYTES].iter().all(|byte| *byte == 0)
}

/// Returns the bytes to write to a slot of `page` as `generation`, by a writer that knows the log up to
/// `seq`. With `first`, the same bytes go to both slots, which were empty.
pub(crate) fn encode_page(page: u64, generation: u64, seq: Seq, first: bool, nibbles: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SLOT_BYTES);
    for (unit, part) in (0u8..).zip(nibbles.as_chunks::<UNIT_NIBBLES>().0) {
        wire::enclose_at_end(&mut out, Kind::MapPage, UNIT_USED - ENVELOPE_BYTES, |out| {
            out.extend_from_slice(&page.to_le_bytes());
            out.extend_from_slice(&generation.to_le_bytes());
            out.extend_from_slice(&seq.0.to_le_bytes());
            out.extend_from_slice(&[unit, u8::from(first)]);
            out.extend_from_slice(part);
        });
        out.resize((usize::from(unit) + 1) * UNIT_BYTES, 0);
    }
    assert!(out.len() == SLOT_BYTES, "a page fills a slot");
    out
}

/// A page that recovery found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPage {
    /// Its number.
    pub page: u64,
    /// The slot that holds it; `None` if its first write was torn, and the page is empty.
    pub(crate) slot: Option<u8>,
    /// The greatest generation in either slot: the generation of a torn write is never reused.
    pub(crate) generation: u64,
    /// The newest record that its writer knew.
    pub(crate) seq: Seq,
    pub(crate) nibbles: Vec<u8>,
}

/// The durable map, reduced to the facts an attach needs.
#[derive(Debug, Clone)]
pub struct FoundMap {
    /// The header's generation.
    pub generation: u64,
    /// The header.
    pub header: Header,
    /// Its pages, all whole.
    pub pages: PageSummary,
}

impl FoundMap {
    /// Returns the newest record that the writer is known to have read; local clean data may be in the store
    /// only with this record.
    pub fn known_seq(&self) -> Seq {
        let of_pages = Some(self.pages.seq).filter(|_| safeguard(PagesNameRecords));
        self.header.seq.max(of_pages.unwrap_or_default())
    }
}

impl FoundPage {
    /// Drops the contents of these sides.
    fn forget(&mut self, invalidated: SideSet) {
        read::forget(&mut self.nibbles, invalidated);
    }

    /// Returns the runs of sectors whose newest bytes were never committed, each with its side, lowest
    /// first: the data of the page that only this host has.
    pub fn dirty_runs(&self) -> impl Iterator<Item = (SectorRange, Side)> {
        let first = self.page * PAGE_SECTORS;
        let side = |sector: u64| {
            let nibble = Nibble((self.nibbles[(sector / 2) as usize] >> ((sector % 2) * 4)) & 15);
            nibble.after_host_loss(false).newest()
        };
        let mut at = 0;
        std::iter::from_fn(move || {
            let (start, found) = (at..PAGE_SECTORS).find_map(|sector| Some((sector, side(sector)?)))?;
            at = (start..PAGE_SECTORS).find(|sector| side(*sector) != Some(found)).unwrap_or(PAGE_SECTORS);
            Some((SectorRange::new(first + start, at - start), found))
        })
    }
}

/// A part of the map whose synced bytes are lost, so that clean and stale data in its range are
/// indistinguishable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DamagedMap {
    /// A page.
    #[error("durable map page {page} (its 16 MiB begin at sector {first}) is damaged", first = page * PAGE_SECTORS)]
    Page {
        /// The page.
        page: u64,
        /// Its defect.
        #[source]
        source: DecodeError,
    },
    /// The journal.
    #[error("the journal of the durable map is damaged")]
    Journal(#[source] DecodeError),
}

/// Returns the newest of a page's slots, with its generation.
fn newest_of(page: u64, slots: [&[u8]; 2], synced: u64) -> Result<Option<(u64, FoundPage)>, DecodeError> {
    let mut slots = slots.map(|bytes| MapSlot::read(page, bytes));
    let Some(generation) = slots.iter().filter_map(|slot| slot.newest).max() else {
        return slots.iter_mut().find_map(|slot| slot.bad.take()).map_or(Ok(None), Err);
    };
    let whole = |slot: &MapSlot| if slot.is_whole { slot.newest } else { None };
    let slot = usize::from(whole(&slots[1]) > whole(&slots[0]));
    let Some(held) = whole(&slots[slot]) else {
        // A torn first write was never acknowledged. It counts as found but empty, so that the next round
        // fills both slots before the header can cover them.
        let torn = slots
            .iter()
            .all(|slot| slot.bad.is_none() && slot.is_first && slot.newest.is_none_or(|g| g > synced));
        return if torn {
            let nibbles = vec![0; PAGE_BYTES];
            Ok(Some((0, FoundPage { page, slot: None, generation, seq: Seq(0), nibbles })))
        } else {
            Err(slots.into_iter().find_map(MapSlot::defect).expect("neither slot is whole"))
        };
    };
    let was_filled = !slots[slot].is_first || held <= synced;
    let [first, second] = slots;
    let (newest, other) = if slot == 0 { (first, second) } else { (second, first) };
    if !other.is_whole && !other.is_of_no_use(held, was_filled, synced) {
        return Err(other.defect().expect("it is not whole"));
    }
    let MapSlot { seq, nibbles, .. } = newest;
    Ok(Some((held, FoundPage { page, slot: Some(u8::from(slot == 1)), generation, seq, nibbles })))
}

/// A slot of a page, as read from the file.
struct MapSlot {
    is_whole: bool,
    /// The greatest generation of a unit; `None` if no unit is readable.
    newest: Option<u64>,
    /// The newest record that the writer of a whole slot knew.
    seq: Seq,
    /// True if all units belong to the page's first write.
    is_first: bool,
    /// Defect of a unit that is neither whole nor zeros.
    bad: Option<DecodeError>,
    /// Defect of a zeroed unit.
    blank: Option<DecodeError>,
    nibbles: Vec<u8>,
}

impl MapSlot {
    fn read(page: u64, bytes: &[u8]) -> Self {
        let mut slot = Self {
            is_whole: false,
            newest: None,
            seq: Seq(0),
            is_first: true,
            bad: None,
            blank: None,
            nibbles: Vec::with_capacity(PAGE_BYTES),
        };
        let mut oldest = u64::MAX;
        for (number, unit) in (0u8..).zip(bytes.as_chunks::<UNIT_BYTES>().0) {
            match decode_unit(page, number, unit) {
                Ok(PageUnit { generation, seq, is_first, nibbles }) => {
                    slot.newest = slot.newest.max(Some(generation));
                    slot.seq = slot.seq.max(seq);
                    oldest = oldest.min(generation);
                    slot.is_first &= is_first;
                    slot.nibbles.extend_from_slice(nibbles);
                }
                Err(error) if is_blank(unit) => slot.blank = Some(error),
                Err(error) => slot.bad = Some(error),
            }
        }
        slot.is_whole = slot.nibbles.len() == PAGE_BYTES && slot.newest == Some(oldest);
        slot
    }

    /// Returns true if this slot, which is not whole, has no data that was synced after the whole slot of
    /// generation `held`.
    fn is_of_no_use(&self, held: u64, was_filled: bool, synced: u64) -> bool {
        let corrupted = self.bad.is_some() || (self.blank.is_some() && was_filled);
        match self.newest {
            // The slot is older: in a newer slot, the remaining units would have a newer generation.
            Some(newest) if newest <= held => true,
            // The slot is newer: a torn write, unless it is corrupted or covered by the header.
            Some(newest) => !corrupted && newest > synced,
            None => !corrupted,
        }
    }

    fn defect(self) -> Option<DecodeError> {
        let mixed =
            || DecodeError::Field { what: PAGE, field: "generation", value: self.newest.unwrap_or(0) };
        (!self.is_whole).then(|| self.bad.or(self.blank).unwrap_or_else(mixed))
    }
}

/// Passes the parts of a live map to `each`, lowest first, for a host whose durable map could not be
/// brought up to date.
///
/// # Errors
/// [`LiveMapError`] if `memory` is not the live map of the header's volume.
pub fn live_parts(
    header: &Header,
    mut memory: Vec<u8>,
    each: &mut dyn FnMut(FoundPart),
) -> Result<(), LiveMapError> {
    let whole = usize::try_from(map_bytes(header.sectors)).unwrap_or(usize::MAX);
    if memory.len() < whole {
        // The volume may have grown since.
        memory.resize(whole, 0);
    }
    let map = SectorMap::open(memory, header.sectors, &header.volume)?;
    let seq = map.seq();
    for page in map.prepared_pages() {
        let nibbles = map.page(page).to_vec();
        each(FoundPart::Page(FoundPage { page, slot: None, generation: 0, seq, nibbles }));
    }
    Ok(())
}

/// A unit of a page.
struct PageUnit<'a> {
    generation: u64,
    seq: Seq,
    /// True if the unit belongs to the page's first write.
    is_first: bool,
    /// Its part of the page.
    nibbles: &'a [u8],
}

fn decode_unit(page: u64, unit: u8, bytes: &[u8]) -> Result<PageUnit<'_>, DecodeError> {
    let mut fields = Reader::new(PAGE, wire::open(Kind::MapPage, PAGE, bytes)?);
    let number = fields.u64()?;
    if number != page {
        return Err(fields.bad("page number", number));
    }
    let (generation, seq) = (fields.u64()?, Seq(fields.u64()?));
    let found = fields.u8()?;
    if found != unit {
        return Err(fields.bad("unit number", found.into()));
    }
    let is_first = fields.u8()? != 0;
    let nibbles = fields.take(UNIT_NIBBLES)?;
    if let Some(byte) = bytes[UNIT_USED..].iter().find(|byte| **byte != 0) {
        return Err(fields.bad("bytes after the end", (*byte).into()));
    }
    fields.end()?;
    Ok(PageUnit { generation, seq, is_first, nibbles })
}

#[cfg(test)]
mod tests;
