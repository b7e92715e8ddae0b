//! The admin endpoint of a program: `/metrics`, `/healthz` (the process is alive), `/readyz` (it is ready),
//! `/log-level`.
//!
//! Owns: HTTP, media types, the log level's protection: only clients on the same host or pod change it.
//! Invariants: only `PUT /log-level` changes anything. Bounded: with too many connections, the oldest ends,
//! so that no client can take the program's files or keep the kubelet's probes out. On failure: a failed
//! connection is closed; a failed accept is retried. Dropping the endpoint closes all connections.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::chain;
use crate::log_level::{self, LogLevel};

/// Media type of the metrics. Source: the OpenMetrics specification, which Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Pause after a failed accept (most likely because no file descriptor is left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of connections.
const CONNECTIONS: usize = 64;
/// Longest accepted filter; a directive has about ten bytes.
const MAX_FILTER_BYTES: usize = 8 << 10;
/// Longest wait for the filter in a request.
const FILTER_WITHIN: Duration = Duration::from_secs(5);

/// Listens on an address; `[::]` includes IPv4, and falls back to IPv4 alone on a host without IPv6.
///
/// # Errors
/// Those of `bind`: the address is in use, or not one of this host.
pub async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if is_without_ipv6(&error) && address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        outcome => outcome,
    }
}

/// Returns true if the kernel has no IPv6: it was started with `ipv6.disable=1`.
fn is_without_ipv6(error: &io::Error) -> bool {
    /// Source: `errno(3)`, the same on all supported architectures.
    const EAFNOSUPPORT: i32 = 97;
    error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// A program's state for its admin endpoint.
pub trait Program: Send + Sync + 'static {
    /// Returns the reasons why the program is not ready; empty if it is.
    fn not_ready(&self) -> Vec<String>;

    /// Returns the reason why the process should be restarted; `None` if it is healthy.
    fn not_alive(&self) -> Option<String> {
        None
    }

    /// Returns the metrics as OpenMetrics text.
    ///
    /// # Errors
    /// A metric cannot be formatted.
    fn metrics(&self) -> Result<String, fmt::Error>;
}

/// State shared by all requests.
struct AdminState<P> {
    program: P,
    level: LogLevel,
}

/// The address of a request's client, and true if it is a process of the same host or pod.
#[derive(Clone, Copy, Debug)]
struct Client {
    address: SocketAddr,
    is_local: bool,
}

impl Client {
    fn new(address: SocketAddr, own: IpAddr) -> Self {
        let ip = address.ip().to_canonical();
        Self { address, is_local: ip.is_loopback() || ip == own.to_canonical() }
    }
}

/// Serves requests until the future is dropped.
pub async fn serve(listener: TcpListener, program: impl Program, level: LogLevel) {
    let router = router(program, level);
    let mut connections = JoinSet::new();
    let mut oldest_first = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_ended) = connections.join_next() => continue,
        };
        match accepted {
            Ok((stream, address)) => {
                oldest_first.retain(|connection: &AbortHandle| !connection.is_finished());
                if oldest_first.len() >= CONNECTIONS
                    && let Some(oldest) = oldest_first.pop_front()
                {
                    oldest.abort();
                }
                oldest_first.push_back(connections.spawn(answer(stream, address, router.clone())));
            }
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the requests of one connection.
async fn answer(stream: TcpStream, address: SocketAddr, router: Router) {
    // A connection without a local address has already ended.
    let Ok(own) = stream.local_addr() else { return };
    let service = TowerToHyperService::new(router.layer(Extension(Client::new(address, own.ip()))));
    let mut server = http1::Builder::new();
    // With a timer, a client that does not complete its header is disconnected after 30 s, the default.
    server.timer(TokioTimer::new());
    if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "connection ended");
    }
}

fn router<P: Program>(program: P, level: LogLevel) -> Router {
    Router::new()
        .route("/healthz", get(healthz::<P>))
        .route("/readyz", get(readyz::<P>))
        .route("/metrics", get(metrics::<P>))
        .route("/log-level", get(log_level::<P>).put(set_log_level::<P>))
        .fallback(async || (StatusCode::NOT_FOUND, "try /metrics, /healthz, /readyz or /log-level\n"))
        .with_state(Arc::new(AdminState { program, level }))
}

async fn healthz<P: Program>(State(endpoint): State<Arc<AdminState<P>>>) -> Response {
    match endpoint.program.not_alive() {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn readyz<P: Program>(State(endpoint): State<Arc<AdminState<P>>>) -> Response {
    match endpoint.program.not_ready().join("\n") {
        none if none.is_empty() => "ready\n".into_response(),
        reasons => (StatusCode::SERVICE_UNAVAILABLE, format!("{reasons}\n")).into_response(),
    }
}

async fn metrics<P: Program>(State(endpoint): State<Arc<AdminState<P>>>) -> Response {
    match endpoint.program.metrics() {
        Ok(text) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn log_level<P: Program>(State(endpoint): State<Arc<AdminState<P>>>) -> Response {
    current(&endpoint.level)
}

async fn set_log_level<P: Program>(
    State(endpoint): State<Arc<AdminState<P>>>,
    Extension(client): Extension<Client>,
    body: Body,
) -> Response {
    if !client.is_local {
        let refused = "the log level is changed from the same host or pod only; use `kubectl port-forward`\n";
        return (StatusCode::FORBIDDEN, refused).into_response();
    }
    let filter = match tokio::time::timeout(FILTER_WITHIN, to_bytes(body, MAX_FILTER_BYTES)).await {
        Ok(Ok(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        Ok(Err(error)) => return (StatusCode::BAD_REQUEST, format!("{}\n", chain(&error))).into_response(),
        Err(_elapsed) => return (StatusCode::REQUEST_TIMEOUT, "the filter did not arrive\n").into_response(),
    };
    let parsed = match log_level::parse(&filter) {
        Ok(parsed) => parsed,
        Err(invalid) => return (StatusCode::BAD_REQUEST, format!("{invalid}\n")).into_response(),
    };
    let (client, filter) = (client.address, filter.trim());
    // Logged before the change: the new filter may be `off`.
    tracing::info!(%client, filter, "log level changed");
    match endpoint.level.replace(parsed) {
        Ok(()) => current(&endpoint.level),
        Err(closed) => (StatusCode::SERVICE_UNAVAILABLE, format!("{closed}\n")).into_response(),
    }
}

fn current(level: &LogLevel) -> Response {
    match level.current() {
        Ok(filter) => format!("{filter}\n").into_response(),
        Err(closed) => (StatusCode::SERVICE_UNAVAILABLE, format!("{closed}\n")).into_response(),
    }
}

#[cfg(test)]
mod tests;
