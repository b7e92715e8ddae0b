//! Takes a volume from a lost node, and reports the data that is missing because of it.
//!
//! The trigger is the node's state (`failover.rs`) or a user, who sets the annotation [`FORCE_DETACH`] with
//! the node's name on the Volume. The annotation counts once: `status.forcedDetach` remembers the node until
//! the annotation is removed and another attach has followed. An old annotation thus never takes the volume
//! from a node that got it back later, and a permission is not lost before its use. The node may also be the
//! desired one: it has lost its disk, and attaches the volume without that data. `status.forcedDetach.epoch`
//! permits the next attach to replace the writer of that epoch and no other. The log decides (invariant 19 in
//! `docs/invariants.md`): the status may be stale.

use holdfast_crds::{
    ACKNOWLEDGE_LOSS, Condition, ConditionStatus, DATA_LOST, DetachCause, DurabilityMode, FORCE_DETACH,
    ForcedDetach, OlderLosses, Time,
};

use super::facts::{AttachedWriter, ClusterFacts};

/// Number of losses listed individually in a status, besides the newest. Older ones are summed up, which
/// bounds the status of a volume that moves from node to node for months without acknowledgements.
pub(super) const MAX_EARLIER: usize = 8;

impl ClusterFacts {
    /// Returns true if the node that reports serving the volume must release it unconditionally.
    pub(super) fn is_force_detached(&self, serving: &str) -> bool {
        let remembered =
            self.status.forced_detach.as_ref().filter(|forced_detach| forced_detach.node == serving);
        let is_again = match remembered {
            None => false,
            // The same node attaches without its lost state, and then reports another epoch.
            Some(forced_detach) if self.desired() == Some(serving) => {
                forced_detach.epoch.is_none() || forced_detach.epoch != self.status.epoch
            }
            // A moved grant stays moved until the next node claims the volume. Back with the same node, it
            // counts only once that has attached the volume again.
            Some(forced_detach) => {
                let has_attached = forced_detach.epoch.is_none() || forced_detach.epoch != self.status.epoch;
                self.assigned() == Some(serving) && has_attached
            }
        };
        if self.lost.is_some() {
            return true;
        }
        let is_named = self.force_detach.as_deref() == Some(serving);
        (is_named || (remembered.is_some() && self.unused_permission().is_some())) && !is_again
    }

    /// Returns the epoch in the log for a node, which may have attached without ever reporting it.
    fn logged_epoch(&self, node: &str) -> Option<u64> {
        self.log_writer.as_ref().filter(|writer| writer.node == node).map(|writer| writer.epoch)
    }

    /// Returns the record to keep without an annotation: of an unused permission, or of a loss that no user
    /// has acknowledged yet. It is dropped if the node released the volume after all.
    fn kept_record(&self) -> Option<&ForcedDetach> {
        if let Some(unused) = self.unused_permission() {
            return Some(unused);
        }
        // A memory volume needs no acknowledgement: the condition `ContentLost` stays.
        if self.spec.is_memory() {
            return None;
        }
        // The release by a later writer is no evidence about the unuploaded data of the force-detached node.
        let is_back = |record: &ForcedDetach| {
            let released = self.released_epoch.filter(|_| self.may_be_back());
            released.is_some_and(|epoch| record.epoch.is_some_and(|cut_off| epoch <= cut_off))
        };
        self.status.forced_detach.as_ref().filter(|record| {
            record.cause != DetachCause::Annotation && !is_back(record) && !self.is_acknowledged(record)
        })
    }

    /// Returns the record of a force-detached node, unless its annotation was removed.
    pub(super) fn counted_record(&self) -> Option<&ForcedDetach> {
        let is_named = |record: &ForcedDetach| self.force_detach.as_ref() == Some(&record.node);
        let record = self.status.forced_detach.as_ref();
        record.filter(|record| record.cause != DetachCause::Annotation || is_named(record))
    }

