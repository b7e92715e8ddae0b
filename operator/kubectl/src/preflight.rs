//! `kubectl holdfast preflight`: runs `holdfast-node preflight` on nodes, before the chart is installed.
//!
//! Owns: one Pod per node, from its creation to its deletion.
//! Does not own: the checks; `holdfast-node` in the image makes them.
//! Invariants: each Pod of a run is deleted when the run ends, even after an error or a signal. Pods of a
//! killed run end at their time limit; the next run in the same namespace deletes them.
//! Costs: one Pod and one watch at a time per node; needs rights only for Nodes, Pods and events.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use holdfast_crds::{READY, TimeSpan};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::cluster::{ClusterClients, time_of};
use crate::say;

/// Registry path of the images in a release's chart; set by the release build.
const REGISTRY: Option<&str> = option_env!("HOLDFAST_REGISTRY");
/// Selects the Pods of all runs.
const LABELS: [(&str, &str); 2] =
    [("app.kubernetes.io/name", "holdfast"), ("app.kubernetes.io/component", "preflight")];
/// Label with the name of the run.
const RUN: &str = "holdfast.dev/preflight";
const CONTAINER: &str = "preflight";
/// The chart's values of `node.stateDir` and `node.runDir`.
const STATE_DIR: &str = "/var/lib/holdfast";
const RUN_DIR: &str = "/run/holdfast";
/// Time after that limit at which the kubelet ends a Pod whose run was killed.
const GRACE: Duration = Duration::from_secs(60);
/// Time for the kubelet to repeat failed pulls of the image.
const PULL_RETRIES: Duration = Duration::from_secs(30);
/// Number of nodes checked in parallel.
const AT_ONCE: usize = 32;

/// Arguments of `preflight`.
#[derive(Debug, Args)]
pub(crate) struct Preflight {
    /// Names of the nodes.
    #[arg(value_name = "NODE", required_unless_present = "all", conflicts_with = "all")]
    nodes: Vec<String>,
    /// All Linux nodes of the cluster.
    #[arg(long)]
    all: bool,
    /// Image of holdfast-node; default: the image in this version's chart.
    #[arg(long)]
    image: Option<String>,
    /// Secret with the credentials of the image's registry, in the namespace of the Pods.
    #[arg(long, value_name = "NAME")]
    image_pull_secret: Option<String>,
    /// Namespace for the Pods, which are privileged.
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// State directory on the nodes: the chart's node.stateDir.
    #[arg(long, value_name = "DIR", default_value = STATE_DIR)]
    state_dir: String,
    /// Longest wait for a node, including the image pull.
    #[arg(long, default_value = "5m")]
    timeout: TimeSpan,
}

/// The Pods of one run.
#[derive(Debug, Clone)]
struct PreflightRun {
    name: String,
    image: String,
    image_pull_secret: Option<String>,
    namespace: String,
    state_dir: String,
    limit: Duration,
}

/// Result of one node.
#[derive(Debug, PartialEq, Eq)]
struct Checked {
    node: String,
    /// The lines of `holdfast-node preflight`.
    log: String,
    /// Reason why the node failed.
    failure: Option<String>,
}

/// Outcome of a Pod.
#[derive(Debug, PartialEq, Eq)]
enum PodEnd {
    /// The program exited with this code.
    Exit(i32),
    /// The program did not run, or not to completion.
    Failed(String),
}

/// Checks the nodes and prints each Pod's output.
///
/// # Errors
/// A node does not exist, or the API server rejects a Pod. All Pods were deleted.
pub(crate) async fn run(cluster: &ClusterClients, settings: Preflight) -> anyhow::Result<ExitCode> {
    let Preflight { nodes, all, image, image_pull_secret, namespace, state_dir, timeout } = settings;
    let client = cluster.client.clone();
    let api: Api<Node> = Api::all(client.clone());
    let known = api.list(&ListParams::default()).await.context("the Nodes cannot be listed")?.items;
    let nodes = if all { linux(&known) } else { choose(&known, nodes)? };
    if nodes.is_empty() {
        bail!("the cluster has no Linux node");
    }
    let run = PreflightRun {
        name: run_name(),
        image: image.unwrap_or_else(|| image_of(REGISTRY)),
        image_pull_secret,
        namespace,
        state_dir,
        limit: timeout.0,
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &run.namespace);
    remove(&pods, &selector(None)).await.context("Pods of an earlier run cannot be deleted")?;
    let stop = stop_at_signals()?;
    let outcome = check_all(&client, &run, nodes, &stop).await;
    let removed = remove(&pods, &selector(Some(&run.name))).await;
    let failed = outcome?;
    removed.context("the Pods of this run cannot be deleted")?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Turns true at the first SIGINT or SIGTERM. The second signal ends the process.
fn stop_at_signals() -> anyhow::Result<watch::Sender<bool>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be handled")?;
    let mut terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be handled")?;
    let stop = watch::Sender::new(false);
    let stopping = stop.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if stopping.send_replace(true) {
                std::process::exit(1);
            }
        }
    });
    Ok(stop)
}

