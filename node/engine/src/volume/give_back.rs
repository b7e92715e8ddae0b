//! Releases the live map's memory of chunks without local data.
//!
//! 1. an eviction marked data as remote, and its round wrote this to the durable map (`volume/evict.rs`);
//! 2. a chunk whose sectors are then all remote and clean, with no write in flight, and whose pages equal
//!    those in the durable map, counts as not allocated from now on (`ChunkEmptied`);
//! 3. its 16 KiB are released; until then the chunk is not prepared again.
//!
//! The name is a crash point. A process that dies between 2 and 3 leaves zeroed memory, which the next
//! preparation uses; its successor starts after all kernel requests of the process have ended. Step 2
//! needs the round: a page of an unallocated chunk takes part in no round, not even in the next process's
//! first, and data in the side is punched without a check (1 in `docs/invariants.md`). Without the wait
//! for writes and for step 3, marks would be lost (2).

use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::safeguard::{Safeguard::ReleaseStillChunks, safeguard};
use holdfast_types::{CHUNK_SECTORS, Chunk, SectorRange};

use super::core::{Core, Memory};
use super::data_path::DataPath;
use super::flush::FlushRounds;
use super::lifecycle::Lifecycle;
use crate::action::Action;
use crate::sector_map::chunk_pages;

impl DataPath {
    /// Runs steps 2 and 3 for the chunks of the completed eviction.
    pub(super) fn give_back<M: Memory>(
        &mut self,
        core: &mut Core<M>,
        rounds: &FlushRounds,
        out: &mut Vec<Action>,
    ) {
        for chunk in self.evictor.take_chunks() {
            let may_be_empty = core.lifecycle == Lifecycle::Serving
                && is_durable(chunk, core, rounds)
                && self.is_still(chunk);
            if may_be_empty && core.map.unprepare(chunk) {
                reach(CrashPoint::ChunkEmptied);
                self.requests.releasing(chunk);
                out.push(Action::ReleaseMap { chunk });
            }
        }
    }

    /// Returns true if no write or punch in flight will mark sectors of `chunk`.
    fn is_still(&self, chunk: Chunk) -> bool {
        let sectors = SectorRange::new(chunk.first_sector().0, CHUNK_SECTORS);
        !(safeguard(ReleaseStillChunks) && self.requests.stores_in(sectors))
    }
}

/// Returns true if the pages of `chunk` equal those in the durable map.
fn is_durable<M: Memory>(chunk: Chunk, core: &Core<M>, rounds: &FlushRounds) -> bool {
    let mut pages = chunk_pages(chunk).take_while(|page| *page < core.map.pages());
    pages.all(|page| !core.unflushed.holds(page) && !rounds.holds(page))
}
