//! `kubectl holdfast top`: the load of each attached volume, from the metrics of the daemons.
//!
//! Owns: finding the daemons, two reads of each through the API server, and the messages about daemons that
//! do not answer.
//! Costs: one LIST of Volumes, one of pods, and two requests per daemon.
//! On failure: lists a node that does not answer below the table; the other nodes are in the table.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use futures::StreamExt;
use holdfast_crds::Volume;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Request;
use kube::{Client, Resource, ResourceExt};

use crate::cluster::{ClusterClients, claim_of, reason};
use crate::problem;
use figures::{Reading, VolumeRow};
use table::table;

mod figures;
mod samples;
mod table;

pub(crate) use table::SortBy;

/// Labels that the chart gives the daemon's pods.
const PODS: &str = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=node";
/// Name of the metrics port in the chart.
const PORT: &str = "metrics";
/// Longest wait for a daemon's answer.
const LIMIT: Duration = Duration::from_secs(5);
/// Requests in flight at once, regardless of the cluster's size.
const AT_ONCE: usize = 32;

/// Returns the output of the command, and true if it is complete.
pub(crate) async fn top(
    cluster: &ClusterClients,
    names: &[String],
    sort_by: SortBy,
    pause: Duration,
) -> anyhow::Result<(String, bool)> {
    let volumes = cluster.volumes().await?;
    let wanted = wanted(&volumes, names)?;
    let pods = cluster.pods(None, PODS).await?;
    let mut daemons = daemons(&pods)?;
    if !names.is_empty() {
        daemons.retain(|daemon| wanted.iter().any(|volume| node_of(volume) == Some(&daemon.node)));
    }
    let before = read(&cluster.once, &daemons, |_| true).await;
    tokio::time::sleep(pause).await;
    let after = read(&cluster.once, &daemons, |at| before[at].is_ok()).await;
    let answers =
        daemons.into_iter().zip(before.into_iter().zip(after)).map(|(DaemonPod { node, .. }, reads)| {
            let rows = match reads {
                (Ok(before), Ok(after)) => Ok(after.since(&before, &node)),
                (Err(why), _) | (_, Err(why)) => Err(why),
            };
            (node, rows)
        });
    Ok(outcome(&wanted, !names.is_empty(), answers.collect(), sort_by))
}

/// Returns the Volumes of these names, or of claims as `NAMESPACE/NAME`; without names, all Volumes.
fn wanted<'a>(volumes: &'a [Volume], names: &[String]) -> anyhow::Result<Vec<&'a Volume>> {
    if names.is_empty() {
        return Ok(volumes.iter().collect());
    }
    let mut found = Vec::new();
    for name in names {
        let is_called = |volume: &&Volume| volume.name_any() == *name || claim_of(volume) == Some(name);
        let before = found.len();
        found.extend(volumes.iter().filter(is_called));
        if found.len() == before {
            bail!("no Volume is called {name}, and none was made for a claim of that name (NAMESPACE/CLAIM)");
        }
    }
    Ok(found)
}

/// Returns the node that reports serving `volume`.
fn node_of(volume: &Volume) -> Option<&String> {
    volume.status.as_ref()?.node.as_ref().filter(|node| !node.is_empty())
}

/// A pod of the daemon.
#[derive(Debug, PartialEq)]
struct DaemonPod {
    node: String,
    /// Namespace, and name with the port, or the reason why the daemon cannot be queried.
    target: Result<(String, String), String>,
}

/// Returns the daemons among `pods`. During a replacement, a node has two.
///
/// # Errors
/// No daemon exists.
fn daemons(pods: &[Pod]) -> anyhow::Result<Vec<DaemonPod>> {
    let daemons: Vec<DaemonPod> = pods.iter().filter_map(daemon).collect();
    if daemons.is_empty() {
        return Err(anyhow!("no pod of a node daemon was found: none has the labels {PODS} and a node"));
    }
    Ok(daemons)
}

fn daemon(pod: &Pod) -> Option<DaemonPod> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.clone().unwrap_or_default());
    let phase = status.phase.unwrap_or_default();
    // Ended pods, for example evicted ones, remain as objects.
    if ["Succeeded", "Failed"].contains(&phase.as_str()) {
        return None;
    }
    let node = spec.node_name.clone().filter(|node| !node.is_empty())?;
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let mut ports = spec.containers.iter().flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some(PORT)).map(|port| port.container_port);
    let target = match port {
        None => Err(format!("pod {namespace}/{name} has no port called {PORT}")),
        Some(_) if status.pod_ip.is_none() => {
            Err(format!("pod {namespace}/{name} is {phase} and has no address"))
        }
        Some(port) => Ok((namespace, format!("{name}:{port}"))),
    };
    Some(DaemonPod { node, target })
}

