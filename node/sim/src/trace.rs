//! Trace of a run: a digest of all of it, and a readable story of the last part.
//!
//! The digest is the same for the same seed on every machine, so it must not include anything that differs
//! between machines: no addresses, no clock, no order of a hash map.

use std::collections::VecDeque;

use holdfast_engine::action::{Action, Source};
use holdfast_engine::event::{CreateAnswer, Errno, Event, Unprepared};
use holdfast_engine::settings::{Durability, RuntimeSettings};
use holdfast_objects::{CreateError, StoreError};

use crate::calls::{CallKind, CallResult, LocalCall, StoreCall};

/// The trace of one run.
pub(crate) struct Trace {
    hasher: blake3::Hasher,
    /// Changes that are not yet hashed.
    unhashed: Vec<u8>,
    /// Requests, completed jobs, answers, deaths: every change.
    pub(crate) operations: u64,
    /// Lines, each with its step.
    story: VecDeque<(u64, String)>,
    /// Number of lines to keep; with zero, no text is generated.
    max_lines: usize,
    step: u64,
}

impl Trace {
    /// Creates a trace that keeps `max_lines` lines of story.
    pub(crate) fn new(max_lines: usize) -> Self {
        let (hasher, story) = (blake3::Hasher::new(), VecDeque::new());
        Self { hasher, unhashed: Vec::with_capacity(4096), operations: 0, story, max_lines, step: 0 }
    }

    pub(crate) fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    pub(crate) fn event(&mut self, host: usize, event: &Event) {
        self.operations += 1;
        let (tag, numbers) = event_numbers(event);
        self.hash(tag, host, numbers);
        self.add_line(host, || format!("<- {}", describe_event(event)));
    }

    pub(crate) fn action(&mut self, host: usize, action: &Action) {
        let (tag, numbers) = action_numbers(action);
        self.hash(tag, host, numbers);
        self.add_line(host, || format!("-> {}", describe_action(action)));
    }

    /// Records the end of a pipeline call.
    pub(crate) fn call(&mut self, host: usize, call: &CallKind, answer: &CallResult) {
        let (tag, size) = call_numbers(call);
        let (words, found) = describe_answer(answer);
        self.hash(tag, host, [size, found, words.len() as u64, 0]);
        self.add_line(host, || format!("   {}: {words}", describe_call(call)));
    }

    /// Records an event of a host.
    pub(crate) fn host_event(&mut self, host: usize, tag: u8, what: &str) {
        self.operations += 1;
        self.hash(tag, host, [0; 4]);
        self.add_line(host, || what.to_owned());
    }

    fn hash(&mut self, tag: u8, host: usize, numbers: [u64; 4]) {
        self.unhashed.extend_from_slice(&[tag, host as u8]);
        for number in numbers {
            self.unhashed.extend_from_slice(&number.to_le_bytes());
        }
        if self.unhashed.len() > 4000 {
            self.hasher.update(&self.unhashed);
            self.unhashed.clear();
        }
    }

    fn add_line(&mut self, host: usize, words: impl FnOnce() -> String) {
        if self.max_lines == 0 {
            return;
        }
        if self.story.len() == self.max_lines {
            self.story.pop_front();
        }
        self.story.push_back((self.step, format!("host {host}  {}", words())));
    }

    /// Takes the last lines, oldest first.
    pub(crate) fn take_story(&mut self) -> Vec<String> {
        self.story.drain(..).map(|(step, line)| format!("step {step:5}  {line}")).collect()
    }

    /// Takes the last lines, oldest first, each with the number of its step.
    pub(crate) fn take_numbered_story(&mut self) -> Vec<(u64, String)> {
        self.story.drain(..).collect()
    }

    /// Returns the digest of everything so far, in hexadecimal.
    pub(crate) fn digest(&mut self) -> String {
        self.hasher.update(&self.unhashed);
        self.unhashed.clear();
        self.hasher.finalize().to_hex().to_string()
    }
}

/// Represents bytes in an envelope: part of the checksum in its head.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.get(16..24).map_or(0, |head| u64::from_le_bytes(head.try_into().expect("8 bytes")))
}

fn result_number(result: Result<(), Errno>) -> u64 {
    result.map_or_else(|errno| errno.0 as u64, |()| 0)
}

