//! Nodes on which a volume can be used: those whose daemon serves volumes (`docs/adr/0018-autoscalers.md`).

use std::collections::HashMap;

use holdfast_proto::csi::v1::{Topology, TopologyRequirement};
use tonic::Status;

/// The segment that a node has while its daemon serves volumes.
const KEY: &str = "topology.holdfast.dev/served";
const VALUE: &str = "true";

/// The topology of every node that serves volumes, and of every volume but those for any node.
pub(crate) fn served() -> Topology {
    Topology { segments: HashMap::from([(KEY.to_owned(), VALUE.to_owned())]) }
}

/// Checks that a volume may be where every volume is.
///
/// # Errors
/// `RESOURCE_EXHAUSTED`: the nodes that the volume must be usable on do not serve volumes.
pub(crate) fn check(requirement: Option<&TopologyRequirement>) -> Result<(), Status> {
    let Some(TopologyRequirement { requisite, preferred: _ }) = requirement else { return Ok(()) };
    let serves = |topology: &Topology| topology.segments.get(KEY).is_some_and(|value| value == VALUE);
    if requisite.is_empty() || requisite.iter().any(serves) {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "accessibility_requirements: no requisite topology has {KEY}={VALUE}. No node of them serves volumes. \
         Run the node daemon there, or correct allowedTopologies of the StorageClass"
    )))
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_volume_needs_one_node_that_serves() {
        let other = Topology { segments: HashMap::from([("zone".to_owned(), "a".to_owned())]) };
        let requirement = |requisite| TopologyRequirement { requisite, preferred: Vec::new() };
        for fits in [Vec::new(), vec![served()], vec![other.clone(), served()]] {
            check(Some(&requirement(fits))).expect("fits");
        }
        check(None).expect("fits");
        let refused = check(Some(&requirement(vec![other]))).expect_err("no node serves");
        assert_eq!(refused.code(), Code::ResourceExhausted);
    }
}
