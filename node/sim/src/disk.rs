//! Local files of a simulated host: their written content, and the part that survives a power cut.
//!
//! A side keeps one stamp per sector instead of 4096 bytes; a stamp identifies the client write of the
//! bytes, zero a hole. Any subset of the unsynced writes survives a power cut; those of the map file are
//! torn at 512 bytes. Data covered by a failed sync stays unsynced permanently.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_engine::action::{MapWrite, Source};
use holdfast_engine::durable_map::{
    FoundMap, FoundPart, Header, JOURNAL_OFFSET, PageSummary, dirty_runs_of, page_offset, read_parts,
};
use holdfast_engine::settings::Pending;
use holdfast_format::side::Side;
use holdfast_types::{BLOCK_SECTORS, SectorRange};
use parking_lot::Mutex;

use crate::calls::LocalError;
use crate::rng::Rng;

/// Identifies the client write of a sector's bytes; zero means zeros.
pub(crate) type Stamp = u64;

/// The unsynced writes that survive a power cut.
pub enum Fate<'a> {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// Any subset.
    Some(&'a mut Rng),
    /// One of the distinct subsets, counted from zero (`World::outcomes` returns their number).
    Nth(u64),
}

impl Fate<'_> {
    /// Chooses the surviving version of a cell.
    fn choose<T: Clone + PartialEq>(&mut self, cell: &Cell<T>) -> T {
        let newest = || cell.since.last().map_or(&cell.synced, |(_, value)| value).clone();
        match self {
            Fate::Nothing => cell.synced.clone(),
            Fate::Everything => newest(),
            Fate::Some(rng) => match rng.below(cell.since.len() + 1) {
                0 => cell.synced.clone(),
                version => cell.since[version - 1].1.clone(),
            },
            Fate::Nth(left) => {
                let outcomes = cell.outcomes();
                let count = outcomes.len() as u64;
                let chosen = outcomes[(*left % count) as usize].clone();
                *left /= count;
                chosen
            }
        }
    }
}

/// Time of a version that a sync failed to make durable: no later sync covers it.
const LOST: u64 = u64::MAX;

/// Cells of a file, each with its synced version and the versions written since.
#[derive(Clone)]
struct Cells<T> {
    /// Content of a cell that was never written.
    blank: T,
    cells: BTreeMap<u64, Cell<T>>,
    unsynced: std::collections::BTreeSet<u64>,
    written: u64,
}

#[derive(Clone)]
struct Cell<T> {
    synced: T,
    since: Vec<(u64, T)>,
}

impl<T: PartialEq> Cell<T> {
    /// Returns the distinct versions that may survive a power cut.
    fn outcomes(&self) -> Vec<&T> {
        let mut outcomes = vec![&self.synced];
        for (_, value) in &self.since {
            if !outcomes.contains(&value) {
                outcomes.push(value);
            }
        }
        outcomes
    }
}

impl<T: Clone + PartialEq> Cells<T> {
    fn new(blank: T) -> Self {
        Self { blank, cells: BTreeMap::new(), unsynced: Default::default(), written: 0 }
    }

    fn write(&mut self, at: u64, value: T) {
        self.written += 1;
        self.unsynced.insert(at);
        let blank = || Cell { synced: self.blank.clone(), since: Vec::new() };
        let cell = self.cells.entry(at).or_insert_with(blank);
        cell.since.push((self.written, value));
    }

    fn read(&self, at: u64) -> &T {
        let Some(cell) = self.cells.get(&at) else { return &self.blank };
        cell.since.last().map_or(&cell.synced, |(_, value)| value)
    }

    fn sync(&mut self, mark: SyncMark) {
        let cells = &mut self.cells;
        self.unsynced.retain(|at| {
            let cell = cells.get_mut(at).expect("an unsynced cell was written");
            if let Some(newest) = cell.since.iter().rposition(|(when, _)| *when <= mark.0)
                && let Some((_, value)) = cell.since.drain(..=newest).next_back()
            {
                cell.synced = value;
            }
            !cell.since.is_empty()
        });
    }

