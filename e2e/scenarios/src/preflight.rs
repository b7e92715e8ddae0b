//! `holdfast-node preflight` in a test machine, and the plugin's Pods on an API server without a kubelet.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::process::{LoggedProcess, tail};
use holdfast_lab::report;
use holdfast_lab::s3::{ACCESS_KEY, REGION, S3Server, SECRET_KEY};
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::object::apply;
use super::plugin::{command, plugin};

const BUCKET: &str = "preflight";
const CONFIG: &str = "/etc/preflight.toml";
const LIMIT: Duration = Duration::from_secs(120);
/// A Node without a kubelet.
const GHOST: &str = "ghost";

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm("a")?;
    configure(&vm, &s3.endpoint_in_vm(), BUCKET, SECRET_KEY)?;
    let before = files(&vm)?;

    report::step("a machine that can serve");
    check_all_pass(&vm)?;
    report::step("faults of the machine");
    check_faults(&vm, &s3)?;
    let after = files(&vm)?;
    ensure!(after == before, "it left or removed files.\nBefore:\n{before}\nAfter:\n{after}");
    let keys = s3.keys(BUCKET, "")?;
    ensure!(keys.is_empty(), "it left objects: {keys:?}");

    report::step("next to a serving daemon");
    let node = NodeDaemon::start(vm, &ControlInterface::standalone(&s3, BUCKET), "auto", "")?;
    let beside = preflight(node.vm(), "", 0)?;
    ensure!(beside.contains("PASS other daemon: one uses the state directory"), "{beside}");
    node.wait_ready("200 OK")?;
    node.terminate()?;

    without_kubelet(world)
}

/// Writes the configuration; all users may read it.
pub(super) fn configure(vm: &Vm, endpoint: &str, bucket: &str, secret: &str) -> Result<()> {
    let config = format!(
        "node.name = \"a\"\n[stores.store]\nendpoint = \"{endpoint}\"\nregion = \"{REGION}\"\nbucket = \"{bucket}\"\n\
         path_style = true\n[stores.store.credentials]\naccess_key_id = \"{ACCESS_KEY}\"\n\
         secret_access_key = \"{secret}\"\n"
    );
    vm.put_file(CONFIG, 0o644, config.as_bytes())
}

/// Runs it after this shell prefix, and checks its exit code. Returns its output.
pub(super) fn preflight(vm: &Vm, before: &str, code: i32) -> Result<String> {
    let done = vm.run(&bash(&format!("{before} holdfast-node preflight --config {CONFIG}")), LIMIT)?;
    let output = format!("{}{}", done.stdout, done.stderr);
    ensure!(done.exit == Exit::Code(code), "{before}: {:?}\n{output}", done.exit);
    Ok(output)
}

/// Returns files of the machine that a daemon or a check may create.
fn files(vm: &Vm) -> Result<String> {
    vm.exec("find /state/holdfast /run /dev/shm /tmp /etc /mnt -printf '%p %y %s\\n' | sort")
}

fn check_all_pass(vm: &Vm) -> Result<()> {
    let output = preflight(vm, "", 0)?;
    for line in [
        "PASS kernel: Linux 7.",
        "PASS PID namespace: the host's",
        "PASS io_uring: ",
        "PASS ublk driver: /dev/ublk-control answers",
        "PASS ublk features: ",
        "PASS transport: zero-copy",
        "PASS memory: ",
        "PASS memory reclaim: ",
        "PASS other daemon: none",
        "PASS state directory: /var/lib/holdfast is on ext4",
        "PASS direct I/O: ",
        "PASS fsync: ",
        "PASS hole punching: ",
        "PASS atomic sectors: ",
        "PASS cache size: ",
        "PASS run directory: /run/holdfast is on a tmpfs",
        "PASS store store: bucket preflight",
    ] {
        ensure!(output.lines().any(|output| output.starts_with(line)), "{line:?} is not in\n{output}");
    }
    ensure!(output.lines().count() == 17, "there is another line:\n{output}");
    let json = vm.exec(&format!("holdfast-node preflight --config {CONFIG} --json"))?;
    let json: Value = serde_json::from_str(&json).context("its JSON")?;
    let checks = json["checks"].as_array().context("the checks")?;
    let all_pass = checks.iter().all(|check| check["verdict"] == "PASS" && check["fix"].is_null());
    ensure!(checks.len() == 17 && all_pass, "{json:#}");
    Ok(())
}

