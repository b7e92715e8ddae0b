//! Findings of a scrub, including harmless ones.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod stored;

use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_log::scrub::{Damage, Effect, Progress, ScrubReport, repair_checkpoints, scrub};
use holdfast_log::{
    Creation, drop_checkpoints, read_manifest, read_manifest_to_end, truncate, write_checkpoint,
};
use holdfast_objects::{ErrorKind, Fault as Planned, MemoryStore, ObjectStore, Verb};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, SectorRange, Seq, VolumeId};
use stored::{NONCE, Stored};

/// Two chunks, the second one short.
const SECTORS: u64 = 40_000;

fn volume() -> VolumeId {
    "v".parse().unwrap()
}

/// A volume whose log is `[create, attach, commit 3, commit 4, commit 5]`, with checkpoints as of 3 and 4.
struct Scrubbed(Stored);

impl Deref for Scrubbed {
    type Target = Stored;

    fn deref(&self) -> &Stored {
        &self.0
    }
}

impl DerefMut for Scrubbed {
    fn deref_mut(&mut self) -> &mut Stored {
        &mut self.0
    }
}

impl Scrubbed {
    async fn new() -> Self {
        let creation = Creation::plain(SECTORS, NONCE, 0);
        let mut stored = Self(Stored::attached(MemoryStore::new(), "v", creation, 2).await);
        // Sectors 0 to 3, 32 to 63 and the first one of the second chunk; zeros in sector 64.
        stored.commit(3, &[(0, 0b1111), (1, u32::MAX), (2, 0), (1024, 1)]).await;
        stored.checkpoint().await;
        // Hides sectors 0 and 1.
        stored.commit(4, &[(0, 0b11)]).await;
        stored.checkpoint().await;
        // Hides block 1.
        stored.commit(5, &[(1, u32::MAX)]).await;
        stored
    }

    async fn checkpoint(&self) {
        let manifest = read_manifest(&self.store, &volume()).await.unwrap();
        write_checkpoint(&self.store, &volume(), manifest.seq(), manifest.encode_checkpoint().into())
            .await
            .unwrap();
        drop_checkpoints(&self.store, &volume(), manifest.seq()).await.unwrap();
    }

    async fn scrub(&self) -> ScrubReport {
        scrub(&self.store, &volume(), &|_| ()).await.unwrap()
    }

    fn segment_key(&self, number: usize) -> String {
        ObjectKey::Segment(volume(), self.segments[number].0.id).to_string()
    }

    fn flip_frame(&self, segment: usize, frame: usize) {
        let at = self.segments[segment].1.frames()[frame].offset as usize + 100;
        self.store.corrupt(&self.segment_key(segment), |bytes| bytes[at] ^= 1);
    }
}

fn log_key(seq: u64) -> String {
    ObjectKey::Log(volume(), Seq(seq)).to_string()
}

fn checkpoint_key(seq: u64) -> String {
    ObjectKey::Checkpoint(volume(), Seq(seq)).to_string()
}

fn keys(report: &ScrubReport) -> Vec<&str> {
    report.findings.iter().map(|finding| finding.key.as_str()).collect()
}

#[tokio::test]
async fn a_sound_volume_is_read_whole_without_findings() {
    let stored = Scrubbed::new().await;
    let reported = Mutex::new(Vec::new());
    let report =
        scrub(&stored.store, &volume(), &|progress| reported.lock().unwrap().push(progress)).await.unwrap();
    assert_eq!(keys(&report), [] as [&str; 0]);
    let counts = (report.records, report.checkpoints, report.segments, report.frames);
    assert_eq!(counts, (5, 2, 3, 5), "a zero frame has no bytes to read");
    let stored_bytes: u64 = stored.segments.iter().map(|(segment, _)| segment.bytes).sum();
    let trailers = 3 * 16;
    let last = reported.into_inner().unwrap().into_iter().max_by_key(|reported| reported.read_bytes).unwrap();
    assert_eq!(last, Progress { read_bytes: stored_bytes - trailers, total_bytes: stored_bytes });
    assert_eq!(report.manifest, read_manifest(&stored.store, &volume()).await.unwrap());
}

