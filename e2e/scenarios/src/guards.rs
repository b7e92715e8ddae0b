//! The guards of the chart, on a real API server: permitted writes of a node, and protection from deletion
//! while volumes are served.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::provisioning::apply;

const LIMIT: Duration = Duration::from_secs(60);
/// A Volume granted to node n1.
const VOLUME: &str = "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata:\n  name: disk\n  \
                      annotations: {holdfast.dev/persistentvolumeclaim: shop/data}\n\
                      spec: {size: 64Mi, objectStore: store}\n";
/// A condition of the operator: if it is false, a deletion does not move the volume to the trash.
const OTHERS_CONDITION: &str = "{\"conditions\": [{\"type\": \"Provisioned\", \"status\": \"False\", \"reason\": \"Forged\", \
                                \"message\": \"\", \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}]}";
/// The same, as it is for a volume that has data.
const PROVISIONED_CONDITION: &str = "{\"conditions\": [{\"type\": \"Provisioned\", \"status\": \"True\", \"reason\": \"Created\", \
                                     \"message\": \"\", \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}]}";
/// A condition of the daemon: without it, no memory volume is attached again.
const LOST_CONTENT: &str = "{\"conditions\": [{\"type\": \"ContentLost\", \"status\": \"True\", \"reason\": \"Detached\", \
                            \"message\": \"\", \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}]}";
/// A condition of a later release of the daemon.
const LATER_CONDITION: &str = "{\"conditions\": [{\"type\": \"Later\", \"status\": \"True\", \"reason\": \"Later\", \
                               \"message\": \"\", \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}]}";
/// A value that moves the DaemonSets to other nodes.
const AFFINITY: &str = r#"--set-json=node.affinity={"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"disk","operator":"Exists"}]}]}}}"#;
/// Tolerations with which a daemon leaves nodes that have another taint, and tolerations of all taints.
const FEWER_TOLERATIONS: &str = r#"--set-json=node.tolerations=[{"key":"disk","operator":"Exists"}]"#;
const MORE_TOLERATIONS: &str =
    r#"--set-json=node.tolerations=[{"key":"disk","operator":"Exists"},{"operator":"Exists"}]"#;
/// The value that enables a keeper on nodes without ublk.
const KEEPER: &str = "--set=node.withoutUblk.enabled=true";
/// The label of the chart's objects.
const LABEL: &str = "app.kubernetes.io/name=holdfast";
/// Objects that must not be deleted while volumes are served.
const KEPT: [[&str; 2]; 8] = [
    ["daemonset", "holdfast-node"],
    ["daemonset", "holdfast-keeper"],
    ["deployment", "holdfast-operator"],
    ["serviceaccount", "holdfast-node"],
    ["clusterrole", "holdfast-node"],
    ["rolebinding", "holdfast-secrets"],
    ["crd", "volumes.storage.holdfast.dev"],
    ["namespace", NAMESPACE],
];

/// Installs the chart with Helm, and uninstalls it.
pub(super) fn run(world: &World) -> Result<()> {
    report::step("install the chart; a second release is rejected");
    world.kubectl(["create", "namespace", NAMESPACE])?;
    world.kubectl(["create", "namespace", "other"])?;
    helm(world, NAMESPACE, &["install", "holdfast", "--set=secretNamespaces={other}"])?;
    let second = error_text(helm(world, "other", &["install", "second"]));
    ensure!(second.contains("exists and cannot be imported into the current release"), "{second}");
    kinds(world)?;
    classes(world)?;
    nodes(world)?;
    snapshots(world)?;
    identity(world)?;
    check_claimed_volume(world)?;
    keeper(world)?;
    check_in_use(world)
}

