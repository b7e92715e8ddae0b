//! What a volume asks of the world off the ring thread: cold reads, uploads, log records, checkpoints.
//!
//! Runs on: the tokio runtime; one task a volume receives, each piece of work runs as a task of its own. Answers go back
//! to the ring thread as events.
//! On failure: work whose outcome the volume waits for is tried until it is done; a store that is away delays.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_engine::action::DirtyBlock;
use holdfast_engine::event::{CreateAnswer, Errno, Event};
use holdfast_engine::manifest::Layers;
use holdfast_engine::record::SegmentRef;
use holdfast_engine::segment::SegmentBuilder;
use holdfast_engine::volume::Pending;
use holdfast_objects::{CreateError, ObjectStore, StoreError};
use holdfast_ring::HeapBuffer;
use holdfast_types::key::ObjectKey;
use holdfast_types::{BLOCK_BYTES, Block, Mask, SECTOR_BYTES, SegmentId, Seq, VolumeId};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::cold::ColdReads;
use super::local::{Local, random};
use super::ring_thread::{Message, RingHandle, VolumeKey};
use super::unix_ms;

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(10);
/// How long a failed local write is held back before the volume hears of it: it will ask again at once.
const LOCAL_RETRY: Duration = Duration::from_secs(1);
/// Largest log record read back, in bytes.
const MAX_RECORD_BYTES: u64 = 64 << 20;

/// A piece of work.
#[derive(Debug)]
pub(crate) enum Work {
    Cold { ticket: u32, block: Block, layers: Layers },
    Upload(Vec<DirtyBlock>),
    StorePending(Pending),
    CreateRecord { seq: Seq, bytes: Vec<u8> },
    ReadRecord { seq: Seq },
    WriteCheckpoint { seq: Seq, bytes: Vec<u8> },
}

/// What the work of one volume needs.
pub(crate) struct Background {
    pub(crate) volume: VolumeId,
    pub(crate) local: Local,
    pub(crate) sides: [File; 2],
    pub(crate) objects: Arc<dyn ObjectStore>,
    pub(crate) cold: Arc<ColdReads>,
    /// Uploads under way on the node: each holds a segment in memory.
    pub(crate) uploads: Arc<Semaphore>,
    pub(crate) ring: RingHandle,
    pub(crate) key: VolumeKey,
}

