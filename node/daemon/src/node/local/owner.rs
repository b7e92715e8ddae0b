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
//! On failure: a directory that belongs to another one is refused while volumes are attached through it. A
//! run directory that was emptied while the host ran on is refused while a device of its volumes is left;
//! without one only the live maps are lost, as they are when the host restarts.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_service::chain;
use holdfast_types::VolumeId;
use holdfast_ublk::DeviceState;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::node::NodeConfig;
use crate::node::device::kernel::{Devices, Kernel};
use crate::node::device::orphans::orphans;
use crate::node::device::tag::Installation;
use crate::node::error::{NodeError, file};
use crate::node::local::detached_cache::trash_dir;
use crate::node::local::file::random;
use crate::node::local::record_json::{read, write};
use crate::node::local::volume_files::{
    Local, fenced_dir, run_volumes, spill_files_dir, state_volumes, volumes_under,
};
use crate::node::run_blocking::blocking;

/// Time between two reminders that another daemon holds a lock.
const REMIND_EVERY: Duration = Duration::from_secs(300);
/// `f_type` of a tmpfs. Source: `linux/magic.h`.
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Changes with every start of the host. Source: random(4).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The right to use the directories of a node.
#[derive(Debug)]
pub(crate) struct Owner {
    config: NodeConfig,
    locks: [File; 2],
}

/// `<run>/owner`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RunOwner {
    id: String,
    state_id: String,
    /// For people.
    state_dir: PathBuf,
}

/// `<state>/run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LastRun {
    boot_id: String,
    run_id: String,
    /// For people.
    run_dir: PathBuf,
}

impl Owner {
    /// Makes the directories and waits until no other daemon uses them, for as long as that takes.
    ///
    /// # Errors
    /// [`NodeError::RunDir`]; [`NodeError::RunDirTaken`] and [`NodeError::StateInUse`] where the two do not
    /// belong together; a file that cannot be used.
    pub(crate) async fn wait(config: NodeConfig) -> Result<Self, NodeError> {
        let kernel = Kernel::of_this_host(&config.run_dir, config.keeper);
        Self::wait_with(config, Arc::new(kernel)).await
    }

    /// The same with the devices of this kernel.
    pub(in crate::node) async fn wait_with(
        config: NodeConfig,
        devices: Arc<dyn Devices>,
    ) -> Result<Self, NodeError> {
        for dir in [state_volumes(&config.state_dir), run_volumes(&config.run_dir)] {
            fs::create_dir_all(&dir).map_err(file(&dir, "created"))?;
        }
        for dir in [trash_dir(&config.state_dir), fenced_dir(&config.state_dir)] {
            // What makes room on a full disk must not need any.
            if let Err(error) = fs::create_dir_all(&dir) {
                tracing::warn!(directory = %dir.display(), %error, "a directory was not made before it is needed");
            }
        }
        check_dirs(&config)?;
        let locks = [lock(&config.state_dir).await?, lock(&config.run_dir).await?];
        blocking(move || {
            pair(&config, &*devices)?;
            Ok(Self { config, locks })
        })
        .await
    }

    pub(in crate::node) fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// Lets the next daemon begin. Nothing of this process may use the directories any more.
    ///
    /// # Errors
    /// The lock that could not be released; the end of the process releases it.
    pub(crate) fn release(self) -> Result<(), NodeError> {
        let Self { config, locks } = self;
        let dirs = [&config.state_dir, &config.run_dir];
        locks.iter().zip(dirs).try_for_each(|(lock, dir)| lock.unlock().map_err(file(dir, "unlocked")))
    }
}

/// An owner whose drop does not let the next daemon begin: only the end of the process does.
pub(in crate::node) struct HeldOwner(ManuallyDrop<Owner>);

impl HeldOwner {
    pub(in crate::node) fn new(owner: Owner) -> Self {
        Self(ManuallyDrop::new(owner))
    }

    /// Nothing of this process uses the directories any more.
    pub(in crate::node) fn into_owner(self) -> Owner {
        ManuallyDrop::into_inner(self.0)
    }
}

/// Checks that the two directories, which exist, can be used together.
///
/// # Errors
/// [`NodeError::RunDir`]; [`NodeError::SameDir`]; a directory that cannot be read.
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

/// True if a daemon uses the state directory. Takes the lock for a moment where it is free.
///
/// # Errors
/// The lock's file cannot be opened or asked. Where there is none, no daemon uses the directory.
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
    // Not a thread of the runtime, whose end would wait for it.
    let waiting = std::thread::Builder::new().name("lock".to_owned()).spawn(move || {
        // The receiver is gone when the daemon was stopped meanwhile.
        drop(locked.send(lock.lock().map(|()| lock)));
    });
    waiting.map_err(file(&path, "waited for"))?;
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

/// Holds both directories against what each remembers of the other, and records it again.
fn pair(config: &NodeConfig, devices: &dyn Devices) -> Result<(), NodeError> {
    let NodeConfig { state_dir, run_dir, .. } = config;
    let installation = Installation::of(state_dir)?;
    let state_id = installation.to_string();
    let (owner_path, last_path) = (run_dir.join("owner"), state_dir.join("run"));
    let found = read::<RunOwner>(&owner_path)?;
    let owner = match found.clone() {
        Some(owner) if owner.state_id == state_id => owner,
        Some(RunOwner { state_dir, .. }) if !volumes_under(&run_volumes(run_dir))?.is_empty() => {
            return Err(NodeError::RunDirTaken { run_dir: run_dir.clone(), state_dir });
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
        let left = devices_left(devices, installation)?;
        if !left.is_empty() {
            let (state_dir, last_run_dir) = (state_dir.clone(), last.run_dir.clone());
            return Err(NodeError::StateInUse { state_dir, run_dir: run_dir.clone(), last_run_dir, left });
        }
        tracing::warn!(
            run_dir = %run_dir.display(),
            last_run_dir = %last.run_dir.display(),
            "the live maps of attached volumes were gone, and so were their devices; what was flushed is recovered, as after a restart \
             of the host"
        );
    }
    // Nothing is written where nothing changed: volumes are recovered from a full tmpfs too.
    if found.as_ref() != Some(&owner) {
        write(&owner_path, &owner)?;
    }
    if last.as_ref() != Some(&now) {
        write(&last_path, &now)?;
    }
    Ok(())
}

/// True if a volume of the state was attached and not detached. One whose header cannot be read counts: its
/// attach reports the fault. So does a memory volume with a spill file, which would be removed without the
/// other files of the volume.
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

/// The numbers of the installation's devices that programs may use: all but those that never served or were
/// stopped.
fn devices_left(devices: &dyn Devices, installation: Installation) -> Result<Vec<u32>, NodeError> {
    let ours = orphans(devices, installation, &BTreeSet::new())?;
    Ok(ours.into_iter().filter(|info| info.state != DeviceState::Dead).map(|info| info.id).collect())
}

fn random_id() -> String {
    format!("{:032x}", u128::from_le_bytes(random()))
}

#[cfg(test)]
mod tests;
