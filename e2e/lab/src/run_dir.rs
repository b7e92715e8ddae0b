//! The directory of one run, below `target/e2e`: logs are kept, everything else is removed with the run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::setup::LOGS;

/// Number of runs whose logs are kept.
const KEPT_RUNS: usize = 20;
/// Locked for the life of the run. The lock next to the runs is held while a run is created, or old ones are
/// removed.
const LOCK: &str = "lock";

/// The directory of a run in progress.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    _lock: File,
}

impl RunDir {
    /// Creates a directory for this run, whose name ends in `name`, and tidies those of killed runs.
    ///
    /// # Errors
    /// If the file system fails.
    pub fn create(target: &Path, name: &str) -> Result<Self> {
        let root = root(target)?;
        let _made = lock(&root)?;
        tidy_locked(&root)?;
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .context("the clock is before 1970")?;
        let path = root.join(format!("{}-{name}", now.as_millis()));
        fs::create_dir(&path).with_context(|| format!("create {}", path.display()))?;
        let lock = lock(&path)?;
        Ok(Self { path, _lock: lock })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let root = self.path.parent().expect("a run's directory is below that of all runs");
        // The next run removes the rest.
        drop(lock(root).and_then(|_tidied| keep_logs_only(&self.path)));
    }
}

/// Removes the remains of killed runs, and the logs of all but the newest runs.
///
/// # Errors
/// If the file system fails.
pub fn tidy(target: &Path) -> Result<()> {
    let root = root(target)?;
    let _tidied = lock(&root)?;
    tidy_locked(&root)
}

fn tidy_locked(root: &Path) -> Result<()> {
    let mut runs: Vec<PathBuf> = fs::read_dir(root)
        .with_context(|| format!("list {}", root.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir() && !path.ends_with(LOGS))
        .collect();
    runs.sort();
    let too_many = runs.len().saturating_sub(KEPT_RUNS);
    for (index, run) in runs.iter().enumerate() {
        let alive = File::open(run.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_err());
        if alive {
            continue;
        }
        if index < too_many {
            fs::remove_dir_all(run).with_context(|| format!("remove {}", run.display()))?;
        } else {
            keep_logs_only(run)?;
        }
    }
    Ok(())
}

/// Returns the directory of all runs, without links: a socket's path has at most 107 bytes, and one through a
/// link may be longer.
fn root(target: &Path) -> Result<PathBuf> {
    let root = target.join("e2e");
    fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
    fs::canonicalize(&root).with_context(|| format!("resolve {}", root.display()))
}

fn lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let lock = File::create(&path).with_context(|| format!("create {}", path.display()))?;
    lock.lock().with_context(|| format!("lock {}", path.display()))?;
    Ok(lock)
}

/// Removes a file, unless a concurrent harness was faster.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

fn keep_logs_only(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            keep_logs_only(&path)?;
            // Not empty if a log remains in it.
            drop(fs::remove_dir(&path));
        } else if path.extension().is_none_or(|kind| kind != "log") {
            remove(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_run_leaves_its_logs_and_nothing_else() {
        let target = tempfile::tempdir().unwrap();
        let run = RunDir::create(target.path(), "one").unwrap();
        let path = run.path().to_owned();
        fs::create_dir_all(path.join("vm-a/deep")).unwrap();
        fs::create_dir_all(path.join("buckets/b")).unwrap();
        fs::write(path.join("vm-a/console.log"), "hello").unwrap();
        fs::write(path.join("vm-a/deep/state.ext4"), "big").unwrap();
        fs::write(path.join("buckets/b/object"), "big").unwrap();
        drop(run);
        assert!(path.join("vm-a/console.log").exists());
        assert!(!path.join("vm-a/deep").exists());
        assert!(!path.join("buckets").exists());
        assert!(!path.join(LOCK).exists());
    }
}
