//! Cuts of a volume on a host that answers at once.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use holdfast_engine::action::{Action, Report};
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{CreateAnswer, Event, Op, RequestId};
use holdfast_engine::limit::{HOLD_MS, PREPARED_MS};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, RuntimeSettings, Setup};
use holdfast_engine::snapshot::CutAnswer;
use holdfast_engine::volume::Volume;
use holdfast_format::limit::MAX_SNAPSHOTS;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentBuilder;
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_types::{CHUNK_SECTORS, Epoch, Nonce, SectorRange, SegmentId, SnapshotUid};

const NONCE: Nonce = Nonce([7; 16]);
const SECTORS: u64 = CHUNK_SECTORS;
const UID: SnapshotUid = SnapshotUid([1; 16]);
const OTHER: SnapshotUid = SnapshotUid([2; 16]);

/// Age limit of dirty data in the tests with slow uploads.
const AGE_MS: u64 = 30_000;

/// A volume on a host that answers at once.
struct Host {
    volume: Volume<Vec<u8>>,
    now: u64,
    /// The ends of the uploads in progress; `None` if uploads end at once.
    uploads: Option<Vec<Event>>,
    /// Number of completed writes.
    written: usize,
}

/// Returns the log of a volume after its first attach, with `snapshots` snapshots.
fn log(snapshots: usize) -> Manifest {
    let mut log = Manifest::empty("v".parse().unwrap());
    let attach = Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None };
    let taken = (0..snapshots).map(|number| {
        let mut name = [9; 16];
        name[..8].copy_from_slice(&(number as u64).to_le_bytes());
        Body::Change {
            segments: Vec::new(),
            chunks: Default::default(),
            invalidated: SideSet::NONE,
            generation: 0,
            merges: Vec::new(),
            closed: Default::default(),
            snapshots: SnapshotChange { taken: Some(SnapshotUid(name)), dropped: Vec::new() },
            sectors: None,
        }
    });
    let bodies = [(0, Body::create(SECTORS)), (1, attach)];
    for (epoch, body) in bodies.into_iter().chain(taken.map(|body| (1, body))) {
        let (volume, seq) = (log.volume().clone(), log.seq().next());
        let record = Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
        log.apply(&record).unwrap();
    }
    log
}

impl Host {
    fn with_log(log: Manifest) -> Self {
        Self::with_age_limit(log, 1 << 40)
    }

    /// Creates a volume whose clients write as fast as its store: a commit takes as long as the age limit.
    /// One began just now, and more is dirty.
    fn saturated() -> Self {
        let mut host = Self::with_age_limit(log(0), AGE_MS);
        host.uploads = Some(Vec::new());
        host.write(1);
        host.now = AGE_MS;
        host.send(Event::Tick);
        assert_eq!(host.uploads(), 1);
        host.write(2);
        host
    }

    fn with_age_limit(log: Manifest, max_age_ms: u64) -> Self {
        let header = Header {
            volume: log.volume().clone(),
            identity: log.identity(),
            sectors: SECTORS,
            epoch: Epoch(1),
            writer: NONCE,
            nonces: vec![NONCE],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: log.seq(),
            synced_generation: 0,
        };
        let limits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms };
        let durability = Durability::Local;
        let setup =
            Setup { requests: 4, limits, header, header_generation: 0, unix_ms_at_zero: 0, durability };
        let memory = vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()];
        let volume = Volume::attach(setup, memory, AttachState::in_log(log), 0, &mut Vec::new());
        Self { volume, now: 0, uploads: None, written: 0 }
    }

    /// Returns the number of uploads in progress.
    fn uploads(&self) -> usize {
        self.uploads.as_ref().map_or(0, Vec::len)
    }

    /// Ends the upload in progress and returns the answers about cuts.
    fn end_upload(&mut self) -> Vec<CutAnswer> {
        let ended = self.uploads.as_mut().unwrap().remove(0);
        self.cut(ended)
    }

    /// Sends an event, executes all resulting actions, and returns the reports.
    fn send(&mut self, event: Event) -> Vec<Report> {
        let (mut events, mut seen) = (vec![event], Vec::new());
        while let Some(event) = events.pop() {
            let mut out = Vec::new();
            self.volume.handle(self.now, event, &mut out);
            for action in out {
                match (action, &mut self.uploads) {
                    (Action::Report(report), _) => seen.push(report),
                    (Action::Complete { id: RequestId(0), .. }, _) => self.written += 1,
                    (upload @ Action::Upload { .. }, Some(uploads)) => uploads.extend(answer(&upload)),
                    (action, _) => events.extend(answer(&action)),
                }
            }
        }
        seen
    }

    fn write(&mut self, sector: u64) {
        self.send(Event::Request { id: RequestId(0), op: Op::Write, range: SectorRange::new(sector, 1) });
    }

    /// Sends an event and returns the answers about cuts.
    fn cut(&mut self, event: Event) -> Vec<CutAnswer> {
        let said = self.send(event).into_iter();
        said.filter_map(|report| if let Report::Cut { answer, .. } = report { Some(answer) } else { None })
            .collect()
    }
}

