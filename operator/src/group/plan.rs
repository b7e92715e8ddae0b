//! Plan of the next steps for a group of snapshots: a pure function of facts and time.
//!
//! ```text
//! attempt recorded --> VolumeSnapshots created --> of volumes that no node serves: recorded and taken
//!     ^                                                                  |
//!     |                                                                  v
//!     |                    Hold                  all Prepared         Prepare, to the nodes of the others
//!     |  all Held <---------------------------------------------------------+
//!     |     |
//!     |     v  Release to all, then: volumes that no node serves are what they were
//!     |  takenTime --> all Released and all in their logs --> Ready
//!     |
//!     +-- any Lapsed, moved, attached, changed or deleted before that: the attempt failed
//! ```
//!
//! The point is any moment at which all nodes are Held. A volume that no node serves does not change, so its
//! snapshot may precede that moment, provided that the volume has not changed since. Thus no write to any
//! volume waits for an object store.
//!
//! `Release` in the current attempt implies that all were Held. The next attempt is therefore recorded
//! *before* the nodes of a failed one are released: a process that dies in between leaves no attempt that
//! falsely appears to have a point.

use holdfast_crds::{
    ConditionStatus, DeletionPolicy, GroupMember, GroupProgress, GroupStep, READY, SNAPSHOT_DELETED, Time,
    UNKNOWN_VALUE, VOLUME_DELETED, VOLUME_IN_MEMORY, VOLUME_REPLACED, VolumeGroupSnapshotStatus,
    VolumeSnapshotStatus, find_condition,
};

use super::facts::{GroupFacts, MemberFacts, MemberSnapshot, OwnSnapshot};
use crate::snapshot::facts::SnapshotFacts;
use crate::snapshot::plan::{SnapshotObstacle, SnapshotStep, TAKING, not_ready, recorded, released, source};

/// Reason: the attempt failed; the operator starts the next one.
const ATTEMPT_FAILED: &str = "AttemptFailed";
/// Reason: a VolumeSnapshot of another owner has the name of a group member.
const NAME_TAKEN: &str = "NameTaken";

/// One idempotent step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum GroupPlanStep {
    /// Adds our finalizer to the object.
    AddFinalizer,
    /// Allows the API server to delete the object.
    RemoveFinalizer,
    /// Writes the status.
    Report(Box<VolumeGroupSnapshotStatus>),
    /// Creates the VolumeSnapshots of the volumes at these indexes of the spec in parallel.
    Create(Vec<usize>),
    /// Applies one step to each of these VolumeSnapshots in parallel.
    Change(Vec<MemberChange>),
    /// Confirms from their logs that these snapshots' volumes have not changed since.
    Confirm(Vec<Unserved>),
    /// Delays this attempt.
    Pause(i64),
    /// Requests deletion of these VolumeSnapshots in parallel.
    Delete(Vec<String>),
}

/// A step for one VolumeSnapshot of the group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MemberChange {
    /// Name of the VolumeSnapshot.
    pub(crate) name: String,
    /// The step.
    pub(crate) step: SnapshotStep,
}

/// A snapshot of an unserved volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unserved {
    /// Name of the Volume.
    pub(crate) volume: String,
    /// Name of its VolumeSnapshot.
    pub(crate) name: String,
}

/// Outcome of an attempt whose VolumeSnapshots are deleted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptOutcome {
    /// It completed the group.
    Complete,
    /// It failed, or was interrupted.
    Incomplete,
}

/// Reason why an attempt has no known point.
struct AttemptFailure {
    /// Name of the Volume.
    volume: String,
    /// The event.
    why: String,
}

