//! What a volume says of itself.

use holdfast_types::Seq;

use super::{Lifecycle, Unreadable, Volume};
use crate::event::Millis;
use crate::manifest::Manifest;
use crate::sector_map::{Side, Union};

/// Figures for status and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Bytes that were written and are in no commit: a commit would upload so many. Zeros do not count, nor what was zeroed
    /// after it was written. A sector that is written while its last bytes are being uploaded counts twice.
    pub dirty_bytes: u64,
    /// Age of the oldest of them; after the loss of the host, since the attach.
    pub oldest_dirty_ms: Option<Millis>,
    /// Every write that completed before then (milliseconds since 1970) is committed; none while unknown, until what
    /// the host's loss left dirty is committed.
    pub durable_until_unix_ms: Option<u64>,
    /// The last record in the log; none while the manifest is not loaded.
    pub committed: Option<Seq>,
    /// Another writer holds the volume.
    pub fenced: bool,
    /// Requests that wait: for the manifest, for map memory, for a commit (flushes too), for disk space.
    pub parked: usize,
    /// The local disk had no space for the last write tried.
    pub disk_full: bool,
    /// The run directory had no room for the live map: the first writes of a chunk wait.
    pub run_dir_full: bool,
    /// The volume's share of the node's cache is full: writes wait.
    pub cache_full: bool,
    /// Why writes wait, and for how long requests have.
    pub delayed: Option<(Delay, Millis)>,
    /// Clean bytes evicted since this process took the volume.
    pub evicted_bytes: u64,
    /// A side is sealed: its commit is on the way.
    pub sealing: bool,
    /// No request may come before [`crate::action::Report::Ready`].
    pub recovering: bool,
    /// What is damaged in the object store is being repaired.
    pub repairing: bool,
    /// The local disk failed a sync: until the next attach, a FLUSH waits for a commit.
    pub sync_failed: bool,
    /// Both sides are to be committed as one.
    pub both_sealed: bool,
    /// How many seals were begun.
    pub seals: u64,
    /// What the local disk cannot read of what is to be committed.
    pub unreadable: Option<Unreadable>,
}

/// Why writes wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delay {
    /// The volume holds [`super::DirtyLimits::most_bytes`] that are not committed.
    DirtyLimit,
    /// The volume's share of the node's cache holds nothing more that can be evicted.
    CacheFull,
    /// The local disk had no space.
    DiskFull,
    /// The run directory has no room for more of the live map.
    RunDirFull,
    /// What the local disk could not read keeps everything from being committed.
    Unreadable,
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// Figures as of the last event.
    pub fn status(&self) -> Status {
        let oldest = self.dirty_since.iter().flatten().min().copied();
        let recovering = self.lifecycle == Lifecycle::Recovering;
        Status {
            dirty_bytes: self.dirty_bytes(Side::A) + self.dirty_bytes(Side::B),
            oldest_dirty_ms: oldest.map(|since| self.now.saturating_sub(since)),
            durable_until_unix_ms: (self.map.union() == Union::No)
                .then(|| self.unix_ms_at_zero + oldest.unwrap_or(self.now)),
            committed: self.manifest.as_ref().map(Manifest::seq),
            fenced: self.lifecycle == Lifecycle::Fenced,
            parked: self.parked.len() + self.waiting_flushes(),
            disk_full: self.disk_full,
            run_dir_full: self.run_dir_full,
            cache_full: self.evict.is_full(),
            delayed: self.delay().zip(self.parked_since.map(|since| self.now.saturating_sub(since))),
            evicted_bytes: self.evict.evicted_bytes,
            sealing: !self.seal.is_open(),
            recovering,
            repairing: self.repair.is_asked(),
            sync_failed: self.is_sync_failed(),
            both_sealed: self.map.union() != Union::No,
            seals: self.seals.begun,
            unreadable: self.lost.shown(),
        }
    }

    /// Why writes wait now, if they do.
    fn delay(&self) -> Option<Delay> {
        if self.parked.is_empty() {
            None
        } else if self.run_dir_full {
            Some(Delay::RunDirFull)
        } else if self.disk_full {
            Some(Delay::DiskFull)
        } else if self.evict.is_full() {
            Some(Delay::CacheFull)
        } else if self.is_active_sealed() || (self.lost.is_any() && !self.has_room()) {
            Some(Delay::Unreadable)
        } else {
            (!self.has_room()).then_some(Delay::DirtyLimit)
        }
    }
}
