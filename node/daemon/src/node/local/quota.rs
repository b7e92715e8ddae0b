//! The node's cache quota: the space that the sides of each volume may use.
//!
//! Owns: measuring the sides and dividing the quota. Each engine chooses the data that its volume evicts;
//! caches of detached volumes are evicted first (`detached_cache`).
//! Runs on: the runtime; it queries the filesystem on its blocking threads, several times a second while
//! volumes have I/O.
//! The rule: each volume has an equal share (the *level*, chosen so that all together stay at seven eighths
//! of the quota); unused shares are available to the others. Free space is divided equally at every
//! measurement, so that the total never exceeds the quota.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use holdfast_engine::event::Event;
use tokio::sync::Notify;

use crate::node::error::{NodeError, file};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::detached_cache::{DetachedCaches, NeededCaches, purge, trash_bytes};
use crate::node::local::file::allocated_bytes;
use crate::node::local::volume_files::{Local, LocalDirs, state_volumes, volumes_under};
use crate::node::memory::spill_file_bytes;
use crate::node::ring::handle::RingHandle;
use crate::node::run_blocking::blocking;
use crate::node::store::block_cache::slab_path;
use crate::node::volume::present::Present;
use crate::node::volume::table::NodeVolumes;
use crate::node::{NodeConfig, ticks};
use holdfast_serve::Message;

/// Longest time for which a measurement stays valid.
const AT_LEAST_EACH: Duration = Duration::from_secs(60);
/// Number of parts of the disk: a measurement stays valid while the number of free parts does not change.
const DISK_PARTS: u64 = 256;

/// Allowance of a volume until the next measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VolumeAllowance {
    excess_bytes: u64,
    room_bytes: u64,
}

/// Inputs of a measurement: while they do not change, its result does not either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MeasurementInputs {
    /// Ticks at which volumes of the ring threads did something.
    busy_ticks: u64,
    /// The volumes on the ring threads.
    volumes: u64,
    /// Free part of the disk.
    free_parts: u64,
}

/// Time and inputs of the last measurement.
#[derive(Debug, Clone, Copy)]
struct LastMeasured(Instant, MeasurementInputs);

impl LastMeasured {
    /// Returns true if a new measurement would probably have the same result.
    fn holds(last: Option<Self>, now: Instant, inputs: MeasurementInputs) -> bool {
        last.is_some_and(|Self(at, measured)| measured == inputs && now - at < AT_LEAST_EACH)
    }
}

/// The cache of all volumes, and its limit.
#[derive(Clone)]
pub(in crate::node) struct CacheQuota {
    /// The ring threads, whose volumes alone write to the sides.
    pub(in crate::node) rings: Arc<[RingHandle]>,
    pub(in crate::node) volumes: NodeVolumes,
    pub(in crate::node) dirs: LocalDirs,
    /// The configured limit, if any.
    pub(in crate::node) cache_bytes: Option<u64>,
    /// Bytes reserved for other uses.
    pub(in crate::node) apart_bytes: u64,
    /// Notified when caches wait for deletion.
    pub(in crate::node) trash: Arc<Notify>,
}

