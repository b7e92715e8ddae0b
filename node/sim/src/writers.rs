//! The writers of a volume, as known to the model: their attaches and permissions, and the number of
//! commits.

use holdfast_types::{Epoch, Nonce};

use crate::disk_past::{Age, DiskReplacement};

/// An attach that was begun.
pub(crate) struct BegunAttach {
    pub(crate) nonce: Nonce,
    pub(crate) host: usize,
    /// The epoch that it may replace.
    pub(crate) replaces: Option<Epoch>,
    /// The replacement of its host's disk at that time.
    pub(crate) other_disk: Option<DiskReplacement>,
    /// Number of disks that its host had had.
    pub(crate) disk: u64,
}

/// All writers so far.
#[derive(Default)]
pub(crate) struct WriterHistory {
    begun: Vec<BegunAttach>,
    /// The nonces of successful attaches, and their hosts.
    successful: Vec<(Nonce, usize)>,
    last: Option<usize>,
    /// Number of commits in the log.
    commits: u64,
    log_was_rolled_back: bool,
}

impl WriterHistory {
    /// Records that an attach began.
    pub(crate) fn begin(&mut self, attach: BegunAttach) {
        self.begun.push(attach);
    }

    /// Records that an attach record reached the log.
    pub(crate) fn note_attach(&mut self, nonce: Nonce, host: usize) {
        self.successful.push((nonce, host));
    }

    /// Returns the number of successful attaches.
    pub(crate) fn count(&self) -> usize {
        self.successful.len()
    }

    /// Returns the host of the successful attach with this nonce.
    pub(crate) fn host_of(&self, nonce: Nonce) -> Option<usize> {
        self.successful.iter().rfind(|(theirs, _)| *theirs == nonce).map(|(_, host)| *host)
    }

    /// Returns the begun attach with this nonce.
    pub(crate) fn attach_with_nonce(&self, nonce: Nonce) -> Option<&BegunAttach> {
        self.begun.iter().rfind(|begun| begun.nonce == nonce)
    }

    /// Returns the attach of `host` whose record has `nonce`. If its header is full, an attach uses the
    /// nonce of an older one.
    pub(crate) fn attach_on_host(&self, host: usize, nonce: Nonce) -> &BegunAttach {
        let of_host = || self.begun.iter().rfind(|begun| begun.host == host);
        self.attach_with_nonce(nonce).or_else(of_host).expect("only these hosts attach")
    }

    /// Returns true if `host` is the last that attached.
    pub(crate) fn is_last(&self, host: usize) -> bool {
        self.last == Some(host)
    }

    pub(crate) fn set_last(&mut self, host: Option<usize>) {
        self.last = host;
    }

    /// Notes that the log has lost its newest records.
    pub(crate) fn note_rolled_back(&mut self) {
        self.log_was_rolled_back = true;
    }

    /// Returns true if the log ever lost records.
    pub(crate) fn log_was_rolled_back(&self) -> bool {
        self.log_was_rolled_back
    }

    /// Counts a commit in the log.
    pub(crate) fn count_commit(&mut self) {
        self.commits += 1;
    }

    pub(crate) fn commits(&self) -> u64 {
        self.commits
    }

    /// Returns true if a disk of that age certainly lacks commits of its writer.
    pub(crate) fn is_disk_outdated(&self, age: Age) -> bool {
        self.commits > age.commits + u64::from(age.sealing)
    }
}
