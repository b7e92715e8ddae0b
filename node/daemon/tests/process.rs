//! The daemon as a process of a host: ownership of the node, behavior with a blocked log or collector,
//! shutdown. Needs no ublk: no volume is attached.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::io::{BufRead, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);
const PROGRAM: &str = env!("CARGO_BIN_EXE_holdfast-node");

/// The directories of a node.
struct Dirs {
    state: TempDir,
    run: TempDir,
}

impl Dirs {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap(), run: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn socket(&self) -> PathBuf {
        self.run.path().join("node.sock")
    }
}

/// A daemon; killed when dropped.
struct Daemon {
    child: Child,
    metrics: SocketAddr,
}

impl Daemon {
    fn start(dirs: &Dirs, environment: &[(&str, &str)]) -> Self {
        let log = if environment.is_empty() { Stdio::inherit() } else { Stdio::piped() };
        Self::start_with(dirs, environment, log)
    }

    /// Starts a daemon of Kubernetes, whose API server does not answer.
    fn start_in_pod(dirs: &Dirs, instance: &str) -> Self {
        let environment = [
            ("HOLDFAST_INSTANCE", instance),
            ("HOLDFAST_KUBERNETES", "true"),
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "1"),
        ];
        Self::start(dirs, &environment)
    }

    fn start_with(dirs: &Dirs, environment: &[(&str, &str)], log: Stdio) -> Self {
        // Free a moment ago; the daemon waits for an address in use.
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = dirs.state.path().join(format!("node-{}.toml", metrics.port()));
        let is_pod = environment.iter().any(|(name, _)| *name == "HOLDFAST_KUBERNETES");
        let stores = if is_pod { "" } else { "[stores.main]\nbucket = \"none\"\nregion = \"none\"\n" };
        let text = format!(
            "[node]\nname = \"a\"\nstate_dir = {:?}\nrun_dir = {:?}\n[data]\nring_threads = 1\nslab_size = \"16Mi\"\n\
             [api]\nsocket = {:?}\n[metrics]\nlisten = \"{metrics}\"\n{stores}",
            dirs.state.path(),
            dirs.run.path(),
            dirs.socket(),
        );
        fs::write(&config, text).unwrap();
        let child = Command::new(PROGRAM)
            .args(["run", "--config"])
            .arg(&config)
            .envs(environment.iter().copied())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { child, metrics }
    }

    /// Sends a request to the metrics listener and returns the whole response; `None` while no listener
    /// exists.
    fn ask(&self, request: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.metrics).ok()?;
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn get(&self, path: &str) -> Option<String> {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
    }

    /// Polls until `/readyz` gives this response.
    fn wait_readyz(&self, wanted: &str) {
        until(&format!("/readyz to say {wanted:?}"), || {
            self.get("/readyz").is_some_and(|answer| answer.contains(wanted))
        });
    }

    /// Returns its log lines from now on. Requires a daemon with a separate environment.
    fn lines(&mut self) -> Receiver<String> {
        let logged = std::io::BufReader::new(self.child.stderr.take().unwrap());
        let (lines, received) = std::sync::mpsc::channel();
        // Keeps reading after the test has seen enough: the daemon must not wait for a full pipe.
        std::thread::spawn(move || {
            logged.lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)))
        });
        received
    }

    fn terminate(&self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    }

    fn wait_exit(&mut self) -> ExitStatus {
        until("the daemon to end", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have exited.
        let _killed = self.child.kill();
        let _ended = self.child.wait();
    }
}

/// Waits for a line with `text`.
fn line_with(lines: &Receiver<String>, text: &str) -> String {
    let mut until_end = std::iter::from_fn(|| lines.recv_timeout(LIMIT).ok());
    until_end.find(|line| line.contains(text)).unwrap_or_else(|| panic!("the daemon did not log {text:?}"))
}

