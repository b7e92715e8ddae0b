//! The Helm chart.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::world::World;
use serde_json::{Value, json};

/// API group of the snapshot controller's CRDs.
const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1";
/// API group of its CRDs for group snapshots.
const GROUP_SNAPSHOTS: &str = "groupsnapshot.storage.k8s.io/v1";
/// The same for the service that reports changed blocks.
const CHANGED_BLOCKS: &str = "cbt.storage.k8s.io/v1beta1";
/// API group of the Prometheus operator's CRDs, which the API server here does not have.
const PROMETHEUS: &str = "apiVersion: monitoring.coreos.com/";
/// Kinds that are rendered only if enabled in the values.
const OPTIONAL: [&str; 6] = [
    "kind: VolumeAttributesClass",
    "kind: PodMonitor",
    "kind: PrometheusRule",
    "kind: NetworkPolicy",
    "kind: Pod",
    "grafana_dashboard: \"1\"",
];
/// One each for operator and CSI controller, if they have several instances.
const BUDGET: &str = "kind: PodDisruptionBudget";

pub(super) fn run(world: &World) -> Result<()> {
    for (version, expected) in [("1.33.0", false), ("1.34.0", true)] {
        let found = refreshes_volume_limit(world, version)?;
        ensure!(found == expected, "for Kubernetes {version} the update period is rendered: {found}");
    }
    world.kubectl(["create", "namespace", NAMESPACE])?;
    let defaults = render(world, "defaults", &json!({}))?;
    for kind in OPTIONAL {
        ensure!(!has_line(&defaults, kind), "{kind} is rendered although no value asks for it");
    }
    ensure!(count(&defaults, BUDGET) == 2, "operator and CSI controller lack a budget");
    for daemon_set in defaults.iter().filter(|object| object.lines().any(|line| line == "kind: DaemonSet")) {
        ensure!(is_never_evicted(daemon_set)?, "an autoscaler may evict the pods of\n{daemon_set}");
    }
    ensure!(count(&defaults, "kind: DaemonSet") == 2, "node daemon and CSI node are DaemonSets");
    check_probe_timeouts(&defaults)?;
    check_host_dev_unused(&defaults)?;
    check_nodes_removable(&defaults)?;
    apply_rendered(world, "defaults", &defaults)?;
    let all = render(world, "all", &all_values())?;
    for kind in OPTIONAL {
        ensure!(has_line(&all, kind), "{kind} is not rendered");
    }
    apply_rendered(world, "all", &all)?;
    native_histograms(world, &all)?;
    selinux(world, &defaults)?;
    ensure!(
        has_line(&defaults, "- {name: udev, mountPath: /run/udev}"),
        "the daemon cannot give the host's udev its rules"
    );
    snapshots(world)?;
    changed_blocks(world)?;
    attributes(world)?;
    memory(world, &defaults)?;
    without_ublk(world, &defaults)?;
    other_directories(world)?;
    affinity(world, &defaults)?;
    credentials(world)?;
    check_refusals(world)?;
    let alone = json!({ "operator": { "replicas": 1 }, "csi": { "controller": { "replicas": 1 } } });
    let alone = render(world, "alone", &alone)?;
    ensure!(!has_line(&alone, BUDGET), "a budget keeps the only instance on its node");
    Ok(())
}

/// The PodMonitor asks for native histograms if a value does.
fn native_histograms(world: &World, all: &[String]) -> Result<()> {
    const CONVERTED: &str = "convertClassicHistogramsToNHCB: true";
    let monitor = |rendered: &[String]| {
        rendered.iter().find(|object| has_line(std::slice::from_ref(object), "kind: PodMonitor")).cloned()
    };
    let with = monitor(all).context("a PodMonitor was rendered")?;
    ensure!(
        with.lines().any(|line| line == format!("  {CONVERTED}")),
        "its spec lacks `{CONVERTED}`:\n{with}"
    );
    let classic = render(world, "classic", &json!({ "monitoring": { "podMonitor": { "enabled": true } } }))?;
    let classic = monitor(&classic).context("a PodMonitor was rendered")?;
    ensure!(
        !classic.contains(CONVERTED),
        "histograms are converted although no value asks for it:\n{classic}"
    );
    Ok(())
}

