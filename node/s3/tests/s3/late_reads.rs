//! Times of reads from a store that sometimes answers late, with and without a second request. `cargo e2e
//! bench distant-store` runs it, optimised.

use std::{
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures::future::join_all;
use holdfast_objects::{Created, ObjectStore};
use hyper::Method;

use crate::server::{PlannedFault, Server};

const KEY: &str = "volumes/v1/segments/a";
const BODY: Bytes = Bytes::from_static(&[7; 4096]);
const READERS: u32 = 16;
/// Reads of each reader. The first ones, from which the client learns, are not measured.
const READS: u32 = 500;
const UNMEASURED: u32 = 100;
/// The store's time for a request, and for one in [`LATE_EVERY`].
const ROUND_TRIP_MS: u64 = 20;
const LATE: Duration = Duration::from_secs(1);
const LATE_EVERY: u32 = 100;

/// Prints percentiles of reads of a range, which are hedged, and of a whole object, which are not.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures an optimised build: cargo e2e bench distant-store"]
async fn reads_of_a_store_that_is_sometimes_late() {
    let server = Server::start().await;
    server.round_trip_ms.store(ROUND_TRIP_MS, Ordering::Relaxed);
    for is_hedged in [true, false] {
        let store = server.store().await;
        let key = format!("{KEY}-{is_hedged}");
        assert_eq!(store.create(&key, BODY).await.unwrap(), Created);
        let reader = async |reader: u32| {
            let mut times = Vec::new();
            for read in 0..READS {
                if (reader * READS + read) % LATE_EVERY == reader {
                    server.plan_fault(Method::GET, PlannedFault::Late(LATE));
                }
                let begun = Instant::now();
                let got = if is_hedged {
                    store.get_range(&key, 0..4096).await
                } else {
                    store.get(&key, 4096).await
                };
                assert_eq!(got.unwrap(), BODY);
                times.push(begun.elapsed());
            }
            times.split_off(UNMEASURED as usize)
        };
        let mut times = join_all((0..READERS).map(reader)).await.concat();
        times.sort_unstable();
        let [p50, p99, p999] =
            [0.5, 0.99, 0.999].map(|part| times[(times.len() as f64 * part) as usize].as_secs_f64() * 1e3);
        let second = store.adaptation().hedged_reads as f64 / f64::from(READERS * READS) * 100.0;
        println!(
            "{{\"is_hedged\":{is_hedged},\"p50_ms\":{p50:.1},\"p99_ms\":{p99:.1},\"p999_ms\":{p999:.1},\
             \"second_requests_percent\":{second:.2}}}"
        );
    }
}