/// The keeper only holds the devices' resources: it has no token, and its account has no role.
fn keeper(world: &World) -> Result<()> {
    report::step("the keeper of nodes without ublk has no rights");
    helm(
        world,
        NAMESPACE,
        &["upgrade", "holdfast", "--reset-values", "--set=secretNamespaces={other}", KEEPER],
    )?;
    let pod = "jsonpath={.spec.template.spec.serviceAccountName}/{.spec.template.spec.automountServiceAccountToken}/\
               {.spec.template.spec.hostPID}{.spec.template.spec.hostNetwork}/{.spec.template.spec.volumes[*].name}";
    let pod =
        world.kubectl(["--namespace", NAMESPACE, "get", "daemonset", "holdfast-keeper", "--output", pod])?;
    ensure!(pod == "holdfast-keeper/false//run", "account/token/namespaces of the host/volumes: {pod}");
    let account = format!("--as=system:serviceaccount:{NAMESPACE}:holdfast-keeper");
    let words = ["auth", "can-i", "--list", "--namespace", NAMESPACE, &account];
    let rights = world.kubectl(words)?;
    for part in ["holdfast.dev", "secrets", "pods", "nodes", "leases", "events", "*.*"] {
        ensure!(!rights.contains(part), "the account of the keeper may use {part}: {rights}");
    }
    Ok(())
}

/// The CRDs of another version are applied as described in the notes of the chart.
fn kinds(world: &World) -> Result<()> {
    report::step("the CRDs of another version are applied over those installed by Helm");
    let mut show = Command::new(world.toolbox().helm()?);
    let kinds = output(show.args(["show", "crds"]).arg(world.chart()))?;
    let others = kinds.replace("Immutable.", "Cannot be changed.");
    ensure!(others != kinds, "no kind is changed");
    let file = world.dir().join("crds.yaml");
    fs::write(&file, others).context("write the kinds")?;
    let file = file.display().to_string();
    let apply = ["apply", "--server-side", "--filename", &file];
    let refused = error_text(world.kubectl(apply));
    ensure!(refused.contains("conflict"), "the notes ask for --force-conflicts: {refused}");
    world.kubectl(apply.into_iter().chain(["--force-conflicts"])).map(drop)
}

/// Regression, found in review: upgrades with another parameter of a class stopped halfway, from then on.
fn classes(world: &World) -> Result<()> {
    report::step("a class with changed parameters is rejected before anything is changed");
    let upgrade = |store: &str| {
        let store = format!("--set=storageClasses[0].objectStore={store}");
        let words = ["upgrade", "holdfast", "--reset-values", "--set=secretNamespaces={other}"];
        let class = ["--set=storageClasses[0].name=gold", &store];
        helm(world, NAMESPACE, &[&words[..], &class[..]].concat())
    };
    upgrade("mian")?;
    upgrade("mian")?;
    let refused = error_text(upgrade("main"));
    ensure!(refused.contains("`kubectl delete storageclass gold` first"), "{refused}");
    world.kubectl(["delete", "storageclass", "gold"])?;
    upgrade("main").map(drop)
}

/// A node writes its own part of its own objects.
fn nodes(world: &World) -> Result<()> {
    report::step("a node writes only the status of its own volumes, and describes only itself");
    apply(world, VOLUME)?;
    status(world, &[], "{\"volumeId\": \"id\", \"assignedNode\": \"n1\", \"phase\": \"Attaching\"}")?;
    let claim = |node| format!("{{\"node\": \"{node}\"}}");
    // A new policy takes effect a moment later. Until then the write succeeds: it must not make n2 one of the
    // permitted writers.
    until("the policy to take effect", LIMIT, || Ok(status(world, &as_node("n2"), &claim("n1")).err()))?;
    let refused = error_text(status(world, &as_node("n2"), &claim("n2")));
    ensure!(refused.contains("neither granted to it nor claimed by it"), "{refused}");
    status(world, &as_node("n1"), &claim("n1"))?;
    for field in [
        "{\"assignedNode\": \"n2\"}",
        "{\"volumeId\": \"other\"}",
        "{\"observedGeneration\": 999}",
        "{\"node\": \"n2\"}",
        OTHERS_CONDITION,
    ] {
        let own = error_text(status(world, &as_node("n1"), field));
        ensure!(own.contains("the operator's part"), "{field}: {own}");
    }
    status(world, &as_node("n1"), LATER_CONDITION).context("a later daemon writes a condition")?;
    status(world, &as_node("n1"), LOST_CONTENT).context("an older one removes it: content is lost")?;
    // Programs read it as unsigned, and one unreadable object fails each list.
    let negative = error_text(status(world, &as_node("n1"), "{\"dirtyBytes\": -1}"));
    ensure!(negative.contains("should be greater than or equal to 0"), "{negative}");
    let unbound = error_text(status(world, &as_node(""), &claim("n1")));
    ensure!(unbound.contains("neither granted"), "{unbound}");
    for (node, expected) in [("n1", true), ("n2", false)] {
        let described = storage_node(world, node);
        ensure!(described.is_ok() == expected, "node n1 describes {node}: {described:?}");
    }
    times(world)
}

