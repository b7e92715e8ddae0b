//! Dirty sectors, the only copy of their data, that the local disk cannot read.
//!
//! The content after a commit without them would not be a prefix of the writes, so nothing is committed
//! (invariant 4 in `docs/invariants.md`): the seal waits (`UploadFailed`), its data is read again from time
//! to time, and the volume serves all requests. A client's write or discard replaces such a sector. Once all
//! known unreadable sectors are replaced, both sides are sealed together (`BothSealed`), and the newest copy
//! of each sector is uploaded, so that the unreadable copies are never read again. This is the content of the
//! volume at that moment, and thus also a prefix. Until the commit the sides belong together, which the live
//! map records: the commit may be in the log when the process dies, and a commit of the sealed side alone
//! would revert it. Writes wait while both sides are sealed, and continue whenever a disk read fails.
//!
//! The names are crash points.

use holdfast_format::side::SideSet;
use holdfast_types::{Millis, SECTOR_BYTES, SectorRange};

use super::core::{Core, Memory};
use crate::action::{Action, Report};
use crate::limit::{READ_AGAIN_AFTER_MS, REMEMBERED_UNREADABLE};
use crate::sector_map::append;

/// Dirty sectors that the local disk cannot read: they block all commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// The first unreadable sectors.
    pub first: SectorRange,
    /// Bytes known to be unreadable, the first ones included.
    pub bytes: u64,
    /// Milliseconds since 1970 when the first unreadable sector was found.
    pub since_unix_ms: u64,
}

/// Sectors that an upload could not read and that were not overwritten since.
#[derive(Default)]
pub(super) struct UnreadableDirty {
    ranges: Vec<SectorRange>,
    /// Milliseconds since 1970; `None` while all uploads can be read.
    since: Option<u64>,
    tried_at: Millis,
    wait: Millis,
}

/// Decision on the retry of an upload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadRetry {
    NotYet,
    /// The sealed sides are read again.
    SameSides,
    /// Both sides are sealed together.
    BothSides,
}

impl UnreadableDirty {
    pub(super) fn shown(&self) -> Option<Unreadable> {
        let (first, since_unix_ms) = (*self.ranges.first()?, self.since?);
        let bytes = self.ranges.iter().map(|range| range.sectors * SECTOR_BYTES).sum();
        Some(Unreadable { first, bytes, since_unix_ms })
    }

    /// Returns true if an upload failed and no commit followed.
    pub(super) fn is_any(&self) -> bool {
        self.since.is_some()
    }

    /// Returns true if a write of `range` replaces unreadable data.
    pub(super) fn is_overwritten_by(&self, range: SectorRange) -> bool {
        self.ranges.iter().any(|unreadable| unreadable.intersect(range).is_some())
    }

    /// Records that `range` was written or zeroed on the active side.
    #[inline(always)] // mostly there is nothing
    pub(super) fn stored(&mut self, range: SectorRange) {
        if !self.ranges.is_empty() {
            self.replaced(range);
        }
    }

    #[cold]
    fn replaced(&mut self, range: SectorRange) {
        let mut rest = Vec::new();
        for unreadable in &self.ranges {
            for sector in unreadable.start.0..unreadable.end() {
                if !(range.start.0..range.end()).contains(&sector) {
                    append(&mut rest, SectorRange::new(sector, 1));
                }
            }
        }
        self.ranges = rest;
    }

    /// Records that the upload of `sealed` found unreadable `ranges`.
    pub(super) fn found<M: Memory>(
        &mut self,
        mut ranges: Vec<SectorRange>,
        sealed: SideSet,
        core: &Core<M>,
        out: &mut Vec<Action>,
    ) {
        ranges.truncate(REMEMBERED_UNREADABLE);
        let new = ranges.iter().filter(|range| !self.ranges.contains(range));
        out.extend(new.map(|range| Action::Report(Report::UploadUnreadable(*range))));
        let [first, longest] = READ_AGAIN_AFTER_MS;
        let wait = if self.since.is_some() { (self.wait * 2).min(longest) } else { first };
        let active = core.map.active();
        if !sealed.contains(active) {
            let mut rest = Vec::new();
            for range in &ranges {
                core.map.not_dirty(*range, active, &mut rest);
            }
            ranges = rest;
        }
        let since = self.since.unwrap_or(core.unix_ms());
        *self = Self { ranges, since: Some(since), tried_at: core.now, wait };
    }

    /// Decides on the retry of the upload of `sealed`, which is due after the delay, or once all unreadable
    /// data is overwritten.
    pub(super) fn retry(&self, sealed: SideSet, now: Millis) -> ReadRetry {
        let is_due = now >= self.tried_at + self.wait;
        let is_resolved = self.ranges.is_empty();
        if is_resolved || (is_due && sealed == SideSet::BOTH) {
            ReadRetry::BothSides
        } else if is_due {
            ReadRetry::SameSides
        } else {
            ReadRetry::NotYet
        }
    }

    /// Handles the commit of the seal: everything was read.
    pub(super) fn committed(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(self).is_any() {
            out.push(Action::Report(Report::UploadReadable));
        }
    }
}

#[cfg(test)]
mod tests;
