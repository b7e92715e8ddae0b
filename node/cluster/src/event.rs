//! Kubernetes events for condition transitions.
//!
//! On failure: an event that cannot be written is only logged; it never stops the work that it reports.

use holdfast_crds::{Condition, find_condition};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{self, Event, EventType, Reporter};

use crate::api::call;

/// Longest note that the API accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// Writes events on behalf of one program.
#[derive(Clone)]
pub struct Recorder(events::Recorder);

impl Recorder {
    /// Creates a recorder for the instance of `program` called `instance`.
    pub fn new(client: Client, program: &str, instance: &str) -> Self {
        let reporter = Reporter { controller: program.to_owned(), instance: Some(instance.to_owned()) };
        Self(events::Recorder::new(client, reporter))
    }

    /// Writes events about one object in order; truncates long notes.
    pub async fn publish(&self, events: impl IntoIterator<Item = Event>, about: &ObjectReference) {
        for mut event in events {
            event.note = event.note.map(truncate);
            if let Err(error) = call(self.0.publish(&event, about)).await {
                tracing::warn!(
                    reason = event.reason,
                    error = holdfast_service::chain(&error),
                    "event not written"
                );
            }
        }
    }
}

/// Returns the conditions of `after` that are new, or whose status or reason changed.
pub fn changed_conditions<'a>(
    before: &'a [Condition],
    after: &'a [Condition],
) -> impl Iterator<Item = &'a Condition> {
    after.iter().filter(|new| {
        find_condition(before, &new.type_)
            .is_none_or(|old| old.status != new.status || old.reason != new.reason)
    })
}

/// Returns the event for the current state of a condition.
pub fn event(condition: &Condition, type_: EventType) -> Event {
    Event {
        type_,
        reason: condition.reason.clone(),
        note: Some(condition.message.clone()),
        action: condition.type_.clone(),
        secondary: None,
    }
}

fn truncate(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_NOTE_BYTES));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        let cut = |text: &str| truncate(text.to_owned());
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"ä".repeat(600)).len(), 1000);
        assert_eq!(cut(&format!("a{}", "ä".repeat(600))).len(), 999);
    }
}
