//! Faults a test gives to the reference store.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::sync::Semaphore;

use crate::{ErrorKind, Verb};

/// An injected fault of one request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The request fails with an error of this kind and changes nothing.
    Before(ErrorKind),
    /// The request takes effect and its answer is lost: a create is ambiguous, anything else unavailable.
    LostReply,
    /// The request is lost before it arrives, which the sender cannot know: [`Fault::LostReply`] without the
    /// effect.
    LostRequest,
    /// The request takes this much longer (tokio's clock, so a test may pause it).
    Delay(Duration),
    /// The request waits at the gate before it takes effect.
    Hold(Gate),
    /// The same; a create looks on arrival if its key is free, and stores its object after the gate whatever
    /// is there then: create-once that is not atomic.
    HoldChecked(Gate),
}

/// Holds requests back until a test lets them go.
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
    /// A closed gate.
    pub fn new() -> Self {
        Self { open: Arc::new(Semaphore::new(0)), waiting: Arc::new(Semaphore::new(0)) }
    }

    /// Waits until one more request has come to the gate.
    pub async fn arrival(&self) {
        self.waiting.acquire().await.expect("the gate's semaphores are never closed").forget();
    }

    /// Lets one request pass.
    pub fn release(&self) {
        self.open.add_permits(1);
    }

    /// Waits to be let through.
    pub(crate) async fn pass(&self) {
        self.waiting.add_permits(1);
        self.open.acquire().await.expect("the gate's semaphores are never closed").forget();
    }
}

/// The faults still to come.
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

    /// The fault of the next request of this verb: the oldest planned once, else the standing one.
    pub(crate) fn take(&mut self, verb: Verb) -> Option<Fault> {
        if let Some(at) = self.once.iter().position(|(planned, _)| *planned == verb) {
            return self.once.remove(at).map(|(_, fault)| fault);
        }
        self.always.iter().find(|(planned, _)| *planned == verb).map(|(_, fault)| fault.clone())
    }
}