/// Regression, found in review: the driver declared support for mounts with labels, but `mount` drops them in
/// a container that cannot detect SELinux on its host.
fn selinux(world: &World, defaults: &[String]) -> Result<()> {
    const SEES: [&str; 4] = [
        "- {name: sys, mountPath: /sys}",
        "- {name: selinux, mountPath: /etc/selinux, readOnly: true}",
        "hostPath: {path: /sys, type: Directory}",
        "hostPath: {path: /etc/selinux, type: DirectoryOrCreate}",
    ];
    ensure!(
        has_line(defaults, "seLinuxMount: false") && !has_line(defaults, SEES[0]),
        "labels are mounted by default"
    );
    let labelled = render(world, "selinux", &json!({ "csi": { "seLinuxMount": true } }))?;
    ensure!(has_line(&labelled, "seLinuxMount: true"), "the driver does not mount with labels");
    for line in SEES {
        ensure!(has_line(&labelled, line), "the Node service lacks `{line}`");
    }
    Ok(())
}

/// The programs that use a bucket find credentials not named in an ObjectStore; a class without mount options
/// has none.
fn credentials(world: &World) -> Result<()> {
    let values = json!({
        "storeCredentials": {
            "serviceAccountAnnotations": { "eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/store" },
            "env": [{ "name": "AWS_ACCESS_KEY_ID", "value": "key" }],
        },
        "storageClasses": [{ "name": "plain", "objectStore": "main", "mountOptions": [] }],
    });
    let rendered = render(world, "credentials", &values)?;
    let with = |part: &str| {
        let names = rendered.iter().filter(|object| object.contains(part)).map(|object| {
            let line = |of: &str| object.lines().find_map(|line| line.strip_prefix(of)).unwrap_or_default();
            format!("{} {}", line("kind: "), line("  name: "))
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let annotated = with("eks.amazonaws.com/role-arn: arn:aws:iam::111122223333:role/store");
    ensure!(
        annotated == ["ServiceAccount holdfast-node", "ServiceAccount holdfast-operator"],
        "{annotated:?}"
    );
    let with_keys = with("name: AWS_ACCESS_KEY_ID");
    ensure!(with_keys == ["DaemonSet holdfast-node", "Deployment holdfast-operator"], "{with_keys:?}");
    ensure!(with("- discard").is_empty(), "a mount option that is not wanted");
    // A pod cannot be changed.
    let changed: Vec<String> =
        rendered.into_iter().filter(|object| !object.contains("kind: Pod\n")).collect();
    apply_rendered(world, "credentials", &changed)
}

/// Values that would cause a rejected object, or a pod that cannot start, are rejected before anything is
/// installed.
fn check_refusals(world: &World) -> Result<()> {
    for (values, field) in [
        (
            json!({ "storageClasses": [{ "name": "c", "objectStore": "s", "maxDirtyAge": "1ms" }] }),
            "/storageClasses/0/maxDirtyAge",
        ),
        (
            json!({ "volumeAttributesClasses": [{ "name": "c", "maxIops": 9 }] }),
            "/volumeAttributesClasses/0/maxIops",
        ),
        (
            json!({ "volumeAttributesClasses": [{ "name": "c", "maxDirtyAge": "61m" }] }),
            "/volumeAttributesClasses/0/maxDirtyAge",
        ),
        (
            json!({ "storageClasses": [{ "name": "c", "backend": "memory", "objectStore": "s" }] }),
            "/storageClasses/0/objectStore",
        ),
        (json!({ "storageClasses": [{ "name": "c" }] }), "objectStore"),
        (
            json!({ "storageClasses": [{ "name": "c", "objectStore": "s", "transport": "fuse" }] }),
            "/storageClasses/0/transport",
        ),
        (
            json!({ "storageClasses": [{ "name": "c", "backend": "memory", "transport": "ublk" }] }),
            "/storageClasses/0/transport",
        ),
        // The chart's version is not the version of a sidecar.
        (json!({ "csi": { "sidecars": { "attacher": { "tag": "" } } } }), "/csi/sidecars/attacher/tag"),
    ] {
        let refused = render(world, "refused", &values).err().map(|error| format!("{error:#}"));
        ensure!(refused.as_ref().is_some_and(|message| message.contains(field)), "{values}: {refused:?}");
    }
    let values = json!({
        "csi": { "sidecars": { "attacher": { "pullPolicy": "Never" } } },
        "storageClasses": [{ "name": "c", "objectStore": "s", "maxDirtyAge": "2m30s" }],
    });
    let rendered = render(world, "sidecars", &values)?;
    ensure!(count(&rendered, "imagePullPolicy: Never") == 1, "no sidecar has the policy that it was given");
    Ok(())
}

/// Every probe has a higher timeout than the kubelet's default, a second, which a busy node exceeds.
fn check_probe_timeouts(objects: &[String]) -> Result<()> {
    for object in objects {
        let lines = |of: &str| object.lines().filter(|line| line.trim_start().starts_with(of)).count();
        let (probes, waits) =
            (lines("livenessProbe:") + lines("readinessProbe:"), lines("timeoutSeconds: 6"));
        ensure!(probes == waits, "a probe without a time limit: {object}");
    }
    Ok(())
}

/// The kubelet creates a mount point for a container's termination message. Below the host's /dev, two pods
/// race for it, and it stays there.
fn check_host_dev_unused(objects: &[String]) -> Result<()> {
    for object in objects {
        let lines = |of: &str| object.lines().filter(|line| line.contains(of)).count();
        let (mounts, paths) = (lines("mountPath: /dev}"), lines("terminationMessagePath: /termination-log"));
        ensure!(mounts == paths, "a container that writes into the host's /dev: {object}");
    }
    Ok(())
}

/// Regression, found in review: the cluster autoscaler kept each node with a CSI controller, because a pod
/// with an `emptyDir` on the disk would lose it.
fn check_nodes_removable(objects: &[String]) -> Result<()> {
    for object in objects.iter().filter(|object| object.lines().any(|line| line == "kind: Deployment")) {
        let is_on_disk = |line: &str| {
            line.contains("hostPath:") || (line.contains("emptyDir:") && !line.contains("medium: Memory"))
        };
        ensure!(!object.lines().any(is_on_disk), "an autoscaler keeps the node of the pods of\n{object}");
    }
    Ok(())
}

/// The snapshotter and the classes need CRDs that a cluster may lack.
fn snapshots(world: &World) -> Result<()> {
    let labels = json!({ "velero.io/csi-volumesnapshot-class": "true" });
    let classes =
        json!({ "volumeSnapshotClasses": [{ "name": "holdfast", "default": true, "labels": labels }] });
    let file = world.dir().join("snapshots-values.json");
    fs::write(&file, classes.to_string()).context("write the values")?;
    let refused = helm(world, &["template", "holdfast"], &file);
    let message = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(message.contains("install the snapshot controller"), "classes without their kind: {message:?}");
    let rendered = helm(world, &["template", "holdfast", "--api-versions", SNAPSHOTS], &file)?;
    ensure!(rendered.contains("kind: VolumeSnapshotClass"), "no class is rendered");
    ensure!(rendered.contains("- name: snapshotter"), "no snapshotter is rendered");
    // Found in review: 10 expansions or snapshots that waited for a node delayed all others.
    for (argument, sidecars) in [("- --worker-threads=100\n", 3), ("- --workers=100\n", 1)] {
        let found = rendered.matches(argument).count();
        ensure!(found == sidecars, "{found} sidecars have {argument:?}, not {sidecars}");
    }
    let label = "    velero.io/csi-volumesnapshot-class: \"true\"\n";
    ensure!(rendered.contains(label), "the class lacks its label");
    let group_parts = ["kind: VolumeGroupSnapshotClass", "--feature-gates=CSIVolumeGroupSnapshot=true"];
    for part in group_parts {
        ensure!(!rendered.contains(part), "{part} is rendered without the kinds of groups");
    }
    // The snapshotter supports only v1 of their kinds.
    let old = format!("{SNAPSHOTS},groupsnapshot.storage.k8s.io/v1beta2");
    let rendered = helm(world, &["template", "holdfast", "--api-versions", &old], &file)?;
    ensure!(!group_parts.iter().any(|part| rendered.contains(part)), "groups are asked for with v1beta2");
    let both = format!("{SNAPSHOTS},{GROUP_SNAPSHOTS}");
    let rendered = helm(world, &["template", "holdfast", "--api-versions", &both], &file)?;
    for part in group_parts {
        ensure!(rendered.contains(part), "{part} is not rendered");
    }
    let default = "groupsnapshot.storage.kubernetes.io/is-default-class: \"true\"";
    ensure!(rendered.contains(default), "the default class of snapshots is not that of groups");
    let without = helm(world, &["template", "holdfast", "--set-json", "volumeSnapshotClasses=[]"], &file)?;
    ensure!(!without.contains("- name: snapshotter"), "a snapshotter without its kinds");
    Ok(())
}

/// The service that reports changed blocks needs a CRD and a certificate. The API server accepts all objects
/// except that of the CRD.
fn changed_blocks(world: &World) -> Result<()> {
    let file = world.dir().join("changed-blocks-values.json");
    let values = |secret: &str| {
        json!({
            "csi": { "snapshotMetadata": { "enabled": true, "tlsSecret": secret, "caCert": "a PEM" } },
            "storeCredentials": { "serviceAccountAnnotations": { "role": "store" }, "env": [{ "name": "STORE_KEY" }] },
            "networkPolicy": { "enabled": true },
        })
    };
    fs::write(&file, values("").to_string()).context("write the values")?;
    let template = |versions: &[&str]| helm(world, &[&["template", "holdfast"], versions].concat(), &file);
    let message = template(&[]).err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(message.contains("lacks the kind SnapshotMetadataService"), "without the kind: {message:?}");
    let message = template(&["--api-versions", CHANGED_BLOCKS]).err();
    let message = message.map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(
        message.contains("csi.snapshotMetadata.tlsSecret, caCert: "),
        "without a certificate: {message:?}"
    );
    fs::write(&file, values("metadata-certificate").to_string()).context("write the values")?;
    let rendered = template(&["--api-versions", CHANGED_BLOCKS])?;
    let objects: Vec<String> = rendered.split("\n---\n").map(str::to_owned).collect();
    let (services, others): (Vec<_>, Vec<_>) =
        objects.into_iter().partition(|object| object.contains(CHANGED_BLOCKS));
    let checksum = |objects: &[String]| {
        let lines = objects.iter().flat_map(|object| object.lines());
        lines.map(str::trim).find(|line| line.contains("checksum/ca-cert: ")).map(str::to_owned)
    };
    let other = values("metadata-certificate").to_string().replace("a PEM", "another");
    fs::write(&file, other).context("write the values")?;
    let renewed = template(&["--api-versions", CHANGED_BLOCKS])?;
    let [old, new] = [checksum(&others), checksum(&[renewed])];
    ensure!(old.is_some() && new.is_some() && old != new, "another certificate restarts nothing: {old:?}");
    let [service] = &services[..] else { anyhow::bail!("services: {services:?}") };
    ensure!(service.contains("caCert: YSBQRU0="), "the certificate is not encoded: {service}");
    for part in ["    role: store", "name: STORE_KEY"] {
        let programs = others.iter().filter(|object| object.contains(part)).count();
        ensure!(programs == 3, "{part:?} is in {programs} objects: of operator, node and this service");
    }
    check_probe_timeouts(&others)?;
    check_nodes_removable(&others)?;
    apply_rendered(world, "changed-blocks", &others)
}

/// VolumeAttributesClasses are served since Kubernetes 1.34.
fn attributes(world: &World) -> Result<()> {
    let file = world.dir().join("attributes-values.json");
    let classes = json!({ "volumeAttributesClasses": [{ "name": "safe", "durability": "object" }] });
    fs::write(&file, classes.to_string()).context("write the values")?;
    let template = |version| helm(world, &["template", "holdfast", "--kube-version", version], &file);
    let refused = template("1.33.0").err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(refused.contains("comes with Kubernetes 1.34"), "classes without their kind: {refused:?}");
    ensure!(template("1.34.0")?.contains("kind: VolumeAttributesClass"), "no class is rendered");
    fs::write(&file, json!({ "volumeAttributesClasses": [{ "name": "none" }] }).to_string())?;
    let empty = template("1.34.0").err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(empty.contains("volumeAttributesClasses"), "a class that says nothing is rendered: {empty:?}");
    Ok(())
}

/// Returns values for nodes with this much memory for memory volumes, and for two classes.
fn memory_values(limit: &str) -> Value {
    json!({
        "node": {
            "memoryVolumes": limit,
            "memorySpill": "32Gi",
            "resources": { "limits": { "memory": "1Gi" } },
        },
        "storageClasses": [
            { "name": "stored", "objectStore": "main", "transport": "ublk" },
            {
                "name": "scratch",
                "backend": "memory",
                "compression": "zstd",
                "maxMemoryPercent": 50,
                "spillPercent": 75,
            },
        ],
    })
}

/// Classes that no node can serve, and disk that no volume can use, are rejected with the value to set.
fn check_memory_refusals(world: &World) -> Result<()> {
    let mut unused = memory_values("");
    unused["storageClasses"] = json!([]);
    let mut no_disk = memory_values("8Gi");
    no_disk["node"]["memorySpill"] = "".into();
    let mut of_store = memory_values("8Gi");
    of_store["storageClasses"][0]["spillPercent"] = 10.into();
    let [mut zero, mut text] = [memory_values("8Gi"), memory_values("8Gi")];
    zero["storageClasses"][1]["spillPercent"] = 0.into();
    text["node"]["memorySpill"] = "half".into();
    for (values, words) in [
        (memory_values(""), "Set node.memoryVolumes"),
        (memory_values("0Gi"), "Set node.memoryVolumes"),
        (unused, "node.memorySpill: no node makes memory volumes"),
        (no_disk, "scratch has spillPercent, and no node has disk for it. Set node.memorySpill"),
        (of_store, "spillPercent"),
        (zero, "spillPercent"),
        (text, "memorySpill"),
    ] {
        let refused = render(world, "memory", &values).err().map(|error| format!("{error:#}"));
        let message = refused.unwrap_or_default();
        ensure!(message.contains(words), "{words:?} is not in {message:?}");
    }
    Ok(())
}

/// A class of memory volumes needs a limit of the node, waits for the scheduler's choice, and is counted. The
/// daemon's container has a memory limit that includes memory volumes, which the kernel charges to it.
fn memory(world: &World, defaults: &[String]) -> Result<()> {
    const COUNTED: [&str; 3] =
        ["storageCapacity: true", "- --enable-capacity", "- --capacity-ownerref-level=2"];
    ensure!(
        !COUNTED.iter().any(|line| has_line(defaults, line)),
        "capacities are counted without memory volumes"
    );
    check_memory_refusals(world)?;
    let rendered = render(world, "memory", &memory_values("8Gi"))?;
    for line in COUNTED {
        ensure!(has_line(&rendered, line), "{line} is not rendered");
    }
    for line in ["memory_volumes = \"8Gi\"", "memory_spill = \"32Gi\""] {
        ensure!(has_line(&rendered, line), "the daemon lacks {line}");
    }
    ensure!(has_line(&rendered, "memory: \"9663676416\""), "the limit of the container is not 9Gi");
    for (limit, sum) in [("1.5Gi", "10200547328"), ("2Pi", "2251808403619840")] {
        let line = format!("memory: \"{sum}\"");
        let mut other = memory_values("8Gi");
        other["node"]["resources"]["limits"]["memory"] = limit.into();
        ensure!(has_line(&render(world, "memory", &other)?, &line), "{limit} and 8Gi are not {sum}");
    }
    let class = |name: &str| {
        let line = format!("  name: {name}");
        rendered.iter().find(|object| object.lines().any(|found| found == line)).context("the class")
    };
    let (stored, scratch) = (class("stored")?, class("scratch")?);
    for line in [
        "volumeBindingMode: WaitForFirstConsumer",
        "  backend: memory",
        "  compression: zstd",
        "  maxMemoryPercent: \"50\"",
        "  spillPercent: \"75\"",
    ] {
        ensure!(scratch.lines().any(|found| found == line), "{line} is not in\n{scratch}");
        ensure!(!stored.lines().any(|found| found == line), "{line} is in\n{stored}");
    }
    ensure!(stored.lines().any(|found| found == "  transport: ublk"), "no transport in\n{stored}");
    // A pod cannot be changed.
    let changed: Vec<String> =
        rendered.iter().filter(|object| !object.contains("kind: Pod\n")).cloned().collect();
    apply_rendered(world, "memory", &changed)
}

/// Nodes without ublk have a keeper if enabled in the values, with no access except to a directory.
fn without_ublk(world: &World, defaults: &[String]) -> Result<()> {
    const NAME: &str = "  name: holdfast-keeper";
    ensure!(!has_line(defaults, NAME), "a keeper is rendered although no value asks for it");
    let options = json!({ "type": "spc_t" });
    let values = json!({ "node": { "withoutUblk": { "enabled": true, "seLinuxOptions": options } } });
    let rendered = render(world, "without-ublk", &values)?;
    let own = rendered.iter().filter(|object| object.lines().any(|line| line == NAME)).cloned();
    let own: Vec<String> = own.collect();
    let keeper = own.iter().find(|object| object.contains("kind: DaemonSet\n")).context("the keeper")?;
    // Regression, found in review: a policy for pods, such as OpenShift's, could not refer to it.
    ensure!(own.iter().any(|object| object.contains("kind: ServiceAccount\n")), "it has no ServiceAccount");
    for line in [
        "serviceAccountName: holdfast-keeper",
        "type: spc_t",
        "rollingUpdate: {maxUnavailable: 0, maxSurge: 1}",
        "minReadySeconds: 45",
        "terminationGracePeriodSeconds: 120",
        "automountServiceAccountToken: false",
        "capabilities: {drop: [ALL], add: [SYS_RESOURCE]}",
        "readOnlyRootFilesystem: true",
        "args: [keeper, --run-dir=/run/holdfast]",
        "- {name: run, mountPath: /run/holdfast}",
    ] {
        ensure!(keeper.lines().any(|found| found.trim() == line), "{line} is not in\n{keeper}");
    }
    ensure!(is_never_evicted(keeper)?, "an autoscaler may evict the pods of\n{keeper}");
    ensure!(!keeper.contains("privileged") && !keeper.contains("hostPID"), "more rights than it needs");
    apply_rendered(world, "without-ublk", &own)
}

/// Regression, found in review: with other directories, commands in the daemon's pod did not find its socket,
/// and `fenced list` showed no data, because they do not read the configuration file.
fn other_directories(world: &World) -> Result<()> {
    let values = json!({ "node": { "stateDir": "/mnt/nvme", "runDir": "/run/other" } });
    let rendered = render(world, "directories", &values)?;
    for (variable, setting, value) in [
        ("HOLDFAST_STATE_DIR", "state_dir", "/mnt/nvme"),
        ("HOLDFAST_RUN_DIR", "run_dir", "/run/other"),
        ("HOLDFAST_API_SOCKET", "socket", "/run/other/node.sock"),
    ] {
        ensure!(has_line(&rendered, &format!("{setting} = \"{value}\"")), "{setting} is not {value}");
        let lines = format!("            - name: {variable}\n              value: \"{value}\"\n");
        let found = rendered.iter().filter(|object| object.contains(&lines)).count();
        ensure!(found == 1, "{found} containers have {variable} {value}");
    }
    Ok(())
}

/// Nodes that can never run a pod can be excluded, because an upgrade stops at each of them. A new daemon
/// must run for a while before the next node gets it.
fn affinity(world: &World, defaults: &[String]) -> Result<()> {
    ensure!(count(defaults, "minReadySeconds: 30") == 1, "a daemon that ends at once spreads");
    ensure!(!has_line(defaults, "affinity:"), "an affinity is rendered although no value asks for it");
    let excluded = json!({ "key": "type", "operator": "NotIn", "values": ["virtual-kubelet"] });
    let terms = json!({ "nodeSelectorTerms": [{ "matchExpressions": [excluded] }] });
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": terms } });
    let values = json!({ "node": { "affinity": affinity, "withoutUblk": { "enabled": true } } });
    let rendered = render(world, "affinity", &values)?;
    let daemon_sets: Vec<String> =
        rendered.into_iter().filter(|object| object.lines().any(|line| line == "kind: DaemonSet")).collect();
    ensure!(daemon_sets.len() == 3, "node daemon, keeper and CSI node are DaemonSets");
    ensure!(count(&daemon_sets, "- virtual-kubelet") == 3, "a DaemonSet lacks the affinity");
    apply_rendered(world, "affinity", &daemon_sets)
}

/// Returns values that enable everything in the chart.
fn all_values() -> serde_json::Value {
    let labels = json!({ "release": "prometheus" });
    json!({
        "monitoring": {
            "podMonitor": { "enabled": true, "labels": labels, "interval": "15s", "nativeHistograms": true },
            "prometheusRule": { "enabled": true, "labels": labels, "oldestDirtySeconds": 900 },
            "dashboard": { "enabled": true },
        },
        "networkPolicy": { "enabled": true },
        "storageClasses": [
            { "name": "kept", "objectStore": "main", "reclaimPolicy": "Retain" },
            { "name": "holdfast", "objectStore": "main", "default": true, "durability": "object" },
        ],
        "volumeAttributesClasses": [{ "name": "safe", "durability": "object", "maxDirtyAge": "5s" }],
        "imagePullSecrets": [{ "name": "registry" }],
        "secretNamespaces": ["default"],
        "otlpEndpoint": "http://collector:4317",
    })
}

/// Checks the chart with these values, and returns the rendered objects.
fn render(world: &World, name: &str, values: &serde_json::Value) -> Result<Vec<String>> {
    let file = world.dir().join(format!("{name}-values.json"));
    fs::write(&file, values.to_string()).context("write the values")?;
    helm(world, &["lint", "--strict"], &file)?;
    let rendered = helm(world, &["template", "holdfast", "--include-crds"], &file)?;
    Ok(rendered.split("\n---\n").map(str::to_owned).collect())
}

fn helm(world: &World, command: &[&str], values: &Path) -> Result<String> {
    let mut helm = Command::new(world.toolbox().helm()?);
    helm.args(command).arg(world.chart()).args(["--namespace", NAMESPACE, "--values"]).arg(values);
    output(&mut helm)
}

/// Applies all objects whose kinds exist in the API server.
fn apply_rendered(world: &World, name: &str, objects: &[String]) -> Result<()> {
    let known: Vec<&str> =
        objects.iter().map(String::as_str).filter(|object| !object.contains(PROMETHEUS)).collect();
    let file = world.dir().join(format!("{name}.yaml"));
    fs::write(&file, known.join("\n---\n")).context("write the rendered chart")?;
    let file = file.display().to_string();
    world.kubectl(["apply", "--server-side", "--validate=strict", "--filename", &file]).map(drop)
}

/// Returns true if the cluster autoscaler does not evict a DaemonSet's pods from a node that it removes. It
/// checks the pods, not the DaemonSet.
fn is_never_evicted(daemon_set: &str) -> Result<bool> {
    let (_, pods) = daemon_set.split_once("\n  template:\n").context("a DaemonSet has pods")?;
    let annotation = "cluster-autoscaler.kubernetes.io/enable-ds-eviction: \"false\"";
    Ok(pods.lines().any(|line| line.trim() == annotation))
}

fn count(objects: &[String], line: &str) -> usize {
    objects.iter().filter(|object| object.lines().any(|found| found.trim() == line)).count()
}

fn has_line(objects: &[String], line: &str) -> bool {
    count(objects, line) > 0
}

/// Returns true if the kubelet of that version refreshes the volume limit of its node. Older API servers
/// reject the field.
fn refreshes_volume_limit(world: &World, version: &str) -> Result<bool> {
    let rendered = output(
        Command::new(world.toolbox().helm()?)
            .args(["template", "holdfast", "--kube-version", version])
            .args(["--show-only", "templates/csi-driver.yaml"])
            .arg(world.chart()),
    )?;
    Ok(rendered.contains("nodeAllocatableUpdatePeriodSeconds: 60"))
}
