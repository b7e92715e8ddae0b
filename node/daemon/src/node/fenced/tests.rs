//! Files left by a fenced writer, produced by the engine, and the data exported from them.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use holdfast_engine::durable_map::{Header, header_offset, page_offset};
use holdfast_engine::event::{Event, Op, RequestId};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::Volume;
use holdfast_engine::{action::Action, event::CreateAnswer};
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Nonce, SegmentId, Seq};
use tempfile::TempDir;

use super::*;

const SECTORS: u64 = 9000;
const SIZE: u64 = SECTORS * 4096;

/// Returns a state directory with one fenced writer `disk-1`: sectors 3 and 4 were sealed, then 4 rewritten;
/// 4095 and 4096 are on both sides of a map page boundary; 100 and 101 are committed.
fn state() -> TempDir {
    let state = tempfile::tempdir().unwrap();
    let dir = fenced_dir(state.path()).join("disk-1");
    fs::create_dir_all(&dir).unwrap();
    let sides = ["a.data", "b.data"].map(|name| File::create_new(dir.join(name)).unwrap());
    for side in &sides {
        side.set_len(SIZE).unwrap();
    }
    let map = File::create_new(dir.join("map")).unwrap();
    map.set_len(page_offset(SECTORS.div_ceil(4096), 0)).unwrap();
    Writer::new(sides, map, dir.join("memory")).run();
    state
}

/// Memory of a live map, saved to a file once it is no longer mapped.
struct Live {
    bytes: Vec<u8>,
    path: PathBuf,
}

impl AsRef<[u8]> for Live {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Live {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        fs::write(&self.path, &self.bytes).unwrap();
    }
}

/// Drives the engine on those files.
struct Writer {
    volume: Volume<Live>,
    sides: [File; 2],
    map: File,
    fill: u8,
    /// True if uploads get responses.
    store: bool,
}

impl Writer {
    fn new(sides: [File; 2], map: File, live: PathBuf) -> Self {
        let volume: VolumeId = "disk".parse().unwrap();
        let nonce = Nonce([7; 16]);
        let mut manifest = Manifest::empty(volume.clone());
        for (epoch, body) in [
            (0, Body::create(SECTORS)),
            (1, Body::Attach { sectors: SECTORS, node: "n".to_owned(), displaced: None }),
        ] {
            let seq = manifest.seq().next();
            let record = Record { volume: volume.clone(), seq, epoch: Epoch(epoch), nonce, unix_ms: 0, body };
            manifest.apply(&record).unwrap();
        }
        let header = Header {
            volume,
            identity: Nonce([9; 16]),
            sectors: SECTORS,
            epoch: Epoch(1),
            writer: nonce,
            nonces: vec![nonce],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        };
        map.write_all_at(&header.encode(1), header_offset(1)).unwrap();
        let limits = DirtyLimits { seal_bytes: 8192, max_bytes: 1 << 30, max_age_ms: 1 << 40 };
        let durability = Durability::Local;
        let setup =
            Setup { requests: 4, limits, durability, header, header_generation: 1, unix_ms_at_zero: 0 };
        let memory = Live { bytes: vec![0; usize::try_from(map_bytes(SECTORS)).unwrap()], path: live };
        let volume = Volume::attach(setup, memory, AttachState::in_log(manifest), 0, &mut Vec::new());
        Self { volume, sides, map, fill: 0, store: true }
    }

    fn run(mut self) {
        // The seal size is 8 KiB: this pair is uploaded.
        self.request(Op::Write, SectorRange::new(100, 2), 1);
        self.store = false;
        // Sealed, but not uploaded.
        self.request(Op::Write, SectorRange::new(3, 2), 2);
        // These go to the other side.
        self.request(Op::Write, SectorRange::new(4, 1), 3);
        self.request(Op::Write, SectorRange::new(4095, 2), 4);
        self.request(Op::Flush, SectorRange::new(0, 0), 0);
    }

