//! The journal of the durable map: changes of pages whose slots do not have them yet.
//!
//! ```text
//! JOURNAL_OFFSET + 4096 * slot
//! ```
//! A slot is eight units of 512 bytes, each an envelope (see `wire`), zero to its end:
//! ```text
//! u64 generation, u64 seq, u64 start, u16 unit, u16 units, u8 n, n x (u32 block, 16 bytes)
//! ```
//! A record is a number of whole slots, written by one group of a flush round: `units` counts its units,
//! `unit` is the place among them. An entry is the map's part of a block as the round copied it. `start` is
//! the generation of the first round in which the writer's process filled slots with units of no entry; it
//! tells what that process wrote from what is older. Every slot is filled before a record is written there,
//! and so is the one behind the last record. Records follow each other from slot 0 with generations that do
//! not fall; once the slots of all pages have what the journal has, the next record is written at slot 0
//! again.
//!
//! The journal counts where the header says so (`Header::has_journal`), which is written after the fill was
//! synced. An entry counts for a page whose slots are of an older generation.
//!
//! Invariant 13 (`docs/invariants.md`): a power cut leaves each unit of the record that was being written as
//! it was before or after, and both can be read: the place held a unit of the fill or of an older record. So
//! a unit that cannot be read, where a record begins or in a record of which no other unit is older, is
//! corrupted.

use std::collections::BTreeMap;

use holdfast_types::{Block, Seq};

use super::{FoundPage, SLOT_BYTES, UNIT_BYTES, UNITS, page_offset};
use crate::limit::{JOURNAL_PAGES_PER_SLOT, JOURNAL_SLOTS, MAX_SECTORS};
use crate::safeguard::{Safeguard::ReplayOnlyNewer, safeguard};
use crate::sector_map::{BLOCK_MAP_BYTES, PAGE_BLOCKS, PAGE_BYTES, PAGE_SECTORS};
use crate::wire::{self, DecodeError, ENVELOPE_BYTES, Kind, Reader};

/// Byte offset of the journal in the file: behind the pages of the largest volume, so that growth moves
/// nothing.
pub const JOURNAL_OFFSET: u64 = page_offset(MAX_SECTORS / PAGE_SECTORS, 0);
const JOURNAL: &str = "journal of the durable map";
/// Bytes of a unit's payload before its entries.
const FIXED_BYTES: usize = 8 + 8 + 8 + 2 + 2 + 1;
const ENTRY_BYTES: usize = 4 + BLOCK_MAP_BYTES;
/// Entries that a unit has room for.
const UNIT_ENTRIES: usize = (UNIT_BYTES - ENVELOPE_BYTES - FIXED_BYTES) / ENTRY_BYTES;
/// Entries that a slot has room for.
const SLOT_ENTRIES: usize = UNITS * UNIT_ENTRIES;

/// Slots of the journal of a map of `pages` pages.
pub(crate) fn journal_slots(pages: u64) -> u64 {
    (pages / JOURNAL_PAGES_PER_SLOT).min(JOURNAL_SLOTS)
}

/// The bytes of the file for the journal of a map of `pages` pages: `(offset, length)`.
pub fn journal_extent(pages: u64) -> (u64, u64) {
    (JOURNAL_OFFSET, journal_slots(pages) * SLOT_BYTES as u64)
}

/// Byte offset of a slot of the journal.
pub(crate) fn journal_offset(slot: u64) -> u64 {
    JOURNAL_OFFSET + slot * SLOT_BYTES as u64
}

/// Slots of a record of so many entries.
pub(crate) fn record_slots(entries: usize) -> u64 {
    entries.div_ceil(SLOT_ENTRIES) as u64
}

/// A block and the map's part of it.
pub(crate) type Entry = (Block, [u8; BLOCK_MAP_BYTES]);

/// The bytes of a record as `generation`, by a writer that knows the log up to `seq`, in a journal that was
/// filled as `start`.
pub(crate) fn encode_record(generation: u64, seq: Seq, start: u64, entries: &[Entry]) -> Vec<u8> {
    let slots = record_slots(entries.len()) as usize;
    let units = u16::try_from(slots * UNITS).expect("ROUND_BLOCKS bounds a record");
    let mut out = Vec::with_capacity(slots * SLOT_BYTES);
    let mut parts = entries.chunks(UNIT_ENTRIES);
    for unit in 0..units {
        put_unit(&mut out, [generation, seq.0, start], [unit, units], parts.next().unwrap_or_default());
    }
    out
}

