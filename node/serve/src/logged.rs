//! Captured log lines, for tests.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;
use tracing::Dispatch;
use tracing_subscriber::fmt::MakeWriter;

/// Captured log output.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Creates a second subscriber, which must live while a test captures lines. With a single subscriber,
/// tracing caches the interest of the first thread that reaches a span or a line, which may belong to another
/// test without a subscriber.
#[must_use]
pub(crate) fn second_subscriber() -> Dispatch {
    Dispatch::new(tracing_subscriber::registry())
}

/// Returns the lines that `write` logs on this thread.
pub(crate) fn logged(write: impl FnOnce()) -> Vec<String> {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(log.clone())
        .with_ansi(false)
        .with_max_level(tracing::Level::DEBUG)
        .finish();
    let _second = second_subscriber();
    tracing::subscriber::with_default(subscriber, write);
    let text = String::from_utf8(std::mem::take(&mut *log.0.lock())).unwrap();
    text.lines().map(str::to_owned).collect()
}
