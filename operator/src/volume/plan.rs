//! Plan of the next steps for a volume: a pure function of facts and time.
//!
//! ```text
//!            objectStore Ready           nodeName set                daemon reports node
//! Pending ------------------------> Ready ------------> Attaching ---------------------> Attached
//!    ^                               ^                                                      |
//!    |  objectStore lost (new only)  +---------------- Detaching <--------------------------+
//!                                      node empty                nodeName changed
//! any phase -- deletion asked --> Deleting (until node is empty and the objects are gone)
//! ```
//! A node named by the annotation `holdfast.dev/force-detach` counts as gone (`forced_detach.rs`), and so
//! does a node that is lost by its signs (`failover.rs`).

use holdfast_crds::{
    ASSIGNED, ATTACHED, Condition, ConditionStatus, DATA_LOST, DeletionPolicy, FORCE_DETACH, ForcedDetach,
    GRANTED, NODE_UNKNOWN, PROVISIONED, READY, RESIZED, Time, UNKNOWN_VALUE, VolumePhase, VolumeStatus,
    find_condition, is_true,
};

use holdfast_log::trash::TrashTerms;

use super::adoption::{history, still_attached};
use super::facts::{ClusterFacts, StoreFact};
use super::forced_detach::{EarlierLosses, data_lost, earlier_losses, forced_detach};
use super::found_in_store::FoundInStore;
use super::home::{Home, Obstacle, SourceSnapshot};
use super::provisionable::provisionable;

/// Reason for a volume that already existed in the object store.
const ADOPTED: &str = "Adopted";
/// Reason for a volume whose removal has begun and is blocked.
const INTERRUPTED: &str = "DeletionInterrupted";

/// One idempotent step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum OperatorStep {
    /// Adds our finalizer to the object, and writes the identity into a spec that has none.
    Register,
    /// Writes the size of an adopted volume into its spec.
    SetSize {
        /// Logical size.
        size_bytes: u64,
    },
    /// Writes the operator's part of the status.
    Report(Box<VolumeStatus>),
    /// Creates the volume's first record, and writes the size into a spec that has none.
    Provision {
        /// Logical size; `None`: the snapshot's size.
        size_bytes: Option<u64>,
        /// The snapshot whose content the volume starts with.
        snapshot: Option<SourceSnapshot>,
    },
    /// Creates the VolumeSnapshot that the clone starts from.
    TakeSource {
        /// Name of the Volume to snapshot.
        source: String,
        /// Its identity.
        volume_id: String,
    },
    /// Deletes the VolumeSnapshot that was created for the clone, if it exists.
    DropSource,
    /// Takes the volume out of the trash, if it is there.
    TakeBack {
        /// True if a request of an earlier deletion attempt may be in flight and still trash the volume.
        is_begun: bool,
    },
    /// Trashes the volume, or leaves a tombstone and removes its other objects.
    RemoveObjects {
        /// True if the objects may belong to another Volume or cluster: then they are kept.
        if_own: bool,
        /// The ObjectStore's retention terms for the volume; `None` if it is not kept.
        keep: Option<TrashTerms>,
        /// Epoch of the writer that was declared lost and need not detach first.
        cut_off: Option<u64>,
    },
    /// Allows the API server to delete the object.
    RemoveFinalizer,
}

/// Plans the next steps in order; a failed step ends the plan.
pub(crate) fn plan(facts: &ClusterFacts, now: &Time) -> Vec<OperatorStep> {
    if let Err(unknown) = facts.spec.check_known() {
        return plan_unknown(facts, unknown.to_string(), now);
    }
    if facts.deleting { plan_deletion(facts, now) } else { plan_service(facts, now) }
}