impl CacheQuota {
    /// Measures all sides four times a second while volumes have I/O, and triggers deletions to free space.
    pub(in crate::node) async fn keep(self) {
        let _alone = ExitOnPanic("the measurement of the cache");
        let (mut needed, mut last) = (NeededCaches::default(), None);
        let mut ticks = ticks();
        loop {
            ticks.tick().await;
            let cache = self.clone();
            let measured = blocking(move || {
                let has_trash = cache.measure_if_due(&mut needed, &mut last)?;
                Ok((needed, last, has_trash))
            });
            let has_trash;
            (needed, last, has_trash) = measured.await.unwrap_or_else(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "the cache could not be measured");
                (NeededCaches::default(), None, false)
            });
            if has_trash {
                self.trash.notify_one();
            }
        }
    }

    /// Measures unless the last measurement is still valid. Returns true if files wait to be deleted.
    fn measure_if_due(
        &self,
        needed: &mut NeededCaches,
        last: &mut Option<LastMeasured>,
    ) -> Result<bool, NodeError> {
        let state_dir = &self.dirs.state;
        let disk = StateFileSystem::of(state_dir).map_err(file(state_dir, "read"))?;
        let (now, inputs) = (Instant::now(), self.inputs(&disk));
        if LastMeasured::holds(*last, now, inputs) {
            return Ok(false);
        }
        let SpaceMeasured { has_trash, is_settled } = self.measure_space(&disk, needed)?;
        *last = (is_settled && !has_trash).then_some(LastMeasured(now, inputs));
        Ok(has_trash)
    }

    fn inputs(&self, disk: &StateFileSystem) -> MeasurementInputs {
        let mut volumes = DefaultHasher::new();
        self.volumes.for_each_present(|_, present| Arc::as_ptr(present).hash(&mut volumes));
        MeasurementInputs {
            busy_ticks: self.rings.iter().map(|ring| ring.status().busy_ticks).sum(),
            volumes: volumes.finish(),
            free_parts: disk.free_bytes / (disk.capacity_bytes / DISK_PARTS).max(1),
        }
    }

    /// Measures the sides of all volumes, frees space and sends each engine its share.
    fn measure_space(
        &self,
        disk: &StateFileSystem,
        needed: &mut NeededCaches,
    ) -> Result<SpaceMeasured, NodeError> {
        let volumes: Vec<Arc<Present>> =
            self.volumes.presents().into_iter().map(|(_, present)| present).collect();
        let held: Vec<u64> = volumes.iter().map(held_bytes).collect();
        let Self { volumes: on_node, dirs, cache_bytes, apart_bytes, rings: _, trash: _ } = self;
        let mut caches = DetachedCaches::find(&dirs.state, &dirs.run, on_node)?;
        let all_bytes = held.iter().sum::<u64>() + caches.held_bytes();
        let quota = disk.quota(*cache_bytes, *apart_bytes, all_bytes);
        // Nothing more is evicted for space that files to be deleted will free; there is no room for writes
        // yet.
        let emptied = StateFileSystem { free_bytes: disk.free_bytes + trash_bytes(&dirs.state)?, ..*disk };
        let later = emptied.quota(*cache_bytes, *apart_bytes, all_bytes);
        // Attached volumes evict nothing while detached caches can be evicted.
        let has_trash = caches.evict(all_bytes.saturating_sub(target(later)), needed);
        let [quota, later] = [quota, later].map(|quota| quota.saturating_sub(caches.held_bytes()));
        let spaces = divide(quota, target(later), &held);
        let mut is_settled = true;
        for ((present, held), space) in volumes.iter().zip(&held).zip(spaces) {
            present.published.cached_bytes.store(*held, Ordering::Relaxed);
            let VolumeAllowance { excess_bytes, room_bytes } = space;
            let event = Event::Space { excess_bytes, room_bytes };
            // If the inbox is full, the next measurement follows soon.
            let is_sent = present.ring.offer(Message::Event { key: present.key, event });
            is_settled &= is_sent && excess_bytes == 0;
        }
        Ok(SpaceMeasured { has_trash, is_settled })
    }
}

/// Outcome of a measurement.
struct SpaceMeasured {
    /// Files wait to be deleted.
    has_trash: bool,
    /// Each volume was sent its share, and none has to evict.
    is_settled: bool,
}

/// Empties the trash whenever it has files: deleting large files takes long, and no volume waits for it.
pub(in crate::node) async fn empty_trash(state_dir: PathBuf, trash: Arc<Notify>) {
    let _alone = ExitOnPanic("the deletion of files of detached volumes");
    // Files that an earlier process did not delete.
    trash.notify_one();
    loop {
        trash.notified().await;
        let state_dir = state_dir.clone();
        if let Err(error) = blocking(move || purge(&state_dir)).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "files of a detached volume were not deleted. They hold disk space until the next deletion"
            );
        }
    }
}

/// Returns the bytes held by the sides of a volume. If the measurement fails, it returns the previous value,
/// so that the other volumes are not affected.
fn held_bytes(present: &Arc<Present>) -> u64 {
    let known = &present.published.cached_bytes;
    present.local.held_bytes().unwrap_or_else(|error| {
        // Repeated several times a second: `debug`, because disk errors are reported elsewhere.
        tracing::debug!(
            volume = %present.local.volume(),
            error = &error as &dyn std::error::Error,
            "the sides of the volume were not measured"
        );
        known.load(Ordering::Relaxed)
    })
}

