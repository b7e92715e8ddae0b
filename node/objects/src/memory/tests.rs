use std::{sync::Arc, time::Duration};

use super::*;
use crate::{Gate, ReadyParts};

const KEY: &str = "volumes/v1/log/00000000000000000001";
const BODY: Bytes = Bytes::from_static(b"record");

#[tokio::test]
async fn a_lost_reply_is_ambiguous_and_the_object_is_there() {
    let store = MemoryStore::new();
    store.fail_next(Verb::Put, Fault::LostReply);
    let outcome = store.create(KEY, BODY).await;
    assert!(matches!(outcome, Err(CreateError::Ambiguous(_))), "{outcome:?}");
    assert_eq!(store.get(KEY, 64).await.unwrap(), BODY);
}

#[tokio::test]
async fn a_lost_request_is_ambiguous_and_the_key_is_free() {
    let store = MemoryStore::new();
    store.fail_next(Verb::Put, Fault::LostRequest);
    let outcome = store.create(KEY, BODY).await;
    assert!(matches!(outcome, Err(CreateError::Ambiguous(_))), "{outcome:?}");
    assert_eq!(store.get(KEY, 64).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
}

#[tokio::test]
async fn an_error_before_leaves_no_doubt() {
    let store = MemoryStore::new();
    store.fail_next(Verb::Put, Fault::Before(ErrorKind::Throttled));
    let outcome = store.create(KEY, BODY).await.unwrap_err();
    assert!(matches!(&outcome, CreateError::Failed(_)), "{outcome:?}");
    assert_eq!(outcome.kind(), ErrorKind::Throttled);
    assert!(store.keys().is_empty());
}

#[tokio::test]
async fn an_unreachable_store_fails_every_request_until_it_is_healed() {
    let store = MemoryStore::new();
    store.go_away();
    assert_eq!(store.get(KEY, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(store.list("volumes/", None, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    store.heal();
    assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
}

#[tokio::test]
async fn a_held_upload_waits_for_the_gate() {
    let store = MemoryStore::new();
    let gate = Gate::new();
    store.fail_always(Verb::Put, Fault::Hold(gate.clone()));
    let upload = tokio::spawn({
        let store: Arc<dyn ObjectStore> = Arc::new(store.clone());
        async move { store.create(KEY, BODY).await }
    });
    gate.arrival().await;
    assert!(store.keys().is_empty());
    assert_eq!(store.counts().put, 1);
    gate.release();
    assert_eq!(upload.await.unwrap().unwrap(), Created);
}

#[tokio::test(start_paused = true)]
async fn a_delay_takes_its_time() {
    let store = MemoryStore::new();
    store.fail_next(Verb::Get, Fault::Delay(Duration::from_secs(30)));
    let begun = tokio::time::Instant::now();
    assert_eq!(store.get(KEY, 1).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(begun.elapsed(), Duration::from_secs(30));
}

#[tokio::test]
async fn every_request_is_counted_once() {
    let store = MemoryStore::new();
    assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
    store.put_segment("volumes/v1/segments/one", &mut ReadyParts::from(BODY)).await.unwrap();
    store.get_range(KEY, 0..1).await.unwrap();
    store.get_suffix(KEY, 1).await.unwrap();
    store.list("", None, 10).await.unwrap();
    store.delete(&[KEY]).await.unwrap();
    let due = RequestCounts { put: 2, get: 2, list: 1, delete: 1, ..RequestCounts::default() };
    assert_eq!(store.counts(), due);
}

#[tokio::test]
async fn a_key_below_another_key_is_refused() {
    let store = MemoryStore::new();
    assert_eq!(store.create("a/b", BODY).await.unwrap(), Created);
    for clash in ["a", "a/b/c"] {
        assert_eq!(store.create(clash, BODY).await.unwrap_err().kind(), ErrorKind::Invalid, "{clash}");
    }
    assert_eq!(store.create("a/b-c", BODY).await.unwrap(), Created);
}
