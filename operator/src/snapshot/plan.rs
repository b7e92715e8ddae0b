//! Plan of the next steps for a snapshot: a pure function of facts and time.
//!
//! ```text
//!                    a node serves the volume            its daemon reports
//! recorded ------------------------------------> asked ------------------------> Ready
//!    |                                             |  the node released it          ^
//!    |  no node serves it                          v                                |
//!    +------------------------------------------> the operator takes it ------------+
//! deletion asked --> once no node takes it: forgotten in the log, unless another object has it; then the
//!                    object goes
//! ```
//!
//! A snapshot with `spec.snapshotID` is not taken but adopted: it is looked up in the log of the volume. Once
//! a snapshot is Ready, the names of its objects are stored in the object store, for `restore` in another
//! cluster.
//!
//! A snapshot of a group is recorded and driven by `group`, until it is taken or its deletion is requested.

use holdfast_crds::{
    ByteSize, ConditionStatus, DeletionPolicy, GroupProgress, GroupStep, READY, Time, UNKNOWN_VALUE,
    VOLUME_DELETED, VOLUME_IN_MEMORY, VOLUME_REPLACED, VolumeSnapshotStatus, is_true,
};

use holdfast_types::SnapshotName;

use super::facts::{SnapshotFacts, SourceVolume};

/// Reason: the snapshot is being taken.
pub(crate) const TAKING: &str = "Taking";
/// Reason: the snapshot names a group that did not create it.
const NOT_IN_GROUP: &str = "NotInGroup";
/// Reason: the snapshot to adopt belongs to another volume.
const NOT_OF_VOLUME: &str = "NotOfVolume";
/// Reason: another VolumeSnapshot represents the snapshot to adopt.
const ID_TAKEN: &str = "IdTaken";
/// Reason: an operator that does not know `spec.snapshotID` took another snapshot.
const OTHER_SNAPSHOT: &str = "OtherSnapshot";

/// One idempotent step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SnapshotStep {
    /// Adds our finalizer to the object.
    AddFinalizer,
    /// Allows the API server to delete the object.
    RemoveFinalizer,
    /// Writes the status.
    Report(Box<VolumeSnapshotStatus>),
    /// Takes the snapshot of the recorded, unserved volume, and reports it.
    Take,
    /// Reports the snapshot that the volume's log holds under this name.
    Adopt(SnapshotName),
    /// Stores the names of its objects in the object store, and reports that.
    StoreOrigin,
    /// Sets the deletion policy of an object of a group.
    SetDeletionPolicy(DeletionPolicy),
    /// Forgets the snapshot in the log of the recorded volume, if it exists.
    Forget,
}

/// Reason why a snapshot cannot be taken now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotObstacle {
    /// Reason of the condition.
    pub(crate) reason: &'static str,
    /// State of the Volume.
    pub(crate) state: String,
    /// Fix for a snapshot outside a group.
    fix: &'static str,
}

impl SnapshotObstacle {
    /// Returns the condition's message for a snapshot outside a group.
    fn message(&self) -> String {
        format!("spec.volume: {}; {}", self.state, self.fix)
    }
}

/// Plans the next steps in order; a failed step ends the plan.
pub(crate) fn plan(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if facts.deleting {
        return plan_deletion(facts, now);
    }
    if facts.status.snapshot_id.is_some() {
        return plan_taken(facts, now);
    }
    if let Some(name) = &facts.spec.snapshot_id {
        return plan_adoption(facts, name, now);
    }
    if let Some(group) = &facts.spec.group {
        return plan_member(facts, group, now);
    }
    // The node's daemon reports on the request.
    if facts.finalizer && facts.taking().is_some() {
        return Vec::new();
    }
    let (volume, id) = match source(facts) {
        Ok(source) => source,
        Err(obstacle) => {
            let status = not_ready(facts, obstacle.reason, obstacle.message(), now);
            return vec![SnapshotStep::Report(Box::new(status))];
        }
    };
    // No snapshot is taken before the finalizer guarantees its cleanup. The change triggers the next plan.
    if !facts.finalizer {
        return vec![SnapshotStep::AddFinalizer];
    }
    let mut steps = Vec::new();
    if facts.status.volume_id.is_none() || facts.status.node != volume.node {
        steps.push(SnapshotStep::Report(Box::new(recorded(facts, volume, id, now))));
    }
    if volume.node.is_none() {
        steps.push(SnapshotStep::Take);
    }
    steps
}

