//! Connects a volume's background work to this node: tokio, the local files, the ring thread.
//!
//! Runs on: the tokio runtime; one task per volume receives the work, and each piece runs in a separate task.
//! Results are returned to the ring thread as events. `holdfast_background` does the work itself.
//! On failure: a panic in the work ends the process; otherwise its volume would wait for the result, and
//! commit nothing more.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_background::{
    Background, ColdLines, ColdPart, LineLimit, Rest, SideReader, Sides, UploadBatch, Work,
};
use holdfast_engine::event::Errno;
use holdfast_engine::settings::Pending;
use holdfast_format::index::Runs;
use holdfast_format::side::Side;
use holdfast_objects::{RequestMeter, metered};
use holdfast_service::trace;
use holdfast_types::SectorRange;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tracing::Instrument;

use crate::node::clock::{NodeTime, now};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::volume_files::Local;
use crate::node::ring::handle::RingHandle;
use crate::node::run_blocking::{BlockingCall, run_blocking};
use crate::node::store::block_cache::Among;
use crate::node::store::cold_reads::{Ahead, ColdReads, VolumeAhead};
use crate::node::volume::fork_start::{FirstReadWork, ForkStart, RECORDING};
use holdfast_background::SlabSlot;
use holdfast_serve::Label;
use holdfast_serve::Message;
use holdfast_serve::VolumeKey;
use holdfast_serve::{BackgroundWork, ColdRead, UsedBlocks};

/// Interval at which the counts of suppressed log lines are written.
const LINES_EVERY: Duration = Duration::from_secs(10);
/// Number of such writes after the last work has ended; the first may follow immediately.
const LOOKS: u32 = 2;
/// Maximum time for storing the prefetch list of a volume that has left the node.
const STORE_WITHIN: Duration = Duration::from_secs(10);
/// Maximum pieces of work received at a time: the parts of a few large requests.
const PIECES: usize = 64;

/// The open sides of a volume, and its directory.
pub(crate) struct LocalSides {
    pub(crate) local: Local,
    pub(crate) sides: [Arc<File>; 2],
}

struct SideFiles([Arc<File>; 2]);

impl SideReader for SideFiles {
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        self.0[side as usize].read_exact_at(buffer, range.start.byte_offset())
    }
}

impl Sides for LocalSides {
    async fn pack(&self, mut batch: UploadBatch) -> UploadBatch {
        let sides = SideFiles(self.sides.clone());
        run_blocking(move || {
            batch.pack(&sides);
            batch
        })
        .await
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        run_blocking(work).await
    }

    async fn store_pending(&self, pending: Pending) -> io::Result<()> {
        let local = self.local.clone();
        run_blocking(move || local.store_pending(&pending)).await.map_err(io::Error::from)
    }
}

/// Limits of a volume's log lines about single reads.
#[derive(Debug, Default)]
pub(crate) struct WorkLines {
    cold: ColdLines,
    cold_failed: LineLimit,
    block_unreadable: LineLimit,
}

impl WorkLines {
    /// Logs the number of suppressed lines, at the end all of them, otherwise those that are due.
    fn write(&self, is_end: bool) {
        let rest = |now_ms| if is_end { Rest::All } else { Rest::Due(now_ms) };
        self.cold.write(rest(now()));
        if let Some(times) = self.cold_failed.take_suppressed(rest(now())) {
            tracing::error!(times, "cold reads failed since the last line about them");
        }
        if let Some(times) = self.block_unreadable.take_suppressed(rest(now())) {
            tracing::warn!(times, "block cache reads failed since the last line about them");
        }
    }
}

/// Returns true for the steps of a commit. Other work may occur in any number and for any time.
fn is_of_commit(work: &Work) -> bool {
    match work {
        Work::Upload { .. } | Work::StorePending(_) | Work::StoreRoot { .. } | Work::CreateRecord { .. } => {
            true
        }
        Work::Merge(_) | Work::ReadRecord { .. } | Work::WriteCheckpoint { .. } => false,
    }
}

/// Parts of one request that are read from the store, in their order. Each returns to the ring thread in its
/// box.
type ColdParts = Vec<Box<ColdRead>>;

/// Work that runs in a separate task.
enum VolumeTask {
    /// Parts of one request.
    Cold(ColdParts),
    /// A part whose block the disk failed to read from the slab.
    Unreadable(Box<ColdRead>, SlabSlot),
    /// Blocks to prefetch for a reader.
    Ahead(Ahead),
    /// Prefetches for a new fork with these runs.
    ForkStart(Runs),
    /// Stores the recorded reads of a new fork.
    StoreList,
    /// Blocks that were read on the ring thread.
    Used(UsedBlocks),
    Other(Work),
}

impl VolumeTask {
    /// Returns true if `read` is a later part of the same request.
    fn is_continued_by(&self, read: &ColdRead) -> bool {
        let Self::Cold(parts) = self else { return false };
        parts.last().is_some_and(|last| last.request == read.request && last.at < read.at)
    }
}

