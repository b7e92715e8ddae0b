//! Adoption of a volume that the object store holds already: `spec.source.existing`.
//!
//! Nothing is written to the store but what takes the volume out of the trash. What another writer did not
//! upload is not decided here: the log lets no node attach a volume that it calls attached elsewhere, until a
//! user names that node in the annotation [`FORCE_DETACH`].

use holdfast_crds::FORCE_DETACH;

use super::facts::{AttachedWriter, ClusterFacts};
use super::found_in_store::LastWriter;

/// Obstacle to the removal of a volume: a writer that was not called lost, maybe of another cluster, still
/// has it attached.
pub(crate) fn still_attached(facts: &ClusterFacts) -> Option<String> {
    let writer = facts.log_writer.as_ref().filter(|writer| !facts.is_cut_off(writer))?;
    let AttachedWriter { node, epoch, data_seq: _ } = writer;
    let again = if facts.force_detach.as_ref() == Some(node) {
        ". Remove that annotation first: it spoke of an earlier epoch"
    } else {
        ""
    };
    Some(format!(
        "spec.deletionPolicy: node {node} has the volume attached, with epoch {epoch}, maybe in another cluster. Its data is not removed before it detaches. Delete the Volume there, or set `Retain` here; if that node is lost, annotate the Volume with {FORCE_DETACH}={node}{again}"
    ))
}

/// Says who wrote the volume last.
pub(crate) fn history(last: Option<&LastWriter>) -> String {
    let Some(LastWriter { node, epoch, since, is_attached }) = last else {
        return "no node has attached it yet".to_owned();
    };
    let since = since.as_ref().map_or_else(String::new, |since| format!(" at {}", since.0));
    let begins = format!("node {node} attached it last{since}, with epoch {epoch}");
    if *is_attached {
        format!(
            "{begins}, and has not detached it: what it did not upload may be missing. If that node is lost, annotate the Volume with {FORCE_DETACH}={node}"
        )
    } else {
        format!("{begins}, and detached it after its last commit")
    }
}
