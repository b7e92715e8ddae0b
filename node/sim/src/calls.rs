//! Calls that the futures of a process wait for: requests to the store, jobs of the local disk, time.
//!
//! A future leaves a [`Call`] and waits for its slot. The world decides when the call is done, its result,
//! and when the sender gets the answer. A dropped future gets no answer, but its calls may still be done.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use holdfast_engine::action::MapWrite;
use holdfast_engine::durable_map::FoundMap;
use holdfast_engine::settings::Pending;
use holdfast_objects::{CreateError, Created, Page, StoreError};
use parking_lot::Mutex;

/// A request to the store.
#[derive(Debug, Clone)]
pub(crate) enum StoreCall {
    Get { key: String },
    GetRange { key: String, range: Range<u64> },
    Create { key: String, body: Bytes },
    PutSegment { key: String, body: Bytes },
    List { prefix: String, start_after: Option<String>, limit: usize },
    Delete { key: String },
}

/// A request to the local disk.
#[derive(Debug, Clone)]
pub(crate) enum LocalCall {
    /// Read the sealed side; its bytes are taken when the answer is received.
    ReadSides,
    StorePending(Pending),
    ReadMap,
    Preserve,
    Discard,
    WriteHeader(MapWrite),
    SyncHeader,
    /// Fill a slot of the slab; its bytes are stored when the answer is received.
    WriteSlot {
        /// True if it was written before.
        has_room: bool,
    },
    /// Write the entry of a slot that was filled.
    NameSlot,
    /// Read a slot; its bytes are taken when the answer is received.
    ReadSlot,
}

/// A call that a future waits for.
#[derive(Debug, Clone)]
pub(crate) enum CallKind {
    Store(StoreCall),
    Local(LocalCall),
    Sleep(Duration),
}

/// Errors of the local disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("what was synced of the durable map is damaged: {0}")]
    Damaged(String),
}

/// The result of a call.
#[derive(Debug)]
pub(crate) enum CallResult {
    Bytes(Result<Bytes, StoreError>),
    Created(Result<Created, CreateError>),
    Listed(Result<Page, StoreError>),
    Stored(Result<(), StoreError>),
    Local(Result<Option<FoundMap>, LocalError>),
    Slept,
}

#[derive(Debug, Default)]
struct AnswerSlot {
    answer: Option<CallResult>,
    waker: Option<Waker>,
}

/// A call in flight.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    slot: Arc<Mutex<AnswerSlot>>,
}

impl Call {
    /// Delivers the result to its sender.
    pub(crate) fn answer(self, answer: CallResult) {
        let mut slot = self.slot.lock();
        slot.answer = Some(answer);
        if let Some(waker) = slot.waker.take() {
            drop(slot);
            waker.wake();
        }
    }
}

/// The calls of one process that were not accepted yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calls(Arc<Mutex<VecDeque<Call>>>);

impl Calls {
    /// Sends `kind` and waits for its answer.
    pub(crate) fn send(&self, kind: CallKind) -> PendingAnswer {
        let slot = Arc::<Mutex<AnswerSlot>>::default();
        self.0.lock().push_back(Call { kind, slot: Arc::clone(&slot) });
        PendingAnswer(slot)
    }

    /// Takes the oldest call that was not accepted yet.
    pub(crate) fn pop(&self) -> Option<Call> {
        self.0.lock().pop_front()
    }
}

/// Waits for the answer to a call.
pub(crate) struct PendingAnswer(Arc<Mutex<AnswerSlot>>);

impl Future for PendingAnswer {
    type Output = CallResult;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CallResult> {
        let mut slot = self.0.lock();
        match slot.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
