//! The journal of the durable map: page changes that are not yet in the pages' slots.
//!
//! ```text
//! JOURNAL_OFFSET + 4096 * slot
//! ```
//! A slot is eight units of 512 bytes, each an envelope (see `wire`) padded with zeros:
//! ```text
//! u64 generation, u64 seq, u64 start, u16 unit, u16 units, u8 n, n x (u32 block, 16 bytes)
//! ```
//! A record is a number of whole slots, written by one group of a flush round: `units` counts its units,
//! `unit` is the position among them. An entry is the map's part of a block as copied by the round.
//! `start` is the generation of the first round in which the writer's process filled slots with empty
//! units; it distinguishes that process's units from older ones. Every slot is filled before a record is
//! written to it, as is the slot after the last record. Records follow each other from slot 0 with
//! nondecreasing generations; once all journal entries are in the pages' slots, the next record starts at
//! slot 0 again.
//!
//! The journal counts only if the header says so (`Header::has_journal`), which is written after the fill
//! was synced. An entry overrides slots of its page with an older generation.
//!
//! Invariant 13 (`docs/invariants.md`): a power cut leaves each unit of the record in progress either old
//! or new, and both are readable: its old content is a unit of the fill or of an older record. An
//! unreadable unit at the start of a record, or in a record without any older unit, is thus corrupted.

use holdfast_format::limit::MAX_SECTORS;
use holdfast_format::wire::{self, DecodeError, ENVELOPE_BYTES, Kind, Reader};
use holdfast_types::{Block, Seq};

use super::{SLOT_BYTES, UNIT_BYTES, UNITS, page_offset};
use crate::limit::{JOURNAL_PAGES_PER_SLOT, JOURNAL_SLOTS};
use crate::sector_map::{BLOCK_MAP_BYTES, PAGE_SECTORS};

/// Byte offset of the journal in the file: after the pages of the largest volume, so that growth moves
/// nothing.
pub const JOURNAL_OFFSET: u64 = page_offset(MAX_SECTORS / PAGE_SECTORS, 0);
const JOURNAL: &str = "journal of the durable map";
/// Bytes of a unit's payload before its entries.
const FIXED_BYTES: usize = 8 + 8 + 8 + 2 + 2 + 1;
const ENTRY_BYTES: usize = 4 + BLOCK_MAP_BYTES;
/// Maximum entries per unit.
const UNIT_ENTRIES: usize = (UNIT_BYTES - ENVELOPE_BYTES - FIXED_BYTES) / ENTRY_BYTES;
/// Maximum entries per slot.
const SLOT_ENTRIES: usize = UNITS * UNIT_ENTRIES;

/// Returns the number of journal slots for a map of `pages` pages.
pub(crate) fn journal_slots(pages: u64) -> u64 {
    (pages / JOURNAL_PAGES_PER_SLOT).min(JOURNAL_SLOTS)
}

/// Returns the bytes of the file for the journal of a map of `pages` pages: `(offset, length)`.
pub fn journal_extent(pages: u64) -> (u64, u64) {
    (JOURNAL_OFFSET, journal_slots(pages) * SLOT_BYTES as u64)
}

/// Returns the byte offset of a slot of the journal.
pub(crate) fn journal_offset(slot: u64) -> u64 {
    JOURNAL_OFFSET + slot * SLOT_BYTES as u64
}

/// Returns the number of slots for a record of `entries` entries.
pub(crate) fn record_slots(entries: usize) -> u64 {
    entries.div_ceil(SLOT_ENTRIES) as u64
}

/// A block and the map's part of it.
pub(crate) type JournalEntry = (Block, [u8; BLOCK_MAP_BYTES]);

/// Returns the bytes of a record as `generation`, by a writer that knows the log up to `seq`, in a journal
/// that was filled as `start`.
pub(crate) fn encode_record(generation: u64, seq: Seq, start: u64, entries: &[JournalEntry]) -> Vec<u8> {
    let slots = record_slots(entries.len()) as usize;
    let units = u16::try_from(slots * UNITS).expect("ROUND_BLOCKS bounds a record");
    let mut out = Vec::with_capacity(slots * SLOT_BYTES);
    let mut parts = entries.chunks(UNIT_ENTRIES);
    for unit in 0..units {
        put_unit(&mut out, [generation, seq.0, start], [unit, units], parts.next().unwrap_or_default());
    }
    out
}

/// Returns the bytes of `slots` slots without a record, for a journal that is filled as `start`.
pub(crate) fn encode_fill(start: u64, slots: usize) -> Vec<u8> {
    let mut unit = Vec::with_capacity(UNIT_BYTES);
    put_unit(&mut unit, [start, 0, start], [0, 0], &[]);
    unit.repeat(slots * UNITS)
}

