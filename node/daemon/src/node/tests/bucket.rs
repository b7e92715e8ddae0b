//! An S3 server over an in-memory store, with the features a volume needs: key ids but no signatures, no
//! multipart uploads except those left in the store.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_objects::{CreateError, MemoryStore, ObjectStore, ReadyParts, StoreError, UnfinishedUpload};
use holdfast_s3::{S3Config, S3Credentials};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

/// Time of every write, and of the start of every upload.
const MODIFIED: &str = "2026-01-01T00:00:00.000Z";

/// The running server; it stops when this is dropped.
pub(super) struct Bucket {
    pub(super) objects: Arc<MemoryStore>,
    pub(super) config: S3Config,
    rules: Arc<Rules>,
    _accept: JoinSet<()>,
}

/// Rules for its responses.
#[derive(Default)]
struct Rules {
    /// The only accepted key id; `None`: any.
    key_id: Mutex<Option<String>>,
    /// Requests of this method get this status and code.
    refused: Mutex<Option<(Method, u16, &'static str)>>,
    ignores_conditions: AtomicBool,
    /// Delay between a create's check of its key and its store operation, which is then unconditional.
    create_gap_ms: AtomicU64,
    /// Objects of other tenants, by the key id that selects them.
    tenants: Mutex<BTreeMap<String, Arc<MemoryStore>>>,
    /// Requests that name this get no response.
    closed: watch::Sender<Option<String>>,
    /// Notified of each of them.
    waiting: Notify,
}

impl Bucket {
    pub(super) async fn start() -> Self {
        Self::with_objects(Arc::new(MemoryStore::new())).await
    }

    /// Starts another server of the same objects.
    pub(super) async fn with_objects(objects: Arc<MemoryStore>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        let config = S3Config { endpoint, path_style: true, ..super::unreachable_store() };
        let mut accept = JoinSet::new();
        let rules = Arc::new(Rules::default());
        accept.spawn(serve(listener, Arc::clone(&objects), Arc::clone(&rules)));
        Self { objects, config, rules, _accept: accept }
    }

    /// Stops responding to requests with this in their path, until [`Self::open`].
    pub(super) fn close(&self, name: &str) {
        self.rules.closed.send_replace(Some(name.to_owned()));
    }

    /// Waits for a request that gets no response.
    pub(super) async fn arrival(&self) {
        self.rules.waiting.notified().await;
    }

    pub(super) fn open(&self) {
        self.rules.closed.send_replace(None);
    }

    /// Denies requests with any other key id from now on; returns the configuration with this one.
    pub(super) fn accept(&self, key_id: &str) -> S3Config {
        *self.rules.key_id.lock() = Some(key_id.to_owned());
        S3Config { credentials: key(key_id), ..self.config.clone() }
    }

    /// Responds like this to each request of the method from now on; `None`: no longer.
    pub(super) fn refuse(&self, refused: Option<(Method, u16, &'static str)>) {
        *self.rules.refused.lock() = refused;
    }

    /// Directs requests with this key id to another tenant's bucket from now on.
    pub(super) fn redirect(&self, key_id: &str, objects: Arc<MemoryStore>) {
        self.rules.tenants.lock().insert(key_id.to_owned(), objects);
    }

    /// Accepts `If-None-Match` but ignores it, like some servers.
    pub(super) fn ignore_conditions(&self) {
        self.rules.ignores_conditions.store(true, Ordering::Relaxed);
    }

    /// Checks if a key is free, and stores the object unconditionally after this delay, like proxies that
    /// emulate the condition.
    pub(super) fn check_then_store(&self, gap_ms: u64) {
        self.rules.create_gap_ms.store(gap_ms, Ordering::Relaxed);
    }
}

/// Returns the credentials with this key id.
pub(super) fn key(id: &str) -> S3Credentials {
    S3Credentials::Static {
        access_key_id: id.to_owned(),
        secret_access_key: "secret".to_owned(),
        session_token: None,
    }
}

async fn serve(listener: TcpListener, objects: Arc<MemoryStore>, rules: Arc<Rules>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (objects, rules) = (Arc::clone(&objects), Arc::clone(&rules));
        connections.spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let (objects, rules) = (Arc::clone(&objects), Arc::clone(&rules));
                async move {
                    let path = request.uri().to_string().replace("%2F", "/");
                    let is_open =
                        |name: &Option<String>| !name.as_ref().is_some_and(|name| path.contains(name));
                    if !is_open(&rules.closed.borrow()) {
                        rules.waiting.notify_one();
                    }
                    rules.closed.subscribe().wait_for(is_open).await.unwrap();
                    Ok::<_, Infallible>(answer(request, &objects, &rules).await)
                }
            });
            // A client may disconnect.
            let _ended = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, objects: &MemoryStore, rules: &Rules) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let header = |name| head.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let key = head.uri.path().trim_start_matches("/bucket").trim_start_matches('/').to_owned();
    let body = body.collect().await.unwrap().to_bytes();
    let accepted = rules.key_id.lock().as_ref().map(|id| format!("Credential={id}/"));
    if accepted.is_some_and(|credential| !header("authorization").unwrap().contains(&credential)) {
        return refuse(403, "InvalidAccessKeyId");
    }
    let refused = rules.refused.lock().clone();
    if let Some((_, status, code)) = refused.filter(|(method, ..)| *method == head.method) {
        return refuse(status, code);
    }
    let tenant = header("authorization").and_then(|value| {
        let tenants = rules.tenants.lock();
        tenants
            .iter()
            .find(|(id, _)| value.contains(&format!("Credential={id}/")))
            .map(|(_, objects)| Arc::clone(objects))
    });
    let objects = tenant.as_deref().unwrap_or(objects);
    let gap_ms = rules.create_gap_ms.load(Ordering::Relaxed);
    let is_once = header("if-none-match").is_some() && !rules.ignores_conditions.load(Ordering::Relaxed);
    let query = head.uri.query().unwrap_or_default();
    match head.method {
        Method::PUT if is_once && gap_ms > 0 => {
            if objects.get(&key, u64::MAX).await.is_ok() {
                return refuse(412, "PreconditionFailed");
            }
            tokio::time::sleep(Duration::from_millis(gap_ms)).await;
            objects.put_segment(&key, &mut ReadyParts::from(body)).await.unwrap();
            stored()
        }
        Method::PUT if is_once => match objects.create(&key, body).await {
            Ok(_) => stored(),
            Err(CreateError::Exists { .. }) => refuse(412, "PreconditionFailed"),
            Err(error) => panic!("{error}"),
        },
        Method::PUT => {
            objects.put_segment(&key, &mut ReadyParts::from(body)).await.unwrap();
            stored()
        }
        Method::DELETE if query.contains("uploadId=") => {
            let upload = UnfinishedUpload { id: key.clone(), key, age: Duration::ZERO };
            objects.abort_upload(&upload).await.unwrap();
            reply(204, Bytes::new())
        }
        Method::DELETE => {
            objects.delete(&[&key]).await.unwrap();
            reply(204, Bytes::new())
        }
        Method::GET if query.split('&').any(|pair| matches!(pair, "uploads" | "uploads=")) => {
            uploads(objects).await
        }
        Method::GET if key.is_empty() => list(query, objects).await,
        Method::GET => match objects.get(&key, u64::MAX).await {
            Err(StoreError::NotFound { .. }) => refuse(404, "NoSuchKey"),
            Err(error) => panic!("{error}"),
            Ok(bytes) => match header("range") {
                None => reply(200, bytes),
                Some(range) => part(&range, bytes),
            },
        },
        other => panic!("{other}"),
    }
}

