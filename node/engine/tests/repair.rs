//! A volume on an in-memory host that answers at once: repairs of lost objects, the map of a fenced
//! writer, and a successor's handling of its predecessor's record.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use holdfast_engine::action::{Action, DirtyBlock, Report, Source};
use holdfast_engine::durable_map::{Header, file_bytes, newest_pages, page_offset};
use holdfast_engine::event::{CreateAnswer, Event, Op, RequestId};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Pending, Setup};
use holdfast_engine::snapshot::SnapshotRefused;
use holdfast_engine::volume::{Delay, Volume};
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::index::RunRef;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Merge, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_types::{Block, Epoch, Mask, Nonce, Place, RunId, SectorRange, SegmentId, Seq, SnapshotUid};

const SECTORS: u64 = 1000;
const MAX_AGE: u64 = 1000;
const NONCE: Nonce = Nonce([7; 16]);

/// A live map that outlives the process that maps it.
struct Mapping {
    bytes: Vec<u8>,
    home: Rc<RefCell<Vec<u8>>>,
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Mapping {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        *self.home.borrow_mut() = std::mem::take(&mut self.bytes);
    }
}

struct Host {
    volume: Volume<Mapping>,
    tmpfs: Rc<RefCell<Vec<u8>>>,
    setup: Setup,
    /// The log up to the volume's attach.
    log: Manifest,
    map: Vec<u8>,
    /// Blocks of each segment.
    uploads: Vec<Vec<DirtyBlock>>,
    reports: Vec<Report>,
    /// Attempted checkpoints; the first attempt fails.
    checkpoints: Vec<Seq>,
    reads: Vec<Source>,
    /// The record at the next position of the log, if any.
    late: Option<Vec<u8>>,
    /// Another writer takes each position of the log first.
    answers_exist: bool,
    /// Uploads are answered only while this is true.
    store_answers: bool,
    now: u64,
}

fn segment() -> Event {
    let (id, chunks) = (SegmentId::new(Place::until(Seq(100)), 1, [0; 10]), ChunkRanges::around([(0, 1)]));
    Event::Uploaded(SegmentRef { id, bytes: 100, index_offset: 0, index_bytes: 100, sectors: 5, chunks })
}

