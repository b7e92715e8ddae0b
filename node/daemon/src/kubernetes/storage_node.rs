//! Maintains this node's StorageNode: its capabilities and readiness. The Node of that name owns it, so that
//! both are deleted together. A StorageNode written after the deletion of its Node still names that owner:
//! the API server's garbage collector then deletes it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{
    Condition, ConditionBuilder, ConditionStatus, DEVICES_KEPT, FencedData, MemoryUse, NODE_FIELD_MANAGER,
    READY, SpillUse, StorageNode, StorageNodeStatus, Time, TransportName, TransportSupport, find_condition,
};
use holdfast_types::{Backoff, SECTOR_BYTES};
use holdfast_ublk::KernelRelease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::timeout;

use super::draining::{Draining, Sign};
use super::transport::transport_name;
use crate::node::{
    Capabilities, NoTransport, NodeVolumeStatus, StateDisk, VolumeState, fenced, run_blocking,
};
use crate::volumes::Volumes;

/// Condition: the disk under the state directory guarantees whole sectors after a power failure.
const SECTORS_ATOMIC: &str = "SectorsAtomic";
/// Condition: the kernel's driver tears down the devices of an exited daemon without a known bug.
const KERNEL_TEARDOWN_FIXED: &str = "KernelTeardownFixed";
/// Condition: the node's pods will leave.
const DRAINING: &str = "Draining";
/// Interval at which the node examines itself; an unchanged report is not written again.
const EVERY: Backoff = Backoff::steady(Duration::from_secs(15));
/// Interval at which figures (free space, number of volumes) are written.
const FIGURES_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of listed entries of fenced writers' data; of the others, only the number is reported.
const LISTED_FENCED: usize = 64;
/// Free space is published in steps of this many bytes, so that it is not written at every check.
const SPACE_STEP_BYTES: u64 = 256 << 20;

/// Runs until it is dropped. A change of `draining` is reported at once; `known` receives the Node of that
/// name.
pub(crate) async fn run<V: Volumes>(
    client: Client,
    name: String,
    state_dir: PathBuf,
    volumes: V,
    mut draining: watch::Receiver<Draining>,
    known: watch::Sender<Option<OwnerReference>>,
) {
    let mut last = LastReport::default();
    loop {
        let now = draining.borrow_and_update().clone();
        if let Err(error) = report(&client, &name, &state_dir, &volumes, (&mut last, now), &known).await {
            tracing::warn!(
                error = holdfast_service::chain(&error),
                "could not write the StorageNode; volumes stay served"
            );
        }
        // An error means that the sender was dropped, which ends this task, too.
        let _changed = timeout(EVERY.delay(1, fastrand::f64()), draining.changed()).await;
    }
}

/// The last report that this process wrote.
#[derive(Debug, Default)]
struct LastReport {
    at: Option<Instant>,
    /// The cluster's StorageNode CRD has no field for spill files.
    lacks_spill: bool,
}

impl LastReport {
    /// Returns true if the status must be written. A field that the cluster lacked is retried with figures.
    fn is_due(&self, before: &StorageNodeStatus, now: &StorageNodeStatus) -> bool {
        let since = self.at.map(|at| at.elapsed());
        if self.lacks_spill {
            return !is_recent(since) || is_due(before, &without_spill(now.clone()), since);
        }
        is_due(before, now, since)
    }
}