/// Returns the status that records the snapshot's volume and the node that takes it.
pub(crate) fn recorded(
    facts: &SnapshotFacts,
    volume: &SourceVolume,
    id: &str,
    now: &Time,
) -> VolumeSnapshotStatus {
    let asked = |node: &str| format!("node {node}, which serves the volume, takes the snapshot");
    let message = volume.node.as_deref().map_or_else(|| "the operator takes the snapshot".to_owned(), asked);
    VolumeSnapshotStatus {
        volume_id: Some(id.to_owned()),
        object_store: Some(volume.object_store.clone()),
        node: volume.node.clone(),
        ..not_ready(facts, TAKING, message, now)
    }
}

/// Plans for an existing snapshot, given by name.
fn plan_adoption(facts: &SnapshotFacts, name: &str, now: &Time) -> Vec<SnapshotStep> {
    let not_ready =
        |reason, message| vec![SnapshotStep::Report(Box::new(not_ready(facts, reason, message, now)))];
    let id = match source(facts) {
        Ok((_volume, id)) => id,
        Err(obstacle) => return not_ready(obstacle.reason, obstacle.message()),
    };
    let volume = &facts.spec.volume;
    match name.parse::<SnapshotName>() {
        Ok(name) if name.volume.as_str() != id => not_ready(
            NOT_OF_VOLUME,
            format!(
                "spec.snapshotID: `{name}` belongs to volume `{}`, but Volume `{volume}` is `{id}`; delete this \
                 VolumeSnapshot and create one that names the Volume of that id",
                name.volume
            ),
        ),
        Ok(_) if facts.rival.is_some() => not_ready(
            ID_TAKEN,
            format!(
                "spec.snapshotID: VolumeSnapshot `{}` already represents `{name}`, and the deletion of either \
                 object could delete the snapshot that the other one needs; set spec.deletionPolicy of one of \
                 the two to `Retain`, and delete that one",
                facts.rival.as_deref().unwrap_or_default()
            ),
        ),
        Ok(_) if !facts.finalizer => vec![SnapshotStep::AddFinalizer],
        Ok(name) => vec![SnapshotStep::Adopt(name)],
        Err(error) => not_ready(
            NOT_OF_VOLUME,
            format!("spec.snapshotID: {error}; delete this VolumeSnapshot and create another"),
        ),
    }
}

/// Plans for a snapshot of a group, which is only taken together with the others.
fn plan_member(facts: &SnapshotFacts, group: &str, now: &Time) -> Vec<SnapshotStep> {
    if facts.is_of_group || facts.taking().is_some() {
        return Vec::new();
    }
    let message = format!(
        "spec.group: VolumeGroupSnapshot `{group}` did not create this VolumeSnapshot, and it is never taken; delete it, and create one without spec.group or a VolumeGroupSnapshot"
    );
    vec![SnapshotStep::Report(Box::new(VolumeSnapshotStatus {
        node: None,
        ..not_ready(facts, NOT_IN_GROUP, message, now)
    }))]
}

/// Plans for a taken snapshot, in which neither a node nor its group is involved.
fn plan_taken(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if !facts.finalizer {
        return vec![SnapshotStep::AddFinalizer];
    }
    if let Some(wanted) = &facts.spec.snapshot_id {
        if !facts.is_of_spec() {
            let taken = facts.status.snapshot_id.as_deref().unwrap_or_default();
            let message = format!(
                "spec.snapshotID: `{wanted}` must be adopted, but status.snapshotId is `{taken}`, which an \
                 operator of an older release took instead; delete this VolumeSnapshot, and create it again"
            );
            return vec![SnapshotStep::Report(Box::new(not_ready(facts, OTHER_SNAPSHOT, message, now)))];
        }
        // An operator of an older release dropped the uid.
        if let (None, Ok(name)) = (&facts.status.snapshot_uid, wanted.parse()) {
            return vec![SnapshotStep::Adopt(name)];
        }
    }
    // The node must still unblock writes, or report that it did.
    if facts.status.group_step.is_some() {
        match facts.status.group_progress {
            None | Some(GroupProgress::Preparing | GroupProgress::Prepared | GroupProgress::Held) => {
                return Vec::new();
            }
            Some(GroupProgress::Released | GroupProgress::Lapsed) => {}
        }
    }
    // Daemons and operators of older releases do not report the display size.
    let size = facts.status.size_bytes.map(|bytes| ByteSize(bytes).to_string());
    let size = facts.status.size.clone().or(size);
    let ended = VolumeSnapshotStatus { node: None, size, ..facts.status.clone() };
    let mut steps = Vec::new();
    if ended != facts.status {
        steps.push(SnapshotStep::Report(Box::new(ended)));
    }
    if facts.status.origin_stored.is_none() {
        steps.push(SnapshotStep::StoreOrigin);
    }
    steps
}

