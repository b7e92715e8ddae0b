//! The past of a host's disk: what is known of it from outside, and whether it is the disk that the host had.

use crate::disk::{Disk, Fate};
use crate::expect::Expect;

/// A disk as a power cut would have left it at some time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) disk: Disk,
    pub(crate) expect: Expect,
    pub(crate) age: Age,
}

impl Snapshot {
    /// Of a disk with that content, at that time.
    pub(crate) fn new(mut disk: Disk, mut expect: Expect, age: Age, fate: &mut Fate<'_>) -> Self {
        disk.lose_power(fate);
        expect.lose_host();
        Self { disk, expect, age }
    }
}

/// Of what time a disk is.
#[derive(Clone, Copy)]
pub(crate) struct Age {
    /// The host whose disk it was.
    pub(crate) host: usize,
    /// Commits that were in the log.
    pub(crate) commits: u64,
    /// One more was in flight.
    pub(crate) sealing: bool,
}

/// Replacements of a host's disk.
#[derive(Clone, Copy)]
pub(crate) enum OtherDisk {
    /// Nothing.
    Empty,
    /// An older state of its own, or one of another host.
    Copy(Age),
    /// The disk of a volume that there was before.
    OtherVolume,
    /// The disk that it had; the log is the one that was set back.
    SetBackLog,
}

/// The past of one disk.
#[derive(Default)]
pub(crate) struct DiskPast {
    snapshot: Option<Snapshot>,
    other: Option<OtherDisk>,
    /// The last attach was with the disk of a volume that there was before.
    was_of_other_volume: bool,
    disks: u64,
    keeps: bool,
    was_full: bool,
    header_decayed: bool,
}

impl DiskPast {
    /// The last snapshot of it.
    pub(crate) fn snapshot(&self) -> Option<&Snapshot> {
        self.snapshot.as_ref()
    }

    pub(crate) fn keep_snapshot(&mut self, snapshot: Snapshot) {
        self.snapshot = Some(snapshot);
    }

    /// The disk, where it is not the one that the host's last attach left, until the host attaches.
    pub(crate) fn other(&self) -> Option<OtherDisk> {
        self.other
    }

    /// Number of disks that the host had.
    pub(crate) fn disks(&self) -> u64 {
        self.disks
    }

    /// It is replaced, with all that a fenced writer left there.
    pub(crate) fn replace(&mut self, other: OtherDisk) {
        self.other = Some(other);
        self.disks += 1;
        self.keeps = false;
    }

    /// The volume's log is another one: a snapshot of data that went with the one before is of no use.
    pub(crate) fn change_log(&mut self, other: OtherDisk) {
        self.snapshot = None;
        self.replace(other);
    }

    /// Notes that the host attached with what is there.
    pub(crate) fn make_own(&mut self) {
        self.was_of_other_volume = matches!(self.other.take(), Some(OtherDisk::OtherVolume));
    }

    /// Returns true if the disk is that of a volume that there was before, or was until the last attach.
    pub(crate) fn is_of_other_volume(&self) -> bool {
        self.was_of_other_volume || matches!(self.other, Some(OtherDisk::OtherVolume))
    }

    /// A fenced writer released its files here, and its durable map names data that is in no commit, until
    /// that is preserved.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    pub(crate) fn set_keeps(&mut self, keeps: bool) {
        self.keeps = keeps;
    }

    /// It was full at some time.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    pub(crate) fn note_full(&mut self) {
        self.was_full = true;
    }

    /// A slot of its durable map's header decayed.
    pub(crate) fn header_decayed(&self) -> bool {
        self.header_decayed
    }

    pub(crate) fn note_decay(&mut self) {
        self.header_decayed = true;
    }
}