/// Plans for a spec with a value of a later release: says so, and changes nothing else.
fn plan_unknown(facts: &ClusterFacts, message: String, now: &Time) -> Vec<OperatorStep> {
    let status = if facts.deleting {
        if !facts.finalizer {
            return Vec::new();
        }
        let reason = if is_removing(facts) { INTERRUPTED } else { "DeletionBlocked" };
        deleting(facts, reason, message, now)
    } else if is_true(&facts.status.conditions, PROVISIONED) {
        let mut status = operators_part(&facts.status);
        status.conditions.retain(|condition| condition.type_ != READY);
        let ready = facts.conditions(now).build(READY, ConditionStatus::False, UNKNOWN_VALUE, message);
        status.conditions.push(ready);
        status
    } else {
        pending(facts, &Obstacle::new(VolumePhase::Failed, UNKNOWN_VALUE, message), now)
    };
    vec![OperatorStep::Report(Box::new(status))]
}

fn plan_service(facts: &ClusterFacts, now: &Time) -> Vec<OperatorStep> {
    let mut steps = Vec::new();
    if is_true(&facts.status.conditions, PROVISIONED) {
        if !facts.finalizer || facts.spec.volume_id.is_none() {
            steps.push(OperatorStep::Register);
        }
        steps.push(OperatorStep::Report(Box::new(provisioned(facts, now))));
        return steps;
    }
    match provisionable(facts) {
        Err(obstacle) => steps.push(OperatorStep::Report(Box::new(pending(facts, &obstacle, now)))),
        // A saved object must contain the identity before anything is created under it.
        Ok(_) if facts.spec.volume_id.is_none() => steps.push(OperatorStep::Register),
        Ok(Home::Existing { size_bytes }) if facts.spec.size.is_none() => {
            steps.push(OperatorStep::SetSize { size_bytes });
        }
        Ok(home) => steps.extend(plan_home(facts, home, now)),
    }
    steps
}

fn plan_home(facts: &ClusterFacts, home: Home, now: &Time) -> Vec<OperatorStep> {
    let is_clone = facts.clone_snapshot().is_some();
    let home = match home {
        // The finalizer comes first: a deletion waits for the node.
        Home::Memory if !facts.finalizer => return vec![OperatorStep::Register],
        Home::Memory => return vec![OperatorStep::Report(Box::new(provisioned(facts, now)))],
        Home::Cloned { source, volume_id } => return plan_source(facts, source, volume_id, now),
        Home::New { size_bytes } => OperatorStep::Provision { size_bytes: Some(size_bytes), snapshot: None },
        Home::Restored { size_bytes, snapshot } => {
            OperatorStep::Provision { size_bytes, snapshot: Some(snapshot) }
        }
        Home::Existing { .. } => OperatorStep::TakeBack { is_begun: false },
    };
    let mut recorded = facts.clone();
    recorded.status.volume_id = Some(facts.identity.id.clone());
    if let OperatorStep::Provision { snapshot: Some(snapshot), .. } = &home {
        recorded.status.restored_from = Some(snapshot.name.to_string());
    }
    let mut steps = Vec::new();
    if !facts.finalizer {
        steps.push(OperatorStep::Register);
    }
    // Records the identity before anything is created under it, so that a deletion finds all objects; and the
    // snapshot, so that every attempt starts from the same one.
    if facts.status != recorded.status {
        let message = format!("creating the volume in ObjectStore {}", facts.store_name());
        let obstacle = Obstacle::new(VolumePhase::Pending, "Provisioning", message);
        steps.push(OperatorStep::Report(Box::new(pending(&recorded, &obstacle, now))));
    }
    steps.push(home);
    // Deleted before the volume counts as provisioned: later plans ignore the VolumeSnapshot.
    steps.extend(is_clone.then_some(OperatorStep::DropSource));
    steps.push(OperatorStep::Report(Box::new(provisioned(&recorded, now))));
    steps
}