impl Host {
    fn new() -> Self {
        let mut manifest = Manifest::empty("v".parse().unwrap());
        let attach = Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None };
        for (epoch, body) in [(0, Body::create(SECTORS)), (1, attach)] {
            let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
            let record = Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
            manifest.apply(&record).unwrap();
        }
        let header = Header {
            volume: manifest.volume().clone(),
            identity: manifest.identity(),
            sectors: SECTORS,
            epoch: Epoch(1),
            writer: NONCE,
            nonces: vec![NONCE],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        };
        let limits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms: MAX_AGE };
        let setup = Setup {
            requests: 4,
            limits,
            header,
            header_generation: 0,
            unix_ms_at_zero: 0,
            durability: Durability::Local,
        };
        let tmpfs = Rc::default();
        let memory = Mapping { bytes: vec![0; map_bytes(SECTORS) as usize], home: Rc::clone(&tmpfs) };
        let log = manifest.clone();
        let volume = Volume::attach(setup.clone(), memory, AttachState::in_log(manifest), 0, &mut Vec::new());
        Self {
            volume,
            tmpfs,
            setup,
            log,
            map: vec![0; file_bytes(1) as usize],
            uploads: Vec::new(),
            reports: Vec::new(),
            checkpoints: Vec::new(),
            reads: Vec::new(),
            late: None,
            answers_exist: false,
            store_answers: true,
            now: 0,
        }
    }

    /// Crashes the process; another one takes over, which cannot read the log yet.
    fn die(&mut self) {
        self.volume = Self::new().volume;
        let memory = Mapping { bytes: self.tmpfs.take(), home: Rc::clone(&self.tmpfs) };
        self.volume = Volume::resume(self.setup.clone(), memory, None, self.now).unwrap();
    }

    /// Crashes the process with this record stored for the position after `self.log`; another takes over.
    fn die_with_pending(&mut self, body: Body) {
        self.volume = Self::new().volume;
        let memory = Mapping { bytes: self.tmpfs.take(), home: Rc::clone(&self.tmpfs) };
        let pending = Pending { seq: self.log.seq().next(), bytes: self.next_record(body).encode() };
        self.volume = Volume::resume(self.setup.clone(), memory, Some(pending), self.now).unwrap();
    }

    fn next_record(&self, body: Body) -> Record {
        let (volume, seq) = (self.log.volume().clone(), self.log.seq().next());
        Record { volume, seq, epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body }
    }

    fn write(&mut self, start: u64, sectors: u64) {
        self.send(Event::Request {
            id: RequestId(0),
            op: Op::Write,
            range: SectorRange::new(start, sectors),
        });
    }

    /// Returns the source of a sector's newest bytes.
    fn read(&mut self, sector: u64) -> Source {
        self.send(Event::Request { id: RequestId(1), op: Op::Read, range: SectorRange::new(sector, 1) });
        self.reads.pop().unwrap()
    }

    /// Advances the time until dirty data is too old.
    fn commit(&mut self) {
        self.now += MAX_AGE;
        self.send(Event::Tick);
    }

    fn send(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut out = Vec::new();
            self.volume.handle(self.now, event, &mut out);
            let answers: Vec<_> = out.into_iter().filter_map(|action| self.act(action)).collect();
            events.splice(0..0, answers.into_iter().rev());
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        let done = Ok(());
        Some(match action {
            Action::Write { id, .. } => Event::IoCompleted { id, result: done },
            Action::Read { id, from, .. } => {
                self.reads.push(from);
                Event::IoCompleted { id, result: done }
            }
            Action::PrepareMap { chunk } => Event::MapPrepared { chunk, result: Ok(()) },
            Action::SyncSide { side } => Event::SideSynced { side, result: done },
            Action::WriteMap(writes) => {
                for write in writes {
                    self.map[write.offset as usize..][..write.bytes.len()].copy_from_slice(&write.bytes);
                }
                Event::MapWritten { result: done }
            }
            Action::SyncMap => Event::MapSynced { result: done },
            Action::NextTurn => Event::NextTurn,
            Action::Upload { blocks, .. } => {
                self.uploads.push(blocks);
                return self.store_answers.then(segment);
            }
            Action::Merge(plan) => Event::MergeFailed { kind: plan.kind, barred: plan.inputs[0].id() },
            Action::StorePending { .. } => Event::PendingStored { result: done },
            Action::StoreRoot { .. } => Event::RootStored,
            Action::CreateRecord { bytes, .. } => {
                let exists = self.late.is_some() || self.answers_exist;
                let record = Record::decode(&bytes).unwrap();
                if !exists && matches!(record.body, Body::Change { .. }) {
                    self.log.apply(&record).unwrap();
                }
                Event::CreateAnswered(if exists { CreateAnswer::Exists } else { CreateAnswer::Created })
            }
            Action::ReadRecord { seq } => Event::RecordRead { seq, bytes: self.late.clone() },
            Action::Report(report) => {
                self.reports.push(report);
                return None;
            }
            Action::Complete { result, .. } => {
                assert_eq!(result, Ok(()));
                return None;
            }
            Action::WriteCheckpoint { seq, .. } => {
                self.checkpoints.push(seq);
                Event::CheckpointWritten { seq, written: self.checkpoints.len() > 1 }
            }
            Action::ReadCold { .. }
            | Action::Pause
            | Action::Punch { .. }
            | Action::Evict { .. }
            | Action::ReleaseMap { .. } => {
                unreachable!("{action:?}")
            }
        })
    }

    /// Creates a volume with sectors 0 to 3 clean on the active side, 10 and 11 on the other.
    fn with_clean_sectors_on_both_sides() -> Self {
        let mut host = Self::new();
        host.write(0, 4);
        host.commit();
        host.write(10, 2);
        host.commit();
        host.uploads.clear();
        assert_eq!(host.volume.status().dirty_bytes, 0);
        host
    }
}

fn block(a: u32, b: u32) -> Vec<DirtyBlock> {
    vec![DirtyBlock { block: Block(0), a: Mask(a), b: Mask(b) }]
}

