//! A node's files about its volumes.

use std::os::unix::fs::MetadataExt;

use futures::FutureExt;
use holdfast_engine::action::Action;
use holdfast_engine::event::{Event, Op, RequestId};
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_engine::volume::Volume;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::side::{Side, SideSet};
use holdfast_s3::{S3Config, S3Credentials};
use holdfast_types::{BLOCK_SECTORS, Epoch, Nonce, SectorRange, Seq};

use super::*;
use crate::allocated::peak_bytes;
use crate::node::local::attached_record::ATTACHED_VERSION;
use crate::node::local::live_map;
use holdfast_serve::{IoLimits, Start};
use holdfast_ublk::LOOP_IDS;

/// A release without loop devices would take the record for that of a volume without a device, and detach it
/// while in use.
#[test]
fn a_record_of_a_loop_device_has_a_separate_version() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    fs::create_dir_all(local.run()).unwrap();
    for (device_id, version) in [(None, 3), (Some(7), 3), (Some(LOOP_IDS + 7), 4), (Some(7), 3)] {
        local.write_record(&AttachedRecord { device_id, ..attached() }).unwrap();
        let read = local.read_record().unwrap().unwrap();
        assert_eq!((read.device_id, read.version), (device_id, version));
    }
}

/// A release without limits would serve the volume without them.
#[test]
fn a_record_with_limits_has_a_separate_version() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    fs::create_dir_all(local.run()).unwrap();
    let limits = IoLimits { iops: Some(3000), bytes_per_second: None };
    for (limits, version) in [(None, 3), (Some(limits), 5), (None, 3)] {
        local.write_record(&AttachedRecord { limits: limits.map(Into::into), ..attached() }).unwrap();
        let read = local.read_record().unwrap().unwrap();
        assert_eq!((read.limits.map(IoLimits::from), read.version), (limits, version));
    }
}

fn attached() -> AttachedRecord {
    AttachedRecord {
        version: ATTACHED_VERSION,
        tag: 5,
        device_id: Some(3),
        sectors: 1024,
        epoch: 7,
        max_age_ms: 30_000,
        durability: Durability::Object,
        limits: None,
        displaced: None,
        detaching: false,
        store_name: "store".into(),
        store: (&S3Config::new("bucket", "us-east-1", S3Credentials::Environment)).into(),
    }
}

#[test]
fn a_changed_byte_of_a_volume_file_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    fs::create_dir_all(local.run()).unwrap();
    local.write_record(&attached()).unwrap();
    let read = local.read_record().unwrap().unwrap();
    assert_eq!((read.epoch, read.durability, read.sectors), (7, Durability::Object, 1024));
    let mut whole = fs::read(local.record_path()).unwrap();
    let payload = u32::from_le_bytes(whole[8..12].try_into().unwrap());
    // The rest of the page is reserved for a longer record.
    whole.truncate(32 + usize::try_from(payload).unwrap());
    for at in 0..whole.len() {
        for change in [1, 0x10, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            assert!(attached_record(&bytes).is_err(), "byte {at} was {}", whole[at]);
        }
        assert!(attached_record(&whole[..at]).is_err(), "{at} bytes");
    }
}

/// Returns the header of an attached volume whose writer has written no page.
fn header(sectors: u64) -> Header {
    Header {
        volume: "disk".parse().unwrap(),
        identity: Nonce([9; 16]),
        sectors,
        epoch: Epoch(7),
        writer: Nonce([7; 16]),
        nonces: vec![Nonce([7; 16])],
        active: Side::B,
        closed_clean: false,
        seq: Seq(3),
        synced_generation: 4,
        invalidated: SideSet::NONE,
        has_journal: false,
    }
}

/// The live map is newer than the pages: a corrupted page must not keep a device from its daemon.
#[test]
fn a_takeover_reads_the_header_and_not_a_damaged_page() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    assert_eq!(local.read_header().unwrap(), None, "nothing was ever attached here");
    local.make_dirs().unwrap();
    let files = local.open_files(9000).unwrap();
    assert_eq!(local.read_header().unwrap(), None, "the attach died before it wrote one");
    let header = header(9000);
    local.write_header(&files.map, &header, 5).unwrap();
    let corrupted = HeapBuffer::from_slice(&[0xff; SLOT_BYTES]);
    files.map.write_all_at(&corrupted, page_offset(1, 0)).unwrap();
    assert_eq!(local.read_header().unwrap(), Some((5, header)));
    let Err(NodeError::Damaged { path, source }) = local.read_map() else {
        panic!("an attach reads the pages");
    };
    assert_eq!(path, local.map_path());
    assert!(source.to_string().contains("page 1 "), "{source}");
}