/// Plans the snapshot of a clone's source. The finalizer comes first: a deletion removes the VolumeSnapshot.
fn plan_source(facts: &ClusterFacts, source: String, volume_id: String, now: &Time) -> Vec<OperatorStep> {
    if !facts.finalizer {
        return vec![OperatorStep::Register];
    }
    let message = format!("spec.source.volume.name: taking a snapshot of Volume `{source}`");
    let obstacle = Obstacle::new(VolumePhase::Pending, "SnapshotNotReady", message);
    let report = OperatorStep::Report(Box::new(pending(facts, &obstacle, now)));
    vec![report, OperatorStep::TakeSource { source, volume_id }]
}

fn plan_deletion(facts: &ClusterFacts, now: &Time) -> Vec<OperatorStep> {
    if !facts.finalizer {
        return Vec::new();
    }
    if let Some(node) = facts.serving() {
        let message = format!("node {node} still serves the volume: waiting for its {}", last_work(facts));
        let reason = if is_removing(facts) { INTERRUPTED } else { "WaitingForDetach" };
        return vec![OperatorStep::Report(Box::new(deleting(facts, reason, message, now)))];
    }
    if facts.spec.is_memory() {
        return vec![OperatorStep::RemoveFinalizer];
    }
    let drop_source = facts.clone_snapshot().map(|_name| OperatorStep::DropSource);
    let is_retained = facts.spec.deletion_policy == DeletionPolicy::Retain;
    let exists = is_true(&facts.status.conditions, PROVISIONED);
    if facts.status.volume_id.is_none() || (is_retained && !exists) {
        return drop_source.into_iter().chain([OperatorStep::RemoveFinalizer]).collect();
    }
    // The volume may be in the trash because of an earlier attempt, or from before a restore of the cluster.
    if is_retained && (facts.store == StoreFact::Ready || !is_removing(facts)) {
        let take_back = OperatorStep::TakeBack { is_begun: is_removing(facts) };
        let take_back = (facts.store == StoreFact::Ready).then_some(take_back);
        let steps = take_back.into_iter().chain([OperatorStep::RemoveFinalizer]);
        return drop_source.into_iter().chain(steps).collect();
    }
    let (what, fix) = if is_retained {
        ("so the volume cannot be taken out of its trash", "and the volume is retained")
    } else {
        (
            "so the volume's objects cannot be removed",
            "or set spec.deletionPolicy to `Retain` to leave them there",
        )
    };
    let store = facts.store_name();
    let blocked = match &facts.store {
        StoreFact::Ready => still_attached(facts),
        StoreFact::None | StoreFact::Missing => Some(format!(
            "spec.objectStore: ObjectStore `{store}` does not exist, {what}; create it again, {fix}"
        )),
        StoreFact::NotRead | StoreFact::Unprobed => {
            Some(format!("spec.objectStore: waiting for the first probe of ObjectStore `{store}`"))
        }
        StoreFact::NotReady { reason, message } => Some(format!(
            "spec.objectStore: ObjectStore `{store}` is not Ready ({reason}: {message}), {what}; repair it, {fix}"
        )),
    };
    match blocked {
        Some(message) => {
            let reason = if is_removing(facts) { INTERRUPTED } else { "DeletionBlocked" };
            vec![OperatorStep::Report(Box::new(deleting(facts, reason, message, now)))]
        }
        None => {
            let (if_own, keep) =
                (facts.identity.rival.is_some() || !exists, facts.trash.clone().filter(|_| exists));
            let cut_off = facts.log_writer.as_ref().map(|writer| writer.epoch);
            // The failure of an earlier attempt stays reported: each of our writes triggers the next attempt.
            let message = match keep {
                Some(_) => format!("putting the volume into the trash of ObjectStore {store}"),
                None => format!("removing the volume's objects from ObjectStore {store}"),
            };
            let remove = OperatorStep::RemoveObjects { if_own, keep, cut_off };
            let removal = [remove, OperatorStep::RemoveFinalizer];
            let begun = (!is_removing(facts))
                .then(|| OperatorStep::Report(Box::new(deleting(facts, "Deleting", message, now))));
            begun.into_iter().chain(drop_source).chain(removal).collect()
        }
    }
}

