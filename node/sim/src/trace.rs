//! Trace of a run: a digest of all of it, and a readable story of the last part.
//!
//! The digest is the same for the same seed on every machine, so it must not include anything that differs
//! between machines: no addresses, no clock, no order of a hash map.

use std::collections::VecDeque;

use holdfast_engine::action::{Action, Source};
use holdfast_engine::event::{CreateAnswer, Errno, Event, Unprepared};
use holdfast_engine::settings::{Durability, Settings};
use holdfast_objects::{CreateError, StoreError};

use crate::calls::{Answer, Ask, LocalAsk, StoreAsk};

/// The trace of one run.
pub(crate) struct Trace {
    hasher: blake3::Hasher,
    /// Not yet hashed.
    waiting: Vec<u8>,
    /// Requests, completed jobs, answers, deaths: every change.
    pub(crate) operations: u64,
    /// Lines, each with its step.
    story: VecDeque<(u64, String)>,
    /// Number of lines to keep; with zero, no text is generated.
    keep: usize,
    step: u64,
}

impl Trace {
    /// Creates a trace that keeps `keep` lines of story.
    pub(crate) fn new(keep: usize) -> Self {
        let (hasher, story) = (blake3::Hasher::new(), VecDeque::new());
        Self { hasher, waiting: Vec::with_capacity(4096), operations: 0, story, keep, step: 0 }
    }

    pub(crate) fn begin_step(&mut self, step: u64) {
        self.step = step;
    }

    pub(crate) fn event(&mut self, host: usize, event: &Event) {
        self.operations += 1;
        let (tag, numbers) = event_numbers(event);
        self.feed(tag, host, numbers);
        self.tell(host, || format!("<- {}", event_words(event)));
    }

    pub(crate) fn action(&mut self, host: usize, action: &Action) {
        let (tag, numbers) = action_numbers(action);
        self.feed(tag, host, numbers);
        self.tell(host, || format!("-> {}", action_words(action)));
    }

    /// Records the end of a pipeline call.
    pub(crate) fn call(&mut self, host: usize, ask: &Ask, answer: &Answer) {
        let (tag, size) = ask_numbers(ask);
        let (words, found) = answer_words(answer);
        self.feed(tag, host, [size, found, words.len() as u64, 0]);
        self.tell(host, || format!("   {}: {words}", ask_words(ask)));
    }

    /// Records an event of a host.
    pub(crate) fn host_event(&mut self, host: usize, tag: u8, what: &str) {
        self.operations += 1;
        self.feed(tag, host, [0; 4]);
        self.tell(host, || what.to_owned());
    }

    fn feed(&mut self, tag: u8, host: usize, numbers: [u64; 4]) {
        self.waiting.extend_from_slice(&[tag, host as u8]);
        for number in numbers {
            self.waiting.extend_from_slice(&number.to_le_bytes());
        }
        if self.waiting.len() > 4000 {
            self.hasher.update(&self.waiting);
            self.waiting.clear();
        }
    }

    fn tell(&mut self, host: usize, words: impl FnOnce() -> String) {
        if self.keep == 0 {
            return;
        }
        if self.story.len() == self.keep {
            self.story.pop_front();
        }
        self.story.push_back((self.step, format!("host {host}  {}", words())));
    }

    /// Takes the last lines, oldest first.
    pub(crate) fn take_story(&mut self) -> Vec<String> {
        self.story.drain(..).map(|(step, line)| format!("step {step:5}  {line}")).collect()
    }

    /// Takes the same lines, each with the number of its step.
    pub(crate) fn take_numbered_story(&mut self) -> Vec<(u64, String)> {
        self.story.drain(..).collect()
    }

    /// Returns the digest of everything so far, in hexadecimal.
    pub(crate) fn digest(&mut self) -> String {
        self.hasher.update(&self.waiting);
        self.waiting.clear();
        self.hasher.finalize().to_hex().to_string()
    }
}

/// Represents bytes in an envelope: part of the checksum in its head.
fn sum(bytes: &[u8]) -> u64 {
    bytes.get(16..24).map_or(0, |head| u64::from_le_bytes(head.try_into().expect("8 bytes")))
}

fn came_of(result: Result<(), Errno>) -> u64 {
    result.map_or_else(|errno| errno.0 as u64, |()| 0)
}

