//! Probe messages for a bucket that is not fit for volumes.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use holdfast_objects::{CreateError, ErrorKind, ObjectStore};
use holdfast_s3::{ProbeFailure, Probed, S3Config, S3Credentials, S3Store, ServerClock};
use hyper::Method;

use crate::server::{KEY_ID, PlannedFault, Server};

async fn probe(config: S3Config) -> Result<Probed, ProbeFailure> {
    S3Store::connect(config).await.unwrap().probe().await
}

/// Asserts that the probe fails with this field and reason.
async fn fails(config: S3Config, field: &str, reason: &str) -> ProbeFailure {
    let failure = probe(config).await.expect_err(reason);
    assert_eq!((failure.field(), failure.reason()), (field, reason), "{failure:?}");
    assert!(failure.to_string().starts_with(field), "{failure}");
    assert_eq!(
        ProbeFailure::UNFENCED.contains(&reason),
        failure.to_string().contains("two nodes"),
        "{failure}"
    );
    failure
}

#[tokio::test]
async fn a_good_bucket_is_ready_and_left_empty() {
    let server = Server::start().await;
    let store = server.store().await;
    assert_eq!(store.probe().await.unwrap(), Probed { clock: ServerClock::Agrees });
    let counts = store.counts();
    assert_eq!((counts.list, counts.put, counts.get, counts.delete), (1, 15, 4, 3));
    assert_eq!(server.backend.keys(), Vec::<String>::new());
}

/// Regression: each minute a probe left two versions of a key in a versioned bucket.
#[tokio::test]
async fn a_probed_bucket_is_asked_again_without_a_write() {
    let server = Server::start().await;
    let store = server.store().await;
    store.ping().await.unwrap();
    let counts = store.counts();
    assert_eq!((counts.list, counts.put, counts.get, counts.delete), (1, 0, 0, 0));
    server.plan_fault(Method::GET, PlannedFault::Answer(403, "AccessDenied"));
    let failure = store.ping().await.expect_err("denied");
    assert_eq!((failure.field(), failure.reason()), ("credentials", "AccessDenied"));
    store.ping().await.unwrap();
}

/// Regression: tools that show a bucket as a file system leave such objects, and the probe failed on them.
#[tokio::test]
async fn an_object_of_another_program_below_the_prefix_stays() {
    let server = Server::start().await;
    let key = "cluster/store/probe/";
    server.backend.put_at(key, SystemTime::now() - Duration::from_secs(7200));
    server.store().await.probe().await.unwrap();
    assert_eq!(server.backend.keys(), [key]);
}

/// The operator was killed between the two requests; another one may be probing now.
#[tokio::test]
async fn what_a_killed_probe_left_is_deleted_an_hour_later() {
    let server = Server::start().await;
    let key = |number: u32| format!("cluster/store/probe/{number:032x}");
    let minutes_ago = |minutes: u64| SystemTime::now() - Duration::from_secs(60 * minutes);
    server.backend.put_at(&key(1), minutes_ago(61));
    server.backend.put_at(&key(2), minutes_ago(59));
    let store = server.store().await;
    for _ in 0..2 {
        store.probe().await.unwrap();
        assert_eq!(server.backend.keys(), [key(2)]);
    }
    assert_eq!(store.counts().delete, 3 + 3 + 1);
}

