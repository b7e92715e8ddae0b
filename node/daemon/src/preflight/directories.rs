//! The state directory and the run directory: existing or creatable, and on suitable file systems.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use holdfast_service::chain;

use super::disk::{self, DiskFacts, nameless_file};
use super::{Check, about};
use crate::node::{CacheRoom, NodeConfig, NodeError, StateDisk, check_dirs};

const STATE: &str = "state directory";
const RUN: &str = "run directory";

/// A directory that exists during the lifetime of this: created parts are removed again.
#[derive(Debug)]
struct LentDirectory {
    made: Vec<PathBuf>,
}

impl LentDirectory {
    fn make(dir: &Path) -> io::Result<Self> {
        let missing: Vec<&Path> = dir.ancestors().take_while(|part| !part.exists()).collect();
        let mut lent = Self { made: Vec::new() };
        for part in missing.into_iter().rev() {
            fs::create_dir(part)?;
            lent.made.push(part.to_owned());
        }
        if dir.is_dir() { Ok(lent) } else { Err(io::ErrorKind::NotADirectory.into()) }
    }
}

impl Drop for LentDirectory {
    fn drop(&mut self) {
        for made in self.made.iter().rev() {
            // Another program may use it by now.
            drop(fs::remove_dir(made));
        }
    }
}

/// Suitability of a file system for the state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fitness {
    /// On a disk of the node.
    Local,
    /// Lost with the host or with the container.
    Volatile,
    /// Remote: provided by another host or by a program.
    Remote,
}

/// `f_type` of file systems. Source: `linux/magic.h` and statfs(2).
const FILE_SYSTEMS: [(i64, &str, Fitness); 16] = [
    (0xef53, "ext4", Fitness::Local),
    (0x5846_5342, "xfs", Fitness::Local),
    (0x9123_683e, "btrfs", Fitness::Local),
    (0xf2f5_2010, "f2fs", Fitness::Local),
    (0xca45_1a4e, "bcachefs", Fitness::Local),
    (0x2fc1_2fc1, "zfs", Fitness::Local),
    (0x0102_1994, "tmpfs", Fitness::Volatile),
    (0x8584_58f6, "ramfs", Fitness::Volatile),
    (0x794c_7630, "overlay", Fitness::Volatile),
    (0x6969, "nfs", Fitness::Remote),
    (0xff53_4d42, "cifs", Fitness::Remote),
    (0xfe53_4d42, "smb", Fitness::Remote),
    (0x00c3_6400, "ceph", Fitness::Remote),
    (0x0bd0_0bd0, "lustre", Fitness::Remote),
    (0x0102_1997, "9p", Fitness::Remote),
    (0x6573_5546, "fuse", Fitness::Remote),
];

/// Reports all results about the two directories. If the state directory is unusable, reports only that.
pub(super) fn check(node: &NodeConfig, say: &mut dyn FnMut(Check)) {
    let NodeConfig { state_dir, run_dir, .. } = node;
    let state = LentDirectory::make(state_dir);
    let seen = state.as_ref().map_err(copy).and_then(|_there| observe_state(state_dir));
    say(check_state(state_dir, seen.as_ref().map(|(file_system, _)| file_system)));
    if let Ok((file_system, facts)) = &seen
        && fitness(*file_system).is_none_or(|(_, fitness)| fitness == Fitness::Local)
    {
        disk::check(facts).into_iter().for_each(&mut *say);
        say(disk::check_sectors(StateDisk::look(state_dir).as_ref()));
        match CacheRoom::of(node) {
            Ok(room) => say(disk::check_room(room, node)),
            Err(error) => say(Check::fail("cache size", chain(&error), "repair the state directory")),
        }
    }
    let run = LentDirectory::make(run_dir);
    // The two are compared; without a state directory, there is nothing to compare.
    let fit = if state.is_ok() {
        run.as_ref().map(|_there| check_dirs(node))
    } else {
        run.as_ref().map(|_there| Ok(()))
    };
    let written = nameless_file(run_dir).map(drop);
    let free = rustix::fs::statvfs(run_dir).map(|found| found.f_bavail.saturating_mul(found.f_frsize)).ok();
    say(match fit {
        Ok(fit) => check_run(run_dir, fit, written.as_ref(), free),
        Err(error) => check_run(run_dir, Ok(()), Err(error), None),
    });
}

