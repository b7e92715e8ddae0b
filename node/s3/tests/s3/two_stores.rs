//! Two stores of one process, of which one throttles or does not answer.

use std::time::Duration;

use bytes::Bytes;
use futures::future::{join, join_all};
use holdfast_objects::{Created, ObjectStore, ReadyParts};
use holdfast_s3::{S3Config, S3Store};
use hyper::Method;

use crate::server::{PlannedFault, Server};

const KEY: &str = "volumes/v1/log/00000000000000000001";
const BODY: Bytes = Bytes::from_static(b"record");
/// Permits of a store here: 6 for reads and log records, 4 for small segments, 2 for large ones.
const PERMITS: u64 = 12;
/// More requests of each lane than it has permits.
const REQUESTS: usize = 16;
const TOO_LATE: Duration = Duration::from_secs(600);
/// Maximum time of the requests to the good store: much less than that of one without an answer.
const LIMIT: Duration = Duration::from_secs(15);

/// A store that has [`KEY`].
async fn connect(server: &Server) -> S3Store {
    let store =
        S3Store::connect(S3Config { max_concurrency: PERMITS as usize, ..server.config() }).await.unwrap();
    assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
    store
}

/// Sends reads, small and large segments at the same time.
async fn use_all_lanes(store: &S3Store) {
    let reads = join_all((0..REQUESTS).map(|_| async { store.get(KEY, 64).await.unwrap() }));
    let large = Bytes::from(vec![1; (1 << 20) + 1]);
    let segments = join_all((0..2 * REQUESTS).map(|number| {
        let body = if number % 2 == 0 { BODY } else { large.clone() };
        async move {
            let key = format!("volumes/v1/segments/{number}");
            store.put_segment(&key, &mut ReadyParts::from(body)).await.unwrap();
        }
    }));
    join(reads, segments).await;
}

/// Returns the number of requests sent so far.
fn sent(store: &S3Store) -> u64 {
    let counts = store.counts();
    counts.get + counts.put
}

/// Leaves the next requests of all lanes without an answer.
fn leave_unanswered(server: &Server) {
    for method in [Method::GET, Method::PUT] {
        for _ in 0..2 * REQUESTS {
            server.plan_fault(method.clone(), PlannedFault::Late(TOO_LATE));
        }
    }
}

/// Leaves requests without an answer, and waits until as many are in flight as the store has permits.
async fn use_all_permits(server: &Server, store: &S3Store) {
    leave_unanswered(server);
    let before = sent(store);
    let in_flight = async {
        while sent(store) - before < PERMITS {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = use_all_lanes(store) => panic!("requests were answered"),
        reached = tokio::time::timeout(LIMIT, in_flight) => reached.expect("the lanes have all permits"),
    }
}

#[tokio::test]
async fn a_throttling_store_lowers_its_own_limit_only() {
    let (throttling, other) = (Server::start().await, Server::start().await);
    let (bad, good) = (connect(&throttling).await, connect(&other).await);
    for method in [Method::GET, Method::PUT] {
        throttling.plan_fault(method, PlannedFault::SlowDown(0));
    }
    assert_eq!(bad.get(KEY, 64).await.unwrap(), BODY);
    bad.put_segment("volumes/v1/segments/a", &mut ReadyParts::from(BODY)).await.unwrap();
    let limits = [&bad, &good].map(|store| store.adaptation().max_in_flight);
    assert_eq!(limits, [PERMITS - 2, PERMITS], "one permit less of each lane that was throttled");
    use_all_permits(&other, &good).await;
}

#[tokio::test]
async fn an_unresponsive_store_holds_its_own_permits_only() {
    let (silent, other) = (Server::start().await, Server::start().await);
    let (bad, good) = (connect(&silent).await, connect(&other).await);
    leave_unanswered(&silent);
    let before = sent(&bad);
    let meanwhile = async {
        while sent(&bad) - before < PERMITS {
            tokio::task::yield_now().await;
        }
        use_all_lanes(&good).await;
        use_all_permits(&other, &good).await;
    };
    tokio::select! {
        () = use_all_lanes(&bad) => panic!("the silent store answered"),
        done = tokio::time::timeout(LIMIT, meanwhile) => done.expect("the other store has its permits"),
    }
}