    /// Returns true if this writer, attached according to the log, was force-detached by a user or by its
    /// node's state. A node of another cluster may have the same name: a later epoch is a different writer.
    pub(super) fn is_cut_off(&self, writer: &AttachedWriter) -> bool {
        let is_meant = |node: Option<&str>, until: Option<u64>| {
            node == Some(&*writer.node) && until.is_none_or(|until| writer.epoch <= until)
        };
        let record = self.counted_record();
        let is_recorded = record.is_some_and(|record| is_meant(Some(&record.node), record.epoch));
        // A node that still claims the volume was force-detached: otherwise the plan waits for its detach.
        let is_claimant = is_meant(self.status.node.as_deref(), self.status.epoch);
        let was_counted = record.is_some_and(|record| {
            record.cause == DetachCause::Annotation && record.node == writer.node && record.epoch.is_some()
        });
        // A node that released its claim for the deletion leaves its epoch behind. It did not detach in the
        // log: its unuploaded data is deleted with the volume.
        let is_left = self.deleting
            && self.serving().is_none()
            && self.status.epoch.is_some_and(|until| writer.epoch <= until);
        is_recorded
            || is_claimant
            || is_left
            || (!was_counted && is_meant(self.force_detach.as_deref(), None))
    }

    /// Returns true if the force-detached node may have released the volume since: neither it nor another
    /// node claims it.
    pub(super) fn may_be_back(&self) -> bool {
        let claims = self.status.node.as_deref().is_some_and(|node| !node.is_empty());
        let record = self.status.forced_detach.as_ref();
        !claims && record.is_some_and(|record| record.cause != DetachCause::Annotation)
    }

    /// Returns true if a user has acknowledged the loss on that node.
    pub(super) fn is_acknowledged(&self, record: &ForcedDetach) -> bool {
        self.acknowledged.is_some_and(|epoch| record.epoch.is_none_or(|cut_off| cut_off == epoch))
    }

    /// Returns the force-detach that no attach has followed yet, while any node claims the volume.
    fn unused_permission(&self) -> Option<&ForcedDetach> {
        let claimant = self.status.node.as_deref().filter(|node| !node.is_empty())?;
        self.status.forced_detach.as_ref().filter(|remembered| match (self.status.epoch, remembered.epoch) {
            (Some(now), Some(cut_off)) => now <= cut_off,
            (None, Some(_)) => true,
            (_, None) => claimant == remembered.node,
        })
    }
}

/// Returns the record of the force-detached node: its last report at that moment. Its epoch is taken from the
/// log if the log still shows that node as attached.
pub(super) fn forced_detach(facts: &ClusterFacts, now: &Time) -> Option<ForcedDetach> {
    let status = &facts.status;
    if let (Some(cause), Some(lost)) = (facts.lost, status.node.as_deref()) {
        return Some(last_report(facts, lost, cause, now));
    }
    let Some(named) = facts.force_detach.as_deref() else { return facts.kept_record().cloned() };
    let remembered = status.forced_detach.as_ref().filter(|forced_detach| forced_detach.node == named);
    if let Some(remembered) = remembered {
        // An older annotation does not affect a node that has got the volume back since.
        let since = facts.logged_epoch(named).filter(|_| facts.desired() != Some(named));
        return Some(ForcedDetach { epoch: remembered.epoch.or(since), ..remembered.clone() });
    }
    if status.node.as_deref().is_some_and(|node| facts.is_force_detached(node)) {
        return Some(last_report(facts, named, DetachCause::Annotation, now));
    }
    // Another node claims the volume, and the log still names this one.
    facts.logged_epoch(named).map(|_| unreported(facts, named, DetachCause::Annotation, now))
}

/// Losses before the newest one that no user has acknowledged.
#[derive(Debug, Default, PartialEq)]
pub(super) struct EarlierLosses {
    /// The latest of them, oldest first.
    pub(super) named: Vec<ForcedDetach>,
    /// The sum of those before.
    pub(super) older: Option<OlderLosses>,
}