/// Reads the metrics of the selected `daemons` in parallel.
async fn read(
    client: &Client,
    daemons: &[DaemonPod],
    is_chosen: impl Fn(usize) -> bool,
) -> Vec<Result<Reading, String>> {
    let read = |(at, daemon): (usize, &DaemonPod)| {
        let target = daemon.target.clone().and_then(|target| {
            if is_chosen(at) { Ok(target) } else { Err("it did not answer the first read".to_owned()) }
        });
        let client = client.clone();
        async move {
            let (namespace, pod) = target?;
            read_one(&client, &namespace, &pod).await
        }
    };
    futures::stream::iter(daemons.iter().enumerate().map(read)).buffered(AT_ONCE).collect().await
}

/// Reads the metrics of `pod`, a name with a port.
async fn read_one(client: &Client, namespace: &str, pod: &str) -> Result<Reading, String> {
    let pods = Request::new(Pod::url_path(&(), Some(namespace)));
    let request = pods.get_subresource("proxy/metrics", pod).map_err(|error| error.to_string())?;
    let begin = Instant::now();
    let text = tokio::time::timeout(LIMIT, client.request_text(request)).await;
    // The daemon reads its counters at some time in between; the midpoint is wrong by at most half of it.
    let at = begin + begin.elapsed() / 2;
    let text = text.map_err(|_elapsed| format!("no answer within {} s", LIMIT.as_secs()))?;
    Reading::new(at, &text.map_err(|error| format!("{:#}", reason(error)))?)
}

/// Returns the output of the command, and true if it is complete.
fn outcome(
    wanted: &[&Volume],
    is_named: bool,
    answers: Vec<(String, Result<Vec<VolumeRow>, String>)>,
    sort_by: SortBy,
) -> (String, bool) {
    let mut rows = Vec::new();
    let (mut answered, mut silent) = (BTreeSet::new(), BTreeMap::new());
    for (node, answer) in answers {
        match answer {
            Ok(found) => {
                answered.insert(node);
                rows.extend(found);
            }
            Err(why) => {
                silent.entry(node).or_insert(why);
            }
        }
    }
    // A starting replacement does not answer yet, but its predecessor does.
    silent.retain(|node, _| !answered.contains(node));
    for node in wanted.iter().filter_map(|volume| node_of(volume)).filter(|node| !answered.contains(*node)) {
        silent.entry(node.clone()).or_insert_with(|| "no pod of the daemon runs there".to_owned());
    }
    let mut notes = Vec::new();
    if is_named {
        let id = |volume: &Volume| volume.status.as_ref().and_then(|status| status.volume_id.clone());
        let is_of = |row: &VolumeRow, volume: &Volume| id(volume).as_ref() == Some(&row.id);
        rows.retain(|row| wanted.iter().any(|volume| is_of(row, volume)));
        for volume in wanted.iter().filter(|volume| !rows.iter().any(|row| is_of(row, volume))) {
            notes.push(match node_of(volume) {
                Some(node) if silent.contains_key(node) => continue,
                Some(node) => format!(
                    "{} is not attached: node {node} attaches or detaches it.",
                    problem::title(volume)
                ),
                None => format!("{} is not attached to any node.", problem::title(volume)),
            });
        }
    }
    let is_complete = silent.is_empty() && notes.is_empty();
    notes.extend(rows.iter().filter(|row| row.is_new).map(|row| {
        format!("Volume {} has no rates: its counters were reset between the two reads.", row.name)
    }));
    notes.extend(
        silent
            .iter()
            .map(|(node, why)| format!("Node {node} does not answer, and its volumes are missing: {why}")),
    );
    let table = (!rows.is_empty()).then(|| table(rows, sort_by));
    let notes = (!notes.is_empty()).then(|| format!("{}\n", notes.join("\n")));
    let text = match (table, notes) {
        (Some(table), Some(notes)) => format!("{table}\n{notes}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => "No volume is attached.\n".to_owned(),
    };
    (text, is_complete)
}

#[cfg(test)]
mod tests;
