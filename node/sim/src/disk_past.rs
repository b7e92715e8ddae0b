//! The past of a host's disk: its known history, and whether the host still has its own disk.

use crate::disk::{Disk, Fate};
use crate::expect::Expect;

/// A disk in a state that a power cut could have left at some time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) disk: Disk,
    pub(crate) expect: Expect,
    pub(crate) age: Age,
}

impl Snapshot {
    /// Creates a snapshot of a disk with that content, at that time.
    pub(crate) fn new(mut disk: Disk, mut expect: Expect, age: Age, fate: &mut Fate<'_>) -> Self {
        disk.lose_power(fate);
        expect.lose_host();
        Self { disk, expect, age }
    }
}

/// Age of a disk state.
#[derive(Clone, Copy)]
pub(crate) struct Age {
    /// The host that owned the disk.
    pub(crate) host: usize,
    /// Commits in the log.
    pub(crate) commits: u64,
    /// True if one more was in flight.
    pub(crate) sealing: bool,
}

/// Replacements of a host's disk.
#[derive(Clone, Copy)]
pub(crate) enum OtherDisk {
    /// Nothing.
    Empty,
    /// An older state of its own disk, or one of another host's.
    Copy(Age),
    /// The disk of an earlier volume.
    OtherVolume,
    /// Its own disk, after the log was set back.
    SetBackLog,
}

/// The past of one disk.
#[derive(Default)]
pub(crate) struct DiskPast {
    snapshot: Option<Snapshot>,
    other: Option<OtherDisk>,
    /// True if the last attach was with the disk of an earlier volume.
    was_of_other_volume: bool,
    disks: u64,
    keeps: bool,
    was_full: bool,
    header_decayed: bool,
}

impl DiskPast {
    /// Returns its last snapshot.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    pub(crate) fn keep_snapshot(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
    }

    /// Returns the replacement of the disk of the host's last attach, until the host attaches.
    pub(crate) fn other(&self) -> Option<OtherDisk> {
        self.other
    }

    /// Returns the number of disks that the host had.
    pub(crate) fn disks(&self) -> u64 {
        self.disks
    }

    /// Replaces the disk, including the preserved data of a fenced writer.
    pub(crate) fn replace(&mut self, other: OtherDisk) {
        self.other = Some(other);
        self.disks += 1;
        self.keeps = false;
    }

    /// Replaces the volume's log: snapshots of data from the previous one are useless.
    pub(crate) fn change_log(&mut self, other: OtherDisk) {
        self.snapshot = None;
        self.replace(other);
    }

    /// Notes that the host attached with its current disk.
    pub(crate) fn make_own(&mut self) {
        self.was_of_other_volume = matches!(self.other.take(), Some(OtherDisk::OtherVolume));
    }

    /// Returns true if the disk is that of an earlier volume, or was until the last attach.
    pub(crate) fn is_of_other_volume(&self) -> bool {
        self.was_of_other_volume || matches!(self.other, Some(OtherDisk::OtherVolume))
    }

    /// Returns true if a fenced writer released its files here, and its durable map names uncommitted
    /// data, until that is preserved.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    pub(crate) fn set_keeps(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// Returns true if it was full at some time.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    pub(crate) fn note_full(&mut self) {
        self.was_full = true;
    }

    /// Returns true if a slot of its durable map's header decayed.
    pub(crate) fn header_decayed(&self) -> bool {
        self.header_decayed
    }

    pub(crate) fn note_decay(&mut self) {
        self.header_decayed = true;
    }
}
