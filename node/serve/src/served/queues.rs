//! The queues of a volume's device on its ring thread, and the requests that the planner has.
//!
//! Invariants: a request stays here from its arrival to its completion; its id encodes its queue and tag.

use holdfast_engine::event::RequestId;
use holdfast_fuse::FuseQueue;
use holdfast_ring::{IoResult, KernelErrno};
use holdfast_ublk::{DeviceRequest, QueueEvent};

use crate::latency::{Latencies, SAMPLE, TimedOperation, now_us};
use crate::message::{Reply, RingRefusal};
use crate::operation::{VolumeKey, VolumeRing};
use crate::volume_queue::VolumeQueue;

/// A request that the planner has.
struct OpenRequest {
    queue: u16,
    /// True if its start is in [`TimedRequests`].
    is_timed: bool,
    request: DeviceRequest,
}

/// The timed requests.
struct TimedRequests {
    /// Number of requests until the next timed one.
    left: u32,
    /// Value of `left` after the next timed request.
    left_after: u32,
    /// Start times of the timed requests in flight, by id, in microseconds.
    began_us: Vec<u64>,
    latencies: Latencies,
}

impl TimedRequests {
    #[cold]
    #[inline(never)]
    fn begin(&mut self, id: RequestId) {
        self.began_us[id.0 as usize] = now_us();
        self.left = std::mem::replace(&mut self.left_after, SAMPLE);
    }

    /// Times the next request in addition to the sample, so that forced requests do not displace others from
    /// the sample.
    const fn time_next_too(&mut self) {
        self.left_after = self.left;
        self.left = 1;
    }

    #[cold]
    #[inline(never)]
    fn end(&mut self, id: RequestId, request: &DeviceRequest) {
        if let Some(operation) = TimedOperation::of(request) {
            self.latencies.add(operation, now_us().saturating_sub(self.began_us[id.0 as usize]));
        }
    }
}

/// The queues of a volume's device.
pub(super) struct Queues {
    /// Requests of a queue.
    depth: u32,
    queues: Vec<VolumeQueue>,
    /// The requests of the first queue by tag, then those of the next.
    requests: Vec<Option<OpenRequest>>,
    /// True while the queues are open.
    is_open: bool,
    closing: Option<Reply>,
    timed: TimedRequests,
}

impl Queues {
    /// Creates the queues of a device that is not open yet, with room for `requests` requests.
    pub(super) fn new(requests: u32) -> Self {
        Self {
            depth: requests,
            queues: Vec::new(),
            requests: (0..requests).map(|_| None).collect(),
            is_open: false,
            closing: None,
            timed: TimedRequests {
                left: SAMPLE,
                left_after: SAMPLE,
                began_us: vec![0; requests as usize],
                latencies: Latencies::default(),
            },
        }
    }

    /// Offers the queues to the kernel.
    pub(super) fn open(&mut self, ring: &mut VolumeRing, queues: Vec<VolumeQueue>) {
        let number = queues.len().max(1);
        self.depth = u32::try_from(self.requests.len() / number).expect("a count of requests");
        self.queues = queues;
        self.is_open = true;
        for queue in &mut self.queues {
            queue.arm(ring);
        }
    }

    /// Handles the end of a tag's command. Returns `None` if its queue is closed, or the planner has the tag.
    #[inline(always)]
    pub(super) fn on_command(
        &mut self,
        ring: &mut VolumeRing,
        queue: u16,
        tag: u16,
        outcome: IoResult,
    ) -> Option<QueueEvent> {
        let is_with_planner = self.requests.get(self.id(queue, tag).0 as usize)?.is_some();
        match self.queues.get_mut(usize::from(queue)) {
            Some(VolumeQueue::Ublk(queue)) if !is_with_planner => {
                Some(queue.on_completion(ring, tag, outcome))
            }
            Some(VolumeQueue::Ublk(_) | VolumeQueue::Fuse(_)) | None => None,
        }
    }

    /// Returns a queue if it has batches.
    #[inline(always)]
    pub(super) fn with_batches(&mut self, queue: u16) -> Option<&mut holdfast_ublk::Queue<VolumeKey>> {
        match self.queues.get_mut(usize::from(queue)) {
            Some(VolumeQueue::Ublk(queue)) if queue.has_batches() => Some(queue),
            Some(VolumeQueue::Ublk(_) | VolumeQueue::Fuse(_)) | None => None,
        }
    }

    /// Returns the FUSE connection, if it is open.
    pub(super) fn fuse(&mut self) -> Option<&mut FuseQueue<VolumeKey>> {
        match self.queues.first_mut() {
            Some(VolumeQueue::Fuse(queue)) => Some(queue),
            Some(VolumeQueue::Ublk(_)) | None => None,
        }
    }

    #[inline(always)]
    fn id(&self, queue: u16, tag: u16) -> RequestId {
        RequestId(u32::from(queue) * self.depth + u32::from(tag))
    }