/// Regression: by this host's clock, which may be off by more than an hour, active probes looked old.
#[tokio::test]
async fn the_age_of_an_object_is_by_the_servers_clock() {
    let server = Server::start().await;
    let store = server.store().await;
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    for (number, shift_seconds) in [(1, -600), (2, 0), (3, 600)] {
        server.backend.clock_shift_seconds.store(shift_seconds, Ordering::Relaxed);
        server.backend.date_shift_seconds.store(shift_seconds, Ordering::Relaxed);
        let key = format!("cluster/store/probe/{number:032x}");
        server.backend.put_at(&key, server.backend.date() - minutes(55));
        let page = store.list("probe/", None, 1).await.unwrap();
        let age = page.age(&page.entries[0]);
        assert!(age.abs_diff(minutes(55)) < minutes(1), "{age:?}");
        store.probe().await.unwrap();
        assert_eq!(server.backend.keys(), std::slice::from_ref(&key), "not an hour old yet");
        server.backend.put_at(&key, server.backend.date() - minutes(65));
        store.probe().await.unwrap();
        assert_eq!(server.backend.keys(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_missing_bucket_is_named() {
    let server = Server::start().await;
    let config = S3Config { bucket: "no-such-bucket".to_owned(), ..server.config() };
    let failure = fails(config, "bucket", "BucketNotFound").await;
    assert!(failure.to_string().contains("no-such-bucket"), "{failure}");
}

#[tokio::test]
async fn wrong_credentials_differ_from_a_missing_permission() {
    let server = Server::start().await;
    for (id, secret) in [("unknown", "secret"), (KEY_ID, "wrong")] {
        let credentials = S3Credentials::Static {
            access_key_id: id.to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: None,
        };
        fails(S3Config { credentials, ..server.config() }, "credentials", "CredentialsRejected").await;
    }
    for (method, action) in [(Method::GET, "list"), (Method::PUT, "create"), (Method::DELETE, "delete")] {
        server.plan_fault(method, PlannedFault::Answer(403, "AccessDenied"));
        let failure = fails(server.config(), "credentials", "AccessDenied").await;
        assert!(failure.to_string().contains(action), "{failure}");
    }
}

/// Regression, found in review: Amazon answers so if `s3:ListBucket` depends on a prefix, as in the policy
/// that the documentation had, and each attach failed in a store that was Ready.
#[tokio::test]
async fn a_server_that_hides_missing_objects_is_refused() {
    let server = Server::start().await;
    for _list_and_reads in 0..4 {
        server.plan_fault(Method::GET, PlannedFault::Late(Duration::ZERO));
    }
    server.plan_fault(Method::GET, PlannedFault::Answer(403, "AccessDenied"));
    let failure = fails(server.config(), "credentials", "AccessDenied").await;
    assert!(failure.to_string().contains("allow s3:ListBucket on the bucket"), "{failure}");
    assert_eq!(server.backend.keys(), Vec::<String>::new(), "the probe's objects are gone");
}

/// Regression: it was reported as a wrong key pair.
#[tokio::test]
async fn a_clock_that_the_server_refuses_is_named() {
    let server = Server::start().await;
    server.plan_fault(Method::GET, PlannedFault::Answer(403, "RequestTimeTooSkewed"));
    let failure = fails(server.config(), "credentials", "ClockSkewed").await;
    assert!(failure.to_string().contains("synchronize the clock"), "{failure}");
}

#[tokio::test]
async fn a_server_whose_clock_differs_is_seen() {
    let server = Server::start().await;
    for (shift_seconds, expected) in [(-3600, "Behind"), (3600, "Ahead")] {
        server.backend.clock_shift_seconds.store(shift_seconds, Ordering::Relaxed);
        let Probed { clock } = probe(server.config()).await.unwrap();
        assert!(format!("{clock:?}").starts_with(expected), "{clock:?}");
        assert!(
            clock.difference().abs_diff(Duration::from_secs(3600)) < Duration::from_secs(60),
            "{clock:?}"
        );
    }
}

#[tokio::test]
async fn a_server_that_ignores_the_condition_is_refused() {
    let server = Server::start().await;
    server.backend.ignores_conditions.store(true, Ordering::Relaxed);
    fails(server.config(), "bucket", "CreateOnceIgnored").await;
    assert_eq!(server.backend.keys(), Vec::<String>::new(), "the probe's object is gone");
}

/// Regression: sequential creates work on such a server, so it passed, and two nodes served one volume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_looks_before_it_stores_is_refused() {
    for tried in 0..20 {
        let server = Server::start().await;
        server.backend.create_gap_ms.store(20 + 25 * tried, Ordering::Relaxed);
        let failure = fails(server.config(), "endpoint", "CreateOnceNotAtomic").await;
        assert!(failure.to_string().contains("; use a server with atomic conditional writes"), "{failure}");
        assert!(!failure.is_passing(), "no later attempt finds another server");
        assert_eq!(server.backend.keys(), Vec::<String>::new(), "the probe's objects are gone");
    }
}

/// Requests that wait for each other's permits would succeed as sequential ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_permitted_requests_hide_no_race() {
    let server = Server::start().await;
    server.backend.create_gap_ms.store(100, Ordering::Relaxed);
    let config = S3Config { max_concurrency: 1, ..server.config() };
    fails(config, "endpoint", "CreateOnceNotAtomic").await;
}

/// Amazon answers some of several concurrent creates this way, and stores another one's object.
#[tokio::test]
async fn conflicts_between_creates_at_once_are_no_fault() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.plan_fault(Method::PUT, PlannedFault::Answer(409, "ConditionalRequestConflict"));
    }
    server.store().await.probe().await.unwrap();
}

#[tokio::test]
async fn a_server_that_refuses_the_condition_is_refused() {
    let server = Server::start().await;
    server.plan_fault(Method::PUT, PlannedFault::Answer(501, "NotImplemented"));
    fails(server.config(), "bucket", "CreateOnceUnsupported").await;
}

#[tokio::test]
async fn a_wrong_region_is_named() {
    let server = Server::start().await;
    server.plan_fault(Method::GET, PlannedFault::Answer(301, "PermanentRedirect"));
    let failure = fails(server.config(), "region", "WrongRegion").await;
    assert!(failure.to_string().contains("us-east-1"), "{failure}");
}

/// Regression: its create had the default limit, although earlier requests had needed longer ones.
#[tokio::test]
async fn a_server_whose_answers_begin_late_passes() {
    const LIMIT: Duration = Duration::from_millis(1500);
    let server = Server::start().await;
    for method in [Method::GET, Method::PUT, Method::DELETE] {
        for _ in 0..8 {
            server.plan_fault(method.clone(), PlannedFault::Late(LIMIT * 12 / 10));
        }
    }
    let store = server.store_with_attempt_limit(LIMIT).await;
    store.probe().await.unwrap();
    // None was retried.
    assert_eq!(store.counts().put, 15);
}

#[tokio::test]
async fn an_unreachable_server_may_come_back() {
    let server = Server::start().await;
    // Bound but not listening: connections are refused, and no other process gets the port.
    let silent = tokio::net::TcpSocket::new_v4().unwrap();
    silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let endpoint = Some(format!("http://{}", silent.local_addr().unwrap()));
    let config = S3Config { endpoint, ..server.config() };
    let failure = fails(config.clone(), "endpoint", "Unreachable").await;
    assert!(failure.is_passing());
    // The outcome of a create that was never sent is known.
    let store = S3Store::connect(config).await.unwrap();
    let create = store.create("a", Bytes::new()).await.unwrap_err();
    assert!(matches!(create, CreateError::Failed(_)), "{create:?}");
    assert_eq!(create.kind(), ErrorKind::Unavailable);
}
