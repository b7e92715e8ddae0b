//! The content that a host's volume may have: now, as of its seal, and as of the commits.

use std::collections::BTreeSet;
use std::rc::Rc;

use holdfast_engine::durable_map::Header;
use holdfast_engine::volume::{SealStatus, Status};

use crate::disk::{DirtySectors, Disk};
use crate::expect::{Cut, Expect};

/// Allowed content of the volume at one host.
#[derive(Default)]
pub(crate) struct Content {
    /// Contents that each sector may read as.
    pub(crate) expect: Expect,
    /// Of the side now sealed.
    sealed: Option<Rc<Cut>>,
    /// Contents that the last commit captured.
    committed: Rc<Cut>,
    /// Those that the last commit before its own writes, or of its own, captured.
    base: Rc<Cut>,
    /// The process was killed inside the engine: it may have begun a seal.
    killed_inside: bool,
}

impl Content {
    pub(crate) fn sealed(&self) -> Option<&Rc<Cut>> {
        self.sealed.as_ref()
    }

    pub(crate) fn base(&self) -> &Cut {
        &self.base
    }

    /// Notes that the process was killed inside the engine.
    pub(crate) fn note_killed_inside(&mut self) {
        self.killed_inside = true;
    }

    /// Nothing is sealed any more.
    pub(crate) fn drop_seal(&mut self) {
        self.sealed = None;
    }

    /// The host lost power.
    pub(crate) fn lose_host(&mut self) {
        self.sealed = None;
        self.killed_inside = false;
        self.expect.lose_host();
    }

    /// A commit of any writer came into the log.
    pub(crate) fn saw_commit(&mut self, cut: &Rc<Cut>) {
        self.committed = Rc::clone(cut);
    }

    /// A commit of its own did.
    pub(crate) fn own_commit(&mut self, cut: Rc<Cut>) {
        self.expect.make_durable(cut.at);
        self.base = cut;
    }

    /// Its attach came into the log, whose last commit captured `cut`.
    pub(crate) fn attached_after(&mut self, cut: Rc<Cut>) {
        self.base = cut;
    }

    /// The log is another one, whose last commit captured `cut`.
    pub(crate) fn change_log(&mut self, cut: &Rc<Cut>) {
        self.committed = Rc::clone(cut);
        self.base = Rc::clone(cut);
    }

    /// A process begins to serve with this seal, or takes over with it.
    pub(crate) fn resume_seal(&mut self, seal: SealStatus) {
        let SealStatus { in_progress, covers_both, begun: _ } = seal;
        self.sealed = match self.sealed.take() {
            // Both sides are sealed again.
            Some(_) if covers_both => Some(self.expect.cut()),
            Some(cut) if in_progress && self.killed_inside => Some(Rc::new(cut.or(&self.expect.cut()))),
            Some(cut) if in_progress => Some(cut),
            None if in_progress && self.killed_inside => Some(self.committed_or_now()),
            None if in_progress => Some(self.expect.cut()),
            Some(_) | None => None,
        };
        self.killed_inside = false;
    }

    /// A seal begins; `both`: it covers both sides.
    pub(crate) fn seal(&mut self, status: &Status, both: bool) {
        let repairing = status.repairing && !both;
        self.sealed = Some(if repairing { self.committed_or_now() } else { self.expect.cut() });
    }

    /// Names a sector whose last content, as the client saw it, is neither in `dirty`, what the map of the
    /// disk calls dirty, nor, where that names nothing, in `base`; in words.
    pub(crate) fn lacks(
        &self,
        disk: &Disk,
        header: &Header,
        mut dirty: DirtySectors,
        base: &Cut,
    ) -> Option<String> {
        dirty.retain(|_, side| !header.invalidated.contains(*side));
        let touched: BTreeSet<u64> = self.expect.touched().into_iter().chain(base.touched()).collect();
        touched.into_iter().find_map(|sector| {
            let allowed = self.expect.allowed(sector);
            let (stamps, place) = match dirty.get(&sector) {
                Some(side) => (vec![disk.sides[*side as usize].read(sector)], "in the local files"),
                None => (base.allowed(sector), "committed"),
            };
            (!stamps.iter().any(|stamp| allowed.contains(stamp))).then(|| {
                format!("of sector {sector} {stamps:?} is {place}, the client last saw one of {allowed:?}")
            })
        })
    }

    /// A repair may seal the side that was sealed before: what it captures is what the last commit did. It
    /// covers nothing that was not committed.
    fn committed_or_now(&mut self) -> Rc<Cut> {
        let mut cut = self.committed.or(&self.expect.cut());
        cut.at = 0;
        Rc::new(cut)
    }
}
