//! Condition of a memory Volume: content that it had is lost.
//!
//! Owns: reasons and message. The condition is written with the claim, before a new device is made, so that
//! no program finds an empty device of which nothing was said. It stays for the life of the Volume and names
//! the last loss. A Volume whose content was never lost does not have it.

use holdfast_crds::{
    ATTACHED, CONTENT_DROPPED, CONTENT_LOST, Condition, ConditionStatus, Time, VolumeStatus, find_condition,
};

use super::conditions::DETACHING;
use super::facts::NodeFacts;
use super::operations::OperationOutcome;

/// Reason: the node that had it does not have it any more.
const NODE_RESTARTED: &str = "NodeRestarted";
/// Reason: another node had it, and was cut off.
const NODE_LOST: &str = "NodeLost";

/// The condition; none of a volume with an object store, or whose content was never lost.
pub(super) fn content_lost(facts: &NodeFacts, now: &Time) -> Option<Condition> {
    if !facts.spec.is_memory() {
        return None;
    }
    // A node that reported an epoch had a device that could be written. Where that is another one, what is
    // here is older.
    let is_gone = |node: &&str| facts.here.is_none() || *node != facts.me;
    let had = facts.status.epoch.and(facts.status.node.as_deref()).filter(is_gone);
    let Some(node) = had else {
        return find_condition(&facts.status.conditions, CONTENT_LOST).cloned();
    };
    let at = &now.0;
    let (reason, message) = if node == facts.me && was_detached(facts) {
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

/// True if this node was asked to detach what it had. A daemon that was restarted meanwhile finds in the
/// status that one before it began to.
fn was_detached(facts: &NodeFacts) -> bool {
    let attached = find_condition(&facts.status.conditions, ATTACHED);
    facts.last == Some(OperationOutcome::Detached)
        || attached.is_some_and(|attached| attached.reason == DETACHING)
}

/// The epoch to report of a memory volume: none once the loss of its content is reported.
pub(super) fn epoch(facts: &NodeFacts, mine: &VolumeStatus) -> Option<u64> {
    mine.epoch.filter(|_| !facts.spec.is_memory() || facts.here.is_some())
}