#[tokio::test]
async fn any_changed_byte_is_found_in_exactly_its_object() {
    let stored = Scrubbed::new().await;
    for key in stored.store.keys() {
        let length = stored.store.get(&key, u64::MAX).await.unwrap().len();
        for at in (0..length).step_by(length / 40 + 1).chain(length.saturating_sub(80)..length) {
            stored.store.corrupt(&key, |bytes| bytes[at] ^= 0x10);
            let report = stored.scrub().await;
            assert_eq!(keys(&report), [key.as_str()], "byte {at}");
            stored.store.corrupt(&key, |bytes| bytes[at] ^= 0x10);
        }
    }
}

#[tokio::test]
async fn any_changed_byte_of_a_merged_volume_is_found_too() {
    let stored = Scrubbed::new().await;
    // Commits 3 and 4; commit 5 stays before them in the list.
    stored.merge(6, 1, 2).await;
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [] as [&str; 0]);
    assert_eq!((report.segments, report.manifest.runs().len()), (3, 2));
    for key in stored.store.keys().into_iter().filter(|key| !key.contains("/checkpoints/")) {
        let length = stored.store.get(&key, u64::MAX).await.unwrap().len();
        for at in (0..length).step_by(length / 40 + 1).chain(length.saturating_sub(80)..length) {
            stored.store.corrupt(&key, |bytes| bytes[at] ^= 0x10);
            let report = stored.scrub().await;
            assert_eq!(keys(&report), [key.as_str()], "byte {at}");
            stored.store.corrupt(&key, |bytes| bytes[at] ^= 0x10);
        }
    }
}

/// Reads need the frames named by a merged run, not the index at the end of their segment.
#[tokio::test]
async fn a_segment_of_a_merged_run_affects_what_its_frames_hold() {
    let stored = Scrubbed::new().await;
    stored.merge(6, 1, 2).await;
    let at = stored.segments[0].0.index_offset as usize + 40;
    stored.store.corrupt(&stored.segment_key(0), |bytes| bytes[at] ^= 1);
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [stored.segment_key(0)]);
    assert!(report.is_harmless(), "{:?}", report.findings);

    // Sectors 0 and 1 are hidden by commit 4, block 1 by commit 5.
    stored.flip_frame(0, 0);
    stored.flip_frame(0, 1);
    let report = stored.scrub().await;
    assert_eq!(report.unreadable(), [SectorRange::new(2, 2)]);

    stored.store.delete(&[&stored.segment_key(0)]).await.unwrap();
    let report = stored.scrub().await;
    assert!(matches!(report.findings[0].fault, Damage::Missing));
    assert_eq!(report.unreadable(), [SectorRange::new(2, 2), SectorRange::new(32_768, 1)]);
}

#[tokio::test]
async fn a_damaged_run_affects_the_blocks_of_its_pages() {
    for (part, expected) in [("page", SectorRange::new(0, SECTORS)), ("head", SectorRange::new(0, SECTORS))] {
        let stored = Scrubbed::new().await;
        let run = stored.merge(6, 1, 2).await;
        let key = ObjectKey::Run(volume(), run.id).to_string();
        let at = if part == "page" { 50 } else { run.head_offset as usize + 50 };
        stored.store.corrupt(&key, |bytes| bytes[at] ^= 1);
        let report = stored.scrub().await;
        assert_eq!(keys(&report), [key], "{part}");
        assert_eq!(report.findings[0].effect, Effect::Unreadable(vec![expected]), "{part}");
        assert_eq!(report.segments, if part == "page" { 3 } else { 1 }, "{part}");
    }
}

#[tokio::test]
async fn a_missing_object_and_one_cut_short_are_found() {
    for cut in [0, 1, 100] {
        for number in 0..3 {
            let stored = Scrubbed::new().await;
            let key = stored.segment_key(number);
            match cut {
                0 => stored.store.delete(&[&key]).await.unwrap(),
                cut => stored.store.corrupt(&key, |bytes| bytes.truncate(bytes.len() - cut)),
            }
            let report = stored.scrub().await;
            let [finding] = &report.findings[..] else { panic!("{:?}", report.findings) };
            assert_eq!(finding.key, key);
            assert!(matches!((&finding.fault, cut), (Damage::Missing, 0) | (Damage::Length { .. }, 1 | 100)));
            let first_chunk = SectorRange::new(0, 32_768);
            let both_chunks = SectorRange::new(0, SECTORS);
            let expected = if number == 0 { both_chunks } else { first_chunk };
            // Readers do not need the trailer.
            let index_is_there = cut == 1;
            let expected = if index_is_there { Effect::Harmless } else { Effect::Unreadable(vec![expected]) };
            assert_eq!(finding.effect, expected, "segment {number} cut by {cut}");
        }
    }
}