/// Plans the next steps in order; a failed step ends the plan.
pub(crate) fn plan(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    if facts.deleting {
        return plan_deletion(facts, now);
    }
    if !facts.finalizer {
        return vec![GroupPlanStep::AddFinalizer];
    }
    // The current state of the group decides which of its VolumeSnapshots are needed.
    if facts.is_old {
        return Vec::new();
    }
    if facts.is_finished() {
        return plan_finished(facts, now);
    }
    // A complete group hands its policy down; a hold in progress ends by itself.
    if let Err(unknown) = facts.deletion_policy.check_known() {
        return report_incomplete(facts, UNKNOWN_VALUE, unknown.to_string(), now);
    }
    // VolumeSnapshots are only created for a recorded attempt.
    let Some(attempt) = facts.status.attempt else {
        let status = VolumeGroupSnapshotStatus {
            attempt: Some(1),
            ..waiting(facts, TAKING, "its VolumeSnapshots are being created".to_owned(), now)
        };
        return vec![GroupPlanStep::Report(Box::new(status))];
    };
    let mut steps = match failure(facts) {
        Some(failure) => fail(facts, attempt, &failure, now),
        None => proceed(facts, now),
    };
    steps.extend(dispose(leftovers(facts), AttemptOutcome::Incomplete));
    steps
}

/// Returns the first reason why the attempt failed.
fn failure(facts: &GroupFacts) -> Option<AttemptFailure> {
    let is_late = facts.status.taken_time.is_some() || facts.own().any(|(_, snapshot)| snapshot.was_held());
    facts.members.iter().find_map(|member| {
        let why = if facts.touched.contains(&member.volume) {
            Some("it was attached and changed after its snapshot was taken".to_owned())
        } else {
            member_failure(facts, member, is_late)
        };
        Some(AttemptFailure { volume: member.volume.clone(), why: why? })
    })
}

/// `is_late` is true once a node has been asked to block writes: from then on no new step begins.
fn member_failure(facts: &GroupFacts, member: &MemberFacts, is_late: bool) -> Option<String> {
    let name = &member.name;
    let snapshot = match &member.snapshot {
        MemberSnapshot::Own(snapshot) => snapshot,
        MemberSnapshot::Missing | MemberSnapshot::Foreign if is_late => {
            return Some(format!("its VolumeSnapshot `{name}` is gone"));
        }
        MemberSnapshot::Missing | MemberSnapshot::Foreign => return None,
    };
    if snapshot.deleting {
        return Some(format!("its VolumeSnapshot `{name}` was deleted"));
    }
    if !snapshot.is_recorded() {
        return is_late.then(|| format!("its VolumeSnapshot `{name}` was created too late"));
    }
    let asked = snapshot.status.node.as_deref();
    if snapshot.status.group_progress == Some(GroupProgress::Lapsed) {
        let node = asked.unwrap_or("that serves it");
        let said = obstacle_of(snapshot).map(|(_, message)| format!(" ({message})")).unwrap_or_default();
        if !snapshot.was_held() {
            return Some(format!("node {node} could not prepare, or stayed prepared for too long{said}"));
        }
        return Some(format!("node {node} let writes continue before all volumes were held{said}"));
    }
    if snapshot.status.group_step.is_some() && snapshot.status.snapshot_id.is_some() && !snapshot.is_done() {
        // The node's daemon is of the previous release, or temporarily was.
        let node = asked.unwrap_or("that serves it");
        return Some(format!(
            "node {node} took its snapshot on its own: its daemon does not support groups; update it"
        ));
    }
    let is_settled = if snapshot.status.group_step.is_some() {
        snapshot.is_done()
    } else {
        facts.status.taken_time.is_some()
    };
    if is_settled { None } else { movement(snapshot) }
}