#[test]
fn clean_data_of_either_side_is_stored_again() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    host.send(Event::Repair {
        ranges: vec![SectorRange::new(2, 30), SectorRange::new(999, 10)],
        checkpoint: false,
    });
    assert_eq!(host.uploads, [block(0, 0b11 << 10), block(0b1100, 0)]);
    assert_eq!(host.reports.last(), Some(&Report::Repaired));
    assert_eq!(host.reports.iter().filter(|report| **report == Report::Repaired).count(), 1);
    assert_eq!(host.volume.status().dirty_bytes, 0);
}

#[test]
fn a_repair_of_absent_data_fails_at_once() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    host.send(Event::Repair { ranges: vec![SectorRange::new(500, 10)], checkpoint: false });
    assert!(host.uploads.is_empty());
    assert_eq!(host.reports.last(), Some(&Report::Repaired));
}

#[test]
fn requests_continue_while_the_inactive_side_is_stored_again() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    host.store_answers = false;
    host.send(Event::Repair { ranges: vec![SectorRange::new(10, 2)], checkpoint: false });
    host.write(11, 1);
    assert_eq!(host.read(10), Source::Side(Side::B));
    assert_eq!(host.read(11), Source::Side(Side::A), "the newer bytes");
    host.store_answers = true;
    host.send(segment());
    assert_eq!(host.uploads, [block(0, 0b11 << 10)]);
    assert_eq!(host.reports.last(), Some(&Report::Repaired));
    assert_eq!(host.volume.status().dirty_bytes, 4096, "what was written since is not committed");
    host.commit();
    assert_eq!(host.uploads.last(), Some(&block(1 << 11, 0)));
}

#[test]
fn a_repair_waits_for_the_commit_in_progress() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    host.store_answers = false;
    host.write(3, 1);
    host.commit();
    host.send(Event::Repair { ranges: vec![SectorRange::new(0, 12)], checkpoint: false });
    assert_eq!(host.uploads, [block(0b1000, 0)]);
    host.store_answers = true;
    host.send(segment());
    assert_eq!(host.uploads[1..], [block(0b1111, 0), block(0, 0b11 << 10)]);
}

#[test]
fn the_map_of_a_fenced_writer_names_unflushed_data() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    host.store_answers = false;
    host.write(1, 1);
    host.commit();
    host.write(2, 2);
    host.write(700, 1);
    host.reports.clear();
    // The commit's position in the log is taken.
    let mut out = Vec::new();
    host.volume.handle(host.now, segment(), &mut out);
    host.volume.handle(host.now, Event::PendingStored { result: Ok(()) }, &mut out);
    host.volume.handle(host.now, Event::CreateAnswered(CreateAnswer::Exists), &mut out);
    host.send(Event::RecordRead { seq: Seq(5), bytes: Some(b"another's".to_vec()) });
    assert_eq!(host.reports, [Report::Fenced]);
    host.send(Event::Detach);
    assert_eq!(host.reports, [Report::Fenced, Report::Preserved { complete: true }]);
    host.send(Event::Tick);
    assert_eq!(host.reports.len(), 2, "it is said once");
    host.send(Event::Detach);
    assert_eq!(host.reports.len(), 3, "each detach is answered");
    assert_eq!(host.reports[2], host.reports[1]);
    let (_, header) = Header::newest(&host.map[..8192]).unwrap().unwrap();
    let pages = newest_pages(&header, &[(0, host.map[page_offset(0, 0) as usize..].to_vec())], &[]).unwrap();
    assert_eq!(
        pages[0].dirty_runs().collect::<Vec<_>>(),
        [
            (SectorRange::new(1, 1), Side::A),
            (SectorRange::new(2, 2), Side::B),
            (SectorRange::new(700, 1), Side::B),
        ]
    );
}

#[test]
fn a_checkpoint_replaces_a_lost_part_of_the_log() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    assert!(host.checkpoints.is_empty());
    host.send(Event::Repair { ranges: Vec::new(), checkpoint: true });
    assert_eq!(host.checkpoints, [Seq(4); 2]);
    assert_eq!(host.reports.last(), Some(&Report::Repaired));
}

