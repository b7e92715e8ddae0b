//! Decides automatically whether the node that serves a volume is lost.
//!
//! Only applies while that node must release the volume and has not done so. A wrong decision never mixes
//! data: the node is fenced by its epoch, as with the annotation. Its unuploaded data is missing then, so the
//! operator waits for a node that still answers.

use holdfast_crds::{DetachCause, FailoverPolicy};
use k8s_openapi::api::core::v1::Node;

use super::facts::ClusterFacts;

/// Taint with which a user, or a program that powers nodes off, marks a node as off. Source: kubernetes.io,
/// "Non-graceful node shutdown".
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Returns the sign that a node is lost, from its Node object and its daemon's heartbeat.
pub(crate) fn loss(node: Option<&Node>, is_silent: bool) -> Option<DetachCause> {
    let taints = node.and_then(|node| node.spec.as_ref()).and_then(|spec| spec.taints.as_deref());
    if taints.unwrap_or_default().iter().any(|taint| taint.key == OUT_OF_SERVICE) {
        return Some(DetachCause::OutOfService);
    }
    match node {
        _ if !is_silent => None,
        None => Some(DetachCause::NodeDeleted),
        Some(node) => (!is_ready(node)).then_some(DetachCause::NodeNotReady),
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

impl ClusterFacts {
    /// Returns the claiming node that must release the volume, if it may be force-detached automatically.
    pub(crate) fn node_in_doubt(&self) -> Option<&str> {
        let automatic = self.spec.failover_policy == FailoverPolicy::Automatic;
        self.serving().filter(|serving| automatic && self.desired() != Some(*serving))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(ready: &str, taint: Option<&str>) -> Node {
        let taints: Vec<_> =
            taint.map(|key| json!({ "key": key, "effect": "NoExecute" })).into_iter().collect();
        let conditions = json!([{ "type": "Ready", "status": ready }]);
        serde_json::from_value(json!({ "metadata": { "name": "a" }, "spec": { "taints": taints },
            "status": { "conditions": conditions } }))
        .expect("a node")
    }

    #[test]
    fn a_node_is_lost_by_two_signs_or_taint() {
        let cordoned = Some("node.kubernetes.io/unschedulable");
        for (node, silent, expected) in [
            (Some(node("True", None)), false, None),
            (Some(node("True", None)), true, None),
            (Some(node("Unknown", None)), false, None),
            (Some(node("False", cordoned)), false, None),
            (Some(node("Unknown", None)), true, Some(DetachCause::NodeNotReady)),
            (Some(node("False", cordoned)), true, Some(DetachCause::NodeNotReady)),
            (None, false, None),
            (None, true, Some(DetachCause::NodeDeleted)),
            (Some(node("True", Some(OUT_OF_SERVICE))), false, Some(DetachCause::OutOfService)),
        ] {
            assert_eq!(loss(node.as_ref(), silent), expected, "{node:?}, silent: {silent}");
        }
    }
}
