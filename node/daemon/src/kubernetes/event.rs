//! Kubernetes events about a served Volume: one each time a fault begins, changes or ends.

use holdfast_cluster::event::{changed_conditions, event};
use holdfast_crds::{
    ATTACHED, CONTENT_DROPPED, CONTENT_LOST, Condition, SERVING_CONDITIONS, find_condition,
    is_true_with_fault,
};
use kube::runtime::events::{Event, EventType};

/// Returns the events between two lists of conditions. An initially healthy condition is no event.
pub(crate) fn changes(before: &[Condition], after: &[Condition]) -> Vec<Event> {
    let is_fine = |condition: &Condition| condition.status == "True" && !is_true_with_fault(condition);
    let is_reported = |new: &&Condition| {
        let old = find_condition(before, &new.type_);
        // The operator and the CSI driver report a volume that is not attached.
        let of_attached = new.type_ == ATTACHED
            && (is_true_with_fault(new) || (is_fine(new) && old.is_some_and(is_true_with_fault)));
        let of_serving = SERVING_CONDITIONS.contains(&new.type_.as_str()) && !(is_fine(new) && old.is_none());
        of_attached || of_serving
    };
    let faults = changed_conditions(before, after)
        .filter(is_reported)
        .map(|new| event(new, if is_fine(new) { EventType::Normal } else { EventType::Warning }));
    faults.chain(content_lost(before, after)).collect()
}

/// Returns the event for a loss of content; a requested loss is not a fault.
fn content_lost(before: &[Condition], after: &[Condition]) -> Option<Event> {
    let new = find_condition(after, CONTENT_LOST)?;
    let is_said = find_condition(before, CONTENT_LOST).is_some_and(|old| old.message == new.message);
    let type_ = if new.reason == CONTENT_DROPPED { EventType::Normal } else { EventType::Warning };
    (!is_said).then(|| event(new, type_))
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{
        ANSWERING, CHANGE_REFUSED, ConditionBuilder, ConditionStatus, DELETES_REFUSED, GROWTH_WAITS,
        NOT_CONFIGURED, STORE_REACHABLE, Time, WRITABLE,
    };

    use super::*;

    #[test]
    fn a_fault_has_events_when_it_begins_changes_and_ends() {
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let one = |status, reason, message: &str| {
            vec![
                ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now }
                    .build(WRITABLE, status, reason, message),
            ]
        };
        let fine = one(ConditionStatus::True, "Serving", "writes do not wait");
        let limit = one(ConditionStatus::False, "DirtyLimit", "8192 bytes");
        let full = one(ConditionStatus::False, "CacheFull", "16384 bytes");
        let events = |before: &[Condition], after: &[Condition]| -> Vec<(EventType, String)> {
            changes(before, after).into_iter().map(|event| (event.type_, event.reason)).collect()
        };
        assert_eq!(events(&[], &fine), []);
        assert_eq!(events(&fine, &limit), [(EventType::Warning, "DirtyLimit".to_owned())]);
        let more = one(ConditionStatus::False, "DirtyLimit", "12288 bytes");
        assert_eq!(events(&limit, &more), []);
        assert_eq!(events(&limit, &full), [(EventType::Warning, "CacheFull".to_owned())]);
        assert_eq!(events(&full, &fine), [(EventType::Normal, "Serving".to_owned())]);
        assert_eq!(events(&full, &[]), []);
        // Each of these conditions has events.
        for type_ in SERVING_CONDITIONS {
            let one = |status, reason| {
                vec![
                    ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now }
                        .build(type_, status, reason, ""),
                ]
            };
            let [fine, bad] = [one(ConditionStatus::True, "Fine"), one(ConditionStatus::False, "Bad")];
            assert_eq!(events(&fine, &bad), [(EventType::Warning, "Bad".to_owned())], "{type_}");
        }
    }

    /// Regression, found in review: a refused change of a store was no Warning, as its condition is True.
    #[test]
    fn a_fault_of_a_true_condition_is_a_warning() {
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let one = |type_, reason| {
            let builder = ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now };
            vec![builder.build(type_, ConditionStatus::True, reason, "")]
        };
        let types = |before: &[Condition], after: &[Condition]| -> Vec<EventType> {
            changes(before, after).into_iter().map(|event| event.type_).collect()
        };
        for (type_, fine, fault) in [
            (STORE_REACHABLE, ANSWERING, CHANGE_REFUSED),
            (STORE_REACHABLE, ANSWERING, DELETES_REFUSED),
            (ATTACHED, ATTACHED, NOT_CONFIGURED),
            (ATTACHED, ATTACHED, GROWTH_WAITS),
        ] {
            let [fine, bad] = [one(type_, fine), one(type_, fault)];
            assert_eq!(types(&[], &bad), [EventType::Warning], "{type_} {fault}");
            assert_eq!(types(&fine, &bad), [EventType::Warning], "{type_} {fault}");
            assert_eq!(types(&bad, &bad), [], "{type_} {fault}");
            assert_eq!(types(&bad, &fine), [EventType::Normal], "{type_} {fault}");
            assert_eq!(types(&[], &fine), [], "{type_} {fault}");
        }
    }

    /// Regression: the second restart of a host sent no event, because status and reason were unchanged.
    #[test]
    fn each_loss_of_content_is_an_event() {
        let now = Time("2026-01-01T00:00:00Z".parse().unwrap());
        let lost = |reason, message: &str| {
            let builder = ConditionBuilder { previous: &[], observed_generation: Some(1), now: &now };
            vec![builder.build(CONTENT_LOST, ConditionStatus::True, reason, message)]
        };
        let [first, second] = ["at 1", "at 2"].map(|message| lost("NodeRestarted", message));
        let types = |before: &[Condition], after: &[Condition]| -> Vec<EventType> {
            changes(before, after).into_iter().map(|event| event.type_).collect()
        };
        assert_eq!(types(&[], &first), [EventType::Warning]);
        assert_eq!(types(&first, &first), []);
        assert_eq!(types(&first, &second), [EventType::Warning]);
        assert_eq!(types(&second, &lost(CONTENT_DROPPED, "at 3")), [EventType::Normal]);
    }
}