/// Returns the type of the file system, and its features.
fn observe_state(dir: &Path) -> io::Result<(i64, DiskFacts)> {
    Ok((rustix::fs::statfs(dir)?.f_type, DiskFacts::observe(dir)?))
}

fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

fn fitness(file_system: i64) -> Option<(&'static str, Fitness)> {
    let known = FILE_SYSTEMS.into_iter().find(|(known, ..)| *known == file_system);
    known.map(|(_, name, fitness)| (name, fitness))
}

/// Checks the state directory; `file_system` is its type, or the error of creating a file in it.
pub(super) fn check_state(dir: &Path, file_system: Result<&i64, &io::Error>) -> Check {
    const FIX: &str = "mount a file system of the node's own disk there (ext4 or xfs), or name a directory on one \
                       (node.state_dir; the chart's node.stateDir)";
    let dir = dir.display();
    let magic = match file_system {
        Ok(magic) => *magic,
        Err(error) => {
            let fixes = [
                (io::ErrorKind::PermissionDenied, "run as root"),
                (io::ErrorKind::StorageFull, "free space there"),
            ];
            let fix = fixes.into_iter().find(|(kind, _)| *kind == error.kind()).map_or(FIX, |(_, fix)| fix);
            return Check::fail(STATE, format!("{dir} cannot be used ({error})"), fix);
        }
    };
    match fitness(magic) {
        Some((name, Fitness::Local)) => Check::pass(STATE, format!("{dir} is on {name}")),
        Some((name, Fitness::Volatile)) => {
            let found = format!(
                "{dir} is on {name}, which ends with the host or the container. Unuploaded data would be lost with it"
            );
            Check::fail(STATE, found, FIX)
        }
        Some((name, Fitness::Remote)) => {
            let found = format!(
                "{dir} is on {name}, which is not a local file system. Volumes would depend on its server"
            );
            Check::fail(STATE, found, FIX)
        }
        None => Check::pass(STATE, format!("{dir} is on a file system of type {magic:#x}")),
    }
}

pub(super) fn check_run(
    dir: &Path,
    fit: Result<(), NodeError>,
    written: Result<&(), &io::Error>,
    free_bytes: Option<u64>,
) -> Check {
    const BELOW_RUN: &str =
        "name a directory below /run (node.run_dir), so that a restart of the host empties it";
    let dir = dir.display();
    match (fit, written) {
        (Err(NodeError::RunDir(_)), _) => Check::fail(RUN, format!("{dir} is not on a tmpfs"), BELOW_RUN),
        (Err(NodeError::SameDir(_)), _) => {
            Check::fail(RUN, format!("{dir} is node.state_dir too"), "name two different directories")
        }
        (Err(error), _) => Check::fail(RUN, chain(&error), BELOW_RUN),
        (Ok(()), Err(error)) => {
            let fix =
                "run as root, free space in the tmpfs, or name another directory below /run (node.run_dir)";
            Check::fail(RUN, format!("{dir} cannot be used ({error})"), fix)
        }
        (Ok(()), Ok(())) => {
            let free = free_bytes.map(|bytes| format!(", {} free", about(bytes))).unwrap_or_default();
            Check::pass(RUN, format!("{dir} is on a tmpfs{free}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_had_to_be_made_is_removed_again() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("one/two");
        let lent = LentDirectory::make(&dir).unwrap();
        assert!(dir.is_dir());
        drop(lent);
        assert!(!root.path().join("one").exists());
        fs::create_dir_all(&dir).unwrap();
        drop(LentDirectory::make(&dir).unwrap());
        assert!(dir.is_dir(), "what was there stays");
        fs::write(root.path().join("file"), "").unwrap();
        let refused = LentDirectory::make(&root.path().join("file")).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::NotADirectory);
        assert!(LentDirectory::make(&root.path().join("file/below")).is_err());
    }
}
