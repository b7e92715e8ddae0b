//! Fuzz targets: each decoder of stored bytes against changed bytes.
//!
//! The corpus of a target consists of the objects stored by engines in a simulated life, and of the files
//! of `node/sim/fuzz/<target>`: objects of earlier versions, which must stay readable, and inputs that
//! once broke the decoder.
//!
//! There are two kinds of changes. *Corruption* leaves the checksum unchanged, and must never be mistaken
//! for the original. *Forgery* corrects the checksum, so that the later fields are reached: a decoder may
//! accept or reject it, but must not panic, nor take long.

#![allow(clippy::unwrap_used)] // a test fails by panicking, in its parts too

use std::fmt::Debug;
use std::sync::Arc;

use holdfast_engine::action::Action;
use holdfast_engine::durable_map::{DamagedMap, FoundPage, Header, newest_pages, page_offset};
use holdfast_engine::event::{Event, Op};
use holdfast_engine::sector_map::{PAGE_SECTORS, map_bytes};
use holdfast_engine::settings::{DirtyLimits, Durability, Pending, Setup};
use holdfast_engine::volume::Volume;
use holdfast_format::displaced::Displaced;
use holdfast_format::index::merge::{Input, MergeStep, RunMerge};
use holdfast_format::index::{RunHead, RunRef, SegmentObject};
use holdfast_format::manifest::Manifest;
use holdfast_format::prefetch_list::PrefetchList;
use holdfast_format::record::{Body, Labels, Record};
use holdfast_format::segment::{Frame, FrameIndex, unpack};
use holdfast_sim::world::{Faults, World};
use holdfast_sim::{Rng, drive};
use holdfast_types::key::ObjectKey;
use holdfast_types::{
    Block, Epoch, Nonce, Place, RunId, SectorRange, SegmentId, Seq, SnapshotName, VolumeId,
};

const SECTORS: u64 = 40_000;
const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 48 * 4096, max_bytes: 96 * 4096, max_age_ms: 10_000 };
const ENVELOPE: usize = 32;
const SLOT: usize = 4096;
/// Changes of each entry of a corpus and of each kind: the share of a test run.
const CHANGES: u64 = 3000;

/// The targets, by the names of their directories.
const TARGETS: [&str; 13] = [
    "checkpoint",
    "frame",
    "live-map",
    "log-record",
    "map-header",
    "map-page",
    "object-key",
    "pending",
    "prefetch-list",
    "run-head",
    "run-page",
    "segment-index",
    "volume-id",
];

#[test]
fn every_target_has_a_corpus_and_every_corpus_a_target() {
    let mut found: Vec<String> = std::fs::read_dir(fuzz_dir())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, TARGETS);
}

fn fuzz_dir() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// Returns the files kept for `target`.
fn corpus_files(target: &str) -> Vec<Vec<u8>> {
    assert!(TARGETS.contains(&target));
    let mut files: Vec<_> =
        std::fs::read_dir(fuzz_dir().join(target)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no corpus");
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Keeps `bytes` as `file` of the corpus, if `WRITE_CORPUS` says that a format changed.
fn renew(file: &str, bytes: &[u8]) {
    if std::env::var_os("WRITE_CORPUS").is_some() {
        std::fs::write(fuzz_dir().join(file), bytes).unwrap();
    }
}

/// Returns the bytes stored by a life, with the kept files.
fn with_corpus(target: &str, stored: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    [stored, corpus_files(target)].concat()
}

/// Creates a volume with commits, a checkpoint, flushed and unflushed data, whose process was just killed.
fn killed_world() -> World {
    let mut world = World::new(11, 2, SECTORS, LIMITS, Faults::default());
    world.age_log(28);
    drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    for (op, start, sectors) in [
        (Op::Write, 0, 40),
        (Op::WriteZeroes, 64, 64),
        (Op::Write, 32_750, 60),
        (Op::Flush, 0, 0),
        (Op::Write, 4090, 50),
        (Op::Discard, 0, 4),
        (Op::Write, 39_000, 50),
        (Op::Write, 8, 3),
        (Op::Flush, 0, 0),
        (Op::Write, 20, 5),
    ] {
        world.request(0, op, SectorRange::new(start, sectors)).expect("the device is idle");
        drive::until(&mut world, 0, |world| drive::is_idle(world, 0));
    }
    while world.checkpoints().next().is_none() {
        drive::step(&mut world, 0);
    }
    world.kill(0);
    world
}

/// Changes some bytes, truncates the end, or repeats a part.
fn change(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            return bytes.push(rng.bits() as u8);
        }
        let at = rng.below(bytes.len());
        let width = rng.pick(&[1, 4, 8]).min(&(bytes.len() - at)).to_owned();
        match rng.below(8) {
            0 => bytes.truncate(at),
            1 => bytes[at..at + width].fill(0xff),
            2 => bytes[at..at + width].fill(0),
            3 => bytes.splice(at..at, bytes[at..at + width].to_vec()).for_each(drop),
            4 => bytes[at] = bytes[at].wrapping_add(*rng.pick(&[1, 255])),
            _ => bytes[at] ^= 1 << rng.below(8),
        }
    }
}