/// Regression, found in review: the API server accepts times that programs cannot read, and one such object
/// fails each list of its kind.
fn times(world: &World) -> Result<()> {
    report::step("a node writes only times that can be read");
    let user = as_node("n1");
    for (time, is_accepted) in [("2026-01-01T00:00:00Z", true), ("2026-01-01T00:00:00+99:99", false)] {
        let handoff = format!("{{\"time\": \"{time}\", \"devices\": 1, \"longestStallMs\": 1}}");
        for (kind, name, status) in [
            ("volume", "disk", format!("{{\"durableThrough\": \"{time}\"}}")),
            ("storagenode", "n1", format!("{{\"lastHandoff\": {handoff}}}")),
        ] {
            let patch = format!("{{\"status\": {status}}}");
            let words = ["patch", kind, name, "--subresource=status", "--type=merge", "--patch", &patch];
            let words = words.into_iter().chain(user.iter().map(String::as_str));
            let refused = error_text(world.kubectl(words));
            let is_expected =
                if is_accepted { refused.is_empty() } else { refused.contains("a time of this status") };
            ensure!(is_expected, "{kind} at {time}: {refused}");
        }
    }
    Ok(())
}

/// A node reports the snapshots requested of it.
fn snapshots(world: &World) -> Result<()> {
    report::step("a node writes only the status of snapshots requested from it");
    let snapshot = "apiVersion: storage.holdfast.dev/v1alpha1\nkind: VolumeSnapshot\nmetadata: {name: before}\n\
                    spec: {volume: disk}\n";
    apply(world, snapshot)?;
    let write = |user: &[String], status: &str| {
        let patch = format!("{{\"status\": {status}}}");
        let words =
            ["patch", "volumesnapshot", "before", "--subresource=status", "--type=merge", "--patch", &patch];
        world.kubectl(words.into_iter().map(str::to_owned).chain(user.iter().cloned()))
    };
    write(&[], "{\"volumeId\": \"id\", \"node\": \"n1\"}")?;
    let same = "{\"node\": \"n1\"}";
    until("the policy to take effect", LIMIT, || Ok(write(&as_node("n2"), same).err()))?;
    let taken = "{\"snapshotId\": \"id@7\"}";
    let refused = error_text(write(&as_node("n2"), taken));
    ensure!(refused.contains("that was not requested of it"), "{refused}");
    let own = error_text(write(&as_node("n1"), "{\"node\": \"n2\"}"));
    ensure!(own.contains("the operator's part"), "{own}");
    let others = error_text(write(&as_node("n1"), "{\"snapshotId\": \"other@7\"}"));
    ensure!(others.contains("a position in the log of status.volumeId"), "{others}");
    write(&as_node("n1"), taken)?;
    let again = error_text(write(&as_node("n1"), "{\"snapshotId\": \"id@8\"}"));
    ensure!(again.contains("cannot change"), "{again}");
    world.kubectl(["delete", "volumesnapshot", "before"]).map(drop)
}

