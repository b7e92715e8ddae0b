//! Plan of the next steps for a snapshot: a pure function of facts and time.
//!
//! ```text
//!                    a node serves the volume            its daemon reports
//! recorded ------------------------------------> asked ------------------------> Ready
//!    |                                             |  the node released it          ^
//!    |  no node serves it                          v                                |
//!    +------------------------------------------> the operator takes it ------------+
//! deletion asked --> once no node takes it: forgotten in the log, then the object goes
//! ```

use holdfast_crds::{
    ConditionStatus, DeletionPolicy, READY, Time, VOLUME_DELETED, VOLUME_REPLACED, VolumeSnapshotStatus,
    is_true,
};

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
struct SnapshotObstacle {
    reason: &'static str,
    message: String,
}

/// Plans the next steps, in order; a failed step ends the plan.
pub(crate) fn plan(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if facts.deleting {
        return plan_deletion(facts, now);
    }
    if facts.status.snapshot_id.is_some() {
        return plan_taken(facts);
    }
    // What was asked for is reported by the node's daemon.
    if facts.finalizer && facts.taking().is_some() {
        return Vec::new();
    }
    let (volume, id) = match source(facts) {
        Ok(source) => source,
        Err(SnapshotObstacle { reason, message }) => {
            return vec![SnapshotStep::Report(Box::new(not_ready(facts, reason, message, now)))];
        }
    };
    // Nothing is taken that a deletion would not look for. The change is planned again.
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
    let mut steps = Vec::new();
    if facts.status.volume_id.is_none() || facts.status.node != volume.node {
        steps.push(SnapshotStep::Report(recorded));
    }
    if volume.node.is_none() {
        steps.push(SnapshotStep::Take);
    }
    steps
}

/// No node has to do with a snapshot that is taken.
fn plan_taken(facts: &SnapshotFacts) -> Vec<SnapshotStep> {
    if !facts.finalizer {
        return vec![SnapshotStep::AddFinalizer];
    }
    let ended =
        || SnapshotStep::Report(Box::new(VolumeSnapshotStatus { node: None, ..facts.status.clone() }));
    facts.status.node.iter().map(|_asked| ended()).collect()
}

fn plan_deletion(facts: &SnapshotFacts, now: &Time) -> Vec<SnapshotStep> {
    if !facts.finalizer {
        return Vec::new();
    }
    // What the node has begun may be registered at any time: it is looked for after that. Its daemon says
    // meanwhile what it waits for.
    if facts.taking().is_some() {
        return Vec::new();
    }
    if facts.status.volume_id.is_none() || facts.spec.deletion_policy == DeletionPolicy::Retain {
        return vec![SnapshotStep::RemoveFinalizer];
    }
    let mut steps = Vec::new();
    // No node is asked any more. The failure of an earlier attempt stays reported: each write of ours begins
    // the next attempt.
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

/// The volume of which the snapshot is to be taken, and its identity.
fn source(facts: &SnapshotFacts) -> Result<(&SourceVolume, &str), SnapshotObstacle> {
    let name = &facts.spec.volume;
    let obstacle = |reason, message| Err(SnapshotObstacle { reason, message });
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
            VOLUME_DELETED,
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
        Some(recorded) if !facts.is_of(volume) => obstacle(
            VOLUME_REPLACED,
            format!(
                "spec.volume: Volume `{name}` is `{id}` in ObjectStore `{}`, and the snapshot was asked of `{recorded}` in `{}`; nothing is taken. Delete this VolumeSnapshot and create another",
                volume.object_store,
                facts.status.object_store.as_deref().unwrap_or_default(),
            ),
        ),
        Some(_) | None => match &facts.of_volume_id {
            Some(wanted) if wanted != id => obstacle(
                VOLUME_REPLACED,
                format!(
                    "spec.volume: Volume `{name}` is `{id}`, and the snapshot is to be of `{wanted}`; nothing is taken. Delete this VolumeSnapshot and what was to begin with it"
                ),
            ),
            Some(_) | None => Ok((volume, id)),
        },
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
