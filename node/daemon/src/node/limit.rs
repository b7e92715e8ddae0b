//! The bounds of the queues between the ring threads and the runtime.
//!
//! Each bound's comment names its effect. Both queues show how full they were as metrics (`docs/metrics.md`).

use holdfast_types::SECTOR_BYTES;
use holdfast_ublk::DeviceSpec;

/// Messages that wait for a ring thread, at most. A sender of one more waits until the thread has taken one,
/// or drops it. A thread takes all of them at each turn.
pub(in crate::node) const RING_MESSAGES: usize = 1024;

/// Background work of a volume beside cold reads: at most one upload, pending record, record to create,
/// record to read and checkpoint each, and some to spare.
const WORK_OF_COMMITS: usize = 16;

/// Returns how many pieces of background work wait to be begun for a volume with so many requests, at most.
/// The planner asks for no more: each sector of a request is read once at a time. The ring thread neither
/// waits nor drops a piece; one more would be a bug, and ends the process.
pub(in crate::node) fn waiting_work(requests: u32) -> usize {
    let sectors = u64::from(DeviceSpec::MAX_IO_BYTES) / SECTOR_BYTES;
    let cold_reads = u64::from(requests) * sectors;
    usize::try_from(cold_reads).expect("a device has few requests") + WORK_OF_COMMITS
}