/// Returns a change of the volume since the taker of its snapshot was recorded.
fn movement(snapshot: &SnapshotFacts) -> Option<String> {
    let Some(volume) = snapshot.volume.as_ref() else { return Some("it was deleted".to_owned()) };
    if !snapshot.is_of(volume) {
        return Some("another volume has its name".to_owned());
    }
    // A node that holds the volume completes the hold first.
    if volume.deleting && !snapshot.was_held() {
        return Some("it is being deleted".to_owned());
    }
    let asked = snapshot.status.node.as_deref().filter(|_| snapshot.status.group_step.is_some());
    match (asked, volume.node.as_deref()) {
        (asked, serving) if asked == serving => None,
        (Some(asked), None) => Some(format!("node {asked} released it in the meantime")),
        (Some(asked), Some(other)) => {
            Some(format!("it moved from node {asked} to node {other} in the meantime"))
        }
        (None, Some(other)) => Some(format!("node {other} attached it in the meantime")),
        (None, None) => None,
    }
}

/// Records the next attempt before releasing the nodes of this one: see above.
fn fail(facts: &GroupFacts, attempt: i64, failure: &AttemptFailure, now: &Time) -> Vec<GroupPlanStep> {
    let next = attempt.saturating_add(1);
    let AttemptFailure { volume, why } = failure;
    let message =
        format!("attempt {attempt} failed: Volume `{volume}`: {why}; attempt {next} begins automatically");
    let status = VolumeGroupSnapshotStatus {
        attempt: Some(next),
        taken_time: None,
        ..waiting(facts, ATTEMPT_FAILED, message, now)
    };
    let mut steps = vec![GroupPlanStep::Pause(next), GroupPlanStep::Report(Box::new(status))];
    steps.extend(dispose(own(facts), AttemptOutcome::Incomplete));
    steps
}

/// Returns the names and facts of the current attempt's VolumeSnapshots.
fn own(facts: &GroupFacts) -> impl Iterator<Item = (&str, &SnapshotFacts)> {
    facts.own().map(|(member, snapshot)| (member.name.as_str(), snapshot))
}

/// Returns the names and facts of the other attempts' VolumeSnapshots.
fn leftovers(facts: &GroupFacts) -> impl Iterator<Item = (&str, &SnapshotFacts)> {
    facts.leftovers.iter().map(|OwnSnapshot { name, facts }| (name.as_str(), facts))
}

/// Unblocks blocked writes, and deletes the VolumeSnapshots. Those of an incomplete attempt are not retained:
/// no object would name their snapshots, whose volumes could not be removed.
fn dispose<'a>(
    snapshots: impl Iterator<Item = (&'a str, &'a SnapshotFacts)>,
    outcome: AttemptOutcome,
) -> Vec<GroupPlanStep> {
    let (mut held, mut retained, mut unwanted) = (Vec::new(), Vec::new(), Vec::new());
    for (name, snapshot) in snapshots {
        if snapshot.status.group_step == Some(GroupStep::Hold) {
            held.push(report(name, released(snapshot)));
        }
        // A user may still retain a snapshot whose deletion was requested.
        if snapshot.deleting {
            continue;
        }
        if outcome == AttemptOutcome::Incomplete && snapshot.spec.deletion_policy == DeletionPolicy::Retain {
            let step = SnapshotStep::SetDeletionPolicy(DeletionPolicy::Delete);
            retained.push(MemberChange { name: name.to_owned(), step });
        }
        unwanted.push(name.to_owned());
    }
    let mut steps = change(held);
    steps.extend(change(retained));
    if !unwanted.is_empty() {
        steps.push(GroupPlanStep::Delete(unwanted));
    }
    steps
}