fn answer(action: &Action) -> Option<Event> {
    let result = Ok(());
    Some(match action {
        Action::Write { id, .. } | Action::Read { id, .. } => Event::IoCompleted { id: *id, result },
        Action::PrepareMap { chunk } => Event::MapPrepared { chunk: *chunk, result: Ok(()) },
        Action::SyncSide { side } => Event::SideSynced { side: *side, result },
        Action::WriteMap(_) => Event::MapWritten { result },
        Action::SyncMap => Event::MapSynced { result },
        Action::NextTurn => Event::NextTurn,
        Action::Upload { place, blocks } => {
            let mut builder = SegmentBuilder::default();
            for dirty in blocks {
                let mask = dirty.a.union(dirty.b);
                builder.push(dirty.block, mask, &vec![1; mask.count() as usize * 4096]);
            }
            Event::Uploaded(builder.finish(SegmentId::new(*place, 1, [1; 10])).0)
        }
        Action::ReadRecord { seq } => Event::RecordRead { seq: *seq, bytes: None },
        Action::StorePending { .. } => Event::PendingStored { result },
        Action::StoreRoot { .. } => Event::RootStored,
        Action::CreateRecord { .. } => Event::CreateAnswered(CreateAnswer::Created),
        Action::WriteCheckpoint { seq, .. } => Event::CheckpointWritten { seq: *seq, written: true },
        Action::Complete { .. } => return None,
        Action::Report(_)
        | Action::ReadCold { .. }
        | Action::Pause
        | Action::Punch { .. }
        | Action::Evict { .. }
        | Action::Merge(_)
        | Action::ReleaseMap { .. } => unreachable!("{action:?}"),
    })
}

fn prepare(uid: SnapshotUid) -> Event {
    Event::PrepareCut { uid, forgotten: Vec::new() }
}

#[test]
fn a_cut_ends_in_a_snapshot_of_its_point() {
    let mut host = Host::with_log(log(0));
    host.write(1);
    assert_eq!(host.cut(prepare(UID)), [CutAnswer::Prepared]);
    host.write(2);
    assert_eq!(host.cut(Event::Cut { uid: UID }), [CutAnswer::Held]);
    assert_eq!(host.cut(Event::ReleaseCut { uid: UID }), [CutAnswer::Released]);
    let said = host.send(Event::AwaitCut { uid: UID });
    assert!(matches!(said[..], [Report::SnapshotTaken(taken)] if taken.uid == UID), "{said:?}");
}

/// A daemon of the previous release takes a prepared snapshot as an ordinary one, and crashes before it
/// reports it. Its successor supports cuts, and is to make one of the same name: the snapshot of that name
/// in the log is of another point, and must never be reported together with `Released`.
#[test]
fn an_earlier_snapshot_never_counts_as_that_of_a_cut() {
    let mut host = Host::with_log(log(0));
    host.write(1);
    let said = host.send(Event::Snapshot { uid: UID, forgotten: Vec::new() });
    assert!(said.iter().any(|report| matches!(report, Report::SnapshotTaken(_))), "{said:?}");
    // Completed after the snapshot, and before the cut.
    host.write(2);
    host.cut(prepare(UID));
    host.cut(Event::Cut { uid: UID });
    let released = host.cut(Event::ReleaseCut { uid: UID });
    assert_eq!(released, [CutAnswer::Lapsed], "its snapshot is of another point");
}

