//! The per-sector model: the client writes that a read may see.
//!
//! Times are ticks of the model's own clock, which advances with everything the client sees. A write is
//! *superseded* by a successful write that was issued after the first one had ended. A read sees a write
//! that is not superseded. After the loss of the host the superseding write must be durable: a successful
//! FUA write, or one covered by a successful flush that was issued after that write ended.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use holdfast_types::SectorRange;

use crate::disk::{Stamp, sectors};
use crate::invariant::Invariant;

#[derive(Debug, Clone)]
struct SectorWrite {
    /// Unique, and distinct from the stamp of zeros.
    op: u64,
    stamp: Stamp,
    issued: u64,
    ended: Option<u64>,
    succeeded: bool,
    /// Time at which a read returned another candidate as the last one.
    passed_over: Option<u64>,
}

/// Returns the issue time of the newest successful write that had ended before `before`: writes that had
/// ended by then are superseded.
fn superseded_until(writes: &[SectorWrite], before: u64) -> u64 {
    let settled = writes.iter().filter(|w| w.succeeded && w.ended.is_some_and(|at| at < before));
    settled.map(|w| w.issued).max().unwrap_or(0)
}

impl SectorWrite {
    fn is_superseded(&self, until: u64, before: u64) -> bool {
        self.ended.is_some_and(|ended| ended < until || self.passed_over.is_some_and(|at| at < before))
    }
}

/// Allowed content of the volume as of one seal.
#[derive(Debug, Clone, Default)]
pub(crate) struct CapturedContent {
    /// Writes that had ended before this time are in it.
    pub(crate) at: u64,
    sectors: BTreeMap<u64, Vec<Stamp>>,
}

impl CapturedContent {
    /// Returns the union of two cuts.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut either = self.clone();
        either.at = self.at.min(other.at);
        for sector in self.sectors.keys().chain(other.sectors.keys()) {
            let mut stamps = [self.allowed(*sector), other.allowed(*sector)].concat();
            stamps.sort_unstable();
            stamps.dedup();
            either.sectors.insert(*sector, stamps);
        }
        either
    }

    pub(crate) fn allowed(&self, sector: u64) -> Vec<Stamp> {
        self.sectors.get(&sector).cloned().unwrap_or(vec![0])
    }

    pub(crate) fn touched(&self) -> impl Iterator<Item = u64> + '_ {
        self.sectors.keys().copied()
    }
}

/// The model of one writer's volume.
#[derive(Debug, Clone)]
pub(crate) struct VolumeModel {
    /// Invariant of the volume's last incident, and its time: a read that sees disallowed data in a sector
    /// not written since breaks it.
    incident: Invariant,
    incident_at: u64,
    clock: u64,
    sectors: BTreeMap<u64, Vec<SectorWrite>>,
    /// Sectors with concurrent writes of zeros and data.
    raced: BTreeSet<u64>,
}

impl Default for VolumeModel {
    fn default() -> Self {
        let (sectors, raced) = (BTreeMap::new(), BTreeSet::new());
        Self { incident: Invariant::ReadsTheNewest, incident_at: 0, clock: 0, sectors, raced }
    }
}

impl VolumeModel {
    /// Returns the invariant that a read of `sector` breaks if it sees disallowed data.
    pub(crate) fn read_invariant(&self, sector: u64) -> Invariant {
        let mut writes = self.sectors.get(&sector).into_iter().flatten();
        if writes.any(|write| write.succeeded && write.issued > self.incident_at) {
            Invariant::ReadsTheNewest
        } else {
            self.incident
        }
    }

    /// Creates the model of a volume that reads as `cut`.
    pub(crate) fn from_cut(cut: &CapturedContent) -> Self {
        let known = |stamp: &Stamp| SectorWrite {
            op: *stamp,
            stamp: *stamp,
            issued: 0,
            ended: Some(0),
            succeeded: true,
            passed_over: None,
        };
        let sectors =
            cut.sectors.iter().map(|(sector, stamps)| (*sector, stamps.iter().map(known).collect()));
        Self {
            incident: Invariant::StoreIsAPrefix,
            incident_at: 1,
            clock: 1,
            sectors: sectors.collect(),
            raced: BTreeSet::new(),
        }
    }

    pub(crate) fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn issue(&mut self, range: SectorRange, op: u64, stamp: Stamp) {
        let issued = self.now();
        for sector in sectors(range) {
            let zeros = SectorWrite {
                op: 0,
                stamp: 0,
                issued: 0,
                ended: Some(0),
                succeeded: true,
                passed_over: None,
            };
            self.sectors.entry(sector).or_insert_with(|| vec![zeros]).push(SectorWrite {
                op,
                stamp,
                issued,
                ended: None,
                succeeded: false,
                passed_over: None,
            });
        }
    }

    /// Ends a write. A failed one may be partly stored, and supersedes nothing.
    pub(crate) fn end(&mut self, range: SectorRange, op: u64, succeeded: bool) {
        let now = self.now();
        for sector in sectors(range) {
            let writes = self.sectors.get_mut(&sector).expect("it was issued");
            let write = writes.iter_mut().find(|w| w.op == op).expect("it is in flight");
            write.ended = Some(now);
            write.succeeded = succeeded;
        }
    }

    /// Returns the stamps that a read of `sector` may see now.
    pub(crate) fn allowed(&self, sector: u64) -> Vec<Stamp> {
        let Some(writes) = self.sectors.get(&sector) else { return vec![0] };
        let until = superseded_until(writes, u64::MAX);
        writes.iter().filter(|w| !w.is_superseded(until, u64::MAX)).map(|w| w.stamp).collect()
    }

