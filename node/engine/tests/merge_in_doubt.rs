//! Reads while a record that carries a merge is in flight.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{CreateAnswer, Errno, Event, Op, RequestId};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::Volume;
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::index::RunRef;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_types::{Epoch, Nonce, Place, RunId, SectorRange, SegmentId, Seq};

const NONCE: Nonce = Nonce([7; 16]);
const SECTORS: u64 = 8192;

fn apply(log: &mut Manifest, epoch: u64, body: Body) {
    let (volume, seq) = (log.volume().clone(), log.seq().next());
    log.apply(&Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body }).unwrap();
}

/// Returns a volume attached after `segments` commits of few entries and one of a large discard, and its
/// actions.
fn attached() -> (Volume<Vec<u8>>, Vec<Action>) {
    let mut log = Manifest::empty("v".parse().unwrap());
    apply(&mut log, 0, Body::create(SECTORS));
    let attach = || Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None };
    apply(&mut log, 1, attach());
    for (name, sectors) in [(1, 5), (2, 1 << 20)] {
        let id = SegmentId::new(Place::until(Seq(100)), 1, [name; 10]);
        let chunks = ChunkRanges::around([(0, 1)]);
        let segment = SegmentRef { id, bytes: 900, index_offset: 100, index_bytes: 500, sectors, chunks };
        let change = Body::Change {
            segments: vec![segment],
            chunks: ChunkSet::default(),
            invalidated: SideSet::NONE,
            generation: 1,
            merges: vec![],
            closed: Place::default(),
            snapshots: SnapshotChange::default(),
            sectors: None,
        };
        apply(&mut log, 1, change);
    }
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
        seq: Seq(0),
        synced_generation: 0,
    };
    let limits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms: 60_000 };
    let durability = Durability::Local;
    let setup = Setup { requests: 4, limits, header, header_generation: 0, unix_ms_at_zero: 0, durability };
    let memory = vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()];
    let mut out = Vec::new();
    let volume = Volume::attach(setup, memory, AttachState::in_log(log), 0, &mut out);
    (volume, out)
}

fn send(volume: &mut Volume<Vec<u8>>, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    volume.handle(1000, event, &mut actions);
    actions
}

/// Regression: the store accepted the record of a merge, and a network failure lost its answer. A sweep
/// elsewhere deleted the inputs. After the network recovered, a client's read was answered before the
/// writer had read its record back: it failed for an object that the record had replaced (invariant 7).
#[test]
fn a_read_planned_before_an_ambiguous_merge_succeeds() {
    let (mut volume, out) = attached();
    let plan = out.iter().find_map(|action| {
        let Action::Merge(plan) = action else { return None };
        Some(plan)
    });
    let plan = plan.expect("the discard may hide all");
    let run = RunRef {
        id: RunId::new(plan.place, 1, [9; 10]),
        level: plan.level,
        bytes: 100,
        head_offset: 0,
        head_bytes: 50,
        sectors: 5,
        chunks: ChunkRanges::around([(0, 1)]),
    };
    let stored = send(&mut volume, Event::Merged { kind: plan.kind, output: Box::new(run) });
    assert!(matches!(stored[..], [Action::StorePending { .. }]), "{stored:?}");
    let created = send(&mut volume, Event::PendingStored { result: Ok(()) });
    let [Action::CreateRecord { bytes, seq }] = &created[..] else { panic!("{created:?}") };
    let id = RequestId(0);
    let read = send(&mut volume, Event::Request { id, op: Op::Read, range: SectorRange::new(0, 1) });
    let [Action::ReadCold { runs, .. }] = &read[..] else { panic!("{read:?}") };
    assert_eq!(runs.len(), 2);
    // The record is in the log. A sweep on another node deletes the two segments.
    let actions = send(&mut volume, Event::CreateAnswered(CreateAnswer::Ambiguous));
    assert_eq!(actions, [Action::ReadRecord { seq: *seq }]);
    let failed = send(&mut volume, Event::ColdReadCompleted { id, result: Err(Errno::EIO) });
    assert!(!failed.contains(&Action::Complete { id, result: Err(Errno::EIO) }), "{failed:?}");
    let found = Event::RecordRead { seq: *seq, bytes: Some(bytes.clone()) };
    let again = send(&mut volume, found);
    assert!(again.iter().any(|action| matches!(action, Action::ReadCold { runs, .. } if runs.len() == 1)));
}
