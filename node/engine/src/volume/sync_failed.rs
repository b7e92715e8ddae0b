//! A failed sync: from the first sync of a side that fails until the next attach, local syncs prove nothing.
//!
//! What a failed sync covered may be gone although it still reads back, and a sync that succeeds later says nothing about it.
//! So from then on:
//!
//! 1. no round runs: the durable map stays as the last one that ended well left it, and the groups of the one that failed
//!    that were durable before. All it names was synced before it was written.
//! 2. a FLUSH succeeds once a commit holds what it covers, as with `durability: object` (`volume/durability.rs`).
//! 3. each commit says which sides are void (`Body::Commit`): those it captured, and those whose dirty data, as far as the
//!    durable map names it, is committed already. After a loss of the host an attach forgets what they hold. So a commit needs
//!    no round before it: what it holds is never hidden by what the disk has of it.
//! 4. clean data is evicted once both sides are void, and not before: the durable map may call it dirty.
//! 5. the last round of a detach names nothing dirty, and that of a fenced writer is not for a loss of the host: they run.
//!
//! Upholds invariants 1 and 4 (`docs/invariants.md`); why so: `docs/adr/0006-failed-sync.md`. The live map remembers it through the death of the process.

use super::Volume;
use crate::safeguard::{
    Safeguard::{InvalidateUnsynced, RememberFailedSync},
    safeguard,
};
use crate::sector_map::SideSet;

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// Whether a sync of a side failed since the attach.
    pub(super) fn is_sync_failed(&self) -> bool {
        self.map.is_sync_failed()
    }

    /// A sync of a side failed.
    pub(super) fn note_failed_sync(&mut self) {
        if safeguard(RememberFailedSync) {
            self.map.set_sync_failed();
            self.evict_nothing();
        }
    }

    /// Whether the round that runs, or the next, claims nothing that a loss of the host could disprove: it is the last one.
    pub(super) fn is_last_round(&self) -> bool {
        self.closing_round.is_some_and(|number| self.round.begun >= number)
    }

    /// Whether the inactive side may be punched without a round: nothing that the durable map says counts.
    pub(super) fn is_void(&self) -> bool {
        self.is_sync_failed()
            && self.manifest.as_ref().is_some_and(|manifest| manifest.void() == SideSet::BOTH)
    }

    /// What the commit of these sides makes void.
    pub(super) fn void_with(&self, sealed: SideSet) -> SideSet {
        if self.is_sync_failed() && safeguard(InvalidateUnsynced) {
            self.map.flushed_sides().others().or(sealed)
        } else {
            SideSet::NONE
        }
    }
}
