//! A store that is slow, resets connections, rejects requests, loses responses, or stops responding: each
//! volume passes its lifecycle with one of these faults, and nothing is lost or committed twice.
//!
//! A proxy applies the fault to the first request for each object and method, so each one is affected once.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::proxy::{FaultProxy, ProxyFault, Rule};
use holdfast_lab::s3::{ACCESS_KEY, S3Server, SECRET_KEY};
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

const BUCKET: &str = "faults";
/// The volumes, named after the faults of their requests.
const VOLUMES: [(&str, ProxyFault); 6] = [
    ("late", ProxyFault::Delay(Duration::from_millis(300))),
    ("reset-before", ProxyFault::ResetBefore),
    ("reset-inside", ProxyFault::ResetInside),
    ("slow-down", ProxyFault::SlowDown),
    ("lost-reply", ProxyFault::LostReply),
    ("black-hole", ProxyFault::BlackHole),
];
/// Write-and-commit rounds per volume. The unresponsive volume gets one, because each of its requests takes
/// seconds.
const ROUNDS: u32 = 3;
/// Number of attempts by a user who sees failures.
const ATTEMPTS: u32 = 4;
/// Time limit of a commit in which every request fails once; a request to an unresponsive store fails after
/// five seconds.
const COMMIT_LIMIT: Duration = Duration::from_secs(180);
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
/// Uploads start soon after the writes.
const DATA: &str = "seal_size = \"1Mi\"\nmax_dirty_age = \"1s\"";
/// Directory of the node's data of its volumes.
const LOCAL: &str = "/var/lib/holdfast/volumes";

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let proxy = FaultProxy::start(s3.port())?;
    report::step("the conformance suite of object stores, through the proxy");
    run_conformance_through(&proxy, world)?;

    let control =
        ControlInterface::Standalone { endpoint: proxy.endpoint_in_vm(), bucket: BUCKET.to_owned() };
    let node = NodeDaemon::start(world.vm("a")?, &control, "auto", DATA)?;
    fault_all_requests(&proxy);
    report::step("a volume for each fault: create, attach, write, commit, detach");
    let written = run_for_each_volume(|name, fault| {
        write(&node, name, if fault == ProxyFault::BlackHole { 1 } else { ROUNDS })
    })?;
    // From here on, data is read only from the store.
    node.terminate()?;
    node.vm().exec(&format!("rm -r {LOCAL}"))?;
    node.restart()?;
    fault_all_requests(&proxy);
    report::step("attach each on a node that has nothing of it, and compare");
    let read = run_for_each_volume(|name, _| read_back(&node, name))?;
    ensure!(read == written, "read {read:?}, written {written:?}");

    proxy.set_rules(Vec::new());
    for (name, _) in VOLUMES {
        check_log(&s3, name)?;
    }
    let faults = proxy.faults();
    for (name, fault) in VOLUMES {
        ensure!(faults.contains_key(&fault), "no request of {name} was hit: {faults:?}");
    }
    report::step(format_args!("requests hit: {faults:?}"));
    report::step("a flush to the store waits while the store is unreachable");
    check_waiting_flush(&node, &proxy)?;
    node.terminate()
}

/// A flush with `durability: object` neither fails nor succeeds before its commit is in the store.
fn check_waiting_flush(node: &NodeDaemon, proxy: &FaultProxy) -> Result<()> {
    let vm = node.vm();
    node.cli(&["create", "flushed", "--size", "16Mi", "--store", "store"])?;
    let attached = node.cli(&[
        "attach",
        "flushed",
        "--store",
        "store",
        "--max-dirty-age",
        "1h",
        "--durability",
        "object",
    ])?;
    let device = attached.trim();
    vm.wait_block_device(device, DEVICE_LIMIT)?;
    proxy.make_unreachable();
    vm.spawn(
        "flush",
        &bash(&format!(
            "exec dd if=/dev/zero of={device} bs=4k count=4 oflag=direct conv=fsync,notrunc status=none"
        )),
    )?;
    until("a flush that waits", COMMIT_LIMIT, || {
        let ended = vm.status("flush")?;
        ensure!(ended.is_none(), "dd ended: {ended:?} {}", vm.log("flush")?);
        let flushes = node.metric("holdfast_volume_waiting_requests", "flushed")?;
        Ok((flushes > Some(0.0)).then_some(()))
    })?;
    proxy.make_reachable();
    let exit = vm.wait("flush", COMMIT_LIMIT)?;
    ensure!(exit == Exit::Code(0), "dd ended by {exit:?}: {}", vm.log("flush")?);
    let dirty = node.metric("holdfast_volume_dirty_bytes", "flushed")?;
    ensure!(dirty == Some(0.0), "flushed with {dirty:?} bytes that are not in the store");
    node.cli(&["detach", "flushed"]).map(drop)
}