/// The operator sets fields of a spec that the user left open; a node sets none, and an identity stays.
fn identity(world: &World) -> Result<()> {
    report::step("the operator writes the identity of a Volume, a node cannot, and it does not change");
    let write = |account: &str, spec: &str| {
        let user = format!("--as=system:serviceaccount:{NAMESPACE}:holdfast-{account}");
        let patch = format!("{{\"spec\": {spec}}}");
        world.kubectl(["patch", "volume", "disk", "--type=merge", "--patch", &patch, &user])
    };
    let own = "{\"volumeID\": \"id\", \"size\": \"128Mi\"}";
    let node = error_text(write("node", own));
    ensure!(node.contains("cannot patch resource"), "{node}");
    let other = error_text(write("operator", "{\"volumeID\": \"other\"}"));
    ensure!(other.contains("write the value of status.volumeId"), "{other}");
    write("operator", own)?;
    let changed = error_text(world.kubectl([
        "patch",
        "volume",
        "disk",
        "--type=merge",
        "--patch",
        "{\"spec\": {\"volumeID\": \"other\"}}",
    ]));
    ensure!(changed.contains("spec.volumeID is immutable"), "{changed}");
    Ok(())
}

/// The Volume of a claim is deleted only by the driver.
fn check_claimed_volume(world: &World) -> Result<()> {
    report::step("a Volume with a claim's data cannot be deleted alone; one that was never provisioned can");
    world.kubectl(["delete", "volume", "disk"])?;
    apply(world, VOLUME)?;
    status(world, &[], PROVISIONED_CONDITION)?;
    let refused = error_text(world.kubectl(["delete", "volume", "disk"]));
    ensure!(refused.contains("PersistentVolumeClaim shop/data"), "{refused}");
    let driver = format!("--as=system:serviceaccount:{NAMESPACE}:holdfast-csi-controller");
    world.kubectl(["delete", "volume", "disk", &driver]).map(drop)
}

/// No object needed to serve volumes is deleted.
fn check_in_use(world: &World) -> Result<()> {
    report::step("while volumes are served, objects that serve them cannot be deleted");
    report_in_use(world, 3, 5)?;
    for [kind, name] in KEPT {
        let delete = ["--namespace", NAMESPACE, "delete", kind, name, "--dry-run=server"];
        let refused = until("the guard to see the volumes", LIMIT, || Ok(world.kubectl(delete).err()))?;
        let refused = format!("{refused:#}");
        ensure!(refused.contains("Holdfast serves 3 volumes"), "{kind} {name}: {refused}");
    }
    check_other_namespaces(world)?;
    check_upgrades(world)?;
    report::step("an uninstall is rejected as a whole");
    let release = world.dir().join("release.yaml");
    fs::write(&release, helm(world, NAMESPACE, &["get", "manifest", "holdfast"])?)
        .context("write the release")?;
    let release = release.display().to_string();
    let uninstalled = error_text(helm(world, NAMESPACE, &["uninstall", "holdfast"]));
    for part in ["Holdfast serves 3 volumes", "delete validatingadmissionpolicybinding holdfast-in-use"] {
        ensure!(uninstalled.contains(part), "no {part:?} in {uninstalled}");
    }
    world
        .kubectl(["get", "--filename", &release])
        .context("an object of the release was deleted although the uninstall was refused")?;
    check_unserved(world)?;
    check_store_in_use(world)?;
    report::step("without any Volume, everything can be deleted");
    report_in_use(world, 0, 0)?;
    patch_in_use(world, "{\"data\": {\"objectstore.full\": null}}")?;
    until("the guard to see that none is in it", LIMIT, || {
        Ok(world.kubectl(["delete", "objectstore", "full"]).ok())
    })?;
    until("the guard to see that there is none", LIMIT, || {
        Ok(world.kubectl(["delete", "crd", "volumes.storage.holdfast.dev", "--dry-run=server"]).ok())
    })?;
    until("the guard to see that none is served", LIMIT, || {
        Ok(helm(world, NAMESPACE, &["uninstall", "holdfast"]).ok())
    })?;
    world.kubectl([
        "delete",
        "validatingadmissionpolicy,validatingadmissionpolicybinding",
        "holdfast-in-use",
    ])?;
    let left = world.kubectl(["get", "--ignore-not-found", "--output=name", "--filename", &release])?;
    ensure!(left.is_empty(), "left: {left}");
    let hook = ["--namespace", NAMESPACE, "get", "configmap", "holdfast-uninstall", "--ignore-not-found"];
    let hook = world.kubectl(hook)?;
    ensure!(hook.is_empty(), "left: {hook}");
    Ok(())
}

