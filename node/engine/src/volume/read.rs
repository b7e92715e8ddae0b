//! Reads: the range is split into runs by the location of the newest bytes.
//!
//! Upholds invariant 9 (`docs/invariants.md`).

use holdfast_types::{BLOCK_SECTORS, SECTOR_BYTES, SectorRange};

use super::core::{Core, Memory};
use crate::action::{Action, Source};
use crate::event::RequestId;

/// The parts of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tiles {
    pub(super) parts: u32,
    /// True if at least one part is on a side.
    pub(super) on_side: bool,
}

/// Appends the actions that fill `range`, each part once. Returns `None`, with nothing appended, while a
/// needed manifest is not loaded.
pub(super) fn tile<M: Memory>(
    core: &Core<M>,
    id: RequestId,
    range: SectorRange,
    out: &mut Vec<Action>,
) -> Option<Tiles> {
    let planned_from = out.len();
    let mut rest = range;
    let mut at = 0u32;
    let mut on_side = false;
    while rest.sectors > 0 {
        let (run, newest) = core.map.first_run(rest);
        match newest {
            Some(side) => {
                on_side = true;
                out.push(Action::Read { id, range: run, at, from: Source::Side(side) });
            }
            None => {
                let Some(manifest) = &core.manifest else {
                    out.truncate(planned_from);
                    return None;
                };
                // A run is within one chunk.
                if manifest.may_hold(run.start.chunk()) {
                    for piece in run.split_at_multiples(BLOCK_SECTORS) {
                        let at = at + bytes(SectorRange::new(run.start.0, piece.start.0 - run.start.0));
                        out.push(Action::ReadCold { id, range: piece, at, runs: manifest.runs().clone() });
                    }
                } else {
                    out.push(Action::Read { id, range: run, at, from: Source::Zeros });
                }
            }
        }
        at += bytes(run);
        rest = SectorRange::new(run.end(), rest.end() - run.end());
    }
    // Invariant 9: an incomplete fill would expose kernel memory.
    assert!(u64::from(at) == range.bytes(), "the plan tiles the request");
    let parts = u32::try_from(out.len() - planned_from).expect("at most one action a sector");
    Some(Tiles { parts, on_side })
}

fn bytes(run: SectorRange) -> u32 {
    u32::try_from(run.sectors * SECTOR_BYTES).expect("a request is smaller than 4 GiB")
}
