//! Requests of a volume that has or had limits: each passes the volume's
//! [`Throttle`](crate::throttle::Throttle) before it reaches the planner.
//!
//! A waiting request is treated like any other: it counts as not completed, it is left to the successor, and
//! its duration runs from its arrival. A volume without limits never runs this code.

use holdfast_ring::Pause;
use holdfast_types::{Millis, SectorRange};
use holdfast_ublk::DeviceRequest;

use super::ServedVolume;
use crate::io_limits::IoLimits;
use crate::limit::LIMIT_PAUSE_MS;
use crate::operation::{FileOperation, VolumeRing};
use crate::throttle::NewRequest;

static PAUSE: Pause = Pause::millis(LIMIT_PAUSE_MS);

impl ServedVolume {
    /// Begins or queues a request while the volume has limits.
    #[cold]
    #[inline(never)]
    pub(super) fn begin_limited(
        &mut self,
        ring: &mut VolumeRing,
        queue: u16,
        request: DeviceRequest,
        now: Millis,
    ) {
        let range = SectorRange::new(request.start_sector(), u64::from(request.sectors()));
        let op = self.count(&request);
        let id = self.queues.insert(queue, request);
        // Without a pause in flight, the thread's time may be that of its last message.
        let at = if self.limits.throttle.is_pausing() { now } else { crate::clock::now() };
        if self.limits.throttle.admit_or_queue(NewRequest { id, op, range }, at) {
            self.begin_other(ring, (id, op, range), now);
        }
        self.pause_for_limits(ring);
    }

    /// Changes the limits of the volume.
    pub(super) fn set_limits(&mut self, ring: &mut VolumeRing, limits: IoLimits, now: Millis) {
        self.limits.throttle.set(limits, now);
        self.begin_waiting(ring, now);
    }

    /// Removes the limits of a fenced volume, whose requests all fail. Those that wait begin at the end of
    /// the pause.
    pub(super) fn fence_limits(&mut self, now: Millis) {
        self.limits.throttle.turn_off(now);
        self.limits.is_limited = !self.limits.throttle.is_idle();
    }

    /// Removes the limits of the volume, and ignores later limits.
    pub(crate) fn drop_limits(&mut self, ring: &mut VolumeRing, now: Millis) {
        self.limits.throttle.turn_off(now);
        self.begin_waiting(ring, now);
        self.show();
    }

    /// Begins waiting requests at the end of the pause.
    pub(super) fn limit_pause_ended(&mut self, ring: &mut VolumeRing, now: Millis) {
        self.limits.throttle.pause_ended();
        self.begin_waiting(ring, now);
    }

    fn begin_waiting(&mut self, ring: &mut VolumeRing, now: Millis) {
        // Waiting requests are left to the successor.
        if self.is_draining {
            return;
        }
        while let Some(NewRequest { id, op, range }) = self.limits.throttle.next_admitted(now) {
            self.begin_other(ring, (id, op, range), now);
        }
        self.limits.is_limited = !self.limits.throttle.is_idle();
        self.pause_for_limits(ring);
    }

    fn pause_for_limits(&mut self, ring: &mut VolumeRing) {
        if !self.is_draining && self.limits.throttle.start_pause_if_needed() {
            let operation = self.begin_file(FileOperation::LimitPause);
            ring.pause(&PAUSE, operation);
        }
    }
}
