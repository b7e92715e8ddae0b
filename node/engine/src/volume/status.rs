//! Status that a volume reports.

use holdfast_format::manifest::Manifest;
use holdfast_format::side::Side;
use holdfast_types::{Millis, Seq};

use super::core::Memory;
use super::lifecycle::Lifecycle;
use super::seal::Seal;
use super::{PaceStatus, RuntimeSettings, Unreadable, Volume};
use crate::event::Errno;
use crate::sector_map::CommitScope;

/// Figures for the status and the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// Logical size in sectors.
    pub sectors: u64,
    /// Uncommitted bytes: a commit would upload this many. Zeros and data that was zeroed later do not count.
    /// A sector that is written while its previous bytes are being uploaded counts twice.
    pub dirty_bytes: u64,
    /// Age of the oldest uncommitted byte; after the loss of the host, the time since the attach.
    pub oldest_dirty_ms: Option<Millis>,
    /// Every write that completed before this time (milliseconds since 1970) is committed. `None` while
    /// unknown: until the data left dirty by the loss of the host is committed.
    pub durable_until_unix_ms: Option<u64>,
    /// The last record in the log; `None` while the manifest is not loaded.
    pub committed: Option<Seq>,
    /// False if every sector reads as zeros and nothing was lost: the log has no segment, no writer was
    /// replaced, and nothing was written here. `None` while the manifest is not loaded.
    pub holds_data: Option<bool>,
    /// True if another writer holds the volume.
    pub fenced: bool,
    /// Requests that wait for the manifest, map memory, a commit (including flushes) or disk space. Writes
    /// delayed only by the pace are not included.
    pub parked: usize,
    /// Resources that are full.
    pub full: FullResources,
    /// Reason why writes wait, and the time that requests have waited; `None` if only the pace delays them.
    pub delayed: Option<(Delay, Millis)>,
    /// Delays caused by the pace.
    pub pace: PaceStatus,
    /// Error of the local disk for a write of the map or of a log record, needed by the next commit, the
    /// detach or the first write of a chunk, and the time since the first failure.
    pub unkept: Option<(Errno, Millis)>,
    /// Clean bytes evicted since this process took over the volume.
    pub evicted_bytes: u64,
    /// The seal in progress.
    pub seal: SealStatus,
    /// State of the volume's list of index runs.
    pub index: IndexStatus,
    /// The settings in effect.
    pub settings: RuntimeSettings,
    /// True if no request is allowed before [`crate::action::Report::Ready`].
    pub recovering: bool,
    /// True while damaged data in the object store is being repaired.
    pub repairing: bool,
    /// True if the local disk failed a sync: until the next attach, a FLUSH waits for a commit.
    pub sync_failed: bool,
    /// Sectors to be committed that the local disk cannot read.
    pub unreadable: Option<Unreadable>,
}

/// Resources that were full at the last attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FullResources {
    /// The local disk had no space for the last attempted write.
    pub disk: bool,
    /// The run directory had no space for the live map: first writes of a chunk wait.
    pub run_dir: bool,
    /// The volume's share of the node's cache is full: writes wait.
    pub cache: bool,
}

/// State of a volume's seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SealStatus {
    /// A side is sealed: its commit is in flight.
    pub in_progress: bool,
    /// Both sides are committed together.
    pub covers_both: bool,
    /// Number of seals begun.
    pub begun: u64,
}

/// State of a volume's list of index runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexStatus {
    /// Runs in the list; `None` while the manifest is not loaded.
    pub runs: Option<usize>,
    /// Merges that became part of the volume since this process took it over.
    pub merges: u64,
    /// Merges stored in that time that did not become part of the volume.
    pub merges_dropped: u64,
    /// Number of ancestors: the volume reads their objects. `None` while the manifest is not loaded.
    pub ancestors: Option<usize>,
}

/// Reason why writes wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delay {
    /// The volume has [`crate::settings::DirtyLimits::max_bytes`] of uncommitted data, or uncommitted
    /// sectors in [`MAX_DIRTY_BLOCKS`](crate::limit::MAX_DIRTY_BLOCKS) blocks.
    DirtyLimit,
    /// The volume's share of the node's cache has no more data to evict.
    CacheFull,
    /// The local disk had no space.
    DiskFull,
    /// The run directory has no space for more of the live map.
    RunDirFull,
    /// Sectors that the local disk could not read block all commits.
    Unreadable,
}