fn reply(status: u16, body: Bytes) -> Response<Full<Bytes>> {
    Response::builder().status(status).body(Full::new(body)).unwrap()
}

fn stored() -> Response<Full<Bytes>> {
    let mut answer = reply(200, Bytes::new());
    answer.headers_mut().insert("etag", "\"tag\"".parse().unwrap());
    answer
}

fn refuse(status: u16, code: &str) -> Response<Full<Bytes>> {
    reply(status, format!("<Error><Code>{code}</Code></Error>").into())
}

fn part(range: &str, bytes: Bytes) -> Response<Full<Bytes>> {
    let (from, to) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    let (from, end) = match (from.parse::<usize>(), to.parse::<usize>()) {
        (Ok(from), Ok(to)) => (from, bytes.len().min(to + 1)),
        (Err(_none), Ok(suffix)) => (bytes.len().saturating_sub(suffix), bytes.len()),
        other => panic!("{other:?}"),
    };
    let value = format!("bytes {from}-{}/{}", end - 1, bytes.len());
    let mut answer = reply(206, bytes.slice(from..end));
    answer.headers_mut().insert("content-range", value.parse().unwrap());
    answer
}

/// Lists all unfinished uploads, with the start time of each object in a list.
async fn uploads(objects: &MemoryStore) -> Response<Full<Bytes>> {
    let mut text = "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>".to_owned();
    for UnfinishedUpload { key, id, .. } in objects.unfinished_uploads("").await.unwrap() {
        let value = format!("<Key>{key}</Key><UploadId>{id}</UploadId><Initiated>{MODIFIED}</Initiated>");
        write!(text, "<Upload>{value}</Upload>").unwrap();
    }
    text.push_str("</ListMultipartUploadsResult>");
    reply(200, text.into())
}

async fn list(query: &str, objects: &MemoryStore) -> Response<Full<Bytes>> {
    let value = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(known, _)| *known == name).map(|(_, value)| value.replace("%2F", "/"))
    };
    let limit = value("max-keys").unwrap().parse().unwrap();
    let (prefix, after) = (value("prefix").unwrap_or_default(), value("start-after"));
    if value("delimiter").is_some() {
        let token = value("continuation-token");
        let page = objects.list_folders(&prefix, token.as_deref(), limit).await.unwrap();
        let mut text = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>", page.next.is_some());
        for name in page.names {
            write!(text, "<CommonPrefixes><Prefix>{prefix}{name}/</Prefix></CommonPrefixes>").unwrap();
        }
        if let Some(next) = page.next {
            write!(text, "<NextContinuationToken>{next}</NextContinuationToken>").unwrap();
        }
        text.push_str("</ListBucketResult>");
        return reply(200, text.into());
    }
    let page = objects.list(&prefix, after.as_deref(), limit).await.unwrap();
    let mut text = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>", page.more);
    for entry in page.entries {
        let (key, bytes) = (entry.key, entry.size_bytes);
        let value = format!("<Key>{key}</Key><Size>{bytes}</Size><LastModified>{MODIFIED}</LastModified>");
        write!(text, "<Contents>{value}</Contents>").unwrap();
    }
    text.push_str("</ListBucketResult>");
    reply(200, text.into())
}
