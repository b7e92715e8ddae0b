//! When a FLUSH is answered: once the local disk keeps what it covers (`local`), or the object store does too (`object`).
//!
//! Upholds invariant 15 (`docs/invariants.md`): with `object`, what a successful FLUSH covered survives the loss of the node.
//!
//! A FUA write is a write and, from the moment it is stored and marked, a FLUSH: it waits in the same queues, shares their
//! rounds and commits, and fails as they do. No round that began before that moment completes it.
//!
//! A FLUSH covers what had completed before it was issued. That is dirty on the active side, or on the side that is sealed,
//! or committed. So it waits for a seal, by number: the next one if the active side is dirty, else the one in progress, else
//! none. The wait makes the engine seal at once; flushes that come while a seal is in progress share the next. An object
//! store that is away makes flushes wait, never fail. A FLUSH that a dead process did not answer is issued again and starts over.

use super::Volume;
use super::flush::Guest;
use crate::action::Action;
use crate::event::{Errno, RequestId};
use crate::safeguard::{
    Safeguard::{FlushInNextSeal, FuaInNextRound, FuaIsDurable, FuaWaitsForCommit},
    safeguard,
};

/// What a successful FLUSH means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Durability {
    /// What it covers survives the process and the host's power.
    #[default]
    Local,
    /// What it covers survives the loss of the node: it is committed.
    Object,
}

/// Seals by number, and the flushes that wait for one.
#[derive(Debug, Default)]
pub(super) struct Seals {
    /// The newest that was begun.
    pub(super) begun: u64,
    /// The newest whose commit is in the log.
    committed: u64,
    /// The newest that a flush asked for.
    wanted: u64,
    /// Flushes whose local round has ended.
    waiting: Vec<Guest>,
}

impl Seals {
    /// Whether a flush waits for a seal that was not begun.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted > self.begun
    }
}

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// The data of a FUA write is stored and marked: the write completes as a FLUSH issued now does. A writer that was fenced
    /// meanwhile makes nothing durable.
    pub(super) fn make_durable(&mut self, id: RequestId, out: &mut Vec<Action>) {
        if self.is_fenced() {
            self.complete(id, Err(Errno::EIO), out);
        } else if !safeguard(FuaIsDurable) {
            self.complete(id, Ok(()), out);
        } else if !safeguard(FuaInNextRound) && !self.round.is_idle() {
            self.round.join_running(Guest { id, seal: 0 });
        } else if !safeguard(FuaWaitsForCommit) && !self.is_sync_failed() {
            self.join_round(Guest { id, seal: 0 }, out);
        } else {
            self.plan_flush(id, out);
        }
    }

    pub(super) fn plan_flush(&mut self, id: RequestId, out: &mut Vec<Action>) {
        if self.is_sync_failed() {
            let seal = self.seal_that_covers();
            self.seals.wanted = self.seals.wanted.max(seal);
            self.flushed_locally(Guest { id, seal }, out);
            if !self.is_fenced() {
                self.advance_seal(out);
            }
            return;
        }
        let seal = match self.durability {
            Durability::Local => 0,
            Durability::Object => self.seal_that_covers(),
        };
        self.seals.wanted = self.seals.wanted.max(seal);
        self.join_round(Guest { id, seal }, out);
    }

    /// The seal with which everything that has completed is committed.
    fn seal_that_covers(&self) -> u64 {
        let active = self.map.active();
        // What completes before a seal of both sides is still is in it.
        let covered = self.dirty_pages[active].is_empty() || self.is_active_sealed();
        let joins_running = !safeguard(FlushInNextSeal) && !self.seal.is_open();
        if covered || joins_running { self.seals.begun } else { self.seals.begun + 1 }
    }

    /// The local disk keeps what the flush covers, or is not asked.
    pub(super) fn flushed_locally(&mut self, flush: Guest, out: &mut Vec<Action>) {
        if flush.seal <= self.seals.committed {
            self.complete(flush.id, Ok(()), out);
        } else if self.is_fenced() {
            self.complete(flush.id, Err(Errno::EIO), out);
        } else {
            self.seals.waiting.push(flush);
        }
    }

    /// The commit of the newest seal is in the log.
    pub(super) fn seal_committed(&mut self, out: &mut Vec<Action>) {
        self.seals.committed = self.seals.begun;
        let waiting = std::mem::take(&mut self.seals.waiting);
        for flush in waiting {
            self.flushed_locally(flush, out);
        }
    }

    /// The volume was fenced: nothing more is committed.
    pub(super) fn fail_waiting_flushes(&mut self, out: &mut Vec<Action>) {
        for flush in std::mem::take(&mut self.seals.waiting) {
            self.complete(flush.id, Err(Errno::EIO), out);
        }
    }

    /// Flushes that wait for a commit.
    pub(super) fn waiting_flushes(&self) -> usize {
        self.seals.waiting.len()
    }
}
