//! Answers to the pipeline's calls to the store, the local disk and the clock.

use std::io;
use std::rc::Rc;
use std::time::Duration;

use holdfast_engine::durable_map::FoundMap;
use holdfast_objects::{CreateError, StoreError};
use holdfast_types::key::ObjectKey;

use super::{Outage, World};
use crate::attempt::AttachStep;
use crate::bug::{Mutation, is_mutated};
use crate::calls::{CallKind, CallResult, LocalCall, LocalError, StoreCall};
use crate::disk::Disk;
use crate::expect::CapturedContent;
use crate::failures::RequestFate;
use crate::invariant::Invariant;

impl World {
    /// Executes the request of a future. Returns `None` if it killed the process.
    pub(super) fn answer(&mut self, host: usize, call: &CallKind) -> Option<CallResult> {
        let (answer, step) = match call {
            CallKind::Sleep(_) => (CallResult::Slept, None),
            CallKind::Store(call) => (self.execute_store_call(host, call, true), reached_attach_step(call)),
            CallKind::Local(call) => {
                (CallResult::Local(self.execute_local_call(host, call)), attach_step_of_write(call))
            }
        };
        self.trace.call(host, call, &answer);
        let process = self.hosts[host].process.as_ref().expect("it asked");
        if process.volume.is_none() && step.is_some() && process.dies_after == step {
            self.process_died(host);
            return None;
        }
        Some(answer)
    }

    // ---- the store ----

    /// Executes a request to the store. With `is_stale`, LIST may show an older state.
    pub(super) fn execute_store_call(&mut self, host: usize, call: &StoreCall, is_stale: bool) -> CallResult {
        let cut = self.cut_of(host, call);
        if matches!(call, StoreCall::Create { .. }) && self.rng.once_in(3) {
            // The worst moment for an older one to arrive.
            self.land_late_request();
        }
        match self.outage() {
            Some(Outage::Denies) => return denied_answer(call),
            Some(Outage::Unreachable | Outage::Silent) => return ambiguous_answer(call),
            None => {}
        }
        if self.failures.denies(call) {
            return denied_answer(call);
        }
        let cut_off = self.hosts[host].fault.cut_off;
        let fate = if cut_off { RequestFate::RequestLost } else { self.failures.fate(call, &mut self.rng) };
        match fate {
            RequestFate::Answered => {
                let lag = self.failures.list_lag(call, &mut self.rng);
                self.store.apply(call, cut.as_ref(), if is_stale { lag } else { 0 })
            }
            RequestFate::Rejected => self.rejected_answer(call),
            RequestFate::ReplyLost => {
                self.store.apply(call, cut.as_ref(), 0);
                ambiguous_answer(call)
            }
            RequestFate::RequestLost => ambiguous_answer(call),
            RequestFate::Late => {
                self.store.late.push((call.clone(), cut));
                ambiguous_answer(call)
            }
            RequestFate::FoundItself => {
                self.store.apply(call, cut.as_ref(), 0);
                self.store.apply(call, cut.as_ref(), 0)
            }
        }
    }

    /// Returns the content captured by the seal of an upload.
    pub(super) fn cut_of(&self, host: usize, call: &StoreCall) -> Option<Rc<CapturedContent>> {
        let StoreCall::PutSegment { key, .. } = call else { return None };
        if !matches!(ObjectKey::parse(key), Some(ObjectKey::Segment(..))) {
            return None;
        }
        let upload = self.hosts[host].process.as_ref().and_then(|process| process.upload.as_ref());
        upload.map(|(_, cut)| Rc::clone(cut))
    }

    fn rejected_answer(&mut self, call: &StoreCall) -> CallResult {
        let cause = || io::Error::other("simulated").into();
        let conflicts = matches!(call, StoreCall::Create { .. } | StoreCall::PutSegment { .. });
        let error = match self.rng.below(if conflicts { 4 } else { 3 }) {
            0 => StoreError::Throttled(cause()),
            1 => StoreError::Unavailable(cause()),
            2 => timed_out(),
            _ => StoreError::Conflict(cause()),
        };
        failed_answer(call, error)
    }

    // ---- the local disk ----

