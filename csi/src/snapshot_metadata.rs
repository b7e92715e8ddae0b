//! The CSI SnapshotMetadata service: the blocks of a snapshot, and the blocks changed between two.
//!
//! Owns: the responses, as streams of byte ranges.
//! Does not own: any state except a cache of indexes; finding changes, which `holdfast_log` does from the
//! indexes in the object store. Data is not read.
//! Invariants: changed ranges are never omitted. Unchanged ranges may be included if a merge moved them. All
//! requests share one cache, and only a few are answered at once: the memory does not depend on the clients.
//! On failure: the stream ends with a status. The client resumes at the byte after the last range.

mod ranges;
mod source;

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use holdfast_crds::VolumeSnapshot;
use holdfast_log::Indexes;
use holdfast_proto::csi::v1::{
    BlockMetadata, BlockMetadataType, GetMetadataAllocatedRequest, GetMetadataAllocatedResponse,
    GetMetadataDeltaRequest, GetMetadataDeltaResponse, snapshot_metadata_server,
};
use holdfast_types::{Chunk, SECTOR_BYTES};
use kube::Client;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::controller::objects::Objects;
use crate::requests::{RequestKind, Requests};
use ranges::{RangeRequest, Ranges};
use source::BlockSource;

/// Messages prepared ahead of the client.
const AHEAD: usize = 4;
/// Number of chunks of 128 MiB whose indexes are read in parallel.
const CHUNKS_AT_ONCE: usize = 8;
/// Number of requests that are answered at the same time; further ones wait.
const REQUESTS_AT_ONCE: usize = 8;

/// The SnapshotMetadata service.
#[derive(Clone)]
pub(crate) struct SnapshotMetadata {
    client: Client,
    snapshots: Objects<VolumeSnapshot>,
    requests: Requests,
    indexes: Arc<Indexes>,
    permits: Arc<Semaphore>,
}

/// One message of a response.
struct ResponseMessage {
    capacity: i64,
    ranges: Vec<BlockMetadata>,
}

/// Error after the client has disconnected.
const GONE: &str = "the client ended the request";

impl SnapshotMetadata {
    /// Creates the service over the API server of `client` and the object stores that it names.
    pub(crate) fn new(client: Client, requests: Requests) -> Self {
        Self {
            snapshots: Objects::new(client.clone()),
            client,
            requests,
            indexes: source::indexes(),
            permits: Arc::new(Semaphore::new(REQUESTS_AT_ONCE)),
        }
    }

    /// Answers a request in its own task, which ends with the client.
    fn answer<T: Send + 'static>(
        &self,
        kind: RequestKind,
        target: String,
        base: Option<String>,
        asked: Result<RangeRequest, Status>,
        message: fn(ResponseMessage) -> T,
    ) -> Response<ReceiverStream<Result<T, Status>>> {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let service = self.clone();
        tokio::spawn(async move {
            let answer = async {
                let asked = asked?;
                let _permit = service.permits.acquire().await.expect("no code closes the semaphore");
                let indexes = Arc::clone(&service.indexes);
                let (client, snapshots) = (&service.client, &service.snapshots);
                let source = source::open(client, snapshots, indexes, base.as_deref(), &target).await?;
                send_ranges(source, asked, |told| {
                    let sent = sender.send(Ok(message(told)));
                    async { sent.await.map_err(|_closed| Status::cancelled(GONE)) }
                })
                .await
            };
            let answered = tokio::select! {
                answered = service.requests.answer(kind, &target, answer) => answered,
                () = sender.closed() => Err(Status::cancelled(GONE)),
            };
            if let Err(status) = answered {
                // Unneeded if the client has disconnected.
                let _sent = sender.send(Err(status)).await;
            }
        });
        Response::new(ReceiverStream::new(receiver))
    }
}