/// Groups received work into tasks.
fn tasks(received: impl IntoIterator<Item = BackgroundWork>) -> Vec<VolumeTask> {
    let mut tasks: Vec<VolumeTask> = Vec::new();
    for piece in received {
        let task = match piece {
            BackgroundWork::Other(work) => VolumeTask::Other(work),
            BackgroundWork::Used(used) => VolumeTask::Used(used),
            BackgroundWork::Cold(mut read) => match read.slot.take() {
                Some(slot) => VolumeTask::Unreadable(read, slot),
                None => {
                    let last = tasks.pop_if(|last| last.is_continued_by(&read));
                    let mut parts =
                        if let Some(VolumeTask::Cold(parts)) = last { parts } else { ColdParts::new() };
                    parts.push(read);
                    VolumeTask::Cold(parts)
                }
            },
        };
        tasks.push(task);
    }
    tasks
}

/// Resources for the work of one volume.
pub(crate) struct VolumeWork {
    pub(crate) background: Background<LocalSides, NodeTime>,
    /// Counts its requests to the store.
    pub(crate) requests: Arc<RequestMeter>,
    /// The volume's readers.
    pub(crate) ahead: VolumeAhead,
    /// The first reads of a new fork.
    pub(crate) fork_start: Option<ForkStart>,
    pub(crate) cold: Arc<ColdReads>,
    pub(crate) label: Arc<Label>,
    pub(crate) lines: WorkLines,
    pub(crate) ring: RingHandle,
    pub(crate) key: VolumeKey,
    /// The trace of the attach, which includes the volume's first commit.
    pub(crate) trace: Option<String>,
}

impl VolumeWork {
    /// Processes work until the volume is gone; work still in progress then is dropped.
    pub(crate) async fn run(self: Arc<Self>, mut work: mpsc::Receiver<BackgroundWork>) {
        let mut in_progress = JoinSet::new();
        let mut trace = self.trace.clone();
        let mut received = Vec::new();
        let mut due = interval(LINES_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // An idle volume has no timer.
        let (mut looks, mut recording_ends) = (0, None);
        loop {
            tokio::select! {
                count = work.recv_many(&mut received, PIECES) => {
                    if count == 0 {
                        break;
                    }
                    looks = LOOKS;
                    for task in tasks(received.drain(..)) {
                        let span = self.label.span();
                        if let Some(attach) = &trace
                            && let VolumeTask::Other(work) = &task
                            && is_of_commit(work)
                        {
                            trace::continue_in(&span, attach);
                            if let Work::CreateRecord { .. } = work {
                                trace = None;
                            }
                        }
                        let ahead = self.ahead_of(&task).map(VolumeTask::Ahead);
                        let first_read = self.first_read_of(&task);
                        if first_read.is_some() {
                            recording_ends = Some(Instant::now() + RECORDING);
                        }
                        let prefetch = first_read.and_then(|work| work.prefetch).map(VolumeTask::ForkStart);
                        for task in [Some(task), ahead, prefetch].into_iter().flatten() {
                            in_progress.spawn(Arc::clone(&self).performed(task).instrument(span.clone()));
                        }
                    }
                }
                Some(_ended) = in_progress.join_next() => {}
                () = wait_until(recording_ends) => {
                    recording_ends = None;
                    let stored = Arc::clone(&self).performed(VolumeTask::StoreList);
                    in_progress.spawn(stored.instrument(self.label.span()));
                }
                _ = due.tick(), if looks > 0 => {
                    self.label.span().in_scope(|| self.lines.write(false));
                    looks -= u32::from(in_progress.is_empty());
                }
            }
        }
        drop(in_progress);
        if recording_ends.is_some() {
            let span = self.label.span();
            let stored = Arc::clone(&self).performed(VolumeTask::StoreList).instrument(span);
            let (Ok(()) | Err(_)) = timeout(STORE_WITHIN, stored).await;
        }
    }

    /// Wraps the task so that a panic ends the process. The shutdown of the node does not wait for tasks,
    /// only for their blocking calls.
    fn performed(self: Arc<Self>, task: VolumeTask) -> impl Future<Output = ()> {
        let call = BlockingCall::begin();
        async move {
            let _call = call;
            let _unanswered = ExitOnPanic("background work of a volume");
            metered(Arc::clone(&self.requests), self.perform(task)).await;
        }
    }

    /// Returns the blocks to prefetch for a read.
    fn ahead_of(&self, task: &VolumeTask) -> Option<Ahead> {
        let VolumeTask::Cold(parts) = task else { return None };
        let (first, last) = (parts.first()?, parts.last()?);
        let range = SectorRange::new(first.range.start.0, last.range.end() - first.range.start.0);
        let part = ColdPart { request: first.request, at_bytes: first.at, range };
        self.ahead.passed(&first.passed);
        self.cold.ahead_of(&self.ahead, part, last.remote_after, &last.runs)
    }

    /// Returns the work that a read makes due if it is the first one of a new fork.
    fn first_read_of(&self, task: &VolumeTask) -> Option<FirstReadWork> {
        let (Some(start), VolumeTask::Cold(parts)) = (&self.fork_start, task) else { return None };
        let (first, last) = (parts.first()?, parts.last()?);
        let range = SectorRange::new(first.range.start.0, last.range.end() - first.range.start.0);
        start.read(range, &last.runs)
    }

    async fn perform(&self, task: VolumeTask) {
        let work = match task {
            VolumeTask::Cold(parts) => return self.read_request(parts).await,
            VolumeTask::Ahead(ahead) => {
                return self.cold.fetch_ahead(&*self.background.objects, &self.ahead, ahead).await;
            }
            VolumeTask::ForkStart(runs) => {
                let Background { volume, objects, .. } = &self.background;
                let Some(start) = &self.fork_start else { return };
                return start.prefetch(&runs, &self.cold, (volume, &**objects, &self.ahead)).await;
            }
            VolumeTask::StoreList => {
                let Some(start) = &self.fork_start else { return };
                return start.store_list(&self.cold, &*self.background.objects).await;
            }
            VolumeTask::Unreadable(read, slot) => {
                if let Some(held_back) = self.lines.block_unreadable.admit(now()) {
                    let block = read.range.start.block().0;
                    tracing::warn!(block, held_back, "block cache read failed; fetching the block again");
                }
                self.cold.forget(&slot);
                drop(slot);
                return self.read_cold(read, Among::Memory).await;
            }
            VolumeTask::Used(UsedBlocks { slots, in_progress: _ }) => return self.cold.used(&slots),
            VolumeTask::Other(work) => work,
        };
        let (event, tidy) = self.background.perform(work).await;
        self.ring.send(Message::Event { key: self.key, event }).await;
        if let Some(tidy) = tidy {
            self.background.tidy(tidy).await;
        }
    }

    /// Reads the parts of a request; blocks that are adjacent in the store are fetched together.
    async fn read_request(&self, parts: ColdParts) {
        if let [first, _, ..] = &parts[..] {
            let ranges: Vec<SectorRange> = parts.iter().map(|part| part.range).collect();
            let objects = &*self.background.objects;
            self.cold.fetch_joined(objects, &self.ahead, &first.runs, &ranges).await;
        }
        join_all(parts.into_iter().map(|part| self.read_cold(part, Among::Both))).await;
    }

    async fn read_cold(&self, read: Box<ColdRead>, among: Among) {
        let range = read.range;
        let Background { objects, .. } = &self.background;
        let result = self.cold.block(&**objects, &self.lines.cold, range, &read.runs, among).await;
        if let Err(error) = &result
            && let Some(held_back) = self.lines.cold_failed.admit(now())
        {
            tracing::error!(
                first_sector = range.start.0,
                sectors = range.sectors,
                error = error as &dyn std::error::Error,
                held_back,
                "cold read failed"
            );
        }
        let found = result.map_err(|_logged| Errno::EIO);
        self.ring.send(Message::Cold { key: self.key, read, found }).await;
    }
}

/// Waits until `time`, or permanently without one.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Otherwise, suppressed counts would never be written once the volume is gone.
impl Drop for VolumeWork {
    fn drop(&mut self) {
        self.label.span().in_scope(|| self.lines.write(true));
    }
}

#[cfg(test)]
mod tests {
    use holdfast_engine::event::RequestId;
    use holdfast_types::{Lineage, SECTOR_BYTES, Seq};

