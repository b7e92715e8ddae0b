//! The right to use a state directory and a run directory: one daemon at a time, and always the same pair.
//!
//! ```text
//! <state>/lock  <run>/lock    held (flock) by the one daemon that uses the directory
//! <run>/owner                 the installation whose volumes the run directory holds, and an id of its own (tmpfs)
//! <state>/run                 the run directory last used, and the boot of the host it was used in
//! ```
//!
//! Owns: the locks, the ids.
//! Invariants: local state and devices are touched only while an [`Owner`] exists.
//! On failure: a directory of another pair is rejected while volumes are attached through it. A run directory
//! that was emptied without a reboot of the host is rejected while a device of its volumes remains; without
//! one only the live maps are lost, as after a reboot.

use std::fs::{self, File, TryLockError};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_service::chain;
use holdfast_types::VolumeId;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::node::NodeConfig;
use crate::node::device::kernel::{Devices, Kernel};
use crate::node::device::orphans::usable_devices;
use crate::node::device::tag::Installation;
use crate::node::error::{NodeError, file};
use crate::node::local::file::random;
use crate::node::local::record_json::{read, write};
use crate::node::local::volume_files::{
    Local, fenced_dir, run_volumes, spill_files_dir, state_volumes, trash_dir, volumes_under,
};
use crate::node::ring::lock::RingLocks;
use crate::node::run_blocking::blocking;

/// Interval of reminders that another daemon holds a lock.
const REMIND_EVERY: Duration = Duration::from_secs(300);
/// `f_type` of a tmpfs. Source: `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Changes at every boot of the host. Source: random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The right to use the directories of a node.
#[derive(Debug)]
pub(crate) struct Owner {
    config: NodeConfig,
    locks: [File; 2],
    rings: RingLocks,
}

/// `<run>/owner`. A later release may add fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RunOwner {
    id: String,
    state_id: String,
    /// For users.
    state_dir: PathBuf,
}

/// `<state>/run`. A later release may add fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct LastRun {
    boot_id: String,
    run_id: String,
    /// For users.
    run_dir: PathBuf,
}

impl Owner {
    /// Creates the directories and waits until no other daemon uses them, without a time limit.
    ///
    /// # Errors
    /// [`NodeError::RunDir`]; [`NodeError::RunDirTaken`], [`NodeError::StateDirReplaced`] and
    /// [`NodeError::StateInUse`] if the two do not belong together; an unusable file.
    pub(crate) async fn wait(config: NodeConfig) -> Result<Self, NodeError> {
        let locks = RingLocks::without_rings(&config.run_dir);
        let kernel = Kernel::of_this_host(&config.run_dir, config.keeper, locks);
        Self::wait_with(config, Arc::new(kernel)).await
    }

    /// Like [`Self::wait`], with this implementation of the devices.
    pub(in crate::node) async fn wait_with(
        config: NodeConfig,
        devices: Arc<dyn Devices>,
    ) -> Result<Self, NodeError> {
        for dir in [state_volumes(&config.state_dir), run_volumes(&config.run_dir)] {
            fs::create_dir_all(&dir).map_err(file(&dir, "created"))?;
        }
        for dir in [trash_dir(&config.state_dir), fenced_dir(&config.state_dir)] {
            // Freeing space on a full disk must not depend on free space.
            if let Err(error) = fs::create_dir_all(&dir) {
                tracing::warn!(directory = %dir.display(), %error, "a directory could not be created in advance");
            }
        }
        check_dirs(&config)?;
        let locks = [lock(&config.state_dir).await?, lock(&config.run_dir).await?];
        blocking(move || {
            pair(&config, &*devices)?;
            let rings = RingLocks::of_owner(&config.run_dir);
            Ok(Self { config, locks, rings })
        })
        .await
    }

    pub(in crate::node) fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Returns the locks of the rings that this process may create.
    pub(in crate::node) fn ring_locks(&self) -> &RingLocks {
        &self.rings
    }

    /// Lets the next daemon start. Nothing in this process may use the directories any more.
    ///
    /// # Errors
    /// The lock could not be released; the exit of the process releases it.
    pub(crate) fn release(self) -> Result<(), NodeError> {
        let Self { config, locks, rings: _ } = self;
        let dirs = [&config.state_dir, &config.run_dir];
        locks.iter().zip(dirs).try_for_each(|(lock, dir)| lock.unlock().map_err(file(dir, "unlocked")))
    }
}

/// An owner whose drop does not let the next daemon start: only the exit of the process does.
pub(in crate::node) struct HeldOwner(ManuallyDrop<Owner>);

impl HeldOwner {
    pub(in crate::node) fn new(owner: Owner) -> Self {
        Self(ManuallyDrop::new(owner))
    }

    /// Returns the owner. Nothing in this process may use the directories any more.
    pub(in crate::node) fn into_owner(self) -> Owner {
        ManuallyDrop::into_inner(self.0)
    }
}

/// Checks that the two directories, which must exist, can be used together.
///
/// # Errors
/// [`NodeError::RunDir`]; [`NodeError::SameDir`]; an unreadable directory.
pub(crate) fn check_dirs(config: &NodeConfig) -> Result<(), NodeError> {
    let NodeConfig { state_dir, run_dir, .. } = config;
    let found = rustix::fs::statfs(run_dir).map_err(|errno| file(run_dir, "read")(errno.into()))?;
    if found.f_type != TMPFS_MAGIC {
        return Err(NodeError::RunDir(run_dir.clone()));
    }
    let [state, run] = [state_dir, run_dir]
        .map(|dir| fs::metadata(dir).map(|found| (found.dev(), found.ino())).map_err(file(dir, "read")));
    if state? == run? {
        return Err(NodeError::SameDir(run_dir.clone()));
    }
    Ok(())
}

