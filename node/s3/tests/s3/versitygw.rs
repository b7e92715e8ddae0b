//! The suite against versitygw, the real server of the end-to-end tests.
//!
//! Needs `HOLDFAST_TEST_VERSITYGW`, the path of its binary.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use holdfast_objects::{
    ObjectStore, Part, PartFailed, Parts,
    conformance::{StoreUnderTest, run_all},
};
use holdfast_s3::{S3Config, S3Credentials, S3Store};

use crate::server::{KEY_ID, SECRET};

/// The running gateway and its directory; both are removed on drop.
struct Gateway {
    process: Child,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

impl Gateway {
    fn start() -> Self {
        let binary = std::env::var("HOLDFAST_TEST_VERSITYGW")
            .expect("set HOLDFAST_TEST_VERSITYGW to the path of the versitygw binary");
        let directory = tempfile::tempdir().unwrap();
        let (data, accounts) = (directory.path().join("data"), directory.path().join("accounts"));
        std::fs::create_dir_all(data.join("bucket")).unwrap();
        std::fs::create_dir_all(&accounts).unwrap();
        let address = free_address();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let process = Command::new(binary)
            .args(["--port", &address.to_string(), "--access", KEY_ID, "--secret", SECRET])
            .args([Path::new("--iam-dir"), &accounts, Path::new("posix"), &data])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, address, directory }
    }

    fn config(&self) -> S3Config {
        let credentials = S3Credentials::Static {
            access_key_id: KEY_ID.to_owned(),
            secret_access_key: SECRET.to_owned(),
            session_token: None,
        };
        S3Config {
            endpoint: Some(format!("http://{}", self.address)),
            path_style: true,
            prefix: "cluster".to_owned(),
            ..S3Config::new("bucket", "us-east-1", credentials)
        }
    }

    /// Waits up to a minute for a response of the gateway, which has no other readiness signal.
    async fn store(&mut self) -> S3Store {
        let store = S3Store::connect(self.config()).await.unwrap();
        let begun = Instant::now();
        while let Err(error) = store.list("", None, 1).await {
            let ended = self.process.try_wait().unwrap();
            let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap();
            assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(60), "{error:?}\n{log}");
        }
        store
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have exited by itself; then there is nothing to kill.
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Returns a port that stays free until the gateway binds it: on a loopback address that no other test uses.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let address = Ipv4Addr::new(127, high.max(1), low, NEXT.fetch_add(1, Ordering::Relaxed));
    TcpListener::bind((address, 0)).unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs versitygw: set HOLDFAST_TEST_VERSITYGW to its binary and pass --include-ignored"]
async fn versitygw_conforms_and_can_hold_volumes() {
    let mut gateway = Gateway::start();
    let store = Arc::new(gateway.store().await);
    store.probe().await.unwrap();
    let subject = StoreUnderTest {
        store: store.clone(),
        scope: "conformance".to_owned(),
        large_bytes: (12 << 20) + 345,
    };
    run_all(&subject).await.unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(store.list("", None, 1).await.unwrap().entries.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs versitygw: set HOLDFAST_TEST_VERSITYGW to its binary and pass --include-ignored"]
async fn versitygw_says_what_is_wrong_with_a_configuration() {
    let mut gateway = Gateway::start();
    gateway.store().await;
    let wrong = |id: &str, secret: &str| S3Credentials::Static {
        access_key_id: id.to_owned(),
        secret_access_key: secret.to_owned(),
        session_token: None,
    };
    let cases = [
        ("BucketNotFound", S3Config { bucket: "elsewhere".to_owned(), ..gateway.config() }),
        ("CredentialsRejected", S3Config { credentials: wrong("unknown", SECRET), ..gateway.config() }),
        ("CredentialsRejected", S3Config { credentials: wrong(KEY_ID, "guess"), ..gateway.config() }),
        ("WrongRegion", S3Config { region: "eu-central-1".to_owned(), ..gateway.config() }),
    ];
    for (reason, config) in cases {
        let failure = S3Store::connect(config).await.unwrap().probe().await.expect_err(reason);
        assert_eq!(failure.reason(), reason, "{failure:?}");
    }
}

/// A first part without a second one, like a daemon that is killed in between.
struct Endless(Option<Bytes>);

#[async_trait::async_trait]
impl Parts for Endless {
    async fn next(&mut self) -> Result<Part, PartFailed> {
        match self.0.take() {
            Some(bytes) => Ok(Part { bytes, is_last: false }),
            None => std::future::pending().await,
        }
    }

    fn max_at_once(&self) -> usize {
        2
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs versitygw: set HOLDFAST_TEST_VERSITYGW to its binary and pass --include-ignored"]
async fn versitygw_lists_and_aborts_what_a_killed_writer_left() {
    let mut gateway = Gateway::start();
    let store = gateway.store().await;
    let keys = ["volumes/v1/segments/a", "volumes/v1/segments/a", "volumes/v2/segments/b"];
    for (left, key) in keys.iter().enumerate() {
        let mut parts = Endless(Some(vec![3; 5 << 20].into()));
        let begun = async { while store.unfinished_uploads("volumes/").await.unwrap().len() <= left {} };
        tokio::select! {
            done = store.put_segment(key, &mut parts) => panic!("{done:?}"),
            () = begun => {}
        }
    }
    let listed = store.unfinished_uploads("volumes/").await.unwrap();
    assert_eq!(listed.iter().map(|upload| upload.key.as_str()).collect::<Vec<_>>(), keys);
    assert!(listed.iter().all(|upload| upload.age < Duration::from_secs(3600)), "{listed:?}");
    assert_eq!(store.unfinished_uploads("volumes/v2/").await.unwrap().len(), 1);
    for upload in listed.iter().chain(&listed[..1]) {
        store.abort_upload(upload).await.unwrap();
    }
    assert_eq!(store.unfinished_uploads("").await.unwrap(), []);
}
