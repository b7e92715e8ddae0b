//! The daemon's HTTP endpoint: `/metrics`, `/healthz` (the process runs) and `/readyz` (it serves all that is the node's).

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;

use super::render;
use crate::readiness::Readiness;
use crate::volumes::Volumes;

/// Media type of the metrics. Source: the OpenMetrics specification, which Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Pause after a connection that could not be accepted (no file descriptor left, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until `stop` ends.
pub(crate) async fn serve<V: Volumes>(
    listener: TcpListener,
    readiness: Readiness<V>,
    stop: impl Future<Output = ()> + Send,
) {
    tokio::select! {
        () = accept(listener, readiness) => {}
        () = stop => {}
    }
}

async fn accept<V: Volumes>(listener: TcpListener, readiness: Readiness<V>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let readiness = readiness.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(request.method(), request.uri().path(), &readiness);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut server = http1::Builder::new();
            server.timer(TokioTimer::new());
            if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
}

fn answer<V: Volumes>(method: &Method, path: &str, readiness: &Readiness<V>) -> Response<Full<Bytes>> {
    match (method, path) {
        (&Method::GET, "/healthz") => response(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        (&Method::GET, "/readyz") => match readiness.reasons().join("\n") {
            none if none.is_empty() => response(StatusCode::OK, "text/plain", "ready\n".to_owned()),
            reasons => response(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{reasons}\n")),
        },
        (&Method::GET, "/metrics") => match render(readiness.clone()) {
            Ok(body) => response(StatusCode::OK, OPENMETRICS, body),
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
        },
        _ => response(StatusCode::NOT_FOUND, "text/plain", "try /metrics, /healthz or /readyz\n".to_owned()),
    }
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    use crate::node::{VolumeState, VolumeStatus};
    use crate::volumes::tests::{Fake, attached};

    async fn readyz(readiness: &Readiness<Fake>) -> (StatusCode, String) {
        let (head, body) = answer(&Method::GET, "/readyz", readiness).into_parts();
        (head.status, String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    /// A daemon that could not recover a device counted as ready, so that a rollout took the next node.
    #[tokio::test]
    async fn a_node_is_ready_when_it_serves_every_volume() {
        let (readiness, fake) = (Readiness::new(), Fake::default());
        let (status, reason) = readyz(&readiness).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(reason.contains("another holdfast-node holds the lock"), "{reason}");
        readiness.recovers();
        assert!(readyz(&readiness).await.1.contains("being recovered"));
        fake.put(attached("one"));
        readiness.serves(fake.clone());
        assert_eq!(readyz(&readiness).await, (StatusCode::OK, "ready\n".to_owned()));
        let message = Some("volume two is not served: its disk is gone".to_owned());
        fake.put(VolumeStatus { state: VolumeState::Quiesced, message, ..attached("two") });
        let (status, reason) = readyz(&readiness).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reason, "volume two is not served: its disk is gone\n");
        let healthy = answer(&Method::GET, "/healthz", &readiness).status();
        assert_eq!(healthy, StatusCode::OK, "the process runs");
    }

    #[test]
    fn health_metrics_and_the_rest() {
        for (method, path, status) in [
            (Method::GET, "/healthz", StatusCode::OK),
            (Method::GET, "/readyz", StatusCode::OK),
            (Method::GET, "/metrics", StatusCode::OK),
            (Method::POST, "/metrics", StatusCode::NOT_FOUND),
            (Method::GET, "/", StatusCode::NOT_FOUND),
        ] {
            let readiness = Readiness::new();
            readiness.serves(Fake::default());
            assert_eq!(answer(&method, path, &readiness).status(), status, "{method} {path}");
        }
    }
}