/// Describes the last work of a node that must release the volume.
fn last_work(facts: &ClusterFacts) -> &'static str {
    if facts.spec.is_memory() { "detach" } else { "final commit" }
}

/// Returns true if an attempt to remove the volume's objects has begun.
fn is_removing(facts: &ClusterFacts) -> bool {
    let waits = |reason: &str| ["WaitingForDetach", "DeletionBlocked"].contains(&reason);
    let said = find_condition(&facts.status.conditions, PROVISIONED);
    facts.status.phase == Some(VolumePhase::Deleting) && said.is_some_and(|said| !waits(&said.reason))
}

/// Returns the status of a volume that does not exist in its object store yet.
pub(crate) fn pending(facts: &ClusterFacts, obstacle: &Obstacle, now: &Time) -> VolumeStatus {
    let mut conditions = vec![facts.conditions(now).build(
        PROVISIONED,
        ConditionStatus::False,
        obstacle.reason,
        &obstacle.message,
    )];
    if let Some(node) = facts.desired() {
        let message = format!("node {node} may serve the volume once it is provisioned");
        conditions.push(facts.conditions(now).build(
            ASSIGNED,
            ConditionStatus::False,
            "NotProvisioned",
            &message,
        ));
    }
    let status = VolumeStatus {
        phase: Some(obstacle.phase),
        volume_id: facts.status.volume_id.clone(),
        conditions,
        ..base(facts)
    };
    with_ready(facts, status, now)
}

fn provisioned(facts: &ClusterFacts, now: &Time) -> VolumeStatus {
    let (assigned_node, assigned) = assignment(facts, now);
    let mut conditions = vec![exists(facts, now), assigned];
    conditions.extend(resized(facts, now));
    let forced_detach = forced_detach(facts, now);
    // A memory volume has nothing to upload. Its next node reports the lost content.
    let EarlierLosses { named, older } = if facts.spec.is_memory() {
        EarlierLosses::default()
    } else {
        earlier_losses(facts, forced_detach.as_ref())
    };
    if !facts.spec.is_memory() {
        let unread = forced_detach.iter().filter(|record| !facts.is_acknowledged(record));
        let losses: Vec<&ForcedDetach> = named.iter().chain(unread).collect();
        conditions.extend(data_lost(facts, &losses, older.as_ref(), now));
    }
    let status = VolumeStatus {
        phase: Some(phase(facts, assigned_node.as_deref())),
        volume_id: Some(facts.identity.id.clone()),
        assigned_node,
        forced_detach,
        earlier_losses: named,
        older_losses: older,
        conditions,
        ..base(facts)
    };
    with_ready(facts, status, now)
}

/// Adds the condition [`READY`]: the volume's state matches its spec. Generic Kubernetes tools read this
/// condition.
fn with_ready(facts: &ClusterFacts, mut status: VolumeStatus, now: &Time) -> VolumeStatus {
    let builder = facts.conditions(now);
    let of = |type_| find_condition(&status.conditions, type_);
    let ready = match status.phase {
        Some(VolumePhase::Ready) => {
            let message = "the volume exists, and spec.nodeName names no node";
            builder.build(READY, ConditionStatus::True, "Detached", message)
        }
        Some(VolumePhase::Attached) => {
            let message = format!("node {} serves the volume", facts.serving().unwrap_or_default());
            builder.build(READY, ConditionStatus::True, ATTACHED, message)
        }
        Some(VolumePhase::Attaching) => {
            let message = of(ASSIGNED).map(|granted| granted.message.clone()).unwrap_or_default();
            let message =
                format!("{message}; the node has not attached it yet: see the condition {ATTACHED}");
            builder.build(READY, ConditionStatus::False, "Attaching", message)
        }
        None
        | Some(VolumePhase::Pending | VolumePhase::Detaching | VolumePhase::Deleting | VolumePhase::Failed) =>
        {
            let says = |type_| of(type_).filter(|said| said.status != "True");
            let why = says(PROVISIONED).or_else(|| says(ASSIGNED)).or_else(|| of(PROVISIONED));
            let (reason, message) = why.map_or(("Unknown", ""), |why| (&*why.reason, &*why.message));
            builder.build(READY, ConditionStatus::False, reason, message)
        }
    };
    status.conditions.push(ready);
    status
}