/// Tests each fault alone: only its line fails, and names the fix.
fn check_faults(vm: &Vm, s3: &S3Server) -> Result<()> {
    let fails = |before: &str, lines: &[[&str; 3]]| {
        let output = preflight(vm, before, 1)?;
        let failed: Vec<&str> = output.lines().filter(|line| line.starts_with("FAIL ")).collect();
        ensure!(failed.len() == lines.len(), "{before}: not {lines:?}\n{output}");
        for [check, found, fix] in lines {
            let line = failed.iter().find(|line| line.starts_with(&format!("FAIL {check}: ")));
            let line = line.with_context(|| format!("{before}: {check} does not fail\n{output}"))?;
            let (state, action) = line.split_once(". Fix: ").with_context(|| format!("no fix: {line}"))?;
            ensure!(state.contains(found) && action.contains(fix), "not {found:?}, {fix:?}: {line}");
        }
        anyhow::Ok(())
    };
    fails("HOLDFAST_STATE_DIR=/dev/shm/deep/state", &[["state directory", "tmpfs", "node.state_dir"]])?;
    fails("HOLDFAST_SLAB_SIZE=64Gi", &[["cache size", "twice data.seal_size", "a larger disk"]])?;
    fails("HOLDFAST_RUN_DIR=/mnt/run", &[["run directory", "is not on a tmpfs", "below /run"]])?;
    let denied = [
        ["ublk driver", "cannot be used (Permission denied", "as root"],
        ["state directory", "Permission denied", "as root"],
    ];
    fails("setpriv --reuid=65534 --regid=65534 --clear-groups", &denied)?;
    vm.exec("sysctl -qw kernel.io_uring_disabled=2")?;
    let io_uring = fails(
        "",
        &[
            ["io_uring", "Operation not permitted", "kernel.io_uring_disabled=0"],
            ["ublk driver", "cannot be queried without io_uring", "permit io_uring first"],
        ],
    );
    vm.exec("sysctl -qw kernel.io_uring_disabled=0")?;
    io_uring?;
    vm.exec("rmmod ublk_drv")?;
    fails("", &[["ublk driver", "/dev/ublk-control does not exist", "`modprobe ublk_drv`, and"]])?;
    vm.exec("modprobe ublk_drv")?;
    let warned = preflight(vm, "unshare --pid --fork --mount-proc", 0)?;
    ensure!(warned.contains("WARN PID namespace: not the host's"), "{warned}");
    configure(vm, &s3.endpoint_in_vm(), BUCKET, "another")?;
    fails("", &[["store store", "the server does not accept them", "check the key pair"]])?;
    configure(vm, &s3.endpoint_in_vm(), BUCKET, SECRET_KEY)?;
    preflight(vm, "", 0).map(drop)
}

/// Rejections by the plugin, each with its cause, and the deletion of its Pods.
fn without_kubelet(world: &World) -> Result<()> {
    report::step("the plugin's Pods on a node without a kubelet");
    world.kubectl(["create", "serviceaccount", "default"])?;
    apply(world, &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": GHOST } }))?;
    let fails =
        |arguments: &[&str], says: &str| plugin(world, &[&["preflight"], arguments].concat(), 1, says);
    fails(&["other"], "no Node is called other: `kubectl get nodes` lists them")?;
    fails(&[GHOST, "--namespace", "none"], "no namespace is called none: create it")?;
    let guarded = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": { "name": "guarded", "labels": { "pod-security.kubernetes.io/enforce": "baseline" } },
    });
    apply(world, &guarded)?;
    world.kubectl(["create", "serviceaccount", "default", "--namespace=guarded"])?;
    fails(&[GHOST, "--namespace", "guarded"], "namespace guarded does not admit privileged Pods")?;
    fails(&[GHOST, "--timeout", "2s"], "its Pod has not ended within 2s")?;
    check_no_pods(world)?;

    report::step("a killed run, and an interrupted one");
    let killed = start(world, "killed")?;
    let left = wait_other_pod(world, "")?;
    drop(killed);
    let mut interrupted = start(world, "interrupted")?;
    wait_other_pod(world, &left)?;
    interrupted.interrupt()?;
    let status = interrupted.wait(LIMIT)?;
    let log = tail(&world.dir().join("interrupted.log"), 20);
    ensure!(!status.success() && log.contains("interrupted: the Pods were deleted"), "{status}: {log}");
    check_no_pods(world)
}

/// Runs the plugin on the nodes of a cluster before the chart is installed there.
pub(super) fn before_install(world: &World) -> Result<()> {
    report::step("kubectl holdfast preflight, before the chart is installed");
    plugin(world, &["preflight", "--all", "--timeout", "15m"], 0, "PASS transport: zero-copy")?;
    let image = ["preflight", "--all", "--timeout", "15m", "--image", "example.invalid/holdfast-node:none"];
    plugin(world, &image, 1, "Name an image that the node can pull with --image")?;
    check_no_pods(world)
}

/// Starts the plugin on the node without a kubelet.
fn start(world: &World, name: &str) -> Result<LoggedProcess> {
    let command = command(world, &["preflight", GHOST])?;
    LoggedProcess::spawn(name, &command, &world.dir().join(format!("{name}.log")))
}

/// Returns the name of the only Pod, once it differs from `other`.
fn wait_other_pod(world: &World, other: &str) -> Result<String> {
    until("one other Pod", LIMIT, || {
        let names = pods(world)?;
        Ok((!names.is_empty() && !names.contains(' ') && names != other).then_some(names))
    })
}

fn check_no_pods(world: &World) -> Result<()> {
    let left = pods(world)?;
    ensure!(left.is_empty(), "Pods are left: {left}");
    Ok(())
}

/// Returns the names of the Pods, separated by spaces.
fn pods(world: &World) -> Result<String> {
    world.kubectl(["get", "pods", "--output=jsonpath={.items[*].metadata.name}"])
}