fn put_unit(out: &mut Vec<u8>, numbers: [u64; 3], place: [u16; 2], entries: &[JournalEntry]) {
    let end = out.len() + UNIT_BYTES;
    wire::enclose_at_end(out, Kind::MapJournal, FIXED_BYTES + entries.len() * ENTRY_BYTES, |out| {
        numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        place.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
        out.push(entries.len() as u8);
        for (block, nibbles) in entries {
            let mut entry = [0; ENTRY_BYTES];
            entry[..4].copy_from_slice(&(block.0 as u32).to_le_bytes());
            entry[4..].copy_from_slice(nibbles);
            out.extend_from_slice(&entry);
        }
    });
    out.resize(end, 0);
}

/// A unit of the journal.
pub(super) struct JournalUnit {
    pub(super) generation: u64,
    pub(super) seq: Seq,
    start: u64,
    unit: u16,
    /// Number of units in its record; 0 in the fill.
    units: u16,
    pub(super) entries: Vec<JournalEntry>,
}

impl JournalUnit {
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Reader::new(JOURNAL, wire::open(Kind::MapJournal, JOURNAL, bytes)?);
        let (generation, seq, start) = (fields.u64()?, Seq(fields.u64()?), fields.u64()?);
        let (unit, units) = (fields.u16()?, fields.u16()?);
        if usize::from(units) % UNITS != 0 || unit > units {
            return Err(fields.bad("unit", unit.into()));
        }
        let mut entries = Vec::new();
        for _ in 0..fields.u8()? {
            entries.push((Block(fields.u32()?.into()), fields.array()?));
        }
        let used = ENVELOPE_BYTES + FIXED_BYTES + entries.len() * ENTRY_BYTES;
        if let Some(byte) = bytes[used..].iter().find(|byte| **byte != 0) {
            return Err(fields.bad("bytes after the end", (*byte).into()));
        }
        fields.end()?;
        Ok(Self { generation, seq, start, unit, units, entries })
    }
}

/// Reads the journal of a map, unit by unit.
#[derive(Default)]
pub(super) struct JournalReplay {
    /// Generation of its fill, once the first unit was read.
    start: Option<u64>,
    /// Generation of the previous record.
    newest: u64,
    /// The record that is being read.
    record: Option<PartialRecord>,
    has_ended: bool,
}

/// A partly read record.
struct PartialRecord {
    generation: u64,
    units: u16,
    read: u16,
    whole: Vec<JournalUnit>,
    /// Defect of its first damaged unit.
    damage: Option<DecodeError>,
}

impl JournalReplay {
    /// Returns true if the records have ended and the rest of the journal does not count.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Reads the next unit. Returns all units of the record that it completes, otherwise none.
    ///
    /// # Errors
    /// [`DecodeError`] if a synced record may be lost.
    pub(super) fn push(&mut self, bytes: &[u8; UNIT_BYTES]) -> Result<Vec<JournalUnit>, DecodeError> {
        let mut unit = JournalUnit::decode(bytes);
        let start = match (self.start, &unit) {
            (Some(start), _) => start,
            (None, Ok(first)) => *self.start.insert(first.start),
            (None, Err(error)) => return Err(error.clone()),
        };
        if let Ok(JournalUnit { start: other, .. }) = unit
            && other != start
        {
            unit = Err(DecodeError::Field { what: JOURNAL, field: "start", value: other });
        }
        let mut record = match (self.record.take(), &unit) {
            (Some(record), _) => record,
            (None, Ok(first)) if first.units == 0 || first.generation < self.newest => return self.ended(),
            (None, Ok(first)) => PartialRecord {
                generation: first.generation,
                units: first.units,
                read: 0,
                whole: Vec::new(),
                damage: None,
            },
            (None, Err(error)) => return Err(error.clone()),
        };
        match unit {
            Ok(unit) if (unit.generation, unit.unit) != (record.generation, record.read) => {
                return self.ended();
            }
            Ok(unit) => record.whole.push(unit),
            Err(error) => record.damage = record.damage.or(Some(error)),
        }
        record.read += 1;
        if record.read < record.units {
            self.record = Some(record);
            return Ok(Vec::new());
        }
        self.newest = record.generation;
        record.damage.map_or(Ok(record.whole), Err)
    }

    /// Ends the journal, here or at its last record, which was in progress.
    fn ended(&mut self) -> Result<Vec<JournalUnit>, DecodeError> {
        self.has_ended = true;
        Ok(Vec::new())
    }

    /// Ends the replay after the last unit.
    ///
    /// # Errors
    /// [`DecodeError`] if the journal had no unit, or the last record is incomplete.
    pub(super) fn end(self) -> Result<(), DecodeError> {
        match self.record {
            Some(PartialRecord { damage: Some(error), .. }) => Err(error),
            Some(PartialRecord { read, units, .. }) => {
                Err(DecodeError::Short { what: JOURNAL, have: read.into(), need: units.into() })
            }
            None if self.start.is_none() => {
                Err(DecodeError::Short { what: JOURNAL, have: 0, need: UNIT_BYTES })
            }
            None => Ok(()),
        }
    }
}
