//! One memory volume on a ring thread. The thread answers the requests of its share of the device's queues in
//! their turn, unless they need the disk.

use std::num::NonZeroU64;
use std::sync::Arc;

use holdfast_memory::{Codecs, DiskRun, MemoryVolume, SpillEnd, SpillRequest};
use holdfast_ring::{FileSlot, IoResult, RingError};
use holdfast_types::Millis;
use holdfast_ublk::{Device, DeviceRequest, Operation, Queue, QueueCommand, QueueEvent};

use super::files::MemoryFiles;
use super::lines::MemoryLines;
use super::new_volume::{NewMemoryVolume, QueueShare};
use super::published::PublishedMemory;
use super::serve_failure::ServeFailure;
use super::spill_queue::{QueuedRequest, RunEnd, SpillQueue};
use super::turn::MemoryTurn;
use crate::latency::{LatencySample, TimedOperation, now_us};
use crate::message::{Reply, RingRefusal};
use crate::operation::{VolumeKey, VolumeRing};
use crate::published_status::ServedCounts;

/// A request and its volume.
pub(super) type RequestOfVolume = (VolumeKey, QueuedRequest);

/// A memory volume on a ring thread.
pub(super) struct ServedMemory {
    volume: Arc<MemoryVolume<MemoryFiles>>,
    share: QueueShare,
    /// The queues of the share.
    queues: Vec<Queue<VolumeKey>>,
    /// Boxed, so that a volume without a spill file needs no memory for it.
    spill: Option<Box<SpillQueue>>,
    /// Runs of the request that is being begun; empty between requests.
    runs: Vec<DiskRun>,
    /// True while the queues are open.
    is_open: bool,
    closing: Option<Reply>,
    tally: ServedCounts,
    sample: LatencySample,
    lines: MemoryLines,
    published: Arc<PublishedMemory>,
    _place: Box<dyn Send>,
}

impl ServedMemory {
    pub(super) fn new(new: NewMemoryVolume, key: VolumeKey, spill_file: Option<FileSlot>) -> Self {
        let NewMemoryVolume { volume, share, spill_file: _registered, label, published, place } = new;
        let served = Self {
            volume,
            share,
            queues: Vec::new(),
            spill: spill_file.map(|file| Box::new(SpillQueue::new(file, key))),
            runs: Vec::new(),
            is_open: false,
            closing: None,
            tally: ServedCounts::default(),
            sample: LatencySample::new(),
            lines: MemoryLines::new(label),
            published,
            _place: place,
        };
        served.show();
        served
    }

    pub(super) fn open(&mut self, device: Device, queues: Vec<Queue<VolumeKey>>) {
        self.lines.label().set_device(device);
        self.queues = queues;
        self.is_open = true;
    }

    pub(super) fn arm(&mut self, ring: &mut VolumeRing) {
        for queue in &mut self.queues {
            queue.arm(ring);
        }
    }

    /// Handles the end of a queue's command. A request may wait for its `turn`. Returns false if the queue is
    /// closed.
    pub(super) fn on_command(
        &mut self,
        ring: &mut VolumeRing,
        (codecs, turn): (&mut Codecs, &mut MemoryTurn<RequestOfVolume>),
        QueueCommand { owner, queue_id, tag }: QueueCommand<VolumeKey>,
        outcome: IoResult,
        now: Millis,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(self.share.place(queue_id)) else { return false };
        match queue.on_completion(ring, tag, outcome) {
            QueueEvent::Request(request) => {
                let len_bytes = request.len_bytes();
                let is_flush = request.operation() == Operation::Flush || request.is_fua();
                let began_us = self.sample.begin(is_flush);
                let request = (owner, QueuedRequest { queue: queue_id, request, began_us });
                if let Some((_, request)) = turn.admit(request, len_bytes) {
                    self.serve(ring, codecs, request, now);
                }
            }
            QueueEvent::Held | QueueEvent::Refused => {}
            QueueEvent::Aborted => {
                self.published.device_ended();
                self.finish_closing(ring);
            }
            QueueEvent::Failed { tag, errno } => {
                self.lines.queue_refused(queue_id, tag, errno, now);
                self.published.queue_refused(errno);
                self.finish_closing(ring);
            }
        }
        true
    }