    /// Returns the minimum and maximum number of written sectors that are not in `cut`.
    pub(crate) fn missing_sectors(&self, cut: &CapturedContent) -> (u64, u64) {
        let (mut surely, mut at_most) = (0, 0);
        for (sector, writes) in &self.sectors {
            let until = superseded_until(writes, u64::MAX);
            let stored = cut.sectors.get(sector).map_or(&[0][..], Vec::as_slice);
            let mut left = writes.iter().filter(|w| !w.is_superseded(until, u64::MAX));
            surely += u64::from(left.clone().all(|w| w.stamp != 0 && !stored.contains(&w.stamp)));
            let may_be_missing = |w: &SectorWrite| w.stamp != 0 && stored != [w.stamp];
            at_most += u64::from(self.raced.contains(sector) || left.any(may_be_missing));
        }
        (surely, at_most)
    }

    /// Records that zeros and data for these sectors were in flight concurrently.
    pub(crate) fn note_race(&mut self, range: SectorRange) {
        self.raced.extend(sectors(range));
    }

    /// Records that a read issued at `issued` saw `stamp`: if every write had ended by then, the sector
    /// has that content.
    pub(crate) fn note_read(&mut self, sector: u64, stamp: Stamp, issued: u64) {
        let now = self.now();
        let Some(writes) = self.sectors.get_mut(&sector) else { return };
        if writes.iter().any(|w| w.ended.is_none_or(|at| at >= issued)) {
            return;
        }
        let until = superseded_until(writes, u64::MAX);
        for write in writes.iter_mut() {
            if write.stamp != stamp && !write.is_superseded(until, u64::MAX) {
                write.passed_over = Some(now);
            }
        }
    }

    /// Makes everything that had ended before `before` survive the loss of the host.
    pub(crate) fn make_durable(&mut self, before: u64) {
        for writes in self.sectors.values_mut() {
            if writes.len() > 1 {
                let until = superseded_until(writes, before);
                writes.retain(|w| !w.is_superseded(until, before));
            }
        }
    }

    /// Makes a write of `range`, issued at `issued`, survive the loss of the host: writes that had ended
    /// before cannot reappear.
    pub(crate) fn make_durable_in(&mut self, range: SectorRange, issued: u64) {
        for sector in sectors(range) {
            let writes = self.sectors.get_mut(&sector).expect("it was written");
            writes.retain(|w| w.ended.is_none_or(|ended| ended >= issued));
        }
    }

    /// Checks that the store has `stamp` in `sector` when a FUA write of it, issued at `issued`, succeeds.
    pub(crate) fn check_stored(&self, sector: u64, stamp: Stamp, issued: u64) {
        let mut writes = self.sectors.get(&sector).into_iter().flatten();
        let stored = writes.any(|w| w.stamp == stamp && w.ended.is_none_or(|ended| ended >= issued));
        Invariant::ObjectFlushSurvivesNode.check(stored, || {
            format!("sector {sector} is {stamp} in the log's last commit when a later FUA write succeeds")
        });
    }

    /// Checks that everything that had ended before `before` is in the commit that captured `cut`, or
    /// replaced there by later writes.
    pub(crate) fn check_covered(&self, cut: &CapturedContent, before: u64) {
        for (sector, writes) in &self.sectors {
            let stamps = cut.allowed(*sector);
            let until = superseded_until(writes, before);
            let covered = writes.iter().any(|w| stamps.contains(&w.stamp) && !w.is_superseded(until, before));
            Invariant::ObjectFlushSurvivesNode.check(covered, || {
                format!("sector {sector} is {stamps:?} in the log's last commit when a FLUSH of later writes succeeds")
            });
        }
    }

    /// Checks that the snapshot that captured `cut` has the content allowed by `asked`, except later writes.
    pub(crate) fn check_snapshot(&self, cut: &CapturedContent, asked: &CapturedContent) {
        for (sector, before) in &asked.sectors {
            let mut writes = self.sectors.get(sector).into_iter().flatten();
            let (is_newer, stamps) = (writes.any(|w| w.issued > asked.at), cut.allowed(*sector));
            let holds = is_newer || before.iter().any(|stamp| stamps.contains(stamp));
            Invariant::SnapshotIsItsCut.check(holds, || {
                format!(
                    "sector {sector} is {stamps:?} in a snapshot, and was {before:?} when it was asked for"
                )
            });
        }
    }

    /// Handles the loss of the host: any write may reappear unless a durable one supersedes it.
    pub(crate) fn lose_host(&mut self) {
        self.incident = Invariant::FlushedSurvives;
        let now = self.now();
        self.incident_at = now;
        // Zeros in the durable map may have been overwritten since.
        self.raced.extend(self.sectors.keys());
        for write in self.sectors.values_mut().flatten() {
            *write =
                SectorWrite { issued: now, ended: Some(now), succeeded: true, passed_over: None, ..*write };
        }
    }

    /// Returns the allowed content of the volume at this point.
    pub(crate) fn cut(&mut self) -> Rc<CapturedContent> {
        let at = self.now();
        let sectors = self.sectors.keys().map(|sector| (*sector, self.allowed(*sector))).collect();
        Rc::new(CapturedContent { at, sectors })
    }

    pub(crate) fn touched(&self) -> Vec<u64> {
        self.sectors.keys().copied().collect()
    }
}
