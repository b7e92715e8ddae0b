//! Kubernetes events: one for every condition that turned.

use holdfast_crds::{Condition, find_condition};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{self, Event, EventType, Reporter};

use crate::volume::plan::PROVISIONED;

/// Longest note the API takes, in bytes.
const MAX_NOTE_BYTES: usize = 1000;

/// Writes events in the operator's name.
pub(crate) struct Recorder {
    recorder: events::Recorder,
}

impl Recorder {
    /// A recorder for the operator instance called `instance`.
    pub(crate) fn new(client: Client, instance: &str) -> Self {
        let reporter =
            Reporter { controller: "holdfast-operator".to_owned(), instance: Some(instance.to_owned()) };
        Self { recorder: events::Recorder::new(client, reporter) }
    }

    /// Writes one event. An event that cannot be written is only logged: it never stops the work it tells of.
    pub(crate) async fn publish(&self, event: &Event, about: &ObjectReference) {
        if let Err(error) = self.recorder.publish(event, about).await {
            tracing::warn!(%error, reason = event.reason, "event not written");
        }
    }
}

/// The events that tell what turned between two lists of conditions. Waiting is no event.
pub(crate) fn changes(before: &[Condition], after: &[Condition]) -> Vec<Event> {
    after
        .iter()
        .filter(|new| {
            find_condition(before, &new.type_)
                .is_none_or(|old| old.status != new.status || old.reason != new.reason)
        })
        .filter(|new| !(new.status == "False" && QUIET.contains(&new.reason.as_str())))
        .map(|new| Event {
            type_: if new.status == "True" || new.type_ != PROVISIONED && new.reason == "WaitingForDetach" {
                EventType::Normal
            } else {
                EventType::Warning
            },
            reason: new.reason.clone(),
            note: Some(truncate(&new.message)),
            action: new.type_.clone(),
            secondary: None,
        })
        .collect()
}

/// Reasons of conditions that are the ordinary course of things.
const QUIET: [&str; 4] = ["Provisioning", "NotRequested", "NotProvisioned", "ObjectStoreUnprobed"];

fn truncate(text: &str) -> String {
    let end = (0..=text.len().min(MAX_NOTE_BYTES)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    text[..end].to_owned()
}