/// Found in review: until a restarted daemon could read the log, no seal was in progress, and writes had no
/// limit. In an outage of the store they filled the cache, and one seal then took all of it.
#[test]
fn writes_wait_at_the_limit_until_the_log_is_read() {
    const MOST: u64 = 8;
    let mut host = Host::new();
    host.setup.limits.max_bytes = MOST * 4096;
    host.write(0, 1);
    host.die();
    let mut begun = 0;
    for sector in 1..MOST + 4 {
        let (id, range) = (RequestId((sector % 4) as u32), SectorRange::new(sector, 1));
        if let Some(_side) = host.volume.begin(host.now, id, Op::Write, range) {
            host.send(Event::IoCompleted { id, result: Ok(()) });
        } else {
            host.send(Event::Request { id, op: Op::Write, range });
        }
        begun = sector;
        if host.volume.status().parked > 0 {
            break;
        }
    }
    let status = host.volume.status();
    assert_eq!((begun, status.dirty_bytes), (MOST, MOST * 4096), "{status:?}");
    assert!(matches!(status.delayed, Some((Delay::DirtyLimit, _))), "{status:?}");
    host.send(Event::ManifestLoaded(Box::new(host.log.clone())));
    host.commit();
    let status = host.volume.status();
    assert_eq!((status.parked, status.delayed), (0, None), "it is written once there is a commit");
}

fn detach_record(seq: Seq, nonce: Nonce) -> Vec<u8> {
    let volume = "v".parse().unwrap();
    Record { volume, seq, epoch: Epoch(1), nonce, unix_ms: 0, body: Body::Detach { root: None } }.encode()
}

/// Regression, found by pausing hosts in the simulation: a process died during its detach, its detach
/// record arrived late, and its successor took it for another writer's.
#[test]
fn a_late_detach_of_its_own_fences_no_writer() {
    let late = |nonce| Some(detach_record(Seq(3), nonce));
    let fenced = Report::Fenced;
    for (late, end) in
        [(None, Report::Detached), (late(NONCE), Report::Detached), (late(Nonce([8; 16])), fenced)]
    {
        let mut host = Host::new();
        host.die_with_pending(Body::Detach { root: None });
        host.late = late;
        host.send(Event::ManifestLoaded(Box::new(host.log.clone())));
        host.late = None;
        host.send(Event::Detach);
        assert!(host.reports.contains(&end), "{:?}", host.reports);
        assert_eq!(host.volume.status().fenced, end == fenced);
    }
}

/// Regression, found by seed 767 of the simulation: a commit followed the writer's own detach record.
#[test]
fn nothing_is_repaired_after_the_writers_own_detach() {
    let mut host = Host::new();
    host.write(0, 8);
    host.commit();
    host.die_with_pending(Body::Detach { root: None });
    host.send(Event::Repair { ranges: vec![SectorRange::new(0, 8)], checkpoint: false });
    host.send(Event::ManifestLoaded(Box::new(host.log.clone())));
    assert_eq!(host.reports.last(), Some(&Report::Repaired));
    host.send(Event::Detach);
    assert_eq!(host.reports.last(), Some(&Report::Detached));
    assert_eq!(host.uploads.len(), 1, "the store has what was written, and no more");
}

/// Regression: each pass of a scrub requested repairs, none was done, and the ranges stayed in memory.
#[test]
fn a_fenced_writer_answers_repairs_at_once() {
    let mut host = Host::with_clean_sectors_on_both_sides();
    host.store_answers = false;
    host.write(20, 1);
    host.commit();
    host.send(Event::Repair { ranges: vec![SectorRange::new(0, 8)], checkpoint: false });
    host.reports.clear();
    host.store_answers = true;
    host.late = Some(b"another's".to_vec());
    host.answers_exist = true;
    host.send(segment());
    assert_eq!(host.reports, [Report::Repaired, Report::Fenced], "what waited does not wait any longer");
    host.send(Event::Repair { ranges: vec![SectorRange::new(0, 8)], checkpoint: true });
    assert_eq!(host.reports[2..], [Report::Repaired]);
    assert!(!host.volume.status().repairing);
}

