//! Faults that a test injects into the reference store.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use crate::{ErrorKind, Verb};

/// An injected fault of one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The request fails with an error of this kind and changes nothing.
    Before(ErrorKind),
    /// The request takes effect but its response is lost: a create is ambiguous, all others are unavailable.
    LostReply,
    /// The request is lost on its route to the store, which the sender cannot know: [`Fault::LostReply`]
    /// without the effect.
    LostRequest,
    /// The request takes this much longer (by tokio's clock, which tests may pause).
    Delay(Duration),
    /// The request waits at the gate before it takes effect.
    Hold(Gate),
    /// Like `Hold`, but a create checks the key on arrival, and stores its object after the gate
    /// unconditionally: a create-once that is not atomic.
    HoldChecked(Gate),
}

/// Blocks requests until a test releases them.
#[derive(Debug, Clone)]
pub struct Gate {
    open: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Creates a closed gate.
    pub fn new() -> Self {
        Self { open: Arc::new(Semaphore::new(0)), waiting: Arc::new(Semaphore::new(0)) }
    }

    /// Waits until one more request has arrived at the gate.
    pub async fn arrival(&self) {
        self.waiting.acquire().await.expect("the gate's semaphores are never closed").forget();
    }

    /// Lets one request pass.
    pub fn release(&self) {
        self.open.add_permits(1);
    }

    /// Waits for a release.
    pub(crate) async fn pass(&self) {
        self.waiting.add_permits(1);
        self.open.acquire().await.expect("the gate's semaphores are never closed").forget();
    }
}

/// Pending faults.
#[derive(Debug, Default)]
pub(crate) struct FaultPlan {
    once: VecDeque<(Verb, Fault)>,
    always: Vec<(Verb, Fault)>,
}

impl FaultPlan {
    pub(crate) fn push(&mut self, verb: Verb, fault: Fault) {
        self.once.push_back((verb, fault));
    }

    pub(crate) fn set_always(&mut self, verb: Verb, fault: Fault) {
        self.always.retain(|(other, _)| *other != verb);
        self.always.push((verb, fault));
    }

    pub(crate) fn clear(&mut self) {
        self.once.clear();
        self.always.clear();
    }

    /// Returns the fault for the verb's next request: the oldest one-time fault, else the permanent one.
    pub(crate) fn take(&mut self, verb: Verb) -> Option<Fault> {
        if let Some(at) = self.once.iter().position(|(planned, _)| *planned == verb) {
            return self.once.remove(at).map(|(_, fault)| fault);
        }
        self.always.iter().find(|(planned, _)| *planned == verb).map(|(_, fault)| fault.clone())
    }
}
