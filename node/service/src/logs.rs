//! Log lines to standard error, written by a thread of their own.
//!
//! Owns: the queue of lines, its bound, the count of lines that found it full.
//! Invariants: a thread that logs never waits for the program that reads standard error; the end of the
//! process waits for at most `FLUSH_WITHIN`.
//! On failure: lines are dropped and counted ([`DroppedLines`]).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// Lines that wait to be written, at most; a line has some hundred bytes.
const MAX_LINES: usize = 8192;
/// Longest wait of the process's end for lines to be written.
const FLUSH_WITHIN: Duration = Duration::from_millis(1500);

static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    writer: NonBlocking,
    dropped: ErrorCounter,
    /// Until the lines are flushed.
    guard: Mutex<Option<WorkerGuard>>,
}

/// Starts the thread that writes, and logs panics as events. Returns the writer of lines.
pub(crate) fn start() -> NonBlocking {
    let log = LOG.get_or_init(|| {
        std::panic::set_hook(Box::new(|panic| {
            let backtrace = Backtrace::capture();
            let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
            tracing::error!(backtrace = backtrace.map(tracing::field::display), "{panic}");
        }));
        let (writer, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(MAX_LINES)
            .thread_name("log")
            .finish(std::io::stderr());
        Log { dropped: writer.error_counter(), writer, guard: Mutex::new(Some(guard)) }
    });
    log.writer.clone()
}

/// The metric `holdfast_log_dropped_lines`, for the registry of a program.
#[derive(Clone, Copy, Debug)]
pub struct DroppedLines;

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Log lines dropped because standard error was not read in time";
        let dropped = ConstCounter::new(dropped_lines());
        let family =
            encoder.encode_descriptor("holdfast_log_dropped_lines", help, None, dropped.metric_type())?;
        dropped.encode(family)
    }
}

/// Lines that were dropped because standard error was not read.
pub fn dropped_lines() -> u64 {
    LOG.get().map_or(0, |log| u64::try_from(log.dropped.dropped_lines()).unwrap_or(u64::MAX))
}

/// Waits for the lines so far, for a bounded time: the process is about to end.
pub fn flush() {
    let Some(log) = LOG.get() else { return };
    let Some(guard) = log.guard.lock().take() else { return };
    let (flushed, done) = mpsc::channel();
    // The guard's drop waits for the writing thread, and may itself write to standard output.
    let flushing = std::thread::Builder::new().spawn(move || {
        drop(guard);
        // Nothing waits for it any more when the limit has passed.
        let _waiting = flushed.send(());
    });
    if flushing.is_ok() {
        // Whether or not they were written: the process ends.
        let _written = done.recv_timeout(FLUSH_WITHIN);
    }
}