impl Background {
    /// Takes work until the volume is gone; what is still under way then is given up.
    pub(crate) async fn run(self: Arc<Self>, mut work: mpsc::UnboundedReceiver<Work>) {
        let mut under_way = JoinSet::new();
        loop {
            tokio::select! {
                piece = work.recv() => {
                    let Some(piece) = piece else { return };
                    let this = Arc::clone(&self);
                    under_way.spawn(async move { this.perform(piece).await });
                }
                Some(ended) = under_way.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(volume = %self.volume, %error, "background work of a volume died");
                    }
                }
            }
        }
    }

    async fn perform(&self, piece: Work) {
        let event = match piece {
            Work::Cold { ticket, block, layers } => return self.read_cold(ticket, block, &layers).await,
            Work::Upload(blocks) => Event::Uploaded(self.upload(blocks).await),
            Work::StorePending(pending) => Event::PendingStored { result: self.store_pending(pending).await },
            Work::CreateRecord { seq, bytes } => Event::CreateAnswered(self.create_record(seq, bytes).await),
            Work::ReadRecord { seq } => Event::RecordRead { seq, bytes: self.read_record(seq).await },
            Work::WriteCheckpoint { seq, bytes } => {
                let written = holdfast_log::write_checkpoint(&*self.objects, &self.volume, seq, bytes).await;
                if let Err(error) = &written {
                    self.warn("the checkpoint waits", error);
                    tokio::time::sleep(LAST_RETRY).await;
                }
                Event::CheckpointWritten { seq, written: written.is_ok() }
            }
        };
        self.ring.send(Message::Event { key: self.key, event });
    }

    fn warn(&self, what: &'static str, error: &(dyn std::error::Error + 'static)) {
        tracing::warn!(volume = %self.volume, error, "{what}");
    }

    async fn read_cold(&self, ticket: u32, block: Block, layers: &Layers) {
        let result = self.cold.block(&*self.objects, &self.volume, block, layers).await;
        if let Err(error) = &result {
            tracing::error!(volume = %self.volume, block = block.0, error = error as &dyn std::error::Error, "cold read failed");
        }
        let slot = result.map_err(|_logged| Errno::EIO);
        self.ring.send(Message::Cold { key: self.key, ticket, slot });
    }

    async fn upload(&self, blocks: Vec<DirtyBlock>) -> SegmentRef {
        let _permit = self.uploads.acquire().await.expect("the semaphore is never closed");
        let id = SegmentId::new(unix_ms(), random());
        let mut wait = FIRST_RETRY;
        let (segment, object) = loop {
            match self.build(blocks.clone(), id).await {
                Ok(built) => break built,
                Err(error) => {
                    self.warn("reading the sealed side failed", &error);
                    backoff(&mut wait).await;
                }
            }
        };
        let object = bytes::Bytes::from(object);
        let key = ObjectKey::Segment(self.volume.clone(), id).to_string();
        let mut wait = FIRST_RETRY;
        while let Err(error) = self.objects.put_segment(&key, vec![object.clone()]).await {
            self.warn("the upload waits", &error);
            backoff(&mut wait).await;
        }
        segment
    }

    async fn build(&self, blocks: Vec<DirtyBlock>, id: SegmentId) -> std::io::Result<(SegmentRef, Vec<u8>)> {
        let sides = [self.sides[0].try_clone()?, self.sides[1].try_clone()?];
        tokio::task::spawn_blocking(move || {
            let mut builder = SegmentBuilder::default();
            let mut buffer = HeapBuffer::zeroed(BLOCK_BYTES as usize);
            let mut packed = Vec::with_capacity(BLOCK_BYTES as usize);
            for dirty in &blocks {
                for (side, mask) in sides.iter().zip([dirty.a, dirty.b]) {
                    read_sectors(side, dirty.block, mask, &mut buffer)?;
                }
                let all = dirty.a.union(dirty.b);
                packed.clear();
                for (first, length) in all.runs() {
                    let sector = SECTOR_BYTES as usize;
                    packed.extend_from_slice(
                        &buffer[first as usize * sector..(first + length) as usize * sector],
                    );
                }
                builder.push(dirty.block, all, &packed);
            }
            Ok(builder.finish(id))
        })
        .await
        .map_err(std::io::Error::other)?
    }

    async fn store_pending(&self, pending: Pending) -> Result<(), Errno> {
        let local = self.local.clone();
        let stored = tokio::task::spawn_blocking(move || local.store_pending(&pending)).await;
        match stored {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                self.warn("the log record could not be kept", &error);
                tokio::time::sleep(LOCAL_RETRY).await;
                Err(Errno::EIO)
            }
            Err(error) => {
                self.warn("the log record could not be kept", &error);
                Err(Errno::EIO)
            }
        }
    }

    async fn create_record(&self, seq: Seq, bytes: Vec<u8>) -> CreateAnswer {
        let key = ObjectKey::Log(self.volume.clone(), seq).to_string();
        let body = bytes::Bytes::from(bytes);
        let mut wait = FIRST_RETRY;
        loop {
            match self.objects.create(&key, body.clone()).await {
                Ok(_created) => return CreateAnswer::Created,
                Err(CreateError::Exists { .. }) => return CreateAnswer::Exists,
                Err(CreateError::Ambiguous(error)) => {
                    self.warn("whether the commit is in the log is being looked up", &error);
                    return CreateAnswer::Ambiguous;
                }
                Err(CreateError::Failed(error)) => {
                    self.warn("the commit waits", &error);
                    backoff(&mut wait).await;
                }
            }
        }
    }

    async fn read_record(&self, seq: Seq) -> Option<Vec<u8>> {
        let key = ObjectKey::Log(self.volume.clone(), seq).to_string();
        let mut wait = FIRST_RETRY;
        loop {
            match self.objects.get(&key, MAX_RECORD_BYTES).await {
                Ok(bytes) => return Some(bytes.to_vec()),
                Err(StoreError::NotFound { .. }) => return None,
                Err(error) => {
                    self.warn("the log cannot be read yet", &error);
                    backoff(&mut wait).await;
                }
            }
        }
    }
}

async fn backoff(wait: &mut Duration) {
    tokio::time::sleep(*wait).await;
    *wait = (*wait * 2).min(LAST_RETRY);
}

/// Reads the sectors `mask` of `block` to their places in a block-sized buffer.
fn read_sectors(side: &File, block: Block, mask: Mask, buffer: &mut HeapBuffer) -> std::io::Result<()> {
    for (first, length) in mask.runs() {
        let (from, to) =
            (first as usize * SECTOR_BYTES as usize, (first + length) as usize * SECTOR_BYTES as usize);
        let offset = (block.first_sector().0 + u64::from(first)) * SECTOR_BYTES;
        side.read_exact_at(&mut buffer[from..to], offset)?;
    }
    Ok(())
}
