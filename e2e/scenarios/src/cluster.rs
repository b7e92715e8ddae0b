//! Claims on a real cluster: scheduler, controllers, kubelet, sidecars and our own pods, installed by helm.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::cluster::{ATTRIBUTES, Cluster, ClusterStore, TOOLS_IMAGE};
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::{Value, json};

use super::object::{apply, file};
use super::plugin::plugin;
use super::preflight;
use super::provisioning::check_remains;
use super::top;

const BUCKET: &str = "cluster";
/// Name of ObjectStore and StorageClass.
const STORE: &str = "main";
/// A claim with a file system, and one that is a raw device.
const CLAIMS: [(&str, &str); 2] = [("files", "Filesystem"), ("raw", "Block")];
/// Prints a sum of each, the same in every pod.
const SUM: &str = "head -c 1048576 /dev/raw | sha256sum; sha256sum < /data/file";

/// Namespace of the chart.
const NAMESPACE: &str = "--namespace=holdfast-system";
const DAEMON_SET: &str = "daemonset/holdfast-node";
/// Selects the daemon's pods.
const NODE_PODS: &str = "--selector=app.kubernetes.io/component=node";
/// Repeatedly writes a sector, and prints the time of each flush, in seconds.
const BUSY: &str = "while :; do dd if=/dev/zero of=/data/beat bs=4096 count=1 conv=fsync 2>/dev/null
                    cut -d ' ' -f 1 /proc/uptime; sleep 0.2; done";
/// Maximum pause of writes during a handoff, in seconds; on an idle emulated node it is 2 to 6.
const MAX_PAUSE: f64 = 10.0;
/// The same if the next pod starts only after the daemon has exited.
const MAX_PAUSE_OF_EVICTION: f64 = 60.0;
/// Time until a kubelet reports that it cannot pull an image.
const PULL_LIMIT: Duration = Duration::from_secs(300);
/// Time until a pod in deletion is gone.
const POD_LIMIT: Duration = Duration::from_secs(300);
/// Time until the pod writes again.
const WRITE_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let cluster = Cluster::start(world)?;
    preflight::before_install(world).with_context(|| cluster.describe())?;
    cluster.install(&ClusterStore { name: STORE, bucket: BUCKET, endpoint: &s3.endpoint_in_vm() })?;
    play(world, &cluster).with_context(|| cluster.describe())?;
    // A kubelet may end the operator in the middle of a probe; a later probe deletes its object.
    let mut left = s3.keys(BUCKET, "")?;
    left.retain(|key| !key.starts_with("probe/"));
    // Those of the claims, the one of the chart's own test, and the restored one.
    check_remains(&left, CLAIMS.len() + 2)?;
    report::step("helm uninstall");
    cluster.uninstall()
}

fn play(world: &World, cluster: &Cluster) -> Result<()> {
    report::step("apply two claims and a pod that writes to both");
    for (name, mode) in CLAIMS {
        apply(world, &claim(name, mode))?;
    }
    let write = "head -c 4194304 /dev/urandom > /data/file
                 head -c 1048576 /dev/urandom | dd of=/dev/raw bs=4096 conv=fsync 2>/dev/null; sync";
    let written = pod(world, "writer", &format!("{write}; {SUM}"))?;
    ensure!(written.lines().count() == 2, "the writer printed {written:?}");
    cluster.node().exec("! ls /dev/ublkb* 2>/dev/null").context("the devices are gone from the node")?;

    report::step("a second pod reads the same bytes");
    let read = pod(world, "reader", SUM)?;
    ensure!(read == written, "written was {written}, read {read}");

    replace_daemon(world, cluster)?;
    restore_by_plugin(world)?;

    report::step("a claim gets the settings of a VolumeAttributesClass");
    let wish = format!("{{\"spec\": {{\"volumeAttributesClassName\": \"{ATTRIBUTES}\"}}}}");
    world.kubectl(["patch", "pvc/files", "--type=merge", "--patch", &wish])?;
    let current = format!("--for=jsonpath={{.status.currentVolumeAttributesClassName}}={ATTRIBUTES}");
    world.kubectl(["wait", "pvc/files", &current, "--timeout=300s"])?;
    let settings = "--output=jsonpath={.items[*].spec.durability}";
    let settings = world.kubectl(["get", "volumes", settings])?;
    ensure!(settings.matches("object").count() == 1, "the Volumes say {settings:?}");

    report::step("helm test");
    cluster.test()?;

    report::step("delete the claims");
    for (name, _) in CLAIMS {
        world.kubectl(["delete", "pvc", name, "--timeout=600s"])?;
    }
    world.kubectl(["wait", "pv", "--all", "--for=delete", "--timeout=600s"])?;
    let left = world.kubectl(["get", "volumes", "--output=name"])?;
    ensure!(left.is_empty(), "volumes are left: {left}");
    Ok(())
}