    /// Fails a sync: unsynced data still reads back until a power cut, which may lose it despite later
    /// syncs. A cell that is written again is no longer affected.
    fn fail_sync(&mut self) {
        for at in &self.unsynced {
            let cell = self.cells.get_mut(at).expect("an unsynced cell was written");
            for (when, _) in &mut cell.since {
                *when = LOST;
            }
        }
    }

    fn lose_power(&mut self, fate: &mut Fate<'_>) {
        for at in std::mem::take(&mut self.unsynced) {
            let cell = self.cells.get_mut(&at).expect("an unsynced cell was written");
            cell.synced = fate.choose(cell);
            cell.since.clear();
        }
    }

    /// Returns the number of states that a power cut can leave; at most `u64::MAX`.
    fn outcomes(&self) -> u64 {
        let each = self.unsynced.iter().map(|at| self.cells[at].outcomes().len() as u64);
        each.fold(1, u64::saturating_mul)
    }
}

/// Extent of a sync: the writes that had ended when it was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncMark(u64);

/// One side.
#[derive(Clone)]
pub(crate) struct SideFile {
    cells: Cells<Stamp>,
    /// Sectors that are not a hole.
    pub(crate) data_sectors: u64,
    /// Sectors that are unreadable until they are overwritten.
    pub(crate) corrupted: BTreeSet<u64>,
}

impl Default for SideFile {
    fn default() -> Self {
        Self { cells: Cells::new(0), data_sectors: 0, corrupted: BTreeSet::new() }
    }
}

impl SideFile {
    pub(crate) fn write(&mut self, sector: u64, stamp: Stamp) {
        self.data_sectors += u64::from(stamp != 0);
        self.data_sectors -= u64::from(self.read(sector) != 0);
        self.corrupted.remove(&sector);
        self.cells.write(sector, stamp);
    }

    /// Writes `stamp` to those sectors of `range` for which `selects` returns true.
    pub(crate) fn write_part(&mut self, range: SectorRange, stamp: Stamp, mut selects: impl FnMut() -> bool) {
        for sector in sectors(range) {
            if selects() {
                self.write(sector, stamp);
            }
        }
    }

    /// Makes the sectors holes.
    pub(crate) fn punch(&mut self, range: SectorRange) {
        let holding: Vec<u64> = self.cells.cells.range(sectors(range)).map(|(at, _)| *at).collect();
        for sector in holding {
            self.write(sector, 0);
        }
    }

    /// Returns true if all of `range` is readable.
    pub(crate) fn is_readable(&self, range: SectorRange) -> bool {
        self.corrupted.range(sectors(range)).next().is_none()
    }

    /// Makes a sector with data unreadable: the one at or after `sector`.
    pub(crate) fn corrupt(&mut self, sector: u64) {
        let nonzero = self.cells.cells.range(sector..).map(|(at, _)| *at).find(|at| self.read(*at) != 0);
        self.corrupted.extend(nonzero);
    }

    pub(crate) fn read(&self, sector: u64) -> Stamp {
        *self.cells.read(sector)
    }

    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark(self.cells.written)
    }

    pub(crate) fn sync(&mut self, mark: SyncMark) {
        self.cells.sync(mark);
    }

    pub(crate) fn lose_power(&mut self, fate: &mut Fate<'_>) {
        self.cells.lose_power(fate);
        self.data_sectors = self.cells.cells.keys().filter(|sector| self.read(**sector) != 0).count() as u64;
    }

    pub(crate) fn outcomes(&self) -> u64 {
        self.cells.outcomes()
    }
}

const UNIT: usize = 512;

/// The durable map's file.
#[derive(Clone)]
pub(crate) struct MapFile(Cells<[u8; UNIT]>);

impl Default for MapFile {
    fn default() -> Self {
        Self(Cells::new([0; UNIT]))
    }
}

