//! Handle of a ring thread, for other threads.
//!
//! Owns: the sending end of the thread's inbox, and its figures.
//! Runs on: the runtime. A sender waits while the inbox is full. The ring thread may wait for a sender that
//! has begun to put a message into the inbox, never for one that waits for room.

use std::sync::Arc;

use holdfast_ring::Waker;
use holdfast_serve::{Message, RingFigures, RingStatus};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;

use crate::node::error::NodeError;

/// Handle of a ring thread, for other threads.
#[derive(Clone)]
pub(in crate::node) struct RingHandle {
    inbox: Sender<Message>,
    waker: Waker,
    figures: Arc<RingFigures>,
}

impl RingHandle {
    pub(super) fn new(inbox: Sender<Message>, waker: Waker, figures: Arc<RingFigures>) -> Self {
        Self { inbox, waker, figures }
    }

    /// Sends a message; waits while the inbox is full. The message is lost only if the thread has ended, with
    /// the process about to follow, or if this future is dropped while it waits.
    pub(in crate::node) async fn send(&self, message: Message) {
        if let Some(message) = self.send_now(message) {
            drop(self.inbox.send(message).await);
            self.waker.wake();
        }
    }

    /// Sends a message that a newer one will soon replace; drops it if the inbox is full, so that a busy ring
    /// thread does not delay the others. Returns true if it was sent.
    pub(in crate::node) fn offer(&self, message: Message) -> bool {
        self.send_now(message).is_none()
    }

    /// Sends a message without waiting. Returns it if the inbox is full.
    fn send_now(&self, message: Message) -> Option<Message> {
        if let Err(TrySendError::Full(message)) = self.inbox.try_send(message) {
            self.figures.inbox_was_full();
            return Some(message);
        }
        let waiting = self.inbox.max_capacity() - self.inbox.capacity();
        self.figures.messages_wait(waiting);
        self.waker.wake();
        None
    }

    /// Sends a message that carries a reply channel, and waits for the reply.
    ///
    /// # Errors
    /// [`NodeError::RingLost`].
    pub(in crate::node) async fn call<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, NodeError> {
        let (done, answer) = oneshot::channel();
        self.send(message(done)).await;
        answer.await.map_err(|_ended| NodeError::RingLost)
    }

    pub(in crate::node) fn status(&self) -> RingStatus {
        self.figures.status()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_ring::RingOptions;
    use holdfast_serve::VolumeRing;
    use tokio::sync::mpsc;

    use super::*;

    fn waker() -> Waker {
        let options = RingOptions { submission_entries: 8, completion_entries: 8, files: 8, buffers: 0 };
        VolumeRing::new(&options).unwrap().waker()
    }

    #[tokio::test]
    async fn a_full_inbox_holds_up_senders_and_is_counted() {
        let (inbox, mut messages) = mpsc::channel(2);
        let ring = RingHandle::new(inbox, waker(), Arc::default());
        ring.send(Message::Tick).await;
        ring.send(Message::Tick).await;
        let held_up = tokio::time::timeout(Duration::from_millis(20), ring.send(Message::Tick)).await;
        assert!(held_up.is_err(), "the inbox is full");
        let sender = ring.clone();
        let sent = tokio::spawn(async move { sender.send(Message::Leave).await });
        tokio::task::yield_now().await;
        assert!(matches!(messages.try_recv(), Ok(Message::Tick)));
        sent.await.unwrap();
        assert_eq!(ring.status(), RingStatus { max_messages: 2, full_inbox: 2, ..RingStatus::default() });
        assert!(matches!(messages.try_recv(), Ok(Message::Tick)));
        assert!(matches!(messages.try_recv(), Ok(Message::Leave)));
    }

    /// Found by reading: the ticks of all rings waited for one whose inbox was full.
    #[tokio::test]
    async fn an_offer_to_a_full_inbox_is_dropped_and_counted() {
        let (inbox, mut messages) = mpsc::channel(1);
        let ring = RingHandle::new(inbox, waker(), Arc::default());
        assert!(ring.offer(Message::Tick));
        assert!(!ring.offer(Message::Leave));
        assert!(matches!(messages.try_recv(), Ok(Message::Tick)));
        assert!(messages.try_recv().is_err());
        assert_eq!(ring.status().full_inbox, 1);
    }

    #[tokio::test]
    async fn a_call_to_an_ended_thread_says_so() {
        let (inbox, messages) = mpsc::channel(2);
        drop(messages);
        let ring = RingHandle::new(inbox, waker(), Arc::default());
        let answer = ring.call(|_done: oneshot::Sender<()>| Message::Tick).await;
        assert!(matches!(answer, Err(NodeError::RingLost)));
    }
}