    /// Serves a request in its turn.
    #[inline]
    pub(super) fn serve(
        &mut self,
        ring: &mut VolumeRing,
        codecs: &mut Codecs,
        queued: QueuedRequest,
        now: Millis,
    ) {
        let Self { volume, share, queues, spill, tally, .. } = self;
        if spill.is_some() {
            return self.admit(ring, codecs, queued, now);
        }
        let QueuedRequest { queue, request, began_us } = queued;
        let queue = &mut queues[share.place(queue)];
        let served = serve(volume, codecs, queue, &request, tally).map(drop);
        tally.errors += u64::from(served.is_err());
        if let Some(began_us) = began_us {
            time(tally, &request, began_us);
        }
        let at = (request.start_sector(), request.sectors());
        queue.complete(ring, request, served.map_err(ServeFailure::errno));
        if let Err(failure) = served {
            self.lines.failed(failure, at, || self.volume.figures(), now);
        }
    }

    /// Leaves to the successor a request that had no turn yet.
    pub(super) fn leave_waiting(&mut self, QueuedRequest { queue, request, .. }: QueuedRequest) {
        self.queues[self.share.place(queue)].leave(request);
    }

    /// Serves a request of a volume with a spill file, once no earlier request excludes it.
    fn admit(&mut self, ring: &mut VolumeRing, codecs: &mut Codecs, queued: QueuedRequest, now: Millis) {
        let request = &queued.request;
        let (first, pages) = (request.start_sector(), u64::from(request.sectors()));
        let is_read = request.operation() == Operation::Read;
        let request = SpillRequest { request: queued, first, pages, is_read };
        if let Some(request) = self.spill.as_mut().and_then(|spill| spill.requests.admit(request)) {
            self.begin(ring, codecs, request, now);
        }
    }

    /// Answers a request, or starts its operations on the disk.
    fn begin(
        &mut self,
        ring: &mut VolumeRing,
        codecs: &mut Codecs,
        request: SpillRequest<QueuedRequest>,
        now: Millis,
    ) {
        let Self { volume, queues, spill: Some(spill), tally, runs, .. } = self else { return };
        let (first, pages) = (request.first, request.pages);
        let queue = &mut queues[usize::from(request.request.queue)];
        let served = serve(volume, codecs, queue, &request.request.request, tally);
        volume.take_disk_runs(runs);
        if let Ok(1..) = served {
            runs.extend(volume.spilled_runs(first, pages));
        }
        let result = served.map(drop);
        let count = u32::try_from(runs.len()).expect("a request has few runs");
        if count == 0 {
            return self.answer(ring, SpillEnd { request: request.request, result }, now);
        }
        let number = spill.requests.begin(request, count, result);
        for run in runs.drain(..) {
            spill.start(ring, queues, number, run);
        }
    }

    /// Handles the end of a run on the spill file.
    pub(super) fn on_spilled(
        &mut self,
        ring: &mut VolumeRing,
        codecs: &mut Codecs,
        run: u32,
        outcome: IoResult,
        now: Millis,
    ) {
        let Self { volume, queues, spill: Some(spill), .. } = self else { return };
        let RunEnd { ended, failed } = spill.end(ring, queues, volume, run, outcome);
        if let Some((run, errno)) = failed {
            self.lines.disk_failed(&run, errno, now);
        }
        let Some(ended) = ended else { return };
        self.answer(ring, ended, now);
        while let Some(request) = self.spill.as_mut().and_then(|spill| spill.requests.next_ready()) {
            self.begin(ring, codecs, request, now);
        }
        self.finish_closing(ring);
    }