/// Checks that this version can read the record that each of the two directories has of the other.
///
/// # Errors
/// [`NodeError::Damaged`]; an unreadable file.
pub(in crate::node) fn check_records(config: &NodeConfig) -> Result<(), NodeError> {
    read::<RunOwner>(&owner_path(&config.run_dir))?;
    read::<LastRun>(&last_run_path(&config.state_dir))?;
    Ok(())
}

fn owner_path(run_dir: &Path) -> PathBuf {
    run_dir.join("owner")
}

fn last_run_path(state_dir: &Path) -> PathBuf {
    state_dir.join("run")
}

/// Returns true if a daemon uses the state directory. Briefly takes the lock if it is free.
///
/// # Errors
/// The lock file cannot be opened or tested. Without a lock file, no daemon uses the directory.
pub(crate) fn is_held(state_dir: &Path) -> io::Result<bool> {
    let lock = match File::open(lock_path(state_dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        lock => lock?,
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn lock_path(dir: &Path) -> PathBuf {
    dir.join("lock")
}

async fn lock(dir: &Path) -> Result<File, NodeError> {
    let path = lock_path(dir);
    let lock = File::create(&path).map_err(file(&path, "created"))?;
    match lock.try_lock() {
        Ok(()) => return Ok(lock),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(file(&path, "locked")(error)),
    }
    tracing::warn!(
        lock = %path.display(),
        "another holdfast-node held the lock; this one serves nothing and waits until that one has ended"
    );
    let (locked, mut answer) = oneshot::channel();
    // A separate thread: the shutdown of the runtime would wait for a thread of its own.
    let waiting = std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        // The receiver is gone if the daemon was stopped in the meantime.
        drop(locked.send(lock.lock().map(|()| lock)));
    });
    waiting.map_err(file(&path, "locked"))?;
    loop {
        match tokio::time::timeout(REMIND_EVERY, &mut answer).await {
            Ok(Ok(locked)) => return locked.map_err(file(&path, "locked")),
            Ok(Err(_gone)) => return Err(file(&path, "locked")(io::ErrorKind::BrokenPipe.into())),
            Err(_elapsed) => {
                tracing::warn!(lock = %path.display(), "another holdfast-node still held the lock");
            }
        }
    }
}

/// Compares the two directories with each one's record of the other, and updates the records.
fn pair(config: &NodeConfig, devices: &dyn Devices) -> Result<(), NodeError> {
    let NodeConfig { state_dir, run_dir, .. } = config;
    let installation = Installation::of(state_dir)?;
    let state_id = installation.to_string();
    let (owner_path, last_path) = (owner_path(run_dir), last_run_path(state_dir));
    let recorded = read::<RunOwner>(&owner_path)?;
    let owner = match recorded.clone() {
        Some(owner) if owner.state_id == state_id => owner,
        Some(RunOwner { state_dir, .. }) if !volumes_under(&run_volumes(run_dir))?.is_empty() => {
            return Err(if state_dir == config.state_dir {
                NodeError::StateDirReplaced(state_dir)
            } else {
                NodeError::RunDirTaken { run_dir: run_dir.clone(), state_dir }
            });
        }
        Some(_) | None => RunOwner { id: random_id(), state_id, state_dir: state_dir.clone() },
    };
    let boot_id = fs::read_to_string(BOOT_ID).map_err(file(Path::new(BOOT_ID), "read"))?.trim().to_owned();
    let now = LastRun { boot_id, run_id: owner.id.clone(), run_dir: run_dir.clone() };
    let last = read::<LastRun>(&last_path)?;
    if let Some(last) = &last
        && last.boot_id == now.boot_id
        && last.run_id != now.run_id
        && is_attached(config)?
    {
        let left: Vec<u32> = usable_devices(devices, installation)?.into_iter().map(|info| info.id).collect();
        if !left.is_empty() {
            let (state_dir, last_run_dir) = (state_dir.clone(), last.run_dir.clone());
            return Err(NodeError::StateInUse { state_dir, run_dir: run_dir.clone(), last_run_dir, left });
        }
        tracing::warn!(
            run_dir = %run_dir.display(),
            last_run_dir = %last.run_dir.display(),
            "the live maps of attached volumes were gone, and so were their devices; flushed data is recovered, \
             as after a restart of the host"
        );
    }
    // Unchanged records are not written: volumes are recovered from a full tmpfs, too.
    if recorded.as_ref() != Some(&owner) {
        write(&owner_path, &owner)?;
    }
    if last.as_ref() != Some(&now) {
        write(&last_path, &now)?;
    }
    Ok(())
}

/// Returns true if a volume of the state directory was attached and not detached. A volume with an unreadable
/// header counts: its attach reports the fault. A memory volume with a spill file counts, too, because the
/// file would be removed without the volume's other files.
fn is_attached(config: &NodeConfig) -> Result<bool, NodeError> {
    let is_open = |volume: &VolumeId| {
        let header = Local::new(&config.state_dir, &config.run_dir, volume).read_header();
        header.map_or_else(
            |error| {
                tracing::error!(%volume, error = chain(&error), "the local files of a volume could not be read");
                true
            },
            |found| found.is_some_and(|(_generation, header)| !header.closed_clean),
        )
    };
    let spill_files = spill_files_dir(&config.state_dir);
    let has_spilled = spill_files.is_dir() && !volumes_under(&spill_files)?.is_empty();
    Ok(has_spilled || volumes_under(&state_volumes(&config.state_dir))?.iter().any(is_open))
}

fn random_id() -> String {
    format!("{:032x}", u128::from_le_bytes(random()))
}

#[cfg(test)]
mod tests;
