//! Plans the next steps for one volume: a pure function of the observed facts.
//!
//! ```text
//!            wanted                       grant withdrawn or deletion requested
//! Absent ------------> Claimed, attaching ------> Served ----------------> Detaching ----> Cleared
//!                           ^                                                                ^
//! claimed before the host was lost, not wanted any more: attach once more, commit, detach ---+
//! ```
//! *Wanted*: `spec.nodeName` and `status.assignedNode` both name this node and no deletion was requested.
//!
//! Invariants: nothing is attached before the claim (`status.node`) was written under the resource version
//! that showed the grant; a claim is cleared only after the final commit; the status is written only while
//! the grant or the claim is ours. None of this makes a stale view harmless: the log does, by letting an
//! attach replace only the writer of the epoch in `status.forcedDetach`.

use std::time::Duration;

use holdfast_crds::{
    ATTACHED, CONTENT_LOST, Condition, ConditionStatus, DurabilityMode, FieldError, NOT_CONFIGURED,
    SERVING_CONDITIONS, Time, TimeSpan, VolumeSpec, VolumeStatus, find_condition,
};

use super::conditions::{self, DETACHING, UNSERVED};
use super::content_lost::{self, content_lost};
use super::facts::NodeFacts;
use super::limits;
use super::misfit::{Misfit, has_less_memory, misfit};
use super::operations::{Doing, OperationOutcome, WantedSettings};
use super::retry::{OperationFailure, UBLK_NEEDED};
use super::transport::transport_name;
use crate::node::{self, GrowTo, VolumeState};
use holdfast_engine::settings::Durability;

/// Interval at which constantly changing figures (dirty bytes, commits) are written.
const FIGURES_EVERY: Duration = Duration::from_secs(60);
/// Interval at which a served volume is examined.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Reason: a user attached a memory volume whose name is the id of the volume.
const NAME_TAKEN: &str = "NameTaken";
/// Reason: the memory volume on this node has another size, limit or codec than its spec.
const SPEC_DIFFERS: &str = "SpecDiffers";
/// Time until a volume is examined again while an operation is in progress or has failed.
const SOON: Duration = Duration::from_secs(2);
/// Time for the operator to write its part of the status after a change of the spec.
const OPERATOR_FIRST: Duration = Duration::from_secs(2);

/// One idempotent step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NodeStep {
    /// Write the daemon's part of the status, even if unchanged.
    Claim(Box<VolumeStatus>),
    /// Write the daemon's part of the status.
    Report(Box<VolumeStatus>),
    /// Start to attach, growing the volume to the requested size if `grow`.
    Attach {
        /// True if the device should get the size of the spec.
        grow: bool,
        /// The epoch whose writer was force-detached by the user.
        replaces: Option<u64>,
        /// True if the attach must fail where new devices are not ublk devices.
        ublk_only: bool,
    },
    /// Start to attach a memory volume, all zeros.
    AttachMemory {
        /// Epoch of the attach.
        epoch: u64,
    },
    /// Apply the settings of the spec to a served volume.
    Configure(WantedSettings),
    /// Start to grow the volume and its device to the size of the spec, and raise its limits.
    Grow(GrowTo),
    /// Start to detach.
    Detach,
    /// Start to clear the files of a volume that another node owns.
    Clear,
}

/// The steps in order (a failed one ends the plan), and the time of the next check without an event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NodePlan {
    /// The steps.
    pub(crate) steps: Vec<NodeStep>,
    /// Time until the volume is examined again.
    pub(crate) again: Option<Duration>,
}

impl NodePlan {
    fn nothing() -> Self {
        Self { steps: Vec::new(), again: None }
    }

    fn of(steps: Vec<NodeStep>, again: Duration) -> Self {
        Self { steps, again: Some(again) }
    }
}

/// Plans the next steps.
pub(crate) fn plan(facts: &NodeFacts, now: &Time) -> NodePlan {
    match (facts.doing, &facts.here) {
        (Some(Doing::Attaching), _) => report(facts, attaching(facts), now),
        (Some(Doing::Growing(to)), here) => {
            let settings = here.as_ref().and_then(|here| other_settings(facts, here));
            configure(settings, report(facts, served(facts, settings, to), now))
        }
        (Some(Doing::Detaching), _) => report_detach(facts, now),
        (Some(Doing::Clearing), _) => NodePlan::of(Vec::new(), SOON),
        (None, Some(here)) if misfit(facts, here) == Some(Misfit::AttachedByUser) => {
            plan_id_taken(facts, now)
        }
        (None, Some(here)) => plan_present(facts, here, now),
        (None, None) => plan_absent(facts, now),
    }
}