    fn answer(&mut self, ring: &mut VolumeRing, ended: SpillEnd<QueuedRequest, ServeFailure>, now: Millis) {
        let SpillEnd { request: QueuedRequest { queue, request, began_us }, result } = ended;
        self.tally.errors += u64::from(result.is_err());
        if let Some(began_us) = began_us {
            time(&mut self.tally, &request, began_us);
        }
        let at = (request.start_sector(), request.sectors());
        self.queues[self.share.place(queue)].complete(ring, request, result.map_err(ServeFailure::errno));
        if let Err(failure) = result {
            self.lines.failed(failure, at, || self.volume.figures(), now);
        }
    }

    /// Returns true if no request waits for the disk.
    pub(super) fn is_still(&self) -> bool {
        self.spill.as_ref().is_none_or(|spill| spill.requests.is_idle())
    }

    /// Leaves every request to the successor, before the process ends: the kernel hands them to it.
    pub(super) fn leave(&mut self) {
        let Self { queues, spill: Some(spill), .. } = self else { return };
        let (running, waiting) = spill.requests.leave();
        // The disk may still access the requests' memory, which their queue keeps.
        running.for_each(|QueuedRequest { request, .. }| request.leave_to_successor());
        waiting.for_each(|QueuedRequest { queue, request, .. }| queues[usize::from(queue)].leave(request));
    }

    /// Removes the volume's spill file from the ring.
    pub(super) fn release(self, ring: &mut VolumeRing) -> Result<(), RingError> {
        self.spill.map_or(Ok(()), |spill| ring.unregister_file(spill.file()))
    }

    /// Releases the queues of a stopped device once the kernel has returned all tags.
    pub(super) fn close(&mut self, ring: &mut VolumeRing, done: Reply) {
        self.closing = Some(done);
        self.finish_closing(ring);
    }

    fn finish_closing(&mut self, ring: &mut VolumeRing) {
        if self.queues.iter().any(|queue| queue.commands_with_kernel() + queue.requests_with_owner() > 0) {
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
        self.lines.tick(now);
        self.sample.tick();
        self.show();
    }

    fn show(&self) {
        if self.share.number == 0 {
            self.published.show_figures(|| self.volume.figures());
        }
        self.published.show_served(self.share.number, self.tally);
    }

    pub(super) fn drain(&mut self) {
        // The successor has the device; its detach is repeated there.
        self.closing = None;
        for queue in &mut self.queues {
            queue.drain();
        }
    }

    pub(super) fn requests(&self) -> u32 {
        self.queues.iter().map(|queue| u32::from(queue.requests_with_owner())).sum()
    }
}

/// Counts the duration of a request that began at `began_us`.
#[cold]
fn time(tally: &mut ServedCounts, request: &DeviceRequest, began_us: NonZeroU64) {
    if let Some(operation) = TimedOperation::of(request) {
        tally.latencies.add(operation, now_us().saturating_sub(began_us.get()));
    }
}

/// Performs the part of a request that needs no disk. Returns the number of pages of a read that are in the
/// spill file. A FLUSH has nothing to do: no content outlives the host.
fn serve<K: Copy>(
    volume: &MemoryVolume<MemoryFiles>,
    codecs: &mut Codecs,
    queue: &mut Queue<K>,
    request: &DeviceRequest,
    tally: &mut ServedCounts,
) -> Result<u32, ServeFailure> {
    let first = request.start_sector();
    match request.operation() {
        Operation::Read => {
            tally.reads += 1;
            tally.read_bytes += request.len_bytes();
            volume.read(codecs, first, queue.buffer_of_read(request)).map_err(ServeFailure::Page)
        }
        Operation::Write => {
            tally.writes += 1;
            tally.written_bytes += request.len_bytes();
            let data = queue.data_of_write(request).map_err(|_errno| ServeFailure::Copy)?;
            volume.write(codecs, first, data).map(|()| 0).map_err(ServeFailure::Page)
        }
        Operation::Flush => {
            tally.flushes += 1;
            Ok(0)
        }
        Operation::Discard | Operation::WriteZeroes => {
            tally.discards += 1;
            volume.discard(first, u64::from(request.sectors())).map(|()| 0).map_err(ServeFailure::Page)
        }
    }
}