/// Returns a commit of one small segment.
fn change(name: u8, merges: Vec<Merge>) -> Body {
    let (id, chunks) = (SegmentId::new(Place::until(Seq(100)), 1, [name; 10]), ChunkRanges::around([(0, 1)]));
    let segment = SegmentRef { id, bytes: 100, index_offset: 0, index_bytes: 100, sectors: 5, chunks };
    let (segments, chunks, invalidated) = (vec![segment], ChunkSet::default(), SideSet::NONE);
    let snapshots = SnapshotChange::default();
    Body::Change {
        segments,
        chunks,
        invalidated,
        generation: 1,
        merges,
        closed: Place::default(),
        snapshots,
        sectors: None,
    }
}

impl Host {
    /// Creates a volume with `segments` segments in its list.
    fn with_segments(segments: u8) -> Self {
        let mut host = Self::new();
        for name in 1..=segments {
            let record = host.next_record(change(name, Vec::new()));
            host.log.apply(&record).unwrap();
        }
        host
    }

    /// Returns the merge of these runs of the list, newest first.
    fn merge_of(&self, inputs: Range<usize>) -> Merge {
        let (newest, oldest) = (self.log.runs()[inputs.start].id(), self.log.runs()[inputs.end - 1].id());
        Merge { newest, oldest, output: output(1) }
    }

    fn turn(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.volume.handle(self.now, event, &mut out);
        out
    }
}

fn output(name: u8) -> RunRef {
    RunRef {
        id: RunId::new(Place::first_merge(Epoch(1)), 1, [name; 10]),
        level: 1,
        bytes: 100,
        head_offset: 0,
        head_bytes: 50,
        sectors: 5,
        chunks: ChunkRanges::around([(0, 1)]),
    }
}

/// Regression, found by the simulation: a dead process's record carried a merge, and its successor merged
/// the same runs again while it sent that record.
#[test]
fn nothing_is_merged_before_a_leftover_record() {
    for (merges, inputs) in [(false, 9), (true, 0)] {
        let mut host = Host::with_segments(8);
        let merges = merges.then(|| host.merge_of(0..8));
        host.die_with_pending(change(9, merges.into_iter().collect()));
        let sent = host.turn(Event::ManifestLoaded(Box::new(host.log.clone())));
        assert!(matches!(sent[..], [Action::CreateRecord { .. }]), "{sent:?}");
        let won = host.turn(Event::CreateAnswered(CreateAnswer::Created));
        let merge = won.iter().find_map(|action| {
            let Action::Merge(plan) = action else { return None };
            Some(plan.inputs.len())
        });
        assert_eq!(merge.unwrap_or_default(), inputs, "{won:?}");
    }
}

/// A volume that was written for a long time in many short attaches, and then only read; or whose data was
/// all discarded.
#[test]
fn a_volume_that_commits_nothing_catches_up_with_its_merges() {
    for (segments, sectors, inputs, is_recorded) in
        [(49, 0, 16, true), (48, 0, 16, false), (1, 1 << 14, 2, true), (1, (1 << 14) - 1, 0, false)]
    {
        let mut host = Host::with_segments(segments);
        let mut body = change(100, vec![]);
        let Body::Change { segments: added, .. } = &mut body else { unreachable!() };
        added[0].sectors = sectors;
        if sectors > 0 {
            host.log.apply(&host.next_record(body)).unwrap();
        }
        host.log.apply(&host.next_record(Body::Detach { root: None })).unwrap();
        let attach = Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None };
        let record = Record { epoch: Epoch(2), ..host.next_record(attach) };
        host.log.apply(&record).unwrap();
        let mut setup = host.setup.clone();
        setup.header.epoch = Epoch(2);
        let memory = Mapping { bytes: vec![0; map_bytes(SECTORS) as usize], home: Rc::default() };
        let mut out = Vec::new();
        host.volume = Volume::attach(setup, memory, AttachState::in_log(host.log.clone()), 0, &mut out);
        let data_seq = host.log.data_seq();
        let plan = out.into_iter().find_map(|action| {
            let Action::Merge(plan) = action else { return None };
            Some(plan)
        });
        assert_eq!(plan.as_ref().map_or(0, |plan| plan.inputs.len()), inputs);
        let Some(plan) = plan else { continue };
        let merged = RunRef { id: RunId::new(plan.place, 1, [1; 10]), ..output(1) };
        let out = host.turn(Event::Merged { kind: plan.kind, output: Box::new(merged) });
        assert_eq!(matches!(out[..], [Action::StorePending { .. }]), is_recorded, "{out:?}");
        if !is_recorded {
            continue;
        }
        host.send(Event::PendingStored { result: Ok(()) });
        let left = usize::from(segments) + 1 + usize::from(sectors > 0) - inputs;
        assert_eq!((host.log.runs().len(), host.log.data_seq()), (left, data_seq));
        assert_eq!(host.volume.status().index.merges, 1);
    }
}

