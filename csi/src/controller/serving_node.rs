//! The node that serves a volume.

use holdfast_crds::Volume;

/// Returns the serving node; `None` if it was force-detached, even if it still reports serving.
pub(super) fn serving_node(volume: &Volume) -> Option<&str> {
    let status = volume.status.as_ref()?;
    let node = status.node.as_deref().filter(|node| !node.is_empty())?;
    // A later epoch is a later attach of the same node, which was not force-detached.
    let is_cut_off = status.forced_detach.as_ref().is_some_and(|forced| {
        forced.node == node
            && forced.epoch.is_none_or(|cut_off| status.epoch.is_none_or(|now| now <= cut_off))
    });
    (!is_cut_off).then_some(node)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::publish_volume::tests::volume;
    use super::*;

    /// A volume without a desired node, which `a` served with epoch 3 until its force-detach with `epoch`.
    pub(in crate::controller) fn cut_off(epoch: Option<u64>) -> Volume {
        let mut cut_off = volume(None, Some("a"));
        let forced = json!({ "node": "a", "time": "2026-01-01T00:00:00Z", "epoch": epoch });
        let status = cut_off.status.as_mut().expect("a status");
        status.forced_detach = Some(serde_json::from_value(forced).expect("a forced detach"));
        cut_off
    }

    #[test]
    fn a_forcibly_detached_node_serves_only_after_its_next_attach() {
        assert_eq!(serving_node(&volume(None, None)), None);
        assert_eq!(serving_node(&volume(None, Some(""))), None);
        assert_eq!(serving_node(&volume(None, Some("a"))), Some("a"));
        for epoch in [None, Some(3), Some(4)] {
            assert_eq!(serving_node(&cut_off(epoch)), None, "{epoch:?}");
        }
        assert_eq!(serving_node(&cut_off(Some(2))), Some("a"), "it attached again");
        let mut next = cut_off(Some(3));
        next.status.as_mut().expect("a status").node = Some("b".to_owned());
        assert_eq!(serving_node(&next), Some("b"));
    }
}