/// Reports that the volume exists in its object store, and its origin.
fn exists(facts: &ClusterFacts, now: &Time) -> Condition {
    let build = |reason, message: String| {
        facts.conditions(now).build(PROVISIONED, ConditionStatus::True, reason, message)
    };
    if facts.spec.is_memory() {
        let message = "the volume exists; its content is in the memory of the node that serves it";
        return build("Created", message.to_owned());
    }
    let before = find_condition(&facts.status.conditions, PROVISIONED);
    match (&facts.content.found, before) {
        (Some(FoundInStore::Volume { size_bytes, last }), _) => build(
            ADOPTED,
            format!(
                "the volume was found in its object store with {size_bytes} bytes; {}",
                history(last.as_ref())
            ),
        ),
        // Keeps the message about the adopted volume.
        (_, Some(before)) if before.reason == ADOPTED => build(ADOPTED, before.message.clone()),
        _ => match &facts.status.restored_from {
            Some(snapshot) => build(
                "Restored",
                format!("the volume exists in its object store; it was created from snapshot {snapshot}"),
            ),
            None => build("Created", "the volume exists in its object store".to_owned()),
        },
    }
}

/// Returns the status of a volume that is being deleted.
pub(crate) fn deleting(facts: &ClusterFacts, reason: &str, message: String, now: &Time) -> VolumeStatus {
    let exists = if is_true(&facts.status.conditions, PROVISIONED) {
        ConditionStatus::True
    } else {
        ConditionStatus::False
    };
    let status = VolumeStatus {
        phase: Some(VolumePhase::Deleting),
        volume_id: facts.status.volume_id.clone(),
        // Stays while a node serves the volume: the grant ends with the final commit.
        assigned_node: facts.serving().and(facts.assigned()).map(str::to_owned),
        // Names the epoch that a remaining annotation referred to.
        forced_detach: facts.counted_record().cloned(),
        conditions: vec![facts.conditions(now).build(PROVISIONED, exists, reason, &message)],
        ..base(facts)
    };
    with_ready(facts, status, now)
}

/// Returns the status of a volume that its desired node may not have yet, because the log was not read. All
/// else stays, but a volume that no node had is not `Ready` any more.
pub(crate) fn ungranted(facts: &ClusterFacts, reason: &str, message: &str, now: &Time) -> VolumeStatus {
    let mut status = operators_part(&facts.status);
    status.observed_generation = Some(facts.generation);
    status.conditions.retain(|condition| ![ASSIGNED, READY].contains(&condition.type_.as_str()));
    let builder = facts.conditions(now);
    status.conditions.push(builder.build(ASSIGNED, ConditionStatus::False, reason, message));
    if status.phase == Some(VolumePhase::Ready) {
        // A node is desired since.
        status.phase = Some(VolumePhase::Attaching);
        status.conditions.push(builder.build(READY, ConditionStatus::False, reason, message));
        return status;
    }
    with_ready(facts, status, now)
}