/// Returns the next steps of an attempt that has not failed.
fn proceed(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    if let Some(member) =
        facts.members.iter().find(|member| matches!(member.snapshot, MemberSnapshot::Foreign))
    {
        let MemberFacts { name, volume, .. } = member;
        let message = format!(
            "VolumeSnapshot `{name}` has the name that Volume `{volume}` needs, but does not belong to this \
             VolumeGroupSnapshot; delete that VolumeSnapshot, or delete this VolumeGroupSnapshot and create one \
             with another name"
        );
        return report_incomplete(facts, NAME_TAKEN, message, now);
    }
    let places = facts.members.iter().enumerate();
    let missing: Vec<usize> = places
        .filter_map(|(place, member)| matches!(member.snapshot, MemberSnapshot::Missing).then_some(place))
        .collect();
    if !missing.is_empty() {
        // Limits leftovers to one attempt, even if they cannot be deleted yet.
        let waits = facts.is_paused || !facts.leftovers.is_empty();
        return if waits { Vec::new() } else { vec![GroupPlanStep::Create(missing)] };
    }
    let bare: Vec<_> = facts
        .own()
        .filter(|(_, snapshot)| !snapshot.finalizer)
        .map(|(member, _)| MemberChange { name: member.name.clone(), step: SnapshotStep::AddFinalizer })
        .collect();
    if !bare.is_empty() {
        return change(bare);
    }
    if facts.own().any(|(_, snapshot)| !snapshot.is_recorded() || is_untaken(snapshot)) {
        return record(facts, now);
    }
    hold(facts, now)
}

/// Returns true for a snapshot that the operator must take.
fn is_untaken(snapshot: &SnapshotFacts) -> bool {
    snapshot.status.group_step.is_none() && snapshot.status.snapshot_id.is_none()
}

/// Records the volume and the taker of each snapshot, once all can be taken. Nodes are asked last, because
/// their preparation does not last.
fn record(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    let (mut obstacles, mut unserved, mut asked) = (Vec::new(), Vec::new(), Vec::new());
    for (member, snapshot) in facts.own().filter(|(_, snapshot)| !snapshot.is_recorded()) {
        match source(snapshot) {
            Err(obstacle) => obstacles.push((member, snapshot, obstacle)),
            Ok((volume, id)) if volume.node.is_none() => {
                unserved.push(report(&member.name, recorded(snapshot, volume, id, now)));
            }
            Ok((volume, id)) => {
                let prepare = VolumeSnapshotStatus {
                    group_step: Some(GroupStep::Prepare),
                    ..recorded(snapshot, volume, id, now)
                };
                asked.push(report(&member.name, prepare));
            }
        }
    }
    if !obstacles.is_empty() {
        return report_obstacles(facts, &obstacles, now);
    }
    let is_to_take = |name: &str, snapshot: &SnapshotFacts| {
        unserved.iter().any(|recorded| recorded.name == name)
            || snapshot.is_recorded() && is_untaken(snapshot)
    };
    let takes: Vec<_> = facts
        .own()
        .filter(|(member, snapshot)| is_to_take(&member.name, snapshot))
        .map(|(member, _)| MemberChange { name: member.name.clone(), step: SnapshotStep::Take })
        .collect();
    if !takes.is_empty() {
        let mut steps = change(unserved);
        steps.extend(change(takes));
        return steps;
    }
    let mut steps = report_incomplete(facts, TAKING, PREPARING.to_owned(), now);
    steps.extend(change(asked));
    steps
}

const PREPARING: &str = "the nodes that serve the volumes are preparing; status.groupProgress of its VolumeSnapshots shows which are prepared";
const STORING: &str = "the volumes' contents at one point are taken; the group is Ready once all of its VolumeSnapshots are in their object stores";