/// Writes the report if it is due.
#[tracing::instrument(name = "report_storage_node", skip_all, fields(node = name))]
async fn report<V: Volumes>(
    client: &Client,
    name: &str,
    state_dir: &Path,
    volumes: &V,
    (last, draining): (&mut LastReport, Draining),
    known: &watch::Sender<Option<OwnerReference>>,
) -> Result<(), ApiError> {
    let api: Api<StorageNode> = Api::all(client.clone());
    // The operator writes to it, too, and it is deleted with its Node.
    let written = call(api.get_opt(name)).await?;
    let owner = owner(client, name).await?;
    if let Some(owner) = &owner {
        remember_owner(known, owner);
    }
    if owner.is_none() && written.is_none() && known.borrow().is_some() {
        // Deleted with its Node.
        return Ok(());
    }
    // Writes after the deletion of the Node still refer to that Node, and are deleted with it.
    let owners = owners(owner.or_else(|| known.borrow().clone()), written.as_ref());
    let is_owned = written.as_ref().is_some_and(|node| node.owner_references() == owners);
    let before = written.and_then(|node| node.status);
    let StorageNodeStatus { fenced, fenced_unlisted, conditions, .. } = before.clone().unwrap_or_default();
    let reported = (fenced, fenced_unlisted.map_or(0, |unlisted| unlisted as usize));
    let directory = state_dir.to_owned();
    // A keeper may respond late.
    let asked = volumes.clone();
    let (capabilities, memory, space, fenced) = run_blocking(move || {
        let fenced = fenced_data(&directory, reported);
        (asked.capabilities(), asked.memory_use(), space(&directory), fenced)
    })
    .await;
    let facts = StorageNodeFacts {
        capabilities,
        volumes: volumes.list(),
        memory,
        unkept_devices: volumes.unkept_devices(),
        state_dir,
        space,
        fenced,
        draining,
    };
    let now = Time(Timestamp::now());
    let status =
        describe(facts, &ConditionBuilder { previous: &conditions, observed_generation: None, now: &now });
    if is_owned && before.as_ref().is_some_and(|before| !last.is_due(before, &status)) {
        return Ok(());
    }
    let object = json!({
        "apiVersion": StorageNode::api_version(&()),
        "kind": StorageNode::kind(&()),
        "metadata": { "name": name, "ownerReferences": owners },
    });
    if !is_owned {
        let params = PatchParams::apply(NODE_FIELD_MANAGER).force();
        let mut with_spec = object.clone();
        with_spec["spec"] = json!({});
        call(api.patch(name, &params, &Patch::Apply(with_spec))).await?;
    }
    last.lacks_spill = write_status(&api, name, object, status, last.lacks_spill).await?;
    last.at = Some(Instant::now());
    Ok(())
}

/// Publishes the Node that owns the StorageNode, if it differs from the last one.
fn remember_owner(known: &watch::Sender<Option<OwnerReference>>, owner: &OwnerReference) {
    known.send_if_modified(|known| {
        known.as_ref() != Some(owner) && {
            *known = Some(owner.clone());
            true
        }
    });
}

/// Returns the owners of a StorageNode that is to be written.
fn owners(owner: Option<OwnerReference>, written: Option<&StorageNode>) -> Vec<OwnerReference> {
    match (owner, written) {
        (Some(owner), _) => vec![owner],
        // This process has seen no Node; its predecessor has.
        (None, Some(written)) => written.owner_references().to_vec(),
        (None, None) => Vec::new(),
    }
}

/// Writes the status; without spill files if the cluster's StorageNode CRD lacks their field, because the API
/// server rejects a status with an unknown field as a whole. Returns true in that case, and logs it unless
/// `is_known`.
async fn write_status(
    api: &Api<StorageNode>,
    name: &str,
    mut object: serde_json::Value,
    status: StorageNodeStatus,
    is_known: bool,
) -> Result<bool, ApiError> {
    let params = PatchParams::apply(NODE_FIELD_MANAGER).force();
    object["status"] = json!(status);
    let written = call(api.patch_status(name, &params, &Patch::Apply(&object))).await;
    let has_spill = status.memory.as_ref().is_some_and(|memory| memory.spill.is_some());
    match written {
        Err(error) if has_spill && error.is_unknown_field() => {
            object["status"] = json!(without_spill(status));
            call(api.patch_status(name, &params, &Patch::Apply(&object))).await?;
            if !is_known {
                tracing::warn!(
                    error = holdfast_service::chain(&error),
                    "reported the StorageNode without status.memory.spill, so claims with spillPercent do not come to \
                     this node"
                );
            }
            Ok(true)
        }
        written => written.map(|_object| false),
    }
}

fn without_spill(status: StorageNodeStatus) -> StorageNodeStatus {
    let memory = status.memory.map(|memory| MemoryUse { spill: None, ..memory });
    StorageNodeStatus { memory, ..status }
}

/// Returns true if the status must be written: at once if anything but figures changed, or if the disk became
/// full or is no longer full.
fn is_due(before: &StorageNodeStatus, now: &StorageNodeStatus, since: Option<Duration>) -> bool {
    let memory = |status: &StorageNodeStatus| status.memory.clone();
    let figures =
        |status: &StorageNodeStatus| (status.available_bytes, status.attached_volumes, memory(status));
    let is_full = |status: &StorageNodeStatus| status.available_bytes == Some(0);
    let rest = |status: &StorageNodeStatus| StorageNodeStatus {
        available_bytes: None,
        attached_volumes: None,
        memory: status.memory.clone().map(|memory| MemoryUse {
            used_bytes: 0,
            limit_bytes: 0,
            spill: memory.spill.map(|spill| SpillUse { limit_bytes: 0, used_bytes: 0, ..spill }),
            ..memory
        }),
        ..status.clone()
    };
    rest(before) != rest(now)
        || is_full(before) != is_full(now)
        || (figures(before) != figures(now) && !is_recent(since))
}

