//! Memory volumes: attached without a store; a loss of their content is reported before the next device.

use holdfast_crds::{CONTENT_LOST, VolumeSpec};

use super::*;
use crate::kubernetes::misfit::memory_attach;
use crate::volumes::tests::in_memory;

const EPOCH: u64 = 1_800_000_000;

fn memory() -> NodeFacts {
    let spec = json!({ "size": "1Gi", "backend": "memory", "nodeName": "a" });
    NodeFacts { spec: serde_json::from_value(spec).unwrap(), ..granted() }
}

/// The same, served and reported.
fn served() -> NodeFacts {
    let here = Some(in_memory("v", Some("uid"), EPOCH));
    let mut facts = NodeFacts { here, last: Some(OperationOutcome::Attached), ..memory() };
    reported(&mut facts);
    assert_eq!((facts.status.epoch, facts.status.last_epoch), (Some(EPOCH), Some(EPOCH)));
    facts
}

/// The same before its report, with this volume on the node, and changed facts.
fn found(here: node::NodeVolumeStatus, change: impl FnOnce(&mut NodeFacts)) -> NodeFacts {
    let mut facts = NodeFacts { here: Some(here), ..memory() };
    change(&mut facts);
    facts
}

/// Returns the steps, and reason and message of the reported condition `Attached`, without a device.
fn refusal(facts: &NodeFacts) -> (Vec<&'static str>, String, String) {
    let plan = plan(facts, &now());
    let status = written_status(&plan).expect("a status is written");
    let attached = &status.conditions[0];
    assert_eq!((attached.status.as_str(), status.device_path), ("False", None));
    (step_names(&plan), attached.reason.clone(), attached.message.clone())
}

/// Returns reason and message of the condition.
fn lost(status: &VolumeStatus) -> Option<(&str, &str)> {
    let lost = find_condition(&status.conditions, CONTENT_LOST)?;
    assert_eq!(lost.status, "True");
    Some((&lost.reason, &lost.message))
}

#[test]
fn a_memory_volume_has_no_settings() {
    let mut facts = served();
    facts.spec.max_dirty_age = "1m".to_owned();
    assert_eq!(step_names(&plan(&facts, &now())), [""; 0]);
    let mut types = facts.status.conditions.iter().map(|condition| condition.type_.as_str());
    assert!(types.by_ref().eq([ATTACHED, WRITABLE]), "nothing of a store or a disk");
}

/// Regression: to raise the limit of a full volume required its detach, which dropped the content.
#[test]
fn a_memory_volume_gets_size_and_limits_of_its_spec() {
    let memory = |size: &str, memory: serde_json::Value| {
        let mut facts = served();
        let spec = json!({ "size": size, "backend": "memory", "memory": memory, "nodeName": "a" });
        facts.spec = serde_json::from_value(spec).unwrap();
        facts
    };
    let grows = |facts: &NodeFacts| match &plan(facts, &now()).steps[..] {
        [NodeStep::Grow(to)] => Some(*to),
        [] => None,
        other => panic!("{other:?}"),
    };
    let (gib, any) = (1 << 30, GrowTo::bytes(2 << 30));
    assert_eq!(grows(&memory("1Gi", json!({}))), None);
    let mut larger = memory("2Gi", json!({}));
    assert_eq!(grows(&larger), Some(any));
    // The kernel or the node rejects it: the volume is served as it is, and this is reported.
    let failure = OperationFailure { reason: "NodeFull", message: "no room".to_owned(), retry: Retry::Later };
    larger.last = Some(OperationOutcome::NotGrown { to: any, failure });
    larger.wait = WAIT;
    let refused = plan(&larger, &now());
    assert_eq!((step_names(&refused), refused.again), (vec!["report"], Some(WAIT)));
    let attached = &written_status(&refused).unwrap().conditions[0];
    assert_eq!((attached.status.as_str(), attached.reason.as_str()), ("True", "NodeFull"));

    // A volume with limits.
    let attached = |spec: &NodeFacts| {
        let request = memory_attach("v".parse().unwrap(), &spec.spec, Some("uid".to_owned()), EPOCH);
        node::MemoryIdentity::of(&request.unwrap()).ok()
    };
    let (limit, spill) = (1 << 29, 1 << 28);
    let before = memory("1Gi", json!({ "limit": "256Mi", "spill": "128Mi" }));
    for (after, expected) in [
        (json!({ "limit": "256Mi", "spill": "128Mi" }), None),
        (json!({ "limit": "512Mi", "spill": "128Mi" }), Some((limit, 1 << 27))),
        (json!({ "limit": "256Mi", "spill": "256Mi" }), Some((1 << 28, spill))),
    ] {
        let mut facts = memory("1Gi", after);
        facts.here.as_mut().unwrap().memory_identity = attached(&before);
        let to = expected.map(|(limit, spill)| GrowTo {
            bytes: gib,
            memory_limit_bytes: Some(limit),
            memory_spill_bytes: Some(spill),
        });
        assert_eq!(grows(&facts), to);
    }
}