/// Plans for a Volume whose id is taken by a user's memory volume, which stays: the Volume is not attached.
fn plan_id_taken(facts: &NodeFacts, now: &Time) -> NodePlan {
    if facts.requested() && facts.granted() {
        return report(facts, NAME_TAKEN, now);
    }
    plan_absent(&NodeFacts { here: None, ..facts.clone() }, now)
}

fn plan_present(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> NodePlan {
    let is_wanted = facts.requested() && !facts.granted_to_another();
    let misfit = misfit(facts, here);
    match (&here.state, &facts.last) {
        (VolumeState::Attached, _) if is_wanted && misfit.is_none() => plan_attached(facts, here, now),
        (VolumeState::Recovering, _) if is_wanted => report(facts, "Recovering", now),
        (VolumeState::Quiesced, _) if is_wanted => report(facts, "RecoveryFailed", now),
        // The daemon itself retries an operation of the previous process.
        (VolumeState::Detaching, None) => report(facts, DETACHING, now),
        (_, Some(OperationOutcome::Failed(failure))) if !facts.wait.is_zero() => {
            let mut plan = report(facts, failure.reason, now);
            plan.again = Some(facts.wait);
            plan
        }
        // An attach or a detach by another client of the daemon.
        (
            VolumeState::Attaching,
            None | Some(OperationOutcome::Attached | OperationOutcome::NotGrown { .. }),
        ) if is_wanted => report(facts, "Attaching", now),
        (VolumeState::Detaching, Some(OperationOutcome::Attached | OperationOutcome::NotGrown { .. }))
            if is_wanted =>
        {
            report(facts, DETACHING, now)
        }
        // Un-uploaded data is preserved; then the log shows if the volume can be attached again.
        (VolumeState::Fenced, _) if is_wanted => detach(facts, "Fenced", now),
        // The remains of a failed operation are detached, even if the volume is wanted here: the next attach
        // starts after that. A failed attach can leave a device that could not be removed.
        (VolumeState::Unserved, _) if is_wanted => detach(facts, UNSERVED, now),
        (VolumeState::Attached, _) if is_wanted => match misfit {
            Some(Misfit::Differs { .. }) => report(facts, SPEC_DIFFERS, now),
            _ if facts.granted() || facts.claimed() => detach(facts, DETACHING, now),
            _ => NodePlan::of(Vec::new(), SOON),
        },
        (VolumeState::Attached, _) => operators_turn(facts)
            .map_or_else(|| detach(facts, DETACHING, now), |left| NodePlan::of(Vec::new(), left)),
        _ => detach(facts, DETACHING, now),
    }
}

/// Returns the time for which a detach waits for the operator's reaction to the change of the spec: a
/// simultaneous report of the daemon would be rejected, because the Volume changed. The detach does not
/// depend on the operator.
fn operators_turn(facts: &NodeFacts) -> Option<Duration> {
    let left = OPERATOR_FIRST.checked_sub(facts.unanswered.filter(|_since| facts.granted())?)?;
    (!left.is_zero()).then_some(left)
}

/// Plans for a volume served where it is wanted: applies the settings and the size of the spec.
fn plan_attached(facts: &NodeFacts, here: &node::NodeVolumeStatus, now: &Time) -> NodePlan {
    let settings = other_settings(facts, here);
    let Some(to) = growth(facts, here) else {
        let reason = unconfigured(facts, settings).unwrap_or(ATTACHED);
        return configure(settings, report(facts, reason, now));
    };
    let mut plan = configure(settings, report(facts, served(facts, settings, to), now));
    if not_grown(facts, to).is_some() && !facts.wait.is_zero() {
        plan.again = Some(if settings.is_some() { SOON.min(facts.wait) } else { facts.wait });
    } else {
        plan.steps.push(NodeStep::Grow(to));
        plan.again = Some(SOON);
    }
    plan
}

/// Returns the size and the limits of the spec, if a served volume has less.
fn growth(facts: &NodeFacts, here: &node::NodeVolumeStatus) -> Option<GrowTo> {
    let bytes = facts.spec.size_bytes().ok()?;
    let is_smaller = here.attached.as_ref()?.bytes < bytes;
    if !facts.spec.is_memory() {
        return is_smaller.then(|| GrowTo::bytes(bytes));
    }
    (is_smaller || has_less_memory(facts, here)).then_some(GrowTo {
        bytes,
        memory_limit_bytes: facts.spec.memory_limit_bytes().ok()?,
        memory_spill_bytes: facts.spec.memory_spill_bytes().ok()?,
    })
}

/// Returns the settings of the spec, if they differ from those of a volume served where it is wanted.
fn other_settings(facts: &NodeFacts, here: &node::NodeVolumeStatus) -> Option<WantedSettings> {
    if facts.spec.is_memory() {
        return None;
    }
    let is_served = here.state == VolumeState::Attached && facts.requested() && !facts.granted_to_another();
    let wanted = WantedSettings {
        durability: flush_class(&facts.spec).ok()?,
        max_dirty_age: facts.spec.max_dirty_age().ok()?,
        limits: limits::wanted(&facts.spec).ok()?,
    };
    let has = here.durability.zip(here.max_dirty_age).map(|(durability, max_dirty_age)| WantedSettings {
        durability,
        max_dirty_age,
        limits: here.delays.limits.limits,
    });
    (is_served && has != Some(wanted)).then_some(wanted)
}

/// Appends the step for these settings to the plan.
fn configure(settings: Option<WantedSettings>, mut plan: NodePlan) -> NodePlan {
    if let Some(settings) = settings {
        plan.steps.push(NodeStep::Configure(settings));
        plan.again = Some(SOON);
    }
    plan
}

/// Returns the reason if the change to these settings failed before. Failures of other settings do not count.
fn unconfigured(facts: &NodeFacts, settings: Option<WantedSettings>) -> Option<&'static str> {
    let failed = facts.unconfigured.as_ref().map(|failed| failed.wanted);
    (settings.is_some() && settings == failed).then_some(NOT_CONFIGURED)
}

