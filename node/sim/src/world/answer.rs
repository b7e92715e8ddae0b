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
use crate::calls::{Answer, Ask, LocalAsk, LocalError, StoreAsk};
use crate::disk::Disk;
use crate::expect::Cut;
use crate::failures::RequestFate;
use crate::invariant::Invariant;

impl World {
    /// Executes the request of a future. Returns `None` if it killed the process.
    pub(super) fn answer(&mut self, host: usize, ask: &Ask) -> Option<Answer> {
        let (answer, step) = match ask {
            Ask::Sleep(_) => (Answer::Slept, None),
            Ask::Store(ask) => (self.ask_store(host, ask, true), sent(ask)),
            Ask::Local(ask) => (Answer::Local(self.ask_disk(host, ask)), written(ask)),
        };
        self.trace.call(host, ask, &answer);
        let process = self.hosts[host].process.as_ref().expect("it asked");
        if process.volume.is_none() && step.is_some() && process.dies == step {
            self.process_died(host);
            return None;
        }
        Some(answer)
    }

    // ---- the store ----

    /// Executes a request to the store. With `is_stale`, LIST may show an older state.
    pub(super) fn ask_store(&mut self, host: usize, ask: &StoreAsk, is_stale: bool) -> Answer {
        let cut = self.cut_of(host, ask);
        if matches!(ask, StoreAsk::Create { .. }) && self.rng.once_in(3) {
            // The worst moment for an older one to arrive.
            self.land_late();
        }
        match self.outage() {
            Some(Outage::Denies) => return denied(ask),
            Some(Outage::Unreachable | Outage::Silent) => return unanswered(ask),
            None => {}
        }
        if self.failures.denies(ask) {
            return denied(ask);
        }
        let cut_off = self.hosts[host].fault.cut_off;
        let fate = if cut_off { RequestFate::RequestLost } else { self.failures.fate(ask, &mut self.rng) };
        match fate {
            RequestFate::Fine => {
                let behind = self.failures.behind(ask, &mut self.rng);
                self.store.apply(ask, cut.as_ref(), if is_stale { behind } else { 0 })
            }
            RequestFate::Before => self.refused(ask),
            RequestFate::ReplyLost => {
                self.store.apply(ask, cut.as_ref(), 0);
                unanswered(ask)
            }
            RequestFate::RequestLost => unanswered(ask),
            RequestFate::Late => {
                self.store.late.push((ask.clone(), cut));
                unanswered(ask)
            }
            RequestFate::MetItself => {
                self.store.apply(ask, cut.as_ref(), 0);
                self.store.apply(ask, cut.as_ref(), 0)
            }
        }
    }

    /// Returns the content captured by the seal of an upload.
    pub(super) fn cut_of(&self, host: usize, ask: &StoreAsk) -> Option<Rc<Cut>> {
        let StoreAsk::PutSegment { key, .. } = ask else { return None };
        if !matches!(ObjectKey::parse(key), Some(ObjectKey::Segment(..))) {
            return None;
        }
        let upload = self.hosts[host].process.as_ref().and_then(|process| process.upload.as_ref());
        upload.map(|(_, cut)| Rc::clone(cut))
    }

    fn refused(&mut self, ask: &StoreAsk) -> Answer {
        let cause = || io::Error::other("simulated").into();
        let conflicts = matches!(ask, StoreAsk::Create { .. } | StoreAsk::PutSegment { .. });
        let error = match self.rng.below(if conflicts { 4 } else { 3 }) {
            0 => StoreError::Throttled(cause()),
            1 => StoreError::Unavailable(cause()),
            2 => timed_out(),
            _ => StoreError::Conflict(cause()),
        };
        failed(ask, error)
    }

    // ---- the local disk ----

