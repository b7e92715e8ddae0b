//! Reads: the range is cut into runs by where the newest bytes are.

use holdfast_types::{BLOCK_SECTORS, SECTOR_BYTES, SectorRange};

use super::{Lifecycle, Request, Volume};
use crate::action::{Action, Report, Source};
use crate::event::RequestId;

impl<M: AsRef<[u8]> + AsMut<[u8]>> Volume<M> {
    pub(super) fn plan_read(&mut self, id: RequestId, range: SectorRange, out: &mut Vec<Action>) {
        let planned_from = out.len();
        let mut rest = range;
        let mut at = 0u32;
        let mut on_side = false;
        while rest.sectors > 0 {
            let (run, newest) = self.map.first_run(rest);
            match newest {
                Some(side) => {
                    on_side = true;
                    out.push(Action::Read { id, range: run, at, from: Source::Side(side) });
                }
                None => {
                    let Some(manifest) = &self.manifest else {
                        out.truncate(planned_from);
                        return self.park(id);
                    };
                    // A run lies within one chunk.
                    match manifest.layers(run.start.chunk()) {
                        None => out.push(Action::Read { id, range: run, at, from: Source::Zeros }),
                        Some(layers) => {
                            for piece in run.split_at_multiples(BLOCK_SECTORS) {
                                let at =
                                    at + bytes(SectorRange::new(run.start.0, piece.start.0 - run.start.0));
                                out.push(Action::ReadCold { id, range: piece, at, layers: layers.clone() });
                            }
                        }
                    }
                }
            }
            at += bytes(run);
            rest = SectorRange::new(run.end(), rest.end() - run.end());
        }
        // Invariant 9: a short fill would expose kernel memory.
        assert!(u64::from(at) == range.bytes(), "the plan tiles the request");
        let turn = on_side.then(|| self.evict.read_began());
        let slot = self.in_slot(id);
        slot.on_side = turn;
        slot.unreadable = None;
        slot.pending = u32::try_from(out.len() - planned_from).expect("at most one action a sector");
    }

    /// All parts of a read ended.
    pub(super) fn read(&mut self, id: RequestId, request: Request, out: &mut Vec<Action>) {
        if let Some(turn) = request.on_side {
            self.evict.read_ended(turn);
        }
        let range = request.range;
        match (request.failed, request.unreadable) {
            (None, None) => self.complete(id, Ok(()), out),
            (Some(errno), _) => self.complete(id, Err(errno), out),
            (None, Some(errno)) if self.lifecycle != Lifecycle::Serving => self.complete(id, Err(errno), out),
            (None, Some(errno)) => {
                if self.forget_clean(range) {
                    out.push(Action::Report(Report::CleanUnreadable(range)));
                } else if request.again && self.is_on_a_side(range) {
                    out.push(Action::Report(Report::DirtyUnreadable(range)));
                    return self.complete(id, Err(errno), out);
                }
                // Even with nothing forgotten: what failed may have been evicted or overwritten since.
                self.in_slot(id).again = true;
                self.plan_read(id, range, out);
            }
        }
    }

    /// Whether something of `range` is here. If nothing is, another read that failed meanwhile gave it up.
    fn is_on_a_side(&self, range: SectorRange) -> bool {
        (range.start.0..range.end()).any(|sector| self.map.newest(sector).is_some())
    }

    /// What the sides and the store both have is only in the store from here on. Whether there was any.
    fn forget_clean(&mut self, range: SectorRange) -> bool {
        let forgotten = self.map.forget_clean(range) > 0;
        if forgotten {
            self.round.range_changed(range);
        }
        forgotten
    }
}

fn bytes(run: SectorRange) -> u32 {
    u32::try_from(run.sectors * SECTOR_BYTES).expect("a request is smaller than 4 GiB")
}