#[tokio::test]
async fn damaged_frames_affect_only_where_nothing_newer_hides_them() {
    let stored = Scrubbed::new().await;
    stored.flip_frame(0, 1);
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [stored.segment_key(0)]);
    assert!(report.is_harmless(), "block 1 was written again: {:?}", report.findings);

    stored.flip_frame(0, 0);
    stored.flip_frame(1, 0);
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [stored.segment_key(0), stored.segment_key(1)]);
    assert!(matches!(report.findings[0].fault, Damage::Frames { count: 2, .. }));
    assert_eq!(report.findings[0].effect, Effect::Unreadable(vec![SectorRange::new(2, 2)]));
    assert_eq!(report.findings[1].effect, Effect::Unreadable(vec![SectorRange::new(0, 2)]));
    assert_eq!(report.unreadable(), [SectorRange::new(0, 4)]);
}

#[tokio::test]
async fn a_record_affects_only_while_no_checkpoint_replaces_it() {
    for (seq, effect) in [(4, Effect::Harmless), (5, Effect::NoAttach)] {
        let stored = Scrubbed::new().await;
        stored.store.corrupt(&log_key(seq), |bytes| bytes[40] ^= 1);
        let report = stored.scrub().await;
        assert_eq!(keys(&report), [log_key(seq)]);
        assert_eq!(report.findings[0].effect, effect);
        assert_eq!(read_manifest(&stored.store, &volume()).await.is_ok(), effect == Effect::Harmless);
    }
    let mut stored = Scrubbed::new().await;
    stored.commit(6, &[(9, 1)]).await;
    stored.store.delete(&[&log_key(5)]).await.unwrap();
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [log_key(5)]);
    assert!(matches!(report.findings[0].fault, Damage::Missing));
    assert_eq!(report.findings[0].effect, Effect::NoAttach);
    assert_eq!(report.manifest.seq(), Seq(4), "what is known is still read");
    // A missing record before the oldest checkpoint is not damage: the log may be truncated.
    let stored = Scrubbed::new().await;
    for seq in 1..3 {
        stored.store.delete(&[&log_key(seq)]).await.unwrap();
    }
    assert_eq!(keys(&stored.scrub().await), [] as [&str; 0]);
}

/// A suspended writer creates its attach record at a truncated position: it is not part of the log.
#[tokio::test]
async fn a_record_that_came_too_late_is_nothing_to_find() {
    let mut stored = Scrubbed::new().await;
    for seq in 6..=100 {
        stored.commit(seq, &[(seq, 1)]).await;
        if seq % 32 == 0 {
            stored.checkpoint().await;
        }
    }
    let newest = stored.store.get(&checkpoint_key(96), u64::MAX).await.unwrap();
    truncate(&stored.store, &volume(), Seq(64), (Seq(96), &newest)).await.unwrap();
    assert_eq!(keys(&stored.scrub().await), [] as [&str; 0]);
    let attach = Body::Attach { sectors: SECTORS, node: "late".into(), displaced: None };
    for seq in [3, 4] {
        stored.record(seq, attach.clone()).await;
    }
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [] as [&str; 0]);
    assert_eq!((report.records, report.manifest.seq()), (2 + 2 + 36, Seq(100)));
}

#[tokio::test]
async fn a_damaged_checkpoint_is_replaced_from_the_log() {
    let stored = Scrubbed::new().await;
    let sound = read_manifest(&stored.store, &volume()).await.unwrap();
    stored.store.corrupt(&checkpoint_key(4), |bytes| bytes[50] ^= 1);
    assert!(read_manifest(&stored.store, &volume()).await.is_err());
    let report = stored.scrub().await;
    assert_eq!((keys(&report), &report.findings[0].effect), (vec![&*checkpoint_key(4)], &Effect::NoAttach));
    let removed = repair_checkpoints(&stored.store, &volume(), &report).await.unwrap();
    assert_eq!(removed, [checkpoint_key(4)]);
    assert_eq!(keys(&stored.scrub().await), [] as [&str; 0]);
    let repaired = read_manifest(&stored.store, &volume()).await.unwrap();
    assert_eq!((repaired.checkpointed(), repaired.runs()), (Seq(5), sound.runs()));

    // At the log's end, no newer one can be created: the previous checkpoint with the records suffices.
    stored.store.corrupt(&checkpoint_key(5), |bytes| bytes[50] ^= 1);
    let report = stored.scrub().await;
    repair_checkpoints(&stored.store, &volume(), &report).await.unwrap();
    assert_eq!(read_manifest(&stored.store, &volume()).await.unwrap().runs(), sound.runs());
}

