//! Hosts whose disk is not the one they had: emptied, set back to a snapshot, copied from another host. And a
//! bucket that is set back to a backup, or emptied, and then the volume is created a second time.
//!
//! The model does not look at what the engine keeps on such a disk. It counts the commits that came into the
//! log since the disk was as it is, and knows whose it was.

use holdfast_format::displaced::Displaced;
use holdfast_format::manifest::Writer;
use holdfast_types::Nonce;

use super::World;
use crate::attempt::Displaces;
use crate::disk::{Disk, Fate};
use crate::disk_past::{Age, OtherDisk, Snapshot};
use crate::expect::Expect;
use crate::invariant::Invariant;
use crate::store::Store;

impl World {
    /// Keeps the disk of `host` as a power cut would leave it now, if that names anything dirty: no other can
    /// do harm.
    pub fn take_snapshot(&mut self, host: usize) {
        let Some(snapshot) = self.disk_of(host) else { return };
        if snapshot.disk.holds_dirty() {
            self.hosts[host].disk_past.keep_snapshot(snapshot);
        }
    }

    /// The disk of `host` as a power cut would leave it now; `None` where it is not the one that its last
    /// attach left.
    fn disk_of(&mut self, host: usize) -> Option<Snapshot> {
        let here = &self.hosts[host];
        let age = Age {
            host,
            commits: self.writers.commits(),
            sealing: here.content.sealed().is_some() || self.is_creating(host) || !self.store.late.is_empty(),
        };
        let (disk, expect) = (here.disk.lock().clone(), here.content.expect.clone());
        let snapshot = Snapshot::new(disk, expect, age, &mut Fate::Some(&mut self.rng));
        here.disk_past.other().is_none().then_some(snapshot)
    }

    /// The host loses power, and its disk all that it held.
    pub fn empty_disk(&mut self, host: usize) {
        self.lose_host(host, None);
        self.trace.host_event(host, 80, "the disk is emptied");
        let here = &mut self.hosts[host];
        *here.disk.lock() = Disk::default();
        here.disk_past.replace(OtherDisk::Empty);
    }

    /// The host loses power, and its disk is set back to its last snapshot, if there is one.
    pub fn set_disk_back(&mut self, host: usize) {
        if let Some(snapshot) = self.hosts[host].disk_past.snapshot().cloned() {
            self.give_disk(host, snapshot, "the disk is set back to an earlier state");
        }
    }

    /// Host `to` loses power, and gets a copy of what the disk of host `from` holds.
    pub fn copy_disk(&mut self, from: usize, to: usize) {
        if let Some(snapshot) = self.disk_of(from) {
            self.give_disk(to, snapshot, "the disk is a copy of another host's");
        }
    }

    fn give_disk(&mut self, host: usize, snapshot: Snapshot, words: &'static str) {
        self.lose_host(host, None);
        self.trace.host_event(host, 81, words);
        let here = &mut self.hosts[host];
        *here.disk.lock() = snapshot.disk;
        here.content.expect = snapshot.expect;
        here.disk_past.replace(OtherDisk::Copy(snapshot.age));
    }

    /// All hosts lose power, the bucket is emptied, and the volume is created again.
    pub fn create_volume_again(&mut self) {
        for host in 0..self.hosts.len() {
            self.lose_host(host, None);
        }
        self.trace.host_event(0, 82, "the bucket is emptied and the volume created again");
        let identity = Nonce(self.rng.bytes());
        let sectors = self.store.manifest().sectors();
        let empty = Store::new(self.store.volume().clone(), sectors, identity);
        self.backup = None;
        self.change_bucket(empty, OtherDisk::OtherVolume);
    }

    /// Keeps a backup of the bucket as it is.
    pub fn take_backup(&mut self) {
        self.backup = Some(Box::new(self.store.clone()));
    }

    /// True if there is a backup of the bucket.
    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// All hosts lose power, and the bucket is set back to its last backup, if there is one. The disks are as
    /// they were, and may know records that the log has lost.
    pub fn set_bucket_back(&mut self) {
        let Some(backup) = self.backup.clone() else { return };
        for host in 0..self.hosts.len() {
            self.lose_host(host, None);
        }
        self.trace.host_event(0, 83, "the bucket is set back to an earlier state");
        self.writers.set_back();
        self.change_bucket(*backup, OtherDisk::SetBackLog);
    }

    fn change_bucket(&mut self, store: Store, disks: OtherDisk) {
        self.store.become_like(store);
        self.stop_control();
        self.writers.set_last(None);
        for here in &mut self.hosts {
            here.disk_past.change_log(disks);
            here.content.change_log(&self.store.last_cut());
        }
    }

