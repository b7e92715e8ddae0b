//! An in-process S3 server: real HTTP on loopback, real signatures, and faults on demand.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use aws_sdk_s3::primitives::{DateTime, DateTimeFormat};
use bytes::Bytes;
use futures::{StreamExt, stream};
use holdfast_s3::{S3Config, S3Credentials, S3Store, Timeouts};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::TokioIo;
use s3s::{
    Body, S3,
    auth::SimpleAuth,
    dto::StreamingBlob,
    service::{S3Service, S3ServiceBuilder},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use crate::backend::{BUCKET, Backend};

/// A fault of one request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PlannedFault {
    /// Responds with this status and code; has no effect.
    Answer(u16, &'static str),
    /// Responds with this status, code and text; has no effect.
    Said(u16, &'static str, &'static str),
    /// Throttles with a retry delay of this many seconds; has no effect.
    SlowDown(u64),
    /// Responds like a proxy: this status and body, no S3 error code; has no effect.
    Proxy(u16, &'static str),
    /// The same before the request's body is read.
    EarlyAnswer(u16, &'static str),
    /// Closes the connection; has no effect.
    LostRequest,
    /// Takes effect, and closes the connection without a response.
    LostReply,
    /// Delays the response by this much.
    Late(Duration),
    /// Stalls the response's body after its first byte, and keeps the connection.
    StalledBody,
    /// Closes the connection after the first byte of the response's body.
    TornBody,
}

/// State that each request needs.
#[derive(Clone)]
struct Parts {
    backend: Arc<Backend>,
    faults: PlannedFaults,
    in_flight: Arc<InFlight>,
    round_trip_ms: Arc<AtomicU64>,
    uplink: Arc<Uplink>,
}

/// The link that all requests' bodies share.
#[derive(Default)]
pub(crate) struct Uplink {
    /// Its throughput; 0: unlimited.
    pub(crate) bytes_per_ms: AtomicU64,
    /// Bodies are sent in pieces, one after the other.
    turn: tokio::sync::Mutex<()>,
}

impl Uplink {
    /// Waits as long as a body of `bytes` takes.
    async fn pass(&self, bytes: u64) {
        const PIECE_BYTES: u64 = 8 << 10;
        let bytes_per_ms = self.bytes_per_ms.load(Ordering::Relaxed);
        let mut left = if bytes_per_ms == 0 { 0 } else { bytes };
        while left > 0 {
            let piece = left.min(PIECE_BYTES);
            let _turn = self.turn.lock().await;
            tokio::time::sleep(Duration::from_millis(piece / bytes_per_ms)).await;
            left -= piece;
        }
    }
}

#[derive(Clone, Default)]
struct PlannedFaults(Arc<Mutex<VecDeque<(Method, PlannedFault)>>>);

/// Requests currently in flight, and their peak.
#[derive(Default)]
struct InFlight {
    now: AtomicUsize,
    peak: AtomicUsize,
}

/// The running server; it ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) backend: Arc<Backend>,
    faults: PlannedFaults,
    in_flight: Arc<InFlight>,
    /// Wait before each request takes effect.
    pub(crate) round_trip_ms: Arc<AtomicU64>,
    pub(crate) uplink: Arc<Uplink>,
    _accept: JoinSet<()>,
}

/// Key id known to the client and the server.
pub(crate) const KEY_ID: &str = "holdfast";
pub(crate) const SECRET: &str = "holdfast-secret";

impl Server {
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    pub(crate) async fn start_with(tls: Option<TlsAcceptor>) -> Self {
        let backend = Arc::new(Backend::default());
        let mut builder = S3ServiceBuilder::new(Shared(backend.clone()));
        builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let faults = PlannedFaults::default();
        let mut accept = JoinSet::new();
        let (in_flight, round_trip_ms) = (Arc::new(InFlight::default()), Arc::default());
        let uplink = Arc::<Uplink>::default();
        let parts = Parts {
            backend: Arc::clone(&backend),
            faults: faults.clone(),
            in_flight: Arc::clone(&in_flight),
            round_trip_ms: Arc::clone(&round_trip_ms),
            uplink: Arc::clone(&uplink),
        };
        accept.spawn(serve(listener, tls, service, parts));
        Self { address, backend, faults, in_flight, round_trip_ms, uplink, _accept: accept }
    }

    /// Returns the number of pending faults.
    pub(crate) fn planned(&self) -> usize {
        self.faults.0.lock().unwrap().len()
    }

    /// Removes all pending faults.
    pub(crate) fn heal(&self) {
        self.faults.0.lock().unwrap().clear();
    }

    /// Plans a fault for the next request of `method` without a planned fault.
    pub(crate) fn plan_fault(&self, method: Method, fault: PlannedFault) {
        self.faults.0.lock().unwrap().push_back((method, fault));
    }

    /// Returns the peak number of requests in flight.
    pub(crate) fn peak(&self) -> usize {
        self.in_flight.peak.load(Ordering::SeqCst)
    }

    /// Returns a configuration for this server, with timeouts suited to loopback.
    pub(crate) fn config(&self) -> S3Config {
        let credentials = S3Credentials::Static {
            access_key_id: KEY_ID.to_owned(),
            secret_access_key: SECRET.to_owned(),
            session_token: None,
        };
        S3Config {
            endpoint: Some(format!("http://{}", self.address)),
            path_style: true,
            prefix: "cluster/store".to_owned(),
            timeouts: Timeouts {
                connect: Duration::from_secs(20),
                attempt: Duration::from_secs(20),
                per_mib: Duration::from_secs(10),
                deadline: Duration::from_secs(120),
            },
            ..S3Config::new(BUCKET, "us-east-1", credentials)
        }
    }

    pub(crate) async fn store(&self) -> S3Store {
        S3Store::connect(self.config()).await.unwrap()
    }

    /// Returns a store that waits for a response no longer than `attempt`.
    pub(crate) async fn store_with_attempt_limit(&self, attempt: Duration) -> S3Store {
        let mut config = self.config();
        config.timeouts.attempt = attempt;
        config.timeouts.per_mib = Duration::ZERO;
        S3Store::connect(config).await.unwrap()
    }
}

async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, service: S3Service, parts: Parts) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (service, parts, tls) = (service.clone(), parts.clone(), tls.clone());
        connections.spawn(async move {
            match tls {
                None => connection(stream, service, parts).await,
                Some(tls) => {
                    // A client that does not trust this server disconnects here.
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, service, parts).await;
                    }
                }
            }
        });
    }
}

