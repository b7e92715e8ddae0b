//! Local files of a simulated host: what was written, and what of it a power cut leaves.
//!
//! A side keeps one stamp a sector instead of 4096 bytes; a stamp names the guest write the bytes came from, zero a hole.
//! Unsynced writes survive a power cut in any subset; those of the map file are torn at 512 bytes.

use std::collections::BTreeMap;

use holdfast_engine::action::MapWrite;
use holdfast_types::SectorRange;

use crate::rng::Rng;

/// Names the guest write that a sector's bytes came from; zero means zeros.
pub(crate) type Stamp = u64;

/// Which unsynced writes a power cut leaves.
pub enum Fate<'a> {
    /// None.
    Nothing,
    /// All.
    Everything,
    /// Any subset.
    Some(&'a mut Rng),
}

impl Fate<'_> {
    /// Which of `count` unsynced versions is left; `None` is the synced one.
    fn choose(&mut self, count: usize) -> Option<usize> {
        match self {
            Fate::Nothing => None,
            Fate::Everything => count.checked_sub(1),
            Fate::Some(rng) => rng.below(count + 1).checked_sub(1),
        }
    }
}

/// Cells of a file, each with its synced version and the versions written since.
struct Cells<T> {
    cells: BTreeMap<u64, Cell<T>>,
    unsynced: std::collections::BTreeSet<u64>,
    written: u64,
}

struct Cell<T> {
    synced: Option<T>,
    since: Vec<(u64, T)>,
}

impl<T> Default for Cells<T> {
    fn default() -> Self {
        Self { cells: BTreeMap::new(), unsynced: Default::default(), written: 0 }
    }
}

impl<T: Clone> Cells<T> {
    fn write(&mut self, at: u64, value: T) {
        self.written += 1;
        self.unsynced.insert(at);
        let cell = self.cells.entry(at).or_insert(Cell { synced: None, since: Vec::new() });
        cell.since.push((self.written, value));
    }

    fn read(&self, at: u64) -> Option<&T> {
        let cell = self.cells.get(&at)?;
        cell.since.last().map(|(_, value)| value).or(cell.synced.as_ref())
    }

    fn sync(&mut self, mark: SyncMark) {
        let cells = &mut self.cells;
        self.unsynced.retain(|at| {
            let cell = cells.get_mut(at).expect("an unsynced cell was written");
            let covered = cell.since.partition_point(|(when, _)| *when <= mark.0);
            if let Some((_, value)) = cell.since.drain(..covered).next_back() {
                cell.synced = Some(value);
            }
            !cell.since.is_empty()
        });
    }

    fn lose_power(&mut self, fate: &mut Fate<'_>) {
        for at in std::mem::take(&mut self.unsynced) {
            let cell = self.cells.get_mut(&at).expect("an unsynced cell was written");
            if let Some(index) = fate.choose(cell.since.len()) {
                cell.synced = Some(cell.since.swap_remove(index).1);
            }
            cell.since.clear();
        }
    }
}

/// What a sync covers: the writes that had ended when it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncMark(u64);

/// One side.
#[derive(Default)]
pub(crate) struct SideFile {
    cells: Cells<Stamp>,
    /// Sectors that are no hole.
    pub(crate) held: u64,
}

impl SideFile {
    pub(crate) fn write(&mut self, sector: u64, stamp: Stamp) {
        self.held += u64::from(stamp != 0);
        self.held -= u64::from(self.read(sector) != 0);
        self.cells.write(sector, stamp);
    }

    /// Makes the sectors holes.
    pub(crate) fn punch(&mut self, range: SectorRange) {
        let holding: Vec<u64> = self.cells.cells.range(sectors(range)).map(|(at, _)| *at).collect();
        for sector in holding {
            self.write(sector, 0);
        }
    }

    pub(crate) fn read(&self, sector: u64) -> Stamp {
        self.cells.read(sector).copied().unwrap_or(0)
    }

    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark(self.cells.written)
    }

    pub(crate) fn sync(&mut self, mark: SyncMark) {
        self.cells.sync(mark);
    }

    pub(crate) fn lose_power(&mut self, fate: &mut Fate<'_>) {
        self.cells.lose_power(fate);
        self.held = self.cells.cells.keys().filter(|sector| self.read(**sector) != 0).count() as u64;
    }
}

const UNIT: usize = 512;

/// The durable map's file.
#[derive(Default)]
pub(crate) struct MapFile(Cells<[u8; UNIT]>);

impl MapFile {
    /// Writes those units of `write` that `reaches` says get there.
    pub(crate) fn write(&mut self, write: &MapWrite, mut reaches: impl FnMut() -> bool) {
        assert!(write.offset.is_multiple_of(4096) && write.bytes.len() == 4096, "whole slots only");
        for (index, unit) in write.bytes.as_chunks::<UNIT>().0.iter().enumerate() {
            if reaches() {
                self.0.write(write.offset / UNIT as u64 + index as u64, *unit);
            }
        }
    }

    pub(crate) fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let first = offset / UNIT as u64;
        let units = (length / UNIT) as u64;
        (first..first + units).flat_map(|at| *self.0.read(at).unwrap_or(&[0; UNIT])).collect()
    }

    pub(crate) fn mark(&self) -> SyncMark {
        SyncMark(self.0.written)
    }

    pub(crate) fn sync(&mut self, mark: SyncMark) {
        self.0.sync(mark);
    }

    pub(crate) fn lose_power(&mut self, fate: &mut Fate<'_>) {
        self.0.lose_power(fate);
    }
}

/// The sectors of a range.
pub(crate) fn sectors(range: SectorRange) -> std::ops::Range<u64> {
    range.start.0..range.end()
}
