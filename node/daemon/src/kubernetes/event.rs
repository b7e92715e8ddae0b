//! Kubernetes events about a Volume that is served: one for each time a fault begins, changes or ends.
//!
//! On failure: an event that cannot be written is only logged; the conditions say the same.

use holdfast_cluster::api::call;
use holdfast_crds::{Condition, Volume, event, find_condition, turned};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{self, EventType, Reporter};
use kube::{Client, Resource};

use super::fault;

/// Writes events in the daemon's name.
#[derive(Clone)]
pub(crate) struct Recorder(events::Recorder);

impl Recorder {
    /// A recorder for the daemon of this node.
    pub(crate) fn new(client: Client, node: &str) -> Self {
        let reporter = Reporter { controller: "holdfast-node".to_owned(), instance: Some(node.to_owned()) };
        Self(events::Recorder::new(client, reporter))
    }

    /// Tells what turned in a volume's conditions since they were `before`.
    pub(crate) async fn tell(&self, volume: &Volume, before: &[Condition]) {
        let after = volume.status.as_ref().map_or(&[][..], |status| &status.conditions);
        for change in changes(before, after) {
            self.publish(&change, &volume.object_ref(&())).await;
        }
    }

    /// Writes one event about an object.
    pub(crate) async fn publish(&self, event: &events::Event, about: &ObjectReference) {
        if let Err(error) = call(self.0.publish(event, about)).await {
            tracing::warn!(
                reason = event.reason,
                error = holdfast_service::chain(&error),
                "event not written"
            );
        }
    }
}

/// The events between two lists of conditions. A condition that is fine at first is no event.
fn changes(before: &[Condition], after: &[Condition]) -> Vec<events::Event> {
    let is_told = |new: &&Condition| {
        let is_fine_at_first = new.status == "True" && find_condition(before, &new.type_).is_none();
        fault::ALL.contains(&new.type_.as_str()) && !is_fine_at_first
    };
    turned(before, after)
        .filter(is_told)
        .map(|new| event(new, if new.status == "True" { EventType::Normal } else { EventType::Warning }))
        .collect()
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{ConditionStatus, Time, condition};

    use super::*;
    use crate::kubernetes::fault::WRITABLE;

    #[test]
    fn a_fault_has_events_when_it_begins_changes_and_ends() {
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let one = |status, reason, message: &str| {
            vec![condition(&[], WRITABLE, status, reason, message, Some(1), &now)]
        };
        let fine = one(ConditionStatus::True, "Serving", "writes do not wait");
        let limit = one(ConditionStatus::False, "DirtyLimit", "8192 bytes");
        let full = one(ConditionStatus::False, "CacheFull", "16384 bytes");
        let told = |before: &[Condition], after: &[Condition]| -> Vec<(EventType, String)> {
            changes(before, after).into_iter().map(|event| (event.type_, event.reason)).collect()
        };
        assert_eq!(told(&[], &fine), []);
        assert_eq!(told(&fine, &limit), [(EventType::Warning, "DirtyLimit".to_owned())]);
        let more = one(ConditionStatus::False, "DirtyLimit", "12288 bytes");
        assert_eq!(told(&limit, &more), []);
        assert_eq!(told(&limit, &full), [(EventType::Warning, "CacheFull".to_owned())]);
        assert_eq!(told(&full, &fine), [(EventType::Normal, "Serving".to_owned())]);
        assert_eq!(told(&full, &[]), []);
        // Each of the conditions is told of.
        for type_ in fault::ALL {
            let one = |status, reason| vec![condition(&[], type_, status, reason, "", Some(1), &now)];
            let [fine, bad] = [one(ConditionStatus::True, "Fine"), one(ConditionStatus::False, "Bad")];
            assert_eq!(told(&fine, &bad), [(EventType::Warning, "Bad".to_owned())], "{type_}");
        }
    }
}