/// Returns the reason for a served volume whose settings, or the size of its device, are to change.
fn served(facts: &NodeFacts, settings: Option<WantedSettings>, to: GrowTo) -> &'static str {
    unconfigured(facts, settings).unwrap_or_else(|| growing(facts, to))
}

/// Returns the failure of the last growth, if it was to this size.
fn not_grown(facts: &NodeFacts, wanted: GrowTo) -> Option<&OperationFailure> {
    match &facts.last {
        Some(OperationOutcome::NotGrown { to, failure }) if *to == wanted => Some(failure),
        Some(_) | None => None,
    }
}

/// Returns the reason while a served volume's device is to grow: a retry does not hide the last failure.
fn growing(facts: &NodeFacts, to: GrowTo) -> &'static str {
    not_grown(facts, to).map_or(ATTACHED, |failure| failure.reason)
}

/// Returns the reason while the volume is attached: a retry hides neither the last failure nor its remedy.
fn attaching(facts: &NodeFacts) -> &'static str {
    let makes_progress = facts.here.as_ref().is_some_and(|here| here.message.is_some());
    match &facts.last {
        Some(OperationOutcome::Failed(failure)) if !makes_progress => failure.reason,
        Some(_) | None => "Attaching",
    }
}

fn detach(facts: &NodeFacts, reason: &str, now: &Time) -> NodePlan {
    let mut plan = report(facts, reason, now);
    plan.steps.push(NodeStep::Detach);
    plan
}

/// Reports the progress of a detach, at intervals: most end before the next one.
fn report_detach(facts: &NodeFacts, now: &Time) -> NodePlan {
    let said = find_condition(&facts.status.conditions, ATTACHED).map(|said| said.reason.as_str());
    // The report of the lost content needs the cause.
    let reason = if facts.spec.is_memory() && said == Some(UNSERVED) { UNSERVED } else { DETACHING };
    if facts.reported_within(SOON) && said == Some(reason) {
        return NodePlan::of(Vec::new(), SOON);
    }
    report(facts, reason, now)
}

