mod uploads;

use futures::FutureExt;
use holdfast_format::record::Body;
use holdfast_objects::{Fault, MemoryStore, Verb};
use holdfast_types::{Epoch, Nonce};
use parking_lot::Mutex;

use super::*;
use crate::UploadBatch;
use crate::scripted_time::ScriptedTime;

const KEY: &str = "volumes/v/log/00000000000000000007";

/// No test here uses a local file.
struct NoSides;

impl Sides for NoSides {
    async fn pack(&self, _batch: UploadBatch) -> UploadBatch {
        unreachable!("nothing is uploaded")
    }

    async fn compute<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        work()
    }

    async fn store_pending(&self, _pending: Pending) -> std::io::Result<()> {
        unreachable!("nothing is kept")
    }
}

fn record() -> Vec<u8> {
    let volume = "v".parse().unwrap();
    let body = Body::Attach { sectors: 64, node: "b".to_owned(), displaced: None };
    Record { volume, seq: Seq(7), epoch: Epoch(2), nonce: Nonce([2; 16]), unix_ms: 0, body }.encode()
}

/// Reads the position of a log with the bytes `sent`, one after another, advancing with each wait; returns
/// the writer's event and the number of waits. `None` if it waits after the last.
fn read(sent: Vec<Vec<u8>>) -> (Option<Event>, usize) {
    let objects = Arc::new(MemoryStore::new());
    let _created = objects.create(KEY, Bytes::new()).now_or_never().unwrap().unwrap();
    let rest = Mutex::new(sent.into_iter());
    let next = {
        let objects = Arc::clone(&objects);
        move |_wait| match rest.lock().next() {
            Some(bytes) => objects.corrupt(KEY, |there| *there = bytes),
            None => panic!("no further wait is due"),
        }
    };
    next(0);
    let time = ScriptedTime::new(next);
    let background =
        Background::new("v".parse().unwrap(), (StoreKey(0), objects), NoSides, time, uploads::pools());
    let event = background.perform(Work::ReadRecord { seq: Seq(7) }).now_or_never();
    let event = event.map(|(event, _tidy)| event);
    let waits = background.time.waits.lock().len();
    (event, waits)
}

fn found(event: Option<Event>) -> Option<Vec<u8>> {
    let Some(Event::RecordRead { seq: Seq(7), bytes }) = event else { panic!("{event:?}") };
    bytes
}

/// Regression: a page with status 200 instead of the next record fenced the writer: all its I/O failed, and
/// its data was preserved but not served.
#[test]
fn a_page_in_place_of_a_record_fences_no_writer() {
    let page = b"<html>maintenance</html>".to_vec();
    let (event, waits) = read(vec![page.clone(), page.clone(), Vec::new(), page, record()]);
    assert_eq!((found(event), waits), (Some(record()), 4));
}

#[test]
fn a_record_damaged_in_two_reads_is_believed() {
    let mut damaged = record();
    damaged[40] ^= 1;
    let (event, waits) = read(vec![damaged.clone(), damaged.clone()]);
    assert_eq!((found(event), waits), (Some(damaged.clone()), 1));
    let (event, waits) = read(vec![damaged, record()]);
    assert_eq!((found(event), waits), (Some(record()), 1), "it was damaged on the way");
}

#[test]
fn a_whole_record_is_believed_at_once() {
    let (event, waits) = read(vec![record()]);
    assert_eq!((found(event), waits), (Some(record()), 0));
}

/// An existing root is compared: it may belong to another history of the bucket.
#[test]
fn a_root_counts_as_stored_if_its_bytes_match() {
    let objects = Arc::new(MemoryStore::new());
    let store_root = |bytes: &[u8]| {
        let time = ScriptedTime::new(|_wait| {});
        let store = (StoreKey(0), Arc::clone(&objects) as Arc<dyn ObjectStore>);
        let background = Background::new("v".parse().unwrap(), store, NoSides, time, uploads::pools());
        let work = Work::StoreRoot { seq: Seq(7), bytes: bytes.to_vec() };
        background.perform(work).now_or_never().map(|(event, _tidy)| event)
    };
    assert!(matches!(store_root(b"own"), Some(Event::RootStored)));
    assert!(matches!(store_root(b"own"), Some(Event::RootStored)), "a successor repeats it");
    for other in [&b"any"[..], b"of", b"longer"] {
        assert!(matches!(store_root(other), Some(Event::RootBarred)), "{other:?}");
    }
    objects.fail_next(Verb::Get, Fault::LostRequest);
    assert!(matches!(store_root(b"own"), Some(Event::RootStored)), "it asks again");
}
