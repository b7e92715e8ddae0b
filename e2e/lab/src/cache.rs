//! Cache of downloads and builds, outside the source tree.
//!
//! Owns: `$HOLDFAST_CACHE`, or `$XDG_CACHE_HOME/holdfast`, or `~/.cache/holdfast`.
//! Invariants: an entry is complete or absent (it is created in a scratch directory and renamed), and two
//! concurrent runs create it only once. The cache may be deleted at any time: entries are recreated.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::limit::WorkClock;
use crate::report;

/// The cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    /// Counts the time spent on entries.
    clock: Arc<WorkClock>,
}

impl Cache {
    /// Opens the cache and creates its directory; `clock` counts the time spent on entries.
    ///
    /// # Errors
    /// If neither HOLDFAST_CACHE nor HOME is set, or the directory cannot be created.
    pub fn open(clock: Arc<WorkClock>) -> Result<Self> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = match (set("HOLDFAST_CACHE"), set("XDG_CACHE_HOME"), set("HOME")) {
            (Some(root), _, _) => PathBuf::from(root),
            (None, Some(cache), _) => Path::new(&cache).join("holdfast"),
            (None, None, Some(home)) => Path::new(&home).join(".cache/holdfast"),
            (None, None, None) => {
                anyhow::bail!("set HOLDFAST_CACHE (or HOME): nowhere to keep downloads")
            }
        };
        fs::create_dir_all(&root).with_context(|| format!("create cache {}", root.display()))?;
        Ok(Self { root, clock })
    }

    /// Returns the directory of entry `key`, created by `build` if it does not exist yet. `build` gets a
    /// scratch directory to fill.
    ///
    /// # Errors
    /// If `build` or the file system fails.
    pub fn entry(
        &self,
        key: &str,
        expected: Duration,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let entry = self.root.join(key);
        if entry.is_dir() {
            return Ok(entry);
        }
        self.clock.time(|| self.make(&entry, key, expected, build))
    }

    /// Creates a missing entry.
    fn make(
        &self,
        entry: &Path,
        key: &str,
        expected: Duration,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let lock = File::create(self.root.join(format!("{key}.lock")))
            .with_context(|| format!("create the lock of cache entry {key}"))?;
        lock.lock().with_context(|| format!("lock cache entry {key}"))?;
        if entry.is_dir() {
            return Ok(entry.to_owned());
        }
        let scratch = self.root.join(format!("{key}.partial"));
        remove_tree(&scratch)?;
        fs::create_dir_all(&scratch).with_context(|| format!("create {}", scratch.display()))?;
        report::timed(&format!("prepare {key}"), expected, || build(&scratch))?;
        fs::rename(&scratch, entry).with_context(|| format!("publish cache entry {key}"))?;
        Ok(entry.to_owned())
    }

    /// Returns the path of entry `key`, which may not exist; creates nothing.
    pub fn path(&self, key: &str) -> PathBuf {
        self.root.join(key)
    }
}

/// Returns a short hash of a text, as part of a key: FNV-1a, which does not depend on the compiler.
pub fn fingerprint(text: &str) -> String {
    let digest = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{digest:016x}")
}

/// Removes a directory tree, if it exists.
fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("remove {}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache() -> (PathBuf, Cache) {
        let root = std::env::temp_dir().join(format!(
            "holdfast-cache-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        fs::create_dir_all(&root).unwrap();
        (root.clone(), Cache { root, clock: Arc::default() })
    }

    #[test]
    fn an_entry_is_built_once_and_not_after_a_failure() {
        let (root, cache) = cache();
        let none = Duration::ZERO;
        let failed = cache.entry("thing", none, |dir| {
            fs::write(dir.join("half"), "x")?;
            anyhow::bail!("no")
        });
        assert!(failed.is_err());
        assert!(!root.join("thing").exists());
        let created = cache.entry("thing", none, |dir| Ok(fs::write(dir.join("whole"), "y")?)).unwrap();
        assert!(!created.join("half").exists());
        let repeated = cache.entry("thing", none, |_| anyhow::bail!("built twice"));
        assert_eq!(repeated.unwrap(), created);
        fs::remove_dir_all(root).unwrap();
    }
}
