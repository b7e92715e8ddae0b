//! The order in which data becomes durable, as types: no step can be written without the receipt of the one
//! before.
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

/// Receipt: what a group of copied pages names was synced after the copy was made. A map write needs it.
#[derive(Debug)]
pub(super) struct SidesSynced(());

/// Receipt: the pages of the round are synced in the durable map. The header may be written.
#[derive(Debug)]
pub(super) struct PagesSynced(());

/// Proof: the durable map says what the round was to make it say, header included. A flush needs it.
#[derive(Debug)]
pub(super) struct MapSynced(());

impl SideSyncs {
    pub(super) fn of(sides: SideSet) -> Self {
        Self(sides)
    }

    /// A sync of `side` ended. That it failed is for the caller to note.
    pub(super) fn answered(&mut self, side: Side) {
        assert!(self.0.contains(side), "no sync of side {side:?} was asked for");
        self.0 = self.0.without(side);
    }

    pub(super) fn are_answered(&self) -> bool {
        self.0 == SideSet::NONE
    }

    /// All of them succeeded, or none is relied on.
    pub(super) fn receipt(self) -> SidesSynced {
        assert!(self.are_answered(), "a side is being synced");
        SidesSynced(())
    }
}

impl SidesSynced {
    /// The durable map was synced after the page writes that this receipt allowed.
    pub(super) fn pages_synced(self) -> PagesSynced {
        PagesSynced(())
    }

    /// No page of the durable map changed: it names all of it already.
    pub(super) fn no_page_changed(self) -> PagesSynced {
        PagesSynced(())
    }
}

impl PagesSynced {
    /// The durable map was synced after the header write that this receipt allowed.
    pub(super) fn header_synced(self) -> MapSynced {
        MapSynced(())
    }

    /// The header did not change: the synced one holds.
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