/// The bytes of `slots` slots without a record, of a journal that is filled as `start`.
pub(crate) fn encode_fill(start: u64, slots: usize) -> Vec<u8> {
    let mut unit = Vec::with_capacity(UNIT_BYTES);
    put_unit(&mut unit, [start, 0, start], [0, 0], &[]);
    unit.repeat(slots * UNITS)
}

fn put_unit(out: &mut Vec<u8>, numbers: [u64; 3], place: [u16; 2], entries: &[Entry]) {
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
struct Unit {
    generation: u64,
    seq: Seq,
    start: u64,
    unit: u16,
    /// Of its record; 0 in the fill.
    units: u16,
    entries: Vec<Entry>,
}

impl Unit {
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
            return Err(fields.bad("bytes behind the end", (*byte).into()));
        }
        fields.end()?;
        Ok(Self { generation, seq, start, unit, units, entries })
    }
}

/// Reason to leave out the rest of the journal.
enum Stop {
    /// It ends here, or its last record was being written.
    End,
    Damaged(DecodeError),
}

/// The journal of a map, while it is read.
struct Replay<'a> {
    units: &'a [[u8; UNIT_BYTES]],
    /// Generation of its fill.
    start: u64,
    /// Of the record before.
    newest: u64,
}

impl Replay<'_> {
    fn unit(&self, at: usize) -> Result<Unit, DecodeError> {
        let bytes = self.units.get(at).ok_or(DecodeError::Short { what: JOURNAL, have: at, need: at + 1 })?;
        let unit = Unit::decode(bytes)?;
        if unit.start != self.start {
            return Err(DecodeError::Field { what: JOURNAL, field: "start", value: unit.start });
        }
        Ok(unit)
    }

    /// The units of the record that begins with unit `at` of the journal.
    fn record(&mut self, at: usize) -> Result<Vec<Unit>, Stop> {
        if at == self.units.len() {
            return Err(Stop::End);
        }
        let first = self.unit(at).map_err(Stop::Damaged)?;
        if first.units == 0 || first.generation < self.newest {
            return Err(Stop::End);
        }
        let (generation, units) = (first.generation, first.units);
        let mut record = Vec::new();
        let mut damage = None;
        for number in 0..units {
            match self.unit(at + usize::from(number)) {
                Ok(unit) if [unit.generation, unit.unit.into()] != [generation, number.into()] => {
                    return Err(Stop::End);
                }
                Ok(unit) => record.push(unit),
                Err(error) => damage = damage.or(Some(error)),
            }
        }
        self.newest = generation;
        damage.map_or(Ok(record), |error| Err(Stop::Damaged(error)))
    }
}

/// Brings the pages that were found in the slots, with the generation that each slot holds, up to date with
/// the journal.
///
/// # Errors
/// [`DecodeError`] when a record that was synced may be lost.
pub(super) fn replay(bytes: &[u8], pages: &mut BTreeMap<u64, (u64, FoundPage)>) -> Result<(), DecodeError> {
    let units = bytes.as_chunks::<UNIT_BYTES>().0;
    let first = units.first().ok_or(DecodeError::Short { what: JOURNAL, have: 0, need: UNIT_BYTES })?;
    let mut replay = Replay { units, start: Unit::decode(first)?.start, newest: 0 };
    let mut at = 0;
    loop {
        let record = match replay.record(at) {
            Ok(record) => record,
            Err(Stop::End) => return Ok(()),
            Err(Stop::Damaged(error)) => return Err(error),
        };
        at += record.len();
        for Unit { generation, seq, entries, .. } in record {
            for (block, nibbles) in entries {
                let page = block.0 / PAGE_BLOCKS;
                let nothing = || FoundPage {
                    page,
                    slot: None,
                    generation: 0,
                    seq: Seq(0),
                    nibbles: vec![0; PAGE_BYTES],
                };
                let (held, found) = pages.entry(page).or_insert_with(|| (0, nothing()));
                found.generation = found.generation.max(generation);
                if generation > *held || !safeguard(ReplayOnlyNewer) {
                    let place = (block.0 % PAGE_BLOCKS) as usize * BLOCK_MAP_BYTES;
                    found.nibbles[place..place + BLOCK_MAP_BYTES].copy_from_slice(&nibbles);
                    found.seq = found.seq.max(seq);
                }
            }
        }
    }
}