/// Polls until the condition holds, because no notification exists.
fn until(description: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "timed out waiting for {description}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns standard error on a full disk.
fn full_disk_output() -> Stdio {
    fs::File::options().write(true).open("/dev/full").unwrap().into()
}

/// Regression: a command that failed to print its error panicked, with another exit code.
#[test]
fn a_full_log_stops_no_daemon_nor_changes_exit_codes() {
    let fails = |log: Stdio| {
        let mut command = Command::new(PROGRAM);
        command.args(["list", "--socket", "/nowhere/node.sock"]).stdout(Stdio::null()).stderr(log);
        command.status().unwrap().code()
    };
    let code = fails(Stdio::null());
    assert!(code.is_some_and(|code| code != 0 && code != 101), "{code:?}");
    assert_eq!(fails(full_disk_output()), code);
    let dirs = Dirs::new();
    let mut daemon = Daemon::start_with(&dirs, &[], full_disk_output());
    daemon.wait_readyz("200 OK");
    daemon.terminate();
    assert!(daemon.wait_exit().success());
}

/// Regression: a daemon that found the lock held exited with an error, and the kubelet backed off while
/// nothing was served.
#[test]
fn a_daemon_waits_for_the_lock_and_is_ready_then() {
    let dirs = Dirs::new();
    let mut first = Daemon::start(&dirs, &[]);
    first.wait_readyz("200 OK");
    let mut second = Daemon::start(&dirs, &[]);
    second.wait_readyz("503 Service Unavailable");
    second.wait_readyz("another holdfast-node holds the lock");
    assert!(second.get("/healthz").unwrap().contains("200 OK"), "the process runs");
    assert!(first.get("/readyz").unwrap().contains("200 OK"), "the first still serves");
    let mut third = Daemon::start(&dirs, &[]);
    third.wait_readyz("another holdfast-node holds the lock");
    third.terminate();
    assert!(third.wait_exit().success(), "a signal ends the wait");
    first.child.kill().unwrap();
    second.wait_readyz("200 OK");
    second.terminate();
    assert!(second.wait_exit().success());
}

/// Regression: nothing was served from the end of a pod until the next one's image was pulled and it ran.
#[test]
fn a_daemon_leaves_the_node_to_a_newer_instance() {
    let dirs = Dirs::new();
    let start = |instance: &str| Daemon::start(&dirs, &[("HOLDFAST_INSTANCE", instance)]);
    let mut old = start("pod-1");
    let _lines = old.lines();
    old.wait_readyz("200 OK");
    let mut new = start("pod-2");
    let _lines = new.lines();
    new.wait_readyz("200 OK");
    assert!(old.wait_exit().success(), "it was asked to leave");

    // The kubelet restarts the container of the old pod.
    let mut old = start("pod-1");
    let lines = old.lines();
    let refused = line_with(&lines, "were not handed over");
    assert!(refused.contains("instance pod-1 served this node before"), "{refused}");
    assert!(new.child.try_wait().unwrap().is_none() && new.get("/readyz").unwrap().contains("200 OK"));
    // If the new one dies, the old one serves until it is back.
    new.child.kill().unwrap();
    old.wait_readyz("200 OK");
    let mut new = start("pod-2");
    let _lines = new.lines();
    new.wait_readyz("200 OK");
    assert!(old.wait_exit().success(), "it is the older one still");
}

/// Found in review: the old daemon ended when it had handed over, so its pod was not ready, and the
/// controller of the DaemonSet deleted it at once. If the new daemon then died, nothing served the node.
#[test]
fn the_daemon_of_an_old_pod_stands_by_and_serves_again() {
    let dirs = Dirs::new();
    let mut old = Daemon::start_in_pod(&dirs, "pod-1");
    let lines = old.lines();
    old.wait_readyz("200 OK");
    let mut new = Daemon::start_in_pod(&dirs, "pod-2");
    let _lines = new.lines();
    new.wait_readyz("200 OK");
    line_with(&lines, "standing by");
    assert!(
        old.get("/readyz").unwrap().contains("200 OK"),
        "its pod stays until the new one has proved itself"
    );

    new.child.kill().unwrap();
    line_with(&lines, "devices recovered");
    old.wait_readyz("200 OK");
    let mut new = Daemon::start_in_pod(&dirs, "pod-2");
    let refused = line_with(&new.lines(), "were not handed over");
    assert!(refused.contains("ended after it had taken over"), "{refused}");
    old.terminate();
    assert!(old.wait_exit().success());
    new.wait_readyz("200 OK");

    // The controller deletes the pod that stands by.
    let mut newest = Daemon::start_in_pod(&dirs, "pod-3");
    let _newest_lines = newest.lines();
    newest.wait_readyz("200 OK");
    assert!(new.get("/readyz").unwrap().contains("200 OK"), "it stands by");
    new.terminate();
    assert!(new.wait_exit().success());
    assert!(newest.get("/readyz").unwrap().contains("200 OK"));
}

/// A version that cannot read an attached volume would have quiesced every device of the node.
#[test]
fn a_daemon_requests_no_handoff_of_unreadable_volumes() {
    let dirs = Dirs::new();
    let mut old = Daemon::start(&dirs, &[]);
    old.wait_readyz("200 OK");
    // Like a later version.
    let volume = dirs.run.path().join("volumes.d/later");
    fs::create_dir_all(&volume).unwrap();
    fs::write(volume.join("attached"), b"of a later version").unwrap();
    let mut new = Daemon::start(&dirs, &[("HOLDFAST_INSTANCE", "pod-2")]);
    let lines = new.lines();
    let refused = line_with(&lines, "were not handed over");
    assert!(refused.contains("volumes.d/later/attached"), "the file is named: {refused}");
    assert!(old.child.try_wait().unwrap().is_none(), "it serves on");
    // It asks once it can read them.
    fs::remove_dir_all(&volume).unwrap();
    new.wait_readyz("200 OK");
    assert!(old.wait_exit().success());
}

/// Regression: only ring threads were marked: an allocation in a thread of the runtime could wait for a
/// device of its own node.
#[test]
fn every_thread_of_the_daemon_is_an_io_flusher() {
    if !may_mark_threads() {
        return println!("skipped: PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE");
    }
    let dirs = Dirs::new();
    let daemon = Daemon::start(&dirs, &[]);
    daemon.wait_readyz("200 OK");
    are_io_flushers(daemon.child.id(), &["holdfast-node", "ring-0", "log", "tokio-rt-worker"]);
}

/// Found in a long run: each thread that uploads had an area of the heap of its own, and small blocks that
/// stay kept most of the memory of all of them.
#[cfg(target_env = "gnu")]
#[test]
fn the_heap_of_a_daemon_has_few_areas() {
    /// glibc's areas but the first one begin at multiples of this.
    const AREA_BYTES: u64 = 64 << 20;
    let dirs = Dirs::new();
    let daemon = Daemon::start(&dirs, &[]);
    daemon.wait_readyz("200 OK");
    let maps = fs::read_to_string(format!("/proc/{}/maps", daemon.child.id())).unwrap();
    let is_area = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let start = u64::from_str_radix(words[0].split('-').next().unwrap(), 16).unwrap();
        words[1] == "rw-p" && words.len() == 5 && start.is_multiple_of(AREA_BYTES)
    };
    let areas: Vec<&str> = maps.lines().filter(is_area).collect();
    assert!(areas.len() <= 1, "besides the first one: {areas:?}");
}