/// Changes some bytes, and corrects the checksum and the length. Pads the result to `slot` bytes.
fn forge(rng: &mut Rng, whole: &[u8], slot: usize) -> Vec<u8> {
    let length = u32::from_le_bytes(whole[8..12].try_into().unwrap()) as usize;
    let mut payload = whole[ENVELOPE..ENVELOPE + length].to_vec();
    change(rng, &mut payload);
    if slot > 0 {
        payload.truncate(slot - ENVELOPE);
    }
    let mut out = whole[..8].to_vec();
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let summed = [&out[..], &payload].concat();
    let is_map_page = u16::from_le_bytes([out[6], out[7]]) == 5;
    if is_map_page {
        out.extend_from_slice(&xxhash_rust::xxh3::xxh3_128(&summed).to_le_bytes());
    } else {
        out.extend_from_slice(&blake3::hash(&summed).as_bytes()[..16]);
    }
    out.extend_from_slice(&payload);
    out.resize(out.len().max(slot), 0);
    out
}

/// Runs `decode`, which returns its finding or `None`, over changes of `corpus`.
fn check_changes<T: PartialEq + Debug>(corpus: &[Vec<u8>], slot: usize, decode: impl Fn(&[u8]) -> Option<T>) {
    assert!(!corpus.is_empty());
    let (mut forged, mut taken) = (0, 0);
    for (entry, whole) in corpus.iter().enumerate() {
        let written = decode(whole).expect("what was written decodes");
        let mut rng = Rng::new(entry as u64);
        for _ in 0..CHANGES {
            let mut corrupted = whole.clone();
            change(&mut rng, &mut corrupted);
            if slot > 0 {
                corrupted.resize(slot, 0);
            }
            if let Some(found) = decode(&corrupted) {
                assert_eq!(found, written, "corrupted bytes were mistaken for others");
            }
            forged += 1;
            taken += u64::from(decode(&forge(&mut rng, whole, slot)).is_some());
        }
    }
    assert!(taken > 0, "none of {forged} forgeries passed the checksum: the fields were not reached");
}

/// Returns a bounded number of entries: a life creates many records that differ little.
fn sample<'a>(entries: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = entries.map(<[u8]>::to_vec).collect();
    all.sort_by_key(Vec::len);
    all.dedup_by_key(|bytes| bytes.len());
    all.truncate(6);
    all
}

fn index_of(object: &[u8]) -> &[u8] {
    let trailer = &object[object.len() - 16..];
    let bytes = u32::from_le_bytes(trailer[4..8].try_into().unwrap()) as usize;
    let offset = u64::from_le_bytes(trailer[8..].try_into().unwrap()) as usize;
    &object[offset..offset + bytes]
}

