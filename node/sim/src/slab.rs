//! The slab of a host: the daemon's tables of slots, one over a simulated file and one over memory.
//!
//! The file and its entries outlive the process. A write that it had begun may have replaced a part of a
//! slot; none was synced, so the loss of the host may replace any slot by what was in another, or by zeros.

use std::io;
use std::sync::Arc;

use holdfast_background::{
    BlockReader, ColdError, ColdLines, NoSlot, Slot, SlotTable, Unkept, retry_while_unavailable,
};
use holdfast_format::compose::ContentKey;
use holdfast_format::index::Runs;
use holdfast_format::slab_table::SlabEntry;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_types::{BLOCK_BYTES, Mask, SectorRange};
use parking_lot::Mutex;

use crate::calls::{Answer, Ask, Calls, LocalAsk, LocalError};
use crate::rng::Rng;
use crate::surroundings::SimTime;

/// Slots, and those of them that the index leaves free: few, so that contents are evicted all the time.
const SLOTS: u32 = 8;
const SPARE_SLOTS: u32 = 3;

/// The bytes of a slot, none where it was never written, and its entry in the file's table.
#[derive(Clone, Default)]
struct OnDisk {
    bytes: Vec<u8>,
    entry: Option<SlabEntry>,
}

/// Blocks, and what is in them.
struct Blocks {
    table: SlotTable,
    file: Mutex<Vec<OnDisk>>,
}

impl Blocks {
    fn new() -> Self {
        Self::over(vec![OnDisk::default(); SLOTS as usize])
    }

    /// Those of a new process, over a file that an earlier one wrote.
    fn over(file: Vec<OnDisk>) -> Self {
        let old = (0..).zip(&file).filter_map(|(slot, stored)| Some((slot, stored.entry?)));
        Self { table: SlotTable::with_old(SLOTS, SPARE_SLOTS, 1, old), file: Mutex::new(file) }
    }

    /// Replaces a part of a slot that was written before.
    fn write_half(&self, slot: &Slot, block: &[u8]) {
        let stored = &mut self.file.lock()[slot.number() as usize].bytes;
        let half = stored.len() / 2;
        stored[..half].copy_from_slice(&block[..half]);
    }

    fn write(&self, slot: &Slot, block: &[u8]) {
        self.file.lock()[slot.number() as usize].bytes = block.to_vec();
    }

    /// Names what was written into a slot.
    fn name(&self, slot: &Slot, key: ContentKey, block: &[u8]) {
        self.file.lock()[slot.number() as usize].entry = Some(SlabEntry::of(key, block));
    }

    fn read(&self, slot: &Slot) -> Vec<u8> {
        self.file.lock()[slot.number() as usize].bytes.clone()
    }
}

/// The slab that all volumes of a process fetch into.
pub(crate) struct Slab {
    disk: Blocks,
    memory: Blocks,
}

impl Slab {
    /// The slab of a host on which no process ran.
    pub(crate) fn new() -> Self {
        Self { disk: Blocks::new(), memory: Blocks::new() }
    }

    /// That of the next process, once the one of this has died.
    pub(crate) fn of_next_process(&self) -> Self {
        Self { disk: Blocks::over(self.disk.file.lock().clone()), memory: Blocks::new() }
    }

    /// The same once the host was lost.
    pub(crate) fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let mut file = self.disk.file.lock().clone();
        for slot in 0..file.len() {
            if rng.once_in(2) {
                let other = rng.below(file.len());
                file[slot].bytes = file[other].bytes.clone();
                // The room of the slot, without any of its bytes.
                file[slot].bytes.resize(BLOCK_BYTES as usize, 0);
            }
        }
        Self { disk: Blocks::over(file), memory: Blocks::new() }
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
            let write = |slot, block| self.fill(calls, plan.key, slot, block);
            let is_proven = async |slot: Slot, entry: SlabEntry| {
                ask(calls, LocalAsk::ReadSlot).await.map(|()| entry.is_of(&self.disk.read(&slot)))
            };
            let slot = match self.disk.table.slot(&plan.key, is_proven, whole(), write).await {
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
        let is_proven = async |_slot: Slot, _entry: SlabEntry| unreachable!("memory ends with its process");
        match self.memory.table.slot(key, is_proven, content, write).await {
            Ok(slot) => Ok(self.memory.read(&slot)),
            Err(NoSlot::Unmade(error)) => Err(error),
            Err(NoSlot::Unkept(Unkept { error, .. })) => Err(error.into()),
        }
    }

    async fn fill(
        &self,
        calls: &Calls,
        key: ContentKey,
        slot: Slot,
        block: Arc<Vec<u8>>,
    ) -> (Arc<Vec<u8>>, io::Result<()>) {
        let has_room = !self.disk.file.lock()[slot.number() as usize].bytes.is_empty();
        self.disk.write_half(&slot, &block);
        let written = ask(calls, LocalAsk::WriteSlot { has_room }).await;
        if written.is_ok() {
            self.disk.write(&slot, &block);
            // The process may die between the two.
            let named = ask(calls, LocalAsk::NameSlot).await;
            if named.is_ok() {
                self.disk.name(&slot, key, &block);
            }
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
