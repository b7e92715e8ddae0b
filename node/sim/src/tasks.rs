//! The futures of one process, polled in the order in which they were woken.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

type Ready = Arc<Mutex<VecDeque<u64>>>;

struct TaskWaker {
    task: u64,
    ready: Ready,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().push_back(self.task);
    }
}

struct Task<T> {
    future: Pin<Box<dyn Future<Output = T>>>,
    waker: Waker,
}

/// Futures that end with a `T`.
pub(crate) struct PolledTasks<T> {
    tasks: BTreeMap<u64, Task<T>>,
    ready: Ready,
    started: u64,
}

impl<T> Default for PolledTasks<T> {
    fn default() -> Self {
        Self { tasks: BTreeMap::new(), ready: Ready::default(), started: 0 }
    }
}

impl<T> PolledTasks<T> {
    pub(crate) fn start(&mut self, future: impl Future<Output = T> + 'static) {
        let task = self.started;
        self.started += 1;
        let waker = Waker::from(Arc::new(TaskWaker { task, ready: Arc::clone(&self.ready) }));
        self.tasks.insert(task, Task { future: Box::pin(future), waker });
        self.ready.lock().push_back(task);
    }

    /// Returns true if any future can be polled.
    pub(crate) fn is_woken(&self) -> bool {
        !self.ready.lock().is_empty()
    }

    /// Polls the woken futures until one ends, or none is left to poll.
    pub(crate) fn next_ended(&mut self) -> Option<T> {
        loop {
            let number = self.ready.lock().pop_front()?;
            // Woken once more after its end.
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            if let Poll::Ready(ended) = task.future.as_mut().poll(&mut Context::from_waker(&task.waker)) {
                self.tasks.remove(&number);
                return Some(ended);
            }
        }
    }
}
