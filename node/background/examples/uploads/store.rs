//! A simulated remote object store: each request takes a round trip, plus the transfer time of its body on
//! its own connection. It counts and discards its input.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_objects::{
    CreateError, Created, ObjectStore, Page, Parts, SegmentError, StoreError, Suffix, UnfinishedUpload,
};
use tokio::sync::{Semaphore, SetOnce};

/// Parallel connections for segments, as many as the S3 client opens for them.
const CONNECTIONS: usize = 16;

/// Counters of a store, and its timing.
#[derive(Debug)]
pub(crate) struct DistantStore {
    round_trip: Duration,
    /// Bandwidth of one connection.
    bytes_per_second: f64,
    connections: Semaphore,
    requests: AtomicU64,
    sent_bytes: AtomicU64,
}

impl DistantStore {
    pub(crate) fn new(round_trip: Duration, bytes_per_second: f64) -> Self {
        Self {
            round_trip,
            bytes_per_second,
            connections: Semaphore::new(CONNECTIONS),
            requests: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the number of requests, and their body bytes, so far.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.requests.load(Ordering::Relaxed), self.sent_bytes.load(Ordering::Relaxed))
    }

    /// Simulates one request.
    async fn request(&self, body_bytes: usize) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(body_bytes as u64, Ordering::Relaxed);
        let sending = Duration::from_secs_f64(body_bytes as f64 / self.bytes_per_second);
        tokio::time::sleep(self.round_trip + sending).await;
    }

    /// Sends a part, which is in memory until then.
    async fn send(&self, part: Bytes) {
        let _connection = self.connections.acquire().await.expect("the semaphore is never closed");
        self.request(part.len()).await;
    }

    /// Sends the parts, with as many in parallel as may be in memory, once the upload is started.
    async fn send_all(
        &self,
        first: Bytes,
        parts: &mut dyn Parts,
        started: &SetOnce<()>,
    ) -> Result<(), SegmentError> {
        let send = |part| async {
            started.wait().await;
            self.send(part).await;
        };
        let most = parts.max_at_once();
        let mut sending = FuturesUnordered::from_iter([send(first)]);
        let mut is_last = false;
        loop {
            if is_last || sending.len() >= most {
                if sending.next().await.is_none() {
                    break;
                }
                continue;
            }
            let mut making = parts.next();
            let made = loop {
                tokio::select! {
                    Some(()) = sending.next() => {}
                    made = &mut making => break made?,
                }
            };
            is_last = made.is_last;
            sending.push(send(made.bytes));
        }
        Ok(())
    }

    /// Stores a whole object in one request.
    pub(crate) async fn put_whole(&self, object: Bytes) {
        self.send(object).await;
    }
}

fn unused() -> StoreError {
    StoreError::Invalid { what: "request", value: String::new(), rule: "an upload sends no such request" }
}

#[async_trait]
impl ObjectStore for DistantStore {
    async fn get(&self, _key: &str, _max_bytes: u64) -> Result<Bytes, StoreError> {
        Err(unused())
    }

    async fn get_range(&self, _key: &str, _range: Range<u64>) -> Result<Bytes, StoreError> {
        Err(unused())
    }

    async fn get_suffix(&self, _key: &str, _len: u64) -> Result<Suffix, StoreError> {
        Err(unused())
    }

    async fn create(&self, _key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.request(body.len()).await;
        Ok(Created)
    }

    /// Works like the S3 client (`node/s3/src/put_segment.rs`).
    async fn put_segment(&self, _key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        let first = parts.next().await?;
        if first.is_last {
            self.send(first.bytes).await;
            return Ok(());
        }
        let started = SetOnce::new();
        let start = async {
            self.request(0).await;
            started.set(()).expect("it is started once");
        };
        let ((), sent) = tokio::join!(start, self.send_all(first.bytes, parts, &started));
        sent?;
        self.request(0).await;
        Ok(())
    }

    async fn list(
        &self,
        _prefix: &str,
        _start_after: Option<&str>,
        _limit: usize,
    ) -> Result<Page, StoreError> {
        Err(unused())
    }

    async fn delete(&self, _keys: &[&str]) -> Result<(), StoreError> {
        Err(unused())
    }

    async fn unfinished_uploads(&self, _prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        Err(unused())
    }

    async fn abort_upload(&self, _upload: &UnfinishedUpload) -> Result<(), StoreError> {
        Err(unused())
    }
}
