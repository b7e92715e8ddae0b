//! The client's side of a volume: requests in flight, with their written and read data.

use holdfast_engine::event::{Errno, Op, RequestId};
use holdfast_engine::settings::Durability;
use holdfast_types::SectorRange;

use crate::disk::{Stamp, sectors};
use crate::expect::{CapturedContent, VolumeModel};
use crate::invariant::Invariant;

/// A request that the client waits for.
pub(crate) struct ClientRequest {
    pub(crate) op: Op,
    pub(crate) range: SectorRange,
    /// Unique; the stamp of the data that a write stores.
    pub(crate) serial: u64,
    pub(crate) issued: u64,
    /// The stamps that a read may return, by sector.
    allowed: Vec<Vec<Stamp>>,
    /// The stamps that the read returned so far, by sector.
    filled: Vec<Option<Stamp>>,
    /// True if a part of it failed: a retry may fill the buffer again.
    part_failed: bool,
    /// True if a part of it failed in the object store.
    pub(crate) store_failed: bool,
    /// True if its writer had been replaced unnoticed: objects that the new one does not need may be deleted.
    pub(crate) was_replaced: bool,
    /// The durability in effect when the engine completed it.
    pub(crate) answered_as: Durability,
}

impl ClientRequest {
    /// Returns the stamp of the request's sectors after its completion; `None` if it changes none.
    pub(crate) fn stored_stamp(&self) -> Option<Stamp> {
        match self.op {
            Op::Write | Op::WriteFua => Some(self.serial),
            Op::Discard | Op::WriteZeroes => Some(0),
            Op::Read | Op::Flush => None,
        }
    }

    /// Fills `range`, `at` bytes into the request.
    pub(crate) fn fill(&mut self, range: SectorRange, at: u32, stamps: impl Iterator<Item = Stamp>) {
        Invariant::ReadsAreTiled.check(self.op == Op::Read, || format!("a {:?} is filled", self.op));
        let first = range.start.0.checked_sub(self.range.start.0).expect("a piece lies within its request");
        Invariant::ReadsAreTiled
            .check(u64::from(at) == first * 4096, || format!("{range:?} is filled in at {at}"));
        for (index, stamp) in (first..first + range.sectors).zip(stamps) {
            let before = self.filled[index as usize].replace(stamp);
            Invariant::ReadsAreTiled
                .check(before.is_none() || self.part_failed, || format!("{range:?} is filled in twice"));
        }
    }
}

/// A block device with requests in flight.
#[derive(Default)]
pub(crate) struct SimulatedDevice {
    slots: Vec<Option<ClientRequest>>,
    /// Its size.
    pub(crate) sectors: u64,
    /// The client sends no more requests.
    pub(crate) closing: bool,
    /// The engine allowed requests.
    pub(crate) ready: bool,
    /// The engine reported its fencing.
    pub(crate) fenced: bool,
}

impl SimulatedDevice {
    pub(crate) fn new(depth: u32, sectors: u64) -> Self {
        Self { slots: (0..depth).map(|_| None).collect(), sectors, ..Self::default() }
    }