fn plan_deletion(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if !facts.finalizer {
        return Vec::new();
    }
    // Writes no longer need to be blocked.
    if facts.status.group_step == Some(GroupStep::Hold) {
        return vec![SnapshotStep::Report(Box::new(released(facts)))];
    }
    // A snapshot that the node has started may be registered at any time, so it is looked up after that; its
    // daemon reports obstacles. A daemon of the previous release takes a snapshot when asked to prepare.
    if facts.asked().is_some() && !facts.is_only_prepared() {
        return Vec::new();
    }
    let is_begun = facts.status.volume_id.is_some() && !facts.is_only_prepared();
    // Another object that has the snapshot forgets it in the end.
    let stays = facts.spec.deletion_policy == DeletionPolicy::Retain || facts.also_of.is_some();
    if !is_begun || stays {
        return vec![SnapshotStep::RemoveFinalizer];
    }
    if let Err(unknown) = facts.spec.deletion_policy.check_known() {
        let status = not_ready(facts, UNKNOWN_VALUE, unknown.to_string(), now);
        return vec![SnapshotStep::Report(Box::new(status))];
    }
    let mut steps = Vec::new();
    // No node is asked any more. The failure of an earlier attempt stays reported: each of our writes
    // triggers the next attempt.
    if facts.status.node.is_some() || is_true(&facts.status.conditions, READY) {
        let message = "the snapshot is being deleted from the log of its volume";
        steps.push(SnapshotStep::Report(Box::new(VolumeSnapshotStatus {
            node: None,
            ..not_ready(facts, "Deleting", message.to_owned(), now)
        })));
    }
    steps.extend([SnapshotStep::Forget, SnapshotStep::RemoveFinalizer]);
    steps
}

/// Returns the status that makes a node unblock writes. Everything that its daemon reported is kept.
pub(crate) fn released(facts: &SnapshotFacts) -> VolumeSnapshotStatus {
    VolumeSnapshotStatus { group_step: Some(GroupStep::Release), ..facts.status.clone() }
}

/// Returns the volume to snapshot, and its identity.
///
/// # Errors
/// Reason why the snapshot cannot be taken now.
pub(crate) fn source(facts: &SnapshotFacts) -> Result<(&SourceVolume, &str), SnapshotObstacle> {
    let name = &facts.spec.volume;
    let obstacle = |reason, state, fix| Err(SnapshotObstacle { reason, state, fix });
    let Some(volume) = &facts.volume else {
        return obstacle(
            "VolumeNotFound",
            format!("no Volume has the name `{name}`"),
            "create it, or delete this VolumeSnapshot and create one that names another",
        );
    };
    if volume.deleting {
        return obstacle(
            VOLUME_DELETED,
            format!("Volume `{name}` is being deleted, so no snapshot is taken of it"),
            "delete this VolumeSnapshot",
        );
    }
    if volume.is_memory {
        return obstacle(
            VOLUME_IN_MEMORY,
            format!("Volume `{name}` is a memory volume, which has no snapshots"),
            "delete this VolumeSnapshot, and copy the files to a volume in an object store",
        );
    }
    let Some(id) = &volume.id else {
        return obstacle(
            "VolumeNotReady",
            format!("Volume `{name}` is not provisioned yet"),
            "its conditions say what it waits for",
        );
    };
    match &facts.status.volume_id {
        Some(recorded) if !facts.is_of(volume) => obstacle(
            VOLUME_REPLACED,
            format!(
                "Volume `{name}` is `{id}` in ObjectStore `{}`, but the snapshot was requested of `{recorded}` \
                 in `{}`: none is taken",
                volume.object_store,
                facts.status.object_store.as_deref().unwrap_or_default(),
            ),
            "delete this VolumeSnapshot and create another",
        ),
        Some(_) | None => match &facts.of_volume_id {
            Some(wanted) if wanted != id => obstacle(
                VOLUME_REPLACED,
                format!("Volume `{name}` is `{id}`, but the snapshot must be of `{wanted}`: none is taken"),
                "delete this VolumeSnapshot and the object that waits for it",
            ),
            Some(_) | None => Ok((volume, id)),
        },
    }
}

/// Returns the status of a snapshot that does not exist, or no longer exists. Recorded fields are unchanged.
pub(crate) fn not_ready(
    facts: &SnapshotFacts,
    reason: &str,
    message: String,
    now: &Time,
) -> VolumeSnapshotStatus {
    VolumeSnapshotStatus {
        observed_generation: Some(facts.generation),
        conditions: vec![facts.conditions(now).build(READY, ConditionStatus::False, reason, message)],
        ..facts.status.clone()
    }
}

#[cfg(test)]
mod tests;
