//! The driver as a process, and the probes of its pod.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_holdfast-csi");
const START_LIMIT: Duration = Duration::from_secs(60);

/// A driver that is killed when the test ends.
struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// The Node service in a directory, of a node without a daemon.
fn start(dir: &Path) -> Driver {
    let mut command = Command::new(PROGRAM);
    command
        .args(["node", "--node-name=a"])
        .arg(format!("--endpoint=unix://{}", dir.join("csi.sock").display()))
        .arg(format!("--registration=unix://{}", dir.join("a@reg.sock").display()))
        .arg(format!("--daemon-socket={}", dir.join("no-daemon.sock").display()))
        .arg(format!("--directory={}", dir.display()))
        .stderr(Stdio::null());
    Driver(command.spawn().expect("starts"))
}

/// A probe, with a log that is off: the answer is no log line.
fn probe(dir: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command
        .arg("probe")
        .arg(format!("--endpoint=unix://{}", dir.join("csi.sock").display()))
        .args(options)
        .env("RUST_LOG", "off");
    command.output().expect("runs")
}

/// Asks until a probe succeeds, or says these words.
fn probed(dir: &Path, options: &[&str], words: Option<&str>) -> Output {
    let begun = Instant::now();
    loop {
        let output = probe(dir, options);
        let said = String::from_utf8_lossy(&output.stderr);
        if words.map_or(output.status.success(), |words| said.contains(words)) {
            return output;
        }
        assert!(begun.elapsed() < START_LIMIT, "{options:?}: {output:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The kubelet shows what a probe says; with a quiet log it had nothing to show.
#[test]
fn a_probe_says_why_the_driver_is_not_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let silent = probe(directory.path(), &[]);
    assert_eq!(silent.status.code(), Some(1));
    let said = String::from_utf8_lossy(&silent.stderr);
    assert!(
        said.starts_with("holdfast-csi: the driver does not answer on ") && said.contains("csi.sock"),
        "{said}"
    );

    let _driver = start(directory.path());
    probed(directory.path(), &[], None);
    let unready = probed(directory.path(), &["--ready"], Some("no-daemon.sock"));
    assert_eq!(unready.status.code(), Some(1));
    let said = String::from_utf8_lossy(&unready.stderr);
    assert!(
        said.starts_with("holdfast-csi: the driver is not ready: the node daemon did not answer on "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
