//! A proxy in front of the S3 server that responds like other servers and providers, per bucket.
//!
//! Owns: a port of the loopback, the dialect of each bucket. A request changed by a dialect is signed again
//! with the account of the tests, so that the server accepts it.
//! Runs on: one thread per connection.
//! Invariants: a request to a bucket without a dialect is forwarded unchanged.
//! On failure: an unreachable server is visible through the proxy: the connection breaks.

use std::collections::HashMap;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::http::{Head, ServerResponse, read_body};
use super::sign::sign_again;

/// A deviation of a server or a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Requests of a method (any, if `None`) get this response without an effect.
    Answers {
        /// The method.
        method: Option<&'static str>,
        /// Status and reason, such as `403 Forbidden`.
        status: &'static str,
        /// The S3 error code.
        code: &'static str,
        /// Its text.
        message: &'static str,
    },
    /// Another server responds with this status and a page.
    Page(&'static str),
    /// Too many requests: 503 SlowDown, and a wait of this many seconds.
    SlowDown(u64),
    /// A create checks if the key is free, and stores the object unconditionally after this delay.
    CreateLooksFirst(Duration),
    /// A create overwrites an existing object.
    CreateReplaces,
    /// A delete leaves a marker and the earlier versions.
    DeleteMarkers,
    /// Objects are in an archive class: none is readable.
    Archived,
    /// Object Lock retains each object by default: a PUT needs a checksum.
    Retention,
    /// The first byte of the response to a list is delayed by this time.
    ListBeginsAfter(Duration),
    /// A list omits objects stored within this time.
    ListLags(Duration),
    /// The responses to reads are truncated.
    BodiesCut,
    /// The responses to reads are shorter than the objects, with matching headers.
    LengthsWrong,
    /// Responses have no ETag.
    NoETags,
    /// An error is sent with status 200.
    ErrorsIn200,
}

/// A running proxy. Dropping it ends its port; connections end with their clients.
#[derive(Debug)]
pub struct DialectProxy {
    port: u16,
    shared: Arc<DialectRules>,
}

#[derive(Debug)]
struct DialectRules {
    server: SocketAddr,
    dialects: Mutex<HashMap<String, Dialect>>,
    /// Store times of objects, by the request's path.
    stored: Mutex<HashMap<String, Instant>>,
    is_ended: AtomicBool,
}

impl DialectProxy {
    /// Starts a proxy to the server on this port of the loopback.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a port for the proxy")?;
        let port = listener.local_addr().context("read the proxy's port")?.port();
        let shared = Arc::new(DialectRules {
            server: SocketAddr::from((Ipv4Addr::LOCALHOST, server_port)),
            dialects: Mutex::default(),
            stored: Mutex::default(),
            is_ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { port, shared })
    }

    /// Returns the endpoint for programs on the host.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Applies this dialect to requests to `bucket` from now on.
    pub fn set_dialect(&self, bucket: &str, dialect: Dialect) {
        self.shared.dialects().insert(bucket.to_owned(), dialect);
    }

    /// Forwards all requests unchanged from now on.
    pub fn end(&self) {
        self.shared.dialects().clear();
    }
}

