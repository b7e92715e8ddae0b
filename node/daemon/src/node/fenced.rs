//! Un-uploaded data of this node's fenced writers: listed, exported, deleted.
//!
//! Owns: the directories below `<state>/fenced/`. They are immutable once created, so this needs neither the
//! daemon nor its lock, the store or the API server, and a daemon may run concurrently.
//! On failure: a damaged directory is listed with its error; it is not exported.

mod export;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use holdfast_engine::durable_map::{FoundPart, dirty_runs_of, live_parts};
use holdfast_format::side::Side;
use holdfast_types::{Block, Epoch, SectorRange, VolumeId};

pub(crate) use export::export;

use super::error::{FailureKind, NodeError, file};
use super::local::volume_files::{KEPT_LIVE_MAP, fenced_dir, read_map_parts};

/// One directory of a fenced writer.
#[derive(Debug)]
pub(crate) struct Kept {
    /// The directory's name, which identifies it for export and deletion.
    pub(crate) name: String,
    dir: PathBuf,
}

/// Data of a fenced writer, according to its map.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// The fenced writer's epoch.
    pub(crate) epoch: Epoch,
    /// The volume's size at that time, in sectors.
    pub(crate) sectors: u64,
    /// Un-uploaded sectors, lowest first, and the side that holds them.
    runs: Vec<(SectorRange, Side)>,
}

/// Reason why preserved data is unavailable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FencedError {
    /// No directory of this name.
    #[error("no data of a fenced writer is called {name}: {}", names(.known))]
    Unknown {
        /// The requested name.
        name: String,
        /// The existing names.
        known: Vec<String>,
    },
    /// The state directory does not exist.
    #[error("--state-dir: {} does not exist. Nothing was read. Name the daemon's node.state_dir", .0.display())]
    NoStateDir(PathBuf),
    /// The directory has no durable map.
    #[error("{} has no durable map: which sectors of its sides were written is unknown", .0.display())]
    NoMap(PathBuf),
    /// The export would overwrite a file.
    #[error("{} already exists: name another file with --output, or replace it with --overwrite", .0.display())]
    OutputExists(PathBuf),
    /// The deletion was not confirmed.
    #[error(
        "{name} holds the only copy of {bytes} bytes: export them first, then delete {name} with --confirm-data-loss"
    )]
    NotConfirmed {
        /// The name of its directory.
        name: String,
        /// Un-uploaded bytes.
        bytes: u64,
    },
    /// The export is incomplete, because the local disk cannot read some of the data.
    #[error("{bytes} bytes are missing in the image: the local disk cannot read them (\"unreadable\" in {})", .map.display())]
    Unreadable {
        /// Bytes missing in the image.
        bytes: u64,
        /// The JSON file that lists them.
        map: PathBuf,
    },
    /// A file is unusable or damaged.
    #[error(transparent)]
    Local(#[from] NodeError),
}

fn names(known: &[String]) -> String {
    match known {
        [] => "none is kept here (is --state-dir the daemon's node.state_dir?)".to_owned(),
        known => format!("existing names: {}", known.join(", ")),
    }
}

impl FencedError {
    /// Returns the class of the error, by the caller's possible reaction.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Unknown { .. } | Self::NoStateDir(_) => FailureKind::NotFound,
            Self::NoMap(_) => FailureKind::Corrupt,
            Self::Unreadable { .. } => FailureKind::Local,
            Self::OutputExists(_) | Self::NotConfirmed { .. } => FailureKind::Invalid,
            Self::Local(error) => error.kind(),
        }
    }
}

/// The un-uploaded sectors, collected while a map is read.
#[derive(Default)]
struct DirtyRuns(BTreeMap<Block, Vec<(SectorRange, Side)>>);

impl DirtyRuns {
    fn add(&mut self, part: &FoundPart) {
        for (block, nibbles) in part.blocks() {
            let runs = dirty_runs_of(block, nibbles);
            if runs.is_empty() {
                self.0.remove(&block);
            } else {
                self.0.insert(block, runs);
            }
        }
    }