#[test]
fn a_memory_volume_at_its_limit_is_reported() {
    let mut facts = served();
    let memory = facts.here.as_mut().unwrap().memory.as_mut().unwrap();
    memory.slab_bytes = memory.limit_bytes;
    assert_eq!(written_status(&plan(&facts, &now())), None, "no write was refused");
    facts.here.as_mut().unwrap().memory.as_mut().unwrap().refused_pages = 3;
    let (status, reason, message) = condition_of(&facts, WRITABLE);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "MemoryFull"));
    assert!(message.contains("spec.memory.limit"), "{message}");
}

/// Pages beyond the limit are written to the disk: writes fail once that limit is reached, too.
#[test]
fn only_a_full_spill_file_is_reported() {
    const PAGES: u64 = 8;
    let writable = |spilled_pages, refused_pages| {
        let mut facts = served();
        facts.since_report = Some(Duration::from_secs(60));
        let memory = facts.here.as_mut().unwrap().memory.as_mut().unwrap();
        memory.slab_bytes = memory.limit_bytes;
        memory.spill_limit_pages = PAGES;
        (memory.spilled_pages, memory.refused_pages) = (spilled_pages, refused_pages);
        condition_of(&facts, WRITABLE)
    };
    let serving = |spilled_pages, refused_pages, words: &str| {
        let (status, reason, message) = writable(spilled_pages, refused_pages);
        assert_eq!((status.as_str(), reason.as_str()), ("True", "Serving"));
        assert!(message.contains(words), "{message}");
    };
    serving(PAGES - 1, 0, "28672 bytes (limit 32768) are spilled to the disk of node a");
    serving(PAGES, 0, "32768 bytes (limit 32768) are spilled");
    serving(PAGES - 1, 3, "3 pages were not written (ENOSPC): memory was full");
    let (status, reason, message) = writable(PAGES, 3);
    assert_eq!((status.as_str(), reason.as_str()), ("False", "MemoryFull"));
    assert!(
        message.contains("all 1048576 bytes of memory and all 32768 bytes of the node's disk"),
        "{message}"
    );
    assert!(message.contains("Raise spec.memory.limit or spec.memory.spill"), "{message}");
}

/// Regression: the request to the daemon had no spill file, regardless of the spec.
#[test]
fn an_attach_requests_the_spill_file_of_the_spec() {
    let spill = |memory: serde_json::Value| {
        let spec = json!({ "size": "1Gi", "backend": "memory", "memory": memory });
        let spec = serde_json::from_value(spec).unwrap();
        memory_attach("v".parse().unwrap(), &spec, None, EPOCH).map(|request| request.spill_bytes)
    };
    assert_eq!(spill(json!({ "spill": "512Mi" })), Ok(Some(512 << 20)));
    assert_eq!(spill(json!({ "limit": "1Mi" })), Ok(None));
    let refused = spill(json!({ "spill": "1000" })).unwrap_err().to_string();
    assert!(refused.starts_with("spec.memory.spill: "), "{refused}");
}

