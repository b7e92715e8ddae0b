//! Memory volumes: attached without a store, and a loss of their content is said before the next device.

use holdfast_crds::CONTENT_LOST;
use holdfast_memory::MemoryFigures;

use super::*;

fn memory() -> NodeFacts {
    let spec = json!({ "size": "1Gi", "backend": "memory", "nodeName": "a" });
    NodeFacts { spec: serde_json::from_value(spec).unwrap(), ..granted() }
}

/// The same, served and reported.
fn served() -> NodeFacts {
    let mut here = attached("v");
    (here.durability, here.max_dirty_age) = (None, None);
    here.attached.as_mut().unwrap().epoch = 1_800_000_000;
    here.memory = Some(MemoryFigures { limit_bytes: 1 << 20, ..MemoryFigures::default() });
    let last = Some(OperationOutcome::Attached);
    let mut facts = NodeFacts { here: Some(here), last, ..memory() };
    reported(&mut facts);
    assert_eq!(facts.status.epoch, Some(1_800_000_000));
    facts
}

/// Reason and message of the condition.
fn lost(status: &VolumeStatus) -> Option<(&str, &str)> {
    let lost = find_condition(&status.conditions, CONTENT_LOST)?;
    assert_eq!(lost.status, "True");
    Some((&lost.reason, &lost.message))
}

#[test]
fn a_memory_volume_has_neither_settings_nor_growth() {
    let mut facts = served();
    facts.spec.size = Some("2Gi".to_owned());
    assert_eq!(acts(&plan(&facts, &now())), [""; 0]);
    let mut types = facts.status.conditions.iter().map(|condition| condition.type_.as_str());
    assert!(types.by_ref().eq([ATTACHED, WRITABLE]), "nothing of a store or a disk");
}

#[test]
fn a_memory_volume_at_its_limit_is_reported() {
    let mut facts = served();
    let memory = facts.here.as_mut().unwrap().memory.as_mut().unwrap();
    memory.slab_bytes = memory.limit_bytes;
    assert_eq!(written(&plan(&facts, &now())), None, "no write was refused");
    facts.here.as_mut().unwrap().memory.as_mut().unwrap().refused_pages = 3;
    let (status, reason, message) = turned(&facts, WRITABLE);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "MemoryFull"));
    assert!(message.contains("spec.memory.limit"), "{message}");
}

#[test]
fn the_first_attach_loses_nothing() {
    let plan = plan(&memory(), &now());
    assert_eq!(acts(&plan), ["claim", "attach"]);
    assert_eq!(lost(&written(&plan).unwrap()), None);
}

/// A host that restarted has no device and no files: an empty device without a word would be formatted.
#[test]
fn a_restarted_host_says_that_the_content_is_lost_before_it_attaches() {
    let mut facts = NodeFacts { here: None, last: None, ..served() };
    let first = plan(&facts, &now());
    assert_eq!(acts(&first), ["claim", "attach"]);
    let status = written(&first).unwrap();
    let (reason, message) = lost(&status).unwrap();
    assert_eq!(reason, "NodeRestarted");
    for part in ["node a lost the content", "2026-01-01T00:00:00Z", "next device is empty"] {
        assert!(message.contains(part), "{message}");
    }
    // The attach fails and is tried again: that is no other loss.
    reported(&mut facts);
    let later = Time("2026-01-02T00:00:00Z".parse().unwrap());
    assert_eq!(written(&plan(&facts, &later)).unwrap().conditions.last(), status.conditions.last());
    // It stays said while the next device is served, and when that is gone, the newer loss is.
    facts.here = served().here;
    reported(&mut facts);
    assert_eq!(lost(&facts.status), lost(&status));
    let again = NodeFacts { here: None, last: None, ..facts };
    let again = written(&plan(&again, &later)).unwrap();
    assert!(lost(&again).unwrap().1.contains("2026-01-02T00:00:00Z"), "{again:?}");
}

#[test]
fn a_detach_drops_the_content_and_says_so() {
    let mut facts = served();
    facts.spec.node_name = None;
    assert_eq!(acts(&plan(&facts, &now())), ["report", "detach"]);
    let gone = NodeFacts { here: None, last: Some(OperationOutcome::Detached), ..facts };
    let cleared = plan(&gone, &now());
    assert_eq!(acts(&cleared), ["clear"]);
    let status = written(&cleared).unwrap();
    assert_eq!((lost(&status).unwrap().0, status.epoch), ("Detached", None));
    // The host restarted and the volume is not wanted: it is not attached once more to be committed.
    let restarted = NodeFacts { last: None, ..gone };
    let cleared = plan(&restarted, &now());
    assert_eq!(acts(&cleared), ["clear"]);
    assert_eq!(lost(&written(&cleared).unwrap()).unwrap().0, "NodeRestarted");
}

#[test]
fn content_of_a_node_that_was_cut_off_is_lost() {
    let mut facts = memory();
    facts.status.node = other();
    facts.status.epoch = Some(1_800_000_000);
    let status = written(&plan(&facts, &now())).unwrap();
    let (reason, message) = lost(&status).unwrap();
    assert!(reason == "NodeLost" && message.contains("node b had the content"), "{message}");
    assert_eq!(status.epoch, None);
}
