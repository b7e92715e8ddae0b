//! The suite against a real server behind a flaky network; the caller provides both.

use std::{env, sync::Arc};

use holdfast_objects::conformance::{StoreUnderTest, run_all};
use holdfast_s3::{S3Config, S3Credentials, S3Store};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a server: set HOLDFAST_TEST_S3 to its endpoint and HOLDFAST_TEST_BUCKET (`cargo e2e test s3-faults` does)"]
async fn a_server_that_fails_now_and_then_conforms() {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("set {name}"));
    let store = S3Store::connect(S3Config {
        endpoint: Some(variable("HOLDFAST_TEST_S3")),
        path_style: true,
        ..S3Config::new(variable("HOLDFAST_TEST_BUCKET"), "us-east-1", S3Credentials::Environment)
    })
    .await
    .unwrap();
    let subject = StoreUnderTest {
        store: Arc::new(store),
        scope: "conformance".to_owned(),
        large_bytes: (12 << 20) + 345,
    };
    run_all(&subject).await.unwrap_or_else(|wrong| panic!("{wrong}"));
}
