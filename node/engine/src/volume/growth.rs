//! Growth of a serving volume.
//!
//! 1. the caller extends the files and the live map's memory, and requests the growth (`Event::Grow`);
//! 2. a record stores the new size: that of the next commit, or a separate record if nothing needs to be
//!    committed;
//! 3. the live map gets the size, too (`MapGrown`);
//! 4. the header follows with the next round, and requests to the new sectors are accepted (`Report::Grown`).
//!
//! After a crash past step 2 the volume is larger in its log than on this node, and past step 3 larger in the
//! live map than in its header: in both cases it serves, and a repeated request continues the growth.
//! Owns: the requested size. Does not own: files, the device. The name is a crash point. Upholds invariant 31
//! (`docs/invariants.md`).

use holdfast_format::manifest::Manifest;

use super::core::{Core, Memory};

/// The requested growth.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// The requested number of sectors.
    wanted: Option<u64>,
}

impl Growth {
    pub(super) fn is_idle(&self) -> bool {
        self.wanted.is_none()
    }

    /// Requests growth to `sectors`, or to a larger size that was requested before.
    pub(super) fn ask(&mut self, sectors: u64) {
        self.wanted = self.wanted.max(Some(sectors));
    }

    /// Drops the request: the log gets no more records.
    pub(super) fn forget(&mut self) {
        self.wanted = None;
    }

    /// Returns the size for the next record.
    pub(super) fn to_record(&self, manifest: &Manifest) -> Option<u64> {
        self.wanted.filter(|sectors| *sectors > manifest.sectors())
    }

    /// Takes the new size of the volume, once the log has it.
    pub(super) fn take<M: Memory>(&mut self, core: &Core<M>) -> Option<u64> {
        let in_log = core.manifest.as_ref()?.sectors();
        self.wanted.take_if(|sectors| *sectors <= in_log)
    }
}