async fn connection<S>(stream: S, service: S3Service, parts: Parts)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(move |request: Request<Incoming>| {
        let (service, parts) = (service.clone(), parts.clone());
        let Parts { backend, faults, in_flight, round_trip_ms, uplink } = parts;
        let length = request.headers().get("content-length");
        let body_bytes = length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0);
        async move {
            let now = in_flight.now.fetch_add(1, Ordering::SeqCst) + 1;
            in_flight.peak.fetch_max(now, Ordering::SeqCst);
            let round_trip_ms = round_trip_ms.load(Ordering::Relaxed);
            if round_trip_ms > 0 {
                tokio::time::sleep(Duration::from_millis(round_trip_ms)).await;
            }
            let mut answer = with_faults(request, service, faults).await;
            uplink.pass(body_bytes).await;
            if let Ok(answer) = &mut answer {
                let date = DateTime::from(backend.date()).fmt(DateTimeFormat::HttpDate).unwrap();
                answer.headers_mut().insert("date", date.parse().unwrap());
            }
            in_flight.now.fetch_sub(1, Ordering::SeqCst);
            answer
        }
    });
    // A connection closed by a planned fault ends with an error.
    let _ended = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
}

/// Closes the connection without a response.
#[derive(Debug, thiserror::Error)]
#[error("planned fault")]
struct Closed;