/// Regression: `Writable` did not report writes that failed because the run directory was full.
#[test]
fn pages_refused_below_the_limit_are_reported() {
    let mut facts = served();
    facts.here.as_mut().unwrap().memory.as_mut().unwrap().refused_pages = 3;
    // Once a minute, like all figures.
    facts.since_report = Some(Duration::from_secs(60));
    let (status, reason, message) = condition_of(&facts, WRITABLE);
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Serving"));
    assert!(message.contains("3 pages were not written") && message.contains("run directory"), "{message}");
}

#[test]
fn the_first_attach_loses_nothing() {
    let plan = plan(&memory(), &now());
    assert_eq!(step_names(&plan), ["claim", "attach"]);
    assert_eq!(lost(&written_status(&plan).unwrap()), None);
}

/// A restarted host has no device and no files: an unreported empty device would be formatted.
#[test]
fn a_restarted_host_reports_lost_content_before_it_attaches() {
    let mut facts = NodeFacts { here: None, last: None, ..served() };
    let first = plan(&facts, &now());
    assert_eq!(step_names(&first), ["claim", "attach"]);
    let status = written_status(&first).unwrap();
    let (reason, message) = lost(&status).unwrap();
    assert_eq!(reason, "NodeRestarted");
    for part in ["node a lost the content", "2026-01-01T00:00:00Z", "next device is empty"] {
        assert!(message.contains(part), "{message}");
    }
    // The attach fails and is retried: this is not another loss.
    reported(&mut facts);
    let later = Time("2026-01-02T00:00:00Z".parse().unwrap());
    assert_eq!(written_status(&plan(&facts, &later)).unwrap().conditions.last(), status.conditions.last());
    // It stays reported while the next device is served; after that one's loss, the newer loss is reported.
    facts.here = Some(in_memory("v", Some("uid"), facts.status.last_epoch.unwrap()));
    reported(&mut facts);
    assert_eq!(lost(&facts.status), lost(&status));
    let again = NodeFacts { here: None, last: None, ..facts };
    let again = written_status(&plan(&again, &later)).unwrap();
    assert!(lost(&again).unwrap().1.contains("2026-01-02T00:00:00Z"), "{again:?}");
}

#[test]
fn a_detach_drops_the_content_and_reports_it() {
    let mut facts = served();
    facts.spec.node_name = None;
    assert_eq!(step_names(&plan(&facts, &now())), ["report", "detach"]);
    let gone = NodeFacts { here: None, last: Some(OperationOutcome::Detached), ..facts };
    let cleared = plan(&gone, &now());
    assert_eq!(step_names(&cleared), ["clear"]);
    let status = written_status(&cleared).unwrap();
    assert_eq!((lost(&status).unwrap().0, status.epoch), ("Detached", None));
    // The host restarted and the volume is not wanted: it is not attached again for a commit.
    let restarted = NodeFacts { last: None, ..gone };
    let cleared = plan(&restarted, &now());
    assert_eq!(step_names(&cleared), ["clear"]);
    assert_eq!(lost(&written_status(&cleared).unwrap()).unwrap().0, "NodeRestarted");
}

/// Regression, found in review: content lost with a device that another program removed was reported as
/// detached on request, by a normal event.
#[test]
fn content_lost_with_a_removed_device_is_a_fault() {
    let mut facts = served();
    let here = facts.here.as_mut().unwrap();
    (here.state, here.attached) = (VolumeState::Unserved, None);
    let (acts, reason, _) = refusal(&facts);
    assert_eq!((acts, reason.as_str()), (vec!["report", "detach"], "Unserved"));
    reported(&mut facts);
    assert_eq!((facts.status.epoch, lost(&facts.status)), (Some(EPOCH), None));
    // The cause stays during the detach.
    facts.here.as_mut().unwrap().state = VolumeState::Detaching;
    facts.doing = Some(Doing::Detaching);
    assert_eq!(step_names_of(&facts), [""; 0]);
    facts.since_report = Some(Duration::from_secs(60));
    reported(&mut facts);
    assert_eq!(facts.status.conditions[0].reason, "Unserved");
    let detached = Some(OperationOutcome::Detached);
    let gone = |last| NodeFacts { here: None, doing: None, last, ..facts.clone() };
    // `None`: the daemon was restarted.
    for facts in [gone(detached.clone()), gone(None)] {
        let again = plan(&facts, &now());
        assert_eq!(step_names(&again), ["claim", "attach"]);
        let status = written_status(&again).unwrap();
        let (reason, message) = lost(&status).unwrap();
        assert_eq!((reason, status.epoch), ("DeviceRemoved", None));
        assert!(message.contains("removed the device of the volume on node a"), "{message}");
    }
    // The user requested the detach before the daemon had started it.
    let mut facts = gone(detached);
    facts.spec.node_name = None;
    assert_eq!(lost(&written_status(&plan(&facts, &now())).unwrap()).unwrap().0, "DeviceRemoved");
}