#[test]
fn records() {
    let world = killed_world();
    let is_commit = |bytes: &&[u8]| matches!(Record::decode(bytes).unwrap().body, Body::Change { .. });
    renew("log-record/commit", world.log().find(is_commit).unwrap());
    let mut growth = Record::decode(world.log().find(is_commit).unwrap()).unwrap();
    let Body::Change { sectors, .. } = &mut growth.body else { unreachable!("it is a change") };
    *sectors = Some(1 << 30);
    renew("log-record/growth", &growth.encode());
    let is_attach = |bytes: &&[u8]| matches!(Record::decode(bytes).unwrap().body, Body::Attach { .. });
    let attach = Record::decode(world.log().find(is_attach).unwrap()).unwrap();
    let Body::Attach { sectors, node, .. } = attach.body else { unreachable!("it is an attach") };
    let displaced = Some(Displaced { epoch: Epoch(1), node: node.clone(), since_unix_ms: 7 });
    let takeover = Record { body: Body::Attach { sectors, node, displaced }, ..attach };
    renew("log-record/attach", &takeover.encode());
    let mut labels = Labels::default();
    assert!(labels.insert(Labels::VOLUME, "data") && labels.insert(Labels::CLUSTER, "2f6a7c1e"));
    let create = Record { seq: Seq::FIRST, body: Body::Create { sectors, source: None, labels }, ..takeover };
    renew("log-record/create-labels", &create.encode());
    let root = Manifest::decode_checkpoint(killed_world().checkpoints().last().unwrap()).unwrap();
    let source = root.fork().map(Box::new);
    let body = Body::Create { sectors: root.sectors(), source, labels: Labels::default() };
    let fork = Record { volume: "fork".parse().unwrap(), body, ..create };
    renew("log-record/fork", &fork.encode());
    let mut state = Manifest::empty(root.volume().clone());
    world.log().for_each(|bytes| state.apply(&Record::decode(bytes).unwrap()).unwrap());
    let (volume, seq, epoch) = (state.volume().clone(), state.seq().next(), state.epoch());
    let detach = Record { volume, seq, epoch, body: Body::detach(&state), ..fork };
    assert!(matches!(detach.body, Body::Detach { root: Some(_) }));
    renew("log-record/detach-root", &detach.encode());
    check_changes(&with_corpus("log-record", sample(killed_world().log())), 0, |bytes| {
        let record = Record::decode(bytes).ok()?;
        assert_eq!(
            Record::decode(&record.encode()).as_ref(),
            Ok(&record),
            "what is taken can be written again"
        );
        Some(FoundRecord(record))
    });
}

/// A record, equal to the one without its root: a change may truncate that entirely.
#[derive(Debug)]
struct FoundRecord(Record);

impl PartialEq for FoundRecord {
    fn eq(&self, other: &Self) -> bool {
        let is_bare = |found: &Self| matches!(found.0.body, Body::Detach { root: None });
        let bare = |found: &Self| Record { body: Body::Detach { root: None }, ..found.0.clone() };
        let is_detach = |found: &Self| matches!(found.0.body, Body::Detach { .. });
        let is_cut = is_bare(self) != is_bare(other) && is_detach(self) && is_detach(other);
        self.0 == other.0 || (is_cut && bare(self) == bare(other))
    }
}

#[test]
fn checkpoints() {
    renew("checkpoint/life", killed_world().checkpoints().last().unwrap());
    check_changes(&with_corpus("checkpoint", sample(killed_world().checkpoints())), 0, |bytes| {
        Manifest::decode_checkpoint(bytes).ok().map(|manifest| manifest.encode_checkpoint())
    });
}

#[test]
fn segment_indexes() {
    let corpus = with_corpus("segment-index", sample(killed_world().segments().map(index_of)));
    check_changes(&corpus, 0, |bytes| FrameIndex::decode(bytes).ok());
}

/// Returns the object created by a merge of all segments of a life, with its reference and its head.
fn merged() -> (RunRef, RunHead, Vec<u8>) {
    let world = killed_world();
    let mut inputs: Vec<Input> =
        world.segments().map(|object| Input::Segment(segment_object(object), index(object))).collect();
    inputs.reverse();
    let mut merge = RunMerge::new(inputs, false);
    while merge.advance() != MergeStep::Ended {}
    let (run, head) = merge.close(RunId::new(Place::until(Seq(70)), 1, [2; 10]), 1);
    let object = merge.take(usize::MAX);
    (run, head, object)
}

fn index(object: &[u8]) -> Arc<FrameIndex> {
    Arc::new(FrameIndex::decode(index_of(object)).unwrap())
}

/// Returns a segment, named after its size.
fn segment_object(object: &[u8]) -> SegmentObject {
    let trailer = &object[object.len() - 16..];
    let bytes = object.len() as u64;
    SegmentObject {
        id: SegmentId::new(Place::until(Seq(bytes)), 1, [1; 10]),
        bytes,
        index_offset: u64::from_le_bytes(trailer[8..].try_into().unwrap()),
        index_bytes: u32::from_le_bytes(trailer[4..8].try_into().unwrap()),
    }
}