/// Returns the steps from all recorded to all taken. Between Hold and Release, no other request is sent.
fn hold(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    let asked = || facts.own().filter(|(_, snapshot)| snapshot.status.group_step.is_some());
    let at = |step: GroupStep| asked().filter(move |(_, snapshot)| snapshot.status.group_step == Some(step));
    let lacks = |progress| {
        move |(_, snapshot): (&MemberFacts, &SnapshotFacts)| snapshot.status.group_progress != Some(progress)
    };
    let next = |step: GroupStep, from: GroupStep| {
        let status = |snapshot: &SnapshotFacts| VolumeSnapshotStatus {
            group_step: Some(step),
            ..snapshot.status.clone()
        };
        change(at(from).map(|(member, snapshot)| report(&member.name, status(snapshot))).collect())
    };
    if at(GroupStep::Prepare).next().is_some() {
        return if at(GroupStep::Prepare).any(lacks(GroupProgress::Prepared)) {
            report_progress(facts, PREPARING, now)
        } else {
            next(GroupStep::Hold, GroupStep::Prepare)
        };
    }
    if at(GroupStep::Hold).any(lacks(GroupProgress::Held)) {
        return Vec::new();
    }
    let mut steps = next(GroupStep::Release, GroupStep::Hold);
    if facts.status.taken_time.is_none() {
        let unserved: Vec<_> = facts
            .own()
            .filter(|(_, snapshot)| snapshot.status.group_step.is_none())
            .map(|(member, _)| Unserved { volume: member.volume.clone(), name: member.name.clone() })
            .collect();
        if !unserved.is_empty() {
            steps.push(GroupPlanStep::Confirm(unserved));
        }
        steps.push(GroupPlanStep::Report(Box::new(VolumeGroupSnapshotStatus {
            taken_time: Some(now.clone()),
            ..waiting(facts, TAKING, STORING.to_owned(), now)
        })));
        return steps;
    }
    if !steps.is_empty() {
        return steps;
    }
    if facts.own().all(|(_, snapshot)| snapshot.is_done()) {
        return complete(facts, now);
    }
    report_progress(facts, STORING, now)
}

/// Completes the group: all snapshots were taken at one point. Its VolumeSnapshots are retained first, if it
/// says so: their deletion may precede the next plan.
fn complete(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    let retain = DeletionPolicy::Retain;
    let inherited = facts
        .own()
        .filter(|(_, snapshot)| facts.deletion_policy == retain && snapshot.spec.deletion_policy != retain)
        .map(|(member, _)| MemberChange {
            name: member.name.clone(),
            step: SnapshotStep::SetDeletionPolicy(retain),
        });
    let mut steps = change(inherited.collect());
    let message =
        "the snapshots hold the volumes' contents at one point, as after a power cut of all of them at once";
    let snapshots = facts
        .members
        .iter()
        .map(|member| GroupMember { volume: member.volume.clone(), snapshot: member.name.clone() });
    steps.push(GroupPlanStep::Report(Box::new(VolumeGroupSnapshotStatus {
        snapshots: snapshots.collect(),
        conditions: vec![facts.conditions(now).build(READY, ConditionStatus::True, "Taken", message)],
        ..waiting(facts, TAKING, String::new(), now)
    })));
    steps
}

/// Plans for a complete group. It changes only when its members are deleted, and is never taken again.
fn plan_finished(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    let gone: Vec<_> = facts
        .members
        .iter()
        .filter(|member| member.own().is_none_or(|snapshot| snapshot.deleting))
        .map(|member| format!("VolumeSnapshot `{}` of Volume `{}`", member.name, member.volume))
        .collect();
    let mut steps = Vec::new();
    if !gone.is_empty() {
        let message = format!(
            "deleted: {}; the group is no longer complete, and is not taken again. The remaining VolumeSnapshots \
             can be restored. Delete this VolumeGroupSnapshot and create another",
            gone.join(", ")
        );
        steps = report_incomplete(facts, SNAPSHOT_DELETED, message, now);
    }
    steps.extend(dispose(leftovers(facts), AttemptOutcome::Incomplete));
    steps
}

fn plan_deletion(facts: &GroupFacts, now: &Time) -> Vec<GroupPlanStep> {
    if !facts.finalizer {
        return Vec::new();
    }
    if own(facts).chain(leftovers(facts)).next().is_none() {
        return vec![GroupPlanStep::RemoveFinalizer];
    }
    let outcome = if facts.is_finished() { AttemptOutcome::Complete } else { AttemptOutcome::Incomplete };
    let mut steps = dispose(own(facts), outcome);
    steps.extend(dispose(leftovers(facts), AttemptOutcome::Incomplete));
    let message = "its VolumeSnapshots are being deleted; their conditions say what they wait for".to_owned();
    steps.extend(report_incomplete(facts, "Deleting", message, now));
    steps
}

