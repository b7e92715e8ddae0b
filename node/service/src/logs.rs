//! Log lines to standard error, written by a dedicated thread.
//!
//! Owns: the queue of lines, its bound, the count of lines dropped because it was full. The process's
//! subscriber holds it, so that every thread can find it, even a panicking one.
//! Invariants: a logging thread never waits for the reader of standard error; process exit waits for at most
//! `FLUSH_WITHIN`.
//! On failure: lines are dropped and counted ([`DroppedLines`]).

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt;
use std::io::Write;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use tracing::{Subscriber, dispatcher};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::Layer;

/// Maximum number of queued lines; a line has about a hundred bytes.
const MAX_LINES: usize = 8192;
/// Longest wait for queued lines at process exit.
const FLUSH_WITHIN: Duration = Duration::from_millis(1500);

/// The queue of lines and its writer thread. Clones share them. As a layer it changes no event.
#[derive(Clone)]
pub(crate) struct Log(Arc<LineQueue>);

struct LineQueue {
    writer: NonBlocking,
    dropped: ErrorCounter,
    /// Present until the lines are flushed.
    guard: Mutex<Option<WorkerGuard>>,
}

impl<S: Subscriber> Layer<S> for Log {}

impl Log {
    /// Starts the thread that writes to `out`.
    pub(crate) fn start(out: impl Write + Send + 'static) -> Self {
        let (writer, guard) = NonBlockingBuilder::default()
            .lossy(true)
            .buffered_lines_limit(MAX_LINES)
            .thread_name("log")
            .finish(out);
        Self(Arc::new(LineQueue { dropped: writer.error_counter(), writer, guard: Mutex::new(Some(guard)) }))
    }

    /// Returns the log of the current subscriber; `None` without a subscriber.
    fn current() -> Option<Self> {
        dispatcher::get_default(|subscriber| subscriber.downcast_ref::<Self>().cloned())
    }

    /// Returns the writer for lines.
    pub(crate) fn writer(&self) -> NonBlocking {
        self.0.writer.clone()
    }

    fn dropped_lines(&self) -> u64 {
        u64::try_from(self.0.dropped.dropped_lines()).unwrap_or(u64::MAX)
    }

    /// Waits for the queued lines, for a bounded time, before the process exits.
    pub(crate) fn flush(&self) {
        let Some(guard) = self.0.guard.lock().take() else { return };
        let (flushed, done) = mpsc::channel();
        // Dropping the guard waits for the writer thread, and may itself write to standard output.
        let flushing = std::thread::Builder::new().spawn(move || {
            drop(guard);
            // After the timeout, nothing waits for this.
            let _waiting = flushed.send(());
        });
        if flushing.is_ok() {
            // Written or not, the process exits.
            let _written = done.recv_timeout(FLUSH_WITHIN);
        }
    }
}

/// Logs panics as events, instead of as text on standard error.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then_some(backtrace);
        tracing::error!(backtrace = backtrace.map(tracing::field::display), "{panic}");
    }));
}

/// The metric `holdfast_log_dropped_lines`, for a program's registry.
#[derive(Clone, Copy, Debug)]
pub struct DroppedLines;

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Log lines dropped because standard error was not read fast enough";
        let dropped = ConstCounter::new(dropped_lines());
        let family =
            encoder.encode_descriptor("holdfast_log_dropped_lines", help, None, dropped.metric_type())?;
        dropped.encode(family)
    }
}

/// Returns the number of lines dropped because standard error was not read.
pub fn dropped_lines() -> u64 {
    Log::current().map_or(0, |log| log.dropped_lines())
}

/// Waits for the queued lines, for a bounded time, before the process exits.
pub fn flush() {
    if let Some(log) = Log::current() {
        log.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing::Dispatch;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A reader that reads nothing while this is held.
    struct Stuck(Arc<Mutex<()>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _waits = self.0.lock();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Regression: the log was a static, shared by all subscribers of a process.
    #[test]
    fn each_subscriber_has_a_log_of_its_own() {
        let (reads, begun) = (Arc::default(), Arc::default());
        let holds: &Mutex<()> = &reads;
        let stuck = holds.lock();
        let subscriber = |log: &Log| {
            let lines = tracing_subscriber::fmt::layer().with_writer(log.writer());
            Dispatch::new(tracing_subscriber::registry().with(lines).with(log.clone()))
        };
        let logs = [Log::start(Stuck(Arc::clone(&reads))), Log::start(Stuck(begun))];
        let [full, empty] = [&logs[0], &logs[1]].map(subscriber);
        dispatcher::with_default(&full, || {
            (0..2 * MAX_LINES).for_each(|line| tracing::info!(line, "filled the queue"));
            assert!(dropped_lines() > 0, "the reader takes nothing");
        });
        dispatcher::with_default(&empty, || assert_eq!(dropped_lines(), 0));
        drop(stuck);
        dispatcher::with_default(&full, flush);
        assert!(logs[0].0.guard.lock().is_none(), "it was flushed");
        assert!(logs[1].0.guard.lock().is_some(), "the other one was not");
    }
}
