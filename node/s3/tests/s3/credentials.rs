//! Credentials from external sources. A process's environment is fixed at its start, so each of these tests
//! runs itself again in a process with the environment under test.

use std::{
    env,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use holdfast_objects::{Blocker, CreateError, ErrorKind, ObjectStore};
use holdfast_s3::{S3Config, S3Credentials, S3Store};
use hyper::{Request, Response, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::Body;
use tokio::net::TcpListener;

use crate::server::{KEY_ID, SECRET, Server};

/// Set in the second process: the server's address.
const ENDPOINT: &str = "HOLDFAST_TEST_ENDPOINT";

const TOKEN: &str = "a-projected-token";
const ROLE: &str = "arn:aws:iam::123456789012:role/holdfast";

/// Returns the configuration of the second process; `None` in the first.
fn in_second_process(credentials: S3Credentials) -> Option<S3Config> {
    let endpoint = Some(env::var(ENDPOINT).ok()?);
    Some(S3Config { endpoint, path_style: true, ..S3Config::new("bucket", "us-east-1", credentials) })
}

/// Runs the test `name` in a process with only `vars` in its environment.
async fn run_again(name: &str, server: &Server, vars: &[(&str, &str)]) {
    let mut again = Command::new(env::current_exe().unwrap());
    again
        .args(["--exact", name, "--nocapture"])
        .env_clear()
        .env("HOME", "/nonexistent")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env(ENDPOINT, format!("http://{}", server.address))
        .envs(vars.iter().copied())
        .stdin(Stdio::null());
    let ran = tokio::task::spawn_blocking(move || again.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[tokio::test]
async fn the_environment_names_the_key_pair() {
    let Some(config) = in_second_process(S3Credentials::Environment) else {
        let server = Server::start().await;
        let vars = [("AWS_ACCESS_KEY_ID", KEY_ID), ("AWS_SECRET_ACCESS_KEY", SECRET)];
        run_again("credentials::the_environment_names_the_key_pair", &server, &vars).await;
        return;
    };
    S3Store::connect(config).await.unwrap().probe().await.unwrap();
}

#[tokio::test]
async fn an_environment_without_credentials_is_named_and_nothing_is_sent() {
    let Some(config) = in_second_process(S3Credentials::Environment) else {
        let server = Server::start().await;
        let name = "credentials::an_environment_without_credentials_is_named_and_nothing_is_sent";
        run_again(name, &server, &[]).await;
        return;
    };
    let store = S3Store::connect(config).await.unwrap();
    let failure = store.probe().await.unwrap_err();
    assert_eq!((failure.field(), failure.reason()), ("credentials", "CredentialsMissing"), "{failure:?}");
    let create = store.create("a", Bytes::new()).await.unwrap_err();
    assert!(matches!(create, CreateError::Failed(_)), "{create:?}");
    assert_eq!(create.kind(), ErrorKind::Blocked(Blocker::NoCredentials));
}

#[tokio::test]
async fn a_projected_token_is_exchanged_for_a_role() {
    let token_file = env::var("HOLDFAST_TEST_TOKEN").map(PathBuf::from).unwrap_or_default();
    let credentials = S3Credentials::WebIdentity { token_file, role_arn: ROLE.to_owned() };
    let Some(config) = in_second_process(credentials) else {
        let server = Server::start().await;
        let sts = token_service().await;
        let mut token = tempfile::NamedTempFile::new().unwrap();
        token.write_all(TOKEN.as_bytes()).unwrap();
        let vars =
            [("AWS_ENDPOINT_URL_STS", sts.as_str()), ("HOLDFAST_TEST_TOKEN", token.path().to_str().unwrap())];
        run_again("credentials::a_projected_token_is_exchanged_for_a_role", &server, &vars).await;
        return;
    };
    S3Store::connect(config).await.unwrap().probe().await.unwrap();
}

#[tokio::test]
async fn a_missing_token_file_is_named() {
    let server = Server::start().await;
    let token_file = PathBuf::from("/nonexistent/token");
    let credentials = S3Credentials::WebIdentity { token_file, role_arn: ROLE.to_owned() };
    let store = S3Store::connect(S3Config { credentials, ..server.config() }).await.unwrap();
    let failure = store.probe().await.unwrap_err();
    assert_eq!((failure.field(), failure.reason()), ("credentials", "CredentialsMissing"), "{failure:?}");
}

/// Regression, found in review: the attempt's limit ended first, and the message named the S3 server.
#[tokio::test]
async fn a_silent_token_service_is_named() {
    let token_file = env::var("HOLDFAST_TEST_TOKEN").map(PathBuf::from).unwrap_or_default();
    let credentials = S3Credentials::WebIdentity { token_file, role_arn: ROLE.to_owned() };
    let Some(mut config) = in_second_process(credentials) else {
        let server = Server::start().await;
        // The kernel accepts the connections, and no program reads from them.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sts = format!("http://{}", silent.local_addr().unwrap());
        let mut token = tempfile::NamedTempFile::new().unwrap();
        token.write_all(TOKEN.as_bytes()).unwrap();
        let vars =
            [("AWS_ENDPOINT_URL_STS", sts.as_str()), ("HOLDFAST_TEST_TOKEN", token.path().to_str().unwrap())];
        run_again("credentials::a_silent_token_service_is_named", &server, &vars).await;
        return;
    };
    (config.timeouts.attempt, config.timeouts.deadline) = (Duration::from_secs(3), Duration::from_secs(1));
    let failure = S3Store::connect(config).await.unwrap().probe().await.unwrap_err();
    assert_eq!((failure.field(), failure.reason()), ("credentials", "CredentialsMissing"), "{failure:?}");
    assert!(failure.to_string().contains("the token service"), "{failure}");
    assert!(failure.is_passing(), "a later attempt may succeed");
}

/// Runs a token service that knows one token and one role, until the test's runtime drops its task.
async fn token_service() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(assume_role)),
            );
        }
    });
    url
}

async fn assume_role(request: Request<Incoming>) -> Result<Response<Body>, std::convert::Infallible> {
    let mut body = Body::from(request.into_body());
    let form = body.store_all_limited(1 << 16).await.unwrap();
    let form = String::from_utf8_lossy(&form);
    let known = form.contains(&format!("WebIdentityToken={TOKEN}"))
        && form.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Fholdfast");
    let answer = format!(
        "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\">\
         <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{}</AccessKeyId>\
         <SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>session</SessionToken>\
         <Expiration>2100-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>\
         </AssumeRoleWithWebIdentityResponse>",
        if known { KEY_ID } else { "unknown" }
    );
    Ok(Response::new(Body::from(Bytes::from(answer))))
}