fn event_numbers(event: &Event) -> (u8, [u64; 4]) {
    match event {
        Event::Request { id, op, range } => (1, [id.0.into(), *op as u64, range.start.0, range.sectors]),
        Event::IoCompleted { id, result } => (2, [id.0.into(), result_number(*result), 0, 0]),
        Event::ColdReadCompleted { id, result } => (17, [id.0.into(), result_number(*result), 0, 0]),
        Event::Evicted { result } => (15, [result_number(*result), 0, 0, 0]),
        Event::Space { excess_bytes, room_bytes } => (16, [*excess_bytes, *room_bytes, 0, 0]),
        Event::MapPrepared { chunk, result } => {
            let result = result.map_err(|(Unprepared::RunDir(errno) | Unprepared::Disk(errno))| errno);
            (3, [chunk.0, result_number(result), 0, 0])
        }
        Event::MapReleased { chunk } => (22, [chunk.0, 0, 0, 0]),
        Event::SideSynced { side, result } => (4, [*side as u64, result_number(*result), 0, 0]),
        Event::MapWritten { result } => (5, [result_number(*result), 0, 0, 0]),
        Event::NextTurn => (19, [0; 4]),
        Event::PauseEnded => (53, [0; 4]),
        Event::MapSynced { result } => (6, [result_number(*result), 0, 0, 0]),
        Event::ManifestLoaded(manifest) => (7, [manifest.seq().0, manifest.epoch().0, 0, 0]),
        Event::Uploaded(segment) => {
            let (id, chunks) = (segment.id.0.ulid.0 as u64, segment.chunks.ranges().len() as u64);
            (8, [id, segment.bytes, segment.index_offset, chunks])
        }
        Event::SidesUnreadable(ranges) => {
            (18, [ranges.len() as u64, ranges.first().map_or(0, |range| range.start.0), 0, 0])
        }
        Event::Merged { kind, output: run } => {
            (20, [run.id.0.ulid.0 as u64, run.bytes, run.sectors, u64::from(run.level) << 8 | *kind as u64])
        }
        Event::MergeFailed { kind, barred } => (21, [*kind as u64, barred.ulid.0 as u64, 0, 0]),
        Event::PendingStored { result } => (9, [result_number(*result), 0, 0, 0]),
        Event::CreateAnswered(answer) => (10, [answer_number(*answer), 0, 0, 0]),
        Event::RecordRead { seq, bytes } => (11, [seq.0, bytes.as_deref().map_or(0, checksum), 0, 0]),
        Event::CheckpointWritten { seq, written } => (12, [seq.0, u64::from(*written), 0, 0]),
        Event::Snapshot { uid, forgotten } => (24, [uid.0[0].into(), forgotten.len() as u64, 0, 0]),
        Event::RootStored => (23, [0; 4]),
        Event::RootBarred => (25, [0; 4]),
        Event::Detach => (13, [0; 4]),
        Event::Tick => (14, [0; 4]),
        Event::Grow { sectors } => (26, [*sectors, 0, 0, 0]),
        Event::Configure(RuntimeSettings { max_age_ms, durability }) => {
            (27, [*max_age_ms, u64::from(*durability == Durability::Object), 0, 0])
        }
        Event::CommitSoon(soon) => (28, [u64::from(*soon), 0, 0, 0]),
        Event::AwaitCut { uid } => (29, [uid.0[0].into(), 0, 0, 0]),
        Event::PrepareCut { uid, forgotten } => (30, [uid.0[0].into(), forgotten.len() as u64, 0, 0]),
        Event::Cut { uid } => (31, [uid.0[0].into(), 0, 0, 0]),
        Event::ReleaseCut { uid } => (32, [uid.0[0].into(), 0, 0, 0]),
        Event::Repair { ranges, checkpoint } => (17, [ranges.len() as u64, u64::from(*checkpoint), 0, 0]),
    }
}

fn answer_number(answer: CreateAnswer) -> u64 {
    match answer {
        CreateAnswer::Created => 0,
        CreateAnswer::Exists => 1,
        CreateAnswer::Ambiguous => 2,
    }
}