    pub(crate) fn free_slot(&self) -> Option<RequestId> {
        self.slots.iter().position(Option::is_none).map(|at| RequestId(at as u32))
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    pub(crate) fn request(&mut self, id: RequestId) -> &mut ClientRequest {
        match &mut self.slots[id.0 as usize] {
            Some(request) => request,
            None => Invariant::CompletedOnce
                .broken(&format!("something is done for request {} after its end", id.0)),
        }
    }

    /// Records that the engine completed a request, before the client receives the answer.
    pub(crate) fn note_answer(&mut self, id: RequestId, durability: Durability) {
        self.request(id).answered_as = durability;
    }

    /// Notes a change of the durability: answers that the client receives out of order are judged only by
    /// the local disk from here on.
    pub(crate) fn note_durability_change(&mut self) {
        for request in self.slots.iter_mut().flatten() {
            request.answered_as = Durability::Local;
        }
    }

    /// Ends a piece of a read, with these stamps, or without any.
    pub(crate) fn end_piece(
        &mut self,
        id: RequestId,
        range: SectorRange,
        at: u32,
        stamps: Option<Vec<Stamp>>,
    ) -> Result<(), Errno> {
        let request = self.request(id);
        let Some(stamps) = stamps else {
            request.part_failed = true;
            return Err(Errno::EIO);
        };
        request.fill(range, at, stamps.into_iter());
        Ok(())
    }

    /// Ends a piece of a read with the store's error.
    pub(crate) fn fail_piece(&mut self, id: RequestId, was_replaced: bool) {
        let request = self.request(id);
        (request.part_failed, request.store_failed) = (true, true);
        request.was_replaced |= was_replaced;
    }

    /// Returns the requests in flight, as the kernel reissues them after a crash of the daemon.
    pub(crate) fn reissue(&mut self) -> Vec<(RequestId, Op, SectorRange)> {
        let mut reissued = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if let Some(request) = slot {
                request.filled.fill(None);
                (request.part_failed, request.store_failed) = (false, false);
                request.was_replaced = false;
                reissued.push((RequestId(at as u32), request.op, request.range));
            }
        }
        reissued
    }

    pub(crate) fn issue(
        &mut self,
        id: RequestId,
        op: Op,
        range: SectorRange,
        serial: u64,
        expect: &mut VolumeModel,
    ) {
        let mut request = ClientRequest {
            op,
            range,
            serial,
            issued: expect.now(),
            allowed: Vec::new(),
            filled: Vec::new(),
            part_failed: false,
            store_failed: false,
            was_replaced: false,
            answered_as: Durability::Local,
        };
        if op == Op::Read {
            request.allowed = sectors(range).map(|sector| expect.allowed(sector)).collect();
            request.filled = vec![None; range.sectors as usize];
        }
        if let Some(stamp) = request.stored_stamp() {
            expect.issue(range, serial, stamp);
            for other in self.slots.iter().flatten() {
                if other.stored_stamp().is_some_and(|theirs| (theirs == 0) != (stamp == 0))
                    && let Some(both) = range.intersect(other.range)
                {
                    expect.note_race(both);
                }
            }
            for read in self.slots.iter_mut().flatten().filter(|other| other.op == Op::Read) {
                for sector in range.intersect(read.range).into_iter().flat_map(sectors) {
                    read.allowed[(sector - read.range.start.0) as usize].push(stamp);
                }
            }
        }
        self.slots[id.0 as usize] = Some(request);
    }

    /// Delivers an answer to the client; for a FLUSH that covers the store, `in_store` is its content.
    pub(crate) fn complete(
        &mut self,
        id: RequestId,
        result: Result<(), Errno>,
        expect: &mut VolumeModel,
        in_store: Option<&CapturedContent>,
    ) {
        let Some(request) = self.slots[id.0 as usize].take() else {
            Invariant::CompletedOnce.broken(&format!("request {} is completed again", id.0))
        };
        if request.stored_stamp().is_some() {
            expect.end(request.range, request.serial, result.is_ok());
        }
        match request.op {
            Op::Read if result.is_ok() => {
                for (index, sector) in sectors(request.range).enumerate() {
                    let Some(stamp) = request.filled[index] else {
                        Invariant::ReadsAreTiled.broken(&format!("sector {sector} was not filled"))
                    };
                    let allowed = &request.allowed[index];
                    expect.read_invariant(sector).check(allowed.contains(&stamp), || {
                        format!("sector {sector} reads as write {stamp}; allowed: {allowed:?}")
                    });
                    expect.note_read(sector, stamp, request.issued);
                }
            }
            Op::Flush if result.is_ok() => {
                if let Some(cut) = in_store {
                    expect.check_covered(cut, request.issued);
                }
                expect.make_durable(request.issued);
            }
            // Its own data is durable, regardless of any other.
            Op::WriteFua if result.is_ok() => expect.make_durable_in(request.range, request.issued),
            Op::Read | Op::Write | Op::WriteFua | Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
    }
}
