//! Local files of detached volumes: kept as cache for their next attach, until other volumes need the space.
//!
//! Owns: finding and purging them, least recently used first. Only the files of a clean detach are purged:
//! all of their data is in the store.
//! Runs on: threads that may block.
//! Invariants: while a volume's files are examined and moved, its entry blocks attaches of it; no other
//! volume waits.
//! On failure: undeletable files stay; no volume waits for them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use holdfast_types::VolumeId;

use crate::node::error::{NodeError, file};
use crate::node::local::file::allocated_bytes;
use crate::node::local::volume_files::{
    Local, remove_all, run_volumes, state_volumes, trash_dir, volumes_under,
};
use crate::node::volume::table::NodeVolumes;

/// The local files of a volume that is not attached.
struct DetachedCache {
    volume: VolumeId,
    held_bytes: u64,
    /// Time at which its map was last written.
    used: SystemTime,
}

/// Caches that cannot be purged, with the time at which they were last written.
#[derive(Default)]
pub(in crate::node) struct NeededCaches(BTreeMap<VolumeId, SystemTime>);

/// Local files of volumes that are not among `volumes`.
pub(in crate::node) struct DetachedCaches<'a> {
    state_dir: &'a Path,
    run_dir: &'a Path,
    volumes: &'a NodeVolumes,
    /// Least recently used first.
    found: Vec<DetachedCache>,
}

impl<'a> DetachedCaches<'a> {
    pub(in crate::node) fn find(
        state_dir: &'a Path,
        run_dir: &'a Path,
        volumes: &'a NodeVolumes,
    ) -> Result<Self, NodeError> {
        let mut caches = Self { state_dir, run_dir, volumes, found: Vec::new() };
        // A volume whose recovery failed may have a live map that is newer than the durable one.
        let live = volumes_under(&run_volumes(run_dir))?;
        for volume in volumes_under(&state_volumes(state_dir))? {
            if live.contains(&volume) || volumes.contains(&volume) {
                continue;
            }
            let local = Local::new(state_dir, run_dir, &volume);
            match written_at(&local.map_path()).and_then(|used| Ok((used, local.held_bytes()?))) {
                Ok((Some(used), held_bytes)) => caches.found.push(DetachedCache { held_bytes, volume, used }),
                Ok((None, _)) => {}
                // Repeated several times a second: `debug`. The others are still measured.
                Err(error) => {
                    tracing::debug!(%volume, error = &error as &dyn std::error::Error, "files were not measured");
                }
            }
        }
        caches.found.sort_unstable_by_key(|cache| cache.used);
        Ok(caches)
    }

    /// Returns the bytes held by all of them.
    pub(in crate::node) fn held_bytes(&self) -> u64 {
        self.found.iter().map(|cache| cache.held_bytes).sum()
    }

    /// Moves caches to the trash until `excess_bytes` are evicted, or only `needed` ones remain. Returns true
    /// if there are files to [`purge`].
    pub(in crate::node) fn evict(&mut self, excess_bytes: u64, needed: &mut NeededCaches) -> bool {
        let (mut evicted, mut has_trash) = (0, false);
        let mut kept = Vec::new();
        for cache in std::mem::take(&mut self.found) {
            let is_needed = needed.0.get(&cache.volume) == Some(&cache.used);
            if evicted < excess_bytes && !is_needed {
                match self.trash(&cache) {
                    Ok(true) => {
                        evicted += cache.held_bytes;
                        has_trash = true;
                        continue;
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let volume = &cache.volume;
                        tracing::error!(%volume, error = &error as &dyn std::error::Error, "local files of a detached volume stay");
                    }
                }
                needed.0.insert(cache.volume.clone(), cache.used);
            }
            kept.push(cache);
        }
        self.found = kept;
        has_trash
    }

    /// Moves the cache to the trash. Returns false if it was not closed cleanly, or was used since.
    fn trash(&self, cache: &DetachedCache) -> Result<bool, NodeError> {
        let DetachedCache { volume, held_bytes, used } = cache;
        let local = Local::new(self.state_dir, self.run_dir, volume);
        let closed_clean = match local.read_header() {
            Ok(found) => found.is_some_and(|(_generation, header)| header.closed_clean),
            Err(error) => {
                tracing::warn!(%volume, error = &error as &dyn std::error::Error, "local files are kept");
                false
            }
        };
        if !closed_clean || !self.move_to_trash(volume, &local, *used)? {
            return Ok(false);
        }
        tracing::info!(%volume, bytes = held_bytes, "the cache of a detached volume made room");
        Ok(true)
    }

