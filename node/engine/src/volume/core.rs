//! State that all owners within a volume read, and the methods with which they change the sector map.
//!
//! Owns: the live map with its header and manifest, the dirty data of each side, the changes since the
//! last flush round began, and the lifecycle. Does not own: any decision, which the owners make.
//! Runs on: the ring thread of the volume.
//! Invariants: sectors that become dirty in the map are added to `dirty` and `unflushed` in the same step (1,
//! 16).

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::index::Runs;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::Record;
use holdfast_format::safeguard::{
    Safeguard::{InvalidateUnsynced, PlaceBeyondRecord, SealByAge},
    safeguard,
};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{BLOCK_SECTORS, CHUNK_SECTORS, Millis, Place, SECTOR_BYTES, SectorRange, Seq};

use super::dirty::DirtySide;
use super::lifecycle::Lifecycle;
use super::unflushed::Unflushed;
use crate::durable_map::Header;
use crate::limit::{COMMIT_SOON_AGE_MS, COMMIT_SOON_BYTES, MAX_DIRTY_BLOCKS, SEAL_BLOCKS};
use crate::sector_map::PerSide;
use crate::sector_map::SectorMap;
use crate::settings::{DirtyLimits, Setup};

/// Memory of a live map.
pub(super) trait Memory: AsRef<[u8]> + AsMut<[u8]> {}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Memory for M {}

pub(super) struct Core<M> {
    pub(super) map: SectorMap<M>,
    /// The header for the next round that writes one.
    pub(super) header: Header,
    /// `None` after a takeover until the log is read.
    pub(super) manifest: Option<Manifest>,
    /// Number of this process's records that merged runs. Lists of runs from before a merge name objects that
    /// a sweep may have deleted.
    pub(super) merges: u64,
    pub(super) limits: DirtyLimits,
    /// True if dirty data is to be committed soon, regardless of the limits.
    pub(super) commits_soon: bool,
    pub(super) lifecycle: Lifecycle,
    pub(super) dirty: PerSide<DirtySide>,
    pub(super) unflushed: Unflushed,
    /// The time of the event in progress.
    pub(super) now: Millis,
    /// Milliseconds since 1970 when `now` was zero.
    pub(super) unix_ms_at_zero: u64,
}

/// Creates the live map of a newly attached volume, not yet published, over memory with the contents of
/// its durable map after the loss of the host. `generation` is the greatest in the durable map.
pub(super) fn map_after_attach<M: Memory>(
    header: &Header,
    memory: M,
    generation: u64,
    now: Millis,
) -> SectorMap<M> {
    let mut map = SectorMap::format(memory, header.sectors, &header.volume);
    // Rounds that wrote no page count too, because no sync so far covers later writes.
    map.set_generation(generation.max(header.synced_generation));
    map.set_active(header.active);
    map.set_epoch(header.epoch);
    for side in Side::BOTH {
        map.set_dirty_since(side, now);
    }
    map
}

impl<M: Memory> Core<M> {
    /// Returns the runs that compose `range`, if it is part of one block that the object store may hold,
    /// and none of it is on a side.
    #[inline]
    pub(super) fn runs_of(&self, range: SectorRange) -> Option<&Runs> {
        let is_of_one_block = range.start.block().0 == (range.end() - 1) / BLOCK_SECTORS;
        let manifest = self.manifest.as_ref().filter(|_| is_of_one_block)?;
        let is_remote = self.map.first_run(range) == (range, None);
        (is_remote && manifest.may_hold(range.start.chunk())).then(|| manifest.runs())
    }

    /// Creates the core of a serving volume over its map.
    pub(super) fn over(setup: Setup, map: SectorMap<M>, now: Millis) -> Self {
        let pages = map.pages();
        let mut core = Self {
            header: setup.header,
            manifest: None,
            merges: 0,
            limits: setup.limits,
            commits_soon: false,
            lifecycle: Lifecycle::Serving,
            dirty: PerSide::from_fn(|_side| DirtySide::clean(pages)),
            unflushed: Unflushed::after_takeover(&map),
            now,
            unix_ms_at_zero: setup.unix_ms_at_zero,
            map,
        };
        // The first round writes every page: earlier invalid data has been dropped, and nothing in the
        // journal counts.
        core.header.invalidated = SideSet::NONE;
        core.header.has_journal = false;
        let prepared: Vec<u64> = core.map.prepared_pages().collect();
        for page in prepared {
            let dirty = core.map.count(page);
            for side in Side::BOTH.into_iter().filter(|side| !dirty[*side].is_empty()) {
                core.dirty[side].blocks.insert(page, dirty[side]);
                core.dirty[side].since = Some(core.map.dirty_since(side).min(now));
            }
        }
        core
    }

