//! Responses of a proxy, ingress or load balancer instead of the server, which prove nothing about any
//! object.

use bytes::Bytes;
use holdfast_objects::{CreateError, Created, ErrorKind, ObjectStore, ReadyParts, StoreError};
use hyper::{Method, Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::Body;
use tokio::{net::TcpListener, task::JoinSet};

use crate::server::{PlannedFault, Server};

const KEY: &str = "volumes/v1/log/00000000000000000001";
const BODY: Bytes = Bytes::from_static(b"record");
const PAGE: &str = "<html><head><title>404 Not Found</title></head><body>default backend - 404</body></html>";
const UNCLOSED: &str = "<html><body><hr>nginx</body>";
const STATUSES: [u16; 11] = [302, 307, 400, 401, 403, 404, 405, 408, 412, 421, 425];

/// Regression: an ingress without its backend sent 404, which meant "object does not exist", and 408 or 421
/// were final: an application's read failed.
#[tokio::test]
async fn a_read_survives_what_a_proxy_answers() {
    let server = Server::start().await;
    let store = server.store().await;
    assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
    for page in [PAGE, UNCLOSED, "404 page not found", "{\"error\": 404}", ""] {
        for status in STATUSES {
            let gets = store.counts().get;
            server.plan_fault(Method::GET, PlannedFault::Proxy(status, page));
            let read = store.get(KEY, 64).await.unwrap_or_else(|error| panic!("{status} {page}: {error:?}"));
            assert_eq!((read, store.counts().get), (BODY, gets + 2), "{status} {page}");
        }
    }
}

/// The same while the proxy persists: the object is unreachable, which does not prove whether it exists.
#[tokio::test]
async fn a_proxy_that_stays_is_an_unreachable_store() {
    let server = Server::start().await;
    let store = server.store().await;
    for status in STATUSES {
        for _ in 0..8 {
            server.plan_fault(Method::GET, PlannedFault::Proxy(status, PAGE));
        }
        let read = store.get(KEY, 64).await.unwrap_err();
        assert_eq!(read.kind(), ErrorKind::Unavailable, "{status}: {read:?}");
        while store.get(KEY, 64).await.unwrap_err().kind() != ErrorKind::NotFound {}
    }
}

/// Regression: a page with status 200 passed for the object's bytes, and a part of it for damage.
#[tokio::test]
async fn a_page_in_place_of_a_range_is_no_data() {
    let server = Server::start().await;
    let store = server.store().await;
    assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
    for page in ["", "oops", PAGE] {
        server.plan_fault(Method::GET, PlannedFault::Proxy(200, page));
        assert_eq!(store.get_range(KEY, 1..5).await.unwrap(), "ecor", "{page}");
        server.plan_fault(Method::GET, PlannedFault::Proxy(416, page));
        assert_eq!(store.get_range(KEY, 1..5).await.unwrap(), "ecor", "{page}");
    }
    server.plan_fault(Method::GET, PlannedFault::Proxy(200, PAGE));
    assert_eq!(store.get_suffix(KEY, 2).await.unwrap().bytes, "rd");
    for page in ["", PAGE, UNCLOSED] {
        server.plan_fault(Method::GET, PlannedFault::Proxy(200, page));
        assert_eq!(store.list("volumes/", None, 10).await.unwrap().entries.len(), 1, "{page}");
    }
}

/// Regression: a page with status 200 made a commit that no server had stored count as stored.
#[tokio::test]
async fn a_create_answered_by_a_page_is_ambiguous() {
    let server = Server::start().await;
    let store = server.store().await;
    for status in [200, 204, 302, 400, 403, 404, 408, 412, 421, 425, 500] {
        let page = if status == 204 { "" } else { PAGE };
        server.plan_fault(Method::PUT, PlannedFault::Proxy(status, page));
        let create = store.create(KEY, BODY).await;
        assert!(matches!(create, Err(CreateError::Ambiguous(_))), "{status}: {create:?}");
    }
    assert_eq!(server.backend.keys(), Vec::<String>::new());
    server.plan_fault(Method::PUT, PlannedFault::Proxy(200, PAGE));
    store.put_segment("volumes/v1/segments/a", &mut ReadyParts::from(BODY)).await.unwrap();
    assert_eq!(store.get("volumes/v1/segments/a", 64).await.unwrap(), BODY);
}

/// Regression: a missing bucket, which is a failover or a configuration error, failed an application's read.
#[tokio::test]
async fn a_missing_bucket_is_no_word_on_its_objects() {
    let server = Server::start().await;
    let store = server.store().await;
    for _ in 0..4 {
        server.plan_fault(Method::GET, PlannedFault::Answer(404, "NoSuchBucket"));
    }
    let read = store.get(KEY, 64).await.unwrap_err();
    assert!(matches!(read, StoreError::NoBucket { .. }), "{read:?}");
    assert_eq!(read.kind(), ErrorKind::Unavailable);
}

/// A response with the server's header and no body is trusted; the header distinguishes it from a proxy.
#[tokio::test]
async fn a_404_with_the_servers_own_header_is_believed() {
    for (header, kind) in
        [("x-amz-request-id", ErrorKind::NotFound), ("x-request-id", ErrorKind::Unavailable)]
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
        let mut accept = JoinSet::new();
        accept.spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let answer = service_fn(move |_request: Request<Incoming>| async move {
                    let answer = Response::builder().status(404).header(header, "17");
                    Ok::<_, std::convert::Infallible>(answer.body(Body::empty()).unwrap())
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
            }
        });
        let config = holdfast_s3::S3Config { endpoint, ..Server::start().await.config() };
        let store = holdfast_s3::S3Store::connect(config).await.unwrap();
        assert_eq!(store.get(KEY, 64).await.unwrap_err().kind(), kind, "{header}");
    }
}