/// The journal is far beyond the pages, and only valid if the header says so.
#[test]
fn an_attach_reads_the_journal_that_the_header_names() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    local.make_dirs().unwrap();
    let sectors = 64 * PAGE_SECTORS;
    let files = local.open_files(sectors).unwrap();
    let (offset, length) = journal_extent(64);
    assert!(length > 0 && files.map.metadata().unwrap().len() == offset + length, "it has its place");
    let mut header = header(sectors);
    local.write_header(&files.map, &header, 5).unwrap();
    assert!(local.read_map().unwrap().is_some_and(|found| found.pages.is_empty()));
    header.has_journal = true;
    local.write_header(&files.map, &header, 6).unwrap();
    let Err(NodeError::Damaged { source, .. }) = local.read_map() else { panic!("nothing was ever there") };
    assert!(source.to_string().contains("journal"), "{source}");
}

/// Regression: on ext4, a volume above 16 TiB was provisioned, but its failing attach named no field.
#[test]
fn a_volume_above_the_file_limit_is_refused_by_name() {
    const CHILD: &str = "HOLDFAST_TEST_FILE_LIMIT";
    const MIB: u64 = 1 << 20;
    let Some(dir) = std::env::var_os(CHILD) else {
        let dir = tempfile::tempdir().unwrap();
        let name = "node::local::volume_files::tests::a_volume_above_the_file_limit_is_refused_by_name";
        // Files of at most 1 MiB; the limit has the effect of a filesystem's maximum.
        let child = std::process::Command::new("bash")
            .args(["-c", "trap '' XFSZ; ulimit -f 1024; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(CHILD, dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        return assert!(child.status.success() && text.contains("1 passed"), "{child:?}");
    };
    let local = Local::new(Path::new(&dir), &Path::new(&dir).join("run"), &"disk".parse().unwrap());
    local.make_dirs().unwrap();
    drop(local.open_files(MIB / SECTOR_BYTES).unwrap());
    let Err(error) = local.open_files(8 * MIB / SECTOR_BYTES) else { panic!("it fits") };
    let message = error.to_string();
    for part in ["spec.size", "disk has 8388608 bytes", "at most 1048576 bytes", "node.state_dir"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(error.kind(), crate::node::FailureKind::Invalid);
    assert_eq!(fs::metadata(local.dir().join("a.data")).unwrap().len(), MIB, "the side is as it was");
}

/// The kernel rejects a file of that length; the message has the size that fits, and nothing has grown.
#[test]
fn a_refused_oversized_volume_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    local.make_dirs().unwrap();
    drop(local.open_files(9000).unwrap());
    let lengths = || {
        let length = |name: &&str| fs::metadata(local.dir().join(name)).unwrap().len();
        ["a.data", "b.data", "map"].iter().map(length).collect::<Vec<_>>()
    };
    let before = lengths();
    let refused = match local.open_files(holdfast_format::limit::MAX_SECTORS) {
        Err(refused) => refused,
        // ext4 has a maximum of 16 TiB; XFS has no relevant one.
        Ok(_) => return,
    };
    let NodeError::TooLarge { bytes, limit_bytes, .. } = &refused else { panic!("{refused}") };
    assert!(limit_bytes < bytes && *limit_bytes > 1 << 40, "{limit_bytes}");
    assert!(refused.to_string().starts_with("spec.size: volume disk has 562949953421312 bytes"), "{refused}");
    assert_eq!(lengths(), before);
    assert!(!local.live_map_path().exists());
}

/// Returns the settings of a volume with this header; it commits nothing.
fn setup(header: Header) -> Setup {
    Setup {
        requests: 4,
        limits: DirtyLimits { seal_bytes: 1 << 50, max_bytes: 1 << 50, max_age_ms: 1 << 40 },
        durability: Durability::Local,
        header,
        header_generation: 5,
        unix_ms_at_zero: 0,
    }
}

/// Returns the log of an attached volume without commits.
fn log(sectors: u64) -> Manifest {
    let mut manifest = Manifest::empty("disk".parse().unwrap());
    let attach = Body::Attach { sectors, node: "n".to_owned(), displaced: None };
    for (epoch, body) in [(0, Body::create(sectors)), (7, attach)] {
        let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
        let record = Record { volume, seq, epoch: Epoch(epoch), nonce: Nonce([7; 16]), unix_ms: 0, body };
        manifest.apply(&record).unwrap();
    }
    manifest
}

/// Makes the volume of `local` write enough of each page to use its slots, then a sector of each for the
/// journal; one page in [`LITTLE_EVERY`] gets a single block. Its durable map then has both slots of the
/// other pages, and a journal.
fn touch(local: &Local, pages: u64) {
    let sectors = pages * PAGE_SECTORS;
    // Without direct I/O: the reader syncs it.
    let map = File::options().write(true).open(local.map_path()).unwrap();
    let live = live_map::create(&local.live_map_path(), sectors).unwrap();
    let mut volume =
        Volume::attach(setup(header(sectors)), live, AttachState::in_log(log(sectors)), 0, &mut Vec::new());
    for (blocks, of_others) in [(0..MUCH, 0..1), (MUCH..MUCH + 1, 0..0)] {
        let of = |page| if has_little(page) { of_others.clone() } else { blocks.clone() };
        let sectors =
            (0..pages).flat_map(|page| of(page).map(move |at| page * PAGE_SECTORS + at * BLOCK_SECTORS));
        let ranges = sectors.map(|sector| SectorRange::new(sector, 1));
        let writes = ranges.map(|range| Event::Request { id: RequestId(0), op: Op::Write, range });
        let flush = Event::Request { id: RequestId(1), op: Op::Flush, range: SectorRange::new(0, 0) };
        for event in writes.chain([flush]) {
            let mut events = vec![event];
            while let Some(event) = events.pop() {
                let mut actions = Vec::new();
                volume.handle(0, event, &mut actions);
                events.extend(actions.into_iter().rev().filter_map(|action| answer(action, &map)));
            }
        }
    }
}

/// More blocks of a page than the journal accepts.
const MUCH: u64 = 33;
/// One in this many pages has a single block: writes block at a number of dirty blocks, and the store of
/// these volumes does not respond.
const LITTLE_EVERY: u64 = 16;

fn has_little(page: u64) -> bool {
    page.is_multiple_of(LITTLE_EVERY)
}

/// Returns the events of a disk that stores only the map.
fn answer(action: Action, map: &File) -> Option<Event> {
    let result = Ok(());
    Some(match action {
        Action::Write { id, .. } => Event::IoCompleted { id, result },
        Action::PrepareMap { chunk } => Event::MapPrepared { chunk, result: Ok(()) },
        Action::SyncSide { side } => Event::SideSynced { side, result },
        Action::WriteMap(writes) => {
            for write in writes {
                map.write_all_at(&write.bytes, write.offset).unwrap();
            }
            Event::MapWritten { result }
        }
        Action::SyncMap => Event::MapSynced { result },
        Action::NextTurn => Event::NextTurn,
        Action::Complete { result, .. } => {
            result.unwrap();
            return None;
        }
        Action::Upload { .. } => return None,
        other @ (Action::Read { .. }
        | Action::ReadCold { .. }
        | Action::Punch { .. }
        | Action::Evict { .. }
        | Action::ReleaseMap { .. }
        | Action::Merge(_)
        | Action::StorePending { .. }
        | Action::StoreRoot { .. }
        | Action::CreateRecord { .. }
        | Action::ReadRecord { .. }
        | Action::WriteCheckpoint { .. }
        | Action::Pause
        | Action::Report(_)) => panic!("{other:?}"),
    })
}

/// Regression: an attach took 0.65 GiB per TiB ever written, for all volumes of a node at once after a
/// restart of the host. The live map is in a file.
#[test]
fn an_attach_of_a_touched_tebibyte_takes_32_mib() {
    const PAGES: u64 = 65_536;
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    local.make_dirs().unwrap();
    let sectors = PAGES * PAGE_SECTORS;
    let files = local.open_files(sectors).unwrap();
    local.write_header(&files.map, &header(sectors), 5).unwrap();
    touch(&local, PAGES);
    let (found, read_bytes) = peak_bytes(|| local.read_map().unwrap().unwrap());
    assert!(found.header.has_journal && found.pages.holds_dirty());
    let restore = Restore { found: found.header.clone(), invalidated: SideSet::NONE, trust_clean: true };
    let (planned, made_bytes) = peak_bytes(|| {
        let live_map = live_map::create(&local.live_map_path(), sectors).unwrap();
        let live_map = local.restore(live_map, sectors, &restore).unwrap();
        let state = AttachState { manifest: log(sectors), generation: found.pages.generation() };
        Start::Attach(Box::new(state)).make(setup(found.header.clone()), live_map).unwrap()
    });
    let dirty_bytes = planned.volume.status().dirty_bytes;
    let little = PAGES / LITTLE_EVERY;
    let blocks = (MUCH + 1) * (PAGES - little) + little;
    assert_eq!(dirty_bytes, blocks * SECTOR_BYTES, "what pages and journal say");
    let taken = files.map.metadata().unwrap().blocks() * 512;
    assert!(taken >= (PAGES - little) * 2 * SLOT_BYTES as u64, "{taken} bytes of pages");
    let peak_mib = read_bytes.max(made_bytes).div_ceil(1 << 20);
    println!(r#"{{"attach_1tib_peak_mib":{peak_mib}}}"#);
    assert!(peak_mib <= 32, "{read_bytes} bytes to read the map, {made_bytes} to fill the live one");
}

#[tokio::test]
async fn no_more_than_four_maps_are_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), &dir.path().join("run"), &"disk".parse().unwrap());
    let all = READERS.acquire_many(u32::try_from(MAP_READERS).unwrap()).await.unwrap();
    assert!(LocalState::read_map(&local).now_or_never().is_none(), "it waits");
    assert!(local.open(64, None).now_or_never().is_none());
    drop(all);
    assert!(LocalState::read_map(&local).await.unwrap().is_none());
}