fn action_numbers(action: &Action) -> (u8, [u64; 4]) {
    match action {
        Action::Read { id, range, at, from } => {
            let from = match from {
                Source::Side(side) => *side as u64,
                Source::Zeros => 2,
            };
            (33, [u64::from(id.0) << 8 | from, range.start.0, range.sectors, u64::from(*at)])
        }
        Action::ReadCold { id, range, at, runs } => {
            (34, [u64::from(id.0) << 32 | runs.len() as u64, range.start.0, range.sectors, u64::from(*at)])
        }
        Action::Write { id, range, side } => (35, [id.0.into(), range.start.0, range.sectors, *side as u64]),
        Action::Punch { id, range, side } => (36, [id.0.into(), range.start.0, range.sectors, *side as u64]),
        Action::Evict { range, side } => (48, [range.start.0, range.sectors, *side as u64, 0]),
        Action::Complete { id, result } => (37, [id.0.into(), result_number(*result), 0, 0]),
        Action::PrepareMap { chunk } => (38, [chunk.0, 0, 0, 0]),
        Action::ReleaseMap { chunk } => (51, [chunk.0, 0, 0, 0]),
        Action::SyncSide { side } => (39, [*side as u64, 0, 0, 0]),
        Action::WriteMap(writes) => {
            let sums = writes.iter().fold(0u64, |all, one| all.rotate_left(7) ^ checksum(&one.bytes));
            (40, [writes.len() as u64, writes.first().map_or(0, |first| first.offset), sums, 0])
        }
        Action::SyncMap => (41, [0; 4]),
        Action::NextTurn => (49, [0; 4]),
        Action::Pause => (54, [0; 4]),
        Action::Upload { place, blocks } => {
            let masks = blocks.iter().fold(0u64, |all, one| {
                all.rotate_left(7) ^ one.block.0 ^ u64::from(one.a.0) << 32 ^ u64::from(one.b.0)
            });
            (42, [blocks.len() as u64, masks, place.stored(), 0])
        }
        Action::Merge(plan) => (
            50,
            [plan.place.stored(), plan.inputs.len() as u64, u64::from(plan.level), u64::from(plan.is_oldest)],
        ),
        Action::StoreRoot { seq, bytes } => (52, [seq.0, checksum(bytes), 0, 0]),
        Action::StorePending { seq, bytes } => (43, [seq.0, checksum(bytes), 0, 0]),
        Action::CreateRecord { seq, bytes } => (44, [seq.0, checksum(bytes), 0, 0]),
        Action::ReadRecord { seq } => (45, [seq.0, 0, 0, 0]),
        Action::WriteCheckpoint { seq, bytes } => (46, [seq.0, checksum(bytes), 0, 0]),
        Action::Report(_) => (47, [0; 4]),
    }
}

/// Returns a number for the kind of a call, and its size.
fn call_numbers(call: &CallKind) -> (u8, u64) {
    match call {
        CallKind::Store(StoreCall::Get { key }) => (81, key.len() as u64),
        CallKind::Store(StoreCall::GetRange { range, .. }) => (82, range.end - range.start),
        CallKind::Store(StoreCall::Create { body, .. }) => (83, checksum(body)),
        CallKind::Store(StoreCall::PutSegment { body, .. }) => (84, body.len() as u64),
        CallKind::Store(StoreCall::List { prefix, .. }) => (85, prefix.len() as u64),
        CallKind::Store(StoreCall::Delete { key }) => (86, key.len() as u64),
        CallKind::Local(LocalCall::ReadSides) => (87, 0),
        CallKind::Local(LocalCall::StorePending(pending)) => (88, pending.seq.0),
        CallKind::Local(LocalCall::ReadMap) => (89, 0),
        CallKind::Local(LocalCall::Preserve) => (90, 0),
        CallKind::Local(LocalCall::Discard) => (91, 0),
        CallKind::Local(LocalCall::WriteHeader(write)) => (92, checksum(&write.bytes)),
        CallKind::Local(LocalCall::SyncHeader) => (93, 0),
        CallKind::Local(LocalCall::WriteSlot { .. }) => (95, 0),
        CallKind::Local(LocalCall::ReadSlot) => (105, 0),
        CallKind::Local(LocalCall::NameSlot) => (109, 0),
        CallKind::Sleep(time) => (94, time.as_millis() as u64),
    }
}

fn describe_call(call: &CallKind) -> String {
    match call {
        CallKind::Store(StoreCall::Get { key } | StoreCall::GetRange { key, .. }) => format!("GET {key}"),
        CallKind::Store(StoreCall::Create { key, .. }) => format!("create {key}"),
        CallKind::Store(StoreCall::PutSegment { key, .. }) => format!("PUT {key}"),
        CallKind::Store(StoreCall::List { prefix, .. }) => format!("LIST {prefix}"),
        CallKind::Store(StoreCall::Delete { key }) => format!("DELETE {key}"),
        CallKind::Local(LocalCall::ReadSides) => "read the sealed side".into(),
        CallKind::Local(LocalCall::StorePending(pending)) => {
            format!("keep the record of log/{}", pending.seq.0)
        }
        CallKind::Local(LocalCall::ReadMap) => "read the durable map".into(),
        CallKind::Local(LocalCall::Preserve) => "preserve the local files".into(),
        CallKind::Local(LocalCall::Discard) => "throw the local files away".into(),
        CallKind::Local(LocalCall::WriteHeader(_)) => "write the header".into(),
        CallKind::Local(LocalCall::SyncHeader) => "sync the header".into(),
        CallKind::Local(LocalCall::WriteSlot { .. }) => "write a slot of the slab".into(),
        CallKind::Local(LocalCall::NameSlot) => "name a slot of the slab".into(),
        CallKind::Local(LocalCall::ReadSlot) => "read a slot of the slab".into(),
        CallKind::Sleep(time) => format!("wait {} ms", time.as_millis()),
    }
}

