//! Answers a FLUSH once its data is durable on the local disk (`local`), or also in the object store
//! (`object`).
//!
//! Upholds invariant 15 (`docs/invariants.md`): with `object`, data covered by a successful FLUSH survives
//! the loss of the node.
//!
//! A FUA write is a write and, once it is stored and marked, a FLUSH: it waits in the same queues, shares
//! their rounds and commits, and fails like them. A round that began earlier does not complete it.
//!
//! A FLUSH covers everything that completed before it was issued. That data is dirty on the active side,
//! or on the sealed side, or committed. The FLUSH therefore waits for a seal, by number: the next seal if the
//! active side is dirty, otherwise the seal in progress, otherwise none. The wait makes the engine seal at
//! once; flushes that arrive during a seal share the next. An unreachable object store makes flushes wait,
//! never fail. A FLUSH that a dead process did not answer is reissued and starts over. After the fencing no
//! FLUSH succeeds, not even one whose round is in progress: the round synced a disk that no longer holds the
//! volume.
//!
//! # Changes of the setting
//!
//! `Event::Configure` changes the durability while flushes wait (`Volume::configure`):
//!
//! - `local` to `object`: the flushes in rounds also wait for the seal that covers everything that has
//!   completed by then, which is more than each of them needs. That seal begins as soon as possible, and its
//!   commit includes the data that earlier flushes left on the node. A process that takes over requests this
//!   seal, too.
//! - `object` to `local`: the flushes in rounds wait only for their rounds. Flushes whose local part is done
//!   no longer need a commit; after a failed sync they still wait for it.
//!
//! # After a failed sync
//!
//! After the first failed sync of a side or of the durable map, until the next attach, local syncs prove
//! nothing. Each flushes the whole disk, and data covered by a failed one may be lost although it still reads
//! back; a later successful sync says nothing about it. From then on:
//!
//! 1. no round runs: the durable map stays as of the last successful round, plus the groups of the failed
//!    round that were already durable. All data it names was synced before the map was written.
//! 2. a FLUSH succeeds once the data it covers is committed, as with `durability: object`.
//! 3. each commit names the invalid sides (`Body::Change`): those that it captured, and those whose dirty
//!    data, as named by the durable map, is already committed. After a loss of the host an attach drops their
//!    contents. A commit thus needs no round before it: stale data on the disk never hides committed data.
//! 4. clean data is evicted only once both sides are invalid: until then the durable map may call it
//!    dirty. If the cache is full and nothing is dirty, one write is admitted, so that a commit follows.
//! 5. two kinds of rounds still run: the last round of a detach, which names nothing dirty, and that of a
//!    fenced writer, which need not survive a loss of the host.
//!
//! Upholds invariants 1 and 4; for the reasons see `docs/adr/0006-failed-sync.md`. The live map keeps this
//! state across a crash of the process.

use super::flush::FlushWaiter;
use super::receipt::MapSynced;

/// Seals by number, and the flushes that wait for them.
#[derive(Debug, Default)]
pub(super) struct Seals {
    /// The newest seal that was begun.
    begun: u64,
    /// The newest seal whose commit is in the log.
    committed: u64,
    /// The newest seal that a flush requested.
    wanted: u64,
    /// Flushes whose local part is done.
    waiting: Vec<FlushWaiter>,
}

impl Seals {
    /// Returns the number of the newest seal.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns the number of the newest seal whose commit is in the log.
    pub(super) fn newest_committed(&self) -> u64 {
        self.committed
    }

    /// Begins a seal that flushes may wait for.
    pub(super) fn begin(&mut self) {
        self.begun += 1;
    }

    /// Requests the seal with this number for a flush.
    pub(super) fn want(&mut self, seal: u64) {
        self.wanted = self.wanted.max(seal);
    }

    /// Returns true if a flush waits for a seal that has not begun.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted > self.begun
    }

    /// Records that the data of a flush is durable on the local disk. Returns true if that completes the
    /// flush, false if it also waits for a commit.
    pub(super) fn locally_durable(&mut self, waiter: FlushWaiter, _proof: &MapSynced) -> bool {
        self.wait_for_commit(waiter)
    }

    /// After a failed sync, makes a flush wait only for a commit. Returns true if that commit is already in
    /// the log, false if the flush must wait.
    pub(super) fn wait_for_commit(&mut self, waiter: FlushWaiter) -> bool {
        let is_committed = waiter.seal <= self.committed;
        if !is_committed {
            self.waiting.push(waiter);
        }
        is_committed
    }

    /// Records that the commit of the newest seal is in the log. Returns the flushes that it answers: all
    /// waiting flushes except those for the next seal.
    pub(super) fn committed(&mut self) -> Vec<FlushWaiter> {
        self.committed = self.begun;
        let committed = self.committed;
        self.waiting.extract_if(.., |waiter| waiter.seal <= committed).collect()
    }

    /// Returns the waiting flushes, which no commit will answer.
    pub(super) fn take_waiting(&mut self) -> Vec<FlushWaiter> {
        std::mem::take(&mut self.waiting)
    }

    /// Returns the number of flushes that wait for a commit.
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
