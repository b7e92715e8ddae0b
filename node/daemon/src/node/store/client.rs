//! The client of a store for one configuration.

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_objects::{
    CreateError, Created, Folders, ObjectStore, Page, Parts, RequestCounts, SegmentError, StoreError, Suffix,
    UnfinishedUpload,
};
use holdfast_s3::{InvalidConfig, ProbeFailure, Probed, S3Store, StoreAdaptation};
use tokio::sync::OnceCell;

use crate::node::store::record::StoreRecord;

/// A client for one configuration, connected by its first request.
#[derive(Debug)]
pub(crate) struct StoreClient {
    record: StoreRecord,
    connected: OnceCell<S3Store>,
    probed: OnceCell<Probed>,
}

impl StoreClient {
    pub(crate) fn new(record: StoreRecord) -> Self {
        Self { record, connected: OnceCell::new(), probed: OnceCell::new() }
    }

    /// Returns the record that it was created from.
    pub(crate) fn record(&self) -> &StoreRecord {
        &self.record
    }

    /// Returns the connection. Sends nothing.
    ///
    /// # Errors
    /// A field that is invalid here.
    pub(crate) async fn connect(&self) -> Result<&S3Store, InvalidConfig> {
        // Boxed, like the probe: their futures are large, and part of every future that sends requests.
        self.connected.get_or_try_init(|| Box::pin(S3Store::connect((&self.record).into()))).await
    }

    /// Probes the bucket's required features, above all create-once, unless this client already did.
    ///
    /// # Errors
    /// The missing feature; the next call probes the bucket again.
    pub(crate) async fn probe(&self, store: &S3Store) -> Result<(), ProbeFailure> {
        self.probed.get_or_try_init(|| Box::pin(store.probe())).await.map(|_probed| ())
    }

    /// Returns the number of requests sent so far.
    pub(crate) fn counts(&self) -> RequestCounts {
        self.connected.get().map(S3Store::counts).unwrap_or_default()
    }

    /// Returns the adaptation to the store's answers; `None` before it is connected.
    pub(crate) fn adaptation(&self) -> Option<StoreAdaptation> {
        self.connected.get().map(S3Store::adaptation)
    }

    /// Returns the total duration of requests so far.
    pub(crate) fn time(&self) -> std::time::Duration {
        self.connected.get().map(|store| store.requests().time()).unwrap_or_default()
    }

    async fn store(&self) -> Result<&S3Store, StoreError> {
        self.connect().await.map_err(|invalid| StoreError::Unavailable(invalid.into()))
    }
}

#[async_trait]
impl ObjectStore for StoreClient {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.store().await?.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.store().await?.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        self.store().await?.get_suffix(key, len).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.store().await.map_err(CreateError::Failed)?.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.store().await?.put_segment(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.store().await?.list(prefix, start_after, limit).await
    }

    async fn list_folders(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        self.store().await?.list_folders(prefix, from, limit).await
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.store().await?.delete(keys).await
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.store().await?.unfinished_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.store().await?.abort_upload(upload).await
    }
}