/// Returns the grant and its condition. The grant moves only while no node serves the volume.
fn assignment(facts: &ClusterFacts, now: &Time) -> (Option<String>, Condition) {
    let desired = facts.desired();
    let waiting = |from: &str| {
        let next = desired.map_or_else(String::new, |node| format!(" before node {node} may have it"));
        // It would not serve the volume any more if the annotation counted for this attach.
        let again = if facts.force_detach.as_deref() == Some(from) {
            ". Remove that annotation first: it referred to an earlier epoch"
        } else {
            ""
        };
        let message = format!(
            "node {from} still serves the volume: waiting for its {}{next}; if the node is lost for good, annotate the Volume with {FORCE_DETACH}={from}{again}",
            last_work(facts)
        );
        facts.conditions(now).build(ASSIGNED, ConditionStatus::False, "WaitingForDetach", &message)
    };
    match (facts.serving(), desired) {
        (Some(serving), desired) if desired != Some(serving) => {
            (facts.assigned().map(str::to_owned), waiting(serving))
        }
        (_, None) => {
            let message = "spec.nodeName is empty: write the name of a node to have the volume served";
            (None, facts.conditions(now).build(ASSIGNED, ConditionStatus::False, "NotRequested", message))
        }
        (_, Some(node)) => {
            let (reason, message) = if facts.node_known {
                (GRANTED, format!("node {node} may serve the volume"))
            } else {
                let message = format!(
                    "node {node} may serve the volume, but no StorageNode has that name: check spec.nodeName, or run the node daemon there"
                );
                (NODE_UNKNOWN, message)
            };
            (
                Some(node.to_owned()),
                facts.conditions(now).build(ASSIGNED, ConditionStatus::True, reason, &message),
            )
        }
    }
}

fn resized(facts: &ClusterFacts, now: &Time) -> Option<Condition> {
    let attached = facts.status.attached_size_bytes?;
    let wanted = facts.spec.size_bytes().ok()?;
    let node = facts.serving()?;
    Some(if attached >= wanted {
        facts.conditions(now).build(
            RESIZED,
            ConditionStatus::True,
            "Grown",
            "the device has the size of the spec",
        )
    } else {
        let message =
            format!("the device on node {node} has {attached} bytes: waiting for it to grow to {wanted}");
        facts.conditions(now).build(RESIZED, ConditionStatus::False, "WaitingForNode", &message)
    })
}

fn phase(facts: &ClusterFacts, granted: Option<&str>) -> VolumePhase {
    match (facts.serving(), facts.desired()) {
        (Some(serving), Some(desired)) if serving == desired => {
            if facts.status.device_path.is_some() {
                VolumePhase::Attached
            } else {
                VolumePhase::Attaching
            }
        }
        (Some(_), _) => VolumePhase::Detaching,
        (None, _) if granted.is_some() => VolumePhase::Attaching,
        (None, _) => VolumePhase::Ready,
    }
}

fn base(facts: &ClusterFacts) -> VolumeStatus {
    VolumeStatus {
        observed_generation: Some(facts.generation),
        restored_from: facts.status.restored_from.clone(),
        ..VolumeStatus::default()
    }
}

/// The types of the operator's conditions. The chart's policy `holdfast-node-volumes` lists them, too.
const OPERATORS_CONDITIONS: [&str; 5] = [PROVISIONED, ASSIGNED, RESIZED, DATA_LOST, READY];

/// Returns the operator's part of a status, exactly as written by [`OperatorStep::Report`].
pub(crate) fn operators_part(status: &VolumeStatus) -> VolumeStatus {
    VolumeStatus {
        phase: status.phase,
        observed_generation: status.observed_generation,
        volume_id: status.volume_id.clone(),
        restored_from: status.restored_from.clone(),
        assigned_node: status.assigned_node.clone(),
        forced_detach: status.forced_detach.clone(),
        earlier_losses: status.earlier_losses.clone(),
        older_losses: status.older_losses.clone(),
        conditions: OPERATORS_CONDITIONS
            .iter()
            .filter_map(|type_| find_condition(&status.conditions, type_))
            .cloned()
            .collect(),
        ..VolumeStatus::default()
    }
}

#[cfg(test)]
mod tests;
