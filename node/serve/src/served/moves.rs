//! A volume's share of the node's disk: the bytes that its large requests have in flight.
//!
//! ```text
//!               at most MOVING_BYTES in flight
//!  large move ───────────────────────────────────────► to the ring
//!     └──────► waits, in order ── another one ended ──► to the ring
//! ```
//!
//! A disk serves its queue in order. Without a bound, a program with 128 requests of 1 MiB in flight puts 128
//! MiB in front of each request of another volume. Small moves begin at once: a full queue of them does not
//! exceed the bound. All moves of a large request count, even short ones: a read of data on both sides has a
//! move for each run of sectors. Moves from memory do not count.
//!
//! Owns: the waiting moves. Does not own: their requests, which stay with their queue.
//! Invariants: while a move waits, another one is in flight; waiting moves begin in order.

use std::collections::VecDeque;

use holdfast_engine::event::RequestId;
use holdfast_ublk::RequestPart;

use crate::limit::{FREE_MOVE_BYTES, MOVING_BYTES};
use crate::operation::InFlight;

/// Move of a part of a request between its pages and a local file.
#[derive(Debug)]
pub(super) struct PartMove {
    pub(super) request: RequestId,
    pub(super) part: RequestPart,
    pub(super) is_write: bool,
    pub(super) operation: InFlight,
}

/// The large moves of a volume.
#[derive(Debug, Default)]
pub(super) struct Moves {
    in_flight_bytes: u32,
    waiting: VecDeque<PartMove>,
}

/// Returns true if the moves of a request of `len_bytes` count.
#[inline(always)] // on the path of each request
pub(super) const fn is_large(len_bytes: u64) -> bool {
    len_bytes > FREE_MOVE_BYTES as u64
}

impl Moves {
    /// Returns true if a large move may begin. Otherwise it must [wait](Self::wait).
    pub(super) fn begins(&mut self, len_bytes: u32) -> bool {
        self.waiting.is_empty() && self.takes(len_bytes)
    }

    /// Keeps a move until it may begin.
    pub(super) fn wait(&mut self, large: PartMove) {
        self.waiting.push_back(large);
    }