fn event_numbers(event: &Event) -> (u8, [u64; 4]) {
    match event {
        Event::Request { id, op, range } => (1, [id.0.into(), *op as u64, range.start.0, range.sectors]),
        Event::IoCompleted { id, result } => (2, [id.0.into(), came_of(*result), 0, 0]),
        Event::ColdReadCompleted { id, result } => (17, [id.0.into(), came_of(*result), 0, 0]),
        Event::Evicted { result } => (15, [came_of(*result), 0, 0, 0]),
        Event::Space { excess_bytes, room_bytes } => (16, [*excess_bytes, *room_bytes, 0, 0]),
        Event::MapPrepared { chunk, result } => {
            let result = result.map_err(|(Unprepared::RunDir(errno) | Unprepared::Disk(errno))| errno);
            (3, [chunk.0, came_of(result), 0, 0])
        }
        Event::MapReleased { chunk } => (22, [chunk.0, 0, 0, 0]),
        Event::SideSynced { side, result } => (4, [*side as u64, came_of(*result), 0, 0]),
        Event::MapWritten { result } => (5, [came_of(*result), 0, 0, 0]),
        Event::NextTurn => (19, [0; 4]),
        Event::PauseEnded => (53, [0; 4]),
        Event::MapSynced { result } => (6, [came_of(*result), 0, 0, 0]),
        Event::ManifestLoaded(manifest) => (7, [manifest.seq().0, manifest.epoch().0, 0, 0]),
        Event::Uploaded(segment) => {
            let (id, chunks) = (segment.id.0.ulid.0 as u64, segment.chunks.runs().len() as u64);
            (8, [id, segment.bytes, segment.index_offset, chunks])
        }
        Event::SidesUnreadable(ranges) => {
            (18, [ranges.len() as u64, ranges.first().map_or(0, |range| range.start.0), 0, 0])
        }
        Event::Merged { kind, output: run } => {
            (20, [run.id.0.ulid.0 as u64, run.bytes, run.sectors, u64::from(run.level) << 8 | *kind as u64])
        }
        Event::MergeFailed { kind, barred } => (21, [*kind as u64, barred.ulid.0 as u64, 0, 0]),
        Event::PendingStored { result } => (9, [came_of(*result), 0, 0, 0]),
        Event::CreateAnswered(answer) => (10, [answer_number(*answer), 0, 0, 0]),
        Event::RecordRead { seq, bytes } => (11, [seq.0, bytes.as_deref().map_or(0, sum), 0, 0]),
        Event::CheckpointWritten { seq, written } => (12, [seq.0, u64::from(*written), 0, 0]),
        Event::Snapshot { uid, forgotten } => (24, [uid.0[0].into(), forgotten.len() as u64, 0, 0]),
        Event::RootStored => (23, [0; 4]),
        Event::RootBarred => (25, [0; 4]),
        Event::Detach => (13, [0; 4]),
        Event::Tick => (14, [0; 4]),
        Event::Grow { sectors } => (26, [*sectors, 0, 0, 0]),
        Event::Configure(Settings { max_age_ms, durability }) => {
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
        Action::Complete { id, result } => (37, [id.0.into(), came_of(*result), 0, 0]),
        Action::PrepareMap { chunk } => (38, [chunk.0, 0, 0, 0]),
        Action::ReleaseMap { chunk } => (51, [chunk.0, 0, 0, 0]),
        Action::SyncSide { side } => (39, [*side as u64, 0, 0, 0]),
        Action::WriteMap(writes) => {
            let sums = writes.iter().fold(0u64, |all, one| all.rotate_left(7) ^ sum(&one.bytes));
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
        Action::StoreRoot { seq, bytes } => (52, [seq.0, sum(bytes), 0, 0]),
        Action::StorePending { seq, bytes } => (43, [seq.0, sum(bytes), 0, 0]),
        Action::CreateRecord { seq, bytes } => (44, [seq.0, sum(bytes), 0, 0]),
        Action::ReadRecord { seq } => (45, [seq.0, 0, 0, 0]),
        Action::WriteCheckpoint { seq, bytes } => (46, [seq.0, sum(bytes), 0, 0]),
        Action::Report(_) => (47, [0; 4]),
    }
}

/// Returns a number for the kind of a call, and its size.
fn ask_numbers(ask: &Ask) -> (u8, u64) {
    match ask {
        Ask::Store(StoreAsk::Get { key }) => (81, key.len() as u64),
        Ask::Store(StoreAsk::GetRange { range, .. }) => (82, range.end - range.start),
        Ask::Store(StoreAsk::Create { body, .. }) => (83, sum(body)),
        Ask::Store(StoreAsk::PutSegment { body, .. }) => (84, body.len() as u64),
        Ask::Store(StoreAsk::List { prefix, .. }) => (85, prefix.len() as u64),
        Ask::Store(StoreAsk::Delete { key }) => (86, key.len() as u64),
        Ask::Local(LocalAsk::ReadSides) => (87, 0),
        Ask::Local(LocalAsk::StorePending(pending)) => (88, pending.seq.0),
        Ask::Local(LocalAsk::ReadMap) => (89, 0),
        Ask::Local(LocalAsk::Preserve) => (90, 0),
        Ask::Local(LocalAsk::Discard) => (91, 0),
        Ask::Local(LocalAsk::WriteHeader(write)) => (92, sum(&write.bytes)),
        Ask::Local(LocalAsk::SyncHeader) => (93, 0),
        Ask::Local(LocalAsk::WriteSlot { .. }) => (95, 0),
        Ask::Local(LocalAsk::ReadSlot) => (105, 0),
        Ask::Local(LocalAsk::NameSlot) => (109, 0),
        Ask::Sleep(time) => (94, time.as_millis() as u64),
    }
}

fn ask_words(ask: &Ask) -> String {
    match ask {
        Ask::Store(StoreAsk::Get { key } | StoreAsk::GetRange { key, .. }) => format!("GET {key}"),
        Ask::Store(StoreAsk::Create { key, .. }) => format!("create {key}"),
        Ask::Store(StoreAsk::PutSegment { key, .. }) => format!("PUT {key}"),
        Ask::Store(StoreAsk::List { prefix, .. }) => format!("LIST {prefix}"),
        Ask::Store(StoreAsk::Delete { key }) => format!("DELETE {key}"),
        Ask::Local(LocalAsk::ReadSides) => "read the sealed side".into(),
        Ask::Local(LocalAsk::StorePending(pending)) => format!("keep the record of log/{}", pending.seq.0),
        Ask::Local(LocalAsk::ReadMap) => "read the durable map".into(),
        Ask::Local(LocalAsk::Preserve) => "preserve the local files".into(),
        Ask::Local(LocalAsk::Discard) => "throw the local files away".into(),
        Ask::Local(LocalAsk::WriteHeader(_)) => "write the header".into(),
        Ask::Local(LocalAsk::SyncHeader) => "sync the header".into(),
        Ask::Local(LocalAsk::WriteSlot { .. }) => "write a slot of the slab".into(),
        Ask::Local(LocalAsk::NameSlot) => "name a slot of the slab".into(),
        Ask::Local(LocalAsk::ReadSlot) => "read a slot of the slab".into(),
        Ask::Sleep(time) => format!("wait {} ms", time.as_millis()),
    }
}

/// Returns a description of the result of a call, and its size.
fn answer_words(answer: &Answer) -> (&'static str, u64) {
    match answer {
        Answer::Bytes(Ok(bytes)) => ("found", bytes.len() as u64),
        Answer::Bytes(Err(StoreError::NotFound { .. })) => ("not there", 0),
        Answer::Listed(Ok(page)) => ("listed", page.entries.len() as u64),
        Answer::Created(Ok(_)) | Answer::Stored(Ok(())) | Answer::Local(Ok(_)) | Answer::Slept => ("done", 0),
        Answer::Created(Err(CreateError::Exists { .. })) => ("exists", 0),
        Answer::Created(Err(CreateError::Ambiguous(_))) => ("outcome unknown", 0),
        Answer::Bytes(Err(_))
        | Answer::Listed(Err(_))
        | Answer::Created(Err(CreateError::Failed(_)))
        | Answer::Stored(Err(_))
        | Answer::Local(Err(_)) => ("failed", 0),
    }
}

fn event_words(event: &Event) -> String {
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

fn action_words(action: &Action) -> String {
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