/// Returns true if figures were written recently.
fn is_recent(since: Option<Duration>) -> bool {
    since.is_some_and(|since| since < FIGURES_EVERY)
}

/// Returns the Node of that name, if it exists.
async fn owner(client: &Client, name: &str) -> Result<Option<OwnerReference>, ApiError> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = call(nodes.get_metadata_opt(name)).await?;
    Ok(node.and_then(|node| node.metadata.uid).map(|uid| owned_by(name, uid)))
}

fn owned_by(node: &str, uid: String) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid,
        ..OwnerReference::default()
    }
}

/// Size and free bytes of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileSystemSpace {
    capacity_bytes: u64,
    available_bytes: u64,
}

fn space(directory: &Path) -> Option<FileSystemSpace> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some(FileSystemSpace { capacity_bytes: bytes(stat.f_blocks), available_bytes: bytes(stat.f_bavail) })
}

/// Returns the preserved data of replaced writers, the first ones by name, and the number of the others.
/// Directories are read once, because they do not change. `reported` is the last result.
fn fenced_data(state_dir: &Path, reported: (Vec<FencedData>, usize)) -> (Vec<FencedData>, usize) {
    let mut kept = match fenced::list(state_dir) {
        Ok(kept) => kept,
        Err(error) => {
            tracing::warn!(
                error = holdfast_service::chain(&error),
                "the data of fenced writers could not be listed"
            );
            return reported;
        }
    };
    let unlisted = kept.len().saturating_sub(LISTED_FENCED);
    kept.truncate(LISTED_FENCED);
    let describe = |kept: fenced::Kept| match kept.contents() {
        Ok(contents) => FencedData {
            volume_id: Some(contents.volume.to_string()),
            epoch: Some(contents.epoch.0),
            bytes: Some(contents.bytes()),
            damage: None,
            name: kept.name,
        },
        Err(error) => FencedData {
            volume_id: None,
            epoch: None,
            bytes: None,
            damage: Some(holdfast_service::chain(&error)),
            name: kept.name,
        },
    };
    let listed = kept.into_iter().map(|kept| {
        let read = |reported: &&FencedData| reported.name == kept.name && reported.damage.is_none();
        reported.0.iter().find(read).cloned().unwrap_or_else(|| describe(kept))
    });
    (listed.collect(), unlisted)
}

/// The node's facts at one moment.
struct StorageNodeFacts<'a> {
    capabilities: Capabilities,
    volumes: Vec<NodeVolumeStatus>,
    memory: MemoryUse,
    unkept_devices: usize,
    state_dir: &'a Path,
    space: Option<FileSystemSpace>,
    fenced: (Vec<FencedData>, usize),
    draining: Draining,
}

fn describe(facts: StorageNodeFacts<'_>, conditions: &ConditionBuilder<'_>) -> StorageNodeStatus {
    let StorageNodeFacts {
        capabilities,
        volumes,
        memory,
        unkept_devices,
        state_dir,
        space,
        fenced: (fenced, unlisted),
        draining,
    } = facts;
    let Capabilities { kernel_release, transports, transport, state_disk, max_volumes: _ } = capabilities;
    let transports: Vec<TransportSupport> = transports
        .into_iter()
        .map(|(transport, usable)| TransportSupport {
            name: transport_name(transport).as_str().to_owned(),
            available: usable.is_ok(),
            refusal: usable.err(),
        })
        .collect();
    let mut refusals: Vec<&str> =
        transports.iter().filter_map(|support| support.refusal.as_deref()).collect();
    refusals.dedup();
    let ready = match &transport {
        Ok(_) => conditions.build(READY, ConditionStatus::True, "Serving", "the daemon serves volumes"),
        Err(NoTransport::Keeper(message)) => {
            conditions.build(READY, ConditionStatus::False, "NoKeeper", message.as_str())
        }
        Err(NoTransport::Refused) => {
            let message = format!("no transport can be used: {}", refusals.join("; "));
            conditions.build(READY, ConditionStatus::False, "NoTransport", message)
        }
    };
    let chosen = transport.ok().map(transport_name);
    let attached = volumes.iter().filter(|volume| volume.state == VolumeState::Attached).count();
    let mut described = vec![
        ready,
        sectors_atomic(state_disk.as_ref(), state_dir, conditions),
        kernel_teardown_fixed(&kernel_release, conditions),
    ];
    described.extend(are_kept(chosen, unkept_devices, conditions));
    described.extend(is_draining(&draining, conditions));
    StorageNodeStatus {
        kernel_release: Some(kernel_release),
        daemon_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        state_dir: Some(state_dir.to_string_lossy().into_owned()),
        capacity_bytes: space.map(|space| space.capacity_bytes),
        available_bytes: space.map(|space| space.available_bytes / SPACE_STEP_BYTES * SPACE_STEP_BYTES),
        memory: Some(memory).filter(|memory| memory.limit_bytes > 0 || memory.promised_bytes > 0),
        attached_volumes: u32::try_from(attached).ok(),
        transport: chosen.map(|name| name.as_str().to_owned()),
        transports,
        fenced,
        fenced_unlisted: u32::try_from(unlisted).ok().filter(|unlisted| *unlisted > 0),
        last_handoff: None,
        conditions: described,
    }
}