/// Space of the state directory's filesystem for the cache, with the slab and the spill files of memory
/// volumes at full size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheRoom {
    /// Free bytes of the filesystem.
    pub(crate) free_bytes: u64,
    /// Bytes that all sides together may hold.
    pub(crate) quota_bytes: u64,
}

impl CacheRoom {
    /// Measures the filesystem, and the space used by a daemon with the same directories.
    ///
    /// # Errors
    /// An unreadable file.
    pub(crate) fn of(config: &NodeConfig) -> Result<Self, NodeError> {
        let NodeConfig { state_dir, run_dir, cache_bytes, .. } = config;
        let apart_bytes = config.bytes_apart_from_cache();
        let volumes = state_volumes(state_dir);
        let volumes = if volumes.is_dir() { volumes_under(&volumes)? } else { Vec::new() };
        let mut held_bytes = 0;
        for volume in &volumes {
            held_bytes += Local::new(state_dir, run_dir, volume).held_bytes()?;
        }
        let disk = StateFileSystem::of(state_dir).map_err(file(state_dir, "read"))?;
        let free_bytes = disk.free_bytes;
        let filled_bytes = allocated_bytes(&slab_path(state_dir))? + spill_file_bytes(state_dir)?;
        let unfilled_bytes = apart_bytes.saturating_sub(filled_bytes);
        let disk = StateFileSystem { free_bytes: free_bytes.saturating_sub(unfilled_bytes), ..disk };
        Ok(Self { free_bytes, quota_bytes: disk.quota(*cache_bytes, apart_bytes, held_bytes) })
    }
}

/// The filesystem of the state directory.
struct StateFileSystem {
    capacity_bytes: u64,
    free_bytes: u64,
    /// True if it also holds other software of the host.
    is_shared: bool,
}

impl StateFileSystem {
    fn of(state_dir: &Path) -> std::io::Result<Self> {
        let found = rustix::fs::statvfs(state_dir)?;
        // In a pod, the kubelet mounts this file from its directory; otherwise it is on the root filesystem.
        let shared = rustix::fs::stat("/etc/hosts").ok();
        let device = rustix::fs::stat(state_dir)?.st_dev;
        Ok(Self {
            capacity_bytes: found.f_blocks.saturating_mul(found.f_frsize),
            free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            is_shared: shared.is_some_and(|shared| shared.st_dev == device),
        })
    }

    /// Returns the default limit of all sides, which currently hold `held_bytes`: nine tenths of the
    /// filesystem without `apart_bytes`. On a shared filesystem it is a quarter, including these, reduced so
    /// that a fifth stays free, but at least a 16th: the kubelet deletes images at 85 % usage and evicts pods
    /// at 90 % (its defaults of `imageGCHighThresholdPercent` and `evictionHard`).
    fn share(&self, apart_bytes: u64, held_bytes: u64) -> u64 {
        let capacity = self.capacity_bytes;
        if self.is_shared {
            let beyond_reserve = (held_bytes + self.free_bytes).saturating_sub(capacity / 5);
            (capacity / 4).saturating_sub(apart_bytes).min(beyond_reserve).max(capacity / 16)
        } else {
            (capacity.saturating_sub(apart_bytes)).max(capacity / 2) / 10 * 9
        }
    }

    /// Returns the limit of all sides together: the configured one, or their share. Leaves a reserve for the
    /// daemon's other files.
    fn quota(&self, configured: Option<u64>, apart_bytes: u64, held_bytes: u64) -> u64 {
        let reserve = self.capacity_bytes / 64;
        let most = configured.unwrap_or_else(|| self.share(apart_bytes, held_bytes));
        most.min(held_bytes + self.free_bytes.saturating_sub(reserve))
    }
}

/// Returns the bytes that all sides should hold at most, so that there is room for writes.
fn target(quota_bytes: u64) -> u64 {
    quota_bytes - quota_bytes / 8
}