    /// Moves the files of the volume to the trash unless they were used since.
    fn move_to_trash(&self, volume: &VolumeId, local: &Local, used: SystemTime) -> Result<bool, NodeError> {
        // Both an attach and this take the volume's entry before they touch a file.
        let Some(_no_attach) = self.volumes.keep_from_attaches(volume) else { return Ok(false) };
        if written_at(&local.map_path())? != Some(used) {
            return Ok(false);
        }
        Ok(local.move_to_trash()?.is_some())
    }
}

/// Empties the trash, including files left by an earlier process.
///
/// # Errors
/// The first error: undeletable files stay, all others are deleted.
pub(in crate::node) fn purge(state_dir: &Path) -> Result<(), NodeError> {
    let trash = trash_dir(state_dir);
    let entries = match fs::read_dir(&trash) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(file(&trash, "listed"))?,
    };
    let mut removed = Ok(());
    for entry in entries {
        let path = entry.map_err(file(&trash, "listed"))?.path();
        removed = removed.and(remove_all(&path));
    }
    removed
}

/// Returns the bytes of the files that are still to be deleted.
///
/// # Errors
/// They cannot be listed or measured.
pub(in crate::node) fn trash_bytes(state_dir: &Path) -> Result<u64, NodeError> {
    let list = |dir: &Path| match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>(),
        // Just deleted, or a file.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    };
    let mut bytes = 0;
    for dir in list(&trash_dir(state_dir)).map_err(file(state_dir, "listed"))? {
        for path in list(&dir).map_err(file(&dir, "listed"))? {
            bytes += allocated_bytes(&path)?;
        }
    }
    Ok(bytes)
}