    /// Returns the runs, lowest first; adjacent ones on one side are merged.
    fn joined(self) -> Vec<(SectorRange, Side)> {
        let mut joined: Vec<(SectorRange, Side)> = Vec::new();
        for (run, side) in self.0.into_values().flatten() {
            match joined.last_mut() {
                Some((last, of)) if *of == side && last.end() == run.start.0 => last.sectors += run.sectors,
                Some(_) | None => joined.push((run, side)),
            }
        }
        joined
    }
}

impl Contents {
    /// Returns the number of un-uploaded bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.runs.iter().map(|(run, _)| run.bytes()).sum()
    }
}

impl Kept {
    /// Reads and verifies the durable map, and the live one if it was preserved.
    ///
    /// # Errors
    /// [`FencedError::NoMap`], or [`FencedError::Local`] naming the damaged file.
    pub(crate) fn contents(&self) -> Result<Contents, FencedError> {
        let mut dirty = DirtyRuns::default();
        let Some((_generation, header)) =
            read_map_parts(&self.dir.join("map"), &mut |part| dirty.add(&part))?
        else {
            return Err(FencedError::NoMap(self.dir.clone()));
        };
        let live = self.dir.join(KEPT_LIVE_MAP);
        match fs::read(&live) {
            Ok(memory) => {
                dirty = DirtyRuns::default();
                live_parts(&header, memory, &mut |part| dirty.add(&part))
                    .map_err(|error| NodeError::Damaged { path: live, source: error.into() })?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(file(&live, "read")(error).into()),
        }
        let runs = dirty.joined();
        // The header is written after the pages: after a growth it may have the smaller size.
        let end = runs.iter().map(|(run, _)| run.end()).max().unwrap_or(0);
        let sectors = header.sectors.max(end);
        Ok(Contents { volume: header.volume, epoch: header.epoch, sectors, runs })
    }

    /// Deletes the directory.
    ///
    /// # Errors
    /// [`FencedError::NotConfirmed`] unless `confirmed` or it has no un-uploaded data;
    /// [`FencedError::Local`].
    pub(crate) fn delete(self, confirmed: bool) -> Result<(), FencedError> {
        if !confirmed {
            let bytes = self.contents()?.bytes();
            if bytes > 0 {
                return Err(FencedError::NotConfirmed { name: self.name, bytes });
            }
        }
        Ok(fs::remove_dir_all(&self.dir).map_err(file(&self.dir, "removed"))?)
    }
}

/// Lists all preserved data below the state directory, by name.
///
/// # Errors
/// [`FencedError::NoStateDir`]; [`FencedError::Local`] if the directory cannot be read.
pub(crate) fn list(state_dir: &Path) -> Result<Vec<Kept>, FencedError> {
    let all = fenced_dir(state_dir);
    let entries = match fs::read_dir(&all) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && state_dir.exists() => return Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(FencedError::NoStateDir(state_dir.to_owned()));
        }
        entries => entries.map_err(file(&all, "listed"))?,
    };
    let mut kept = Vec::new();
    for entry in entries {
        let entry = entry.map_err(file(&all, "listed"))?;
        if let Ok(name) = entry.file_name().into_string()
            && entry.path().is_dir()
        {
            kept.push(Kept { name, dir: entry.path() });
        }
    }
    kept.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(kept)
}

/// Finds the preserved data called `name`.
///
/// # Errors
/// [`FencedError::Unknown`] with the existing names; those of [`list`].
pub(crate) fn find(state_dir: &Path, name: &str) -> Result<Kept, FencedError> {
    let mut all = list(state_dir)?;
    match all.iter().position(|kept| kept.name == name) {
        Some(found) => Ok(all.swap_remove(found)),
        None => Err(FencedError::Unknown {
            name: name.to_owned(),
            known: all.into_iter().map(|kept| kept.name).collect(),
        }),
    }
}

#[cfg(test)]
mod tests;