    use super::*;
    use crate::node::tests::logged::logged;

    /// Regression, found in review: failed reads within a second of the last line were never counted.
    #[test]
    fn the_end_of_a_volume_logs_what_was_held_back() {
        let lines = WorkLines::default();
        for _ in 0..3 {
            lines.cold_failed.admit(now());
            lines.block_unreadable.admit(now());
        }
        assert_eq!(logged(|| lines.write(false)), [""; 0], "the next line may have them");
        let written = logged(|| lines.write(true));
        assert_eq!(written.iter().filter(|line| line.contains("times=2")).count(), 2, "{written:#?}");
        assert_eq!(logged(|| lines.write(true)), [""; 0]);
    }

    /// The parts of a request form one task, so that adjacent blocks in the store are fetched together. Those
    /// of the next one with the same tag form another.
    #[test]
    fn the_parts_of_a_request_are_one_task() {
        let part = |request, at| {
            let (request, runs) =
                (RequestId(request), Runs::new(Lineage::of("v".parse().unwrap()).into(), []));
            let range = SectorRange::new(u64::from(at) / SECTOR_BYTES, 1);
            BackgroundWork::Cold(Box::new(ColdRead::of(request, range, at, runs)))
        };
        let other = || BackgroundWork::Other(Work::ReadRecord { seq: Seq(1) });
        let received =
            [part(1, 0), part(1, 4096), part(1, 8192), part(2, 0), part(2, 0), other(), part(2, 4096)];
        let parts: Vec<usize> = tasks(received)
            .into_iter()
            .map(|task| match task {
                VolumeTask::Cold(parts) => parts.len(),
                VolumeTask::Unreadable(..)
                | VolumeTask::Ahead(_)
                | VolumeTask::ForkStart(_)
                | VolumeTask::StoreList
                | VolumeTask::Used(_)
                | VolumeTask::Other(_) => 0,
            })
            .collect();
        assert_eq!(parts, [3, 1, 1, 0, 1]);
    }
}
