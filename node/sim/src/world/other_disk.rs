//! Hosts whose disk is not the one they had: emptied, set back to a snapshot, copied from another host. And a
//! volume that is created a second time in an emptied bucket.
//!
//! The model does not look at what the engine keeps on such a disk. It counts the commits that came into the
//! log since the disk was as it is, and knows whose it was.

use holdfast_engine::durable_map::holds_dirty;
use holdfast_engine::manifest::Writer;
use holdfast_engine::record::Displaced;
use holdfast_types::{Epoch, Nonce};

use super::World;
use super::answer::read_map;
use crate::disk::Fate;
use crate::expect::Expect;
use crate::host::{Disk, Host};
use crate::invariant::Invariant;
use crate::store::Store;

/// A disk as a power cut would have left it at some time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    disk: Disk,
    expect: Expect,
    age: Age,
}

/// Of what time a disk is.
#[derive(Clone, Copy)]
pub(crate) struct Age {
    /// The host whose disk it was.
    host: usize,
    /// Commits that were in the log.
    commits: u64,
    /// One more was in flight.
    sealing: bool,
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
}

/// An attach that was begun.
pub(crate) struct Begun {
    pub(crate) nonce: Nonce,
    pub(crate) host: usize,
    /// The epoch that it may replace.
    pub(crate) replaces: Option<Epoch>,
    /// The replacement that its host had then.
    pub(crate) other_disk: Option<OtherDisk>,
    /// Number of disks that its host had had.
    pub(crate) disk: u64,
}

/// The writer that an attach replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Displaces {
    /// None.
    None,
    /// The one of this epoch.
    Epoch(Epoch),
    /// The model cannot know if what the disk has is all that the writer had.
    Unclear,
}

impl Host {
    fn changed_disk(&mut self, other: OtherDisk) {
        self.other_disk = Some(other);
        self.disks += 1;
    }
}

impl World {
    /// Keeps the disk of `host` as a power cut would leave it now, if that names anything dirty: no other can
    /// do harm.
    pub fn take_snapshot(&mut self, host: usize) {
        let Some(mut snapshot) = self.disk_of(host) else { return };
        if read_map(&mut snapshot.disk).is_ok_and(|map| map.is_some_and(|map| holds_dirty(&map.pages))) {
            self.hosts[host].snapshot = Some(snapshot);
        }
    }

    /// The disk of `host` as a power cut would leave it now; `None` where it is not the one that its last
    /// attach left.
    fn disk_of(&mut self, host: usize) -> Option<Snapshot> {
        let here = &self.hosts[host];
        let age = Age {
            host,
            commits: self.commits,
            sealing: here.sealed.is_some() || self.is_creating(host) || !self.store.late.is_empty(),
        };
        let mut disk = here.disk.lock().clone();
        let mut expect = here.expect.clone();
        disk.lose_power(&mut Fate::Some(&mut self.rng));
        expect.lose_host();
        self.hosts[host].other_disk.is_none().then_some(Snapshot { disk, expect, age })
    }

    /// The host loses power, and its disk all that it held.
    pub fn empty_disk(&mut self, host: usize) {
        self.lose_host(host, None);
        self.trace.host_event(host, 80, "the disk is emptied");
        let here = &mut self.hosts[host];
        *here.disk.lock() = Disk::default();
        here.keeps = false;
        here.changed_disk(OtherDisk::Empty);
    }

