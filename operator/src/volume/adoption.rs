//! Adoption of a volume that already exists in the object store: `spec.source.existing`.
//!
//! Adoption writes nothing to the store, except to take the volume out of the trash. It does not decide about
//! another writer's unuploaded data: the log rejects every attach while it shows the volume as attached
//! elsewhere, until a user names that node in the annotation [`FORCE_DETACH`].

use holdfast_crds::FORCE_DETACH;

use super::facts::{AttachedWriter, ClusterFacts};
use super::found_in_store::LastWriter;

/// Returns the obstacle to the removal of a volume: a writer, possibly in another cluster, that still has it
/// attached and was not declared lost.
pub(crate) fn still_attached(facts: &ClusterFacts) -> Option<String> {
    let writer = facts.log_writer.as_ref().filter(|writer| !facts.is_cut_off(writer))?;
    let AttachedWriter { node, epoch, data_seq: _ } = writer;
    let again = if facts.force_detach.as_ref() == Some(node) {
        ". Remove that annotation first: it referred to an earlier epoch"
    } else {
        ""
    };
    Some(format!(
        "spec.deletionPolicy: node {node} has the volume attached, with epoch {epoch}, possibly in another \
         cluster. The data is not removed before that node detaches it. Delete the Volume there, or set `Retain` \
         here; if that node is lost, annotate the Volume with {FORCE_DETACH}={node}{again}"
    ))
}

/// Describes the last writer of the volume.
pub(crate) fn history(last: Option<&LastWriter>) -> String {
    let Some(LastWriter { node, epoch, since, is_attached }) = last else {
        return "no node has attached it yet".to_owned();
    };
    let since = since.as_ref().map_or_else(String::new, |since| format!(" at {}", since.0));
    let begins = format!("node {node} attached it last{since}, with epoch {epoch}");
    if *is_attached {
        format!(
            "{begins}, and has not detached it: data that it did not upload may be missing. If that node is \
             lost, annotate the Volume with {FORCE_DETACH}={node}"
        )
    } else {
        format!("{begins}, and detached it after its last commit")
    }
}
