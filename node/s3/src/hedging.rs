//! Hedged reads: a read whose response is late is sent once more, and the first response counts.
//!
//! Owns: the time after which a response is late, learned from the last reads, and the budget of second
//! requests.
//! Does not own: the requests themselves, and retries after failures.
//!
//! In a busy store a few reads take many times longer than the others (Dean and Barroso, "The Tail at Scale",
//! 2013); a second request for the same bytes often does not. The budget is one second request per 20 reads,
//! so a store that becomes slow for all reads gets only 5 % more requests.

use std::time::Duration;

use parking_lot::Mutex;

/// A response is late after this multiple of the 95th percentile of recent times to the start of a response.
const LATE_FACTOR: u32 = 2;
/// No response is late before this time: a second request must be worth its cost.
const EARLIEST: Duration = Duration::from_millis(20);
/// Number of recent reads that are remembered.
const REMEMBERED: usize = 128;
/// Reads between two estimates. Nothing is late before the first one.
const ESTIMATE_EVERY: u64 = 16;
/// Reads for each second request.
const READS_PER_HEDGE: u32 = 20;
/// Maximum unused budget, in second requests.
const MAX_SAVED: u32 = 10;

/// Hedging of the reads of one store.
#[derive(Debug, Default)]
pub(crate) struct Hedging(Mutex<HedgingState>);

#[derive(Debug)]
struct HedgingState {
    /// Times until the responses of the last reads began; the oldest one is replaced next.
    times: [Duration; REMEMBERED],
    learned: u64,
    late_after: Option<Duration>,
    /// Reads that no second request has consumed yet.
    saved_reads: u32,
    hedged: u64,
}

impl Default for HedgingState {
    fn default() -> Self {
        Self { times: [Duration::ZERO; REMEMBERED], learned: 0, late_after: None, saved_reads: 0, hedged: 0 }
    }
}

impl Hedging {
    /// Records the start of a read, which adds to the budget. Returns the time after which its response is
    /// late; `None` while that is unknown.
    pub(crate) fn begin(&self) -> Option<Duration> {
        let mut state = self.0.lock();
        state.saved_reads = (state.saved_reads + 1).min(READS_PER_HEDGE * MAX_SAVED);
        state.late_after
    }

    /// Records that the response to a first request began after `took`, or had not begun by then.
    pub(crate) fn learn(&self, took: Duration) {
        let mut state = self.0.lock();
        let at = (state.learned % REMEMBERED as u64) as usize;
        state.times[at] = took;
        state.learned += 1;
        if state.learned.is_multiple_of(ESTIMATE_EVERY) {
            let count = state.learned.min(REMEMBERED as u64) as usize;
            let mut times = state.times;
            let (_, quantile, _) = times[..count].select_nth_unstable(count * 95 / 100);
            state.late_after = Some((*quantile * LATE_FACTOR).max(EARLIEST));
        }
    }

    /// Takes a second request from the budget. Returns false if the budget is exhausted.
    pub(crate) fn try_spend(&self) -> bool {
        let mut state = self.0.lock();
        let Some(saved_reads) = state.saved_reads.checked_sub(READS_PER_HEDGE) else { return false };
        state.saved_reads = saved_reads;
        state.hedged += 1;
        true
    }

    /// Returns the number of second requests so far.
    pub(crate) fn count(&self) -> u64 {
        self.0.lock().hedged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn learn(hedging: &Hedging, times: impl IntoIterator<Item = u64>) -> Option<Duration> {
        times.into_iter().for_each(|time| hedging.learn(ms(time)));
        hedging.0.lock().late_after
    }

    #[test]
    fn lateness_follows_the_last_reads() {
        let hedging = Hedging::default();
        // The first one has opened a connection.
        assert_eq!(learn(&hedging, [2000].into_iter().chain([30; 14])), None, "too few reads");
        assert_eq!(learn(&hedging, [30]), Some(ms(4000)), "one of 16 is more than 5 %");
        assert_eq!(learn(&hedging, [30; 16]), Some(ms(60)));
        assert_eq!(
            learn(&hedging, (0..200).map(|read| if read % 25 == 0 { 1000 } else { 30 })),
            Some(ms(60))
        );
        // Many reads at once meet a pause of the store.
        assert_eq!(learn(&hedging, [2000; 64]), Some(ms(4000)));
        assert_eq!(learn(&hedging, [30; 144]), Some(ms(60)), "it is forgotten as soon");
        assert_eq!(learn(&hedging, [1; 144]), Some(EARLIEST));
    }

    #[test]
    fn the_budget_is_one_in_twenty() {
        let hedging = Hedging::default();
        assert!(!hedging.try_spend());
        let spent = (0..1000).filter(|_| {
            hedging.begin();
            hedging.try_spend()
        });
        assert_eq!((spent.count(), hedging.count()), (50, 50));
        (0..1000).for_each(|_| _ = hedging.begin());
        assert_eq!((0..100).filter(|_| hedging.try_spend()).count(), 10, "the saved budget has a limit");
    }
}