/// Returns the unacknowledged losses before `newest`: a node may be force-detached while an earlier loss is
/// still unacknowledged.
pub(super) fn earlier_losses(facts: &ClusterFacts, newest: Option<&ForcedDetach>) -> EarlierLosses {
    let is_same = |old: &ForcedDetach, new: &ForcedDetach| (&old.node, &old.time) == (&new.node, &new.time);
    let replaced = facts
        .status
        .forced_detach
        .iter()
        .filter(|old| newest.is_some_and(|new| !is_same(old, new)) && !facts.is_acknowledged(old));
    // Epochs grow: acknowledging a loss acknowledges all before it, which its message lists.
    let is_read = |epoch: Option<u64>| facts.acknowledged.is_some_and(|read| epoch <= Some(read));
    let unread = facts.status.earlier_losses.iter().chain(replaced).filter(|loss| !is_read(loss.epoch));
    let mut named: Vec<ForcedDetach> = unread.cloned().collect();
    let mut older = facts.status.older_losses.clone().filter(|older| !is_read(older.epoch));
    for loss in named.drain(..named.len().saturating_sub(MAX_EARLIER)) {
        older = Some(add(older, &loss));
    }
    EarlierLosses { named, older }
}

/// Adds a loss, later than all before, to the sum.
fn add(sum: Option<OlderLosses>, loss: &ForcedDetach) -> OlderLosses {
    let begun = sum.is_none();
    let sum = sum.unwrap_or_else(|| OlderLosses {
        count: 0,
        not_reported: 0,
        dirty_bytes: 0,
        first_time: loss.time.clone(),
        last_time: loss.time.clone(),
        durable_through: None,
        epoch: None,
    });
    let through = if begun { &loss.durable_through } else { &sum.durable_through };
    // If one loss lacks a time, the sum has none.
    let earliest = through.as_ref().zip(loss.durable_through.as_ref());
    OlderLosses {
        count: sum.count.saturating_add(1),
        not_reported: sum.not_reported.saturating_add(u32::from(loss.dirty_bytes.is_none())),
        dirty_bytes: sum.dirty_bytes.saturating_add(loss.dirty_bytes.unwrap_or_default()),
        last_time: loss.time.clone(),
        durable_through: earliest.map(|(one, other)| if other.0 < one.0 { other } else { one }.clone()),
        epoch: sum.epoch.max(loss.epoch),
        first_time: sum.first_time,
    }
}

fn last_report(facts: &ClusterFacts, node: &str, cause: DetachCause, now: &Time) -> ForcedDetach {
    let status = &facts.status;
    let unreported = unreported(facts, node, cause, now);
    // The figures are up to a minute old, and may predate a commit.
    let in_log = facts.log_writer.as_ref().filter(|writer| writer.node == node);
    let remembered = status.forced_detach.as_ref().filter(|record| record.node == node);
    let is_last_commit_reported = match in_log {
        Some(writer) => status.committed_seq.is_some_and(|seq| seq >= writer.data_seq),
        None => remembered.is_some_and(|record| record.is_last_commit_reported),
    };
    ForcedDetach {
        is_last_commit_reported,
        // A node may be force-detached from an attach of a memory volume that it never reported.
        epoch: unreported.epoch.or(status.epoch).or(status.last_epoch),
        durability: status.durability,
        dirty_bytes: status.dirty_bytes,
        durable_through: status.durable_through.clone(),
        ..unreported
    }
}

fn unreported(facts: &ClusterFacts, node: &str, cause: DetachCause, now: &Time) -> ForcedDetach {
    ForcedDetach {
        node: node.to_owned(),
        cause,
        time: now.clone(),
        epoch: facts.logged_epoch(node),
        durability: None,
        is_last_commit_reported: false,
        dirty_bytes: None,
        durable_through: None,
    }
}

