//! Skips most ticks of an idle volume, so that a node with many volumes spends its time on those with I/O.

/// An idle volume gets one tick in this many, so its figures that depend on time are at most that old.
const EACH: u32 = 16;

/// Decides which ticks of a volume to skip.
#[derive(Debug, Default)]
pub(crate) struct IdleTicks {
    /// Requests that the volume had at its last tick.
    requests: u64,
    /// True if its last tick found nothing to do.
    is_idle: bool,
    left_out: u32,
}

impl IdleTicks {
    /// Returns true if the volume needs a tick now, after this many requests. `works` is true if a request is
    /// in progress.
    pub(crate) fn is_due(&mut self, requests: u64, works: bool) -> bool {
        self.left_out += 1;
        !self.is_idle || works || requests != self.requests || self.left_out >= EACH
    }

    /// Records a tick at this number of requests. Returns true if the volume is idle.
    pub(crate) fn passed(&mut self, requests: u64, works: bool) -> bool {
        let is_idle = !works && requests == self.requests;
        *self = Self { requests, is_idle, left_out: 0 };
        is_idle
    }

    /// Makes the next tick due, after an event other than a request.
    pub(crate) fn wake(&mut self) {
        self.is_idle = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of ticks, out of `number`, that a volume gets after `requests` requests.
    fn ticks(idle: &mut IdleTicks, number: u32, requests: u64) -> u32 {
        (0..number)
            .map(|_| {
                let is_due = idle.is_due(requests, false);
                if is_due {
                    idle.passed(requests, false);
                }
                u32::from(is_due)
            })
            .sum()
    }

    #[test]
    fn an_idle_volume_gets_one_tick_of_16() {
        let mut idle = IdleTicks::default();
        assert_eq!(ticks(&mut idle, 160, 0), 10, "the first was due: it says whether the volume is idle");
        assert_eq!(ticks(&mut idle, 1, 5), 1, "requests came");
        assert_eq!(ticks(&mut idle, 1, 5), 1, "its figures may have changed after them");
        assert_eq!(ticks(&mut idle, 15, 5), 0);
        assert_eq!(ticks(&mut idle, 1, 5), 1);
        idle.wake();
        assert_eq!(ticks(&mut idle, 2, 5), 1, "a message came");
    }

    #[test]
    fn a_volume_that_works_gets_each_tick() {
        let mut idle = IdleTicks::default();
        for requests in [0, 0, 0, 7, 7] {
            assert!(idle.is_due(requests, true));
            assert!(!idle.passed(requests, true));
        }
        assert!(idle.is_due(7, false), "it did at its last tick");
        assert!(idle.passed(7, false));
        assert!(!idle.is_due(7, false));
        assert!(idle.is_due(7, true));
    }
}
