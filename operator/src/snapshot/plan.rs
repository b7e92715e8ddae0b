//! Plan of the next steps for a snapshot: a pure function of facts and time.
//!
//! ```text
//!                    a node serves the volume            its daemon reports
//! recorded ------------------------------------> asked ------------------------> Ready
//!    |                                             |  the node released it          ^
//!    |  no node serves it                          v                                |
//!    +------------------------------------------> the operator takes it ------------+
//! deletion asked --> once no node is asked: forgotten in the log, then the object goes
//! ```

use holdfast_crds::{ConditionStatus, DeletionPolicy, READY, Time, VolumeSnapshotStatus};

use super::facts::{SnapshotFacts, SourceVolume};

/// Reason: the snapshot is being taken.
pub(crate) const TAKING: &str = "Taking";

/// One idempotent step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SnapshotStep {
    /// Put our finalizer on the object.
    AddFinalizer,
    /// Allow the API server to delete the object.
    RemoveFinalizer,
    /// Write the status.
    Report(Box<VolumeSnapshotStatus>),
    /// Take the snapshot of the recorded volume, which no node serves, and report it.
    Take,
    /// Forget the snapshot in the log of the recorded volume, if it is there.
    Forget,
}

/// The reason that a snapshot cannot be taken now.
struct Obstacle {
    reason: &'static str,
    message: String,
}

/// Plans the next steps, in order; a failed step ends the plan.
pub(crate) fn plan(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if facts.deleting {
        return plan_deletion(facts, now);
    }
    if facts.status.snapshot_id.is_some() {
        return if facts.finalizer { Vec::new() } else { vec![SnapshotStep::AddFinalizer] };
    }
    let (volume, id) = match source(facts) {
        Ok(source) => source,
        Err(Obstacle { reason, message }) => {
            return vec![SnapshotStep::Report(Box::new(not_ready(facts, reason, message, now)))];
        }
    };
    // Nothing is taken under a uid that nobody will look for. The change is planned again.
    if !facts.finalizer {
        return vec![SnapshotStep::AddFinalizer];
    }
    let asked = |node: &str| format!("node {node}, which serves the volume, takes the snapshot");
    let message = volume.node.as_deref().map_or_else(|| "the operator takes the snapshot".to_owned(), asked);
    let recorded = Box::new(VolumeSnapshotStatus {
        volume_id: Some(id.to_owned()),
        object_store: Some(volume.object_store.clone()),
        node: volume.node.clone(),
        ..not_ready(facts, TAKING, message, now)
    });
    let is_recorded = facts.status.volume_id.is_some() && facts.status.node == volume.node;
    match (&volume.node, is_recorded) {
        // From here on the daemon reports.
        (Some(_), true) => Vec::new(),
        (Some(_), false) => vec![SnapshotStep::Report(recorded)],
        (None, true) => vec![SnapshotStep::Take],
        (None, false) => vec![SnapshotStep::Report(recorded), SnapshotStep::Take],
    }
}

fn plan_deletion(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if !facts.finalizer {
        return Vec::new();
    }
    if facts.status.volume_id.is_none() || facts.spec.deletion_policy == DeletionPolicy::Retain {
        return vec![SnapshotStep::RemoveFinalizer];
    }
    // What the node has begun may be registered at any time: it is forgotten after that. Its daemon says
    // meanwhile what it waits for.
    if facts.taking().is_some() {
        return Vec::new();
    }
    let message = "the snapshot is being deleted from the log of its volume";
    vec![
        SnapshotStep::Report(Box::new(not_ready(facts, "Deleting", message.to_owned(), now))),
        SnapshotStep::Forget,
        SnapshotStep::RemoveFinalizer,
    ]
}

/// The volume of which the snapshot is to be taken, and its identity.
fn source(facts: &SnapshotFacts) -> Result<(&SourceVolume, &str), Obstacle> {
    let name = &facts.spec.volume;
    let obstacle = |reason, message| Err(Obstacle { reason, message });
    let Some(volume) = &facts.volume else {
        return obstacle(
            "VolumeNotFound",
            format!(
                "spec.volume: no Volume has the name `{name}`; create it, or delete this VolumeSnapshot and create one that names another"
            ),
        );
    };
    if volume.deleting {
        return obstacle(
            "VolumeDeleted",
            format!(
                "spec.volume: Volume `{name}` is being deleted, and no snapshot is taken of it; delete this VolumeSnapshot"
            ),
        );
    }
    let Some(id) = &volume.id else {
        return obstacle(
            "VolumeNotReady",
            format!(
                "spec.volume: Volume `{name}` is not provisioned yet; its conditions say what it waits for"
            ),
        );
    };
    match &facts.status.volume_id {
        Some(recorded) if recorded != id => obstacle(
            "VolumeReplaced",
            format!(
                "spec.volume: Volume `{name}` has the identity `{id}`, and the snapshot was asked of `{recorded}`; nothing is taken. Delete this VolumeSnapshot and create another"
            ),
        ),
        Some(_) | None => Ok((volume, id)),
    }
}

/// The status of a snapshot that is not there, or not any more. What is recorded stays.
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
