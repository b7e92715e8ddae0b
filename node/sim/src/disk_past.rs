//! The past of a host's disk: its known history, and whether the host still has its own disk.

use crate::disk::{Disk, Fate};
use crate::expect::VolumeModel;

/// A disk in a state that a power cut could have left at some time.
#[derive(Clone)]
pub(crate) struct DiskImage {
    pub(crate) disk: Disk,
    pub(crate) model: VolumeModel,
    pub(crate) age: Age,
}

impl DiskImage {
    /// Creates a snapshot of a disk with that content, at that time.
    pub(crate) fn new(mut disk: Disk, mut model: VolumeModel, age: Age, fate: &mut Fate<'_>) -> Self {
        disk.lose_power(fate);
        model.lose_host();
        Self { disk, model, age }
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
pub(crate) enum DiskReplacement {
    /// An empty disk.
    Empty,
    /// An older state of the host's own disk, or a state of another host's disk.
    Copy(Age),
    /// The disk of an earlier volume.
    OtherVolume,
    /// The host's own disk, after the log was rolled back.
    RolledBackLog,
}

/// The past of one disk.
#[derive(Default)]
pub(crate) struct DiskPast {
    snapshot: Option<DiskImage>,
    replacement: Option<DiskReplacement>,
    /// True if the last attach was with the disk of an earlier volume.
    was_of_other_volume: bool,
    disks: u64,
    has_unpreserved_data: bool,
    was_full: bool,
    header_decayed: bool,
}

impl DiskPast {
    /// Returns the last snapshot of the disk.
    pub(crate) fn snapshot(&self) -> Option<&DiskImage> {
        self.snapshot.as_ref()
    }

    pub(crate) fn keep_snapshot(&mut self, snapshot: DiskImage) {
        self.snapshot = Some(snapshot);
    }

    /// Returns the replacement of the disk of the host's last attach, until the host attaches.
    pub(crate) fn replacement(&self) -> Option<DiskReplacement> {
        self.replacement
    }

    /// Returns the number of disks that the host had.
    pub(crate) fn disks(&self) -> u64 {
        self.disks
    }

    /// Replaces the disk, including the preserved data of a fenced writer.
    pub(crate) fn replace(&mut self, replacement: DiskReplacement) {
        self.replacement = Some(replacement);
        self.disks += 1;
        self.has_unpreserved_data = false;
    }

    /// Replaces the volume's log: snapshots of data from the previous one are useless.
    pub(crate) fn change_log(&mut self, replacement: DiskReplacement) {
        self.snapshot = None;
        self.replace(replacement);
    }

    /// Notes that the host attached with its current disk.
    pub(crate) fn note_attach(&mut self) {
        self.was_of_other_volume = matches!(self.replacement.take(), Some(DiskReplacement::OtherVolume));
    }

    /// Returns true if the disk is that of an earlier volume, or was until the last attach.
    pub(crate) fn is_of_other_volume(&self) -> bool {
        self.was_of_other_volume || matches!(self.replacement, Some(DiskReplacement::OtherVolume))
    }

    /// Returns true if a fenced writer released its files here, and its durable map names uncommitted
    /// data, until that is preserved.
    pub(crate) fn has_unpreserved_data(&self) -> bool {
        self.has_unpreserved_data
    }

    pub(crate) fn set_unpreserved_data(&mut self, has_data: bool) {
        self.has_unpreserved_data = has_data;
    }

    /// Returns true if the disk was full at some time.
    pub(crate) fn was_full(&self) -> bool {
        self.was_full
    }

    pub(crate) fn note_full(&mut self) {
        self.was_full = true;
    }

    /// Returns true if a slot of the header of the disk's durable map decayed.
    pub(crate) fn header_decayed(&self) -> bool {
        self.header_decayed
    }

    pub(crate) fn note_decay(&mut self) {
        self.header_decayed = true;
    }
}