    fn ask_disk(&mut self, host: usize, ask: &LocalAsk) -> Result<Option<FoundMap>, LocalError> {
        if let Some(refused) = self.refuse_ask(host, ask) {
            return Err(refused);
        }
        let is_last_writer = self.writers.is_last(host);
        let fails = self.failures.local(&mut self.rng);
        let here = &mut self.hosts[host];
        let mut disk = here.disk.lock();
        if here.fault.full && takes_room(ask, disk.is_reserved) {
            return Err(io::Error::from(io::ErrorKind::StorageFull).into());
        }
        if let (LocalAsk::WriteHeader(write), true) = (ask, fails) {
            disk.map.write(write, || self.rng.once_in(2));
        }
        if fails {
            if matches!(ask, LocalAsk::ReadMap | LocalAsk::SyncHeader) {
                disk.map.fail_sync();
            }
            return Err(io::Error::other("simulated").into());
        }
        match ask {
            LocalAsk::ReadSides | LocalAsk::WriteSlot { .. } | LocalAsk::NameSlot | LocalAsk::ReadSlot => {}
            LocalAsk::StorePending(pending) => disk.pending = Some(pending.clone()),
            LocalAsk::ReadMap => {
                let mark = disk.map.mark();
                disk.map.sync(mark);
                return disk.read_map();
            }
            LocalAsk::Preserve => {
                Invariant::FencedIsKept.check(!is_last_writer || here.disk_past.other().is_some(), || {
                    "own data is called foreign".into()
                });
                here.disk_past.set_keeps(false);
                *disk = Disk::default();
            }
            LocalAsk::Discard => {
                let holds = disk.read_map()?.is_some_and(|map| map.pages.holds_dirty());
                Invariant::FencedIsKept.check(!holds && !here.disk_past.keeps(), || {
                    "what a fenced writer never uploaded is thrown away".into()
                });
                *disk = Disk::default();
            }
            LocalAsk::WriteHeader(write) => {
                disk.is_reserved = true;
                disk.map.write(write, || true);
            }
            LocalAsk::SyncHeader => {
                let mark = disk.map.mark();
                disk.map.sync(mark);
            }
        }
        Ok(None)
    }
}

/// Returns true if a full disk fails the job. `is_reserved`: commits have reserved space.
fn takes_room(ask: &LocalAsk, is_reserved: bool) -> bool {
    match ask {
        LocalAsk::StorePending(_) => !is_reserved || is_mutated(Mutation::RecordNeedsRoom),
        LocalAsk::WriteHeader(_) => !is_reserved,
        LocalAsk::WriteSlot { has_room } => !has_room,
        // A directory, and a name in it.
        LocalAsk::Preserve => true,
        LocalAsk::ReadSides
        | LocalAsk::ReadMap
        | LocalAsk::Discard
        | LocalAsk::SyncHeader
        | LocalAsk::NameSlot
        | LocalAsk::ReadSlot => false,
    }
}

fn sent(ask: &StoreAsk) -> Option<AttachStep> {
    matches!(ask, StoreAsk::Create { .. }).then_some(AttachStep::RecordSent)
}

fn written(ask: &LocalAsk) -> Option<AttachStep> {
    match ask {
        LocalAsk::WriteHeader(_) => Some(AttachStep::HeaderWritten),
        LocalAsk::SyncHeader => Some(AttachStep::HeaderSynced),
        LocalAsk::ReadSides
        | LocalAsk::StorePending(_)
        | LocalAsk::ReadMap
        | LocalAsk::Preserve
        | LocalAsk::Discard
        | LocalAsk::WriteSlot { .. }
        | LocalAsk::NameSlot
        | LocalAsk::ReadSlot => None,
    }
}

fn timed_out() -> StoreError {
    StoreError::TimedOut { after: Duration::from_secs(20) }
}

/// Returns the answer of a store that rejects these credentials.
fn denied(ask: &StoreAsk) -> Answer {
    let source = io::Error::other("simulated").into();
    failed(ask, StoreError::Denied { code: "AccessDenied".to_owned(), source })
}

/// Returns an answer from which the sender cannot know if the request was executed.
fn unanswered(ask: &StoreAsk) -> Answer {
    match ask {
        StoreAsk::Create { .. } => Answer::Created(Err(CreateError::Ambiguous(timed_out()))),
        StoreAsk::Get { .. }
        | StoreAsk::GetRange { .. }
        | StoreAsk::PutSegment { .. }
        | StoreAsk::List { .. }
        | StoreAsk::Delete { .. } => failed(ask, timed_out()),
    }
}

fn failed(ask: &StoreAsk, error: StoreError) -> Answer {
    match ask {
        StoreAsk::Get { .. } | StoreAsk::GetRange { .. } => Answer::Bytes(Err(error)),
        StoreAsk::Create { .. } => Answer::Created(Err(CreateError::Failed(error))),
        StoreAsk::PutSegment { .. } | StoreAsk::Delete { .. } => Answer::Stored(Err(error)),
        StoreAsk::List { .. } => Answer::Listed(Err(error)),
    }
}
