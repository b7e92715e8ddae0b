//! Nodes on which a volume can be used: those whose daemon serves volumes (`docs/adr/0018-autoscalers.md`).

use std::collections::HashMap;

use holdfast_proto::csi::v1::{Topology, TopologyRequirement};
use tonic::Status;

/// The segment of a node whose daemon serves volumes.
const KEY: &str = "topology.holdfast.dev/served";
const VALUE: &str = "true";

/// A second segment of a node whose devices use ublk. It has its own key instead of another value of the
/// first: the kubelet rejects a driver that reports a value other than its Node's label.
pub(crate) const UBLK_KEY: &str = "topology.holdfast.dev/ublk";

/// Returns the topology of nodes that serve volumes, and of volumes unless they are for any node.
pub(crate) fn served() -> Topology {
    Topology { segments: HashMap::from([(KEY.to_owned(), VALUE.to_owned())]) }
}

/// Returns the topology of a volume for many nodes: those with ublk, if it needs that.
pub(crate) fn of_volume(needs_ublk: bool) -> Topology {
    with_ublk(served(), needs_ublk)
}

/// Returns the topology of a node; `has_ublk` is true if its devices use ublk.
pub(crate) fn of_node(node: &str, has_ublk: bool) -> Topology {
    with_ublk(on(node), has_ublk)
}

fn with_ublk(mut topology: Topology, has_ublk: bool) -> Topology {
    if has_ublk {
        topology.segments.insert(UBLK_KEY.to_owned(), VALUE.to_owned());
    }
    topology
}

/// Returns true for nodes whose devices use ublk.
pub(crate) fn has_ublk(topology: &Topology) -> bool {
    topology.segments.get(UBLK_KEY).is_some_and(|value| value == VALUE)
}

/// The segment that distinguishes nodes, because a memory volume is on one node.
const NODE_KEY: &str = "topology.holdfast.dev/node";
/// Longest value of a label.
const MAX_LABEL_BYTES: usize = 63;

/// Returns the topology of one node that serves volumes. A name that is not a valid label value is left out:
/// claims for memory volumes cannot use that node.
pub(crate) fn on(node: &str) -> Topology {
    let mut topology = served();
    if node.len() <= MAX_LABEL_BYTES {
        topology.segments.insert(NODE_KEY.to_owned(), node.to_owned());
    }
    topology
}

/// The label in which an autoscaler's simulated node differs from the node it is copied from. It copies all
/// others, including `NODE_KEY`.
pub(crate) const HOST_NAME_KEY: &str = "kubernetes.io/hostname";

/// Returns the topology of a volume on one node, whose Node has this host name label.
pub(crate) fn of_volume_on(node: &str, host_name: Option<&str>) -> Topology {
    let mut topology = on(node);
    if let Some(name) = host_name {
        topology.segments.insert(HOST_NAME_KEY.to_owned(), name.to_owned());
    }
    topology
}

/// Returns the node of a topology, if it names one.
pub(crate) fn node(topology: &Topology) -> Option<&str> {
    topology.segments.get(NODE_KEY).map(String::as_str)
}

/// Returns the preferred node of a requirement: the one that the scheduler chose for the first pod.
///
/// # Errors
/// `INVALID_ARGUMENT`: it names no node.
pub(crate) fn first_node(requirement: Option<&TopologyRequirement>) -> Result<String, Status> {
    let named = requirement.into_iter().flat_map(|one| one.preferred.iter().chain(&one.requisite));
    named.filter_map(node).map(str::to_owned).next().ok_or_else(|| {
        Status::invalid_argument(format!(
            "accessibility_requirements: no topology has {NODE_KEY}, and a memory volume is on one node. Write \
             volumeBindingMode WaitForFirstConsumer into the StorageClass. If it has that, the name of the node has more than \
             {MAX_LABEL_BYTES} bytes: choose another node"
        ))
    })
}