impl Status {
    /// Returns true if nothing is dirty, waiting or in progress, so that only figures that depend on time can
    /// change.
    pub const fn is_idle(&self) -> bool {
        let is_at_work = self.recovering || self.repairing || self.seal.in_progress || self.parked > 0;
        let is_hindered = self.fenced || self.unkept.is_some() || self.unreadable.is_some();
        self.committed.is_some() && self.oldest_dirty_ms.is_none() && !is_at_work && !is_hindered
    }

    /// Returns the figures of a volume as of its last event.
    pub(super) fn of<M: Memory>(volume: &Volume<M>) -> Self {
        let core = &volume.core;
        let oldest = Side::BOTH.into_iter().filter_map(|side| core.dirty[side].since).min();
        let covers_both = core.map.commit_scope() != CommitScope::OneSide;
        Self {
            sectors: core.map.sectors(),
            dirty_bytes: core.dirty_bytes(Side::A) + core.dirty_bytes(Side::B),
            oldest_dirty_ms: oldest.map(|since| core.now.saturating_sub(since)),
            durable_until_unix_ms: (!covers_both).then(|| core.unix_ms_at_zero + oldest.unwrap_or(core.now)),
            committed: core.manifest.as_ref().map(Manifest::seq),
            holds_data: core.holds_data(),
            fenced: core.lifecycle.is_fenced(),
            parked: volume.data.requests.parked() + volume.sealer.seals.waiting(),
            full: FullResources {
                disk: volume.data.evictor.is_disk_full(),
                run_dir: volume.data.requests.is_run_dir_full(),
                cache: volume.data.evictor.is_full(),
            },
            delayed: Delay::of(volume).zip(volume.data.requests.parked_for(core.now)),
            pace: volume.data.pace.status(volume.data.requests.paced()),
            unkept: unkept(volume),
            evicted_bytes: volume.data.evictor.evicted_bytes(),
            seal: SealStatus {
                in_progress: !volume.sealer.is_open(),
                covers_both,
                begun: volume.sealer.seals.begun(),
            },
            index: IndexStatus {
                runs: core.manifest.as_ref().map(|manifest| manifest.runs().len()),
                merges: volume.merger.carried(),
                merges_dropped: volume.merger.dropped(),
                ancestors: core.manifest.as_ref().map(|manifest| manifest.lineage().ancestors().len()),
            },
            settings: RuntimeSettings { max_age_ms: core.limits.max_age_ms, durability: volume.durability },
            recovering: core.lifecycle.is_recovering(),
            repairing: volume.repair.is_asked(),
            sync_failed: core.is_sync_failed(),
            unreadable: volume.data.unreadable.shown(),
        }
    }
}

/// Returns the error of the record in flight, of the rounds that a seal or the detach waits for, or of a
/// chunk's space in the durable map, and for how long it has persisted.
fn unkept<M: Memory>(volume: &Volume<M>) -> Option<(Errno, Millis)> {
    let Volume { core, log, rounds, sealer, data, .. } = volume;
    let waits = matches!(sealer.seal(), Seal::Round(..)) || matches!(core.lifecycle, Lifecycle::Closing(_));
    let round = || rounds.failing_for(core.now).filter(|_| waits);
    log.unkept_for(core.now).or_else(round).or_else(|| data.requests.chunk_failed_for(core.now))
}

impl Delay {
    /// Returns the reason why writes wait, if they do.
    fn of<M: Memory>(volume: &Volume<M>) -> Option<Self> {
        let gate = volume.gate();
        if volume.data.requests.parked() == 0 {
            None
        } else if volume.data.requests.is_run_dir_full() {
            Some(Self::RunDirFull)
        } else if volume.data.evictor.is_disk_full() {
            Some(Self::DiskFull)
        } else if volume.data.evictor.is_full() {
            Some(Self::CacheFull)
        } else if gate.holds_active
            || (volume.data.unreadable.is_any() && !volume.data.has_room(&volume.core, gate))
        {
            Some(Self::Unreadable)
        } else {
            (!volume.data.has_room(&volume.core, gate)).then_some(Self::DirtyLimit)
        }
    }
}