#[test]
fn content_of_a_node_that_was_cut_off_is_lost() {
    let mut facts = memory();
    facts.status.node = other_node();
    facts.status.epoch = Some(EPOCH);
    let status = written_status(&plan(&facts, &now())).unwrap();
    let (reason, message) = lost(&status).unwrap();
    assert!(reason == "NodeLost" && message.contains("node b had the content"), "{message}");
    assert_eq!(status.epoch, None);
}

/// Regression: it was served because of its name alone.
#[test]
fn a_mismatched_volume_is_detached_first() {
    let of_uid = || in_memory("v", Some("uid"), EPOCH);
    let of_store = |facts: &mut NodeFacts| facts.spec = granted().spec;
    for (name, facts) in [
        ("an object made again", found(in_memory("v", Some("before"), EPOCH), |_| ())),
        ("a volume of a store", found(attached("v"), |_| ())),
        ("a Volume of a store", found(of_uid(), of_store)),
        ("an earlier attach", found(of_uid(), |f| f.status.last_epoch = Some(EPOCH + 1))),
    ] {
        let (acts, reason, _) = refusal(&facts);
        assert_eq!((acts, reason.as_str()), (vec!["report", "detach"], "Detaching"), "{name}");
        let waiting = NodeFacts { last: failed("Busy"), wait: WAIT, ..facts.clone() };
        assert_eq!(refusal(&waiting).1, "Busy", "{name}");
        let requested =
            NodeFacts { status: VolumeStatus { assigned_node: None, ..facts.status.clone() }, ..facts };
        assert_eq!(step_names_of(&requested), [""; 0], "{name}: not granted yet");
    }
    let served = found(of_uid(), |f| f.status.last_epoch = Some(EPOCH));
    assert_eq!(reason(&plan(&served, &now())).0, "True");
}

fn step_names_of(facts: &NodeFacts) -> Vec<&'static str> {
    step_names(&plan(facts, &now()))
}

#[test]
fn a_users_volume_stays_and_is_not_served() {
    for spec in [memory().spec, granted().spec] {
        let of_a_person = |f: &mut NodeFacts| (f.spec, f.status.volume_id) = (spec, Some("v".to_owned()));
        let mut facts = found(in_memory("v", None, 0), of_a_person);
        let (acts, reason, message) = refusal(&facts);
        assert_eq!((acts, reason.as_str()), (vec!["report"], "NameTaken"));
        assert!(message.contains("holdfast-node detach v"), "{message}");
        facts.deleting = true;
        facts.status.node = this_node();
        assert_eq!(step_names_of(&facts), ["clear"], "its content is not dropped with the Volume");
    }
}