impl Drop for DialectProxy {
    fn drop(&mut self) {
        self.shared.is_ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread; fails only if that thread is gone.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

/// The bucket and the kind of a request.
#[derive(Debug)]
struct DialectRequest {
    path: String,
    bucket: String,
    is_list: bool,
    is_create: bool,
    is_put: bool,
    is_read: bool,
    is_delete: bool,
}

impl DialectRequest {
    fn of(head: &Head) -> Self {
        let (path, query) = head.word(1).split_once('?').unwrap_or((head.word(1), ""));
        let (bucket, key) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
        let is_list = head.word(0) == "GET" && query.contains("list-type");
        Self {
            path: path.to_owned(),
            bucket: bucket.trim_start_matches('/').to_owned(),
            is_list,
            is_create: head.get("if-none-match").is_some(),
            is_put: head.word(0) == "PUT",
            is_read: head.word(0) == "GET" && !is_list && !key.is_empty(),
            is_delete: head.word(0) == "DELETE" || query.split('&').any(|word| word.starts_with("delete")),
        }
    }
}

/// Bytes to send; if cut, the connection ends after them.
struct RawResponse {
    bytes: Vec<u8>,
    is_cut: bool,
}

impl From<ServerResponse> for RawResponse {
    fn from(answer: ServerResponse) -> Self {
        Self { bytes: answer.bytes(), is_cut: false }
    }
}

impl DialectRules {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for connection in listener.incoming() {
            if self.is_ended.load(Ordering::Relaxed) {
                return;
            }
            let Ok(connection) = connection else { continue };
            let shared = Arc::clone(self);
            // In any case, the client sees a broken connection.
            std::thread::spawn(move || shared.serve(&connection).is_ok());
        }
    }

    fn serve(&self, connection: &TcpStream) -> Result<()> {
        connection.set_nodelay(true)?;
        let mut client = BufReader::new(connection);
        let mut to = connection;
        while let Some(mut head) = Head::read(&mut client)? {
            if head.get("expect").is_some() {
                to.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
                head.remove("expect");
            }
            let body = read_body(&mut client, head.body_bytes()?)?;
            let request = DialectRequest::of(&head);
            let dialect = self.dialects().get(&request.bucket).copied();
            let sent = match dialect {
                None => self.forward(&head, &body)?.into(),
                Some(dialect) => self.answer_in_dialect(dialect, &request, head, &body)?,
            };
            to.write_all(&sent.bytes)?;
            if sent.is_cut {
                return Ok(());
            }
        }
        Ok(())
    }

    fn answer_in_dialect(
        &self,
        dialect: Dialect,
        request: &DialectRequest,
        mut head: Head,
        body: &[u8],
    ) -> Result<RawResponse> {
        if let Some(answer) = self.answer_in_place(dialect, request, &mut head)? {
            return Ok(answer.into());
        }
        let mut answer = self.forward(&head, body)?;
        let is_cut = self.change_answer(dialect, request, &mut answer);
        Ok(RawResponse { bytes: answer.bytes(), is_cut })
    }

    /// Returns the response that replaces that of the server, if any. Otherwise the request is delayed and
    /// changed as the server is to receive it.
    fn answer_in_place(
        &self,
        dialect: Dialect,
        request: &DialectRequest,
        head: &mut Head,
    ) -> Result<Option<ServerResponse>> {
        let method = head.word(0).to_owned();
        let refused = |status, code, message| Ok(Some(ServerResponse::refusal(status, code, message)));
        match dialect {
            Dialect::Answers { method: only, status, code, message }
                if only.is_none_or(|only| only == method) =>
            {
                return refused(status, code, message);
            }
            Dialect::Page(status) => return Ok(Some(ServerResponse::page(status))),
            Dialect::SlowDown(seconds) => {
                let mut answer =
                    ServerResponse::refusal("503 Slow Down", "SlowDown", "Reduce your request rate");
                answer.head.set("Retry-After", &seconds.to_string());
                return Ok(Some(answer));
            }
            Dialect::ErrorsIn200 => return refused("200 OK", "InternalError", "Please try again"),
            Dialect::Archived if request.is_read => {
                let message = "The operation is not valid for the object's storage class";
                return refused("403 Forbidden", "InvalidObjectState", message);
            }
            Dialect::Retention if request.is_put && !has_checksum(head) => {
                let message = "Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests \
                               with Object Lock parameters";
                return refused("400 Bad Request", "InvalidRequest", message);
            }
            Dialect::CreateLooksFirst(gap) if request.is_create => {
                let mut look = head.clone();
                look.set_method("HEAD");
                look.remove("if-none-match");
                look.remove("content-length");
                look.set("x-amz-content-sha256", "UNSIGNED-PAYLOAD");
                sign_again(&mut look)?;
                if self.forward(&look, b"")?.head.word(1) == "200" {
                    return refused("412 Precondition Failed", "PreconditionFailed", "It is there");
                }
                std::thread::sleep(gap);
                head.remove("if-none-match");
                sign_again(head)?;
            }
            Dialect::CreateReplaces if request.is_create => {
                head.remove("if-none-match");
                sign_again(head)?;
            }
            Dialect::ListBeginsAfter(late) if request.is_list => std::thread::sleep(late),
            Dialect::Answers { .. }
            | Dialect::CreateLooksFirst(_)
            | Dialect::CreateReplaces
            | Dialect::DeleteMarkers
            | Dialect::Archived
            | Dialect::Retention
            | Dialect::ListBeginsAfter(_)
            | Dialect::ListLags(_)
            | Dialect::BodiesCut
            | Dialect::LengthsWrong
            | Dialect::NoETags => {}
        }
        Ok(None)
    }

    /// Changes the response of the server. Returns true if it is cut.
    fn change_answer(&self, dialect: Dialect, request: &DialectRequest, answer: &mut ServerResponse) -> bool {
        match dialect {
            Dialect::DeleteMarkers if request.is_delete => {
                answer.head.set("x-amz-delete-marker", "true");
                answer.head.set("x-amz-version-id", "3HL4kqtJlcpXroDTDmJ");
                false
            }
            Dialect::ListLags(lag) if request.is_list => {
                self.hide_recent(answer, &request.bucket, lag);
                false
            }
            Dialect::ListLags(_) if request.is_put => {
                self.stored().insert(request.path.clone(), Instant::now());
                false
            }
            Dialect::BodiesCut if request.is_read => {
                answer.body.truncate(answer.body.len() / 2);
                true
            }
            Dialect::LengthsWrong if request.is_read => {
                answer.body.truncate(answer.body.len() / 2);
                answer.head.set("Content-Length", &answer.body.len().to_string());
                false
            }
            Dialect::NoETags => {
                answer.head.remove("etag");
                false
            }
            Dialect::Answers { .. }
            | Dialect::Page(_)
            | Dialect::SlowDown(_)
            | Dialect::CreateLooksFirst(_)
            | Dialect::CreateReplaces
            | Dialect::DeleteMarkers
            | Dialect::Archived
            | Dialect::Retention
            | Dialect::ListBeginsAfter(_)
            | Dialect::ListLags(_)
            | Dialect::BodiesCut
            | Dialect::LengthsWrong
            | Dialect::ErrorsIn200 => false,
        }
    }

    /// Removes objects stored within `lag` from a list.
    fn hide_recent(&self, answer: &mut ServerResponse, bucket: &str, lag: Duration) {
        let stored = self.stored();
        let young = |entry: &str| {
            let key = entry.split_once("<Key>").and_then(|(_, rest)| rest.split_once("</Key>"));
            let path = key.map(|(key, _)| format!("/{bucket}/{key}")).unwrap_or_default();
            stored.get(&path).is_some_and(|stored| stored.elapsed() < lag)
        };
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let mut parts = text.split("<Contents>");
        let mut left = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (entry, rest) = part.split_once("</Contents>").unwrap_or((part, ""));
            if !young(entry) {
                left.push_str(&format!("<Contents>{entry}</Contents>"));
            }
            left.push_str(rest);
        }
        answer.head.set("Content-Length", &left.len().to_string());
        answer.body = left.into_bytes();
    }

    /// Forwards a request on a separate connection.
    fn forward(&self, head: &Head, body: &[u8]) -> Result<ServerResponse> {
        let mut head = head.clone();
        head.set("Connection", "close");
        let mut server = TcpStream::connect(self.server).context("reach the server")?;
        server.write_all(&head.bytes())?;
        server.write_all(body)?;
        ServerResponse::read(&mut BufReader::new(server))
    }

    fn dialects(&self) -> MutexGuard<'_, HashMap<String, Dialect>> {
        self.dialects.lock().expect("nothing panics while it holds this lock")
    }

    fn stored(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.stored.lock().expect("nothing panics while it holds this lock")
    }
}

/// Returns true if a request has a checksum that satisfies Object Lock.
fn has_checksum(head: &Head) -> bool {
    let checksums = ["content-md5", "x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-sha256"];
    checksums.iter().any(|name| head.get(name).is_some())
}