    /// Returns true if no large move is in flight or waits.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight_bytes == 0 && self.waiting.is_empty()
    }

    /// Records the end of a large move.
    pub(super) const fn end(&mut self, len_bytes: u32) {
        self.in_flight_bytes -= len_bytes;
    }

    /// Returns the next waiting move, if it may begin.
    pub(super) fn next(&mut self) -> Option<PartMove> {
        let len_bytes = self.waiting.front()?.part.len_bytes;
        if self.takes(len_bytes) { self.waiting.pop_front() } else { None }
    }

    /// Drops the waiting moves, whose requests stay unanswered. Returns their number.
    pub(super) fn forget_waiting(&mut self) -> u32 {
        u32::try_from(std::mem::take(&mut self.waiting).len()).expect("at most one for each run of a request")
    }

    /// Counts a move and returns true if it may begin. If none is in flight, a move of any length may.
    const fn takes(&mut self, len_bytes: u32) -> bool {
        let begins = self.in_flight_bytes == 0 || self.in_flight_bytes + len_bytes <= MOVING_BYTES;
        if begins {
            self.in_flight_bytes += len_bytes;
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use holdfast_ring::{FileSlot, RingOptions};
    use proptest::prelude::*;

    use super::*;
    use crate::operation::{FileOperation, VolumeKey, VolumeRing};

    const KIB: u32 = 1 << 10;

    fn a_file() -> FileSlot {
        let mut ring = VolumeRing::new(&RingOptions::default()).unwrap();
        ring.register_file(tempfile::tempfile().unwrap().as_fd()).unwrap()
    }

    fn large(file: FileSlot, request: u32, len_bytes: u32) -> PartMove {
        let volume = VolumeKey { index: 0, serial: 0 };
        let request = RequestId(request);
        let operation = InFlight::File { volume, operation: FileOperation::MoveWhole { request } };
        let part = RequestPart { request_offset_bytes: 0, len_bytes, file, file_offset_bytes: 0 };
        PartMove { request, part, is_write: false, operation }
    }

    /// Begins a move or keeps it. Returns true if it began.
    fn begin(moves: &mut Moves, file: FileSlot, request: u32, len_bytes: u32) -> bool {
        let begins = moves.begins(len_bytes);
        if !begins {
            moves.wait(large(file, request, len_bytes));
        }
        begins
    }

    #[test]
    fn large_moves_wait_in_order_beyond_the_bound() {
        let (mut moves, file) = (Moves::default(), a_file());
        assert!([1024 * KIB, 512 * KIB].map(|len| begin(&mut moves, file, 0, len)) == [true; 2]);
        assert!(!begin(&mut moves, file, 1, 1024 * KIB));
        assert!(!begin(&mut moves, file, 2, 32 * KIB), "there is room for it, and another one came before");
        moves.end(512 * KIB);
        assert_eq!(moves.next().map(|it| it.request.0), Some(1));
        assert!(moves.next().is_none());
        moves.end(1024 * KIB);
        assert_eq!(moves.next().map(|it| it.request.0), Some(2));
        assert!(moves.next().is_none());
    }

    /// Found in review: at a handoff, a thread first moved all waiting requests, up to 126 MiB of each
    /// volume.
    #[test]
    fn waiting_moves_can_be_left_to_a_successor() {
        let (mut moves, file) = (Moves::default(), a_file());
        let begun: Vec<bool> = (0..8).map(|it| begin(&mut moves, file, it, 1024 * KIB)).collect();
        let in_flight = u32::try_from(begun.iter().filter(|begins| **begins).count()).unwrap();
        assert_eq!(moves.forget_waiting(), 8 - in_flight);
        for _ in 0..in_flight {
            moves.end(1024 * KIB);
            assert!(moves.next().is_none());
        }
        assert!(moves.is_idle());
    }

    /// A device's queue full of the longest small requests does not exceed the bound.
    #[test]
    fn a_queue_of_small_moves_is_within_the_bound() {
        assert!(!is_large(FREE_MOVE_BYTES.into()) && is_large((FREE_MOVE_BYTES + 4 * KIB).into()));
        const { assert!(128 * FREE_MOVE_BYTES <= MOVING_BYTES) };
    }

    proptest! {
        /// In any order, the bound holds, no move is lost, and a move waits only while another is in flight.
        #[test]
        fn all_begin_in_order_and_within_the_bound(steps in prop::collection::vec((1_u32..=256, 0_usize..4), 1..200)) {
            let (mut moves, file) = (Moves::default(), a_file());
            let (mut in_flight, mut begun) = (VecDeque::new(), Vec::new());
            for (number, (pages, ends)) in (0..).zip(&steps) {
                let len_bytes = pages * 4 * KIB;
                if begin(&mut moves, file, number, len_bytes) {
                    in_flight.push_back(len_bytes);
                    begun.push(number);
                }
                for _ in 0..*ends {
                    let Some(ended) = in_flight.pop_front() else { break };
                    moves.end(ended);
                    while let Some(next) = moves.next() {
                        in_flight.push_back(next.part.len_bytes);
                        begun.push(next.request.0);
                    }
                }
                prop_assert!(in_flight.iter().sum::<u32>() <= MOVING_BYTES);
                prop_assert!(moves.waiting.is_empty() || !in_flight.is_empty());
            }
            while let Some(ended) = in_flight.pop_front() {
                moves.end(ended);
                while let Some(next) = moves.next() {
                    in_flight.push_back(next.part.len_bytes);
                    begun.push(next.request.0);
                }
            }
            prop_assert!(begun.into_iter().eq(0..u32::try_from(steps.len()).unwrap()));
        }
    }
}