    /// Makes the next request one of the sample.
    pub(super) const fn time_next(&mut self) {
        self.timed.left = 1;
    }

    /// Times the next request in addition to the sample.
    pub(super) const fn time_next_too(&mut self) {
        self.timed.time_next_too();
    }

    /// Keeps a request until it is completed.
    #[inline(always)]
    pub(super) fn insert(&mut self, queue: u16, request: DeviceRequest) -> RequestId {
        let id = self.id(queue, request.tag());
        self.timed.left -= 1;
        let is_timed = self.timed.left == 0;
        if is_timed {
            self.timed.begin(id);
        }
        let place = self.requests[id.0 as usize].replace(OpenRequest { queue, is_timed, request });
        assert!(place.is_none(), "the kernel hands out a tag once");
        id
    }

    /// Returns a request with its queue.
    #[inline(always)]
    pub(super) fn request(&self, id: RequestId) -> (&VolumeQueue, &DeviceRequest) {
        let OpenRequest { queue, request, .. } = self.requests[id.0 as usize].as_ref().expect("in flight");
        (&self.queues[usize::from(*queue)], request)
    }

    /// Returns a request without its queue.
    #[inline(always)]
    pub(super) fn described(&self, id: RequestId) -> &DeviceRequest {
        &self.requests[id.0 as usize].as_ref().expect("in flight").request
    }

    #[inline(always)]
    pub(super) fn complete(
        &mut self,
        ring: &mut VolumeRing,
        id: RequestId,
        outcome: Result<(), KernelErrno>,
    ) {
        let open = self.requests[id.0 as usize].take();
        let OpenRequest { queue, is_timed, request } = open.expect("the planner completes what is in flight");
        if is_timed {
            self.timed.end(id, &request);
        }
        self.queues[usize::from(queue)].complete(ring, request, outcome);
    }

    /// Releases the queues of a stopped device once the kernel has returned all tags.
    pub(super) fn close(&mut self, ring: &mut VolumeRing, done: Reply) {
        self.closing = Some(done);
        for queue in &mut self.queues {
            queue.end(ring);
        }
        self.finish_closing(ring);
    }

    /// Returns true while a close waits for the tags of a stopped device.
    pub(super) const fn is_closing(&self) -> bool {
        self.closing.is_some()
    }

    pub(super) fn finish_closing(&mut self, ring: &mut VolumeRing) {
        let all_back = self.queues.iter().all(|queue| queue.with_kernel() + queue.requests_with_owner() == 0);
        if !all_back {
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

    /// Leaves further requests to the successor.
    pub(super) fn drain(&mut self) {
        // The successor has the device; its detach is repeated there.
        self.closing = None;
        for queue in &mut self.queues {
            queue.drain();
        }
    }

    /// Returns the durations of requests.
    pub(super) const fn latencies(&self) -> &Latencies {
        &self.timed.latencies
    }

    /// Returns the number of requests that the planner has.
    pub(super) fn with_owner(&self) -> u32 {
        self.queues.iter().map(|queue| u32::from(queue.requests_with_owner())).sum()
    }

    /// Returns true if the queues are open.
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    /// Leaves every request to the successor, before the process ends: the kernel hands them to it. Unless
    /// the volume `is_still`, moves of their data may be in flight.
    pub(super) fn leave(&mut self, is_still: bool) {
        for place in &mut self.requests {
            let Some(OpenRequest { queue, request, .. }) = place.take() else { continue };
            match self.queues.get_mut(usize::from(queue)) {
                Some(queue) if is_still => queue.leave(request),
                Some(_) | None => request.leave_to_successor(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_ring::RingOptions;
    use tokio::sync::oneshot::{self, error::TryRecvError};

    use super::*;

    /// Found in review: a detach that had not ended when the thread left closed the queues of the successor.
    #[test]
    fn a_close_that_has_not_ended_is_dropped_when_the_thread_leaves() {
        let mut ring =
            VolumeRing::new(&RingOptions { submission_entries: 8, ..RingOptions::default() }).unwrap();
        let mut queues = Queues::new(1);
        let (done, mut closed) = oneshot::channel();
        queues.closing = Some(done);
        queues.drain();
        queues.finish_closing(&mut ring);
        assert!(matches!(closed.try_recv(), Err(TryRecvError::Closed)));
    }

    /// Found by reading: a flush in each 64 requests left no read and no write in the sample.
    #[test]
    fn forced_requests_take_nothing_of_the_sample() {
        let (began_us, latencies) = (vec![0], Latencies::default());
        let mut requests = TimedRequests { left: SAMPLE, left_after: SAMPLE, began_us, latencies };
        let mut timed = 0;
        for number in 1..=10 * SAMPLE {
            if number % 10 == 0 {
                requests.time_next_too();
                requests.begin(RequestId(0));
            }
            requests.left -= 1;
            if requests.left == 0 {
                requests.begin(RequestId(0));
                timed += 1;
            }
        }
        assert_eq!(timed, 10);
    }
}
