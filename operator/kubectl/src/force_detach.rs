//! `kubectl holdfast force-detach`: sets the annotation after showing the cost.

use anyhow::{Context, bail};
use holdfast_crds::{ByteSize, FORCE_DETACH, READY, Volume, VolumeStatus, is_true};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::cluster::{ClusterClients, ClusterObjects, claim_of, reason};
use crate::problem;

/// Describes the data that will be missing after a force-detach of `volume` from `node`.
///
/// # Errors
/// The node does not serve the volume, or is Ready and can thus release it cleanly; or the annotation names
/// it since an earlier loss.
pub(crate) fn check(
    volume: &Volume,
    seen: &ClusterObjects,
    node: &str,
    although_ready: bool,
) -> anyhow::Result<String> {
    let (title, status) = (problem::title(volume), volume.status.clone().unwrap_or_default());
    let serving = status.node.as_deref().filter(|node| !node.is_empty());
    let assigned = status.assigned_node.as_deref().filter(|node| !node.is_empty());
    let is_in_log_only = ![serving, assigned].contains(&Some(node));
    if is_in_log_only && !is_named_by_log(&status, node) {
        match serving.or(assigned) {
            Some(other) => bail!("{title} is not served by node {node}, but by node {other}"),
            None => {
                bail!("{title} is not served, and none of its conditions says that the log names node {node}")
            }
        }
    }
    let found = seen.nodes.iter().find(|found| found.name_any() == node);
    let is_ready = found
        .and_then(|found| found.status.as_ref())
        .is_some_and(|status| is_true(&status.conditions, READY));
    if is_ready && !although_ready {
        bail!(release_first(volume, node, is_in_log_only));
    }
    let may_have_it_again = [assigned, volume.spec.desired_node()].contains(&Some(node)) || is_in_log_only;
    if may_have_it_again && let Some(counted) = counted_annotation(volume, &status, node) {
        bail!(counted);
    }
    if volume.spec.is_memory() {
        return Ok(format!(
            "{title} will be taken from node {node}. Its content is lost: it is only in the memory of that node.\n\
             Its condition ContentLost says more after the next attach.\n"
        ));
    }
    let dirty = match (serving == Some(node), status.dirty_bytes) {
        (true, Some(bytes)) => format!("{}B when it last reported", ByteSize(bytes)),
        _ => "it never reported how much".to_owned(),
    };
    let through = status.durable_through.filter(|_| !is_in_log_only).map_or_else(String::new, |time| {
        format!(" All data written before {} is in the object store.", time.0)
    });
    Ok(format!(
        "{title} will be taken from node {node}. Data that the node did not upload will be missing: \
         {dirty}.{through}\n\
         Its condition UnuploadedDataLost says more afterwards.\n"
    ))
}

/// Explains that the annotation already names `node` and has counted for another attach than the current one.
/// The operator then ignores it (`operator/src/volume/forced_detach.rs`).
fn counted_annotation(volume: &Volume, status: &VolumeStatus, node: &str) -> Option<String> {
    let named = volume.annotations().get(FORCE_DETACH);
    let record = status.forced_detach.as_ref().filter(|record| record.node == node);
    let epoch = record.filter(|_| named.is_some_and(|named| named == node))?.epoch;
    if epoch.is_some() && epoch == status.epoch {
        return None;
    }
    let counted = epoch.map_or_else(|| "an earlier epoch".to_owned(), |epoch| format!("epoch {epoch}"));
    Some(format!(
        "{} already has the annotation {FORCE_DETACH}={node}, which counted once, for {counted}. Nothing was \
         changed. Remove it with `kubectl annotate volume {} {FORCE_DETACH}-`, and run this command again",
        problem::title(volume),
        volume.name_any()
    ))
}

/// Explains that a Ready `node` releases `volume` itself, or can serve it.
fn release_first(volume: &Volume, node: &str, is_in_log_only: bool) -> String {
    let title = problem::title(volume);
    // The CSI driver writes spec.nodeName of a claim's volume, and refuses a node that it did not write.
    let has_claim = claim_of(volume).is_some();
    if is_in_log_only {
        let how = if has_claim { "run its pod there" } else { "with spec.nodeName" };
        return format!(
            "node {node} is Ready, and may still hold unuploaded data: let it serve {title}, {how}. If the log \
             means an earlier node of that name, add --although-ready"
        );
    }
    let how = match (has_claim, volume.spec.is_memory()) {
        (true, _) => "delete the pod that uses it",
        (false, true) => "clear spec.nodeName",
        (false, false) => "change spec.nodeName",
    };
    if volume.spec.is_memory() {
        return format!(
            "node {node} is Ready, and releases {title} itself: {how}. If it does not, add --although-ready"
        );
    }
    format!(
        "node {node} is Ready, and uploads the rest before it releases {title}: {how}. If only the disk of the \
         node is lost, add --although-ready"
    )
}

/// Returns true if a condition says that the log names `node` as the writer and that this annotation replaces
/// it: for example, another cluster has attached the volume, and the Volume's status names no node. The
/// operator reads the log only while no device exists.
fn is_named_by_log(status: &VolumeStatus, node: &str) -> bool {
    let annotation = format!("{FORCE_DETACH}=");
    let named = status.conditions.iter().flat_map(|condition| {
        condition.message.split(&annotation).skip(1).map(|rest| {
            let end = rest.find(|char: char| !(char.is_ascii_alphanumeric() || "-.".contains(char)));
            rest[..end.unwrap_or(rest.len())].trim_end_matches('.')
        })
    });
    status.device_path.is_none() && named.into_iter().any(|named| named == node)
}

