//! Chunks with data of a volume whose writes are scattered over more chunks than its chunk ranges can name.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use holdfast_engine::action::{Action, Source};
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{CreateAnswer, Event, Op, RequestId};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::Volume;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentBuilder;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{CHUNK_SECTORS, Chunk, Epoch, Nonce, SectorRange, SegmentId, Seq};

const NONCE: Nonce = Nonce([7; 16]);
/// Every fourth chunk is written: more than the 64 chunk ranges of a segment.
const CHUNKS: u64 = 320;
const SECTORS: u64 = CHUNKS * CHUNK_SECTORS;
const MAX_AGE: u64 = 1000;

/// A volume on a host that answers at once, and the manifest of its log.
struct Host {
    volume: Volume<Vec<u8>>,
    log: Manifest,
    /// Bytes of the records that it committed.
    record_bytes: Vec<usize>,
}

impl Host {
    fn new() -> Self {
        let mut log = Manifest::empty("v".parse().unwrap());
        let attach = Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None };
        for (epoch, body) in [(0, Body::create(SECTORS)), (1, attach)] {
            let (volume, seq) = (log.volume().clone(), log.seq().next());
            let record = Record { volume, seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
            log.apply(&record).unwrap();
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
        let limits = DirtyLimits { seal_bytes: 1 << 30, max_bytes: 1 << 30, max_age_ms: MAX_AGE };
        let durability = Durability::Local;
        let setup =
            Setup { requests: 4, limits, header, header_generation: 0, unix_ms_at_zero: 0, durability };
        let memory = vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()];
        let volume = Volume::attach(setup, memory, AttachState::in_log(log.clone()), 0, &mut Vec::new());
        Self { volume, log, record_bytes: Vec::new() }
    }

    /// Sends an event, executes all resulting actions, and returns them, except those of a commit.
    fn send(&mut self, now: u64, event: Event) -> Vec<Action> {
        let (mut events, mut seen) = (vec![event], Vec::new());
        while let Some(event) = events.pop() {
            let mut out = Vec::new();
            self.volume.handle(now, event, &mut out);
            for action in out {
                events.extend(self.answer(&action));
                seen.push(action);
            }
        }
        seen
    }

    fn answer(&mut self, action: &Action) -> Option<Event> {
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
            Action::CreateRecord { bytes, .. } => {
                self.record_bytes.push(bytes.len());
                self.log.apply(&Record::decode(bytes).unwrap()).unwrap();
                Event::CreateAnswered(CreateAnswer::Created)
            }
            Action::Complete { .. } | Action::Report(_) => return None,
            Action::ReadCold { .. }
            | Action::Pause
            | Action::Punch { .. }
            | Action::Evict { .. }
            | Action::Merge(_)
            | Action::ReleaseMap { .. }
            | Action::WriteCheckpoint { .. } => unreachable!("{action:?}"),
        })
    }

    fn request(&mut self, now: u64, op: Op, range: SectorRange) -> Vec<Action> {
        self.send(now, Event::Request { id: RequestId(0), op, range })
    }
}

/// Regression: the chunk ranges of such a segment include neighbours: discards prepared the chunks between
/// them, and reads of zeros went to the store.
#[test]
fn chunks_between_scattered_writes_hold_nothing() {
    let mut host = Host::new();
    let written: Vec<u64> = (0..CHUNKS).step_by(4).collect();
    for round in 1..3 {
        for chunk in &written {
            host.request(0, Op::Write, SectorRange::new(chunk * CHUNK_SECTORS, 1));
        }
        host.send(round * MAX_AGE, Event::Tick);
        let held: Vec<u64> = (0..CHUNKS).filter(|chunk| host.log.may_hold(Chunk(*chunk))).collect();
        assert_eq!(held, written);
    }
    assert!(!host.log.runs()[0].chunk_ranges().is_exact());
    let read = Manifest::decode_checkpoint(&host.log.encode_checkpoint()).unwrap();
    assert!(read.may_hold(Chunk(4)) && !read.may_hold(Chunk(5)));
    let gap = SectorRange::new(5 * CHUNK_SECTORS, 3 * CHUNK_SECTORS);
    assert!(
        !host
            .request(5 * MAX_AGE, Op::Discard, gap)
            .iter()
            .any(|action| { matches!(action, Action::PrepareMap { .. } | Action::Punch { .. }) })
    );
    let zeros = host.request(5 * MAX_AGE, Op::Read, SectorRange::new(gap.start.0, 8));
    assert!(matches!(zeros[0], Action::Read { from: Source::Zeros, .. }), "{zeros:?}");
    // A chunk is named once: the second record is shorter by all of them.
    let [first, second] = host.record_bytes[..] else { panic!("{:?}", host.record_bytes) };
    assert_eq!(first - second, written.len() / 16 * 12);
}