    /// True if commits have made the snapshot of `host` surely older than the log; `None` where there is
    /// none.
    pub fn has_old_snapshot(&self, host: usize) -> Option<bool> {
        self.hosts[host].disk_past.snapshot().map(|snapshot| self.writers.have_passed(snapshot.age))
    }

    /// Invariant 19, as a record of an attach comes into the log.
    pub(super) fn check_replaced(&mut self, host: usize, nonce: Nonce, replaced: Option<&Writer>) {
        let Some(writer) = replaced else {
            self.hosts[host].attempt.replaced(Displaces::None);
            return;
        };
        let owner = self.writers.host_of(writer.nonce);
        let claim = self.writers.begun_on(host, nonce);
        let is_named = claim.replaces == Some(writer.epoch);
        // Since then its disk may have been emptied, or an earlier record of its own have arrived late.
        let of_writer = self.writers.begun_with(writer.nonce);
        let same_disk = of_writer.is_some_and(|before| (before.host, before.disk) == (host, claim.disk));
        let other_disk = self.hosts[host].disk_past.other().and(claim.other_disk).filter(|_| !same_disk);
        let has_data = match other_disk {
            None => Some(true),
            Some(OtherDisk::Empty | OtherDisk::OtherVolume) => Some(false),
            Some(OtherDisk::Copy(age)) if self.writers.have_passed(age) => Some(false),
            Some(OtherDisk::Copy(_) | OtherDisk::SetBackLog) => None,
        };
        let displaces = match has_data {
            Some(true) if owner == Some(host) => Displaces::None,
            None if owner == Some(host) => Displaces::Unclear,
            Some(_) | None => Displaces::Epoch(writer.epoch),
        };
        Invariant::TakeoverNamesItsVictim
            .check(is_named || !matches!(displaces, Displaces::Epoch(_)), || {
                format!("host {host} replaces the writer of epoch {} without permission", writer.epoch.0)
            });
        // An attach that continues one of this host repeats what that one said.
        if displaces != Displaces::None {
            self.hosts[host].attempt.replaced(displaces);
        }
    }

    /// The attach says whom it replaced.
    pub(super) fn check_displaced(&self, host: usize, said: Option<&Displaced>) {
        let said = said.map_or(Displaces::None, |displaced| Displaces::Epoch(displaced.epoch));
        let known = self.hosts[host].attempt.displaces();
        Invariant::TakeoverNamesItsVictim.check(known == Displaces::Unclear || known == said, || {
            format!("host {host} says that it replaces {said:?}, and replaces {known:?}")
        });
    }

    /// A host attached that has another disk: what the engine made of it.
    pub(super) fn attached_with_other_disk(&mut self, host: usize, nonce: Nonce) {
        let here = &mut self.hosts[host];
        let Some(other) = here.disk_past.other() else { return };
        let last_cut = self.store.last_cut();
        let kept = here.disk.lock().read_map().ok().flatten();
        let Some(kept) = kept.filter(|map| map.header.nonces.contains(&nonce)) else {
            // The record arrived late, and the disk was changed again since: nothing on it is this writer's.
            // What is expected of it stays: it counts again if the log loses the record.
            return;
        };
        here.disk_past.make_own();
        if !kept.pages.holds_dirty() {
            here.content.expect = Expect::after(&last_cut);
            return;
        }
        match other {
            // What it holds was written by an attach that was begun since.
            OtherDisk::Empty => {}
            OtherDisk::OtherVolume => {
                Invariant::OneVolumeOneState.broken("data of another volume is mistaken for this one's")
            }
            OtherDisk::Copy(age) => {
                Invariant::OlderStateIsNeverUploaded.check(!self.writers.have_passed(age), || {
                    format!("{} commits are newer than the disk", self.writers.commits() - age.commits)
                });
                Invariant::FencedIsKept.check(self.writers.is_last(age.host), || {
                    "what a writer that was replaced since left is mistaken for the volume's".into()
                });
            }
            // Only where the log has all that the disk does not call dirty.
            OtherDisk::SetBackLog => {
                let disk = here.disk.lock();
                let (header, dirty) = disk.read_dirty().ok().flatten().expect("it was read just now");
                let lacks = here.content.lacks(&disk, &header, dirty, &last_cut);
                Invariant::OlderStateIsNeverUploaded.check(lacks.is_none(), || lacks.unwrap_or_default());
            }
        }
    }
}