#[tokio::test]
async fn a_checkpoint_that_differs_from_the_log_is_found() {
    let stored = Scrubbed::new().await;
    let other = {
        let mut other = Manifest::empty(volume());
        let body = Body::create(8);
        let record =
            Record { volume: volume(), seq: Seq(1), epoch: Epoch(0), nonce: NONCE, unix_ms: 0, body };
        other.apply(&record).unwrap();
        other.encode_checkpoint()
    };
    stored.store.corrupt(&checkpoint_key(3), |bytes| *bytes = other.clone());
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [checkpoint_key(3)]);
    assert!(matches!(report.findings[0].fault, Damage::Differs));
    assert_eq!(report.findings[0].effect, Effect::Harmless, "the newer one is sound");
}

/// A detach record with the root is sufficient for readers.
#[tokio::test]
async fn damage_before_a_root_is_harmless_and_repaired() {
    let stored = Scrubbed::new().await;
    stored.detach(6).await;
    let sound = read_manifest(&stored.store, &volume()).await.unwrap();
    assert_eq!(stored.scrub().await.manifest, sound);
    stored.store.corrupt(&log_key(5), |bytes| bytes[40] ^= 1);
    for key in [checkpoint_key(3), checkpoint_key(4)] {
        stored.store.corrupt(&key, |bytes| bytes[50] ^= 1);
    }
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [log_key(5), checkpoint_key(3), checkpoint_key(4)]);
    assert!(report.is_harmless(), "{:?}", report.findings);
    assert_eq!(report.manifest.runs(), sound.runs());
    assert_eq!(read_manifest(&stored.store, &volume()).await.unwrap(), sound);
    let removed = repair_checkpoints(&stored.store, &volume(), &report).await.unwrap();
    assert_eq!(removed, [checkpoint_key(3), checkpoint_key(4)]);
    let repaired = read_manifest(&stored.store, &volume()).await.unwrap();
    assert_eq!((repaired.checkpointed(), repaired.runs()), (Seq(6), sound.runs()));
    // Found by simulation: readers start at the checkpoint of the same seq.
    stored.store.corrupt(&checkpoint_key(6), |bytes| bytes[50] ^= 1);
    assert!(read_manifest(&stored.store, &volume()).await.is_err());
    assert!(!stored.scrub().await.is_harmless());
}

#[tokio::test]
async fn a_root_that_differs_from_the_log_is_found() {
    let mut stored = Scrubbed::new().await;
    let manifest = read_manifest(&stored.store, &volume()).await.unwrap();
    let mut other = Manifest::empty(volume());
    for seq in 1..=5 {
        let bytes = stored.store.get(&log_key(seq), u64::MAX).await.unwrap();
        let mut record = Record::decode(&bytes).unwrap();
        if let Body::Change { segments, .. } = &mut record.body {
            segments.truncate(usize::from(seq != 4));
        }
        other.apply(&record).unwrap();
    }
    assert_eq!((other.seq(), other.runs().len()), (manifest.seq(), manifest.runs().len() - 1));
    stored.record(6, Body::detach(&other)).await;
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [log_key(6)]);
    assert!(matches!(report.findings[0].fault, Damage::Differs));
    assert_eq!(report.findings[0].effect, Effect::NoAttach);
    stored.attach(7, SECTORS).await;
    let report = stored.scrub().await;
    assert_eq!((keys(&report), report.is_harmless()), (vec![&*log_key(6)], true), "the root is not read");
}

#[tokio::test]
async fn a_checkpoint_without_a_replacement_is_not_removed() {
    let stored = Scrubbed::new().await;
    for key in [checkpoint_key(3), checkpoint_key(4)] {
        stored.store.corrupt(&key, |bytes| bytes[50] ^= 1);
    }
    stored.store.corrupt(&log_key(3), |bytes| bytes[40] ^= 1);
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [log_key(3), checkpoint_key(3), checkpoint_key(4)]);
    assert!(repair_checkpoints(&stored.store, &volume(), &report).await.unwrap().is_empty());
    assert!(stored.store.keys().contains(&checkpoint_key(4)));
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_no_damage() {
    let stored = Scrubbed::new().await;
    stored.store.fail_always(Verb::Get, Planned::Before(ErrorKind::Unavailable));
    assert!(scrub(&stored.store, &volume(), &|_| ()).await.unwrap_err().is_transient());
    stored.store.heal();
    let none = scrub(&stored.store, &"w".parse().unwrap(), &|_| ()).await.unwrap();
    assert!(!none.manifest.exists() && none.findings.is_empty());
}

