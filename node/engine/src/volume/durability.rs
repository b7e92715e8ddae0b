//! Answers a FLUSH once the local disk keeps what it covers (`local`), or the object store does too
//! (`object`).
//!
//! Upholds invariant 15 (`docs/invariants.md`): with `object`, what a successful FLUSH covered survives the
//! loss of the node.
//!
//! A FUA write is a write and, from the moment it is stored and marked, a FLUSH: it waits in the same queues,
//! shares their rounds and commits, and fails as they do. No round that began before that moment completes
//! it.
//!
//! A FLUSH covers what had completed before it was issued. That is dirty on the active side, or on the side
//! that is sealed, or committed. So it waits for a seal, by number: the next one if the active side is dirty,
//! else the one in progress, else none. The wait makes the engine seal at once; flushes that come while a
//! seal is in progress share the next. An unreachable object store makes flushes wait, never fail. A FLUSH
//! that a dead process did not answer is issued again and starts over.
//! After the fencing none succeeds, not even one whose round is in progress: what it synced is on a disk that
//! no longer holds the volume.
//!
//! # When it changes
//!
//! `Event::Configure` changes it while flushes wait (`Volume::configure`):
//!
//! - `local` to `object`: the flushes in rounds wait for the seal that covers everything that has completed
//!   by then, which is more than each of them covers. That seal begins as soon as it can: what earlier
//!   flushes left on the node is in its commit. A process that takes over wants it, too.
//! - `object` to `local`: the flushes in rounds wait for these alone. For those whose local part is done no
//!   commit is needed any more; after a failed sync they still wait.
//!
//! # After a failed sync
//!
//! From the first sync of a side that fails until the next attach, local syncs prove nothing. What a failed
//! sync covered may be gone although it still reads back, and a sync that succeeds later says nothing about
//! it.
//! So from then on:
//!
//! 1. no round runs: the durable map stays as the last one that ended well left it, and the groups of the one
//!    that failed that were durable before. All it names was synced before it was written.
//! 2. a FLUSH succeeds once a commit holds what it covers, as with `durability: object`.
//! 3. each commit says which sides are invalid (`Body::Change`): those it captured, and those whose dirty
//!    data, as far as the durable map names it, is committed already. After a loss of the host an attach
//!    forgets what they hold. So a commit needs no round before it: what it holds is never hidden by what the
//!    disk has of it.
//! 4. clean data is evicted once both sides are invalid, and not before: the durable map may call it dirty.
//!    Where the cache is full and nothing is dirty, one write is let through, so that there is a commit.
//! 5. the last round of a detach names nothing dirty, and that of a fenced writer is not for a loss of the
//!    host: they run.
//!
//! Upholds invariants 1 and 4; why so: `docs/adr/0006-failed-sync.md`. The live map remembers it through the
//! death of the process.

use super::flush::FlushWaiter;
use super::receipt::MapSynced;

/// Seals by number, and the flushes that wait for one.
#[derive(Debug, Default)]
pub(super) struct Seals {
    /// The newest that was begun.
    begun: u64,
    /// The newest whose commit is in the log.
    committed: u64,
    /// The newest that a flush asked for.
    wanted: u64,
    /// Flushes whose local part is done.
    waiting: Vec<FlushWaiter>,
}

impl Seals {
    /// The number of the newest seal.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// The number of the newest seal whose commit is in the log.
    pub(super) fn newest_committed(&self) -> u64 {
        self.committed
    }

    /// A seal begins that flushes may wait for.
    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }

    /// A flush waits for the seal with this number.
    pub(super) fn want(&mut self, seal: u64) {
        self.wanted = self.wanted.max(seal);
    }

    /// Returns true if a flush waits for a seal that was not begun.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted > self.begun
    }

    /// The local disk has what a flush covers. Returns true if that completes it, false while it waits for a
    /// commit too.
    pub(super) fn locally_durable(&mut self, waiter: FlushWaiter, _proof: &MapSynced) -> bool {
        self.wait_for_commit(waiter)
    }

    /// The local disk does not count for a flush, since a sync failed. Returns true if the commit that it
    /// needs is in the log, false while it waits.
    pub(super) fn wait_for_commit(&mut self, waiter: FlushWaiter) -> bool {
        let is_committed = waiter.seal <= self.committed;
        if !is_committed {
            self.waiting.push(waiter);
        }
        is_committed
    }

    /// The commit of the newest seal is in the log. Returns the flushes that it answers: every flush that
    /// waits asked for that seal or an earlier one, except those for the next.
    pub(super) fn committed(&mut self) -> Vec<FlushWaiter> {
        self.committed = self.begun;
        let committed = self.committed;
        self.waiting.extract_if(.., |waiter| waiter.seal <= committed).collect()
    }

    /// Returns the flushes that wait: no commit is to answer them.
    pub(super) fn take_waiting(&mut self) -> Vec<FlushWaiter> {
        std::mem::take(&mut self.waiting)
    }

    /// Flushes that wait for a commit.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::RequestId;

    fn waiter(id: u32, seal: u64) -> FlushWaiter {
        FlushWaiter { id: RequestId(id), seal }
    }

    #[test]
    fn a_flush_waits_for_the_commit_of_its_seal() {
        let mut seals = Seals::default();
        assert!(seals.wait_for_commit(waiter(0, 0)));
        seals.want(1);
        assert!(seals.is_wanted());
        seals.begin();
        assert!(!seals.is_wanted());
        assert!(!seals.wait_for_commit(waiter(1, 1)));
        assert!(!seals.wait_for_commit(waiter(2, 2)));
        assert_eq!(seals.committed(), [waiter(1, 1)]);
        assert_eq!((seals.waiting(), seals.begun()), (1, 1));
        assert!(seals.wait_for_commit(waiter(3, 1)));
    }

    #[test]
    fn a_fenced_writer_fails_what_waits_for_a_commit() {
        let mut seals = Seals::default();
        assert!(!seals.wait_for_commit(waiter(1, 1)));
        assert_eq!(seals.take_waiting(), [waiter(1, 1)]);
        assert_eq!(seals.waiting(), 0);
    }
}