/// Returns the time at which a file was last written; `None` if it does not exist.
pub(in crate::node) fn written_at(path: &Path) -> Result<Option<SystemTime>, NodeError> {
    match fs::metadata(path).and_then(|metadata| metadata.modified()) {
        Ok(time) => Ok(Some(time)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file(path, "measured")(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_background::LocalState;
    use holdfast_engine::durable_map::Header;
    use holdfast_format::side::{Side, SideSet};
    use holdfast_types::{Epoch, Nonce, Seq};

    use super::*;

    /// Creates a volume's files as after a detach or the loss of the host; used this many seconds later.
    async fn leave(dirs: &Path, name: &str, closed_clean: bool, used: u64) {
        let volume: VolumeId = name.parse().unwrap();
        let local = Local::new(dirs, &dirs.join("run"), &volume);
        let header = Header {
            volume,
            identity: Nonce([9; 16]),
            sectors: 256,
            epoch: Epoch(1),
            writer: Nonce::default(),
            nonces: Vec::new(),
            active: Side::A,
            closed_clean,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(3),
            synced_generation: 0,
        };
        let files = local.open(256, None).await.unwrap();
        local.write_header(&files, &header, 1).await.unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            &fs::File::options().write(true).open(local.dir().join("a.data")).unwrap(),
            &[1; 8192],
            0,
        )
        .unwrap();
        files.files.map.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(used)).unwrap();
        local.forget_attached().unwrap();
    }

    /// Found in review: after a crash in the middle of a removal, the map had one side, and the other one was
    /// created again with zeros.
    #[tokio::test]
    async fn a_map_without_one_of_its_sides_is_not_used() {
        let dirs = tempfile::tempdir().unwrap();
        for (name, closed_clean) in [("clean", true), ("dirty", false)] {
            leave(dirs.path(), name, closed_clean, 1).await;
            let local = Local::new(dirs.path(), &dirs.path().join("run"), &name.parse().unwrap());
            assert!(LocalState::read_map(&local).await.unwrap().is_some());
            fs::remove_file(local.dir().join("a.data")).unwrap();
            let read = LocalState::read_map(&local).await.map(|found| found.is_some());
            if closed_clean {
                assert!(!read.unwrap() && !local.dir().exists(), "the store has all of it");
            } else {
                assert!(matches!(read.unwrap_err(), NodeError::Damaged { .. }));
            }
        }
    }

    /// Found in review: a removal that a crash interrupted could leave the map without a side.
    #[tokio::test]
    async fn files_are_discarded_all_at_once() {
        let dirs = tempfile::tempdir().unwrap();
        leave(dirs.path(), "x", true, 1).await;
        let local = Local::new(dirs.path(), &dirs.path().join("run"), &"x".parse().unwrap());
        assert_eq!(trash_bytes(dirs.path()).unwrap(), 0);
        let trash = local.move_to_trash().unwrap().unwrap();
        assert!(trash.join("map").exists() && !local.dir().exists());
        assert!(trash_bytes(dirs.path()).unwrap() > 0);
        assert_eq!(local.move_to_trash().unwrap(), None);
        local.discard().expect("nothing to discard");
        purge(dirs.path()).unwrap();
        assert!(!trash.exists());
    }

    fn left(dirs: &Path) -> Vec<String> {
        let mut names: Vec<String> = volumes_under(&state_volumes(dirs))
            .unwrap()
            .iter()
            .map(|volume| volume.as_str().to_owned())
            .collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn the_oldest_cache_is_evicted_but_never_dirty_data() {
        let dirs = tempfile::tempdir().unwrap();
        let (dirs, run) = (dirs.path(), dirs.path().join("run"));
        for (name, closed_clean, used) in [
            ("new", true, 30),
            ("dirty", false, 5),
            ("old", true, 10),
            ("attached", true, 1),
            ("live", true, 2),
        ] {
            leave(dirs, name, closed_clean, used).await;
        }
        fs::create_dir(run_volumes(&run).join("live")).unwrap();
        let volumes = NodeVolumes::default();
        drop(volumes.recover("attached".parse().unwrap()));
        let mut needed = NeededCaches::default();

        let mut caches = DetachedCaches::find(dirs, &run, &volumes).unwrap();
        assert!(caches.held_bytes() >= 3 * 8192);
        assert!(!caches.evict(0, &mut needed));
        assert_eq!(left(dirs), ["attached", "dirty", "live", "new", "old"]);
        assert!(caches.evict(1, &mut needed), "another thread deletes it");
        assert_eq!(fs::read_dir(trash_dir(dirs)).unwrap().count(), 1);
        assert_eq!(left(dirs), ["attached", "dirty", "live", "new"]);
        caches.evict(u64::MAX, &mut needed);
        assert_eq!(left(dirs), ["attached", "dirty", "live"]);
        purge(dirs).unwrap();
        assert_eq!(fs::read_dir(trash_dir(dirs)).unwrap().count(), 0);
    }

    /// Regression: the first undeletable file kept all others on the disk.
    #[test]
    fn trash_that_cannot_be_removed_keeps_no_other() {
        let dirs = tempfile::tempdir().unwrap();
        let trash = trash_dir(dirs.path());
        for number in 0..8 {
            fs::create_dir_all(trash.join(format!("v-{number}"))).unwrap();
            // Not a directory.
            fs::write(trash.join(format!("bad-{number}")), "").unwrap();
        }
        let error = purge(dirs.path()).unwrap_err();
        assert!(error.to_string().contains("bad-"), "{error}");
        let left = fs::read_dir(&trash).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(left.into_iter().all(|name| name.to_string_lossy().starts_with("bad-")));
    }

    #[tokio::test]
    async fn files_used_meanwhile_are_kept() {
        let dirs = tempfile::tempdir().unwrap();
        leave(dirs.path(), "v", true, 10).await;
        let volumes = NodeVolumes::default();
        let run = dirs.path().join("run");
        let mut caches = DetachedCaches::find(dirs.path(), &run, &volumes).unwrap();
        // Attached and detached again in the meantime.
        leave(dirs.path(), "v", true, 20).await;
        caches.evict(u64::MAX, &mut NeededCaches::default());
        assert_eq!(left(dirs.path()), ["v"]);
    }

    #[tokio::test]
    async fn what_cannot_be_thrown_away_still_counts() {
        let dirs = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            leave(dirs.path(), name, true, 10).await;
        }
        // Nothing can be moved there.
        fs::write(trash_dir(dirs.path()), "").unwrap();
        let volumes = NodeVolumes::default();
        let run = dirs.path().join("run");
        let mut caches = DetachedCaches::find(dirs.path(), &run, &volumes).unwrap();
        let held = caches.held_bytes();
        caches.evict(u64::MAX, &mut NeededCaches::default());
        assert_eq!((caches.held_bytes(), left(dirs.path()).len()), (held, 2));
    }

    /// Regression: one file without a readable size stopped the measurement for all, and writes waited.
    #[tokio::test]
    async fn one_volume_that_cannot_be_measured_stops_no_other() {
        let dirs = tempfile::tempdir().unwrap();
        for name in ["bad", "good"] {
            leave(dirs.path(), name, true, 10).await;
        }
        // A link to itself fails like an unreadable disk.
        let side = dirs.path().join("volumes/bad/a.data");
        fs::remove_file(&side).unwrap();
        std::os::unix::fs::symlink(&side, &side).unwrap();
        let volumes = NodeVolumes::default();
        let run = dirs.path().join("run");
        let mut caches = DetachedCaches::find(dirs.path(), &run, &volumes).unwrap();
        assert!(caches.held_bytes() >= 8192);
        assert!(caches.evict(u64::MAX, &mut NeededCaches::default()));
        assert_eq!(left(dirs.path()), ["bad"]);
    }
}
