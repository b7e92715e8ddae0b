//! The publish context of a volume on a node, passed from the Controller service to the Node service.

use std::collections::HashMap;

use tonic::Status;

const VOLUME_ID: &str = "volumeID";
const EPOCH: &str = "epoch";
const TRACEPARENT: &str = "traceparent";

/// A publication of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishContext {
    /// The volume's identity in the object store, which the node daemon uses.
    pub(crate) volume_id: String,
    /// Minimum fencing number of the writer on that node.
    pub(crate) epoch: u64,
    /// The trace of the publication (`holdfast_service::trace`).
    pub(crate) trace: Option<String>,
}

impl PublishContext {
    /// Makes the current span, in which no work was done yet, part of the publication's trace.
    pub(crate) fn continue_trace(&self) {
        if let Some(trace) = &self.trace {
            holdfast_service::trace::continue_in(&tracing::Span::current(), trace);
        }
    }
}

/// Converts the context to CSI's format.
pub(crate) fn write(context: &PublishContext) -> HashMap<String, String> {
    let PublishContext { volume_id, epoch, trace } = context;
    let trace = trace.iter().map(|trace| (TRACEPARENT.to_owned(), trace.clone()));
    [(VOLUME_ID.to_owned(), volume_id.clone()), (EPOCH.to_owned(), epoch.to_string())]
        .into_iter()
        .chain(trace)
        .collect()
}

/// Parses the context from CSI's format.
///
/// # Errors
/// `INVALID_ARGUMENT`: the volume was not published by this driver.
pub(crate) fn read(words: &HashMap<String, String>) -> Result<PublishContext, Status> {
    let missing = |key: &str| {
        Status::invalid_argument(format!(
            "publish_context.{key}: is missing or unusable; pass on the context that ControllerPublishVolume returned"
        ))
    };
    Ok(PublishContext {
        volume_id: words
            .get(VOLUME_ID)
            .filter(|id| !id.is_empty())
            .cloned()
            .ok_or_else(|| missing(VOLUME_ID))?,
        epoch: words.get(EPOCH).and_then(|epoch| epoch.parse().ok()).ok_or_else(|| missing(EPOCH))?,
        trace: words.get(TRACEPARENT).cloned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_read_as_it_was_written() {
        for trace in [None, Some("00-1-2-01".to_owned())] {
            let context = PublishContext { volume_id: "id".to_owned(), epoch: 7, trace };
            assert_eq!(read(&write(&context)).ok(), Some(context));
        }
        assert!(read(&HashMap::new()).is_err());
        let bad = [(VOLUME_ID.to_owned(), "id".to_owned()), (EPOCH.to_owned(), "x".to_owned())];
        assert!(read(&HashMap::from(bad)).is_err());
    }
}
