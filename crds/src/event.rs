//! Kubernetes events: what tells of a condition that turned.

use kube::runtime::events::{Event, EventType};

use crate::{Condition, find_condition};

/// Longest note the API takes, in bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// The conditions of `after` that are not in `before`, or with another status or reason.
pub fn turned<'a>(before: &'a [Condition], after: &'a [Condition]) -> impl Iterator<Item = &'a Condition> {
    after.iter().filter(|new| {
        find_condition(before, &new.type_)
            .is_none_or(|old| old.status != new.status || old.reason != new.reason)
    })
}

/// The event that tells of a condition as it stands now.
pub fn event(condition: &Condition, type_: EventType) -> Event {
    Event {
        type_,
        reason: condition.reason.clone(),
        note: Some(truncate(&condition.message)),
        action: condition.type_.clone(),
        secondary: None,
    }
}

fn truncate(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_NOTE_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_at_a_character() {
        assert_eq!(truncate("short"), "short");
        assert_eq!(truncate(&"ä".repeat(600)).len(), 1000);
        assert_eq!(truncate(&format!("a{}", "ä".repeat(600))).len(), 999);
    }
}