    /// Returns the milliseconds since 1970.
    pub(super) fn unix_ms(&self) -> u64 {
        self.unix_ms_at_zero + self.now
    }

    /// Returns the newest record known to this writer, or to the process before it.
    pub(super) fn known_seq(&self) -> Seq {
        let of_log = self.manifest.as_ref().map_or(self.header.seq, Manifest::seq);
        of_log.max(self.map.seq())
    }

    /// Sets the log to `manifest`.
    pub(super) fn learn(&mut self, manifest: Manifest) {
        self.map.set_seq(manifest.seq());
        self.manifest = Some(manifest);
    }

    /// Applies a record of this writer to the manifest. The record's data is marked clean only afterwards.
    pub(super) fn follow(&mut self, record: &Record) {
        let manifest = self.manifest.as_mut().expect("a record was made from it");
        if let Err(error) = manifest.apply(record) {
            unreachable!("a record made from the manifest follows it: {error}")
        }
        self.merges += u64::from(record.body.has_merges());
        self.map.set_seq(record.seq);
    }

    /// Returns the place of the next upload: that of the next record, which will name the upload, because no
    /// other record is created between the start and the end of an upload (invariant 27).
    pub(super) fn upload_place(&self) -> Place {
        let known = self.known_seq();
        Place::until(if safeguard(PlaceBeyondRecord) { known.next() } else { known })
    }

    /// Returns false if every sector reads as zeros, and no data was ever lost with a writer; `None` while
    /// the manifest is not loaded.
    pub(super) fn holds_data(&self) -> Option<bool> {
        let manifest = self.manifest.as_ref()?;
        Some(!manifest.runs().is_empty() || manifest.was_replaced() || self.map.is_any_prepared())
    }

    /// Returns true if a sync of a side failed since the attach (`volume/durability.rs`).
    pub(super) fn is_sync_failed(&self) -> bool {
        self.map.is_sync_failed()
    }

    /// Returns true if the inactive side may be punched without a round: the durable map's entries no
    /// longer count.
    pub(super) fn is_invalidated(&self) -> bool {
        self.is_sync_failed()
            && self.manifest.as_ref().is_some_and(|manifest| manifest.invalidated() == SideSet::BOTH)
    }

    /// Returns true if clean data can be evicted only after a commit that invalidates both sides, but nothing
    /// is dirty: one write must be admitted even if the cache is full.
    pub(super) fn lacks_commit_to_evict(&self) -> bool {
        self.is_sync_failed()
            && self.manifest.is_some()
            && !self.is_invalidated()
            && self.dirty_sides() == SideSet::NONE
            && self.is_still(SideSet::BOTH)
    }

    /// Returns the sides invalidated by a commit of `sealed`.
    pub(super) fn invalidated_with(&self, sealed: SideSet) -> SideSet {
        if self.is_sync_failed() && safeguard(InvalidateUnsynced) {
            self.map.flushed_sides().others().or(sealed)
        } else {
            SideSet::NONE
        }
    }

    pub(super) fn dirty_bytes(&self, side: Side) -> u64 {
        self.map.counted(side) * SECTOR_BYTES
    }

    /// Returns the sides with dirty data.
    pub(super) fn dirty_sides(&self) -> SideSet {
        let dirty = Side::BOTH.into_iter().filter(|side| !self.dirty[*side].blocks.is_empty());
        dirty.fold(SideSet::NONE, SideSet::with)
    }

    /// Returns true if no write or punch is in flight on any of `sides`.
    pub(super) fn is_still(&self, sides: SideSet) -> bool {
        sides.iter().all(|side| self.dirty[side].in_flight == 0)
    }

    /// Returns true if the dirty data of `side` reached its age limit.
    pub(super) fn is_overdue(&self, side: Side) -> bool {
        safeguard(SealByAge) && self.overdue_at(side).is_some_and(|at| self.now >= at)
    }