/// Checks all nodes, several in parallel, and returns the number of failures. After a stop or a rejected Pod
/// it starts no further Pod, and waits until the started ones are deleted.
async fn check_all(
    client: &Client,
    run: &PreflightRun,
    nodes: Vec<Node>,
    stop: &watch::Sender<bool>,
) -> anyhow::Result<usize> {
    let (mut waiting, mut running) = (nodes.into_iter(), JoinSet::new());
    let (mut failed, mut first_error) = (0, None);
    loop {
        while running.len() < AT_ONCE
            && !*stop.borrow()
            && let Some(node) = waiting.next()
        {
            running.spawn(check_node(client.clone(), run.clone(), node, stop.subscribe()));
        }
        let Some(joined) = running.join_next().await else { break };
        let checked = joined.context("a task of this program panicked").and_then(|checked| checked);
        let said = checked.and_then(|checked| {
            failed += usize::from(checked.failure.is_some());
            Ok(say(&text(&checked))?)
        });
        if let Err(error) = said {
            stop.send_replace(true);
            first_error.get_or_insert(error);
        }
    }
    match first_error {
        Some(error) => Err(error),
        None if *stop.borrow() => Err(anyhow!("interrupted: the Pods were deleted")),
        None => Ok(failed),
    }
}

/// Checks one node and deletes its Pod.
async fn check_node(
    client: Client,
    run: PreflightRun,
    node: Node,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<Checked> {
    let name = node.name_any();
    if let Some(failure) = unready(&node) {
        return Ok(Checked { node: name, log: String::new(), failure: Some(failure) });
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), &run.namespace);
    let pod = serde_json::from_value(pod(&name, &run)).context("the manifest of the Pod is invalid")?;
    let created = pods.create(&PostParams::default(), &pod).await;
    let pod = created.map_err(|error| refused(error, &run))?.name_any();
    let ended = tokio::time::timeout(run.limit, wait_for_end(&pods, &pod));
    let ended = tokio::select! {
        ended = ended => ended,
        // An error means that the sender was dropped, which is also a stop.
        () = async { drop(stop.wait_for(|stop| *stop).await) } => {
            delete(&pods, &pod).await?;
            return Ok(Checked { node: name, log: String::new(), failure: Some("interrupted".to_owned()) });
        }
    };
    let ended = match ended {
        Ok(Ok(ended)) => ended,
        Ok(Err(error)) => PodEnd::Failed(format!("its Pod cannot be watched ({error})")),
        Err(_elapsed) => PodEnd::Failed(format!(
            "its Pod has not ended within {}{}",
            TimeSpan(run.limit),
            last_warning(&client, &run.namespace, &pod).await
        )),
    };
    let log =
        pods.logs(&pod, &LogParams { container: Some(CONTAINER.to_owned()), ..LogParams::default() }).await;
    delete(&pods, &pod).await?;
    let failure = match (&ended, &log) {
        (PodEnd::Exit(0), Ok(_)) => None,
        (PodEnd::Exit(0), Err(error)) => Some(format!("the log of its Pod cannot be read ({error})")),
        (PodEnd::Exit(1), Ok(_)) => Some("a check failed".to_owned()),
        (PodEnd::Exit(code), _) => Some(format!("holdfast-node preflight ended with code {code}")),
        (PodEnd::Failed(why), _) => Some(why.clone()),
    };
    Ok(Checked { node: name, log: log.unwrap_or_default(), failure })
}

