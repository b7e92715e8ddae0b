//! One bucket and prefix, with the operations on it.

use std::{fmt, ops::Range};

use crate::{
    availability::Availability, config::S3Config, hedging::Hedging, permits::Permits, proxies::Proxy,
};
use async_trait::async_trait;
use aws_sdk_s3::Client;
use bytes::Bytes;
use holdfast_objects::{
    CreateError, Created, Folders, ObjectStore, Page, Parts, RequestCounts, RequestMeter, RetryPolicy,
    SegmentError, StoreError, Suffix, UnfinishedUpload, check_key,
};

/// Adaptation of a node's requests to one store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreAdaptation {
    /// Maximum requests in flight now.
    pub max_in_flight: u64,
    /// Reads sent a second time because the response was late, since the store was connected.
    pub hedged_reads: u64,
}

/// An object store in one bucket. Share it in an `Arc`: it holds connections and permits.
pub struct S3Store {
    pub(crate) client: Client,
    pub(crate) config: S3Config,
    pub(crate) permits: Permits,
    pub(crate) hedging: Hedging,
    pub(crate) requests: RequestMeter,
    pub(crate) retry: RetryPolicy,
    pub(crate) availability: Availability,
    /// Proxy to the server.
    pub(crate) proxy: Option<Proxy>,
    root: String,
}

impl S3Store {
    pub(crate) fn new(client: Client, config: S3Config, proxy: Option<Proxy>) -> Self {
        let root = if config.prefix.is_empty() { String::new() } else { format!("{}/", config.prefix) };
        Self {
            client,
            permits: Permits::new(config.max_concurrency),
            hedging: Hedging::default(),
            requests: RequestMeter::default(),
            retry: RetryPolicy { deadline: config.timeouts.deadline, ..RetryPolicy::REPEATABLE },
            availability: Availability::default(),
            proxy,
            root,
            config,
        }
    }

    /// Returns the counters and latencies of all attempts, for metrics.
    pub fn requests(&self) -> &RequestMeter {
        &self.requests
    }

    /// Returns the number of requests sent so far.
    pub fn counts(&self) -> RequestCounts {
        self.requests.counts()
    }

    /// Returns the adaptation to the store's answers, for metrics.
    pub fn adaptation(&self) -> StoreAdaptation {
        StoreAdaptation { max_in_flight: self.permits.limit() as u64, hedged_reads: self.hedging.count() }
    }

    /// Returns the common prefix of the store's keys in the bucket: empty, or the prefix and `/`.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Returns the key in the bucket for a key of the store.
    pub(crate) fn full_key(&self, key: &str) -> Result<String, StoreError> {
        check_key(key)?;
        Ok(format!("{}{key}", self.root))
    }
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Store").field("config", &self.config).finish_non_exhaustive()
    }
}

#[async_trait]
impl ObjectStore for S3Store {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.get_object(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.get_object_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        self.get_object_suffix(key, len).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.create_object(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.put_segment_object(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.list_objects(prefix, start_after, limit).await
    }

    async fn list_folders(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        self.list_common_prefixes(prefix, from, limit).await
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.delete_objects(keys).await
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.list_unfinished(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.abort_unfinished(upload).await
    }
}
