//! A volume's objects on the reference store.

use holdfast_objects::{Fault, MemoryStore, Verb};

use super::*;

const SIZE: u64 = 1 << 30;

fn volume() -> VolumeId {
    "8f14e45f-ceea-467f-a1d4-91e2f1f0a9c4".parse().expect("a volume id")
}

async fn keys(store: &MemoryStore) -> Vec<String> {
    let page = store.list("volumes/", None, PAGE).await.expect("a page");
    page.entries.into_iter().map(|entry| entry.key).collect()
}

async fn put(store: &MemoryStore, key: &ObjectKey, bytes: Vec<u8>) {
    let _created = store.create(&key.to_string(), Bytes::from(bytes)).await.expect("created");
}

#[tokio::test]
async fn creating_a_volume_is_one_put() {
    let store = MemoryStore::new();
    provision(&store, &volume(), SIZE, 5).await.expect("provisioned");
    let counts = store.counts();
    assert_eq!((counts.put, counts.total()), (1, 1));
    let bytes = store.get(&log_key(&volume(), Seq::FIRST), MAX_RECORD_BYTES).await.expect("the record");
    let record = Record::decode(&bytes).expect("a record");
    assert_eq!(record.body, Body::Create { sectors: SIZE / 4096 });
    assert_eq!(record.volume, volume());
}

#[tokio::test]
async fn creating_it_again_meets_its_own_success() {
    let store = MemoryStore::new();
    provision(&store, &volume(), SIZE, 5).await.expect("provisioned");
    provision(&store, &volume(), SIZE, 5).await.expect("provisioned again");
    let other = provision(&store, &volume(), 2 * SIZE, 5).await;
    assert!(matches!(other, Err(VolumeFailure::Foreign { .. })), "{other:?}");
}

#[tokio::test]
async fn a_lost_answer_is_settled_by_reading() {
    let store = MemoryStore::new();
    store.fail_next(Verb::Put, Fault::LostReply);
    provision(&store, &volume(), SIZE, 5).await.expect("provisioned");
    assert_eq!(keys(&store).await.len(), 1);
}

#[tokio::test]
async fn removal_leaves_the_tombstone_at_the_end_of_the_log_and_nothing_else() {
    let store = MemoryStore::new();
    provision(&store, &volume(), SIZE, 5).await.expect("provisioned");
    let attach =
        control_record(&volume(), Seq(2), 6, Body::Attach { sectors: SIZE / 4096, node: "a".to_owned() });
    put(&store, &ObjectKey::Log(volume(), Seq(2)), attach.encode()).await;
    put(&store, &ObjectKey::Checkpoint(volume(), Seq(2)), vec![1]).await;
    for n in 0..3 {
        put(&store, &ObjectKey::Segment(volume(), holdfast_types::SegmentId::new(n, [0; 10])), vec![1]).await;
    }
    let neighbour: VolumeId = format!("{}0", volume()).parse().expect("a volume id");
    provision(&store, &neighbour, SIZE, 5).await.expect("provisioned");

    remove(&store, &volume(), 9).await.expect("removed");
    let left = keys(&store).await;
    assert_eq!(left, [log_key(&volume(), Seq(3)), log_key(&neighbour, Seq::FIRST)]);
    let bytes = store.get(&left[0], MAX_RECORD_BYTES).await.expect("the tombstone");
    assert_eq!(Record::decode(&bytes).expect("a record").body, Body::Delete);

    remove(&store, &volume(), 9).await.expect("removed again");
    assert_eq!(keys(&store).await, left);
}

#[tokio::test]
async fn removal_of_what_was_never_created_leaves_a_tombstone_that_stops_a_late_create() {
    let store = MemoryStore::new();
    remove(&store, &volume(), 9).await.expect("removed");
    let late = provision(&store, &volume(), SIZE, 5).await;
    assert!(matches!(late, Err(VolumeFailure::Foreign { .. })), "{late:?}");
}

#[tokio::test]
async fn a_damaged_last_record_does_not_stop_removal() {
    let store = MemoryStore::new();
    provision(&store, &volume(), SIZE, 5).await.expect("provisioned");
    put(&store, &ObjectKey::Log(volume(), Seq(2)), b"not a record".to_vec()).await;
    remove(&store, &volume(), 9).await.expect("removed");
    assert_eq!(keys(&store).await, [log_key(&volume(), Seq(3))]);
}

#[tokio::test]
async fn a_store_that_is_away_is_named_unavailable() {
    let store = MemoryStore::new();
    store.go_away();
    let failure = provision(&store, &volume(), SIZE, 5).await.expect_err("the store is away");
    assert_eq!(failure.retry(), crate::requeue::Retry::Later);
}
