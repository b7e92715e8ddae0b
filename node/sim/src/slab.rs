//! The slab of a host: the daemon's slot tables, one over a simulated file and one over memory.
//!
//! The file and its entries outlive the process. A write in progress may have replaced part of a slot;
//! none was synced, so the loss of the host may replace any slot by the content of another, or by zeros.

use std::io;
use std::sync::Arc;

use holdfast_background::{
    BlockReader, ColdError, ColdLines, NoSlot, SlabBlock, SlabSlot, Slot, SlotTable, Unkept,
    retry_while_unavailable,
};
use holdfast_format::compose::ContentKey;
use holdfast_format::index::Runs;
use holdfast_format::slab_table::SlabEntry;
use holdfast_log::Indexes;
use holdfast_objects::ObjectStore;
use holdfast_types::{BLOCK_BYTES, Mask, SectorRange};
use parking_lot::Mutex;

use crate::calls::{CallKind, CallResult, Calls, LocalCall, LocalError};
use crate::rng::Rng;
use crate::surroundings::SimTime;

/// Slots, and the number that the index leaves free: few, so that contents are evicted all the time.
const SLOTS: u32 = 8;
const SPARE_SLOTS: u32 = 3;

/// The bytes of a slot, empty if it was never written, and its entry in the file's table.
#[derive(Clone, Default)]
struct StoredSlot {
    bytes: Vec<u8>,
    entry: Option<SlabEntry>,
}

/// Blocks and their content.
struct SlabBlocks {
    table: SlotTable,
    file: Mutex<Vec<StoredSlot>>,
}

impl SlabBlocks {
    fn new() -> Self {
        Self::with_file(vec![StoredSlot::default(); SLOTS as usize])
    }

    /// Creates the blocks of a new process, over the file of an earlier one.
    fn with_file(file: Vec<StoredSlot>) -> Self {
        let old = (0..).zip(&file).filter_map(|(slot, stored)| Some((slot, stored.entry?)));
        Self { table: SlotTable::with_old(SLOTS, SPARE_SLOTS, 1, old), file: Mutex::new(file) }
    }

    /// Replaces part of a slot that was written before.
    fn write_half(&self, slot: &Slot, block: &[u8]) {
        let stored = &mut self.file.lock()[slot.number() as usize].bytes;
        let half = stored.len() / 2;
        stored[..half].copy_from_slice(&block[..half]);
    }

    fn write(&self, slot: &Slot, block: &[u8]) {
        self.file.lock()[slot.number() as usize].bytes = block.to_vec();
    }

    /// Names the content of a slot.
    fn name(&self, slot: &Slot, key: ContentKey, block: &[u8]) {
        self.file.lock()[slot.number() as usize].entry = Some(SlabEntry::of(key, block));
    }

    fn read(&self, slot: &Slot) -> Vec<u8> {
        self.file.lock()[slot.number() as usize].bytes.clone()
    }
}

/// The slab into which all volumes of a process fetch.
pub(crate) struct Slab {
    disk: SlabBlocks,
    memory: SlabBlocks,
}

impl Slab {
    /// Creates the slab of a host without any earlier process.
    pub(crate) fn new() -> Self {
        Self { disk: SlabBlocks::new(), memory: SlabBlocks::new() }
    }

    /// Returns the slab of the next process, after the current one has died.
    pub(crate) fn of_next_process(&self) -> Self {
        Self { disk: SlabBlocks::with_file(self.disk.file.lock().clone()), memory: SlabBlocks::new() }
    }

    /// Returns the slab after the loss of the host.
    pub(crate) fn after_power_cut(&self, rng: &mut Rng) -> Self {
        let mut file = self.disk.file.lock().clone();
        for slot in 0..file.len() {
            if rng.once_in(2) {
                let other = rng.below(file.len());
                file[slot].bytes = file[other].bytes.clone();
                // The space of the slot, without its content.
                file[slot].bytes.resize(BLOCK_BYTES as usize, 0);
            }
        }
        Self { disk: SlabBlocks::with_file(file), memory: SlabBlocks::new() }
    }