/// Regression: a keeper in a separate pod was not marked: a starting daemon waits for it.
#[test]
fn every_thread_of_a_keeper_is_an_io_flusher() {
    if !may_mark_threads() {
        return println!("skipped: PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE");
    }
    let run_dir = tempfile::tempdir().unwrap();
    let mut keeper = Command::new(PROGRAM);
    keeper.args(["keeper", "--run-dir"]).arg(run_dir.path()).stderr(Stdio::piped());
    let mut keeper = Killed(keeper.spawn().unwrap());
    let mut said = std::io::BufReader::new(keeper.0.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("serving")), "it serves");
    are_io_flushers(keeper.0.id(), &["holdfast-keeper"]);
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn may_mark_threads() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(capabilities.trim(), 16).unwrap() & (1 << CAP_SYS_RESOURCE) != 0
}

/// Checks the threads of a process, which include these.
fn are_io_flushers(pid: u32, due: &[&str]) {
    /// `PF_MEMALLOC_NOIO`, which `PR_SET_IO_FLUSHER` sets. Source: `linux/sched.h`.
    const PF_MEMALLOC_NOIO: u64 = 0x0008_0000;
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        // The thread may have exited in the meantime.
        let Ok(stat) = fs::read_to_string(task.unwrap().path().join("stat")) else { continue };
        let (name, rest) = stat.rsplit_once(')').unwrap();
        let flags: u64 = rest.split_whitespace().nth(6).unwrap().parse().unwrap();
        threads.push((name.rsplit_once('(').unwrap().1.to_owned(), flags & PF_MEMALLOC_NOIO != 0));
    }
    for name in due {
        assert!(threads.iter().any(|(thread, _)| thread.starts_with(name)), "{name}: {threads:?}");
    }
    let not_marked: Vec<_> = threads.iter().filter(|(_, is_marked)| !is_marked).collect();
    assert!(not_marked.is_empty(), "{not_marked:?}");
}