/// Replaces the daemon while a pod writes: the pod sees no error in any case. Its flushes only require the
/// node's own disk: flushes that wait for the store would also wait for the log to be read.
fn replace_daemon(world: &World, cluster: &Cluster) -> Result<()> {
    apply(world, &job("busy", BUSY))?;
    world.kubectl(["wait", "pod/busy", "--for=condition=Ready", "--timeout=900s"])?;

    report::step("the plugin shows the pod's writes");
    let old = daemon_pod_name(world)?;
    cluster.reach(cluster.daemon()?.context("the daemon's pod has no address")?)?;
    top::wait_written(world, "default/files", "default/raw")?;

    report::step("the daemon is rolled while a pod writes");
    check_pause_during(world, MAX_PAUSE, || {
        world.kubectl(["rollout", "restart", DAEMON_SET, NAMESPACE])?;
        wait_rollout(world, &old)
    })?;
    let new = daemon_pod_name(world)?;
    let log = world.kubectl(["logs", &new, NAMESPACE])?;
    ensure!(log.contains("agreed to leave its devices"), "the daemons did not hand over:\n{log}");

    die_after_takeover(world, cluster, &new)?;
    let new = daemon_pod_name(world)?;

    report::step("the daemon's pod is evicted");
    check_pause_during(world, MAX_PAUSE_OF_EVICTION, || {
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": new, "namespace": "holdfast-system" },
        });
        let path = format!("/api/v1/namespaces/holdfast-system/pods/{new}/eviction");
        world.kubectl(["create", "--raw", &path, "--filename", &file(world, &eviction)?])?;
        wait_rollout(world, &new)
    })?;

    report::step("a missing image is rolled out, and the rollout is reverted");
    let old = daemon_pod_name(world)?;
    check_pause_during(world, MAX_PAUSE, || {
        let image = |image: &str| {
            world.kubectl(["set", "image", DAEMON_SET, NAMESPACE, &format!("node={image}")]).map(drop)
        };
        let path = "--output=jsonpath={.spec.template.spec.containers[?(@.name=='node')].image}";
        let good = world.kubectl(["get", DAEMON_SET, NAMESPACE, path])?;
        image("example.invalid/holdfast-node:none")?;
        let reasons = "--output=jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}";
        until("the kubelet to say that it cannot pull the image", PULL_LIMIT, || {
            let reasons = world.kubectl(["get", "pods", NAMESPACE, NODE_PODS, reasons])?;
            Ok(reasons.contains("ImagePull").then_some(()))
        })?;
        world.kubectl([
            "wait",
            &format!("pod/{old}"),
            NAMESPACE,
            "--for=condition=Ready",
            "--timeout=300s",
        ])?;
        image(&good)?;
        world.kubectl(["rollout", "status", DAEMON_SET, NAMESPACE, "--timeout=900s"]).map(drop)
    })?;
    ensure!(daemon_pod_name(world)? == old, "the daemon that served was replaced");

    world.kubectl(["delete", "pod", "busy", "--timeout=600s"])?;
    world.kubectl(["wait", "volumeattachment", "--all", "--for=delete", "--timeout=600s"]).map(drop)
}

/// A new daemon dies as soon as it has taken over. The old pod is still there, serves again, and hands over
/// once more after ten seconds.
fn die_after_takeover(world: &World, cluster: &Cluster, old: &str) -> Result<()> {
    report::step("the daemon is rolled, and the new one dies when it has taken over");
    check_pause_during(world, MAX_PAUSE, || {
        world.kubectl(["rollout", "restart", DAEMON_SET, NAMESPACE])?;
        until("the old daemon to stand by", POD_LIMIT, || {
            Ok(world.kubectl(["logs", old, NAMESPACE])?.contains("standing by").then_some(()))
        })?;
        let name = "--output=jsonpath={.items[*].metadata.name}";
        let names = world.kubectl(["get", "pods", NAMESPACE, NODE_PODS, name])?;
        let new = names.split(' ').find(|name| *name != old).context("there is no new pod")?;
        until("the new daemon to have the devices", POD_LIMIT, || {
            Ok(world.kubectl(["logs", new, NAMESPACE])?.contains("devices recovered").then_some(()))
        })?;
        // The daemon of the old pod is the older process.
        cluster.node().exec("pkill -9 --newest --exact holdfast-node")?;
        until("the old daemon to serve again", POD_LIMIT, || {
            let log = world.kubectl(["logs", old, NAMESPACE])?;
            Ok((log.matches("devices recovered").count() == 2).then_some(()))
        })?;
        wait_rollout(world, old)
    })
}

