//! Hosts with a replaced disk: emptied, rolled back to a snapshot, or copied from another host. And a bucket
//! that is rolled back to a backup, or emptied before the volume is created again.
//!
//! The model does not inspect the engine's data on such a disk. It counts the commits in the log since the
//! disk's state, and knows its owner.

use holdfast_format::displaced::Displaced;
use holdfast_format::manifest::Writer;
use holdfast_types::Nonce;

use super::World;
use crate::attempt::DisplacedWriter;
use crate::disk::{Disk, Fate};
use crate::disk_past::{Age, DiskImage, DiskReplacement};
use crate::expect::VolumeModel;
use crate::invariant::Invariant;
use crate::store::Store;

impl World {
    /// Keeps a snapshot of the disk of `host`, as a power cut would leave it now, if that names dirty
    /// data: others are harmless.
    pub fn take_snapshot(&mut self, host: usize) {
        let Some(snapshot) = self.snapshot_disk(host) else { return };
        if snapshot.disk.holds_dirty() {
            self.hosts[host].disk_past.keep_snapshot(snapshot);
        }
    }

    /// Returns the disk of `host` as a power cut would leave it now; `None` if its last attach used
    /// another one.
    fn snapshot_disk(&mut self, host: usize) -> Option<DiskImage> {
        let here = &self.hosts[host];
        let age = Age {
            host,
            commits: self.writers.commits(),
            sealing: here.content.sealed().is_some()
                || self.has_record_in_flight(host)
                || !self.store.late.is_empty(),
        };
        let (disk, expect) = (here.disk.lock().clone(), here.content.model.clone());
        let snapshot = DiskImage::new(disk, expect, age, &mut Fate::Some(&mut self.rng));
        here.disk_past.replacement().is_none().then_some(snapshot)
    }

    /// Cuts the power of the host, and empties its disk.
    pub fn empty_disk(&mut self, host: usize) {
        self.lose_host(host, None);
        self.trace.host_event(host, 80, "the disk is emptied");
        let here = &mut self.hosts[host];
        *here.disk.lock() = Disk::default();
        here.disk_past.replace(DiskReplacement::Empty);
    }

    /// Cuts the power of the host, and sets its disk back to its last snapshot, if any.
    pub fn set_disk_back(&mut self, host: usize) {
        if let Some(snapshot) = self.hosts[host].disk_past.snapshot().cloned() {
            self.set_disk(host, snapshot, "the disk is rolled back to an earlier state");
        }
    }

    /// Cuts the power of host `to`, and gives it a copy of the disk of host `from`.
    pub fn copy_disk(&mut self, from: usize, to: usize) {
        if let Some(snapshot) = self.snapshot_disk(from) {
            self.set_disk(to, snapshot, "the disk is a copy of another host's");
        }
    }

    fn set_disk(&mut self, host: usize, snapshot: DiskImage, words: &'static str) {
        self.lose_host(host, None);
        self.trace.host_event(host, 81, words);
        let here = &mut self.hosts[host];
        *here.disk.lock() = snapshot.disk;
        here.content.model = snapshot.model;
        here.disk_past.replace(DiskReplacement::Copy(snapshot.age));
    }

    /// Cuts the power of all hosts, empties the bucket, and creates the volume again.
    pub fn create_volume_again(&mut self) {
        for host in 0..self.hosts.len() {
            self.lose_host(host, None);
        }
        self.trace.host_event(0, 82, "the bucket is emptied and the volume created again");
        let identity = Nonce(self.rng.bytes());
        let sectors = self.store.manifest().sectors();
        let empty = Store::new(self.store.volume().clone(), sectors, identity);
        self.backup = None;
        self.change_bucket(empty, DiskReplacement::OtherVolume);
    }

    /// Keeps a backup of the bucket in its current state.
    pub fn take_backup(&mut self) {
        self.backup = Some(Box::new(self.store.clone()));
    }

    /// Returns true if a backup of the bucket exists.
    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// Cuts the power of all hosts, and sets the bucket back to its last backup, if any. The disks are
    /// unchanged, and may have records that the log has lost.
    pub fn set_bucket_back(&mut self) {
        let Some(backup) = self.backup.clone() else { return };
        for host in 0..self.hosts.len() {
            self.lose_host(host, None);
        }
        self.trace.host_event(0, 83, "the bucket is rolled back to an earlier state");
        self.writers.note_rolled_back();
        self.change_bucket(*backup, DiskReplacement::RolledBackLog);
    }

    fn change_bucket(&mut self, store: Store, disks: DiskReplacement) {
        self.store.replace_bucket(store);
        self.stop_control();
        self.writers.set_last(None);
        for here in &mut self.hosts {
            here.disk_past.change_log(disks);
            here.content.change_log(&self.store.last_cut());
        }
    }