/// Requests that the operator take `volume` from `node`.
pub(crate) async fn annotate(cluster: &ClusterClients, volume: &Volume, node: &str) -> anyhow::Result<()> {
    let volumes: Api<Volume> = Api::all(cluster.client.clone());
    // Excludes a Volume of the same name that was created in the meantime.
    let uid = volume.metadata.uid.as_deref();
    let patch = json!({"metadata": {"uid": uid, "annotations": {FORCE_DETACH: node}}});
    volumes
        .patch(&volume.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(reason)
        .with_context(|| format!("{} cannot be annotated", problem::title(volume)))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::why::tests::seen;

    fn check_of(name: &str, node: &str, although_ready: bool) -> Result<String, String> {
        let mut seen = seen();
        seen.volumes[1].status.as_mut().unwrap().node = Some("a".to_owned());
        let volume = seen.find(name, None).unwrap();
        check(volume, &seen, node, although_ready).map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_that_is_silent_is_cut_off_and_the_loss_is_said() {
        let said = check_of("pvc-1", "b", false).unwrap();
        assert!(said.contains("64MiB when it last reported"), "{said}");
    }

    /// Regression, found in review: with the annotation of an earlier loss of the same node, the command
    /// changed nothing, and reported success.
    #[test]
    fn an_annotation_that_has_counted_is_removed_first() {
        let refused = |annotation: &str, epoch: u64| {
            let mut seen = seen();
            let volume = &mut seen.volumes[0];
            volume.annotations_mut().insert(FORCE_DETACH.to_owned(), annotation.to_owned());
            let record = json!({"node": annotation, "time": "2026-11-25T00:00:00Z", "epoch": epoch});
            volume.status.as_mut().unwrap().forced_detach = Some(serde_json::from_value(record).unwrap());
            check(&seen.volumes[0], &seen, "b", false).err().map(|error| error.to_string())
        };
        let said = refused("b", 3).expect("the node has attached the volume again, with epoch 4");
        for part in
            ["counted once, for epoch 3. ", "`kubectl annotate volume pvc-1 holdfast.dev/force-detach-`"]
        {
            assert!(said.contains(part), "{said}");
        }
        assert_eq!(refused("b", 4), None, "it is the current attach");
        assert_eq!(refused("a", 3), None, "it named another node");
    }

    #[test]
    fn a_node_that_is_ready_releases_the_volume_itself() {
        assert!(check_of("idle", "a", false).unwrap_err().contains("change spec.nodeName"));
        assert!(check_of("idle", "a", true).is_ok(), "its disk is lost");
    }

    /// Regression, found in review: a node that a user writes into a claim's volume blocks its next attach.
    #[test]
    fn for_a_claim_the_pod_is_deleted() {
        let mut seen = seen();
        seen.volumes[0].status.as_mut().unwrap().node = Some("a".to_owned());
        let volume = seen.find("pvc-1", None).unwrap();
        let refused = check(volume, &seen, "a", false).unwrap_err().to_string();
        assert!(refused.contains("delete the pod") && !refused.contains("spec.nodeName"), "{refused}");
    }

    /// Regression, found in review: the loss of a memory volume was said as a lack of uploads.
    #[test]
    fn of_a_memory_volume_all_content_is_lost() {
        let mut seen = seen();
        let spec = json!({"size": "1Gi", "backend": "memory", "nodeName": "b"});
        seen.volumes[0].spec = serde_json::from_value(spec).unwrap();
        let said = check(&seen.volumes[0], &seen, "b", false).unwrap();
        assert!(said.contains("Its content is lost") && said.contains("ContentLost"), "{said}");
        assert!(!said.contains("upload") && !said.contains("Unuploaded"), "{said}");
    }

    #[test]
    fn a_node_that_does_not_serve_the_volume_is_refused() {
        let refused = check_of("pvc-1", "a", false).unwrap_err();
        assert!(refused.ends_with("is not served by node a, but by node b"), "{refused}");
    }

    /// Returns an adopted Volume whose status names no node, with a condition of this message.
    fn adopted(
        message: &str,
        device: Option<&str>,
        node: &str,
        although_ready: bool,
    ) -> Result<String, String> {
        let mut seen = seen();
        let status = seen.volumes[1].status.as_mut().unwrap();
        status.conditions[0].message = message.to_owned();
        status.device_path = device.map(str::to_owned);
        let volume = seen.find("idle", None).unwrap();
        check(volume, &seen, node, although_ready).map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_that_only_the_log_names_is_cut_off() {
        for message in [
            "node b.c attached it last, and has not detached it. If that node is lost, annotate the Volume with \
             holdfast.dev/force-detach=b.c",
            "with the annotation holdfast.dev/force-detach=b.c. The volume then continues there",
        ] {
            let said = adopted(message, None, "b.c", false).unwrap();
            assert!(
                said.contains("will be taken from node b.c. ") && said.contains("it never reported how much"),
                "{said}"
            );
        }
        let refused =
            adopted("the annotation holdfast.dev/force-detach=b.cd", None, "b.c", false).unwrap_err();
        assert!(refused.ends_with("none of its conditions says that the log names node b.c"), "{refused}");
        let message = "the annotation holdfast.dev/force-detach=b.c";
        assert!(
            adopted(message, Some("/dev/ublkb0"), "b.c", false).is_err(),
            "it was said before the attach"
        );
    }

    #[test]
    fn a_node_that_only_the_log_names_and_is_ready_may_serve_again() {
        let message = "the annotation holdfast.dev/force-detach=a.";
        let refused = adopted(message, None, "a", false).unwrap_err();
        assert!(refused.contains("with spec.nodeName. If the log means an earlier node"), "{refused}");
        assert!(adopted(message, None, "a", true).is_ok());
    }
}