/// Reports whether a keeper has all connections; `None` where only ublk is used, which needs no keeper.
fn are_kept(
    transport: Option<TransportName>,
    unkept_devices: usize,
    conditions: &ConditionBuilder<'_>,
) -> Option<Condition> {
    let (status, reason, message) = match (transport, unkept_devices) {
        (Some(TransportName::FuseLoop), 0) => {
            (ConditionStatus::True, "Kept", "a keeper holds the connections of all devices".to_owned())
        }
        (_, 0) => return None,
        (_, devices) => {
            let means = "Requests to them would fail if the daemon exited, so its upgrade waits";
            let fix = "Check the pod of the DaemonSet holdfast-keeper on this node";
            let message = format!("no keeper holds the connections of {devices} devices. {means}. {fix}");
            (ConditionStatus::False, "NotKept", message)
        }
    };
    Some(conditions.build(DEVICES_KEPT, status, reason, message))
}

/// Reports a drain. Until the Node was seen, the condition keeps its value.
fn is_draining(draining: &Draining, conditions: &ConditionBuilder<'_>) -> Option<Condition> {
    let means =
        "Volumes upload dirty data after a second or a mebibyte, so that their last commits are small";
    let (reason, sign) = match draining {
        Draining::Unknown => return find_condition(conditions.previous, DRAINING).cloned(),
        Draining::No => {
            let message = "the Node is neither cordoned nor tainted for its removal";
            return Some(conditions.build(DRAINING, ConditionStatus::False, "InService", message));
        }
        Draining::Yes(Sign::Cordoned) => ("Cordoned", "is cordoned".to_owned()),
        Draining::Yes(Sign::Tainted(key)) => ("Tainted", format!("has the taint {key}")),
    };
    let message = format!("the Node {sign}. {means}");
    Some(conditions.build(DRAINING, ConditionStatus::True, reason, message))
}

fn kernel_teardown_fixed(release: &str, conditions: &ConditionBuilder<'_>) -> Condition {
    let kernel = KernelRelease::new(release);
    let (status, reason, message) = match kernel.is_teardown_fixed() {
        _ if kernel.may_crash_on_recovery() => (
            ConditionStatus::False,
            "MayCrash",
            format!(
                "Linux {release} does not say whether it has the fix of CVE-2024-46735. Without it, the host \
                 crashes when a daemon exits while it recovers a device. Boot a build with that fix, or Linux \
                 7.1 or newer"
            ),
        ),
        Some(true) => (ConditionStatus::True, "Fixed", format!("Linux {release} is 7.1 or newer")),
        Some(false) => (
            ConditionStatus::False,
            "OldKernel",
            format!(
                "Linux {release} is older than 7.1 and has known faults in the teardown of a ublk server. After \
                 an exit of the daemon, its devices may be unrecoverable. Boot Linux 7.1 or newer"
            ),
        ),
        None => (
            ConditionStatus::Unknown,
            "UnknownRelease",
            format!("the kernel release {release:?} names no version"),
        ),
    };
    conditions.build(KERNEL_TEARDOWN_FIXED, status, reason, message)
}