    fn request(&mut self, op: Op, range: SectorRange, fill: u8) {
        self.fill = fill;
        let mut events = vec![Event::Request { id: RequestId(0), op, range }];
        while let Some(event) = events.pop() {
            let mut out = Vec::new();
            self.volume.handle(0, event, &mut out);
            let answers: Vec<_> = out.into_iter().filter_map(|action| self.act(action)).collect();
            events.splice(0..0, answers.into_iter().rev());
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        let done = Ok(());
        Some(match action {
            Action::Write { id, range, side } => {
                let bytes = vec![self.fill; usize::try_from(range.bytes()).unwrap()];
                self.sides[side as usize].write_all_at(&bytes, range.start.byte_offset()).unwrap();
                Event::IoCompleted { id, result: done }
            }
            Action::PrepareMap { chunk } => Event::MapPrepared { chunk, result: Ok(()) },
            Action::SyncSide { side } => Event::SideSynced { side, result: done },
            Action::WriteMap(writes) => {
                for write in writes {
                    self.map.write_all_at(&write.bytes, write.offset).unwrap();
                }
                Event::MapWritten { result: done }
            }
            Action::SyncMap => Event::MapSynced { result: done },
            Action::NextTurn => Event::NextTurn,
            Action::Upload { place, .. } if self.store => Event::Uploaded(SegmentRef {
                id: SegmentId::new(place, 1, [0; 10]),
                bytes: 100,
                index_offset: 0,
                index_bytes: 100,
                sectors: 5,
                chunks: ChunkRanges::around([(0, 1)]),
            }),
            Action::StorePending { .. } => Event::PendingStored { result: done },
            Action::StoreRoot { .. } => Event::RootStored,
            Action::CreateRecord { .. } => Event::CreateAnswered(CreateAnswer::Created),
            Action::Upload { .. } | Action::Merge(_) | Action::Complete { .. } | Action::Report(_) => {
                return None;
            }
            Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Punch { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. }
            | Action::Evict { .. }
            | Action::Pause
            | Action::ReleaseMap { .. } => unreachable!("{action:?}"),
        })
    }
}

#[test]
fn an_export_has_exactly_the_newest_bytes_of_both_sides() {
    let state = state();
    let preserved = find(state.path(), "disk-1").unwrap();
    let output = state.path().join("disk.img");
    let exported = export(&preserved, &output, false).unwrap();
    assert_eq!((exported.size_bytes, exported.bytes, exported.ranges), (SIZE, 4 * 4096, 2));
    let image = fs::read(&output).unwrap();
    assert_eq!(image.len() as u64, SIZE);
    for sector in 0..SECTORS as usize {
        let expected = match sector {
            3 => 2,
            4 => 3,
            4095 | 4096 => 4,
            _ => 0,
        };
        assert!(image[sector * 4096..][..4096].iter().all(|byte| *byte == expected), "sector {sector}");
    }
    assert!(fs::metadata(&output).unwrap().blocks() * 512 < 1 << 20, "the image is sparse");
    let map: serde_json::Value = serde_json::from_slice(&fs::read(&exported.map).unwrap()).unwrap();
    assert_eq!(
        map,
        serde_json::json!({
            "volume": "disk",
            "epoch": 1,
            "size_bytes": SIZE,
            "ranges": [
                { "offset_bytes": 3 * 4096, "length_bytes": 2 * 4096 },
                { "offset_bytes": 4095 * 4096, "length_bytes": 2 * 4096 },
            ],
            "unreadable": [],
        })
    );
}

#[test]
fn an_export_replaces_a_file_only_on_request_and_completely() {
    let state = state();
    let preserved = find(state.path(), "disk-1").unwrap();
    let output = state.path().join("disk.img");
    fs::write(&output, "mine").unwrap();
    let refused = export(&preserved, &output, false).unwrap_err();
    assert_eq!(refused.kind(), FailureKind::Invalid);
    assert!(refused.to_string().contains("--overwrite"), "{refused}");
    assert_eq!(fs::read(&output).unwrap(), b"mine");
    // A side that is too short fails the copy halfway.
    let side = File::options().write(true).open(preserved.dir.join("a.data")).unwrap();
    side.set_len(8 * 4096).unwrap();
    let failed = export(&preserved, &output, true).unwrap_err();
    assert!(failed.to_string().contains("a.data could not be read"), "{failed}");
    assert_eq!(fs::read(&output).unwrap(), b"mine");
    let left: Vec<_> = fs::read_dir(state.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    side.set_len(SIZE).unwrap();
    export(&preserved, &output, true).unwrap();
    assert_eq!(fs::metadata(&output).unwrap().len(), SIZE);
}

/// Regression, found in review: one bad sector prevented the whole export.
#[test]
fn an_export_names_unreadable_ranges_and_contains_the_rest() {
    let state = state();
    let preserved = find(state.path(), "disk-1").unwrap();
    // Every read there fails with EIO: no memory is mapped at low addresses.
    let side = preserved.dir.join("b.data");
    fs::remove_file(&side).unwrap();
    std::os::unix::fs::symlink("/proc/self/mem", &side).unwrap();
    let output = state.path().join("disk.img");
    let exported = export(&preserved, &output, false).unwrap();
    assert_eq!((exported.bytes, exported.unreadable_bytes), (3 * 4096, 4096));
    let image = fs::read(&output).unwrap();
    assert_eq!([3, 4, 4095, 4096].map(|sector| image[sector * 4096]), [0, 3, 4, 4]);
    let map: serde_json::Value = serde_json::from_slice(&fs::read(&exported.map).unwrap()).unwrap();
    assert_eq!(map["unreadable"], serde_json::json!([{ "offset_bytes": 3 * 4096, "length_bytes": 4096 }]));
    assert_eq!(map["ranges"][0], serde_json::json!({ "offset_bytes": 4 * 4096, "length_bytes": 4096 }));
}

#[test]
fn after_a_failed_round_an_export_uses_the_live_map() {
    let state = state();
    let preserved = find(state.path(), "disk-1").unwrap();
    // The durable map names nothing.
    let map = File::options().write(true).open(preserved.dir.join("map")).unwrap();
    map.set_len(page_offset(0, 0)).unwrap();
    map.set_len(page_offset(SECTORS.div_ceil(4096), 0)).unwrap();
    assert_eq!(preserved.contents().unwrap().bytes(), 0);
    fs::rename(preserved.dir.join("memory"), preserved.dir.join(KEPT_LIVE_MAP)).unwrap();
    let exported = export(&preserved, &state.path().join("disk.img"), false).unwrap();
    assert_eq!((exported.bytes, exported.ranges), (4 * 4096, 2));
    assert!(preserved.delete(false).is_err(), "it is worth keeping");
}

#[test]
fn no_map_is_stored_next_to_an_unrelated_image() {
    let state = state();
    let preserved = find(state.path(), "disk-1").unwrap();
    let output = state.path().join("disk.img");
    // The image cannot be renamed to this.
    fs::create_dir(&output).unwrap();
    fs::write(state.path().join("disk.img.json"), "of the old image").unwrap();
    export(&preserved, &output, true).unwrap_err();
    assert!(!state.path().join("disk.img.json").exists());
}

#[test]
fn a_damaged_map_is_named_and_still_listed() {
    let state = state();
    let path = fenced_dir(state.path()).join("disk-1/map");
    let map = File::options().read(true).write(true).open(&path).unwrap();
    for slot in 0..2 {
        map.write_all_at(&[0xff; 4], page_offset(0, slot) + 1000).unwrap();
    }
    let [preserved] = list(state.path()).unwrap().try_into().unwrap();
    let damaged = export(&preserved, &state.path().join("disk.img"), false).unwrap_err();
    assert_eq!(damaged.kind(), FailureKind::Corrupt);
    assert!(damaged.to_string().contains("disk-1/map is damaged"), "{damaged}");
    assert!(!state.path().join("disk.img.partial").exists());
}

/// Regression, found in review: with another state directory than the daemon's, the command showed that
/// nothing was preserved.
#[test]
fn a_missing_state_directory_is_an_error() {
    let state = tempfile::tempdir().unwrap();
    assert!(list(state.path()).unwrap().is_empty());
    let missing = list(&state.path().join("none")).unwrap_err();
    assert_eq!(missing.kind(), FailureKind::NotFound);
    assert!(missing.to_string().contains("/none does not exist"), "{missing}");
}

#[test]
fn preserved_data_is_deleted_only_with_confirmation() {
    let state = state();
    let unknown = find(state.path(), "disk-2").unwrap_err();
    assert_eq!(unknown.to_string(), "no data of a fenced writer is called disk-2: existing names: disk-1");
    let outside = find(state.path(), "../fenced/disk-1").unwrap_err();
    assert_eq!(outside.kind(), FailureKind::NotFound);
    let refused = find(state.path(), "disk-1").unwrap().delete(false).unwrap_err();
    assert!(refused.to_string().contains("holds the only copy of 16384 bytes"), "{refused}");
    find(state.path(), "disk-1").unwrap().delete(true).unwrap();
    assert!(list(state.path()).unwrap().is_empty());
}