    /// Returns the time at which the dirty data of `side` reaches its age limit; `None` if there is none.
    pub(super) fn overdue_at(&self, side: Side) -> Option<Millis> {
        let usual = self.limits.max_age_ms;
        let limit = if self.commits_soon { usual.min(COMMIT_SOON_AGE_MS) } else { usual };
        let since = self.dirty[side].since.unwrap_or(self.now);
        (!self.dirty[side].blocks.is_empty()).then(|| since.saturating_add(limit))
    }

    /// Returns true if `side` has enough dirty bytes, or blocks, for one commit.
    #[inline(always)] // as for `Volume::end`
    pub(super) fn is_seal_full(&self, side: Side) -> bool {
        self.dirty_bytes(side) >= self.seal_limit() || self.dirty[side].blocks.count() >= SEAL_BLOCKS
    }

    /// Returns the number of dirty bytes at which a side is sealed.
    fn seal_limit(&self) -> u64 {
        let usual = self.limits.seal_bytes;
        if self.commits_soon { usual.min(COMMIT_SOON_BYTES) } else { usual }
    }

    /// Returns true if `side` may be full enough to be sealed once `range` is dirty there.
    #[inline(always)] // as for `Volume::end`
    pub(super) fn may_fill(&self, side: Side, range: SectorRange) -> bool {
        // A range touches at most one block more than it contains entirely, at each end.
        let blocks = range.sectors / BLOCK_SECTORS + 2;
        self.dirty_bytes(side) + range.bytes() >= self.seal_limit()
            || self.dirty[side].blocks.count() + blocks >= SEAL_BLOCKS
    }

    /// Returns true if no more data may become dirty on `side`.
    pub(super) fn is_dirty_full(&self, side: Side) -> bool {
        self.dirty_bytes(side) >= self.limits.max_bytes || self.has_most_blocks(side)
    }

    /// Returns true if a seal of `side` cannot list more blocks.
    pub(super) fn has_most_blocks(&self, side: Side) -> bool {
        self.dirty[side].blocks.count() >= MAX_DIRTY_BLOCKS
    }

    /// Redirects writes to the other side. Returns the side that was active.
    pub(super) fn swap_sides(&mut self) -> Side {
        let active = self.map.active();
        self.map.set_active(active.other());
        reach(CrashPoint::SidesSwapped);
        self.header.active = active.other();
        self.unflushed.header_changed();
        active
    }

    /// Records that `range` was written to `side`.
    #[inline]
    pub(super) fn record_write(&mut self, range: SectorRange, side: Side) {
        if self.map.mark_written(range, side) {
            self.became_dirty(range, side);
        }
    }

