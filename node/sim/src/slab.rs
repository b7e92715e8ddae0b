//! The slab of a host: the daemon's table of slots over a simulated file.

use std::io;

use holdfast_background::{ColdError, ColdLines, Indexes, Slot, SlotTable, fetch, retry_while_unavailable};
use holdfast_engine::index::Runs;
use holdfast_objects::ObjectStore;
use holdfast_types::{BLOCK_BYTES, Mask, SectorRange};
use parking_lot::Mutex;

use crate::calls::{Answer, Ask, Calls, LocalAsk};
use crate::surroundings::SimTime;

/// Slots, and those of them that the index leaves free: few, so that contents are evicted all the time.
const SLOTS: u32 = 8;
const SPARE_SLOTS: u32 = 3;

/// The slab that all volumes of a process fetch into.
pub(crate) struct Slab {
    table: SlotTable,
    file: Mutex<Vec<Vec<u8>>>,
}

impl Slab {
    /// The slab of a new process, which trusts nothing in its file.
    pub(crate) fn new() -> Self {
        Self {
            table: SlotTable::new(SLOTS, SPARE_SLOTS, 1),
            file: Mutex::new(vec![Vec::new(); SLOTS as usize]),
        }
    }

    /// The bytes of `range`'s block, of which at least those of `range` are what the store holds.
    pub(crate) async fn read(
        &self,
        objects: &dyn ObjectStore,
        time: &SimTime,
        indexes: &Indexes,
        range: SectorRange,
        runs: &Runs,
    ) -> Result<Vec<u8>, ColdError> {
        let calls = &time.calls;
        retry_while_unavailable(time, &ColdLines::default(), range, |wanted| async move {
            let block = indexes.compose(objects, range.start.block(), wanted, runs).await?;
            let plan = block.for_range(Mask::of(range));
            let whole = async {
                let mut whole = vec![0; BLOCK_BYTES as usize];
                fetch(objects, runs.lineage(), &plan, &mut whole).await?;
                Ok(whole)
            };
            let slot = self.table.slot(&plan.key, whole, |slot, block| self.fill(calls, slot, block)).await?;
            // The ring reads it some time later.
            if let Err(error) = ask(calls, LocalAsk::ReadSlot).await {
                self.table.forget(&slot);
                return Err(error.into());
            }
            Ok(self.file.lock()[slot.number() as usize].clone())
        })
        .await
    }

    async fn fill(&self, calls: &Calls, slot: Slot, block: Vec<u8>) -> Result<Slot, ColdError> {
        if let Err(error) = ask(calls, LocalAsk::WriteSlot).await {
            slot.set_failed();
            return Err(error.into());
        }
        self.file.lock()[slot.number() as usize] = block;
        Ok(slot)
    }
}

async fn ask(calls: &Calls, ask: LocalAsk) -> io::Result<()> {
    match calls.send(Ask::Local(ask)).await {
        Answer::Local(Ok(_)) => Ok(()),
        Answer::Local(Err(_)) => Err(io::Error::other("simulated")),
        Answer::Bytes(_) | Answer::Created(_) | Answer::Listed(_) | Answer::Stored(_) | Answer::Slept => {
            unreachable!("the local disk has another answer")
        }
    }
}
