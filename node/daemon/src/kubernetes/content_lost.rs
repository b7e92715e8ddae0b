//! Condition of a memory Volume: its earlier content is lost.
//!
//! Owns: reasons and message. The condition is written with the claim, before a new device is created, so
//! that no program finds an empty device without a report. It stays for the life of the Volume and names the
//! last loss. A Volume that never lost content does not have it.

use holdfast_crds::{
    ATTACHED, CONTENT_DROPPED, CONTENT_LOST, Condition, ConditionStatus, Time, VolumeStatus, find_condition,
};

use super::conditions::{DETACHING, UNSERVED};
use super::facts::NodeFacts;
use super::operations::OperationOutcome;

/// Reason: the node no longer has the content.
const NODE_RESTARTED: &str = "NodeRestarted";
/// Reason: another program stopped or removed the device.
const DEVICE_REMOVED: &str = "DeviceRemoved";
/// Reason: another node had the content, and was cut off.
const NODE_LOST: &str = "NodeLost";

/// Returns the condition; `None` for a volume with an object store, or whose content was never lost.
pub(super) fn content_lost(facts: &NodeFacts, now: &Time) -> Option<Condition> {
    if !facts.spec.is_memory() {
        return None;
    }
    // A node that reported an epoch had a writable device. If that is another node, the content here is
    // older.
    let is_gone = |node: &&str| facts.here.is_none() || *node != facts.me;
    let had = facts.status.epoch.and(facts.status.node.as_deref()).filter(is_gone);
    let Some(node) = had else {
        return find_condition(&facts.status.conditions, CONTENT_LOST).cloned();
    };
    let at = &now.0;
    let (reason, message) = if node == facts.me && was_removed(facts) {
        let message = "another program stopped or removed the device of the volume on node";
        (DEVICE_REMOVED, format!("{message} {node}, and its content was lost with it. Found at {at}"))
    } else if node == facts.me && was_detached(facts) {
        (CONTENT_DROPPED, format!("node {node} detached the volume and dropped its content, at {at}"))
    } else if node == facts.me {
        let why = "the host restarted, or its run directory was cleared";
        (NODE_RESTARTED, format!("node {node} lost the content of the volume: {why}. Found at {at}"))
    } else {
        (NODE_LOST, format!("node {node} had the content of the volume, and was cut off. Found at {at}"))
    };
    let message = format!("{message}. The next device is empty");
    Some(facts.conditions(now).build(CONTENT_LOST, ConditionStatus::True, reason, message))
}

/// Returns true if this node detached only the remains of the volume: its device was gone. This is reported
/// before the detach, and until the loss is, also by a restarted daemon.
fn was_removed(facts: &NodeFacts) -> bool {
    let attached = find_condition(&facts.status.conditions, ATTACHED);
    attached.is_some_and(|attached| attached.reason == UNSERVED)
}

/// Returns true if this node was asked to detach the volume. After a restart, the status shows that the
/// daemon's predecessor had started to.
fn was_detached(facts: &NodeFacts) -> bool {
    let attached = find_condition(&facts.status.conditions, ATTACHED);
    facts.last == Some(OperationOutcome::Detached)
        || attached.is_some_and(|attached| attached.reason == DETACHING)
}

/// Returns the epoch to report for a memory volume: `None` once the loss of its content is reported.
pub(super) fn epoch(facts: &NodeFacts, mine: &VolumeStatus) -> Option<u64> {
    mine.epoch.filter(|_| !facts.spec.is_memory() || facts.here.is_some())
}