#[test]
fn run_heads() {
    let (run, head, object) = merged();
    let stored = object[run.head_offset as usize..][..run.head_bytes as usize].to_vec();
    renew("run-head/merged", &stored);
    assert!(head.segments().len() > 1);
    check_changes(&with_corpus("run-head", vec![stored]), 0, |bytes| RunHead::decode_alone(bytes).ok());
}

#[test]
fn prefetch_lists() {
    let snapshot = SnapshotName { volume: "image".parse().unwrap(), seq: Seq(7) };
    let stored = PrefetchList::new(snapshot, [9, 10, 11, 3, 0].map(Block)).encode();
    renew("prefetch-list/boot", &stored);
    check_changes(&with_corpus("prefetch-list", vec![stored]), 0, |bytes| PrefetchList::decode(bytes).ok());
}

/// A page is read through its head, which names its first block and the segments.
#[test]
fn run_pages() {
    let (_run, head, object) = merged();
    assert_eq!(head.pages(), 1);
    let range = head.page_range(0);
    let stored = object[range.start as usize..range.end as usize].to_vec();
    renew("run-page/merged", &stored);
    check_changes(&with_corpus("run-page", vec![stored]), 0, |bytes| {
        let page = head.page(0, bytes).ok()?;
        for block in (0..SECTORS / 32 + 1).chain([u64::from(u32::MAX), u64::MAX]) {
            let found = page.find(Block(block));
            assert!(found.iter().all(|entry| (u64::from(entry.frame.block)..entry.end()).contains(&block)));
        }
        Some(page)
    });
}

#[test]
fn frames() {
    let world = killed_world();
    let mut changed = 0;
    let stored = world.segments().map(<[u8]>::to_vec).collect();
    for object in &with_corpus("frame", stored) {
        for frame in FrameIndex::decode(index_of(object)).unwrap().frames() {
            let stored = &object[frame.offset as usize..][..frame.stored as usize];
            let written = unpack(frame, stored).unwrap();
            let mut rng = Rng::new(u64::from(frame.block));
            for _ in 0..CHANGES / 10 {
                let mut altered = stored.to_vec();
                change(&mut rng, &mut altered);
                if let Ok(found) = unpack(frame, &altered) {
                    assert!(found == written, "a changed frame was mistaken for another");
                }
                let stored = u32::try_from(altered.len()).unwrap();
                let longer = Frame { stored, mask: holdfast_types::Mask(rng.bits() as u32 | 1), ..*frame };
                if let Ok(found) = unpack(&longer, &altered) {
                    assert_eq!(found.len(), longer.bytes());
                }
                changed += 1;
            }
        }
    }
    assert!(changed > 0);
}

/// The newer header counts if the other slot is whole or was never written
/// (`docs/formats/durable-map.md`): a corrupted one is named, and is mistaken neither for a third header
/// nor for a reason to take the older.
#[test]
fn durable_map_headers() {
    renew("map-header/life", &killed_world().durable_map(0, 0, 2 * SLOT));
    renew("map-page/page-0", &killed_world().durable_map(0, 0, 4 * SLOT));
    let stored = vec![killed_world().durable_map(0, 0, 2 * SLOT)];
    for pair in with_corpus("map-header", stored) {
        let slots = [&pair[..SLOT], &pair[SLOT..]];
        let alone = slots.map(|slot| Header::newest(&[slot, &[0; SLOT]].concat()).unwrap().unwrap());
        let newest = usize::from(alone[1].0 > alone[0].0);
        for slot in [0, 1] {
            check_changes(&[slots[slot].to_vec()], SLOT, |bytes| {
                Header::newest(&[bytes, &[0; SLOT]].concat()).ok()?
            });
            let mut rng = Rng::new(slot as u64);
            for _ in 0..CHANGES {
                let mut corrupted = slots[slot].to_vec();
                change(&mut rng, &mut corrupted);
                corrupted.resize(SLOT, 0);
                let is_blank = corrupted[..512].iter().all(|byte| *byte == 0);
                let mut altered = slots;
                altered[slot] = &corrupted;
                let found = Header::newest(&altered.concat());
                let expected = if is_blank { &alone[1 - slot] } else { &alone[newest] };
                assert!(
                    found.as_ref().is_err() || found.as_ref() == Ok(&Some(expected.clone())),
                    "{found:?}"
                );
            }
        }
    }
}