/// Describes the data missing because of these losses, newest last, and of the summed-up losses; returns
/// `None` without any.
pub(super) fn data_lost(
    facts: &ClusterFacts,
    losses: &[&ForcedDetach],
    older: Option<&OlderLosses>,
    now: &Time,
) -> Option<Condition> {
    let Some((newest, earlier)) = losses.split_last() else {
        // No data of the newest force-detach is missing after all.
        let message = summed(older?);
        return Some(facts.conditions(now).build(
            DATA_LOST,
            ConditionStatus::Unknown,
            "OlderLosses",
            message,
        ));
    };
    let ForcedDetach { node, cause, epoch, .. } = newest;
    let begins = cut_off(newest);
    let read = match cause {
        DetachCause::Annotation => format!("Remove the annotation {FORCE_DETACH} when you have read this"),
        DetachCause::OutOfService
        | DetachCause::NodeDeleted
        | DetachCause::NodeNotReady
        | DetachCause::Unknown => {
            let epoch = epoch.unwrap_or_default();
            format!("When you have read this, annotate the Volume with {ACKNOWLEDGE_LOSS}={epoch}")
        }
    };
    let kept = format!(
        "node {node} keeps the missing data: run `holdfast-node fenced list` there, once it is back. {read}"
    );
    let (status, reason, what) = missing(newest);
    let mut message = format!("{begins}: {what}; {kept}");
    for loss in earlier.iter().rev() {
        let epoch = loss.epoch.unwrap_or_default();
        message.push_str(&format!(
            ". Before that, {}, which is not acknowledged either ({ACKNOWLEDGE_LOSS}={epoch}): its writes {} may \
             be missing",
            cut_off(loss),
            after(loss)
        ));
    }
    if let Some(older) = older {
        message.push_str(". Before that, ");
        message.push_str(&summed(older));
    }
    Some(facts.conditions(now).build(DATA_LOST, status, reason, message))
}

/// Describes the data missing because of one loss, with the status and the reason of the condition.
fn missing(loss: &ForcedDetach) -> (ConditionStatus, &'static str, String) {
    let ForcedDetach { durability, is_last_commit_reported, dirty_bytes, .. } = loss;
    let after = after(loss);
    let flushed = match durability {
        // Its settings may have changed since the flush or the report.
        Some(DurabilityMode::Object) => "; data flushed with durability object is not affected",
        Some(DurabilityMode::Local | DurabilityMode::Unknown) | None => "",
    };
    match dirty_bytes {
        None => (
            ConditionStatus::Unknown,
            "NotReported",
            "it had not reported the amount of its unuploaded data".to_owned(),
        ),
        Some(0) => (
            ConditionStatus::Unknown,
            "NothingReported",
            format!("it had reported no unuploaded data; its writes {after} may be missing{flushed}"),
        ),
        Some(bytes) if !is_last_commit_reported => (
            ConditionStatus::Unknown,
            "MayBeCommitted",
            format!(
                "it may have committed after its last report, of {bytes} unuploaded bytes; its writes {after} \
                 may be missing{flushed}"
            ),
        ),
        Some(bytes) => (
            ConditionStatus::True,
            "ForceDetached",
            format!("its writes {after} are missing, at least {bytes} bytes by its last report{flushed}"),
        ),
    }
}

/// Describes losses that are only known as a sum.
fn summed(older: &OlderLosses) -> String {
    let OlderLosses { count, not_reported, dirty_bytes, first_time, last_time, durable_through, epoch } =
        older;
    let (from, to) = (first_time.0, last_time.0);
    let unknown = match not_reported {
        0 => String::new(),
        nodes => format!(" ({nodes} had not reported their number)"),
    };
    let after = durable_through
        .as_ref()
        .map_or_else(String::new, |through| format!(", of the writes after {}", through.0));
    let epoch = epoch.unwrap_or_default();
    format!(
        "nodes were cut off {count} more times from {from} to {to}, which is not acknowledged either \
         ({ACKNOWLEDGE_LOSS}={epoch}): {dirty_bytes} bytes may be missing{unknown}{after}"
    )
}

fn cut_off(loss: &ForcedDetach) -> String {
    format!("node {} was cut off at {}{}", loss.node, loss.time.0, sign(loss.cause))
}

/// Describes the writes that may be missing.
fn after(loss: &ForcedDetach) -> String {
    let through = loss.durable_through.as_ref();
    through.map_or_else(|| "since its last commit".to_owned(), |through| format!("after {}", through.0))
}

/// Describes the sign that the node was lost.
fn sign(cause: DetachCause) -> &'static str {
    match cause {
        DetachCause::Annotation | DetachCause::Unknown => "",
        DetachCause::OutOfService => " (its Node is out of service)",
        DetachCause::NodeDeleted => " (its Node was deleted, and its daemon is silent)",
        DetachCause::NodeNotReady => " (its Node is not Ready, and its daemon is silent)",
    }
}
