//! Settings of a served volume: durability, and the maximum age of data before its upload.

use super::*;
use crate::kubernetes::operations::{Unconfigured, WantedSettings};
use holdfast_crds::VolumeLimits;
use holdfast_serve::IoLimits;

fn limits(iops: Option<i64>, throughput: Option<&str>) -> Option<VolumeLimits> {
    Some(VolumeLimits { iops, throughput: throughput.map(str::to_owned) })
}

#[test]
fn limits_of_the_spec_come_into_effect_and_go() {
    let in_effect = IoLimits { iops: Some(3000), bytes_per_second: Some(125 << 20) };
    let mut facts = present(|f| f.spec.limits = limits(Some(3000), Some("125Mi")));
    let [NodeStep::Configure(wanted)] = plan(&facts, &now()).steps[..] else { panic!("one step") };
    assert_eq!(wanted.limits, in_effect);
    facts.here.as_mut().unwrap().delays.limits.limits = in_effect;
    let status = written_status(&plan(&facts, &now())).expect("the limits in effect");
    assert_eq!(status.limits, facts.spec.limits);
    facts.spec.limits = limits(Some(3000), Some("131072000"));
    facts.status = status;
    assert_eq!(step_names(&plan(&facts, &now())), [""; 0], "the same in other words");
    facts.spec.limits = None;
    let [NodeStep::Configure(wanted)] = plan(&facts, &now()).steps[..] else { panic!("one step") };
    assert_eq!(wanted.limits, IoLimits::NONE);
}

/// Regression: they were only applied at the next attach.
#[test]
fn a_served_volume_gets_the_settings_of_its_spec() {
    fn other_settings(facts: &mut NodeFacts) {
        facts.spec.durability = holdfast_crds::DurabilityMode::Local;
        facts.spec.max_dirty_age = "1m30s".to_owned();
    }
    check([
        (
            "another durability",
            present(|f| f.spec.durability = holdfast_crds::DurabilityMode::Local),
            &["configure"],
        ),
        ("another age", present(|f| f.spec.max_dirty_age = "5s".to_owned()), &["configure"]),
        ("a limit", present(|f| f.spec.limits = limits(Some(3000), None)), &["configure"]),
        ("no limit, in other words", present(|f| f.spec.limits = limits(None, None)), &[]),
        ("the same age in other words", present(|f| f.spec.max_dirty_age = "30000ms".to_owned()), &[]),
        (
            "while it grows, which may wait for the store",
            present(|f| {
                other_settings(f);
                f.spec.size = Some("2Gi".to_owned());
                f.doing = Some(Doing::Growing(GrowTo::bytes(2 << 30)));
            }),
            &["configure"],
        ),
        (
            "with another size",
            present(|f| {
                other_settings(f);
                f.spec.size = Some("2Gi".to_owned());
            }),
            &["configure", "grow"],
        ),
        (
            "no longer wanted here",
            present(|f| {
                other_settings(f);
                f.spec.node_name = other_node();
            }),
            &["report", "detach"],
        ),
        ("while it is recovered", present_as(VolumeState::Recovering, other_settings), &["report"]),
        ("while it is detached", present_as(VolumeState::Detaching, other_settings), &["report"]),
        ("fenced", present_as(VolumeState::Fenced, other_settings), &["report", "detach"]),
    ]);
    let mut facts = present(other_settings);
    let change = plan(&facts, &now());
    let (durability, max_dirty_age) = (Durability::Local, Duration::from_secs(90));
    let wanted = WantedSettings { durability, max_dirty_age, limits: IoLimits::NONE };
    assert_eq!(change.steps, [NodeStep::Configure(wanted)]);
    assert_eq!(change.again, Some(SOON), "then it is reported");
    let here = facts.here.as_mut().unwrap();
    (here.durability, here.max_dirty_age) = (Some(durability), Some(max_dirty_age));
    let status = written_status(&plan(&facts, &now())).expect("the settings in effect");
    assert_eq!(status.durability, Some(holdfast_crds::DurabilityMode::Local));
    assert_eq!(status.max_dirty_age.as_deref(), Some("1m30s"));
}

#[test]
fn unapplied_settings_are_reported_with_the_reason() {
    let mut facts = present(|f| f.spec.max_dirty_age = "5s".to_owned());
    let durability = flush_class(&facts.spec).unwrap();
    let wanted = WantedSettings { durability, max_dirty_age: Duration::from_secs(5), limits: IoLimits::NONE };
    facts.unconfigured = Some(Unconfigured { wanted, why: "the tmpfs is full: make room".to_owned() });
    let failing = plan(&facts, &now());
    assert_eq!(step_names(&failing), ["report", "configure"]);
    assert_eq!(reason(&failing), ("True".to_owned(), "NotConfigured".to_owned()));
    let text = written_status(&failing).unwrap().conditions[0].message.clone();
    assert!(text.contains("not in effect: the tmpfs is full: make room. Node a tries again"), "{text}");
    facts.spec.max_dirty_age = "30s".to_owned();
    assert_eq!(step_names(&plan(&facts, &now())), [""; 0], "the spec is what is in effect");
    facts.spec.max_dirty_age = "6s".to_owned();
    let other = plan(&facts, &now());
    assert_eq!(step_names(&other), ["configure"], "nothing is known of these yet");
}

/// Found in review: after a rollback, a daemon could not read a Volume with a value that it did not know. It
/// must not act as if it were another value.
#[test]
fn a_served_volume_ignores_settings_of_a_later_release() {
    fn later(facts: &mut NodeFacts) {
        facts.spec.durability = holdfast_crds::DurabilityMode::Unknown;
        facts.spec.max_dirty_age = "5s".to_owned();
    }
    check([
        ("served", present(later), &[]),
        (
            "wanted elsewhere, with a final commit",
            present(|f| {
                later(f);
                f.spec.node_name = other_node();
            }),
            &["report", "detach"],
        ),
    ]);
    let mut spec = present(later).spec;
    assert_eq!(flush_class(&spec).unwrap_err().field, "spec.durability", "it is not attached");
    spec.durability = holdfast_crds::DurabilityMode::Object;
    spec.transport = Some(holdfast_crds::RequiredTransport::Unknown);
    assert_eq!(flush_class(&spec).unwrap_err().field, "spec.transport");
}
