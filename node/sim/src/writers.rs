//! The writers of a volume, as the model knows them: who attached, with what permission, and how many commits
//! there were.

use holdfast_types::{Epoch, Nonce};

use crate::disk_past::{Age, OtherDisk};

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

/// All writers so far.
#[derive(Default)]
pub(crate) struct Writers {
    begun: Vec<Begun>,
    /// The nonces of attaches that won, and their hosts.
    won: Vec<(Nonce, usize)>,
    last: Option<usize>,
    /// Commits that came into the log.
    commits: u64,
    log_was_set_back: bool,
}

impl Writers {
    /// An attach is begun.
    pub(crate) fn begin(&mut self, attach: Begun) {
        self.begun.push(attach);
    }

    /// The record of an attach came into the log.
    pub(crate) fn note_attach(&mut self, nonce: Nonce, host: usize) {
        self.won.push((nonce, host));
    }

    /// Number of attaches that won.
    pub(crate) fn count(&self) -> usize {
        self.won.len()
    }

    /// The host of the attach that won with this nonce.
    pub(crate) fn host_of(&self, nonce: Nonce) -> Option<usize> {
        self.won.iter().rfind(|(theirs, _)| *theirs == nonce).map(|(_, host)| *host)
    }

    /// The attach that was begun with this nonce.
    pub(crate) fn begun_with(&self, nonce: Nonce) -> Option<&Begun> {
        self.begun.iter().rfind(|begun| begun.nonce == nonce)
    }

    /// The attach of `host` whose record bears `nonce`. A header that remembers no more nonces makes an
    /// attach use an older one's.
    pub(crate) fn begun_on(&self, host: usize, nonce: Nonce) -> &Begun {
        let of_host = || self.begun.iter().rfind(|begun| begun.host == host);
        self.begun_with(nonce).or_else(of_host).expect("only these hosts attach")
    }

    /// True if `host` is the last that attached.
    pub(crate) fn is_last(&self, host: usize) -> bool {
        self.last == Some(host)
    }

    pub(crate) fn set_last(&mut self, host: Option<usize>) {
        self.last = host;
    }

    /// The log has lost its newest records.
    pub(crate) fn set_back(&mut self) {
        self.log_was_set_back = true;
    }

    /// True if the log ever lost records.
    pub(crate) fn log_was_set_back(&self) -> bool {
        self.log_was_set_back
    }

    /// A commit came into the log.
    pub(crate) fn commit(&mut self) {
        self.commits += 1;
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits
    }

    /// True if a disk of that age surely lacks what its writer committed.
    pub(crate) fn have_passed(&self, age: Age) -> bool {
        self.commits > age.commits + u64::from(age.sealing)
    }
}