    /// The host loses power, and its disk is set back to its last snapshot, if there is one.
    pub fn set_disk_back(&mut self, host: usize) {
        if let Some(snapshot) = self.hosts[host].snapshot.clone() {
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
        here.expect = snapshot.expect;
        here.keeps = false;
        here.changed_disk(OtherDisk::Copy(snapshot.age));
    }

    /// All hosts lose power, the bucket is emptied, and the volume is created again.
    pub fn create_volume_again(&mut self) {
        for host in 0..self.hosts.len() {
            self.lose_host(host, None);
        }
        self.trace.host_event(0, 82, "the bucket is emptied and the volume created again");
        let identity = Nonce(self.rng.bytes());
        let mut store = Store::new(self.store.volume().clone(), self.store.manifest().sectors(), identity);
        (store.truncated, store.strays) = (self.store.truncated, self.store.strays);
        store.requests = self.store.requests;
        self.store = store;
        self.last_writer = None;
        for here in &mut self.hosts {
            here.snapshot = None;
            here.changed_disk(OtherDisk::OtherVolume);
            here.committed = Default::default();
            here.base = Default::default();
            here.keeps = false;
        }
    }

    /// True if commits have made the snapshot of `host` surely older than the log; `None` where there is
    /// none.
    pub fn has_old_snapshot(&self, host: usize) -> Option<bool> {
        self.hosts[host].snapshot.as_ref().map(|snapshot| self.is_older(snapshot.age))
    }

    /// True if the disk surely lacks what its writer committed.
    fn is_older(&self, age: Age) -> bool {
        self.commits > age.commits + u64::from(age.sealing)
    }

    /// Invariant 19, as a record of an attach comes into the log.
    pub(super) fn check_replaced(&mut self, host: usize, nonce: Nonce, replaced: Option<&Writer>) {
        let Some(writer) = replaced else {
            self.hosts[host].displaces = Displaces::None;
            return;
        };
        let owner = self.writers.iter().rfind(|(theirs, _)| *theirs == writer.nonce).map(|(_, host)| *host);
        // A header that remembers no more nonces makes an attach use an older one's.
        let of_nonce = self.claims.iter().rfind(|claim| claim.nonce == nonce);
        let claim = of_nonce.or_else(|| self.claims.iter().rfind(|claim| claim.host == host));
        let claim = claim.expect("only these hosts attach");
        let is_named = claim.replaces == Some(writer.epoch);
        // Since then its disk may have been emptied, or an earlier record of its own have arrived late.
        let of_writer = self.claims.iter().rfind(|claim| claim.nonce == writer.nonce);
        let same_disk = of_writer.is_some_and(|before| (before.host, before.disk) == (host, claim.disk));
        let other_disk = self.hosts[host].other_disk.and(claim.other_disk).filter(|_| !same_disk);
        let has_data = match other_disk {
            None => Some(true),
            Some(OtherDisk::Empty | OtherDisk::OtherVolume) => Some(false),
            Some(OtherDisk::Copy(age)) if self.is_older(age) => Some(false),
            Some(OtherDisk::Copy(_)) => None,
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
            self.hosts[host].displaces = displaces;
        }
    }

    /// The attach says whom it replaced.
    pub(super) fn check_displaced(&self, host: usize, said: Option<&Displaced>) {
        let said = said.map_or(Displaces::None, |displaced| Displaces::Epoch(displaced.epoch));
        let known = self.hosts[host].displaces;
        Invariant::TakeoverNamesItsVictim.check(known == Displaces::Unclear || known == said, || {
            format!("host {host} says that it replaces {said:?}, and replaces {known:?}")
        });
    }

    /// A host attached that has another disk: what the engine made of it.
    pub(super) fn attached_with_other_disk(&mut self, host: usize, nonce: Nonce) {
        let here = &mut self.hosts[host];
        let Some(other) = here.other_disk else { return };
        let last_cut = self.store.last_cut();
        let kept = read_map(&mut here.disk.lock()).ok().flatten();
        let Some(kept) = kept.filter(|map| map.header.nonces.contains(&nonce)) else {
            // The record arrived late, and the disk was changed again since: nothing on it is this writer's.
            here.expect = Expect::after(&last_cut);
            return;
        };
        here.other_disk = None;
        if !holds_dirty(&kept.pages) {
            here.expect = Expect::after(&last_cut);
            return;
        }
        match other {
            // What it holds was written by an attach that was begun since.
            OtherDisk::Empty => {}
            OtherDisk::OtherVolume => {
                Invariant::OneVolumeOneState.broken("data of another volume is taken for this one's")
            }
            OtherDisk::Copy(age) => {
                Invariant::OlderStateIsNeverUploaded.check(!self.is_older(age), || {
                    format!("{} commits are newer than the disk", self.commits - age.commits)
                });
                Invariant::FencedIsKept.check(self.last_writer == Some(age.host), || {
                    "what a writer that was replaced since left is taken for the volume's".into()
                });
            }
        }
    }
}
