//! The daemon's HTTP endpoint: `/metrics` and `/healthz`.

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
use crate::volumes::Volumes;

/// Media type of the metrics. Source: the OpenMetrics specification, which Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Pause after a connection that could not be accepted (no file descriptor left, most likely).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers requests until `stop` ends.
pub(crate) async fn serve<V: Volumes>(
    listener: TcpListener,
    volumes: V,
    stop: impl Future<Output = ()> + Send,
) {
    tokio::select! {
        () = accept(listener, volumes) => {}
        () = stop => {}
    }
}

async fn accept<V: Volumes>(listener: TcpListener, volumes: V) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _peer)) => stream,
            Err(error) => {
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let volumes = volumes.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| {
                let response = answer(request.method(), request.uri().path(), &volumes);
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

fn answer<V: Volumes>(method: &Method, path: &str, volumes: &V) -> Response<Full<Bytes>> {
    match (method, path) {
        (&Method::GET, "/healthz") => response(StatusCode::OK, "text/plain", "ok\n".to_owned()),
        (&Method::GET, "/metrics") => match render(volumes.clone()) {
            Ok(body) => response(StatusCode::OK, OPENMETRICS, body),
            Err(error) => response(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", format!("{error}\n")),
        },
        _ => response(StatusCode::NOT_FOUND, "text/plain", "try /metrics or /healthz\n".to_owned()),
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
    use crate::volumes::tests::Fake;

    #[test]
    fn health_metrics_and_the_rest() {
        for (method, path, status) in [
            (Method::GET, "/healthz", StatusCode::OK),
            (Method::GET, "/metrics", StatusCode::OK),
            (Method::POST, "/metrics", StatusCode::NOT_FOUND),
            (Method::GET, "/", StatusCode::NOT_FOUND),
        ] {
            assert_eq!(answer(&method, path, &Fake::default()).status(), status, "{method} {path}");
        }
    }
}