/// Returns a description of the result of a call, and its size.
fn describe_answer(answer: &CallResult) -> (&'static str, u64) {
    match answer {
        CallResult::Bytes(Ok(bytes)) => ("found", bytes.len() as u64),
        CallResult::Bytes(Err(StoreError::NotFound { .. })) => ("not there", 0),
        CallResult::Listed(Ok(page)) => ("listed", page.entries.len() as u64),
        CallResult::Created(Ok(_))
        | CallResult::Stored(Ok(()))
        | CallResult::Local(Ok(_))
        | CallResult::Slept => ("done", 0),
        CallResult::Created(Err(CreateError::Exists { .. })) => ("exists", 0),
        CallResult::Created(Err(CreateError::Ambiguous(_))) => ("outcome unknown", 0),
        CallResult::Bytes(Err(_))
        | CallResult::Listed(Err(_))
        | CallResult::Created(Err(CreateError::Failed(_)))
        | CallResult::Stored(Err(_))
        | CallResult::Local(Err(_)) => ("failed", 0),
    }
}

fn describe_event(event: &Event) -> String {
    match event {
        Event::Request { id, op, range } => {
            format!("client: {op:?} of {} sectors at {} (request {})", range.sectors, range.start.0, id.0)
        }
        Event::ManifestLoaded(manifest) => format!("the log ends at {}", manifest.seq().0),
        Event::Uploaded(segment) => format!("uploaded {} bytes", segment.bytes),
        Event::RecordRead { seq, bytes } => {
            format!("log/{} {}", seq.0, if bytes.is_some() { "holds a record" } else { "is free" })
        }
        Event::IoCompleted { .. }
        | Event::ColdReadCompleted { .. }
        | Event::Evicted { .. }
        | Event::Space { .. }
        | Event::MapPrepared { .. }
        | Event::MapReleased { .. }
        | Event::SideSynced { .. }
        | Event::MapWritten { .. }
        | Event::MapSynced { .. }
        | Event::NextTurn
        | Event::PauseEnded
        | Event::SidesUnreadable(_)
        | Event::PendingStored { .. }
        | Event::CreateAnswered(_)
        | Event::CheckpointWritten { .. }
        | Event::RootStored
        | Event::RootBarred
        | Event::Detach
        | Event::Grow { .. }
        | Event::Configure(_)
        | Event::CommitSoon(_)
        | Event::Repair { .. }
        | Event::MergeFailed { .. }
        | Event::AwaitCut { .. }
        | Event::Cut { .. }
        | Event::ReleaseCut { .. }
        | Event::Tick => format!("{event:?}"),
        Event::Snapshot { uid, .. } => format!("a snapshot is asked for: {uid}"),
        Event::PrepareCut { uid, .. } => format!("a cut is prepared: {uid}"),
        Event::Merged { output, .. } => format!("merged into {}, {} sectors", output.id, output.sectors),
    }
}

fn describe_action(action: &Action) -> String {
    match action {
        Action::Read { id, range, from, .. } => {
            format!("read {} sectors at {} from {from:?} (request {})", range.sectors, range.start.0, id.0)
        }
        Action::ReadCold { id, range, runs, .. } => format!(
            "read {} sectors at {} from {} segments (request {})",
            range.sectors,
            range.start.0,
            runs.len(),
            id.0
        ),
        Action::Write { id, range, side } => {
            format!("write {} sectors at {} to {side:?} (request {})", range.sectors, range.start.0, id.0)
        }
        Action::Punch { id, range, side } => {
            format!("punch {} sectors at {} of {side:?} (request {})", range.sectors, range.start.0, id.0)
        }
        Action::Evict { range, side } => {
            format!("evict {} sectors at {} of {side:?}", range.sectors, range.start.0)
        }
        Action::WriteMap(writes) => format!("write {} map slots", writes.len()),
        Action::Upload { blocks, .. } => format!("upload {} blocks", blocks.len()),
        Action::Merge(plan) => format!("merge {} runs", plan.inputs.len()),
        Action::StoreRoot { seq, .. } => format!("store the root of snapshot {}", seq.0),
        Action::StorePending { seq, .. } => format!("store the record of log/{}", seq.0),
        Action::CreateRecord { seq, .. } => format!("create log/{}", seq.0),
        Action::WriteCheckpoint { seq, .. } => format!("checkpoint {}", seq.0),
        Action::Complete { .. }
        | Action::PrepareMap { .. }
        | Action::ReleaseMap { .. }
        | Action::SyncSide { .. }
        | Action::SyncMap
        | Action::NextTurn
        | Action::Pause
        | Action::ReadRecord { .. }
        | Action::Report(_) => format!("{action:?}"),
    }
}