    /// Returns the bytes of `range`'s block, of which at least those of `range` match the store, and the
    /// slot they came from.
    pub(crate) async fn read(
        &self,
        objects: &dyn ObjectStore,
        time: &SimTime,
        indexes: &Indexes,
        reader: &BlockReader<'_, Vec<u8>>,
        range: SectorRange,
        runs: &Runs,
    ) -> Result<(Vec<u8>, SlabBlock), ColdError> {
        let calls = &time.calls;
        retry_while_unavailable(time, &ColdLines::default(), range, |wanted| async move {
            let block = indexes.compose(objects, range.start.block(), wanted, runs).await?;
            let sectors = block.sectors_for(wanted, Mask::of(range));
            let plan = block.for_range(Mask::of(range));
            let whole = || reader.block(objects, runs.lineage(), &plan);
            let write = |slot, block| self.fill(calls, plan.key, slot, block);
            let is_proven = async |slot: Slot, entry: SlabEntry| {
                call(calls, LocalCall::ReadSlot).await.map(|()| entry.is_of(&self.disk.read(&slot)))
            };
            let slot = match self.disk.table.slot(&plan.key, is_proven, whole(), write).await {
                Ok(slot) => slot,
                Err(NoSlot::Unmade(error)) => return Err(error),
                Err(NoSlot::Unkept(Unkept { content, .. })) => {
                    let slot = self.fill_memory(&plan.key, async { Ok(content) }).await?;
                    return Ok(self.found_in_memory(slot, sectors));
                }
            };
            let slot = SlabSlot::new(slot, false);
            let Some(bytes) = self.read_known(calls, &slot).await else {
                drop(slot);
                let slot = self.fill_memory(&plan.key, whole()).await?;
                return Ok(self.found_in_memory(slot, sectors));
            };
            Ok((bytes, SlabBlock { slot, sectors }))
        })
        .await
    }

    /// Returns the bytes of a slot, some time after it was found. If the disk cannot read it, returns
    /// `None` and drops the slot.
    pub(crate) async fn read_known(&self, calls: &Calls, slot: &SlabSlot) -> Option<Vec<u8>> {
        if slot.is_in_memory() {
            return Some(self.memory.read(slot.slot()));
        }
        if call(calls, LocalCall::ReadSlot).await.is_err() {
            self.disk.table.forget(slot.slot());
            return None;
        }
        Some(self.disk.read(slot.slot()))
    }

    fn found_in_memory(&self, slot: Slot, sectors: Mask) -> (Vec<u8>, SlabBlock) {
        (self.memory.read(&slot), SlabBlock { slot: SlabSlot::new(slot, true), sectors })
    }

    /// Fills a slot in memory with the block.
    async fn fill_memory(
        &self,
        key: &ContentKey,
        content: impl Future<Output = Result<Arc<Vec<u8>>, ColdError>>,
    ) -> Result<Slot, ColdError> {
        let write = |slot: Slot, block: Arc<Vec<u8>>| {
            self.memory.write(&slot, &block);
            std::future::ready((block, Ok(())))
        };
        let is_proven = async |_slot: Slot, _entry: SlabEntry| unreachable!("memory ends with its process");
        self.memory.table.slot(key, is_proven, content, write).await.map_err(|failed| match failed {
            NoSlot::Unmade(error) => error,
            NoSlot::Unkept(Unkept { error, .. }) => error.into(),
        })
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
        let written = call(calls, LocalCall::WriteSlot { has_room }).await;
        if written.is_ok() {
            self.disk.write(&slot, &block);
            // The process may die between the two.
            let named = call(calls, LocalCall::NameSlot).await;
            if named.is_ok() {
                self.disk.name(&slot, key, &block);
            }
        }
        (block, written)
    }
}

async fn call(calls: &Calls, call: LocalCall) -> io::Result<()> {
    match calls.send(CallKind::Local(call)).await {
        CallResult::Local(Ok(_)) => Ok(()),
        CallResult::Local(Err(LocalError::Io(error))) => Err(error),
        CallResult::Local(Err(LocalError::Damaged(_))) => unreachable!("no map is read"),
        CallResult::Bytes(_)
        | CallResult::Created(_)
        | CallResult::Listed(_)
        | CallResult::Stored(_)
        | CallResult::Slept => {
            unreachable!("the local disk has another answer")
        }
    }
}