/// Regression, found in review: with Holdfast's labels, users could make their objects and namespaces
/// undeletable.
fn check_other_namespaces(world: &World) -> Result<()> {
    report::step("elsewhere, objects with Holdfast's labels can be deleted");
    for namespace in ["other", "default"] {
        for words in [&["create", "configmap", "theirs"][..], &["label", "configmap", "theirs", LABEL]] {
            world.kubectl(["--namespace", namespace].iter().chain(words).copied())?;
        }
        world
            .kubectl(["--namespace", namespace, "delete", "configmap", "theirs"])
            .with_context(|| format!("a user deletes an object in {namespace}"))?;
    }
    world.kubectl(["label", "namespace", "other", LABEL])?;
    world
        .kubectl(["delete", "namespace", "other", "--dry-run=server"])
        .context("a user deletes a namespace")?;
    let role = ["--namespace", "default", "delete", "role", "holdfast-node-events", "--dry-run=server"];
    let refused = error_text(world.kubectl(role));
    ensure!(refused.contains("Holdfast serves 3 volumes"), "the daemon's role: {refused}");
    Ok(())
}

/// While volumes are served, an upgrade changes everything that does not serve them.
fn check_upgrades(world: &World) -> Result<()> {
    report::step("an upgrade removes objects that are not needed to serve them");
    helm(world, NAMESPACE, &["upgrade", "holdfast", "--reset-values", KEEPER])?;
    let role =
        ["--namespace", "other", "get", "role", "--output=name", "holdfast-secrets", "--ignore-not-found"];
    let role = world.kubectl(role)?;
    ensure!(role.is_empty(), "the values name the namespace no longer, and {role} is there");
    report::step("an upgrade cannot separate the daemon from its volumes");
    for other in [
        "--set=node.nodeSelector.disk=fast",
        AFFINITY,
        "--set=node.stateDir=/mnt/nvme",
        "--set=node.runDir=/run/other",
        FEWER_TOLERATIONS,
    ] {
        let upgrade = ["upgrade", "holdfast", "--reset-values", KEEPER, other];
        let refused = error_text(helm(world, NAMESPACE, &upgrade));
        ensure!(refused.contains("until none is served, node.stateDir, node.runDir"), "{other}: {refused}");
    }
    for harmless in ["--set=node.logFilter=debug", MORE_TOLERATIONS] {
        helm(world, NAMESPACE, &["upgrade", "holdfast", "--reset-values", KEEPER, harmless])?;
    }
    Ok(())
}

/// Existing volumes that no node serves protect only their CRDs.
fn check_unserved(world: &World) -> Result<()> {
    report::step("with no served volumes, the CRDs of existing objects cannot be deleted");
    report_in_use(world, 0, 5)?;
    for kind in ["volumes", "objectstores"] {
        let kind = format!("{kind}.storage.holdfast.dev");
        let refused = until("the guard to see that none is served", LIMIT, || {
            let refused = error_text(world.kubectl(["delete", "crd", &kind, "--dry-run=server"]));
            Ok((!refused.contains("Holdfast serves")).then_some(refused))
        })?;
        ensure!(refused.contains("there are 5 Volumes: they would be deleted"), "{kind}: {refused}");
    }
    let operator =
        ["--namespace", NAMESPACE, "delete", "deployment", "holdfast-operator", "--dry-run=server"];
    world.kubectl(operator).context("an operator that serves nothing is kept").map(drop)
}