/// Waits until a Pod that was just created has ended.
async fn wait_for_end(pods: &Api<Pod>, pod: &str) -> anyhow::Result<PodEnd> {
    let pull_failed = OnceLock::new();
    let end = |pod: &Pod| end(pod, Instant::now(), &pull_failed);
    let has_ended = |pod: Option<&Pod>| pod.is_none_or(|pod| end(pod).is_some());
    let ended = loop {
        let soon = tokio::time::timeout(PULL_RETRIES, await_condition(pods.clone(), pod, has_ended)).await;
        // A new watch shows a failed pull again, even if the Pod does not change any more.
        if let Ok(ended) = soon {
            break ended?;
        }
    };
    Ok(match ended {
        Some(ended) => end(&ended).unwrap_or_else(|| PodEnd::Failed("its Pod has not ended".to_owned())),
        None => PodEnd::Failed("its Pod was deleted by another program".to_owned()),
    })
}

/// Returns the last warning about a Pod, as a suffix for another sentence.
async fn last_warning(client: &Client, namespace: &str, pod: &str) -> String {
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.kind=Pod,involvedObject.name={pod},type=Warning");
    let Ok(found) = events.list(&ListParams::default().fields(&fields)).await else { return String::new() };
    let last = found.items.into_iter().max_by_key(time_of).and_then(|event| event.message);
    last.map(|message| format!(": {message}")).unwrap_or_default()
}

/// Deletes the Pods that match a selector.
async fn remove(pods: &Api<Pod>, selector: &str) -> anyhow::Result<()> {
    for pod in pods.list(&ListParams::default().labels(selector)).await?.items {
        delete(pods, &pod.name_any()).await?;
    }
    Ok(())
}

/// Deletes a Pod immediately, even if its node does not answer. The kubelet ends remaining processes.
async fn delete(pods: &Api<Pod>, name: &str) -> anyhow::Result<()> {
    match pods.delete(name, &DeleteParams::default().grace_period(0)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).with_context(|| format!("Pod {name} cannot be deleted")),
    }
}

fn selector(run: Option<&str>) -> String {
    let own = run.map(|run| (RUN, run));
    let labels: Vec<String> =
        LABELS.into_iter().chain(own).map(|(label, value)| format!("{label}={value}")).collect();
    labels.join(",")
}

/// Returns a unique name for a run.
fn run_name() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{:x}-{:x}", now.as_nanos(), std::process::id())
}

/// Returns the image of this version's chart.
fn image_of(registry: Option<&str>) -> String {
    let path = registry.map(|registry| format!("{registry}/")).unwrap_or_default();
    format!("{path}holdfast-node:{}", env!("CARGO_PKG_VERSION"))
}

/// Returns the nodes that the chart's DaemonSet runs on.
fn linux(known: &[Node]) -> Vec<Node> {
    let is_linux = |node: &&Node| node.labels().get("kubernetes.io/os").is_none_or(|os| os == "linux");
    known.iter().filter(is_linux).cloned().collect()
}

/// Returns the nodes with these names, without duplicates.
///
/// # Errors
/// A node of that name does not exist.
fn choose(known: &[Node], names: Vec<String>) -> anyhow::Result<Vec<Node>> {
    let mut chosen: Vec<Node> = Vec::new();
    for name in names {
        let Some(node) = known.iter().find(|node| node.name_any() == name) else {
            bail!("no Node is called {name}: `kubectl get nodes` lists them");
        };
        if chosen.iter().all(|chosen| chosen.name_any() != name) {
            chosen.push(node.clone());
        }
    }
    Ok(chosen)
}

/// Returns the reason why the kubelet of a node would start no Pod.
fn unready(node: &Node) -> Option<String> {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == READY)?;
    (ready.status != "True").then(|| {
        let said = ready.message.as_deref().or(ready.reason.as_deref()).unwrap_or("no reason is given");
        format!("the Node is not Ready, so its kubelet starts no Pod: {said}")
    })
}