/// Creates a volume with another history: its log has the same seqs, and its commits hold other blocks.
async fn of_another_history() -> Scrubbed {
    let creation = Creation::plain(SECTORS, NONCE, 0);
    let mut other = Scrubbed(Stored::attached(MemoryStore::new(), "v", creation, 2).await);
    for seq in 3..=4 {
        other.commit(seq, &[(700 + seq, 1)]).await;
    }
    other.checkpoint().await;
    other
}

/// Readers start at the newest checkpoint, regardless of its content: a root before the end of the log does
/// not replace an intact one.
#[tokio::test]
async fn a_checkpoint_that_differs_is_not_replaced_by_a_root_that_records_follow() {
    let mut stored = Scrubbed::new().await;
    stored.detach(6).await;
    stored.attach(7, SECTORS).await;
    stored.commit(8, &[(3, 1)]).await;
    let sound = read_manifest(&stored.store, &volume()).await.unwrap();
    let other = of_another_history().await.store.get(&checkpoint_key(4), u64::MAX).await.unwrap();
    stored.store.corrupt(&checkpoint_key(4), |bytes| *bytes = other.to_vec());
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [checkpoint_key(4)]);
    assert!(matches!(report.findings[0].fault, Damage::Differs));
    let read = read_manifest(&stored.store, &volume()).await.unwrap();
    assert_eq!(report.is_harmless(), read.runs() == sound.runs(), "what the scrub says is not what is read");
}

/// Readers reject a checkpoint of another volume or seq, even if a root follows it.
#[tokio::test]
async fn a_misplaced_checkpoint_before_a_root_is_no_less_than_what_readers_say() {
    let mut stored = Scrubbed::new().await;
    stored.detach(6).await;
    stored.attach(7, SECTORS).await;
    let other = stored.store.get(&checkpoint_key(3), u64::MAX).await.unwrap();
    stored.store.corrupt(&checkpoint_key(4), |bytes| *bytes = other.to_vec());
    let report = stored.scrub().await;
    assert_eq!(keys(&report), [checkpoint_key(4)]);
    let read = read_manifest(&stored.store, &volume()).await;
    assert_eq!(report.is_harmless(), read.is_ok(), "{read:?}");
}

/// Covers a truncated log without its checkpoints: a scrub's result must match that of an attach, even if the
/// log ends in a root.
#[tokio::test]
async fn a_truncated_log_without_its_checkpoints_is_not_sound() {
    for ends_with_root in [true, false] {
        let mut stored = Scrubbed::new().await;
        for seq in 6..=100 {
            stored.commit(seq, &[(seq, 1)]).await;
            if seq % 32 == 0 {
                stored.checkpoint().await;
            }
        }
        let newest = stored.store.get(&checkpoint_key(96), u64::MAX).await.unwrap();
        truncate(&stored.store, &volume(), Seq(64), (Seq(96), &newest)).await.unwrap();
        stored.detach(101).await;
        if !ends_with_root {
            stored.attach(102, SECTORS).await;
        }
        let sound = read_manifest_to_end(&stored.store, &volume()).await.unwrap();
        stored.store.delete(&[&checkpoint_key(64), &checkpoint_key(96)]).await.unwrap();
        let report = stored.scrub().await;
        assert_eq!(report.manifest.runs(), sound.runs());
        let read = read_manifest_to_end(&stored.store, &volume()).await;
        assert_eq!(
            report.is_harmless(),
            read.is_ok(),
            "ends with the root: {ends_with_root}; findings {:?}; readers: {:?}",
            report.findings,
            read.err()
        );
        // The root has the content for a new one.
        assert!(repair_checkpoints(&stored.store, &volume(), &report).await.unwrap().is_empty());
        let repaired = read_manifest_to_end(&stored.store, &volume()).await.unwrap();
        assert_eq!((repaired.runs(), repaired.seq()), (sound.runs(), sound.seq()));
        assert!(stored.scrub().await.is_harmless());
    }
}