/// A Volume whose data stayed in the bucket is restored with the output of the plugin.
fn restore_by_plugin(world: &World) -> Result<()> {
    report::step("a Volume that retains its data is deleted, and restored by the plugin");
    plugin(world, &["restore", "none"], 1, "holdfast-operator: ")?;
    let kept = json!({
        "apiVersion": "storage.holdfast.dev/v1alpha1",
        "kind": "Volume",
        "metadata": { "name": "kept" },
        "spec": { "size": "64Mi", "objectStore": STORE, "deletionPolicy": "Retain" },
    });
    apply(world, &kept)?;
    world.wait_for("volume/kept", "jsonpath={.status.phase}=Ready")?;
    let documents = plugin(world, &["restore", STORE], 0, "")?;
    ensure!(documents.is_empty(), "what the cluster has is printed: {documents}");
    world.kubectl(["delete", "volume", "kept", "--timeout=300s"])?;
    let documents = plugin(world, &["restore", STORE, "--namespace=holdfast-system"], 0, "name: kept")?;
    let file = world.dir().join("restored.yaml");
    fs::write(&file, documents).context("write the documents")?;
    world.kubectl(["apply", "--filename", &file.display().to_string()])?;
    world.wait_for("volume/kept", "jsonpath={.status.phase}=Ready")?;
    let policy = "--patch={\"spec\":{\"deletionPolicy\":\"Delete\"}}";
    world.kubectl(["patch", "volume", "kept", "--type=merge", policy])?;
    world.kubectl(["delete", "volume", "kept", "--timeout=300s"]).map(drop)
}

/// Returns the name of the daemon's pod, once there is only one.
fn daemon_pod_name(world: &World) -> Result<String> {
    let path = "--output=jsonpath={.items[*].metadata.name}";
    until("one pod of the daemon", POD_LIMIT, || {
        let names = world.kubectl(["get", "pods", NAMESPACE, NODE_PODS, path])?;
        Ok((!names.is_empty() && !names.contains(' ')).then_some(names))
    })
}

/// Waits until pod `old` of the daemon is gone and another one is ready.
fn wait_rollout(world: &World, old: &str) -> Result<()> {
    world.kubectl(["wait", &format!("pod/{old}"), NAMESPACE, "--for=delete", "--timeout=600s"])?;
    world.kubectl(["rollout", "status", DAEMON_SET, NAMESPACE, "--timeout=900s"]).map(drop)
}

/// Runs an action on the daemon, and checks that the writes of pod `busy` continue and pause for at most
/// `most` seconds.
fn check_pause_during(world: &World, most: f64, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let before = flush_times(world)?.len();
    act()?;
    let after = flush_times(world)?.len();
    let beats = until("the pod to write", WRITE_LIMIT, || {
        let beats = flush_times(world)?;
        Ok((beats.len() > after).then_some(beats))
    })?;
    let since = &beats[before.saturating_sub(1)..];
    let longest = since.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    report::step(format_args!("the longest pause of the pod's writes was {longest:.1} s"));
    let state = "--output=jsonpath={.status.phase} {.status.containerStatuses[0].restartCount}";
    let state = world.kubectl(["get", "pod", "busy", state])?;
    ensure!(state == "Running 0", "the pod is {state}");
    ensure!(longest < most, "the pod's writes paused for {longest:.1} s");
    Ok(())
}

/// Returns the times printed by [`BUSY`], in seconds.
fn flush_times(world: &World) -> Result<Vec<f64>> {
    let printed = world.kubectl(["logs", "busy"])?;
    printed.lines().map(|line| line.parse().with_context(|| format!("the pod printed {line:?}"))).collect()
}

/// Runs a pod on the claims to completion, waits until its volumes are detached, and returns its output.
fn pod(world: &World, name: &str, script: &str) -> Result<String> {
    apply(world, &job(name, script))?;
    world.kubectl([
        "wait",
        &format!("pod/{name}"),
        "--for=jsonpath={.status.phase}=Succeeded",
        "--timeout=900s",
    ])?;
    let printed = world.kubectl(["logs", name])?;
    world.kubectl(["delete", "pod", name, "--timeout=600s"])?;
    world.kubectl(["wait", "volumeattachment", "--all", "--for=delete", "--timeout=600s"])?;
    Ok(printed)
}

fn claim(name: &str, mode: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": mode,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

fn job(name: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "shell",
                "image": TOOLS_IMAGE,
                "command": ["/bin/sh", "-euc", script],
                "volumeMounts": [{ "name": "files", "mountPath": "/data" }],
                "volumeDevices": [{ "name": "raw", "devicePath": "/dev/raw" }],
            }],
            "volumes": CLAIMS.map(|(claim, _)| json!({
                "name": claim,
                "persistentVolumeClaim": { "claimName": claim },
            })),
        },
    })
}
