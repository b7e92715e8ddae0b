//! The order of durability steps, as types: each step requires the receipt of the previous one.
//!
//! ```text
//! side syncs ──► SidesSynced ──► pages, map sync ──► PagesSynced ──► header, map sync ──► MapSynced ──► FLUSH
//! ```
//!
//! Upholds invariants 1 and 13 (`docs/invariants.md`).

use holdfast_format::side::{Side, SideSet};

/// Side syncs that are not answered yet.
#[derive(Debug)]
pub(super) struct SideSyncs(SideSet);

/// Receipt: all data named by a group of copied pages was synced after the copy. A map write needs it.
#[derive(Debug)]
pub(super) struct SidesSynced(());

/// Receipt: the pages of the round are synced in the durable map. The header may be written.
#[derive(Debug)]
pub(super) struct PagesSynced(());

/// Proof: the durable map has everything that the round had to write, including the header. A flush needs it.
#[derive(Debug)]
pub(super) struct MapSynced(());

impl SideSyncs {
    pub(super) fn of(sides: SideSet) -> Self {
        Self(sides)
    }

    /// Notes the end of a sync of `side`. The caller handles its failure.
    pub(super) fn answered(&mut self, side: Side) {
        assert!(self.0.contains(side), "no sync of side {side:?} was asked for");
        self.0 = self.0.without(side);
    }

    pub(super) fn are_answered(&self) -> bool {
        self.0 == SideSet::NONE
    }

    /// Returns the receipt: all syncs succeeded, or the caller does not rely on them.
    pub(super) fn receipt(self) -> SidesSynced {
        assert!(self.are_answered(), "a side is being synced");
        SidesSynced(())
    }
}

impl SidesSynced {
    /// Returns the receipt for a sync of the durable map that followed the page writes that this receipt
    /// allowed.
    pub(super) fn pages_synced(self) -> PagesSynced {
        PagesSynced(())
    }

    /// Returns the receipt of a round without page changes: the durable map names all data already.
    pub(super) fn no_page_changed(self) -> PagesSynced {
        PagesSynced(())
    }
}

impl PagesSynced {
    /// Returns the proof for a sync of the durable map that followed the header write that this receipt
    /// allowed.
    pub(super) fn header_synced(self) -> MapSynced {
        MapSynced(())
    }

    /// Returns the proof of a round without header change: the synced header is valid.
    pub(super) fn header_unchanged(self) -> MapSynced {
        MapSynced(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_needs_every_answer() {
        let mut syncs = SideSyncs::of(SideSet::BOTH);
        syncs.answered(Side::B);
        assert!(!syncs.are_answered());
        assert!(std::panic::catch_unwind(|| SideSyncs::of(SideSet::only(Side::A)).receipt()).is_err());
        syncs.answered(Side::A);
        let _receipt = syncs.receipt();
    }

    #[test]
    #[should_panic(expected = "no sync of side A was asked for")]
    fn a_side_is_answered_once() {
        let mut syncs = SideSyncs::of(SideSet::BOTH);
        syncs.answered(Side::A);
        syncs.answered(Side::A);
    }
}