/// Reports each VolumeSnapshot's obstacle in its own status, and the resulting delay in the group's status.
fn report_obstacles(
    facts: &GroupFacts,
    obstacles: &[(&MemberFacts, &SnapshotFacts, SnapshotObstacle)],
    now: &Time,
) -> Vec<GroupPlanStep> {
    let group = |snapshot: &SnapshotFacts| snapshot.spec.group.clone().unwrap_or_default();
    let changes = obstacles.iter().filter_map(|(member, snapshot, obstacle)| {
        let message = format!(
            "spec.volume: {}; VolumeGroupSnapshot `{}` waits for it",
            obstacle.state,
            group(snapshot)
        );
        let status = not_ready(snapshot, obstacle.reason, message, now);
        (status != snapshot.status).then(|| report(&member.name, status))
    });
    let mut steps = change(changes.collect());
    let Some((_, _, first)) = obstacles.first() else { return steps };
    let states: Vec<_> = obstacles.iter().map(|(_, _, obstacle)| obstacle.state.as_str()).collect();
    let fix = match first.reason {
        VOLUME_DELETED | VOLUME_IN_MEMORY | VOLUME_REPLACED => {
            "delete this VolumeGroupSnapshot and create another"
        }
        "VolumeNotReady" => "its conditions say what it waits for",
        _ => "create it, or delete this VolumeGroupSnapshot and create one without it",
    };
    let message = format!("spec.volumes: {}; {fix}", states.join("; "));
    steps.extend(report_incomplete(facts, first.reason, message, now));
    steps
}

/// Reports the obstacle of a VolumeSnapshot of the group or, without one, that the group makes progress.
fn report_progress(facts: &GroupFacts, message: &str, now: &Time) -> Vec<GroupPlanStep> {
    let waits = facts.own().filter(|(_, snapshot)| !snapshot.is_done());
    let obstructed = waits.filter_map(|(member, snapshot)| Some((member, obstacle_of(snapshot)?))).next();
    let Some((member, (reason, why))) = obstructed else {
        return report_incomplete(facts, TAKING, message.to_owned(), now);
    };
    let MemberFacts { name, volume, .. } = member;
    report_incomplete(facts, reason, format!("Volume `{volume}`: VolumeSnapshot `{name}`: {why}"), now)
}

/// Returns the reason and message of a failure that a snapshot reports.
fn obstacle_of(snapshot: &SnapshotFacts) -> Option<(&str, &str)> {
    let ready = find_condition(&snapshot.status.conditions, READY)?;
    (ready.status == "False" && ready.reason != TAKING).then_some((&ready.reason, &ready.message))
}

/// Reports that the group is incomplete, unless its status already does.
fn report_incomplete(facts: &GroupFacts, reason: &str, message: String, now: &Time) -> Vec<GroupPlanStep> {
    let status = waiting(facts, reason, message, now);
    if status == facts.status { Vec::new() } else { vec![GroupPlanStep::Report(Box::new(status))] }
}

/// Returns the status of an incomplete group. Recorded fields are unchanged.
pub(crate) fn waiting(
    facts: &GroupFacts,
    reason: &str,
    message: String,
    now: &Time,
) -> VolumeGroupSnapshotStatus {
    VolumeGroupSnapshotStatus {
        observed_generation: Some(facts.generation),
        conditions: vec![facts.conditions(now).build(READY, ConditionStatus::False, reason, message)],
        ..facts.status.clone()
    }
}

fn report(name: &str, status: VolumeSnapshotStatus) -> MemberChange {
    MemberChange { name: name.to_owned(), step: SnapshotStep::Report(Box::new(status)) }
}

/// Wraps all changes in one step; returns no step without changes.
fn change(changes: Vec<MemberChange>) -> Vec<GroupPlanStep> {
    if changes.is_empty() { Vec::new() } else { vec![GroupPlanStep::Change(changes)] }
}

#[cfg(test)]
mod tests;