/// Divides `quota_bytes` among volumes that hold `held` bytes each. The bytes held plus those written before
/// the next measurement never exceed the quota; a sixteenth of it is for volumes that hold next to nothing,
/// including a new one. Together they evict what they hold beyond `target_bytes`.
fn divide(quota_bytes: u64, target_bytes: u64, held: &[u64]) -> Vec<VolumeAllowance> {
    let level = level(target_bytes, held);
    let volumes = held.len() as u64;
    let reserved = quota_bytes / 16;
    let own = reserved / (volumes + 1);
    let mut free = quota_bytes.saturating_sub(held.iter().sum());
    let beyond_own: u64 = held.iter().map(|held| held.saturating_sub(own)).sum();
    let shared = (quota_bytes - reserved).saturating_sub(beyond_own);
    held.iter()
        .map(|held| {
            let room_bytes = (own.saturating_sub(*held) + shared / volumes).min(free);
            free -= room_bytes;
            VolumeAllowance { excess_bytes: level.map_or(0, |level| held.saturating_sub(level)), room_bytes }
        })
        .collect()
}

/// Returns the maximum per volume at which all together hold `target`; `None` if they hold less.
fn level(target: u64, held: &[u64]) -> Option<u64> {
    let mut sorted = held.to_vec();
    sorted.sort_unstable();
    let mut rest = target;
    let mut sharing = held.len() as u64;
    for held in sorted {
        let fair = rest / sharing;
        if held > fair {
            return Some(fair);
        }
        rest -= held;
        sharing -= 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 512 idle volumes were measured four times a second.
    #[test]
    fn a_measurement_holds_until_something_changes() {
        let measured = MeasurementInputs { busy_ticks: 7, volumes: 0xabc, free_parts: 100 };
        let at = Instant::now();
        let last = Some(LastMeasured(at, measured));
        let soon = at + Duration::from_millis(250);
        assert!(LastMeasured::holds(last, soon, measured));
        for changed in [
            MeasurementInputs { busy_ticks: 8, ..measured },
            MeasurementInputs { volumes: 0xabd, ..measured },
            MeasurementInputs { free_parts: 99, ..measured },
        ] {
            assert!(!LastMeasured::holds(last, soon, changed), "{changed:?}");
        }
        assert!(!LastMeasured::holds(last, at + AT_LEAST_EACH, measured), "a minute ago");
        assert!(!LastMeasured::holds(None, soon, measured));
    }

    fn spaces(quota: u64, held: &[u64]) -> Vec<(u64, u64)> {
        divide(quota, target(quota), held)
            .iter()
            .map(|space| (space.excess_bytes, space.room_bytes))
            .collect()
    }

    #[test]
    fn up_to_seven_eighths_nothing_is_evicted() {
        assert_eq!(spaces(800, &[]), []);
        let excess: Vec<u64> = spaces(800, &[0, 700]).iter().map(|(excess, _)| *excess).collect();
        assert_eq!(excess, [0, 0]);
    }

    /// Found in review: while moved caches were being deleted, further ones were evicted for the same space,
    /// up to eight times as much.
    #[test]
    fn nothing_more_is_evicted_for_space_that_is_being_freed() {
        let disk = StateFileSystem { capacity_bytes: 1 << 40, free_bytes: 1 << 35, is_shared: true };
        let (held, deleted) = (600 << 30, 100 << 30);
        let emptied = StateFileSystem { free_bytes: disk.free_bytes + deleted, ..disk };
        let [now, later] = [&disk, &emptied].map(|disk| target(disk.quota(Some(1 << 40), 0, held)));
        assert!(held > now && held <= later, "{now} {later}");
        let spaces = divide(disk.quota(Some(1 << 40), 0, held), later, &[held]);
        assert_eq!(spaces[0].excess_bytes, 0);
        assert!(held + spaces[0].room_bytes <= held + disk.free_bytes, "no room before it is free");
    }

    /// Every volume writes as much as permitted; nothing is uploaded.
    fn fill(quota: u64, held: &mut [u64]) {
        for _ in 0..200 {
            let rooms = spaces(quota, held);
            for (held, (_, room)) in held.iter_mut().zip(rooms) {
                *held += room;
            }
        }
    }

    #[test]
    fn all_together_never_pass_the_quota() {
        for quota in [0, 1, 799, 1 << 30] {
            for volumes in 1..12 {
                for seed in 0..50u64 {
                    let part = |index: u64| (seed * 7919 + index * 104_729) % 97;
                    let mut held: Vec<u64> =
                        (0..volumes).map(|index| quota / volumes / 97 * part(index)).collect();
                    let rooms: u64 = spaces(quota, &held).iter().map(|(_, room)| room).sum();
                    assert!(rooms + held.iter().sum::<u64>() <= quota, "{quota}: {held:?}");
                    fill(quota, &mut held);
                    assert!(held.iter().sum::<u64>() <= quota, "{quota}: {held:?}");
                }
            }
        }
    }

    #[test]
    fn a_volume_without_bytes_may_write_beside_full_ones() {
        for volumes in 1..12 {
            let mut held = vec![0; volumes];
            fill(16 << 20, &mut held);
            assert!(held.iter().sum::<u64>() > 15 << 20, "nearly all of it is for those who write: {held:?}");
            held.push(0);
            let (_, room) = spaces(16 << 20, &held)[volumes];
            assert!(room >= 64 << 10, "{volumes} volumes: {room}");
        }
    }

    #[test]
    fn volumes_that_hold_most_are_evicted_first() {
        let excess = |held: &[u64]| spaces(800, held).iter().map(|(excess, _)| *excess).collect::<Vec<_>>();
        assert_eq!(excess(&[100, 650]), [0, 50]);
        assert_eq!(excess(&[100, 800]), [0, 200]);
        assert_eq!(excess(&[400, 400]), [50, 50]);
        assert_eq!(excess(&[0, 0, 801]), [0, 0, 101]);
    }

    #[test]
    fn together_the_excess_is_evicted() {
        for held in [[350, 350, 100], [700, 50, 50], [0, 0, 800], [267, 267, 266]] {
            let total_excess: u64 = spaces(800, &held).iter().map(|(excess, _)| excess).sum();
            assert!((100..103).contains(&total_excess), "{held:?}: {total_excess}");
        }
    }

    #[test]
    fn without_a_quota_everybody_gives_everything_up() {
        assert_eq!(spaces(0, &[5, 0]), [(5, 0), (0, 0)]);
    }

    const CAPACITY: u64 = 320 << 20;

    fn disk(free_bytes: u64, is_shared: bool) -> StateFileSystem {
        StateFileSystem { capacity_bytes: CAPACITY, free_bytes, is_shared }
    }

    #[test]
    fn a_disk_that_fills_up_lowers_the_quota() {
        assert_eq!(disk(CAPACITY, false).quota(Some(50 << 20), 0, 0), 50 << 20);
        assert_eq!(disk(CAPACITY, false).quota(None, 0, 0), CAPACITY / 10 * 9);
        let full = disk(8 << 20, false).quota(Some(50 << 20), 0, 10 << 20);
        assert_eq!(full, 13 << 20, "8 MiB are free, 5 MiB stay so");
        assert_eq!(disk(0, false).quota(None, 0, 10 << 20), 10 << 20);
    }

    /// Regression: a default installation used nine tenths of the node's root filesystem: the kubelet deleted
    /// images and evicted pods.
    #[test]
    fn the_cache_leaves_a_filesystem_of_the_kubelet_room() {
        assert_eq!(disk(CAPACITY, true).quota(None, 20 << 20, 0), 60 << 20, "a quarter with the slab");
        // Others use 200 MiB: a fifth, 64 MiB, stays free.
        assert_eq!(disk(90 << 20, true).quota(None, 0, 30 << 20), 56 << 20);
        let least = disk(60 << 20, true).quota(None, 0, 0);
        assert_eq!(least, 20 << 20, "writes do not end where others fill it");
        assert_eq!(disk(CAPACITY, true).quota(Some(200 << 20), 0, 0), 200 << 20, "as configured");
    }

    #[test]
    fn a_filesystem_of_the_host_is_told_from_one_of_ours() {
        // The file itself: in a container, only the file is mounted there.
        assert!(StateFileSystem::of(Path::new("/etc/hosts")).unwrap().is_shared);
        assert!(!StateFileSystem::of(Path::new("/proc")).unwrap().is_shared);
    }
}