impl MapFile {
    /// Writes those units of `write` for which `selects` returns true.
    pub(crate) fn write(&mut self, write: &MapWrite, mut selects: impl FnMut() -> bool) {
        assert!(
            write.offset.is_multiple_of(4096) && write.bytes.len().is_multiple_of(4096),
            "whole slots only"
        );
        for (index, unit) in write.bytes.as_chunks::<UNIT>().0.iter().enumerate() {
            if selects() {
                self.0.write(write.offset / UNIT as u64 + index as u64, *unit);
            }
        }
    }

    /// Corrupts the unit at `offset`, synced or not; versions of zeros stay as they are. Returns false if it
    /// was never written, not even as zeros.
    pub(crate) fn decay(&mut self, offset: u64) -> bool {
        let Some(cell) = self.0.cells.get_mut(&(offset / UNIT as u64)) else { return false };
        let versions = cell.since.iter_mut().map(|(_, value)| value).chain([&mut cell.synced]);
        versions.filter(|value| **value != [0; UNIT]).for_each(|value| value[50] ^= 1);
        true
    }

    /// Returns the end of all data ever written below `limit`.
    pub(crate) fn end(&self, limit: u64) -> u64 {
        let last = self.0.cells.range(..limit / UNIT as u64).next_back();
        last.map_or(0, |(at, _)| (at + 1) * UNIT as u64)
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let first = offset / UNIT as u64;
        let units = (length / UNIT) as u64;
        (first..first + units).flat_map(|at| *self.0.read(at)).collect()
    }

    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark(self.0.written)
    }

    pub(crate) fn sync(&mut self, mark: SyncMark) {
        self.0.sync(mark);
    }

    pub(crate) fn fail_sync(&mut self) {
        self.0.fail_sync();
    }

    pub(crate) fn lose_power(&mut self, fate: &mut Fate<'_>) {
        self.0.lose_power(fate);
    }

    pub(crate) fn outcomes(&self) -> u64 {
        self.0.outcomes()
    }
}

/// State that survives the loss of the host, if it was synced.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) sides: [SideFile; 2],
    pub(crate) map: MapFile,
    pub(crate) pending: Option<Pending>,
    /// True if the space for commits is reserved.
    pub(crate) is_reserved: bool,
    /// True if a sync failed and the process that had requested it died: the kernel reports the failure to
    /// the next process that syncs.
    pub(crate) unreported_failure: bool,
}

impl Disk {
    /// Fails a sync of any file. It flushes the whole disk, so no file's unsynced data is safe from then on.
    pub(crate) fn fail_sync(&mut self) {
        for side in &mut self.sides {
            side.cells.fail_sync();
        }
        self.map.fail_sync();
    }

    /// Ends the sync of a side from `mark`.
    pub(crate) fn end_sync(&mut self, side: Side, mark: SyncMark, fails: bool) {
        if fails { self.fail_sync() } else { self.side(side).sync(mark) }
    }

    /// Ends the sync of the durable map from `mark`.
    pub(crate) fn end_map_sync(&mut self, mark: SyncMark, fails: bool) {
        if fails { self.fail_sync() } else { self.map.sync(mark) }
    }

    pub(crate) fn side(&mut self, side: Side) -> &mut SideFile {
        &mut self.sides[side as usize]
    }

    /// Returns the stamps that a read of `range` finds; `None` if it fails, that is, if it needs a side
    /// and `fails`.
    pub(crate) fn read(&self, range: SectorRange, from: Source, fails: bool) -> Option<Vec<Stamp>> {
        match from {
            Source::Side(side) => {
                let side = &self.sides[side as usize];
                (!fails && side.is_readable(range))
                    .then(|| sectors(range).map(|sector| side.read(sector)).collect())
            }
            // A hole: the disk is not read.
            Source::Zeros => Some(vec![0; range.sectors as usize]),
        }
    }

    pub(crate) fn lose_power(&mut self, fate: &mut Fate<'_>) {
        self.unreported_failure = false;
        for side in &mut self.sides {
            side.lose_power(fate);
        }
        // The files split the number of a state: the first one takes the lowest digits.
        self.map.lose_power(fate);
    }

