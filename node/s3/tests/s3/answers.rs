//! Messages for responses of providers and servers that are not about objects: cause, fix, and retries.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use holdfast_objects::{Blocker, Created, ErrorKind, ObjectStore};
use hyper::Method;

use crate::server::{PlannedFault, Server};

const KEY: &str = "volumes/v1/log/00000000000000000001";
const BODY: Bytes = Bytes::from_static(b"record");
const LOGIN: &str = "<!DOCTYPE html><html><body><form action=\"/login\"></form></body></html>";

/// A response, and its expected message.
struct Row {
    method: Method,
    answer: PlannedFault,
    /// The condition's reason.
    reason: &'static str,
    /// Prefix of the message.
    state: &'static str,
    /// Suffix of the message.
    fix: &'static str,
    kind: ErrorKind,
    /// Requests sent for a read, or a create, before its caller gets the error.
    requests: u64,
}

fn blocked(method: Method, answer: PlannedFault, blocker: Blocker) -> Row {
    let (state, fix) = match blocker {
        Blocker::Archived => ("bucket: an object is in an archive class", "remove the lifecycle rule"),
        Blocker::Quota => ("bucket: a quota of the bucket or the account is exhausted", "raise the quota"),
        Blocker::Account => ("credentials: the account at the provider is suspended", "ask the provider"),
        Blocker::Key => ("bucket: the encryption key of the bucket", "enable the key"),
        Blocker::ServerFull => ("endpoint: the server's storage is full", "add storage"),
        Blocker::Retention => {
            ("bucket: the bucket retains every object by Object Lock", "remove the bucket's")
        }
        Blocker::Region => ("region: the bucket is not in us-east-1", "endpoint of that region"),
        Blocker::Clock => ("credentials: the server rejects this host's clock time", "synchronize the clock"),
        Blocker::NoCredentials => ("credentials: no credentials", "check the environment"),
    };
    let kind = ErrorKind::Blocked(blocker);
    Row { method, answer, reason: blocker.reason(), state, fix, kind, requests: 1 }
}

fn rows() -> Vec<Row> {
    use PlannedFault::{Answer, Proxy, Said, SlowDown};
    let (get, put) = (|| Method::GET, || Method::PUT);
    let passing = |method: Method, answer, reason, state, fix, kind| {
        let requests = if method == Method::GET { 4 } else { 1 };
        Row { method, answer, reason, state, fix, kind, requests }
    };
    let unavailable = ErrorKind::Unavailable;
    let not_s3 = ("NotS3", "endpoint: a response does not come from an S3 server", "in front of it");
    let fails = ("ServerFails", "endpoint: the server reports an internal error (HTTP 503", "provider's");
    vec![
        blocked(get(), Answer(403, "InvalidObjectState"), Blocker::Archived),
        blocked(put(), Answer(403, "QuotaExceeded"), Blocker::Quota),
        blocked(put(), Answer(507, "QuotaExceeded"), Blocker::Quota),
        blocked(put(), Answer(400, "XMinioAdminBucketQuotaExceeded"), Blocker::Quota),
        blocked(put(), Said(403, "AccessDenied", "Cannot upload: storage cap exceeded"), Blocker::Quota),
        blocked(get(), Answer(403, "AccountProblem"), Blocker::Account),
        blocked(get(), Answer(403, "AllAccessDisabled"), Blocker::Account),
        blocked(put(), Answer(403, "UserSuspended"), Blocker::Account),
        blocked(put(), Answer(400, "KMS.DisabledException"), Blocker::Key),
        blocked(put(), Answer(403, "KMS.DisabledException"), Blocker::Key),
        blocked(get(), Answer(400, "KMS.KMSInvalidStateException"), Blocker::Key),
        blocked(put(), Answer(400, "KMS.NotFoundException"), Blocker::Key),
        blocked(
            put(),
            Said(403, "AccessDenied", "User: r is not authorized to perform: kms:GenerateDataKey on k"),
            Blocker::Key,
        ),
        blocked(put(), Answer(507, "XMinioStorageFull"), Blocker::ServerFull),
        blocked(put(), Answer(507, "InsufficientStorage"), Blocker::ServerFull),
        blocked(
            put(),
            Said(400, "InvalidRequest", "Content-MD5 HTTP header is required for requests with Object Lock"),
            Blocker::Retention,
        ),
        blocked(get(), Answer(301, "PermanentRedirect"), Blocker::Region),
        blocked(get(), Answer(307, "TemporaryRedirect"), Blocker::Region),
        blocked(get(), Answer(400, "AuthorizationHeaderMalformed"), Blocker::Region),
        blocked(put(), Answer(403, "RequestTimeTooSkewed"), Blocker::Clock),
        passing(get(), Answer(503, "ServiceUnavailable"), fails.0, fails.1, fails.2, unavailable),
        passing(put(), Answer(503, "ServiceUnavailable"), fails.0, fails.1, fails.2, ErrorKind::Ambiguous),
        passing(get(), Proxy(200, LOGIN), not_s3.0, not_s3.1, not_s3.2, unavailable),
        passing(get(), Proxy(307, LOGIN), not_s3.0, not_s3.1, not_s3.2, unavailable),
        passing(get(), Proxy(403, LOGIN), not_s3.0, not_s3.1, not_s3.2, unavailable),
        passing(get(), Proxy(503, LOGIN), not_s3.0, not_s3.1, not_s3.2, unavailable),
        passing(put(), Proxy(200, LOGIN), not_s3.0, not_s3.1, not_s3.2, ErrorKind::Ambiguous),
        passing(
            get(),
            Answer(409, "OperationAborted"),
            "BucketBusy",
            "bucket: the server is still processing another operation on it",
            "the check is retried",
            ErrorKind::Conflict,
        ),
        passing(
            put(),
            Answer(409, "OperationAborted"),
            "BucketBusy",
            "bucket: the server is still processing another operation on it",
            "the check is retried",
            ErrorKind::Ambiguous,
        ),
        passing(
            get(),
            SlowDown(0),
            "Throttled",
            "endpoint: the server throttles requests",
            "the check is retried",
            ErrorKind::Throttled,
        ),
        passing(
            get(),
            Answer(404, "NoSuchBucket"),
            "BucketNotFound",
            "bucket: bucket does not exist",
            "correct the name",
            unavailable,
        ),
        Row {
            requests: 1,
            ..passing(
                get(),
                Answer(501, "NotImplemented"),
                "Refused",
                "bucket: the server refused to list objects (NotImplemented)",
                "requests that Holdfast sends",
                ErrorKind::Invalid,
            )
        },
        passing(
            put(),
            Answer(501, "NotImplemented"),
            "CreateOnceUnsupported",
            "bucket: the server does not support conditional writes",
            "use one that does",
            ErrorKind::Invalid,
        ),
        Row {
            requests: 1,
            ..passing(
                get(),
                Answer(403, "AccessDenied"),
                "AccessDenied",
                "credentials: not allowed to list objects (AccessDenied)",
                "extend the bucket policy or role",
                ErrorKind::Denied,
            )
        },
    ]
}