/// Regression, found in review: another size was served without a report.
#[test]
fn a_spec_unlike_the_volume_is_reported_by_field() {
    let spec =
        |text: serde_json::Value| move |f: &mut NodeFacts| f.spec = serde_json::from_value(text).unwrap();
    for (field, text) in [
        ("spec.size: is 512Mi, and", json!({ "size": "512Mi", "backend": "memory", "nodeName": "a" })),
        (
            "spec.memory.limit: is 1Mi, and",
            json!({ "size": "1Gi", "backend": "memory", "nodeName": "a", "memory": { "limit": "1Mi" } }),
        ),
        (
            "spec.memory.spill: is 512Mi, and the volume on node a was attached with 0. It",
            json!({ "size": "1Gi", "backend": "memory", "nodeName": "a", "memory": { "spill": "512Mi" } }),
        ),
        (
            "spec.memory.compression: is zstd, and",
            json!({ "size": "1Gi", "backend": "memory", "nodeName": "a", "memory": { "compression": "zstd" } }),
        ),
    ] {
        let (acts, reason, message) = refusal(&found(in_memory("v", Some("uid"), EPOCH), spec(text)));
        assert_eq!((acts, reason.as_str()), (vec!["report"], "SpecDiffers"));
        assert!(message.starts_with(field), "{message}");
    }
}

/// Regression: its device kept serving the earlier content, and its pod waited indefinitely.
#[test]
fn a_cut_off_node_drops_its_content_and_attaches_again() {
    let forced = json!({ "node": "a", "time": "2026-01-01T00:00:00Z", "epoch": EPOCH });
    let mut facts = served();
    facts.status.forced_detach = Some(serde_json::from_value(forced).unwrap());
    assert_eq!(refusal(&facts).0, ["report", "detach"]);
    reported(&mut facts);
    let gone = NodeFacts { here: None, last: Some(OperationOutcome::Detached), ..facts };
    let again = plan(&gone, &now());
    assert_eq!(again.steps[1], NodeStep::AttachMemory { epoch: EPOCH + 1 });
    assert_eq!(lost(&written_status(&again).unwrap()).unwrap().0, "Detached");

    // Another node had it in the meantime.
    let mut back = found(in_memory("v", Some("uid"), EPOCH), |f| {
        (f.status.node, f.status.epoch, f.status.last_epoch) =
            (other_node(), Some(EPOCH + 1), Some(EPOCH + 1));
    });
    let (acts, _, _) = refusal(&back);
    assert_eq!(acts, ["report", "detach"]);
    reported(&mut back);
    let (reason, message) = lost(&back.status).unwrap();
    assert!(reason == "NodeLost" && message.contains("node b had the content"), "{message}");
    assert_eq!(back.status.last_epoch, Some(EPOCH + 1), "it stays outdated");
}

/// Regression: after the clock was set back, the new epoch was one that the status listed as cut off.
#[test]
fn the_epoch_rises_over_every_earlier_one() {
    let epoch = |facts: &NodeFacts| {
        let plan = plan(facts, &now());
        let claimed = written_status(&plan).unwrap().last_epoch.unwrap();
        assert_eq!(plan.steps[1], NodeStep::AttachMemory { epoch: claimed });
        claimed
    };
    let time = u64::try_from(now().0.as_second()).unwrap();
    let mut facts = memory();
    assert_eq!(epoch(&facts), time);
    facts.status.epoch = Some(EPOCH);
    assert_eq!(epoch(&facts), EPOCH + 1);
    let forced = json!({ "node": "b", "time": "2026-01-01T00:00:00Z", "epoch": EPOCH + 5 });
    facts.status.forced_detach = Some(serde_json::from_value(forced).unwrap());
    assert_eq!(epoch(&facts), EPOCH + 6);
    // The attach fails: the next one still has another epoch.
    reported(&mut facts);
    facts.last = failed("Busy");
    assert_eq!(epoch(&facts), EPOCH + 7);
    let cleared = NodeFacts { spec: VolumeSpec { node_name: None, ..facts.spec.clone() }, ..facts };
    assert_eq!(
        written_status(&plan(&cleared, &now())).unwrap().last_epoch,
        Some(EPOCH + 6),
        "a detach keeps it"
    );
}

/// Regression: it reported that the host had restarted.
#[test]
fn a_restarted_daemon_reports_an_earlier_requested_detach() {
    let mut facts = served();
    facts.spec.node_name = None;
    reported(&mut facts);
    let restarted = NodeFacts { here: None, last: None, ..facts };
    assert_eq!(lost(&written_status(&plan(&restarted, &now())).unwrap()).unwrap().0, "Detached");
}