    fn execute_local_call(&mut self, host: usize, call: &LocalCall) -> Result<Option<FoundMap>, LocalError> {
        if let Some(refused) = self.refuse_call(host, call) {
            return Err(refused);
        }
        let is_last_writer = self.writers.is_last(host);
        let fails = self.failures.local_fails(&mut self.rng);
        let here = &mut self.hosts[host];
        let mut disk = here.disk.lock();
        if here.fault.full && needs_space(call, disk.is_reserved) {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        if let (LocalCall::WriteHeader(write), true) = (call, fails) {
            disk.map.write(write, || self.rng.once_in(2));
        }
        if fails {
            if matches!(call, LocalCall::ReadMap | LocalCall::SyncHeader) {
                disk.fail_sync();
            }
            return Err(io::Error::other("simulated").into());
        }
        match call {
            LocalCall::ReadSides
            | LocalCall::WriteSlot { .. }
            | LocalCall::NameSlot
            | LocalCall::ReadSlot => {}
            LocalCall::StorePending(pending) => disk.pending = Some(pending.clone()),
            LocalCall::ReadMap => {
                let mark = disk.map.mark();
                disk.map.sync(mark);
                return disk.read_map();
            }
            LocalCall::Preserve => {
                Invariant::FencedIsKept
                    .check(!is_last_writer || here.disk_past.replacement().is_some(), || {
                        "own data is called foreign".into()
                    });
                here.disk_past.set_unpreserved_data(false);
                *disk = Disk::default();
            }
            LocalCall::Discard => {
                let holds = disk.read_map()?.is_some_and(|map| map.pages.holds_dirty());
                Invariant::FencedIsKept.check(!holds && !here.disk_past.has_unpreserved_data(), || {
                    "what a fenced writer never uploaded is thrown away".into()
                });
                *disk = Disk::default();
            }
            LocalCall::WriteHeader(write) => {
                disk.is_reserved = true;
                disk.map.write(write, || true);
            }
            LocalCall::SyncHeader => {
                let mark = disk.map.mark();
                disk.map.sync(mark);
            }
        }
        Ok(None)
    }
}

/// Returns true if a full disk fails the job. `is_reserved`: commits have reserved space.
fn needs_space(call: &LocalCall, is_reserved: bool) -> bool {
    match call {
        LocalCall::StorePending(_) => !is_reserved || is_mutated(Mutation::RecordNeedsRoom),
        LocalCall::WriteHeader(_) => !is_reserved,
        LocalCall::WriteSlot { has_room } => !has_room,
        // A directory, and a name in it.
        LocalCall::Preserve => true,
        LocalCall::ReadSides
        | LocalCall::ReadMap
        | LocalCall::Discard
        | LocalCall::SyncHeader
        | LocalCall::NameSlot
        | LocalCall::ReadSlot => false,
    }
}

fn reached_attach_step(call: &StoreCall) -> Option<AttachStep> {
    matches!(call, StoreCall::Create { .. }).then_some(AttachStep::RecordSent)
}

fn attach_step_of_write(call: &LocalCall) -> Option<AttachStep> {
    match call {
        LocalCall::WriteHeader(_) => Some(AttachStep::HeaderWritten),
        LocalCall::SyncHeader => Some(AttachStep::HeaderSynced),
        LocalCall::ReadSides
        | LocalCall::StorePending(_)
        | LocalCall::ReadMap
        | LocalCall::Preserve
        | LocalCall::Discard
        | LocalCall::WriteSlot { .. }
        | LocalCall::NameSlot
        | LocalCall::ReadSlot => None,
    }
}

fn timed_out() -> StoreError {
    StoreError::TimedOut { after: Duration::from_secs(20) }
}

/// Returns the answer of a store that rejects these credentials.
fn denied_answer(call: &StoreCall) -> CallResult {
    let source = io::Error::other("simulated").into();
    failed_answer(call, StoreError::Denied { code: "AccessDenied".to_owned(), source })
}

/// Returns an answer from which the sender cannot know if the request was executed.
fn ambiguous_answer(call: &StoreCall) -> CallResult {
    match call {
        StoreCall::Create { .. } => CallResult::Created(Err(CreateError::Ambiguous(timed_out()))),
        StoreCall::Get { .. }
        | StoreCall::GetRange { .. }
        | StoreCall::PutSegment { .. }
        | StoreCall::List { .. }
        | StoreCall::Delete { .. } => failed_answer(call, timed_out()),
    }
}

fn failed_answer(call: &StoreCall, error: StoreError) -> CallResult {
    match call {
        StoreCall::Get { .. } | StoreCall::GetRange { .. } => CallResult::Bytes(Err(error)),
        StoreCall::Create { .. } => CallResult::Created(Err(CreateError::Failed(error))),
        StoreCall::PutSegment { .. } | StoreCall::Delete { .. } => CallResult::Stored(Err(error)),
        StoreCall::List { .. } => CallResult::Listed(Err(error)),
    }
}