/// Reads the front of a durable map's file: the header's slots, and the slots of one page, which is named
/// page 0.
fn found_page(file: &[u8], page: u64) -> Result<Option<FoundPage>, DamagedMap> {
    let (_, header) = Header::newest(file).unwrap().unwrap();
    newest_pages(&header, &[(page, file[2 * SLOT..].to_vec())], &[]).map(|found| found.into_iter().next())
}

/// Invariant 13: whatever happens to one slot, the older form of the page is never served instead of the
/// newest.
#[test]
fn durable_map_pages() {
    const UNIT: usize = 512;
    let world = killed_world();
    let header = world.durable_map(0, 0, 2 * SLOT);
    let pages = 0..SECTORS.div_ceil(PAGE_SECTORS);
    let stored = pages
        .map(|page| (page, [header.clone(), world.durable_map(0, page_offset(page, 0), 2 * SLOT)].concat()));
    let written = stored.filter(|(_, file)| file[2 * SLOT..].iter().any(|byte| *byte != 0));
    let kept = corpus_files("map-page").into_iter().map(|file| (0, file));
    let (mut taken, mut differ) = (0, 0);
    for (page, whole) in written.chain(kept) {
        let written = found_page(&whole, page).unwrap().expect("it was written");
        let sound = |file: &[u8]| match found_page(file, page) {
            Ok(Some(found)) => {
                assert_eq!(
                    (found.page, found.dirty_runs().collect::<Vec<_>>()),
                    (page, written.dirty_runs().collect())
                );
                true
            }
            Ok(None) => panic!("page {page} is gone"),
            Err(damaged) => {
                assert!(matches!(damaged, DamagedMap::Page { page: named, .. } if named == page));
                false
            }
        };
        let mut rng = Rng::new(page);
        let generation =
            |slot: usize| u64::from_le_bytes(whole[slot + ENVELOPE + 8..][..8].try_into().unwrap());
        for (slot, other) in [(2 * SLOT, 3 * SLOT), (3 * SLOT, 2 * SLOT)] {
            let newest = generation(slot) > generation(other);
            differ += u64::from(newest);
            let slot = slot..slot + SLOT;
            for unit in slot.clone().step_by(UNIT) {
                for fill in [0, 0xff, rng.bits() as u8] {
                    let mut corrupted = whole.clone();
                    corrupted[unit..unit + UNIT].fill(fill);
                    assert!(
                        !sound(&corrupted) || !newest,
                        "page {page}: all bytes from {unit} on became {fill}"
                    );
                }
                for at in (unit..unit + UNIT).step_by(3) {
                    let mut corrupted = whole.clone();
                    corrupted[at] ^= 1 << rng.below(8);
                    assert!(!sound(&corrupted) || !newest, "page {page}: byte {at} changed");
                }
            }
            for _ in 0..CHANGES / 10 {
                let mut altered = whole[slot.clone()].to_vec();
                change(&mut rng, &mut altered);
                altered.resize(SLOT, 0);
                let mut corrupted = whole.clone();
                corrupted[slot.clone()].copy_from_slice(&altered);
                sound(&corrupted);
                // The same change in every unit, each with a correct checksum.
                let seed = rng.bits();
                for unit in slot.clone().step_by(UNIT) {
                    let forged = forge(&mut Rng::new(seed), &whole[unit..unit + UNIT], UNIT);
                    corrupted[unit..unit + UNIT].copy_from_slice(&forged[..UNIT]);
                }
                taken += u64::from(found_page(&corrupted, page).is_ok());
            }
        }
    }
    assert!(differ > 0, "no page was written twice");
    assert!(taken > 0, "no forgery passed the checksums: the fields were not reached");
}