    /// Writes those sectors of `range` that are not holes, like a full disk. Returns true if these are all.
    pub(crate) fn overwrite(&mut self, side: Side, range: SectorRange, stamp: Stamp) -> bool {
        let side = self.side(side);
        let (nonzero, holes): (Vec<u64>, Vec<u64>) =
            sectors(range).partition(|sector| side.read(*sector) != 0);
        nonzero.into_iter().for_each(|sector| side.write(sector, stamp));
        holes.is_empty()
    }

    /// Returns true if a full disk accepts `write` to the durable map: its header has space, and so have
    /// the pages of prepared chunks; in the journal, only the part ever written.
    pub(crate) fn has_room(&self, write: &MapWrite) -> bool {
        let end = write.offset + write.bytes.len() as u64;
        write.offset < JOURNAL_OFFSET || end <= self.map.end(u64::MAX)
    }

    /// Returns the number of states that a power cut can leave; at most `u64::MAX`.
    pub(crate) fn outcomes(&self) -> u64 {
        let sides = self.sides.iter().map(SideFile::outcomes);
        sides.chain([self.map.outcomes()]).fold(1, u64::saturating_mul)
    }

    /// Reads the durable map's header with its generation.
    fn read_header(&self) -> Result<Option<(u64, Header)>, LocalError> {
        Header::newest(&self.map.read(0, 2 * 4096)).map_err(|error| LocalError::Damaged(error.to_string()))
    }

    /// Passes each part of the durable map to `each`.
    pub(crate) fn read_parts(
        &self,
        header: &Header,
        each: &mut dyn FnMut(FoundPart),
    ) -> Result<(), LocalError> {
        // To the end of the file: an attach that read an old log may have written a header with the size
        // before the volume grew.
        let count = self
            .map
            .end(JOURNAL_OFFSET)
            .saturating_sub(page_offset(0, 0))
            .div_ceil(page_offset(1, 0) - page_offset(0, 0));
        let pairs: Vec<_> =
            (0..count).map(|page| (page, self.map.read(page_offset(page, 0), 8192))).collect();
        let pairs = pairs.iter().map(|(page, pair)| (*page, pair.as_slice()));
        let length = self.map.end(u64::MAX).saturating_sub(JOURNAL_OFFSET);
        let journal = self.map.read(JOURNAL_OFFSET, length as usize);
        read_parts(header, pairs, &journal, each).map_err(|error| LocalError::Damaged(error.to_string()))
    }

    /// Reads the durable map.
    pub(crate) fn read_map(&self) -> Result<Option<FoundMap>, LocalError> {
        let Some((generation, header)) = self.read_header()? else { return Ok(None) };
        let mut pages = PageSummary::default();
        self.read_parts(&header, &mut |part| pages.add(&part))?;
        Ok(Some(FoundMap { generation, header, pages }))
    }

    /// Reads the header of the durable map, and its dirty sectors, each with its side; `None` without a
    /// map.
    pub(crate) fn read_dirty(&self) -> Result<Option<(Header, DirtySectors)>, LocalError> {
        let Some((_generation, header)) = self.read_header()? else { return Ok(None) };
        let mut dirty = BTreeMap::new();
        self.read_parts(&header, &mut |part| {
            for (block, nibbles) in part.blocks() {
                let first = block.first_sector().0;
                dirty.retain(|sector, _| !(first..first + BLOCK_SECTORS).contains(sector));
                for (run, side) in dirty_runs_of(block, nibbles) {
                    dirty.extend(sectors(run).map(|sector| (sector, side)));
                }
            }
        })?;
        Ok(Some((header, dirty)))
    }

    /// Returns true if the durable map is whole and names uncommitted data.
    pub(crate) fn holds_dirty(&self) -> bool {
        self.read_map().is_ok_and(|map| map.is_some_and(|map| map.pages.holds_dirty()))
    }
}

/// Dirty sectors of a durable map, each with its side.
pub(crate) type DirtySectors = BTreeMap<u64, Side>;

/// A disk that the futures of a process share.
pub(crate) type SharedDisk = Arc<Mutex<Disk>>;

/// Returns the sectors of a range.
pub(crate) fn sectors(range: SectorRange) -> std::ops::Range<u64> {
    range.start.0..range.end()
}
