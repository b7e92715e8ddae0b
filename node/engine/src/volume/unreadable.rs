//! Dirty sectors that the local disk cannot read: the only copy.
//!
//! A commit without them would be no prefix of the writes, so there is none (invariant 4 in `docs/invariants.md`): the seal
//! waits (`UploadFailed`), what it holds is read again now and then, and everything is served meanwhile. What the guest
//! writes or discards over such a sector takes its place. Once that is so for all that is known to be unreadable, the sealed
//! side is never read there again: both sides are sealed as one (`BothSealed`), and the newest copy of each sector is
//! uploaded. That is what the volume reads as at that moment, so a prefix too. From then until the commit the sides belong
//! together, which the live map says: the commit may be in the log when the process dies, and one of the sealed side alone
//! would go back behind it. While both are sealed writes wait; whenever the disk fails to read, they continue.
//!
//! The names are crash points.

use holdfast_types::{SECTOR_BYTES, SectorRange};

use super::commit::Commit;
use super::seal::Seal;
use super::{Lifecycle, Volume};
use crate::action::{Action, Report};
use crate::crash_point::{CrashPoint, reach};
use crate::event::Millis;
use crate::limit::{READ_AGAIN_AFTER_MS, REMEMBERED_UNREADABLE};
use crate::sector_map::{SideSet, Union, append};

/// What of the dirty data the local disk cannot read: nothing is committed meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreadable {
    /// The first such sectors.
    pub first: SectorRange,
    /// Bytes known to be unreadable, the first ones included.
    pub bytes: u64,
    /// Milliseconds since 1970 when the first one was met.
    pub since_unix_ms: u64,
}

/// What an upload could not read, as far as it was not written since.
#[derive(Default)]
pub(super) struct Lost {
    ranges: Vec<SectorRange>,
    /// Milliseconds since 1970; none while every upload is read.
    since: Option<u64>,
    tried_at: Millis,
    wait: Millis,
}

impl Lost {
    pub(super) fn shown(&self) -> Option<Unreadable> {
        let (first, since_unix_ms) = (*self.ranges.first()?, self.since?);
        let bytes = self.ranges.iter().map(|range| range.sectors * SECTOR_BYTES).sum();
        Some(Unreadable { first, bytes, since_unix_ms })
    }

    /// Whether an upload failed and no commit came since.
    pub(super) fn is_any(&self) -> bool {
        self.since.is_some()
    }

    /// Whether a write of `range` is a way out.
    pub(super) fn is_overwritten_by(&self, range: SectorRange) -> bool {
        self.ranges.iter().any(|lost| lost.intersect(range).is_some())
    }

    /// `range` was written or zeroed on the active side.
    pub(super) fn stored(&mut self, range: SectorRange) {
        if !self.is_overwritten_by(range) {
            return;
        }
        let mut rest = Vec::new();
        for lost in &self.ranges {
            for sector in lost.start.0..lost.end() {
                if !(range.start.0..range.end()).contains(&sector) {
                    append(&mut rest, SectorRange::new(sector, 1));
                }
            }
        }
        self.ranges = rest;
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// The upload of the sealed sides met `ranges` that cannot be read.
    pub(super) fn sides_unreadable(&mut self, mut ranges: Vec<SectorRange>, out: &mut Vec<Action>) {
        let Seal::Uploading(sides) = self.seal else { unreachable!("no upload was asked for") };
        if self.lifecycle == Lifecycle::Fenced {
            return;
        }
        ranges.truncate(REMEMBERED_UNREADABLE);
        for range in &ranges {
            if !self.lost.ranges.contains(range) {
                out.push(Action::Report(Report::UploadUnreadable(*range)));
            }
        }
        let [first, longest] = READ_AGAIN_AFTER_MS;
        let wait = if self.lost.since.is_some() { (self.lost.wait * 2).min(longest) } else { first };
        let since = self.lost.since.unwrap_or(self.unix_ms_at_zero + self.now);
        let active = self.map.active();
        if !sides.contains(active) {
            let mut rest = Vec::new();
            for range in &ranges {
                self.map.not_dirty(*range, active, &mut rest);
            }
            ranges = rest;
        }
        self.lost = Lost { ranges, since: Some(since), tried_at: self.now, wait };
        self.seal = Seal::Unreadable(sides);
        reach(CrashPoint::UploadFailed);
        if self.lifecycle == Lifecycle::Recovering {
            // Without a device, no write could replace what is lost.
            self.map.set_union(Union::Serving);
            self.lifecycle = Lifecycle::Serving;
            out.push(Action::Report(Report::Ready));
        }
        self.unpark(out);
    }

    /// Retries when the delay has passed or everything unreadable was overwritten.
    pub(super) fn advance_unreadable(&mut self, out: &mut Vec<Action>) {
        let Seal::Unreadable(sides) = self.seal else { return };
        let due = self.now >= self.lost.tried_at + self.lost.wait;
        let resolved = self.lost.ranges.is_empty();
        if self.commit != Commit::Idle || !(due || resolved) {
            return;
        }
        if !resolved && sides != SideSet::BOTH {
            return self.upload(sides, out);
        }
        self.map.set_union(Union::Serving);
        self.begin_seal(SideSet::BOTH);
        reach(CrashPoint::BothSealed);
    }

    /// The seal is committed: everything was read.
    pub(super) fn everything_was_read(&mut self, out: &mut Vec<Action>) {
        if std::mem::take(&mut self.lost).is_any() {
            out.push(Action::Report(Report::UploadReadable));
        }
    }

    /// Whether writes have to wait for a seal that covers the active side.
    pub(super) fn is_active_sealed(&self) -> bool {
        self.seal.holds_still(self.map.active())
    }
}
