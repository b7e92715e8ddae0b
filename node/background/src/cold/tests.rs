use bytes::Bytes;
use futures::FutureExt;
use holdfast_format::segment::SegmentBuilder;
use holdfast_objects::{MemoryStore, ReadyParts};
use holdfast_types::{Place, Sector, Seq};
use parking_lot::Mutex;

use super::*;
use crate::scripted_time::ScriptedTime;

const KEY: &str = "volumes/v/segments/a";

fn store(source: StoreError) -> ColdError {
    ColdError::Store { key: KEY.to_owned(), source }
}

fn missing() -> ColdError {
    store(StoreError::NotFound { key: KEY.to_owned() })
}

fn damaged() -> ColdError {
    ColdError::Frame { key: KEY.to_owned(), source: FrameError::Length { block: 0, have: 3, need: 4 } }
}

/// Runs a read whose tries end with `answers`, in this order; returns its end and the waits between the
/// tries.
fn read(answers: Vec<Result<u8, ColdError>>) -> (Result<u8, ColdError>, Vec<Duration>) {
    let time = ScriptedTime::new(|_wait| {});
    let answers = Mutex::new(answers.into_iter());
    let range = SectorRange::new(Sector(3).0, 1);
    let done = retry_while_unavailable(&time, &ColdLines::default(), range, |_wanted| async {
        answers.lock().next().expect("no further try is due")
    })
    .now_or_never()
    .unwrap();
    assert_eq!(answers.into_inner().count(), 0, "a try is missing");
    (done, time.waits.into_inner())
}

/// Each of these failed the client's read at once, and an ext4 on the volume became read-only.
#[test]
fn a_read_waits_out_answers_of_proxies_and_failovers() {
    let refused = || StoreError::Refused { code: "HTTP 421".to_owned(), source: "x".into() };
    let answers = vec![
        Err(store(refused())),
        Err(store(StoreError::NoBucket { bucket: "b".to_owned() })),
        Err(store(StoreError::Denied { code: "ExpiredToken".to_owned(), source: "x".into() })),
        Err(store(StoreError::WrongLength { key: KEY.to_owned(), got_bytes: 3, want_bytes: 4 })),
        Err(store(StoreError::BadAnswer { field: "Content-Range" })),
        Err(store(StoreError::TooLarge { key: KEY.to_owned(), size_bytes: 5, max_bytes: 4 })),
        Err(store(StoreError::Unavailable("x".into()))),
        Ok(7),
    ];
    let (done, waits) = read(answers);
    assert_eq!((done.unwrap(), waits.len()), (7, 7));
}

/// Damage and absence were believed at the first word.
#[test]
fn a_finding_that_is_not_found_again_fails_no_read() {
    for finding in [missing, damaged] {
        // The whole block, then the range alone, then the range again.
        let (done, waits) = read(vec![Err(finding()), Err(finding()), Ok(7)]);
        assert_eq!((done.unwrap(), &waits[..]), (7, &[CONFIRM_AFTER][..]));
    }
    let (done, waits) = read(vec![Err(missing()), Err(missing()), Err(damaged()), Err(missing()), Ok(7)]);
    assert_eq!((done.unwrap(), &waits[..]), (7, &[CONFIRM_AFTER; 3][..]), "three findings, no two alike");
}

#[test]
fn a_finding_that_is_found_again_fails_the_read() {
    for finding in [missing, damaged] {
        let (done, waits) = read(vec![Err(finding()), Err(finding()), Err(finding())]);
        assert_eq!(done.unwrap_err().to_string(), finding().to_string());
        assert_eq!(waits, [CONFIRM_AFTER]);
    }
    let away = || Err(store(StoreError::Unavailable("x".into())));
    let (done, waits) = read(vec![Err(missing()), Err(missing()), away(), Err(missing())]);
    assert!(done.is_err());
    assert_eq!(waits.len(), 2, "an outage in between is no word on the object");
}

#[test]
fn a_range_that_needs_nothing_damaged_is_read_at_once() {
    let (done, waits) = read(vec![Err(damaged()), Ok(7)]);
    assert_eq!((done.unwrap(), waits.len()), (7, 0));
}

/// A segment of `frames` frames, in a store.
fn stored(frames: u64) -> (MemoryStore, Runs) {
    let (store, lineage) = (MemoryStore::new(), Lineage::of("v".parse().unwrap()));
    let mut builder = SegmentBuilder::default();
    for block in 0..frames {
        builder.push(Block(block), Mask(1), &[7; 4096]);
    }
    let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
    let mut parts = ReadyParts::from(Bytes::from(object));
    store.put_segment(&lineage.segment_key(segment.id), &mut parts).now_or_never().unwrap().unwrap();
    (store, Runs::new(lineage.into(), [Run::Segment(segment.into())]))
}

/// An index that did not fit the share of one part of the cache, of which there were four for each CPU, was
/// fetched for every read: 12 MiB with 8 CPUs, 3 MiB with 32.
#[test]
fn an_index_is_fetched_once_however_large() {
    const FRAMES: u64 = 12_000;
    let (store, runs) = stored(FRAMES);
    let index_bytes = FRAMES * 48;
    for (cache_bytes, what) in
        [(2 * index_bytes, "half the cache"), (index_bytes / 4, "four times the cache")]
    {
        let indexes = Indexes::new(4096, cache_bytes);
        let before = store.counts().get;
        for block in 0..100 {
            let composed = indexes.compose(&store, Block(block), Mask::FULL, &runs);
            assert_eq!(composed.now_or_never().unwrap().unwrap().pieces.len(), 1);
        }
        assert_eq!(store.counts().get - before, 1, "an index of {what}");
    }
}
