//! The slab of a host: the daemon's tables of slots, one over a simulated file and one over memory.

use std::io;
use std::sync::Arc;

use holdfast_background::{
    BlockReader, ColdError, ColdLines, NoSlot, Slot, SlotTable, Unkept, retry_while_unavailable,
};
use holdfast_format::compose::ContentKey;
use holdfast_format::index::Runs;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_types::{Mask, SectorRange};
use parking_lot::Mutex;

use crate::calls::{Answer, Ask, Calls, LocalAsk, LocalError};
use crate::surroundings::SimTime;

/// Slots, and those of them that the index leaves free: few, so that contents are evicted all the time.
const SLOTS: u32 = 8;
const SPARE_SLOTS: u32 = 3;

/// Blocks, and what is in them.
struct Blocks {
    table: SlotTable,
    file: Mutex<Vec<Vec<u8>>>,
}

impl Blocks {
    fn new() -> Self {
        let file = Mutex::new(vec![Vec::new(); SLOTS as usize]);
        Self { table: SlotTable::new(SLOTS, SPARE_SLOTS, 1), file }
    }

    fn write(&self, slot: &Slot, block: &[u8]) {
        self.file.lock()[slot.number() as usize] = block.to_vec();
    }

    fn read(&self, slot: &Slot) -> Vec<u8> {
        self.file.lock()[slot.number() as usize].clone()
    }
}

/// The slab that all volumes of a process fetch into.
pub(crate) struct Slab {
    disk: Blocks,
    memory: Blocks,
}

impl Slab {
    /// The slab of a new process, which trusts nothing in its file and finds no room in it.
    pub(crate) fn new() -> Self {
        Self { disk: Blocks::new(), memory: Blocks::new() }
    }

    /// The bytes of `range`'s block, of which at least those of `range` are what the store holds.
    pub(crate) async fn read(
        &self,
        objects: &dyn ObjectStore,
        time: &SimTime,
        indexes: &Indexes,
        reader: &BlockReader<'_, Vec<u8>>,
        range: SectorRange,
        runs: &Runs,
    ) -> Result<Vec<u8>, ColdError> {
        let calls = &time.calls;
        retry_while_unavailable(time, &ColdLines::default(), range, |wanted| async move {
            let block = indexes.compose(objects, range.start.block(), wanted, runs).await?;
            let plan = block.for_range(Mask::of(range));
            let whole = || reader.block(objects, runs.lineage(), &plan);
            let write = |slot, block| self.fill(calls, slot, block);
            let slot = match self.disk.table.slot(&plan.key, whole(), write).await {
                Ok(slot) => slot,
                Err(NoSlot::Unmade(error)) => return Err(error),
                Err(NoSlot::Unkept(Unkept { content, .. })) => {
                    return self.read_memory(&plan.key, async { Ok(content) }).await;
                }
            };
            // The ring reads it some time later.
            if ask(calls, LocalAsk::ReadSlot).await.is_err() {
                self.disk.table.forget(&slot);
                drop(slot);
                return self.read_memory(&plan.key, whole()).await;
            }
            Ok(self.disk.read(&slot))
        })
        .await
    }

    /// The block through a slot in memory.
    async fn read_memory(
        &self,
        key: &ContentKey,
        content: impl Future<Output = Result<Arc<Vec<u8>>, ColdError>>,
    ) -> Result<Vec<u8>, ColdError> {
        let write = |slot: Slot, block: Arc<Vec<u8>>| {
            self.memory.write(&slot, &block);
            std::future::ready((block, Ok(())))
        };
        match self.memory.table.slot(key, content, write).await {
            Ok(slot) => Ok(self.memory.read(&slot)),
            Err(NoSlot::Unmade(error)) => Err(error),
            Err(NoSlot::Unkept(Unkept { error, .. })) => Err(error.into()),
        }
    }

    async fn fill(&self, calls: &Calls, slot: Slot, block: Arc<Vec<u8>>) -> (Arc<Vec<u8>>, io::Result<()>) {
        let has_room = !self.disk.file.lock()[slot.number() as usize].is_empty();
        let written = ask(calls, LocalAsk::WriteSlot { has_room }).await;
        if written.is_ok() {
            self.disk.write(&slot, &block);
        }
        (block, written)
    }
}

async fn ask(calls: &Calls, ask: LocalAsk) -> io::Result<()> {
    match calls.send(Ask::Local(ask)).await {
        Answer::Local(Ok(_)) => Ok(()),
        Answer::Local(Err(LocalError::Io(error))) => Err(error),
        Answer::Local(Err(LocalError::Damaged(_))) => unreachable!("no map is read"),
        Answer::Bytes(_) | Answer::Created(_) | Answer::Listed(_) | Answer::Stored(_) | Answer::Slept => {
            unreachable!("the local disk has another answer")
        }
    }
}
