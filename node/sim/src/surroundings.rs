//! The pipeline's view of a simulated host: a store, files, time and randomness, each a source of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::try_join_all;
use holdfast_background::{Environment, LocalState, SideReader, Sides, UnreadableSectors, UploadBatch};
use holdfast_engine::action::{DirtyBlock, MapWrite};
use holdfast_engine::durable_map::{FoundMap, FoundPart, Header, header_offset};
use holdfast_engine::sector_map::Restore;
use holdfast_engine::settings::Pending;
use holdfast_format::side::Side;
use holdfast_objects::{
    CreateError, Created, ObjectStore, Page, Parts, SegmentError, StoreError, Suffix, UnfinishedUpload,
    collect,
};
use holdfast_types::{Epoch, SectorRange};
use parking_lot::Mutex;

use crate::calls::{CallKind, CallResult, Calls, LocalCall, LocalError, StoreCall};
use crate::disk::{SharedDisk, sectors};
use crate::rng::Rng;
use crate::store::fill;

/// The store, as accessed by a process.
#[derive(Debug, Clone)]
pub(crate) struct SimObjects(pub(crate) Calls);

impl SimObjects {
    async fn call(&self, call: StoreCall) -> CallResult {
        self.0.send(CallKind::Store(call)).await
    }
}

#[async_trait]
impl ObjectStore for SimObjects {
    async fn get(&self, key: &str, _max_bytes: u64) -> Result<Bytes, StoreError> {
        let CallResult::Bytes(answer) = self.call(StoreCall::Get { key: key.to_owned() }).await else {
            unreachable!("a GET has another answer")
        };
        answer
    }

    async fn get_range(&self, key: &str, range: std::ops::Range<u64>) -> Result<Bytes, StoreError> {
        let CallResult::Bytes(answer) = self.call(StoreCall::GetRange { key: key.to_owned(), range }).await
        else {
            unreachable!("a GET has another answer")
        };
        answer
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        let whole = self.get(key, u64::MAX).await?;
        let offset = whole.len() - whole.len().min(len as usize);
        Ok(Suffix { bytes: whole.slice(offset..), size_bytes: whole.len() as u64 })
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        let CallResult::Created(answer) = self.call(StoreCall::Create { key: key.to_owned(), body }).await
        else {
            unreachable!("a create has another answer")
        };
        answer
    }

    /// Stores the segment at once when the last part has arrived.
    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        let body = collect(parts).await?;
        let CallResult::Stored(answer) = self.call(StoreCall::PutSegment { key: key.to_owned(), body }).await
        else {
            unreachable!("a PUT has another answer")
        };
        Ok(answer?)
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let start_after = start_after.map(str::to_owned);
        let CallResult::Listed(answer) =
            self.call(StoreCall::List { prefix: prefix.to_owned(), start_after, limit }).await
        else {
            unreachable!("a LIST has another answer")
        };
        answer
    }

    /// Deletes each object at a separate time, or not at all: a request for many is not atomic.
    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        let delete = async |key: &&str| {
            let CallResult::Stored(answer) = self.call(StoreCall::Delete { key: (*key).to_owned() }).await
            else {
                unreachable!("a DELETE has another answer")
            };
            answer
        };
        try_join_all(keys.iter().map(delete)).await.map(drop)
    }

    /// No upload is left unfinished, because segments are stored at once.
    async fn unfinished_uploads(&self, _prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        Ok(Vec::new())
    }

    async fn abort_upload(&self, _upload: &UnfinishedUpload) -> Result<(), StoreError> {
        Ok(())
    }
}

/// The virtual clock, which all hosts share, and a process's own randomness.
#[derive(Debug, Clone)]
pub(crate) struct SimTime {
    pub(crate) calls: Calls,
    pub(crate) now: Arc<AtomicU64>,
    pub(crate) rng: Arc<Mutex<Rng>>,
}

impl Environment for SimTime {
    async fn sleep(&self, time: Duration) {
        self.calls.send(CallKind::Sleep(time)).await;
    }

    fn now_ms(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        self.rng.lock().bytes()
    }
}

/// A host's files, as accessed by a process.
#[derive(Clone)]
pub(crate) struct SimFiles {
    pub(crate) calls: Calls,
    pub(crate) disk: SharedDisk,
}

impl SimFiles {
    async fn call(&self, call: LocalCall) -> Result<Option<FoundMap>, LocalError> {
        let CallResult::Local(answer) = self.calls.send(CallKind::Local(call)).await else {
            unreachable!("the local disk has another answer")
        };
        answer
    }
}

impl SideReader for SimFiles {
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> std::io::Result<()> {
        let disk = self.disk.lock();
        if !disk.sides[side as usize].is_readable(range) {
            return Err(std::io::Error::other("simulated"));
        }
        for (sector, bytes) in sectors(range).zip(buffer.chunks_mut(4096)) {
            fill(sector, disk.sides[side as usize].read(sector), bytes);
        }
        Ok(())
    }
}

impl Sides for SimFiles {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        let DirtyBlock { block, a, b } = batch.blocks()[0];
        // Once per attempt, since most segments have few blocks.
        if batch.is_first() && self.call(LocalCall::ReadSides).await.is_err() {
            let (first, sectors) = a.union(b).runs().next().expect("it is dirty");
            let ranges =
                vec![SectorRange::new(block.first_sector().0 + u64::from(first), u64::from(sectors))];
            batch.fail(UnreadableSectors { ranges, error: std::io::Error::other("simulated") });
            return batch;
        }
        batch.pack(self);
        batch
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, pending: Pending) -> std::io::Result<()> {
        match self.call(LocalCall::StorePending(pending)).await {
            Ok(_stored) => Ok(()),
            Err(LocalError::Io(error)) => Err(error),
            Err(LocalError::Damaged(_)) => unreachable!("nothing is read"),
        }
    }
}

/// Initial content of the live map of an attached volume.
pub(crate) type Restored = Option<(Restore, Vec<FoundPart>)>;

impl LocalState for SimFiles {
    type Error = LocalError;
    type Files = Restored;

    async fn read_map(&self) -> Result<Option<FoundMap>, LocalError> {
        self.call(LocalCall::ReadMap).await
    }

    async fn preserve(&self, _epoch: Epoch) -> Result<(), LocalError> {
        self.call(LocalCall::Preserve).await.map(drop)
    }

    async fn discard(&self) -> Result<(), LocalError> {
        self.call(LocalCall::Discard).await.map(drop)
    }

    /// Reserves the space for commits with the header, which follows.
    async fn open(&self, _sectors: u64, restore: Option<Restore>) -> Result<Restored, LocalError> {
        let Some(restore) = restore else { return Ok(None) };
        let mut parts = Vec::new();
        self.disk.lock().read_parts(&restore.found, &mut |part| parts.push(part))?;
        Ok(Some((restore, parts)))
    }

    async fn write_header(&self, _: &Restored, header: &Header, generation: u64) -> Result<(), LocalError> {
        let slot = u8::from(generation % 2 == 1);
        let write = MapWrite { offset: header_offset(slot), bytes: header.encode(generation) };
        self.call(LocalCall::WriteHeader(write)).await?;
        self.call(LocalCall::SyncHeader).await.map(drop)
    }
}