/// Regression: a more detailed log of a daemon required a restart, which quiesces its devices.
#[test]
fn the_log_level_changes_without_a_restart() {
    let dirs = Dirs::new();
    let mut daemon = Daemon::start(&dirs, &[("RUST_LOG", "warn")]);
    let stderr = daemon.child.stderr.take().unwrap();
    let (lines, logged) = std::sync::mpsc::channel();
    let reads = std::thread::spawn(move || {
        let lines_of = std::io::BufReader::new(stderr).lines();
        lines_of.map_while(Result::ok).try_for_each(|line| lines.send(line))
    });
    daemon.wait_readyz("200 OK");
    let put = |level: &str| {
        let head = "PUT /log-level HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length:";
        daemon.ask(&format!("{head} {}\r\n\r\n{level}", level.len())).unwrap()
    };
    let refused = put("degub");
    assert!(refused.contains("400 Bad Request") && refused.contains("`degub` is not a level"), "{refused}");
    assert!(daemon.get("/log-level").unwrap().ends_with("\r\n\r\nwarn\n"));
    assert!(put("trace").contains("200 OK"));
    let list = Command::new(PROGRAM).arg("list").arg("--socket").arg(dirs.socket()).output().unwrap();
    assert!(list.status.success(), "{list:?}");
    let begun = Instant::now();
    while !logged.recv_timeout(LIMIT).unwrap().contains("TRACE") {
        assert!(begun.elapsed() < LIMIT, "no TRACE line");
    }
    daemon.terminate();
    assert!(daemon.wait_exit().success());
    drop(logged);
    // The receiver may be gone: the reader may have stopped early.
    let _stopped = reads.join().unwrap();
}

/// Regression: with an unresponsive collector, the successor waited for the lock while devices were quiesced.
#[test]
fn a_silent_trace_collector_does_not_keep_the_lock() {
    let dirs = Dirs::new();
    let collector = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", collector.local_addr().unwrap());
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("RUST_LOG", "trace")];
    let mut daemon = Daemon::start(&dirs, &environment);
    let mut stderr = daemon.child.stderr.take().unwrap();
    let reads = std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    daemon.wait_readyz("200 OK");
    // It creates spans.
    let list = Command::new(PROGRAM).arg("list").arg("--socket").arg(dirs.socket()).output().unwrap();
    assert!(list.status.success(), "{list:?}");
    let lock = fs::File::open(dirs.state.path().join("lock")).unwrap();
    assert!(lock.try_lock().is_err(), "the daemon holds it");
    let begun = Instant::now();
    daemon.terminate();
    until("the lock", || lock.try_lock().is_ok());
    assert!(daemon.child.try_wait().unwrap().is_none(), "the lock was held to the end of the process");
    assert!(daemon.wait_exit().success());
    assert!(begun.elapsed() < Duration::from_secs(20), "the last traces have a limit: {:?}", begun.elapsed());
    reads.join().unwrap().unwrap();
}