/// The root is not read while everything before it is intact, but is read once something there is damaged.
#[tokio::test]
async fn a_root_that_differs_is_not_harmless_where_readers_begin_at_it() {
    let mut stored = Scrubbed::new().await;
    let mut other = Manifest::empty(volume());
    for seq in 1..=5 {
        let bytes = stored.store.get(&log_key(seq), u64::MAX).await.unwrap();
        let mut record = Record::decode(&bytes).unwrap();
        if let Body::Change { segments, .. } = &mut record.body {
            segments.truncate(usize::from(seq != 4));
        }
        other.apply(&record).unwrap();
    }
    stored.record(6, Body::detach(&other)).await;
    stored.attach(7, SECTORS).await;
    let sound = read_manifest(&stored.store, &volume()).await.unwrap();
    stored.store.corrupt(&checkpoint_key(4), |bytes| bytes[50] ^= 1);
    let report = stored.scrub().await;
    assert_eq!(report.manifest.runs(), sound.runs(), "the records say what the volume holds");
    let of_root = report.findings.iter().find(|finding| finding.key == log_key(6)).unwrap();
    let reads_the_same = match read_manifest(&stored.store, &volume()).await {
        Ok(read) => read.runs() == sound.runs(),
        Err(_) => true,
    };
    assert!(reads_the_same || of_root.effect != Effect::Harmless, "{:?}", report.findings);
    repair_checkpoints(&stored.store, &volume(), &report).await.unwrap();
    assert_eq!(read_manifest(&stored.store, &volume()).await.unwrap().runs(), sound.runs());
}

/// Creates a truncated log that ends at `end`, with checkpoints at 64 and 96.
async fn truncated(end: u64, root: u64) -> Scrubbed {
    let mut stored = Scrubbed::new().await;
    for seq in 6..=end {
        match seq {
            _ if seq == root => stored.detach(seq).await,
            _ if seq == root + 1 => stored.attach(seq, SECTORS).await,
            _ => stored.commit(seq, &[(seq, 1)]).await,
        }
        if seq == 64 || seq == 96 {
            stored.checkpoint().await;
        }
    }
    let newest = stored.store.get(&checkpoint_key(96), u64::MAX).await.unwrap();
    truncate(&stored.store, &volume(), Seq(64), (Seq(96), &newest)).await.unwrap();
    stored
}

/// Regression: the repair deleted the damaged checkpoints first. Without any, the log cannot be read, and a
/// scrub finds nothing to repair.
#[tokio::test]
async fn a_repair_that_is_interrupted_is_done_by_the_next() {
    let stored = truncated(103, 100).await;
    let sound = read_manifest_to_end(&stored.store, &volume()).await.unwrap();
    for key in [checkpoint_key(64), checkpoint_key(96)] {
        stored.store.corrupt(&key, |bytes| bytes[50] ^= 1);
    }
    assert_eq!(read_manifest_to_end(&stored.store, &volume()).await.unwrap().runs(), sound.runs());
    let report = stored.scrub().await;
    stored.store.fail_next(Verb::Put, Planned::Before(ErrorKind::Unavailable));
    assert!(repair_checkpoints(&stored.store, &volume(), &report).await.is_err());
    let report = stored.scrub().await;
    repair_checkpoints(&stored.store, &volume(), &report).await.unwrap();
    let read = read_manifest_to_end(&stored.store, &volume()).await;
    assert_eq!(read.unwrap().runs(), sound.runs(), "{:?}", report.findings);
}

/// The newest checkpoint is at the log's end, where no other can be stored after its deletion.
#[tokio::test]
async fn a_repair_leaves_a_log_that_a_scrub_finds_something_in() {
    let stored = truncated(96, 90).await;
    let sound = read_manifest_to_end(&stored.store, &volume()).await.unwrap();
    for key in [checkpoint_key(64), checkpoint_key(96)] {
        stored.store.corrupt(&key, |bytes| bytes[50] ^= 1);
    }
    let report = stored.scrub().await;
    assert!(!report.is_harmless(), "the newest checkpoint is damaged, and no root comes after it");
    assert!(report.manifest.runs() == sound.runs(), "all of it is known from the root");
    let removed = repair_checkpoints(&stored.store, &volume(), &report).await.unwrap();
    let read = read_manifest_to_end(&stored.store, &volume()).await;
    let report = stored.scrub().await;
    assert_eq!(report.is_harmless(), read.is_ok(), "removed {removed:?}; readers: {:?}", read.err());
}