/// Two groups with common volumes may each have a volume that the other waits for. Nodes keep a cut
/// prepared while the request is repeated, so without a bound neither would ever be taken.
#[test]
fn a_volume_leaves_a_cut_that_makes_no_progress() {
    let mut host = Host::with_log(log(0));
    assert_eq!(host.cut(prepare(UID)), [CutAnswer::Prepared]);
    let mut said = Vec::new();
    for _ in 0..60 {
        host.now += 5000;
        // The node of the first group repeats its request before that of the second one.
        said.extend(host.cut(prepare(UID)));
        if host.cut(prepare(OTHER)) == [CutAnswer::Prepared] {
            assert!(said.contains(&CutAnswer::Lapsed), "the first is told: {said:?}");
            return;
        }
    }
    panic!("the second group never gets the volume: {said:?}");
}

/// A volume with the most snapshots: its writes would wait for each attempt, and each would fail.
#[test]
fn a_volume_with_the_maximum_of_snapshots_is_not_prepared() {
    let mut host = Host::with_log(log(MAX_SNAPSHOTS));
    let said = host.send(prepare(UID));
    assert!(matches!(said[..], [Report::SnapshotRefused { uid: UID, .. }]), "{said:?}");
    assert_eq!(host.cut(Event::Cut { uid: UID }), [CutAnswer::Lapsed]);
}

/// Regression, found in review: after each commit, the next one of half a minute began before the hold, which
/// then waited for it, and lapsed.
#[test]
fn a_saturated_volume_is_held_right_after_a_commit() {
    let mut host = Host::saturated();
    assert_eq!(host.cut(prepare(UID)), []);
    host.now += AGE_MS;
    assert_eq!(host.end_upload(), [CutAnswer::Prepared], "one commit is enough");
    assert_eq!(host.uploads(), 0, "the overdue data waits");
    host.now += 500;
    host.send(Event::Tick);
    host.write(3);
    assert_eq!(host.cut(Event::Cut { uid: UID }), [CutAnswer::Held]);
    assert_eq!(host.cut(Event::ReleaseCut { uid: UID }), [CutAnswer::Released]);
    assert_eq!(host.uploads(), 1);
    host.end_upload();
    let said = host.send(Event::AwaitCut { uid: UID });
    assert!(matches!(said[..], [Report::SnapshotTaken(taken)] if taken.uid == UID), "{said:?}");
}

/// Regression, found in review: writes waited for the five seconds of a hold that could not succeed.
#[test]
fn no_write_waits_for_a_hold_behind_a_long_upload() {
    let mut host = Host::saturated();
    host.cut(prepare(UID));
    host.now += AGE_MS;
    assert_eq!(host.end_upload(), [CutAnswer::Prepared]);
    for _ in 0..2 {
        host.now += PREPARED_MS / 2 - 1;
        assert_eq!((host.cut(prepare(UID)), host.uploads()), (vec![CutAnswer::Prepared], 0));
    }
    host.now += 2;
    host.send(Event::Tick);
    assert_eq!(host.uploads(), 1, "requests do not defer overdue data again");
    host.write(3);
    host.now += HOLD_MS;
    assert_eq!(host.cut(prepare(UID)), [], "it prepares again");
    assert_eq!(host.cut(Event::Cut { uid: UID }), [CutAnswer::Lapsed]);
    host.write(4);
    assert_eq!(host.written, 4, "no write waits");

    assert_eq!(host.cut(prepare(OTHER)), []);
    host.now += AGE_MS;
    assert_eq!(host.end_upload(), [CutAnswer::Prepared]);
    assert_eq!(host.cut(Event::Cut { uid: OTHER }), [CutAnswer::Held]);
}

/// With `durability: object` an upload is almost always in progress. The hold waits for a short one.
#[test]
fn a_hold_waits_for_a_short_upload() {
    let mut host = Host::with_log(log(0));
    host.write(1);
    assert_eq!(host.cut(prepare(UID)), [CutAnswer::Prepared]);
    host.uploads = Some(Vec::new());
    host.send(Event::Configure(RuntimeSettings { max_age_ms: AGE_MS, durability: Durability::Object }));
    host.write(2);
    host.send(Event::Request { id: RequestId(1), op: Op::Flush, range: SectorRange::new(0, 0) });
    assert_eq!(host.uploads(), 1);
    host.write(3);
    host.now += 300;
    assert_eq!(host.cut(prepare(UID)), [CutAnswer::Prepared]);
    assert_eq!(host.cut(Event::Cut { uid: UID }), [], "it waits");
    assert_eq!(host.end_upload(), [CutAnswer::Held]);
}