async fn with_faults(
    request: Request<Incoming>,
    service: S3Service,
    faults: PlannedFaults,
) -> Result<Response<Body>, Closed> {
    let fault = {
        let mut planned = faults.0.lock().unwrap();
        let at = planned.iter().position(|(method, _)| method == request.method());
        at.and_then(|at| planned.remove(at)).map(|(_, fault)| fault)
    };
    let run = async |request: Request<Incoming>| {
        service.call(request.map(Body::from)).await.map_err(|_broken| Closed)
    };
    match fault {
        None => run(request).await,
        Some(PlannedFault::Answer(status, code)) => {
            let mut body = Body::from(request.into_body());
            body.store_all_limited(64 << 20).await.map_err(|_lost| Closed)?;
            Ok(planned_answer(status, code, "planned"))
        }
        Some(PlannedFault::Said(status, code, message)) => {
            let mut body = Body::from(request.into_body());
            body.store_all_limited(64 << 20).await.map_err(|_lost| Closed)?;
            Ok(planned_answer(status, code, message))
        }
        Some(PlannedFault::SlowDown(seconds)) => {
            let mut body = Body::from(request.into_body());
            body.store_all_limited(64 << 20).await.map_err(|_lost| Closed)?;
            let mut answer = planned_answer(503, "SlowDown", "planned");
            answer.headers_mut().insert("retry-after", seconds.into());
            Ok(answer)
        }
        Some(PlannedFault::Proxy(status, page)) => {
            let mut body = Body::from(request.into_body());
            body.store_all_limited(64 << 20).await.map_err(|_lost| Closed)?;
            let mut answer = Response::new(Body::from(Bytes::from_static(page.as_bytes())));
            *answer.status_mut() = StatusCode::from_u16(status).unwrap();
            answer.headers_mut().insert("content-length", page.len().into());
            Ok(answer)
        }
        Some(PlannedFault::EarlyAnswer(status, code)) => Ok(planned_answer(status, code, "planned")),
        Some(PlannedFault::LostRequest) => Err(Closed),
        Some(PlannedFault::LostReply) => {
            run(request).await?;
            Err(Closed)
        }
        Some(PlannedFault::Late(wait)) => {
            tokio::time::sleep(wait).await;
            run(request).await
        }
        Some(PlannedFault::StalledBody) => Ok(cut(run(request).await?, stream::pending().boxed())),
        Some(PlannedFault::TornBody) => {
            // By then its head and first byte were sent.
            let torn = async {
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(Closed)
            };
            Ok(cut(run(request).await?, stream::once(torn).boxed()))
        }
    }
}

fn planned_answer(status: u16, code: &str, message: &str) -> Response<Body> {
    let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    let mut answer = Response::new(Body::from(Bytes::from(body)));
    *answer.status_mut() = StatusCode::from_u16(status).unwrap();
    answer
}

/// Replaces a body with its first byte, followed by `then`.
fn cut(answer: Response<Body>, then: stream::BoxStream<'static, Result<Bytes, Closed>>) -> Response<Body> {
    let first = stream::iter([Ok(Bytes::from_static(b"x"))]);
    let then = SyncStream(Mutex::new(then));
    answer.map(|_whole| StreamingBlob::wrap(first.chain(then)).into())
}

/// Makes a stream `Sync`, as required of a body.
struct SyncStream(Mutex<stream::BoxStream<'static, Result<Bytes, Closed>>>);

impl stream::Stream for SyncStream {
    type Item = Result<Bytes, Closed>;

    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.lock().unwrap().poll_next_unpin(context)
    }
}

/// Lets the test access the backend.
struct Shared(Arc<Backend>);

macro_rules! forward {
    ($($operation:ident($input:ident) -> $output:ident;)+) => {
        #[async_trait::async_trait]
        impl S3 for Shared {
            $(async fn $operation(
                &self,
                req: s3s::S3Request<s3s::dto::$input>,
            ) -> s3s::S3Result<s3s::S3Response<s3s::dto::$output>> {
                self.0.$operation(req).await
            })+
        }
    };
}

forward! {
    put_object(PutObjectInput) -> PutObjectOutput;
    get_object(GetObjectInput) -> GetObjectOutput;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output;
    delete_object(DeleteObjectInput) -> DeleteObjectOutput;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput;
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput;
    upload_part(UploadPartInput) -> UploadPartOutput;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput;
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput;
}