/// Builds the Pod that checks `node`: privileged, and with the mounts of the chart's DaemonSet. It uses the
/// chart's default configuration, which equals the daemon's defaults.
fn pod(node: &str, run: &PreflightRun) -> Value {
    let PreflightRun { name, image, image_pull_secret, namespace: _, state_dir, limit } = run;
    let pull_secrets: Vec<Value> = image_pull_secret.iter().map(|name| json!({ "name": name })).collect();
    let mut labels = json!({ RUN: name });
    for (label, value) in LABELS {
        labels[label] = value.into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "generateName": "holdfast-preflight-", "labels": labels },
        "spec": {
            "nodeName": node,
            "imagePullSecrets": pull_secrets,
            "hostPID": true,
            "restartPolicy": "Never",
            // If this program is killed, the kubelet ends the Pod.
            "activeDeadlineSeconds": (*limit + GRACE).as_secs(),
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "args": ["preflight", "--config=/dev/null"],
                "env": [
                    { "name": "HOLDFAST_KUBERNETES", "value": "true" },
                    { "name": "HOLDFAST_NODE_NAME", "value": node },
                    { "name": "HOLDFAST_STATE_DIR", "value": state_dir },
                    { "name": "HOLDFAST_RUN_DIR", "value": RUN_DIR },
                ],
                // Not below /dev, which is the host's.
                "terminationMessagePath": "/termination-log",
                "securityContext": { "privileged": true, "readOnlyRootFilesystem": true },
                "volumeMounts": [
                    { "name": "dev", "mountPath": "/dev" },
                    { "name": "state", "mountPath": state_dir },
                    { "name": "run", "mountPath": RUN_DIR },
                ],
            }],
            "volumes": [
                { "name": "dev", "hostPath": { "path": "/dev", "type": "Directory" } },
                { "name": "state", "hostPath": { "path": state_dir, "type": "DirectoryOrCreate" } },
                { "name": "run", "hostPath": { "path": RUN_DIR, "type": "DirectoryOrCreate" } },
            ],
        },
    })
}

/// Returns the outcome of a Pod; `None` while it can still reach one. `pull_failed` keeps the time at which a
/// failed pull of its image was first seen.
fn end(pod: &Pod, now: Instant, pull_failed: &OnceLock<Instant>) -> Option<PodEnd> {
    let status = pod.status.as_ref()?;
    let state = status.container_statuses.iter().flatten().find_map(|container| container.state.as_ref());
    if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
        return Some(PodEnd::Exit(terminated.exit_code));
    }
    let or_nothing = |text: &Option<String>| text.clone().unwrap_or_default();
    if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
        let (reason, message) = (or_nothing(&waiting.reason), or_nothing(&waiting.message));
        match reason.as_str() {
            // The registry may answer the next pull.
            "ErrImagePull" | "ImagePullBackOff"
                if now.duration_since(*pull_failed.get_or_init(|| now)) < PULL_RETRIES => {}
            "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull"
            | "ImageInspectError" => {
                let said = format!(
                    "{reason}: {message}. Name an image that the node can pull with --image, and the Secret of a \
                     private registry with --image-pull-secret"
                );
                return Some(PodEnd::Failed(said));
            }
            "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
                return Some(PodEnd::Failed(format!("{reason}: {message}")));
            }
            _ => {}
        }
    }
    (status.phase.as_deref() == Some("Failed")).then(|| {
        PodEnd::Failed(format!(
            "its Pod failed: {}: {}",
            or_nothing(&status.reason),
            or_nothing(&status.message)
        ))
    })
}

/// Explains a rejected Pod. The reason applies to every node.
fn refused(error: kube::Error, run: &PreflightRun) -> anyhow::Error {
    let namespace = &run.namespace;
    let answer = if let kube::Error::Api(status) = &error { Some(status) } else { None };
    let (code, message) = answer.map_or((0, ""), |status| (status.code, status.message.as_str()));
    let said = match code {
        _ if message.contains("violates PodSecurity") => format!(
            "namespace {namespace} does not admit privileged Pods: name one that does with --namespace, or label it: \
             `kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged`"
        ),
        403 => format!("you may not create Pods in namespace {namespace}: name another one with --namespace"),
        404 => format!("no namespace is called {namespace}: create it, or name another one with --namespace"),
        _ => format!("the Pod cannot be created in namespace {namespace}"),
    };
    anyhow::Error::from(error).context(said)
}

/// Formats the output for one node.
fn text(checked: &Checked) -> String {
    let Checked { node, log, failure } = checked;
    let mut text = format!("Node {node}\n");
    for line in log.lines() {
        let _ = writeln!(text, "  {line}");
    }
    let _ = match failure {
        None => writeln!(text, "  Node {node} is fit."),
        Some(why) => writeln!(text, "  Node {node} is not fit: {why}"),
    };
    text
}

#[cfg(test)]
mod tests;