/// Runs the suite of `node/objects` on the real client. Creates are excluded: a lost response is rightly not
/// a success. So is an unresponsive store: the suite's hundred sequential requests would wait for minutes.
fn run_conformance_through(proxy: &FaultProxy, world: &World) -> Result<()> {
    for (_, fault) in VOLUMES.into_iter().filter(|&(_, fault)| fault != ProxyFault::BlackHole) {
        let rule = |method, target: &str| Rule { method, target: target.to_owned(), first_only: true, fault };
        proxy.set_rules(vec![rule(Some("GET"), ""), rule(Some("DELETE"), ""), rule(None, "segment-in-")]);
        conformance(world, &proxy.endpoint(), BUCKET).with_context(|| format!("with {fault:?}"))?;
    }
    Ok(())
}

/// Runs the suite of `node/objects` on the real client against the bucket of a server.
pub(super) fn conformance(world: &World, endpoint: &str, bucket: &str) -> Result<()> {
    let tests = world.toolbox().test_program("s3", BuildProfile::Dev)?;
    let done = std::process::Command::new(&tests)
        .args(["--ignored", "--exact", "behind_faults::a_server_that_fails_now_and_then_conforms"])
        .env("HOLDFAST_TEST_S3", endpoint)
        .env("HOLDFAST_TEST_BUCKET", bucket)
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .output()
        .context("run the conformance suite")?;
    let lines = String::from_utf8_lossy(&done.stdout);
    ensure!(
        done.status.success() && lines.contains("1 passed"),
        "{lines}\n{}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

fn fault_all_requests(proxy: &FaultProxy) {
    let rule = |&(name, fault): &(&str, ProxyFault)| Rule {
        method: None,
        target: name.to_owned(),
        first_only: true,
        fault,
    };
    proxy.set_rules(VOLUMES.iter().map(rule).collect());
}

/// Runs an action for all volumes concurrently.
fn run_for_each_volume(work: impl Fn(&str, ProxyFault) -> Result<String> + Sync) -> Result<Vec<String>> {
    std::thread::scope(|scope| {
        let work = &work;
        let workers: Vec<_> =
            VOLUMES.map(|(name, fault)| scope.spawn(move || work(name, fault).context(name))).into();
        let ends = workers.into_iter().map(|worker| worker.join());
        ends.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

/// Creates, writes and detaches the volume. Returns the SHA-256 of its contents.
fn write(node: &NodeDaemon, name: &str, rounds: u32) -> Result<String> {
    retry_command(node, &["create", name, "--size", "16Mi", "--store", "store"])?;
    let device = attach(node, name)?;
    for round in 0..rounds {
        let mut script = String::new();
        for block in (round..16).step_by(2) {
            writeln!(
                script,
                "head -c 200000 /dev/urandom | dd of={device} bs=200000 seek={block} conv=notrunc status=none"
            )?;
        }
        writeln!(script, "sync {device}")?;
        node.vm().exec(&script)?;
        until("the commit", COMMIT_LIMIT, || {
            Ok((node.metric("holdfast_volume_dirty_bytes", name)? == Some(0.0)).then_some(()))
        })?;
    }
    let sum = sum(node, &device)?;
    retry_command(node, &["detach", name])?;
    Ok(sum)
}

fn read_back(node: &NodeDaemon, name: &str) -> Result<String> {
    let device = attach(node, name)?;
    let sum = sum(node, &device)?;
    retry_command(node, &["detach", name])?;
    Ok(sum)
}

fn sum(node: &NodeDaemon, device: &str) -> Result<String> {
    node.vm().exec(&format!("dd if={device} bs=1M iflag=direct status=none | sha256sum"))
}

fn attach(node: &NodeDaemon, name: &str) -> Result<String> {
    let device = retry_command(node, &["attach", name, "--store", "store"])?.trim().to_owned();
    node.vm().wait_block_device(&device, DEVICE_LIMIT)?;
    Ok(device)
}

/// Sends a command to the daemon, and retries if it could not reach its store.
fn retry_command(node: &NodeDaemon, what: &[&str]) -> Result<String> {
    let mut tries = 1;
    loop {
        match node.cli(what) {
            Err(error) if tries < ATTEMPTS => report::step(format_args!("asking again after: {error}")),
            done => return done,
        }
        tries += 1;
    }
}

/// Checks that the log has each record once, without gaps, and as many commits as segments exist.
fn check_log(s3: &S3Server, name: &str) -> Result<()> {
    let records = s3.keys(BUCKET, &format!("volumes/{name}/log/"))?;
    for (index, key) in records.iter().enumerate() {
        ensure!(key.ends_with(&format!("/{:020}", index + 1)), "{name} has a gap in its log: {records:?}");
    }
    let mut created = 0;
    for request in s3.requests()? {
        let succeeded = request.operation == "PutObject" && request.status == 200;
        created += usize::from(succeeded && request.key.starts_with(&format!("volumes/{name}/log/")));
    }
    ensure!(created == records.len(), "{name}: {created} records were created, {} are there", records.len());
    // Created once, attached twice, detached twice.
    let commits = records.len() - 5;
    let segments = s3.keys(BUCKET, &format!("volumes/{name}/segments/"))?.len();
    ensure!(commits == segments && commits >= 1, "{name}: {commits} commits of {segments} segments");
    Ok(())
}
