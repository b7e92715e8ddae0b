//! The spill file of a memory volume on a ring: the runs in flight, and their requests.
//!
//! Owns: the file's slot on the ring, and the order of requests ([`SpillRequests`]). Does not own: the set of
//! pages in the file, which the words record. Runs on: the ring thread, which never waits for the disk: it
//! answers a request once the last of its runs has ended. Runs read to and write from the memory of the
//! request itself, which has kernel copy: devices of releases with user copy have no spill file.
//! Bounds: a request has at most a run for each of its pages, and as many holes.

use std::num::NonZeroU64;

use holdfast_memory::{DiskOperation, DiskRun, MemoryVolume, PAGE_BYTES, PageError, SpillEnd, SpillRequests};
use holdfast_ring::{FileRange, FileSlot, IoResult, KernelErrno};
use holdfast_ublk::{DeviceRequest, Queue, RequestPart};

use super::files::MemoryFiles;
use super::serve_failure::ServeFailure;
use crate::operation::{InFlight, VolumeKey, VolumeRing};

/// A request of a queue.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) queue: u16,
    pub(super) request: DeviceRequest,
    /// Time at which the thread took it, in microseconds, if it is timed.
    pub(super) began_us: Option<NonZeroU64>,
}

/// A run in flight, and the number of its request.
#[derive(Debug, Clone, Copy)]
struct RunInFlight {
    request: u16,
    run: DiskRun,
}

/// The end of a run.
pub(super) struct RunEnd {
    /// The request, if this was its last run.
    pub(super) ended: Option<SpillEnd<QueuedRequest, ServeFailure>>,
    /// The error of the disk, if any, other than a full disk.
    pub(super) failed: Option<(DiskRun, KernelErrno)>,
}

/// The spill file of a volume.
pub(super) struct SpillQueue {
    file: FileSlot,
    /// Key of the volume on the ring.
    key: VolumeKey,
    pub(super) requests: SpillRequests<QueuedRequest, ServeFailure>,
    runs: Vec<Option<RunInFlight>>,
    /// Unused numbers of runs.
    free: Vec<u32>,
    /// Further runs that the ending run requires; empty between runs.
    further: Vec<DiskRun>,
}

impl SpillQueue {
    pub(super) fn new(file: FileSlot, key: VolumeKey) -> Self {
        Self {
            file,
            key,
            requests: SpillRequests::default(),
            runs: Vec::new(),
            free: Vec::new(),
            further: Vec::new(),
        }
    }

    pub(super) const fn file(&self) -> FileSlot {
        self.file
    }

    /// Starts a run of a request.
    pub(super) fn start(
        &mut self,
        ring: &mut VolumeRing,
        queues: &[Queue<VolumeKey>],
        number: u16,
        run: DiskRun,
    ) {
        let in_flight = Some(RunInFlight { request: number, run });
        let place = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            u32::try_from(self.runs.len() - 1).expect("requests have few runs")
        });
        self.runs[place as usize] = in_flight;
        let operation = InFlight::Spill { volume: self.key, run: place };
        let QueuedRequest { queue, request, .. } = self.requests.request(number);
        let part = || {
            let at_bytes = (run.first - request.start_sector()) * PAGE_BYTES as u64;
            RequestPart {
                request_offset_bytes: u32::try_from(at_bytes).expect("the run is of the request"),
                len_bytes: u32::try_from(run.len_bytes()).expect("the run is of the request"),
                file: self.file,
                file_offset_bytes: run.offset_bytes(),
            }
        };
        let queue = &queues[usize::from(*queue)];
        match run.operation {
            DiskOperation::Read => queue.read_into_buffer(ring, request, &part(), operation),
            DiskOperation::Write | DiskOperation::Rewrite => {
                queue.write_from_buffer(ring, request, &part(), operation);
            }
            DiskOperation::Hole => {
                let range = FileRange { offset_bytes: run.offset_bytes(), len_bytes: run.len_bytes() };
                ring.punch_hole(self.file, range, operation);
            }
        }
    }

    /// Ends a run, and starts the further runs that it requires.
    pub(super) fn end(
        &mut self,
        ring: &mut VolumeRing,
        queues: &[Queue<VolumeKey>],
        volume: &MemoryVolume<MemoryFiles>,
        place: u32,
        outcome: IoResult,
    ) -> RunEnd {
        let RunInFlight { request: number, run } =
            self.runs[place as usize].take().expect("the ring ends an operation once");
        self.free.push(place);
        let (done, result) = ended(&run, outcome);
        let failed = result.err().filter(|errno| !is_refusal(&run, *errno)).map(|errno| (run, errno));
        let result = match result {
            Err(errno) if is_refusal(&run, errno) => {
                volume.refuse(run.pages - done);
                Err(ServeFailure::Page(PageError::NoSpace))
            }
            // A failed hole loses nothing: its pages stay on the disk, and no word names them.
            Err(_) if run.operation != DiskOperation::Hole => Err(ServeFailure::Disk),
            Ok(()) | Err(_) => Ok(()),
        };
        volume.disk_ended(&run, done);
        let mut runs = std::mem::take(&mut self.further);
        volume.take_disk_runs(&mut runs);
        let more = u32::try_from(runs.len()).expect("a request has few runs");
        for run in runs.drain(..) {
            self.start(ring, queues, number, run);
        }
        self.further = runs;
        RunEnd { ended: self.requests.end(number, result, more), failed }
    }
}

