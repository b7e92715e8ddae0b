//! Growth of a volume that is served.
//!
//! 1. the caller has made the files and the live map's memory long enough, and asks (`Event::Grow`);
//! 2. a record says the new size: the next commit's, or one of its own where nothing is committed;
//! 3. the live map says it too (`MapGrown`);
//! 4. the header follows with the next round, requests to the new sectors may come (`Report::Grown`).
//!
//! A process that died after step 2 left a volume that is larger in its log than here, and one that died
//! after step 3 a live map that is larger than its header says: both serve, and asked again they continue.
//! Owns: the size that was asked for. Does not own: files, the device. The name is a crash point. Upholds
//! invariant 31 (`docs/invariants.md`).

use holdfast_format::manifest::Manifest;

use super::core::{Core, Memory};

/// The growth that was asked for.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Sectors.
    wanted: Option<u64>,
}

impl Growth {
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_none()
    }

    /// The volume is to have so many sectors, or more that were asked for before.
    pub(super) fn ask(&mut self, sectors: u64) {
        self.wanted = self.wanted.max(Some(sectors));
    }

    /// Nothing more comes into the log.
    pub(super) fn forget(&mut self) {
        self.wanted = None;
    }

    /// The size that the next record is to say.
    pub(super) fn to_record(&self, manifest: &Manifest) -> Option<u64> {
        self.wanted.filter(|sectors| *sectors > manifest.sectors())
    }

    /// Takes the size that the volume has from here on, once the log says it.
    pub(super) fn take<M: Memory>(&mut self, core: &Core<M>) -> Option<u64> {
        let in_log = core.manifest.as_ref()?.sectors();
        self.wanted.take_if(|sectors| *sectors <= in_log)
    }
}