/// Regression: all of them were reported as a missing right or an unreachable server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_answer_is_called_by_its_cause_and_fix() {
    let check = async |row: Row| {
        let Row { method, answer, reason, state, fix, .. } = row;
        let server = Server::start().await;
        for _ in 0..8 {
            server.plan_fault(method.clone(), answer);
        }
        let store = server.store().await;
        let failure = store.probe().await.expect_err(reason);
        let said = failure.to_string();
        assert_eq!(failure.reason(), reason, "{answer:?}: {said}");
        assert!(said.starts_with(state), "{answer:?}: {said}");
        assert!(said.starts_with(&format!("{}: ", failure.field())), "{answer:?}: {said}");
        let (_, remedy) = said.split_once("; ").unwrap_or_else(|| panic!("no fix: {said}"));
        assert!(remedy.contains(fix), "{answer:?}: {said}");
        assert_eq!(remedy.contains("policy or role"), reason == "AccessDenied", "{answer:?}: {said}");
        assert!(!said.contains("network policy"), "{answer:?}: {said}");
        server.heal();
        store.probe().await.unwrap_or_else(|error| panic!("{answer:?} is over: {error}"));
        assert_eq!(server.backend.keys(), Vec::<String>::new(), "{answer:?}");
    };
    join_all(rows().into_iter().map(check)).await;
}

/// A caller retries blocked requests on its own schedule: nothing is lost or duplicated, and the first
/// request after the fault succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_succeed_when_the_fault_is_over() {
    let check = async |row: Row| {
        let Row { method, answer, kind, requests, .. } = row;
        let server = Server::start().await;
        let store = server.store().await;
        let is_read = method == Method::GET;
        if is_read {
            assert_eq!(store.create(KEY, BODY).await.unwrap(), Created);
        }
        for _ in 0..8 {
            server.plan_fault(method.clone(), answer);
        }
        let before = store.counts();
        let failed = if is_read {
            store.get(KEY, 64).await.unwrap_err().kind()
        } else {
            store.create(KEY, BODY).await.unwrap_err().kind()
        };
        let sent = store.counts();
        // A whole read cannot distinguish a page with status 200 from an object.
        if !matches!(answer, PlannedFault::Proxy(200, _)) || !is_read {
            assert_eq!(failed, kind, "{answer:?}");
            assert_eq!(sent.get + sent.put - before.get - before.put, requests, "{answer:?}");
        }
        server.heal();
        if is_read {
            assert_eq!(store.get(KEY, 64).await.unwrap(), BODY, "{answer:?}");
        } else {
            assert_eq!(store.create(KEY, BODY).await.unwrap(), Created, "{answer:?}");
        }
        assert_eq!(server.backend.keys().len(), 1, "{answer:?}");
    };
    join_all(rows().into_iter().map(check)).await;
}

/// Regression: a page in place of the object was reported as a server on which two creates succeed.
#[tokio::test]
async fn answers_that_are_not_the_object_are_named() {
    let server = Server::start().await;
    let store = server.store().await;
    for (method, fault, reason, fix) in [
        (Method::GET, PlannedFault::TornBody, "AnswersBreakOff", "network and proxies"),
        (Method::GET, PlannedFault::Proxy(200, "page"), "ReadBackFailed", "proxies in front of it"),
    ] {
        // The first GET is the list.
        server.plan_fault(Method::GET, PlannedFault::Late(Duration::ZERO));
        for _ in 0..8 {
            server.plan_fault(method.clone(), fault);
        }
        let failure = store.probe().await.expect_err(reason);
        assert_eq!(failure.reason(), reason, "{failure:?}");
        assert!(failure.to_string().contains(fix), "{failure}");
        server.heal();
        store.probe().await.unwrap();
    }
}

/// Regression: such a server was reported as unreachable.
#[tokio::test]
async fn a_server_without_etags_is_named() {
    let server = Server::start().await;
    server.backend.hides_tags.store(true, Ordering::Relaxed);
    let store = server.store().await;
    let failure = store.probe().await.expect_err("no ETag");
    assert_eq!(failure.reason(), "NotS3");
    assert!(failure.to_string().contains("(HTTP 200 without ETag)"), "{failure}");
    server.backend.hides_tags.store(false, Ordering::Relaxed);
    store.probe().await.unwrap();
    assert_eq!(server.backend.keys(), Vec::<String>::new());
}
