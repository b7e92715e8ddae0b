//! Locks that outlive a daemon until the kernel has ended the last disk operation of its rings.
//!
//! ```text
//! <run>/rings/<name>    locked (flock) through a description that only the rings of one daemon have (tmpfs)
//! ```
//!
//! The kernel may end a process, and quiesce its devices, while disk writes of its rings are in flight. Such
//! a write must not reach the disk after the next daemon has written the same sector. A ring has its
//! registered files open until its last operation has ended.
//!
//! Owns: the files.
//! Invariants: files are created and removed only by the owner of the run directory.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::Mutex;

use crate::node::error::{NodeError, file};
use crate::node::local::file::random;

const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The ring locks of a run directory, as one process sees them. Clones are equal.
#[derive(Clone, Debug)]
pub(in crate::node) struct RingLocks {
    dir: PathBuf,
    /// Name of this process's file. `None`: it has no rings.
    own: Option<String>,
}

impl RingLocks {
    /// Returns the locks for a process without rings.
    pub(in crate::node) fn without_rings(run_dir: &Path) -> Self {
        Self { dir: run_dir.join("rings"), own: None }
    }

    /// Returns the locks for the new owner of the directory. Nothing is written yet.
    pub(in crate::node) fn of_owner(run_dir: &Path) -> Self {
        let own = Some(format!("{:032x}", u128::from_le_bytes(random())));
        Self { own, ..Self::without_rings(run_dir) }
    }

    /// Creates and locks this process's file. It stays locked until the returned file and its clones are
    /// closed, including those that a ring has.
    ///
    /// # Errors
    /// [`NodeError::File`].
    ///
    /// # Panics
    /// If the process is not the owner.
    pub(in crate::node) fn lock(&self) -> Result<File, NodeError> {
        let path = self.dir.join(self.own.as_ref().expect("only the owner has rings"));
        fs::create_dir_all(&self.dir).map_err(file(&self.dir, "created"))?;
        // A user who could open the file could lock it, too.
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let lock = options.open(&path).map_err(file(&path, "created"))?;
        lock.lock().map_err(file(&path, "locked"))?;
        Ok(lock)
    }

    /// Returns the directory of the files.
    pub(in crate::node) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns true while a ring of another process exists. The owner removes the files of all others.
    ///
    /// # Errors
    /// A file cannot be opened, locked or removed.
    pub(in crate::node) fn others_exist(&self) -> io::Result<bool> {
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if self.own.as_ref().is_some_and(|own| entry.file_name() == **own) {
                continue;
            }
            let found = match File::open(entry.path()) {
                // The owner has removed it in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            match found.try_lock() {
                Ok(()) if self.own.is_some() => fs::remove_file(entry.path())?,
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(true),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// The wait of recoveries for the rings of earlier daemons.
pub(in crate::node) struct EarlierRings {
    locks: RingLocks,
    are_gone: Mutex<bool>,
}

impl EarlierRings {
    /// Creates the wait of the owner with these locks.
    pub(in crate::node) fn new(locks: RingLocks) -> Self {
        Self { locks, are_gone: Mutex::new(false) }
    }

    /// Waits until no ring of an earlier daemon exists. From then on, nothing but this process writes the
    /// local files.
    ///
    /// # Errors
    /// [`NodeError::EarlierRing`] after `within`; [`NodeError::File`].
    pub(in crate::node) async fn are_gone(&self, within: Duration) -> Result<(), NodeError> {
        let gone = async {
            // One caller looks, and the others wait for it.
            let mut are_gone = self.are_gone.lock().await;
            while !*are_gone {
                if self.locks.others_exist().map_err(file(self.locks.dir(), "read"))? {
                    tokio::time::sleep(LOOK_EVERY).await;
                } else {
                    *are_gone = true;
                }
            }
            Ok(())
        };
        tokio::time::timeout(within, gone).await.unwrap_or(Err(NodeError::EarlierRing { within }))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use holdfast_ring::{Ring, RingOperation, RingOptions};

    use super::*;

    /// The operation of a ring that is given none.
    struct NoOperation;

    impl RingOperation for NoOperation {
        fn to_word(&self) -> Option<u64> {
            None
        }

        fn from_word(_word: u64) -> Self {
            Self
        }
    }

    /// Regression, found in review: on kernels before 6.13 nothing held a recovery back until the disk writes
    /// of the dead daemon had ended.
    #[test]
    fn a_ring_holds_the_lock_longer_than_the_process_has_it_open() {
        let run_dir = tempfile::tempdir().unwrap();
        let (old, new) = (RingLocks::of_owner(run_dir.path()), RingLocks::of_owner(run_dir.path()));
        let looks = RingLocks::without_rings(run_dir.path());
        assert!(!new.others_exist().unwrap(), "no daemon ran yet");
        let lock = old.lock().unwrap();
        let mut ring = Ring::<NoOperation>::new(&RingOptions::default()).unwrap();
        ring.register_file(lock.as_fd()).unwrap();
        drop(lock);
        assert!(new.others_exist().unwrap() && looks.others_exist().unwrap());
        assert!(!old.others_exist().unwrap(), "its own");

        drop(ring);
        let begun = Instant::now();
        while new.others_exist().unwrap() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the kernel freed the ring");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(std::fs::read_dir(run_dir.path().join("rings")).unwrap().count(), 0, "removed");
    }
}