/// Returns true if the disk has no room for a page. Some filesystems need room for a hole, which does not
/// count as a refused page.
fn is_refusal(run: &DiskRun, errno: KernelErrno) -> bool {
    run.operation != DiskOperation::Hole && errno.number() == libc::ENOSPC
}

/// Returns the number of pages of a run that the disk has completed, and the result. A write that ended early
/// found no room for the rest.
fn ended(run: &DiskRun, outcome: IoResult) -> (u32, Result<(), KernelErrno>) {
    let page = PAGE_BYTES as u32;
    match (run.operation, outcome.result()) {
        (_, Err(errno)) if errno.number() == libc::EDQUOT => (0, Err(KernelErrno::new(libc::ENOSPC))),
        (_, Err(errno)) => (0, Err(errno)),
        (DiskOperation::Hole, Ok(_)) => (run.pages, Ok(())),
        (_, Ok(bytes)) if bytes / page >= run.pages => (run.pages, Ok(())),
        (DiskOperation::Read, Ok(_)) => (0, Err(KernelErrno::EIO)),
        (DiskOperation::Write | DiskOperation::Rewrite, Ok(bytes)) => {
            (bytes / page, Err(KernelErrno::new(libc::ENOSPC)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that ran out of space in the middle keeps the written pages, and a failed hole loses nothing.
    #[test]
    fn a_run_ends_with_the_pages_that_are_done() {
        use DiskOperation::{Hole, Read, Rewrite, Write};
        let full = Err(KernelErrno::new(libc::ENOSPC));
        for (operation, outcome, expected) in [
            (Write, 16384, (4, Ok(()))),
            (Write, 8192 + 512, (2, full)),
            (Rewrite, 0, (0, full)),
            (Write, -libc::EDQUOT, (0, full)),
            (Write, -libc::EIO, (0, Err(KernelErrno::EIO))),
            (Read, 16384, (4, Ok(()))),
            (Read, 4096, (0, Err(KernelErrno::EIO))),
            (Hole, 0, (4, Ok(()))),
            (Hole, -libc::EOPNOTSUPP, (0, Err(KernelErrno::new(libc::EOPNOTSUPP)))),
            (Hole, -libc::ENOSPC, (0, full)),
        ] {
            let run = DiskRun::of(operation, 7, 4);
            assert_eq!(ended(&run, IoResult(outcome)), expected, "{operation:?} {outcome}");
            // Found by reading: a discard on a full disk failed, though its pages were gone.
            let is_refused = expected.1.is_err_and(|errno| is_refusal(&run, errno));
            assert_eq!(is_refused, expected.1 == full && operation != Hole, "{operation:?} {outcome}");
        }
    }
}