fn sectors_atomic(
    disk: Option<&StateDisk>,
    state_dir: &Path,
    conditions: &ConditionBuilder<'_>,
) -> Condition {
    let state_dir = state_dir.display();
    let (status, reason, message) = match disk {
        None => (
            ConditionStatus::Unknown,
            "NoBlockDevice",
            format!("the file system of {state_dir} exposes no block device"),
        ),
        Some(disk) => {
            let StateDisk { device, physical_block_bytes } = disk;
            let found =
                format!("{device} under {state_dir} has physical blocks of {physical_block_bytes} bytes");
            if disk.keeps_sectors_whole() {
                (ConditionStatus::True, "PhysicalBlocks", found)
            } else {
                let means =
                    "A power cut may mix two writes in a sector that was overwritten and not flushed yet";
                let message =
                    format!("{found}, smaller than the {SECTOR_BYTES} bytes of a volume's sector. {means}");
                (ConditionStatus::False, "SmallPhysicalBlocks", message)
            }
        }
    };
    conditions.build(SECTORS_ATOMIC, status, reason, message)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_ublk::Transport;
    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;
    use crate::volumes::tests::{Fake, attached};

    /// Regression: every report took two writes.
    #[tokio::test]
    async fn an_object_that_is_there_is_not_written_again() {
        let there = Arc::new(Mutex::new(None));
        let writes = Arc::new(Mutex::new(Vec::new()));
        let (object, written) = (Arc::clone(&there), Arc::clone(&writes));
        let server = tower::service_fn(move |request: hyper::Request<Body>| {
            let path = request.uri().path().to_owned();
            if request.method() == hyper::Method::PATCH {
                written.lock().push(path.rsplit('/').next().unwrap().to_owned());
                *object.lock() = Some(json!({
                    "apiVersion": StorageNode::api_version(&()),
                    "kind": StorageNode::kind(&()),
                    "metadata": { "name": "a" },
                    "spec": {},
                }));
            }
            let found = object.lock().clone().filter(|_object| path.contains("/storagenodes/"));
            let (code, answer) = found.map_or_else(
                || (404, json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 })),
                |object| (200, object),
            );
            let answer =
                hyper::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            async { answer }
        });
        let client = Client::new(server, "default");
        for _ in 0..2 {
            let (mut last, known) = (LastReport::default(), watch::Sender::default());
            let due = (&mut last, Draining::Unknown);
            report(&client, "a", Path::new("/"), &Fake::default(), due, &known).await.unwrap();
        }
        assert_eq!(*writes.lock(), ["a", "status", "status"]);
    }

    /// Regression, found in review: the daemon of a deleted Node removed the owner of its StorageNode, or
    /// made it again without one, and the StorageNode stayed.
    #[tokio::test]
    async fn a_node_that_is_gone_still_owns_its_storage_node() {
        /// Returns the owners that a report wrote, if `there` are the owners of the StorageNode.
        async fn written(
            there: Option<&[OwnerReference]>,
            known: &watch::Sender<Option<OwnerReference>>,
        ) -> Vec<serde_json::Value> {
            let writes = Arc::new(Mutex::new(Vec::new()));
            let bodies = Arc::clone(&writes);
            let found = there.map(|owners| {
                json!({ "apiVersion": StorageNode::api_version(&()), "kind": StorageNode::kind(&()),
                    "metadata": { "name": "a", "ownerReferences": owners }, "spec": {} })
            });
            let server = tower::service_fn(move |request: hyper::Request<Body>| {
                let (found, bodies) = (found.clone(), Arc::clone(&bodies));
                async move {
                    let is_node = request.uri().path().contains("/api/v1/nodes/");
                    let is_write = request.method() == hyper::Method::PATCH;
                    let body = request.into_body().collect_bytes().await.unwrap();
                    let object = if is_write {
                        let mut object: serde_json::Value = serde_json::from_slice(&body).unwrap();
                        object["spec"] = json!({});
                        bodies.lock().push(object["metadata"]["ownerReferences"].clone());
                        Some(object)
                    } else {
                        found.filter(|_found| !is_node)
                    };
                    let gone =
                        json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404 });
                    let (code, answer) = object.map_or((404, gone), |object| (200, object));
                    hyper::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
                }
            });
            let due = (&mut LastReport::default(), Draining::Unknown);
            let client = Client::new(server, "default");
            report(&client, "a", Path::new("/"), &Fake::default(), due, known).await.unwrap();
            writes.lock().clone()
        }
        let of_node = [owned_by("a", "1".to_owned())];
        let seen = watch::Sender::new(Some(of_node[0].clone()));
        assert!(written(None, &seen).await.is_empty(), "it was deleted with its Node");
        for known in [&seen, &watch::Sender::default()] {
            let written = written(Some(&of_node), known).await;
            assert!(!written.is_empty());
            for owners in written {
                assert_eq!(owners, json!(of_node));
            }
        }
    }

    /// Regression: the API server rejected the whole status: no `Ready` node before an update of the CRDs.
    #[tokio::test]
    async fn an_older_kind_gets_the_report_without_spill_files() {
        let is_old = Arc::new(Mutex::new(true));
        let written = Arc::new(Mutex::new(Vec::new()));
        let (old, bodies) = (Arc::clone(&is_old), Arc::clone(&written));
        let server = tower::service_fn(move |request: hyper::Request<Body>| {
            let (old, bodies) = (*old.lock(), Arc::clone(&bodies));
            async move {
                let object = request.into_body().collect_bytes().await.unwrap();
                let mut object: serde_json::Value = serde_json::from_slice(&object).unwrap();
                let spill = object["status"]["memory"]["spill"].clone();
                let (code, answer) = if old && !spill.is_null() {
                    let message = "failed to create typed patch object (/a; storage.holdfast.dev/v1alpha1, \
                                   Kind=StorageNode): .status.memory.spill: field not declared in schema";
                    (500, json!({ "kind": "Status", "status": "Failure", "message": message, "code": 500 }))
                } else {
                    object["spec"] = json!({});
                    bodies.lock().push(object["status"]["memory"].clone());
                    (200, object)
                };
                hyper::Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()))
            }
        });
        let api = Api::all(Client::new(server, "default"));
        let object = json!({
            "apiVersion": StorageNode::api_version(&()),
            "kind": StorageNode::kind(&()),
            "metadata": { "name": "a" },
        });
        let memory = MemoryUse { limit_bytes: 8, spill: Some(SpillUse::default()), ..MemoryUse::default() };
        let status = StorageNodeStatus { memory: Some(memory), ..StorageNodeStatus::default() };
        let write = async || write_status(&api, "a", object.clone(), status.clone(), false).await.unwrap();
        assert!(write().await, "the cluster lacks the field");
        *is_old.lock() = false;
        assert!(!write().await);
        let written = written.lock().clone();
        let has_spill = |memory: &serde_json::Value| !memory["spill"].is_null();
        assert_eq!(written.iter().map(has_spill).collect::<Vec<_>>(), [false, true]);
        assert_eq!(written[0]["limitBytes"], 8, "the rest is there");

        // Fields that the cluster lacks do not count as a difference, and are retried.
        let before = without_spill(status.clone());
        let at = |ago| Instant::now().checked_sub(ago);
        let last = |at, lacks_spill| LastReport { at, lacks_spill }.is_due(&before, &status);
        assert!(last(at(Duration::ZERO), false));
        assert!(!last(at(Duration::ZERO), true));
        assert!(last(at(FIGURES_EVERY), true));
    }

    /// Returns the result of `make` for a node without any report.
    fn first<T>(make: impl FnOnce(&ConditionBuilder<'_>) -> T) -> T {
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        make(&ConditionBuilder { previous: &[], observed_generation: None, now: &now })
    }

    fn facts(capabilities: Capabilities) -> StorageNodeFacts<'static> {
        StorageNodeFacts {
            capabilities,
            volumes: Vec::new(),
            memory: MemoryUse::default(),
            unkept_devices: 0,
            state_dir: Path::new("/state"),
            space: None,
            fenced: (Vec::new(), 0),
            draining: Draining::Unknown,
        }
    }

    #[test]
    fn a_node_ready_with_one_transport_explains_the_other() {
        let facts = StorageNodeFacts {
            volumes: vec![attached("v")],
            space: Some(FileSystemSpace { capacity_bytes: 10 << 30, available_bytes: (1 << 30) + 5 }),
            ..facts(Fake::default().capabilities())
        };
        let status = first(|conditions| describe(facts, conditions));
        assert_eq!(status.attached_volumes, Some(1));
        assert_eq!(status.available_bytes, Some(1 << 30));
        assert_eq!(status.conditions[0].status, "True");
        assert!(!status.transports[0].available);
        assert!(status.transports[0].refusal.as_ref().unwrap().contains("AUTO_BUF_REG"));
        assert!(status.transports[1].available && status.transports[1].refusal.is_none());
    }

    #[test]
    fn a_node_without_ublk_says_whether_its_devices_are_kept() {
        let status = |usable: Transport, unkept_devices| {
            let capabilities = Capabilities { transport: Ok(usable), ..Fake::default().capabilities() };
            let facts = StorageNodeFacts { unkept_devices, ..facts(capabilities) };
            let status = first(|conditions| describe(facts, conditions));
            let kept = find_condition(&status.conditions, DEVICES_KEPT).cloned();
            (status.transport, kept.map(|kept| (kept.status, kept.message)))
        };
        assert_eq!(status(Transport::UserCopy, 0), (Some("ublk-user-copy".to_owned()), None));
        let (transport, kept) = status(Transport::Fuse, 0);
        assert_eq!(transport.as_deref(), Some("fuse-loop"));
        assert!(kept.is_some_and(|(status, _)| status == "True"));
        let (_, kept) = status(Transport::Fuse, 2);
        assert!(kept.is_some_and(|(status, message)| {
            status == "False" && message.starts_with("no keeper holds the connections of 2 devices.")
        }));
    }

    /// The controller counts promised memory. Used memory, and the space left by others, change with every
    /// write.
    #[test]
    fn memory_that_is_promised_is_written_at_once() {
        type Change = fn(&mut MemoryUse, &mut SpillUse);
        let with = |change: Change| {
            let mut memory = MemoryUse { limit_bytes: 8, promised_bytes: 4, used_bytes: 2, spill: None };
            let mut spill = SpillUse { limit_bytes: 8, promised_bytes: 4, used_bytes: 2 };
            change(&mut memory, &mut spill);
            let memory = MemoryUse { spill: Some(spill), ..memory };
            let facts = StorageNodeFacts { memory, ..facts(Fake::default().capabilities()) };
            first(|conditions| describe(facts, conditions))
        };
        let (second, written) = (Some(Duration::from_secs(1)), with(|_memory, _spill| {}));
        let cases: [(&str, Change, bool); 6] = [
            ("memory promised", |memory, _spill| memory.promised_bytes = 5, true),
            ("disk promised", |_memory, spill| spill.promised_bytes = 5, true),
            ("memory used", |memory, _spill| memory.used_bytes = 3, false),
            ("disk used", |_memory, spill| spill.used_bytes = 3, false),
            ("less memory", |memory, _spill| memory.limit_bytes = 7, false),
            ("less disk", |_memory, spill| spill.limit_bytes = 7, false),
        ];
        for (name, change, at_once) in cases {
            assert_eq!(is_due(&written, &with(change), second), at_once, "{name}");
            assert!(is_due(&written, &with(change), Some(FIGURES_EVERY)), "{name}");
        }
        let none = facts(Fake::default().capabilities());
        assert_eq!(first(|conditions| describe(none, conditions)).memory, None, "the node makes none");
    }

    /// Regression: each attach and each detach wrote the object.
    #[test]
    fn figures_of_a_node_are_written_once_a_minute() {
        let with = |available: u64, attached| StorageNodeStatus {
            available_bytes: Some(available * SPACE_STEP_BYTES),
            attached_volumes: Some(attached),
            ..StorageNodeStatus::default()
        };
        let newer = StorageNodeStatus { daemon_version: Some("2".to_owned()), ..with(4, 1) };
        let recent = Some(Duration::from_secs(59));
        for (name, now, since, is_written) in [
            ("unchanged", with(4, 1), None, false),
            ("a volume more", with(4, 2), recent, false),
            ("less space", with(3, 1), recent, false),
            ("after a minute", with(3, 2), Some(FIGURES_EVERY), true),
            ("first report of a process", with(3, 2), None, true),
            ("full", with(0, 1), recent, true),
            ("another version", newer, recent, true),
        ] {
            assert_eq!(is_due(&with(4, 1), &now, since), is_written, "{name}");
        }
        assert!(is_due(&with(0, 1), &with(1, 1), recent), "no longer full");
    }

    #[test]
    fn a_disk_that_may_tear_sectors_is_named() {
        let shown = |disk: Option<StateDisk>| {
            first(|conditions| sectors_atomic(disk.as_ref(), Path::new("/state"), conditions))
        };
        let disk = |physical_block_bytes| StateDisk { device: "sda".to_owned(), physical_block_bytes };
        let small = shown(Some(disk(512)));
        assert_eq!((small.status.as_str(), small.reason.as_str()), ("False", "SmallPhysicalBlocks"));
        assert!(small.message.starts_with("sda under /state has physical blocks of 512 bytes"));
        assert_eq!(shown(Some(disk(4096))).status, "True");
        assert_eq!(shown(Some(disk(16384))).status, "True");
        assert_eq!(shown(None).status, "Unknown");
    }

    #[test]
    fn a_kernel_below_7_1_is_reported_with_the_fix() {
        let shown = |release| first(|conditions| kernel_teardown_fixed(release, conditions));
        let old = shown("6.18.44-generic");
        assert_eq!((old.status.as_str(), old.reason.as_str()), ("False", "OldKernel"));
        assert!(old.message.contains("6.18.44-generic") && old.message.ends_with("Boot Linux 7.1 or newer"));
        assert_eq!(shown("7.1.0").status, "True");
        assert_eq!(shown("No such file").status, "Unknown");
    }

    #[test]
    fn a_node_that_is_drained_says_by_which_sign() {
        assert_eq!(first(|conditions| is_draining(&Draining::Unknown, conditions)), None);
        let shown = |draining| first(|conditions| is_draining(&draining, conditions)).unwrap();
        let cordoned = shown(Draining::Yes(Sign::Cordoned));
        assert_eq!((cordoned.status.as_str(), cordoned.reason.as_str()), ("True", "Cordoned"));
        let tainted = shown(Draining::Yes(Sign::Tainted("karpenter.sh/disrupted")));
        assert!(tainted.message.starts_with("the Node has the taint karpenter.sh/disrupted. "));
        assert_eq!(shown(Draining::No).status, "False");
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let before = [cordoned.clone()];
        let restarted = ConditionBuilder { previous: &before, observed_generation: None, now: &now };
        assert_eq!(is_draining(&Draining::Unknown, &restarted), Some(cordoned), "a restart changes nothing");
    }

    #[test]
    fn fenced_data_is_reported_damage_included() {
        let state = tempfile::tempdir().unwrap();
        let data = |reported: &[FencedData]| fenced_data(state.path(), (reported.to_vec(), 0)).0;
        assert_eq!(data(&[]), []);
        std::fs::create_dir_all(state.path().join("fenced/v-3")).unwrap();
        let shown = data(&[]);
        assert_eq!((shown[0].name.as_str(), shown[0].bytes), ("v-3", None));
        assert!(shown[0].damage.as_ref().unwrap().contains("durable map"), "{shown:?}");
        let known = FencedData { bytes: Some(8192), damage: None, ..shown[0].clone() };
        assert_eq!(data(std::slice::from_ref(&known)), [known]);
        let passing = FencedData { damage: Some("the disk did not answer".to_owned()), ..shown[0].clone() };
        assert_eq!(data(&[passing]), shown, "damage is looked at again");
    }

    /// Regression: all data of a repeatedly fenced, never cleaned up node was listed in its status.
    #[test]
    fn many_fenced_writers_are_counted() {
        let state = tempfile::tempdir().unwrap();
        for number in 0..LISTED_FENCED + 3 {
            std::fs::create_dir_all(state.path().join(format!("fenced/v-{number:04}"))).unwrap();
        }
        let fenced = fenced_data(state.path(), (Vec::new(), 0));
        assert_eq!((fenced.0.len(), fenced.1), (LISTED_FENCED, 3));
        let facts = StorageNodeFacts { fenced, ..facts(Fake::default().capabilities()) };
        let status = first(|conditions| describe(facts, conditions));
        assert_eq!((status.fenced.len(), status.fenced_unlisted), (LISTED_FENCED, Some(3)));
    }

    #[test]
    fn a_node_without_a_transport_says_why() {
        let capabilities = Capabilities {
            kernel_release: "5.15.0".to_owned(),
            transports: Transport::ALL.map(|transport| (transport, Err("load ublk_drv".to_owned()))).into(),
            transport: Err(NoTransport::Refused),
            state_disk: None,
            max_volumes: 256,
        };
        let status = first(|conditions| describe(facts(capabilities), conditions));
        assert_eq!(status.conditions[0].status, "False");
        assert_eq!(status.conditions[0].reason, "NoTransport");
        assert!(status.conditions[0].message.contains("load ublk_drv"));
    }

    /// Regression: the reason was `NoTransport`, which suggests a fault of the kernel.
    #[test]
    fn a_node_without_its_keeper_says_that() {
        let transport = Err(NoTransport::Keeper("start the keeper".to_owned()));
        let capabilities = Capabilities { transport, ..Fake::default().capabilities() };
        let status = first(|conditions| describe(facts(capabilities), conditions));
        let ready = &status.conditions[0];
        assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "NoKeeper"));
        assert_eq!((ready.message.as_str(), status.transport), ("start the keeper", None));
    }
}
