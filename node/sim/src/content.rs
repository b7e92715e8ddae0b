//! The allowed content of a host's volume: now, as of its seal, and as of the commits.

use std::collections::BTreeSet;
use std::rc::Rc;

use holdfast_engine::durable_map::Header;
use holdfast_engine::volume::{SealStatus, Status};

use crate::disk::{DirtySectors, Disk};
use crate::expect::{CapturedContent, VolumeModel};

/// Allowed content of the volume on one host.
#[derive(Default)]
pub(crate) struct AllowedContent {
    /// Contents that each sector may read as.
    pub(crate) model: VolumeModel,
    /// The content captured by the current seal.
    sealed: Option<Rc<CapturedContent>>,
    /// The content captured by the last commit.
    committed: Rc<CapturedContent>,
    /// The content captured by the last commit of this host's writer. Before its first one, the content of
    /// the last commit before its writes.
    base: Rc<CapturedContent>,
    /// True if the process was killed inside the engine: it may have begun a seal.
    killed_inside: bool,
}

impl AllowedContent {
    pub(crate) fn sealed(&self) -> Option<&Rc<CapturedContent>> {
        self.sealed.as_ref()
    }

    pub(crate) fn base(&self) -> &CapturedContent {
        &self.base
    }

    /// Notes that the process was killed inside the engine.
    pub(crate) fn note_killed_inside(&mut self) {
        self.killed_inside = true;
    }

    /// Drops the seal.
    pub(crate) fn drop_seal(&mut self) {
        self.sealed = None;
    }

    /// Handles a power loss of the host.
    pub(crate) fn lose_host(&mut self) {
        self.sealed = None;
        self.killed_inside = false;
        self.model.lose_host();
    }

    /// Handles a commit of any writer in the log.
    pub(crate) fn note_commit(&mut self, cut: &Rc<CapturedContent>) {
        self.committed = Rc::clone(cut);
    }

    /// Handles a commit of this host's writer.
    pub(crate) fn note_own_commit(&mut self, cut: Rc<CapturedContent>) {
        self.model.make_durable(cut.at);
        self.base = cut;
    }

    /// Handles this host's attach in the log, whose last commit captured `cut`.
    pub(crate) fn note_attach_after(&mut self, cut: Rc<CapturedContent>) {
        self.base = cut;
    }

    /// Replaces the log by one whose last commit captured `cut`.
    pub(crate) fn change_log(&mut self, cut: &Rc<CapturedContent>) {
        self.committed = Rc::clone(cut);
        self.base = Rc::clone(cut);
    }

    /// Handles a process that begins to serve, or takes over, with this seal.
    pub(crate) fn resume_seal(&mut self, seal: SealStatus) {
        let SealStatus { in_progress, covers_both, begun: _ } = seal;
        self.sealed = match self.sealed.take() {
            // Both sides are sealed again.
            Some(_) if covers_both => Some(self.model.cut()),
            Some(cut) if in_progress && self.killed_inside => Some(Rc::new(cut.union(&self.model.cut()))),
            Some(cut) if in_progress => Some(cut),
            None if in_progress && self.killed_inside => Some(self.repair_cut()),
            None if in_progress => Some(self.model.cut()),
            Some(_) | None => None,
        };
        self.killed_inside = false;
    }

    /// Handles the start of a seal, of both sides if `both`.
    pub(crate) fn seal(&mut self, status: &Status, both: bool) {
        let repairing = status.repairing && !both;
        self.sealed = Some(if repairing { self.repair_cut() } else { self.model.cut() });
    }

    /// Describes a sector that lost the last content seen by the client. `dirty` are the dirty sectors of
    /// the disk's map; a sector that is not dirty must have the content of `base`.
    pub(crate) fn describe_lost_sector(
        &self,
        disk: &Disk,
        header: &Header,
        mut dirty: DirtySectors,
        base: &CapturedContent,
    ) -> Option<String> {
        dirty.retain(|_, side| !header.invalidated.contains(*side));
        let touched: BTreeSet<u64> = self.model.touched().into_iter().chain(base.touched()).collect();
        touched.into_iter().find_map(|sector| {
            let allowed = self.model.allowed(sector);
            let (stamps, place) = match dirty.get(&sector) {
                Some(side) => (vec![disk.sides[*side as usize].read(sector)], "in the local files"),
                None => (base.allowed(sector), "committed"),
            };
            (!stamps.iter().any(|stamp| allowed.contains(stamp))).then(|| {
                format!("of sector {sector} {stamps:?} is {place}, the client last saw one of {allowed:?}")
            })
        })
    }

    /// Returns the content of a repair's seal, which may be of the side sealed before: it captures the
    /// content of the last commit, and covers no uncommitted data.
    fn repair_cut(&mut self) -> Rc<CapturedContent> {
        let mut cut = self.committed.union(&self.model.cut());
        cut.at = 0;
        Rc::new(cut)
    }
}
