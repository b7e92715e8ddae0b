//! The direct path of reads and writes: the same state and the same operations as by events, without a list
//! of actions.
//!
//! Invariants: what it takes, the event would have answered with one action, and nothing would have followed;
//! what it refuses is left as it was. The simulation runs with and without it, and both runs are the same.

use holdfast_format::index::Runs;
use holdfast_format::manifest::Manifest;
use holdfast_format::safeguard::{Safeguard::DirectWhileOpen, safeguard};
use holdfast_format::side::Side;
use holdfast_types::{Millis, SectorRange};

use super::Volume;
use super::lifecycle::Lifecycle;
#[cfg(doc)]
use crate::action::Action;
#[cfg(doc)]
use crate::event::Event;
use crate::event::{Op, RequestId};

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    /// Takes a read or a write that one operation on a side answers and nothing else follows from: its whole
    /// range moves between the request and the side that is returned, in place of [`Event::Request`] and one
    /// [`Action::Read`] or [`Action::Write`]. `None`, with nothing changed but the time, for any other: then
    /// the event takes it. Most requests come this way, which costs them no list of actions.
    #[inline(always)] // of each request
    pub fn begin(&mut self, now: Millis, id: RequestId, op: Op, range: SectorRange) -> Option<Side> {
        if self.core.lifecycle != Lifecycle::Serving || range.end() > self.core.map.sectors() {
            return None;
        }
        // Whatever takes the request, it came now.
        self.core.now = now;
        match op {
            Op::Read => self.data.begin_read(id, range, &self.core),
            Op::Write if self.is_open_for_writes() => self.data.begin_write(id, range, &mut self.core),
            Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes | Op::Flush => None,
        }
    }

    /// Takes a read of a part of one block of which nothing is on a side, if `known` finds what these runs
    /// compose of it. That is returned, in place of [`Event::Request`] and one [`Action::ReadCold`]. `None`,
    /// with nothing changed, for any other: then the event takes it.
    #[inline]
    pub fn begin_known<T>(
        &mut self,
        now: Millis,
        id: RequestId,
        range: SectorRange,
        known: impl FnOnce(&Runs) -> Option<T>,
    ) -> Option<T> {
        if self.core.lifecycle != Lifecycle::Serving || range.end() > self.core.map.sectors() {
            return None;
        }
        let found = known(self.core.runs_of(range)?)?;
        self.core.now = now;
        self.data.begin_remote(id, range, &self.core);
        Some(found)
    }

    /// The runs that compose what is in the store, newest first. None after a takeover until the log is read.
    pub fn runs(&self) -> Option<&Runs> {
        self.core.manifest.as_ref().map(Manifest::runs)
    }

    /// Returns true if no write has to wait for a seal or a cut, whatever side it would go to.
    #[inline]
    fn is_open_for_writes(&self) -> bool {
        (self.sealer.is_open() || !safeguard(DirectWhileOpen)) && !self.cut.stops_writes()
    }

    /// Takes the end of an operation that moved all it was to move, where the request is complete with it
    /// and nothing else follows: in place of [`Event::IoCompleted`] or [`Event::ColdReadCompleted`], and one
    /// [`Action::Complete`] without an error. Returns false, with nothing changed but the time, for any
    /// other: then the event takes it.
    ///
    /// # Panics
    /// If there is no such request: a bug of the caller.
    #[inline(always)] // it has two callers, and one of them is the path of each request
    pub fn end(&mut self, now: Millis, id: RequestId) -> bool {
        self.core.now = now;
        let is_quiet = self.sealer.is_open() && self.cut.is_idle() && self.data.evictor.is_idle();
        is_quiet && self.data.end(id, &mut self.core)
    }
}