fn plan_absent(facts: &NodeFacts, now: &Time) -> NodePlan {
    let is_wanted = facts.requested() && facts.granted();
    // This claim outlived the device: the host was lost, and only unflushed data with it. The flushed data is
    // on this node's disk only, so it is committed before another node may start. An attach that failed after
    // its record was created reported no epoch; its files are here, and the log shows this node as attached
    // until it detaches. For a volume to be deleted only such a writer must detach: of any other one, the
    // operator knows the epoch, which stays in the status.
    let may_be_attached = facts.status.epoch.is_some() || facts.kept;
    // A memory volume has nothing to commit.
    let left_behind = facts.claimed()
        && !facts.spec.is_memory()
        && facts.granted()
        && may_be_attached
        && !matches!(facts.last, Some(OperationOutcome::Detached | OperationOutcome::Preserve))
        && !facts.is_held_elsewhere()
        && !(facts.is_discardable() && facts.status.epoch.is_some());
    if is_wanted || left_behind {
        let ublk_only = is_wanted && facts.spec.needs_ublk();
        if let Some(OperationOutcome::Failed(failure)) = &facts.last
            && !facts.wait.is_zero()
            // A failure for lack of ublk does not apply to an attach that needs none.
            && (ublk_only || failure.reason != UBLK_NEEDED)
        {
            let mut plan = report(facts, failure.reason, now);
            plan.again = Some(facts.wait);
            return plan;
        }
        let mut claimed = status(facts, attaching(facts), now);
        if facts.spec.is_memory() {
            let epoch = facts.next_epoch(now);
            // Reported first: content of earlier attaches is outdated then, and the next attach gets a higher
            // one.
            claimed.last_epoch = Some(epoch);
            let steps = vec![NodeStep::Claim(Box::new(claimed)), NodeStep::AttachMemory { epoch }];
            return NodePlan::of(steps, SOON);
        }
        let claim = NodeStep::Claim(Box::new(claimed));
        let replaces = facts.status.forced_detach.as_ref().and_then(|forced_detach| forced_detach.epoch);
        // Data that exists on this node only is committed over any transport.
        return NodePlan::of(vec![claim, NodeStep::Attach { grow: is_wanted, replaces, ublk_only }], SOON);
    }
    if facts.claimed() {
        return NodePlan { steps: vec![NodeStep::Report(Box::new(cleared(facts, now)))], again: None };
    }
    if facts.kept && facts.served_elsewhere() && !facts.deleting {
        let steps = if facts.wait.is_zero() { vec![NodeStep::Clear] } else { Vec::new() };
        return NodePlan::of(steps, facts.wait.max(SOON));
    }
    NodePlan::nothing()
}

/// Reports the state of the volume if the status is ours to write, and figures only at intervals.
fn report(facts: &NodeFacts, reason: &str, now: &Time) -> NodePlan {
    let is_moving =
        facts.doing.is_some() || reason != ATTACHED || facts.here.as_ref().is_some_and(conditions::is_near);
    let again = if is_moving { SOON } else { LOOK_EVERY };
    let ours = facts.granted() || (facts.claimed() && !facts.granted_to_another());
    if !ours {
        return NodePlan::of(Vec::new(), again);
    }
    let new = status(facts, reason, now);
    let old = daemons_part(&facts.status);
    if new == old || (facts.reported_within(FIGURES_EVERY) && without_figures(&new) == without_figures(&old))
    {
        return NodePlan::of(Vec::new(), again);
    }
    NodePlan::of(vec![NodeStep::Report(Box::new(new))], again)
}

