//! The driver as a process: its pod's probes, and its admin endpoint.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_holdfast-csi");
const START_LIMIT: Duration = Duration::from_secs(60);

/// Retries until `ask` returns a result.
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < START_LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A driver that is killed when the test ends.
struct Driver {
    process: Child,
    /// Address of its admin endpoint.
    admin: String,
}

impl Driver {
    /// Starts a service in a directory, and waits until its admin endpoint listens.
    fn start(dir: &Path, arguments: &[String]) -> Self {
        let log = dir.join("log");
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .arg(format!("--endpoint=unix://{}", dir.join("csi.sock").display()))
            .arg("--metrics-address=127.0.0.1:0")
            .env("RUST_LOG", "info")
            .env("KUBECONFIG", dir.join("kubeconfig"))
            .stderr(File::create(&log).expect("a log"));
        let process = command.spawn().expect("starts");
        let mut driver = Self { process, admin: String::new() };
        driver.admin = until("the admin endpoint listens", || {
            let text = fs::read_to_string(&log).expect("a log");
            assert!(driver.process.try_wait().expect("a process").is_none(), "{text}");
            let (_, rest) = text.split_once("metrics=")?;
            let (address, _) = rest.split_once('\n')?;
            Some(address.split_whitespace().next()?.to_owned())
        });
        driver
    }

    /// Starts the Node service of a node whose daemon does not run.
    fn node(dir: &Path) -> Self {
        let registration = format!("--registration=unix://{}", dir.join("a@reg.sock").display());
        let daemon = format!("--daemon-socket={}", dir.join("no-daemon.sock").display());
        let directory = format!("--directory={}", dir.display());
        Self::start(dir, &["node".to_owned(), "--node-name=a".to_owned(), registration, daemon, directory])
    }

    /// Returns the status and the text of a response.
    fn request(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.admin).expect("connects");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let status = answer.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, answer.split_once("\r\n\r\n").expect("a text").1.to_owned())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// Runs a probe with logging turned off: its output must not be a log line.
fn probe(dir: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .arg("probe")
        .arg(format!("--endpoint=unix://{}", dir.join("csi.sock").display()))
        .args(options)
        .env("RUST_LOG", "off");
    command.output().expect("runs")
}

/// Regression: the kubelet shows the output of a probe; with a quiet log it was empty.
#[test]
fn a_probe_says_why_the_driver_is_not_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let silent = probe(directory.path(), &[]);
    assert_eq!(silent.status.code(), Some(1));
    let output = String::from_utf8_lossy(&silent.stderr);
    assert!(output.starts_with("holdfast-csi: the driver does not answer on "), "{output}");
    assert!(output.contains("csi.sock"), "{output}");

    let driver = Driver::node(directory.path());
    until("the driver is alive", || probe(directory.path(), &[]).status.success().then_some(()));
    let unready = until("the driver has asked the node daemon", || {
        let unready = probe(directory.path(), &["--ready"]);
        String::from_utf8_lossy(&unready.stderr).contains("no-daemon.sock").then_some(unready)
    });
    assert_eq!(unready.status.code(), Some(1));
    let output = String::from_utf8_lossy(&unready.stderr).into_owned();
    let reason = output.strip_prefix("holdfast-csi: the driver is not ready: ").expect("the reason");
    assert!(
        reason.starts_with("the node daemon did not answer on ") && reason.lines().count() == 1,
        "{output}"
    );
    assert_eq!(driver.request("GET", "/readyz", ""), (503, reason.to_owned()));
}

/// Regression: the daemon and the operator had an admin endpoint, but the driver did not.
#[test]
fn each_service_has_an_admin_endpoint() {
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: a\nclusters: [{name: a, cluster: {server: http://127.0.0.1:1}}]\n\
                      users: [{name: a, user: {}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n";
    fs::write(directory.path().join("kubeconfig"), kubeconfig).expect("written");
    let controller = Driver::start(directory.path(), &["controller".to_owned()]);
    assert_eq!(controller.request("GET", "/readyz", ""), (200, "ready\n".to_owned()));
    assert!(controller.request("GET", "/metrics", "").1.contains("holdfast_csi_ready 1\n"));

    let directory = tempfile::tempdir().expect("a directory");
    let node = Driver::node(directory.path());
    assert_eq!(node.request("GET", "/healthz", "").0, 200);
    assert_eq!(node.request("GET", "/readyz", "").0, 503);
    let metrics = node.request("GET", "/metrics", "").1;
    assert!(
        metrics.contains("holdfast_csi_ready 0\n") && metrics.contains("holdfast_log_dropped_lines"),
        "{metrics}"
    );
    assert_eq!(node.request("PUT", "/log-level", "warn"), (200, "warn\n".to_owned()));
    assert_eq!(node.request("GET", "/log-level", ""), (200, "warn\n".to_owned()));
}