    /// Returns true if commits have certainly made the snapshot of `host` older than the log; `None`
    /// without a snapshot.
    pub fn has_old_snapshot(&self, host: usize) -> Option<bool> {
        self.hosts[host].disk_past.snapshot().map(|snapshot| self.writers.is_disk_outdated(snapshot.age))
    }

    /// Checks invariant 19, when the record of an attach reaches the log.
    pub(super) fn check_replaced(&mut self, host: usize, nonce: Nonce, replaced: Option<&Writer>) {
        let Some(writer) = replaced else {
            self.hosts[host].attempt.note_record(DisplacedWriter::None);
            return;
        };
        let owner = self.writers.host_of(writer.nonce);
        let claim = self.writers.attach_on_host(host, nonce);
        let is_named = claim.replaces == Some(writer.epoch);
        // Since then its disk may have been emptied, or an earlier record of its own may have arrived late.
        let of_writer = self.writers.attach_with_nonce(writer.nonce);
        let same_disk = of_writer.is_some_and(|before| (before.host, before.disk) == (host, claim.disk));
        let other_disk =
            self.hosts[host].disk_past.replacement().and(claim.other_disk).filter(|_| !same_disk);
        let has_data = match other_disk {
            None => Some(true),
            Some(DiskReplacement::Empty | DiskReplacement::OtherVolume) => Some(false),
            Some(DiskReplacement::Copy(age)) if self.writers.is_disk_outdated(age) => Some(false),
            Some(DiskReplacement::Copy(_) | DiskReplacement::RolledBackLog) => None,
        };
        let displaced = match has_data {
            Some(true) if owner == Some(host) => DisplacedWriter::None,
            None if owner == Some(host) => DisplacedWriter::Unclear,
            Some(_) | None => DisplacedWriter::Epoch(writer.epoch),
        };
        Invariant::TakeoverNamesItsVictim
            .check(is_named || !matches!(displaced, DisplacedWriter::Epoch(_)), || {
                format!("host {host} replaces the writer of epoch {} without permission", writer.epoch.0)
            });
        // An attach that continues one of this host repeats that one's report.
        if displaced != DisplacedWriter::None {
            self.hosts[host].attempt.note_record(displaced);
        }
    }

    /// Checks that the attach reports the writer that it replaced.
    pub(super) fn check_displaced(&self, host: usize, reported: Option<&Displaced>) {
        let reported =
            reported.map_or(DisplacedWriter::None, |displaced| DisplacedWriter::Epoch(displaced.epoch));
        let known = self.hosts[host].attempt.displaced();
        Invariant::TakeoverNamesItsVictim
            .check(known == DisplacedWriter::Unclear || known == reported, || {
                format!("host {host} says that it replaces {reported:?}, and replaces {known:?}")
            });
    }

    /// Checks the engine's use of a replaced disk after an attach.
    pub(super) fn attached_with_other_disk(&mut self, host: usize, nonce: Nonce) {
        let here = &mut self.hosts[host];
        let Some(other) = here.disk_past.replacement() else { return };
        let last_cut = self.store.last_cut();
        let found = here.disk.lock().read_map().ok().flatten();
        let Some(found) = found.filter(|map| map.header.nonces.contains(&nonce)) else {
            // The record arrived late, and the disk was changed again since: no data on it is this
            // writer's. The expected content stays: it counts again if the log loses the record.
            return;
        };
        here.disk_past.note_attach();
        if !found.pages.holds_dirty() {
            here.content.model = VolumeModel::from_cut(&last_cut);
            return;
        }
        match other {
            // Its data was written by an attach that began later.
            DiskReplacement::Empty => {}
            DiskReplacement::OtherVolume => {
                Invariant::OneVolumeOneState.broken("data of another volume is mistaken for this one's")
            }
            DiskReplacement::Copy(age) => {
                Invariant::OlderStateIsNeverUploaded.check(!self.writers.is_disk_outdated(age), || {
                    format!("{} commits are newer than the disk", self.writers.commits() - age.commits)
                });
                Invariant::FencedIsKept.check(self.writers.is_last(age.host), || {
                    "what a writer that was replaced since left is mistaken for the volume's".into()
                });
            }
            // Only if the log has all data that is not dirty on the disk.
            DiskReplacement::RolledBackLog => {
                let disk = here.disk.lock();
                let (header, dirty) = disk.read_dirty().ok().flatten().expect("it was read just now");
                let lost = here.content.describe_lost_sector(&disk, &header, dirty, &last_cut);
                Invariant::OlderStateIsNeverUploaded.check(lost.is_none(), || lost.unwrap_or_default());
            }
        }
    }
}