    /// Records that `range` was punched in `side`.
    pub(super) fn record_zeroes(&mut self, range: SectorRange, side: Side) {
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            let chunk = piece.start.chunk();
            let remote_data = self.manifest.as_ref().is_none_or(|manifest| manifest.may_hold(chunk));
            if self.map.is_prepared(chunk) && self.map.mark_zeroed(piece, side, remote_data) {
                self.became_dirty(piece, side);
            }
        }
    }

    /// Marks as dirty the sectors whose newest copy is on `side` and clean, because the object store does not
    /// have them, or lost them. Returns true if any became dirty.
    pub(super) fn mark_unstored(&mut self, range: SectorRange, side: Side) -> bool {
        let mut any = false;
        for piece in range.split_at_multiples(CHUNK_SECTORS) {
            if self.map.is_prepared(piece.start.chunk()) && self.map.mark_uncertain(piece, side) {
                self.became_dirty(piece, side);
                any = true;
            }
        }
        any
    }

    fn became_dirty(&mut self, range: SectorRange, side: Side) {
        self.unflushed.range_changed(range);
        if self.dirty[side].became_dirty(range, self.now) {
            self.map.set_dirty_since(side, self.now);
        }
    }

    /// Grows the volume to this many sectors. Returns the pages of its map.
    pub(super) fn grow(&mut self, sectors: u64) -> u64 {
        self.map.grow(sectors);
        reach(CrashPoint::MapGrown);
        let pages = self.map.pages();
        self.unflushed.grow(pages);
        Side::BOTH.into_iter().for_each(|side| self.dirty[side].blocks.grow(pages));
        self.header.sectors = sectors;
        self.unflushed.header_changed();
        pages
    }

    /// Marks the dirty data in `page` of `side` as clean: it is committed.
    pub(super) fn clear(&mut self, page: u64, side: Side) {
        let blocks = self.dirty[side].blocks.remove(page);
        self.map.clear_dirty(page, blocks, side);
        self.unflushed.blocks_changed(page, blocks);
    }

    /// Marks as remote the data that both the sides and the store have. Returns true if there was any.
    pub(super) fn forget_clean(&mut self, range: SectorRange) -> bool {
        let forgotten = self.map.forget_clean(range) > 0;
        if forgotten {
            self.unflushed.range_changed(range);
        }
        forgotten
    }

    /// Returns true if any of `range` is on a side.
    pub(super) fn is_on_a_side(&self, range: SectorRange) -> bool {
        (range.start.0..range.end()).any(|sector| self.map.newest(sector).is_some())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use holdfast_types::{Chunk, Epoch, Nonce};

    use super::super::Durability;
    use super::*;
    use crate::sector_map::{PAGE_SECTORS, map_bytes};
    use holdfast_format::record::Body;

    pub(in crate::volume) const NONCE: Nonce = Nonce([7; 16]);

    /// Creates an attached volume of `pages` map pages without any writes.
    pub(in crate::volume) fn core(pages: u64) -> Core<Vec<u8>> {
        let sectors = pages * PAGE_SECTORS;
        let mut manifest = Manifest::empty("v".parse().unwrap());
        let attach = Body::Attach { sectors, node: "n".to_owned(), displaced: None };
        for (epoch, body) in [(0, Body::create(sectors)), (1, attach)] {
            let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
            let record = Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
            manifest.apply(&record).unwrap();
        }
        let header = Header {
            volume: manifest.volume().clone(),
            sectors,
            epoch: Epoch(1),
            writer: NONCE,
            nonces: vec![NONCE],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
            identity: manifest.identity(),
        };
        let mut map = SectorMap::format(vec![0; map_bytes(sectors) as usize], sectors, &header.volume);
        for chunk in 0..sectors.div_ceil(CHUNK_SECTORS) {
            map.set_prepared(Chunk(chunk));
        }
        let limits = DirtyLimits { seal_bytes: 1 << 20, max_bytes: 2 << 20, max_age_ms: 1000 };
        let durability = Durability::Local;
        let setup =
            Setup { requests: 4, limits, durability, header, header_generation: 0, unix_ms_at_zero: 0 };
        let mut core = Core::over(setup, map, 0);
        core.learn(manifest);
        core
    }

    /// Returns sector 0 of a map page.
    pub(in crate::volume) fn sector_of(page: u64) -> SectorRange {
        SectorRange::new(page * PAGE_SECTORS, 1)
    }

    #[test]
    fn what_is_written_is_dirty_until_it_is_cleared() {
        let mut core = core(2);
        core.now = 5;
        core.record_write(sector_of(1), Side::A);
        assert_eq!((core.dirty_sides(), core.dirty_bytes(Side::A)), (SideSet::only(Side::A), SECTOR_BYTES));
        assert!(!core.is_overdue(Side::A) && core.is_on_a_side(sector_of(1)));
        core.now = 1005;
        assert!(core.is_overdue(Side::A));
        core.clear(1, Side::A);
        assert_eq!((core.dirty_sides(), core.dirty_bytes(Side::A)), (SideSet::NONE, 0));
        assert!(core.forget_clean(sector_of(1)) && !core.is_on_a_side(sector_of(1)));
    }

    #[test]
    fn clean_data_whose_copy_is_lost_is_dirty_where_it_is_newest() {
        let mut core = core(2);
        core.record_write(sector_of(0), Side::A);
        core.clear(0, Side::A);
        assert!(!core.mark_unstored(sector_of(0), Side::B));
        assert!(core.mark_unstored(sector_of(0), Side::A));
        assert_eq!(core.dirty_sides(), SideSet::only(Side::A));
    }

    #[test]
    fn a_commit_after_a_failed_sync_says_which_sides_are_invalid() {
        let mut core = core(2);
        let sealed = SideSet::only(Side::A);
        core.map.set_flushed_sides(SideSet::BOTH);
        assert_eq!(core.invalidated_with(sealed), SideSet::NONE);
        core.map.set_sync_failed();
        assert_eq!(core.invalidated_with(sealed), sealed);
        core.map.set_flushed_sides(SideSet::NONE);
        assert_eq!(core.invalidated_with(sealed), SideSet::BOTH);
        assert!(!core.is_invalidated());
    }
}
