//! The direct path of reads and writes: the same state and operations as with events, without a list of
//! actions.
//!
//! Invariants: for each request that it accepts, the event would have returned one action without follow-up;
//! a rejected request changes at most the time. The simulation runs with and without it, with equal results.

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
    /// Starts a read or write that a single side operation completes. The caller moves the whole range
    /// between the request and the returned side. Replaces [`Event::Request`] and one [`Action::Read`] or
    /// [`Action::Write`]. Returns `None` otherwise, with at most the time updated: send [`Event::Request`].
    /// Most requests take this path and thus need no list of actions.
    #[inline(always)] // of each request
    pub fn begin(&mut self, now: Millis, id: RequestId, op: Op, range: SectorRange) -> Option<Side> {
        if self.core.lifecycle != Lifecycle::Serving || range.end() > self.core.map.sectors() {
            return None;
        }
        // Set for both paths: either one handles the request at this time.
        self.core.now = now;
        match op {
            Op::Read => self.data.begin_read(id, range, &self.core),
            Op::Write if self.is_open_for_writes() => self.data.begin_write(id, range, &mut self.core),
            Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes | Op::Flush => None,
        }
    }

    /// Starts a cold read within one block if `known` returns its composition, and returns that. Replaces
    /// [`Event::Request`] and one [`Action::ReadCold`]. Returns `None` and changes nothing otherwise: send
    /// the event.
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
        let composition = known(self.core.runs_of(range)?)?;
        self.core.now = now;
        self.data.begin_remote(id, range, &self.core);
        Some(composition)
    }

    /// Returns the runs that compose the stored data, newest first; `None` until the log is read.
    pub fn runs(&self) -> Option<&Runs> {
        self.core.manifest.as_ref().map(Manifest::runs)
    }

    /// Returns true if no write must wait for a seal or a cut, on either side.
    #[inline]
    fn is_open_for_writes(&self) -> bool {
        (self.sealer.is_open() || !safeguard(DirectWhileOpen)) && self.may_seal() && !self.cut.stops_writes()
    }

    /// Handles the end of a complete transfer that completes the request without follow-up, in place of
    /// [`Event::IoCompleted`] or [`Event::ColdReadCompleted`] and one [`Action::Complete`] without an error.
    /// For any other transfer, returns false and changes at most the time: send the event.
    ///
    /// # Panics
    /// If no such request is in flight, which is a bug of the caller.
    #[inline(always)] // it has two callers, and one of them is the path of each request
    pub fn end(&mut self, now: Millis, id: RequestId) -> bool {
        self.core.now = now;
        let is_quiet = self.sealer.is_open() && self.cut.is_idle() && self.data.evictor.is_idle();
        is_quiet && self.data.end(id, &mut self.core)
    }
}
