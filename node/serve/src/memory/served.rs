//! One memory volume on a ring thread, which answers the requests of its share of the device's queues in
//! their turn, unless they need the disk.

use std::sync::Arc;

use holdfast_background::{LineLimit, Rest};
use holdfast_memory::{Codecs, DiskRun, MemoryVolume, PAGE_BYTES, PageError, SpillEnd, SpillRequest};
use holdfast_ring::{FileSlot, IoResult, RingError};
use holdfast_types::Millis;
use holdfast_ublk::{Device, DeviceRequest, Operation, Queue, QueueCommand, QueueEvent};

use super::files::MemoryFiles;
use super::new_volume::{NewMemoryVolume, QueueShare};
use super::published::PublishedMemory;
use super::serve_failure::ServeFailure;
use super::spill_queue::{QueuedRequest, RunEnd, SpillQueue};
use super::turn::MemoryTurn;
use crate::label::Label;
use crate::message::{Reply, RingRefusal};
use crate::operation::{Ring, VolumeKey};
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
    label: Arc<Label>,
    queue_refused: LineLimit,
    full: LineLimit,
    damaged: LineLimit,
    disk: LineLimit,
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
            label,
            queue_refused: LineLimit::default(),
            full: LineLimit::default(),
            damaged: LineLimit::default(),
            disk: LineLimit::default(),
            published,
            _place: place,
        };
        served.show();
        served
    }

    pub(super) fn open(&mut self, device: Device, queues: Vec<Queue<VolumeKey>>) {
        self.label.set_device(device);
        self.queues = queues;
        self.is_open = true;
    }

    pub(super) fn arm(&mut self, ring: &mut Ring) {
        for queue in &mut self.queues {
            queue.arm(ring);
        }
    }

    /// Handles the end of a queue's command. A request may wait for its `turn`. Returns false if the queue is
    /// closed.
    pub(super) fn on_command(
        &mut self,
        ring: &mut Ring,
        (codecs, turn): (&mut Codecs, &mut MemoryTurn<RequestOfVolume>),
        QueueCommand { owner, queue_id, tag }: QueueCommand<VolumeKey>,
        outcome: IoResult,
        now: Millis,
    ) -> bool {
        let Some(queue) = self.queues.get_mut(self.share.place(queue_id)) else { return false };
        match queue.on_completion(ring, tag, outcome) {
            QueueEvent::Request(request) => {
                let len_bytes = request.len_bytes();
                let request = (owner, QueuedRequest { queue: queue_id, request });
                if let Some((_, request)) = turn.admit(request, len_bytes) {
                    self.serve(ring, codecs, request, now);
                }
            }
            QueueEvent::Held | QueueEvent::Refused => {}
            QueueEvent::Aborted => self.finish_closing(ring),
            QueueEvent::Failed { tag, errno } => {
                if let Some(held_back) = self.queue_refused.admit(now) {
                    let _volume = self.label.span().entered();
                    tracing::error!(queue_id, tag, %errno, held_back, "the kernel refused a queue command");
                }
                self.published.queue_refused(errno);
                self.finish_closing(ring);
            }
        }
        true
    }

    /// Serves a request in its turn.
    #[inline]
    pub(super) fn serve(&mut self, ring: &mut Ring, codecs: &mut Codecs, queued: QueuedRequest, now: Millis) {
        let Self { volume, share, queues, spill, tally, .. } = self;
        if spill.is_some() {
            return self.admit(ring, codecs, queued, now);
        }
        let QueuedRequest { queue, request } = queued;
        let queue = &mut queues[share.place(queue)];
        let served = serve(volume, codecs, queue, &request, tally).map(drop);
        tally.errors += u64::from(served.is_err());
        let (first, sectors) = (request.start_sector(), request.sectors());
        queue.complete(ring, request, served.map_err(ServeFailure::errno));
        if let Err(failure) = served {
            self.log(failure, first, sectors, now);
        }
    }

    /// Leaves a request that had no turn to the successor.
    pub(super) fn leave_waiting(&mut self, QueuedRequest { queue, request }: QueuedRequest) {
        self.queues[self.share.place(queue)].leave(request);
    }

    /// Serves a request of a volume with a spill file, once no earlier request excludes it.
    fn admit(&mut self, ring: &mut Ring, codecs: &mut Codecs, queued: QueuedRequest, now: Millis) {
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
        ring: &mut Ring,
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
        ring: &mut Ring,
        codecs: &mut Codecs,
        run: u32,
        outcome: IoResult,
        now: Millis,
    ) {
        let Self { volume, queues, spill: Some(spill), .. } = self else { return };
        let RunEnd { ended, failed } = spill.end(ring, queues, volume, run, outcome);
        if let Some((run, errno)) = failed
            && let Some(held_back) = self.disk.admit(now)
        {
            let _volume = self.label.span().entered();
            let (operation, at_bytes, len_bytes) = (run.operation, run.offset_bytes(), run.len_bytes());
            tracing::error!(?operation, at_bytes, len_bytes, %errno, held_back, "the disk failed in the spill file");
        }
        let Some(ended) = ended else { return };
        self.answer(ring, ended, now);
        while let Some(request) = self.spill.as_mut().and_then(|spill| spill.requests.next_ready()) {
            self.begin(ring, codecs, request, now);
        }
        self.finish_closing(ring);
    }

    fn answer(&mut self, ring: &mut Ring, ended: SpillEnd<QueuedRequest, ServeFailure>, now: Millis) {
        let SpillEnd { request: QueuedRequest { queue, request }, result } = ended;
        self.tally.errors += u64::from(result.is_err());
        let (first, sectors) = (request.start_sector(), request.sectors());
        self.queues[usize::from(queue)].complete(ring, request, result.map_err(ServeFailure::errno));
        if let Err(failure) = result {
            self.log(failure, first, sectors, now);
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
        // The disk may still use their memory: their queue keeps it.
        running.for_each(|QueuedRequest { request, .. }| request.leave_to_successor());
        waiting.for_each(|QueuedRequest { queue, request }| queues[usize::from(queue)].leave(request));
    }

    /// Removes the volume's spill file from the ring.
    pub(super) fn release(self, ring: &mut Ring) -> Result<(), RingError> {
        self.spill.map_or(Ok(()), |spill| ring.unregister_file(spill.file()))
    }

    fn log(&mut self, failure: ServeFailure, sector: u64, sectors: u32, now: Millis) {
        let _volume = self.label.span().entered();
        match failure {
            ServeFailure::Page(PageError::NoSpace) => {
                let Some(held_back) = self.full.admit(now) else { return };
                let figures = self.volume.figures();
                tracing::error!(
                    slab_bytes = figures.slab_bytes,
                    limit_bytes = figures.limit_bytes,
                    spilled_bytes = figures.spilled_pages * PAGE_BYTES as u64,
                    spill_limit_bytes = figures.spill_limit_pages * PAGE_BYTES as u64,
                    held_back,
                    "a memory volume is at its limits, or node.run_dir or the disk of its spill file is full: writes \
                     fail; delete files and trim, or give it a higher limit"
                );
            }
            ServeFailure::Page(PageError::Damaged(page)) => {
                let Some(held_back) = self.damaged.admit(now) else { return };
                tracing::error!(page, held_back, "a page of a memory volume is damaged: requests to it fail");
            }
            ServeFailure::Copy => {
                let Some(held_back) = self.damaged.admit(now) else { return };
                tracing::error!(sector, sectors, held_back, "the kernel did not copy the data of a write");
            }
            // The end of the run has logged this.
            ServeFailure::Disk => {}
        }
    }

    /// Releases the queues of a stopped device once the kernel has returned all tags.
    pub(super) fn close(&mut self, ring: &mut Ring, done: Reply) {
        self.closing = Some(done);
        self.finish_closing(ring);
    }

    fn finish_closing(&mut self, ring: &mut Ring) {
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
        for (what, limit) in [
            ("the kernel refused a queue command", &self.queue_refused),
            ("a write found no memory", &self.full),
            ("a page was damaged or not copied", &self.damaged),
            ("the disk failed in the spill file", &self.disk),
        ] {
            if let Some(times) = limit.take_suppressed(Rest::Due(now)) {
                let _volume = self.label.span().entered();
                tracing::warn!(times, "{what}, since the last line about it");
            }
        }
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