/// Only an empty ObjectStore is deleted.
fn check_store_in_use(world: &World) -> Result<()> {
    report::step("an ObjectStore with a Volume cannot be deleted");
    let store = "apiVersion: storage.holdfast.dev/v1alpha1\nkind: ObjectStore\nmetadata: {name: NAME}\n\
                 spec: {bucket: bucket, credentials: {environment: {}}}\n";
    apply(world, &["full", "empty"].map(|name| store.replace("NAME", name)).join("---\n"))?;
    let data = "{\"data\": {\"objectstore.full\": \"2\"}}";
    patch_in_use(world, data)?;
    let refused = until("the guard to see the volumes", LIMIT, || {
        Ok(world.kubectl(["delete", "objectstore", "full", "--dry-run=server"]).err())
    })?;
    ensure!(format!("{refused:#}").contains("2 Volumes are in this ObjectStore"), "{refused:#}");
    world.kubectl(["delete", "objectstore", "empty"]).map(drop)
}

/// Writes these numbers of volumes for the guards, like the operator.
fn report_in_use(world: &World, attached: u32, volumes: u32) -> Result<()> {
    let data = format!("{{\"data\": {{\"attached\": \"{attached}\", \"volumes\": \"{volumes}\"}}}}");
    patch_in_use(world, &data)
}

fn patch_in_use(world: &World, data: &str) -> Result<()> {
    let words = ["--namespace", NAMESPACE, "patch", "configmap", "holdfast-in-use", "--type=merge"];
    world.kubectl(words.into_iter().chain(["--patch", data])).map(drop)
}

fn error_text<T>(outcome: Result<T>) -> String {
    outcome.err().map(|error| format!("{error:#}")).unwrap_or_default()
}

fn helm(world: &World, namespace: &str, words: &[&str]) -> Result<String> {
    let mut command = Command::new(world.toolbox().helm()?);
    command.env("KUBECONFIG", world.control_plane()?.admin_kubeconfig());
    command.args(words).args(["--namespace", namespace]);
    if matches!(words, ["install" | "upgrade", ..]) {
        command.arg(world.chart());
    }
    output(&mut command)
}

/// Returns arguments for the daemon of a node, as its token names it. It is also a member of a group with all
/// rights: kubectl reads the objects that it patches, and the permissions of the roles are not tested here.
fn as_node(node: &str) -> Vec<String> {
    vec![
        "--as-group=system:masters".to_owned(),
        format!("--as=system:serviceaccount:{NAMESPACE}:holdfast-node"),
        format!("--as-user-extra=authentication.kubernetes.io/node-name={node}"),
    ]
}

fn status(world: &World, user: &[String], status: &str) -> Result<()> {
    let patch = format!("{{\"status\": {status}}}");
    let words = ["patch", "volume", "disk", "--subresource=status", "--type=merge", "--patch", &patch];
    world.kubectl(words.into_iter().chain(user.iter().map(String::as_str))).map(drop)
}

/// Node n1 describes a node.
fn storage_node(world: &World, node: &str) -> Result<()> {
    let file = world.dir().join("storage-node.yaml");
    let object = "apiVersion: storage.holdfast.dev/v1alpha1\nkind: StorageNode";
    fs::write(&file, format!("{object}\nmetadata: {{name: {node}}}\nspec: {{}}\n"))
        .context("write a node")?;
    let file = file.display().to_string();
    let words = ["apply", "--server-side", "--field-manager=holdfast-node", "--filename", &file];
    let user = as_node("n1");
    world.kubectl(words.into_iter().chain(user.iter().map(String::as_str))).map(drop)
}