/// Returns the daemon's part of the status of a volume that is here or being attached.
fn status(facts: &NodeFacts, reason: &str, now: &Time) -> VolumeStatus {
    let here = facts.here.as_ref().filter(|here| misfit(facts, here).is_none());
    let device = here.and_then(|here| here.attached.as_ref());
    // A device about to be detached must not be used: this is reported before the detach starts.
    let serves = device.is_some()
        && here.is_some_and(|here| here.state == VolumeState::Attached)
        && reason != DETACHING;
    let attached = facts.conditions(now).build(
        ATTACHED,
        if serves { ConditionStatus::True } else { ConditionStatus::False },
        reason,
        message(facts, reason),
    );
    let (nothing, is_memory) = (VolumeStatus::default(), facts.spec.is_memory());
    let mine = if facts.claimed() { &facts.status } else { &nothing };
    // Before the volume is on a ring thread, its dirty data is unknown.
    let on_ring = here.filter(|here| here.commit.dirty_bytes.is_some());
    let mut conditions = vec![attached];
    if let Some(here) = here {
        conditions.extend(conditions::of(facts, here, now));
    }
    conditions.extend(content_lost(facts, now));
    VolumeStatus {
        node: Some(facts.me.clone()),
        device_path: device.map(|device| device.device_path.to_string_lossy().into_owned()),
        transport: device.map(|device| transport_name(device.transport).as_str().to_owned()),
        // Kept without a device: this node may hold the only copy of data, and this is the amount.
        epoch: device.map(|device| device.epoch).or_else(|| content_lost::epoch(facts, mine)),
        last_epoch: facts.newest_epoch().max(device.map(|device| device.epoch).filter(|_| is_memory)),
        attached_size_bytes: device.map(|device| device.bytes),
        committed_seq: here.and_then(|here| here.commit.seq),
        dirty_bytes: here.and_then(|here| here.commit.dirty_bytes).or(mine.dirty_bytes),
        oldest_dirty_seconds: here.and_then(|here| here.commit.oldest_dirty).map(|age| age.as_secs()),
        durability: here.and_then(|here| here.durability).map(durability),
        max_dirty_age: here.and_then(|here| here.max_dirty_age).map(|age| TimeSpan(age).to_string()),
        limits: here.and_then(|here| limits::reported(here.delays.limits.limits)),
        durable_through: on_ring.map_or(mine.durable_through.clone(), |here| durable_through(facts, here)),
        conditions,
        ..VolumeStatus::default()
    }
}

/// Converts the durability of a spec to the engine's type.
///
/// # Errors
/// A [`FieldError`] naming a field of the spec with a value of a later release. Such a volume is not
/// attached, and a served one keeps its settings.
pub(crate) fn flush_class(spec: &VolumeSpec) -> Result<Durability, FieldError> {
    spec.check_servable()?;
    Ok(match spec.durability {
        DurabilityMode::Local => Durability::Local,
        // An unknown mode was refused above.
        DurabilityMode::Object | DurabilityMode::Unknown => Durability::Object,
    })
}

fn durability(class: Durability) -> DurabilityMode {
    match class {
        Durability::Local => DurabilityMode::Local,
        Durability::Object => DurabilityMode::Object,
    }
}

/// Returns the time through which data is durable. A time reported under this epoch stays valid, and is not
/// changed while nothing was dirty since.
fn durable_through(facts: &NodeFacts, here: &node::NodeVolumeStatus) -> Option<Time> {
    let epoch = here.attached.as_ref().map(|attached| attached.epoch);
    let reported = &facts.status;
    let before = reported.durable_through.clone().filter(|_| facts.claimed() && reported.epoch == epoch);
    let idle = here.commit.dirty_bytes == Some(0)
        && reported.dirty_bytes == Some(0)
        && reported.committed_seq == here.commit.seq;
    match here.commit.durable_through.and_then(conditions::seconds) {
        Some(now) if !(idle && before.is_some()) => Some(now),
        Some(_) | None => before,
    }
}