/// Sends the ranges of `source` from the requested byte on, in at least one message.
async fn send_ranges<F: Future<Output = Result<(), Status>>>(
    source: BlockSource,
    asked: RangeRequest,
    send: impl Fn(ResponseMessage) -> F,
) -> Result<(), Status> {
    let sectors = source.changes.sectors();
    let capacity = i64::try_from(sectors * SECTOR_BYTES).unwrap_or(i64::MAX);
    let first = asked.first_sector(sectors)?;
    let chunks: Vec<Chunk> = source.changes.chunks(first).collect();
    let source = Arc::new(source);
    let in_chunk = |chunk| {
        let source = Arc::clone(&source);
        async move { source.in_chunk(chunk).await }
    };
    let mut found = stream::iter(chunks).map(in_chunk).buffered(CHUNKS_AT_ONCE);
    let (mut ranges, mut is_first) = (Ranges::new(first, asked.max_results()), true);
    while let Some(in_chunk) = found.try_next().await? {
        for range in in_chunk {
            if let Some(ranges) = ranges.push(range) {
                is_first = false;
                send(ResponseMessage { capacity, ranges }).await?;
            }
        }
    }
    if let Some(ranges) = ranges.end(is_first) {
        send(ResponseMessage { capacity, ranges }).await?;
    }
    Ok(())
}

#[tonic::async_trait]
impl snapshot_metadata_server::SnapshotMetadata for SnapshotMetadata {
    type GetMetadataAllocatedStream = ReceiverStream<Result<GetMetadataAllocatedResponse, Status>>;
    type GetMetadataDeltaStream = ReceiverStream<Result<GetMetadataDeltaResponse, Status>>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let GetMetadataAllocatedRequest { snapshot_id, starting_offset, max_results, secrets: _ } =
            request.into_inner();
        let asked = RangeRequest::new(starting_offset, max_results);
        let kind = RequestKind::GetMetadataAllocated;
        Ok(self.answer(kind, snapshot_id, None, asked, |told| GetMetadataAllocatedResponse {
            block_metadata_type: BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes: told.capacity,
            block_metadata: told.ranges,
        }))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let GetMetadataDeltaRequest {
            base_snapshot_id,
            target_snapshot_id,
            starting_offset,
            max_results,
            secrets: _,
        } = request.into_inner();
        let asked = RangeRequest::new(starting_offset, max_results);
        let kind = RequestKind::GetMetadataDelta;
        Ok(self.answer(kind, target_snapshot_id, Some(base_snapshot_id), asked, |told| {
            GetMetadataDeltaResponse {
                block_metadata_type: BlockMetadataType::VariableLength.into(),
                volume_capacity_bytes: told.capacity,
                block_metadata: told.ranges,
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use kube::client::Body;

    use super::*;

    /// Regression, found in review: the memory grew with each request, and four backups reached the limit.
    #[tokio::test(start_paused = true)]
    async fn requests_beyond_the_limit_wait_for_earlier_ones() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let silent = tower::service_fn(move |_request: hyper::Request<Body>| {
            counter.fetch_add(1, Ordering::Relaxed);
            pending::<Result<hyper::Response<Body>, Infallible>>()
        });
        let service = SnapshotMetadata::new(Client::new(silent, "default"), Requests::default());
        let get = || {
            let asked = RangeRequest::new(0, 0);
            service.answer(RequestKind::GetMetadataAllocated, "backup".to_owned(), None, asked, |told| told)
        };
        let mut answers: Vec<_> = (0..=REQUESTS_AT_ONCE).map(|_| get()).collect();
        // Less than the time limit of a request to the API server.
        let moment = Duration::from_secs(1);
        tokio::time::sleep(moment).await;
        assert_eq!(asked.load(Ordering::Relaxed), REQUESTS_AT_ONCE);
        drop(answers.remove(0));
        tokio::time::sleep(moment).await;
        assert_eq!(asked.load(Ordering::Relaxed), REQUESTS_AT_ONCE + 1, "its client has disconnected");
    }
}