/// Mistaken for the record of the dead process's seal, it would make dirty data clean.
#[test]
fn a_leftover_record_of_merges_commits_no_seal() {
    let mut host = Host::with_segments(8);
    // As if all of them were from its attach.
    host.send(Event::ManifestLoaded(Box::new(host.log.clone())));
    host.store_answers = false;
    host.write(3, 1);
    host.commit();
    let merges = vec![host.merge_of(0..8)];
    let (segments, chunks, invalidated) = (Vec::new(), ChunkSet::default(), SideSet::NONE);
    let snapshots = SnapshotChange::default();
    let closed = merges[0].output.id.place().next();
    host.die_with_pending(Body::Change {
        segments,
        chunks,
        invalidated,
        generation: 0,
        merges,
        closed,
        snapshots,
        sectors: None,
    });
    host.uploads.clear();
    host.send(Event::ManifestLoaded(Box::new(host.log.clone())));
    assert_eq!(host.log.runs().len(), 1, "the record is in the log");
    assert_eq!(host.volume.status().dirty_bytes, 4096);
    assert_eq!(host.uploads, [block(1 << 3, 0)], "the seal is uploaded");
}

fn taken(name: u8) -> SnapshotChange {
    SnapshotChange { taken: Some(SnapshotUid([name; 16])), dropped: Vec::new() }
}

fn registered(reports: &[Report]) -> Vec<(u64, u8)> {
    let mut taken = Vec::new();
    for report in reports {
        if let Report::SnapshotTaken(snapshot) = report {
            taken.push((snapshot.seq.0, snapshot.uid.0[0]));
        }
    }
    taken
}

/// Dirty data goes into the record that registers the snapshot; without any, the snapshot has a separate
/// record.
#[test]
fn a_snapshot_commits_dirty_data_and_registers_itself() {
    let mut host = Host::new();
    host.write(0, 4);
    let ask = |name| Event::Snapshot { uid: SnapshotUid([name; 16]), forgotten: Vec::new() };
    host.send(ask(1));
    assert_eq!((host.uploads.len(), registered(&host.reports)), (1, vec![(3, 1)]));
    host.send(ask(2));
    host.send(ask(1));
    assert_eq!((host.uploads.len(), registered(&host.reports)), (1, vec![(3, 1), (4, 2), (3, 1)]));
    assert_eq!((host.log.seq(), host.log.data_seq(), host.log.snapshots().len()), (Seq(4), Seq(3), 2));
    assert_eq!(host.volume.status().dirty_bytes, 0);
}

/// A record without data was left with a sealed side: its repetition is not that side's commit.
#[test]
fn a_repeated_snapshot_leaves_the_sealed_side_dirty() {
    let mut host = Host::new();
    host.write(0, 4);
    host.store_answers = false;
    host.commit();
    host.die_with_pending(Body::of_snapshots(taken(1)));
    host.uploads.clear();
    host.send(Event::ManifestLoaded(Box::new(host.log.clone())));
    assert_eq!(registered(&host.reports), [(3, 1)]);
    assert_eq!((host.uploads.len(), host.volume.status().dirty_bytes), (1, 4 * 4096));
}

#[test]
fn a_fenced_writer_refuses_snapshots() {
    let mut host = Host::new();
    host.write(0, 4);
    host.late = Some(b"another's".to_vec());
    host.answers_exist = true;
    let (uid, why) = (SnapshotUid([1; 16]), SnapshotRefused::Fenced);
    for _ in 0..2 {
        host.send(Event::Snapshot { uid, forgotten: Vec::new() });
        assert!(host.reports.contains(&Report::SnapshotRefused { uid, why }), "{:?}", host.reports);
        host.reports.clear();
    }
}