fn message(facts: &NodeFacts, reason: &str) -> String {
    if let Some(OperationOutcome::Failed(failure) | OperationOutcome::NotGrown { failure, .. }) = &facts.last
        && failure.reason == reason
    {
        return failure.message.clone();
    }
    let me = &facts.me;
    if reason == NOT_CONFIGURED {
        let why = facts.unconfigured.as_ref().map_or("", |failed| failed.why.as_str());
        return format!(
            "served by node {me} with the settings of status.durability, status.maxDirtyAge and status.limits. \
             Those of the spec are not in effect: {why}. Node {me} tries again"
        );
    }
    if reason == UNSERVED {
        return format!(
            "no device serves the volume on node {me}: an attach failed halfway, or another program stopped or \
             removed its device. Node {me} detaches it, then attaches it again"
        );
    }
    match facts.here.as_ref().and_then(|here| misfit(facts, here)) {
        Some(Misfit::AttachedByUser) => {
            let id = facts.status.volume_id.as_deref().unwrap_or_default();
            return format!(
                "status.volumeId: a user attached a memory volume {id} on node {me}. It stays, and the Volume is \
                 not attached. Run `holdfast-node detach {id}` on that node, which drops the content of that \
                 volume"
            );
        }
        Some(Misfit::Differs { field, attached, asked }) => {
            return format!(
                "{field}: is {asked}, and the volume on node {me} was attached with {attached}. It is not used, and its content \
                 is kept. Write the old value; or write '' into spec.nodeName, which drops the content, and {me} after that"
            );
        }
        Some(Misfit::Other) | None => {}
    }
    // A served volume's waits are temporary, and have conditions of their own.
    let message = facts.here.as_ref().and_then(|here| here.message.clone());
    if let Some(message) = message.filter(|_| reason != ATTACHED) {
        return message;
    }
    match reason {
        "Attached" => format!("served by node {me}"),
        DETACHING if facts.spec.is_memory() => {
            format!("node {me} detaches the volume, which drops its content")
        }
        DETACHING => format!("node {me} writes the final commit"),
        "Fenced" => {
            format!("another writer took the volume from node {me}, which keeps its unuploaded data")
        }
        _ => format!("node {me} attaches the volume"),
    }
}

/// Returns the daemon's part of the status after a detach.
fn cleared(facts: &NodeFacts, now: &Time) -> VolumeStatus {
    let me = &facts.me;
    let message = match &facts.last {
        Some(OperationOutcome::Detached) if facts.spec.is_memory() => {
            format!("node {me} has released the volume")
        }
        Some(OperationOutcome::Detached) => {
            format!("node {me} has written the final commit and released the volume")
        }
        Some(OperationOutcome::Preserve) => {
            format!(
                "another writer took the volume; node {me} keeps its unuploaded data in its state directory"
            )
        }
        Some(
            OperationOutcome::Attached
            | OperationOutcome::NotGrown { .. }
            | OperationOutcome::Cleared
            | OperationOutcome::Failed(_),
        )
        | None => {
            format!("node {me} does not hold the volume")
        }
    };
    let detached = facts.conditions(now).build(ATTACHED, ConditionStatus::False, "Detached", message);
    let is_left =
        facts.is_discardable() && !facts.spec.is_memory() && facts.last != Some(OperationOutcome::Detached);
    let epoch = facts.status.epoch.filter(|_| is_left);
    let conditions = std::iter::once(detached).chain(content_lost(facts, now)).collect();
    VolumeStatus { epoch, last_epoch: facts.newest_epoch(), conditions, ..VolumeStatus::default() }
}

/// Returns the types of the daemon's conditions.
fn own_conditions() -> impl Iterator<Item = &'static str> {
    [ATTACHED].into_iter().chain(SERVING_CONDITIONS).chain([CONTENT_LOST])
}

/// Returns the daemon's part of a status.
pub(crate) fn daemons_part(status: &VolumeStatus) -> VolumeStatus {
    let own = own_conditions().filter_map(|type_| find_condition(&status.conditions, type_));
    let conditions: Vec<Condition> = own.cloned().collect();
    VolumeStatus {
        node: status.node.clone(),
        device_path: status.device_path.clone(),
        transport: status.transport.clone(),
        epoch: status.epoch,
        last_epoch: status.last_epoch,
        attached_size_bytes: status.attached_size_bytes,
        committed_seq: status.committed_seq,
        dirty_bytes: status.dirty_bytes,
        oldest_dirty_seconds: status.oldest_dirty_seconds,
        durability: status.durability,
        max_dirty_age: status.max_dirty_age.clone(),
        limits: status.limits.clone(),
        durable_through: status.durable_through.clone(),
        conditions,
        ..VolumeStatus::default()
    }
}

/// Returns a status without constantly changing figures.
fn without_figures(status: &VolumeStatus) -> VolumeStatus {
    let mut rest = status.clone();
    (rest.committed_seq, rest.dirty_bytes, rest.oldest_dirty_seconds) = (None, None, None);
    rest.durable_through = None;
    for condition in &mut rest.conditions {
        // Messages of other conditions contain figures.
        if condition.type_ != ATTACHED {
            condition.message.clear();
        }
    }
    rest
}

#[cfg(test)]
mod tests;
