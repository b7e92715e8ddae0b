//! One memory volume on a ring thread: requests of its device, answered as they come.

use std::sync::Arc;

use holdfast_background::{LineLimit, Rest};
use holdfast_memory::{Codecs, MemoryVolume, PageError};
use holdfast_ring::{Errno, IoResult};
use holdfast_types::Millis;
use holdfast_ublk::{Device, DeviceRequest, Operation, Queue, QueueEvent};

use super::files::MemoryFiles;
use super::new_volume::NewMemoryVolume;
use super::published::PublishedMemory;
use crate::label::Label;
use crate::message::{Reply, RingRefusal};
use crate::operation::{Ring, VolumeKey};
use crate::published_status::ServedCounts;

/// A memory volume on a ring thread.
pub(super) struct ServedMemory {
    volume: MemoryVolume<MemoryFiles>,
    queues: Vec<Queue<VolumeKey>>,
    /// They are with the kernel.
    is_open: bool,
    closing: Option<Reply>,
    tally: ServedCounts,
    label: Arc<Label>,
    queue_refused: LineLimit,
    full: LineLimit,
    damaged: LineLimit,
    published: Arc<PublishedMemory>,
    _place: Box<dyn Send>,
}

impl ServedMemory {
    pub(super) fn new(new: NewMemoryVolume) -> Self {
        let NewMemoryVolume { volume, label, published, place } = new;
        let served = Self {
            volume,
            queues: Vec::new(),
            is_open: false,
            closing: None,
            tally: ServedCounts::default(),
            label,
            queue_refused: LineLimit::default(),
            full: LineLimit::default(),
            damaged: LineLimit::default(),
            published,
            _place: place,
        };
        served.show();
        served
    }

    pub(super) fn open(&mut self, ring: &mut Ring, device: Device, queues: Vec<Queue<VolumeKey>>) {
        self.label.set_device(device);
        self.queues = queues;
        self.is_open = true;
        for queue in &mut self.queues {
            queue.arm(ring);
        }
    }

    /// False if the queue is closed.
    pub(super) fn on_command(
        &mut self,
        ring: &mut Ring,
        codecs: &mut Codecs,
        (queue_id, tag): (u16, u16),
        outcome: IoResult,
        now: Millis,
    ) -> bool {
        let Self { volume, queues, tally, .. } = self;
        let Some(queue) = queues.get_mut(usize::from(queue_id)) else { return false };
        match queue.on_completion(ring, tag, outcome) {
            QueueEvent::Request(request) => {
                let served = serve(volume, codecs, queue, &request, tally);
                tally.errors += u64::from(served.is_err());
                let (first, sectors) = (request.start_sector(), request.sectors());
                queue.complete(ring, request, served.map_err(ServeFailure::errno));
                if let Err(failure) = served {
                    self.log(failure, first, sectors, now);
                }
            }
            QueueEvent::Held | QueueEvent::Refused => {}
            QueueEvent::Aborted { .. } => self.finish_closing(ring),
            QueueEvent::Failed { tag, errno } => {
                if let Some(held_back) = self.queue_refused.one(now) {
                    let _volume = self.label.span().entered();
                    tracing::error!(queue_id, tag, %errno, held_back, "the kernel refused a queue command");
                }
                self.published.queue_refused(errno);
                self.finish_closing(ring);
            }
        }
        true
    }

    fn log(&mut self, failure: ServeFailure, sector: u64, sectors: u32, now: Millis) {
        let _volume = self.label.span().entered();
        match failure {
            ServeFailure::Page(PageError::NoSpace) => {
                let Some(held_back) = self.full.one(now) else { return };
                let figures = self.volume.figures();
                tracing::error!(
                    slab_bytes = figures.slab_bytes,
                    limit_bytes = figures.limit_bytes,
                    held_back,
                    "a memory volume is at its limit or node.run_dir is full: writes fail; delete files and trim, or \
                     attach it with a higher limit"
                );
            }
            ServeFailure::Page(PageError::Damaged(page)) => {
                let Some(held_back) = self.damaged.one(now) else { return };
                tracing::error!(page, held_back, "a page of a memory volume is damaged: requests to it fail");
            }
            ServeFailure::Copy => {
                let Some(held_back) = self.damaged.one(now) else { return };
                tracing::error!(sector, sectors, held_back, "the kernel did not copy the data of a write");
            }
        }
    }

    /// Releases the queues once all tags are back; the device was stopped.
    pub(super) fn close(&mut self, ring: &mut Ring, done: Reply) {
        self.closing = Some(done);
        self.finish_closing(ring);
    }

    fn finish_closing(&mut self, ring: &mut Ring) {
        if self.queues.iter().any(|queue| queue.tags_with_kernel() > 0) {
            return;
        }
        if let Some(done) = self.closing.take() {
            let mut queues = std::mem::take(&mut self.queues).into_iter();
            let closed = queues.try_for_each(|queue| queue.close(ring)).map_err(RingRefusal::from);
            self.is_open = false;
            // The caller may have stopped waiting.
            drop(done.send(closed));
        }
    }

    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn tick(&mut self, now: Millis) {
        for (what, limit) in [
            ("the kernel refused a queue command", &self.queue_refused),
            ("a write found no memory", &self.full),
            ("a page was damaged or not copied", &self.damaged),
        ] {
            if let Some(times) = limit.rest(Rest::Due(now)) {
                let _volume = self.label.span().entered();
                tracing::warn!(times, "{what}, since the last line about it");
            }
        }
        self.show();
    }

    fn show(&self) {
        self.published.show(self.volume.figures(), self.tally);
    }

    pub(super) fn drain(&mut self) {
        for queue in &mut self.queues {
            queue.drain();
        }
    }

    pub(super) fn requests(&self) -> u32 {
        self.queues.iter().map(|queue| u32::from(queue.requests_with_owner())).sum()
    }
}

/// Reason why a request failed.
#[derive(Debug, Clone, Copy)]
enum ServeFailure {
    Page(PageError),
    Copy,
}

impl ServeFailure {
    const fn errno(self) -> Errno {
        match self {
            Self::Page(PageError::NoSpace) => Errno::new(libc::ENOSPC),
            Self::Page(PageError::Damaged(_)) | Self::Copy => Errno::EIO,
        }
    }
}

/// Does what a request asks for. A FLUSH has nothing to do: no content outlives the host.
fn serve<K: Copy>(
    volume: &mut MemoryVolume<MemoryFiles>,
    codecs: &mut Codecs,
    queue: &mut Queue<K>,
    request: &DeviceRequest,
    tally: &mut ServedCounts,
) -> Result<(), ServeFailure> {
    let first = request.start_sector();
    match request.operation() {
        Operation::Read => {
            tally.reads += 1;
            tally.read_bytes += request.len_bytes();
            volume.read(codecs, first, queue.buffer_of_read(request)).map(drop).map_err(ServeFailure::Page)
        }
        Operation::Write => {
            tally.writes += 1;
            tally.written_bytes += request.len_bytes();
            let data = queue.data_of_write(request).map_err(|_errno| ServeFailure::Copy)?;
            volume.write(codecs, first, data).map_err(ServeFailure::Page)
        }
        Operation::Flush => {
            tally.flushes += 1;
            Ok(())
        }
        Operation::Discard | Operation::WriteZeroes => {
            tally.discards += 1;
            volume.discard(first, u64::from(request.sectors())).map_err(ServeFailure::Page)
        }
    }
}