/// The record that a dead process was about to send, after its seq: it is sent as it was stored, or not at
/// all.
#[test]
fn pending_records() {
    let world = killed_world();
    let (header_generation, header) = Header::newest(&world.durable_map(0, 0, 2 * SLOT)).unwrap().unwrap();
    let mut manifest = Manifest::empty(header.volume.clone());
    for bytes in world.log() {
        manifest.apply(&Record::decode(bytes).unwrap()).unwrap();
    }
    let commits = world.log().map(|bytes| Record::decode(bytes).unwrap());
    let last = commits.filter(|record| matches!(record.body, Body::Change { .. })).last().unwrap();
    let record = Record { seq: manifest.seq().next(), nonce: manifest.writer().unwrap(), ..last };
    let left = [&record.seq.0.to_le_bytes()[..], &record.encode()].concat();
    renew("pending/commit", &left);
    let mut rng = Rng::new(3);
    let mut sent = 0;
    for whole in with_corpus("pending", vec![left]).iter().cycle().take(CHANGES as usize) {
        let mut altered = whole.clone();
        match rng.below(3) {
            0 => change(&mut rng, &mut altered),
            1 => altered = [&whole[..8], &forge(&mut rng, &whole[8..], 0)].concat(),
            _ => {}
        }
        let Some((seq, bytes)) = altered.split_first_chunk::<8>() else { continue };
        let pending = Pending { seq: Seq(u64::from_le_bytes(*seq)), bytes: bytes.to_vec() };
        let setup = Setup {
            durability: Durability::Local,
            requests: 4,
            limits: DirtyLimits { seal_bytes: 1, ..LIMITS },
            header: header.clone(),
            header_generation,
            unix_ms_at_zero: 0,
        };
        let mut volume = Volume::resume(setup, world.live_map(0).unwrap(), Some(pending), 0).unwrap();
        let mut out = Vec::new();
        volume.handle(0, Event::ManifestLoaded(Box::new(manifest.clone())), &mut out);
        for action in out {
            if let Action::CreateRecord { seq, bytes } = action {
                let record = Record::decode(&bytes).expect("what is sent is whole");
                assert_eq!(record.seq, seq, "what is sent stands in its own place");
                sent += 1;
            }
        }
    }
    assert!(sent > CHANGES / 10, "{sent} were sent");
}

/// Every listed key is one of Holdfast's, in its only spelling, or none.
#[test]
fn object_keys() {
    texts("object-key", |text| ObjectKey::parse(text).map(|key| key.to_string()));
}

#[test]
fn volume_ids() {
    texts("volume-id", |text| text.parse::<VolumeId>().ok().map(|id| id.to_string()));
}

/// Changes the lines kept for `target`. An accepted line is written as it was read.
fn texts(target: &str, decode: impl Fn(&str) -> Option<String>) {
    let kept = corpus_files(target).concat();
    let mut rng = Rng::new(5);
    let mut taken = 0;
    for line in String::from_utf8(kept).unwrap().lines() {
        assert!(decode(line).is_some(), "{line} was taken once");
        for _ in 0..CHANGES {
            let mut altered = line.as_bytes().to_vec();
            change(&mut rng, &mut altered);
            let altered = String::from_utf8_lossy(&altered);
            if let Some(found) = decode(&altered) {
                assert_eq!(found, altered, "there are two ways to write it");
                taken += 1;
            }
        }
    }
    assert!(taken > 0);
}

/// The live map has no checksum: only its owner writes this memory, and it is lost with the host. With any
/// content, a takeover succeeds or returns an error.
#[test]
fn live_maps() {
    let world = killed_world();
    let left = world.live_map(0).expect("the process was killed");
    // Only the head and the bitmaps can be invalid.
    renew("live-map/front", &left[..2 * SLOT]);
    let (header_generation, header) = Header::newest(&world.durable_map(0, 0, 2 * SLOT)).unwrap().unwrap();
    let mut rng = Rng::new(1);
    let mut taken = 0;
    for whole in with_corpus("live-map", vec![left]).iter().cycle().take(CHANGES as usize / 10) {
        let mut altered = whole.clone();
        altered.resize(map_bytes(SECTORS) as usize, 0);
        let mut front = altered.split_off(2 * SLOT);
        std::mem::swap(&mut front, &mut altered);
        change(&mut rng, &mut front);
        let altered = [front, altered].concat();
        let setup = Setup {
            requests: 4,
            limits: LIMITS,
            durability: Durability::Local,
            header: Header { epoch: Epoch(1), nonces: vec![Nonce([1; 16])], ..header.clone() },
            header_generation,
            unix_ms_at_zero: 0,
        };
        taken += u64::from(Volume::resume(setup, altered, None, 0).is_ok());
    }
    assert!(taken > 0);
}