/// Checks that the required nodes can use the volume, with ublk if it needs that.
///
/// # Errors
/// `RESOURCE_EXHAUSTED`: the required nodes do not serve volumes, or lack ublk.
pub(crate) fn check(requirement: Option<&TopologyRequirement>, needs_ublk: bool) -> Result<(), Status> {
    let Some(TopologyRequirement { requisite, preferred: _ }) = requirement else { return Ok(()) };
    let serves = |topology: &Topology| topology.segments.get(KEY).is_some_and(|value| value == VALUE);
    if requisite.is_empty() || requisite.iter().any(has_ublk) {
        return Ok(());
    }
    if needs_ublk && requisite.iter().any(serves) {
        return Err(Status::resource_exhausted(format!(
            "accessibility_requirements: no requisite topology has {UBLK_KEY}={VALUE}. The StorageClass has transport `ublk`, and \
             no node of them has ublk. Write {UBLK_KEY}={VALUE} into its allowedTopologies, or load ublk_drv on a node"
        )));
    }
    if !needs_ublk && requisite.iter().any(serves) {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "accessibility_requirements: no requisite topology has {KEY}={VALUE}. None of these nodes serves \
         volumes. Run the node daemon there, or correct allowedTopologies of the StorageClass"
    )))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_memory_volume_is_on_the_node_that_the_scheduler_chose() {
        let [a, b] = ["a", "b"].map(on);
        assert_eq!((node(&a), node(&served())), (Some("a"), None));
        let chosen =
            TopologyRequirement { requisite: vec![a.clone(), b.clone()], preferred: vec![b, a.clone()] };
        assert_eq!(first_node(Some(&chosen)).ok().as_deref(), Some("b"));
        let only = TopologyRequirement { requisite: vec![a], preferred: Vec::new() };
        assert_eq!(first_node(Some(&only)).ok().as_deref(), Some("a"));
        let anywhere = TopologyRequirement { requisite: vec![served()], preferred: Vec::new() };
        for none in [None, Some(&anywhere)] {
            let refused = first_node(none).expect_err("no node");
            for cause in ["WaitForFirstConsumer", "more than 63 bytes"] {
                assert!(refused.message().contains(cause), "{}", refused.message());
            }
        }
        assert_eq!(on(&"a".repeat(64)), served(), "no label has such a value");
    }

    #[test]
    fn a_volume_needs_one_node_that_serves() {
        let other = Topology { segments: HashMap::from([("zone".to_owned(), "a".to_owned())]) };
        let requirement = |requisite| TopologyRequirement { requisite, preferred: Vec::new() };
        for fits in [Vec::new(), vec![served()], vec![other.clone(), served()]] {
            check(Some(&requirement(fits)), false).expect("fits");
        }
        check(None, false).expect("fits");
        let refused = check(Some(&requirement(vec![other])), false).expect_err("no node serves");
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }

    #[test]
    fn a_volume_that_needs_ublk_is_for_nodes_with_it() {
        let requirement = |requisite| TopologyRequirement { requisite, preferred: Vec::new() };
        let [with, without] = [true, false].map(|has_ublk| of_node("a", has_ublk));
        assert!(has_ublk(&with) && !has_ublk(&without) && !has_ublk(&of_volume(false)));
        let covers = |volume: &Topology| {
            volume.segments.iter().all(|(key, value)| with.segments.get(key) == Some(value))
        };
        assert!(covers(&of_volume(true)) && covers(&of_volume(false)));
        assert_ne!(of_volume(true), of_volume(false));
        let allowed = Topology { segments: HashMap::from([(UBLK_KEY.to_owned(), VALUE.to_owned())]) };
        for fits in [Vec::new(), vec![without.clone(), with.clone()], vec![allowed]] {
            check(Some(&requirement(fits.clone())), true).expect("fits");
            check(Some(&requirement(fits)), false).expect("fits");
        }
        let refused = check(Some(&requirement(vec![without])), true).expect_err("no node has it");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert!(refused.message().contains("allowedTopologies, or load ublk_drv"), "{}", refused.message());
    }
}
