//! `ControllerModifyVolume`: changes settings in the spec and, if a node serves the volume, waits until they
//! are in effect.

use holdfast_crds::{
    ATTACHED, DurabilityMode, Volume, VolumeLimits, VolumeSpec, VolumeStatus, find_condition, is_true,
};
use holdfast_proto::csi::v1::{ControllerModifyVolumeRequest, ControllerModifyVolumeResponse};
use tonic::{Request, Status};

use super::memory;
use super::object_name::{is_object_name, volume_id};
use super::objects::TimedOut;
use super::parameters::MutableSettings;
use super::reason::first_unmet;
use super::serving_node::serving_node;
use super::volumes::{ClusterVolumes, missing};
use crate::deadline;

/// Reason of [`ATTACHED`] for a healthy volume; another one tells why settings are not in effect.
const SERVED: &str = "Attached";

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: Request<ControllerModifyVolumeRequest>,
) -> Result<ControllerModifyVolumeResponse, Status> {
    let until = deadline::of(&request);
    let ControllerModifyVolumeRequest { volume_id: id, secrets: _, mutable_parameters } =
        request.into_inner();
    let name = volume_id(&id)?;
    let settings = MutableSettings::read(mutable_parameters)?;
    if !is_object_name(name) {
        return Err(missing(name));
    }
    let volume = volumes.existing(name).await?;
    let fix = "Remove the VolumeAttributesClass from the claim";
    memory::refuse(&volume, "mutable_parameters", "durability, dirty age, failover or limits", fix)?;
    let change = |volume: &Volume| Ok(settings.change_of(&volume.spec));
    let volume = volumes.change(volume, until, change, &[]).await?;
    match volumes.wait(name, Some(volume), until, |now| progress(name, now, &settings)).await {
        Ok(outcome) => outcome.map(|()| ControllerModifyVolumeResponse {}),
        Err(TimedOut { last }) => {
            let why = last.map(|volume| describe_pending(&volume)).unwrap_or_default();
            Err(Status::aborted(format!("the settings of Volume {name} are not in effect yet: {why}")))
        }
    }
}

/// Done once no node serves the volume, or the requested settings of its spec are in effect; `None` while
/// other settings are in effect.
fn progress(name: &str, now: Option<&Volume>, asked: &MutableSettings) -> Option<Result<(), Status>> {
    let Some(volume) = now else { return Some(Err(missing(name))) };
    let in_effect = serving_node(volume).and(volume.status.as_ref());
    in_effect.is_none_or(|status| are_in_effect(volume, status, asked)).then_some(Ok(()))
}

fn are_in_effect(volume: &Volume, status: &VolumeStatus, asked: &MutableSettings) -> bool {
    let spec = &volume.spec;
    // A report on an earlier spec may match by chance.
    let reported =
        find_condition(&status.conditions, ATTACHED).and_then(|attached| attached.observed_generation);
    let is_current = reported == volume.metadata.generation;
    let age = status.max_dirty_age.clone().map(|max_dirty_age| VolumeSpec { max_dirty_age, ..spec.clone() });
    let age = age.and_then(|reported| reported.max_dirty_age().ok());
    let has_durability = is_current && status.durability == Some(spec.durability);
    let has_age = is_current && age.is_some() && age == spec.max_dirty_age().ok();
    let has_limits = is_current && limits(status.limits.as_ref()) == limits(spec.limits.as_ref());
    // Only the operator uses the failover policy.
    (asked.durability.is_none() || has_durability)
        && (asked.max_dirty_age.is_none() || has_age)
        && (!asked.has_limits() || has_limits)
}

/// Parses requests and bytes per second; `None` for a value that the API server rejects.
fn limits(of: Option<&VolumeLimits>) -> Option<(Option<u64>, Option<u64>)> {
    let Some(limits) = of else { return Some((None, None)) };
    Some((limits.max_iops().ok()?, limits.max_bytes_per_second().ok()?))
}

/// Describes the settings that are not in effect yet.
fn describe_pending(volume: &Volume) -> String {
    let status = volume.status.as_ref();
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    if !is_true(conditions, ATTACHED) {
        return first_unmet(volume, &[ATTACHED], "the node has not answered yet");
    }
    match find_condition(conditions, ATTACHED).filter(|attached| attached.reason != SERVED) {
        Some(attached) => attached.message.clone(),
        None => {
            let durability = match status.and_then(|status| status.durability) {
                Some(DurabilityMode::Local) => "local",
                Some(DurabilityMode::Object) => "object",
                Some(DurabilityMode::Unknown) | None => "unknown",
            };
            let age = status.and_then(|status| status.max_dirty_age.as_deref()).unwrap_or("unknown");
            let limits = status.and_then(|status| status.limits.clone()).unwrap_or_default();
            let iops = limits.iops.map_or_else(|| "none".to_owned(), |iops| iops.to_string());
            let throughput = limits.throughput.unwrap_or_else(|| "none".to_owned());
            format!(
                "its node reports durability {durability}, maxDirtyAge {age}, maxIops {iops} and maxThroughput {throughput}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    /// A volume that `a` serves with these settings.
    fn served(durability: DurabilityMode, age: Option<&str>) -> Volume {
        let mut served = volume(Some("a"), Some("a"));
        served.spec.max_dirty_age = "90s".to_owned();
        served.metadata.generation = Some(1);
        let status = served.status.as_mut().expect("a status");
        status.conditions[0].observed_generation = Some(1);
        (status.durability, status.max_dirty_age) = (Some(durability), age.map(str::to_owned));
        served
    }

    #[test]
    fn a_change_waits_until_its_node_serves_with_it() {
        let asked =
            |fields: serde_json::Value| MutableSettings::read(serde_json::from_value(fields).expect("words"));
        let both =
            asked(serde_json::json!({ "durability": "local", "maxDirtyAge": "90s" })).expect("settings");
        let ended = |volume: &Volume| progress("v", Some(volume), &both).map(|ended| ended.is_ok());
        for (durability, age, expected) in [
            (DurabilityMode::Local, Some("1m30s"), Some(true)),
            (DurabilityMode::Object, Some("1m30s"), None),
            (DurabilityMode::Local, Some("30s"), None),
            // An older daemon reports none, and applies settings only at an attach.
            (DurabilityMode::Local, None, None),
        ] {
            assert_eq!(ended(&served(durability, age)), expected, "{durability:?} {age:?}");
        }
        for free in [volume(None, None), volume(Some("a"), None), cut_off(Some(3))] {
            assert_eq!(ended(&free), Some(true), "its next attach has them");
        }
        let mut of_before = served(DurabilityMode::Local, Some("90s"));
        of_before.metadata.generation = Some(2);
        assert_eq!(
            ended(&of_before),
            None,
            "the report may be older than the change that it seems to confirm"
        );
        let policy = asked(serde_json::json!({ "failoverPolicy": "Manual" })).expect("settings");
        let older_daemon = served(DurabilityMode::Object, None);
        assert!(progress("v", Some(&older_daemon), &policy).is_some_and(|ended| ended.is_ok()));
        let gone = progress("v", None, &both).expect("it ended").expect_err("it is gone");
        assert_eq!(gone.code(), Code::NotFound);
    }

    #[test]
    fn a_change_of_limits_waits_until_its_node_has_them() {
        let asked =
            |given: serde_json::Value| MutableSettings::read(serde_json::from_value(given).expect("words"));
        let both =
            asked(serde_json::json!({ "maxIops": "3000", "maxThroughput": "none" })).expect("settings");
        let mut volume = served(DurabilityMode::Local, Some("1m30s"));
        volume.spec.limits = Some(VolumeLimits { iops: Some(3000), throughput: None });
        let ended = |volume: &Volume| progress("v", Some(volume), &both).is_some();
        assert!(!ended(&volume));
        let status = volume.status.as_mut().expect("a status");
        status.limits = Some(VolumeLimits { iops: Some(3000), throughput: Some("1Mi".to_owned()) });
        assert!(!ended(&volume), "it still has the other");
        volume.status.as_mut().expect("a status").limits = volume.spec.limits.clone();
        assert!(ended(&volume));
    }

    #[test]
    fn what_a_change_waits_for_is_named() {
        let mut volume = served(DurabilityMode::Object, None);
        assert_eq!(
            describe_pending(&volume),
            "its node reports durability object, maxDirtyAge unknown, maxIops none and maxThroughput none"
        );
        let attached = &mut volume.status.as_mut().expect("a status").conditions[0];
        (attached.reason, attached.message) = ("NotConfigured".to_owned(), "the tmpfs is full".to_owned());
        assert_eq!(describe_pending(&volume), "the tmpfs is full");
        volume.status.as_mut().expect("a status").conditions[0].status = "False".to_owned();
        assert_eq!(describe_pending(&volume), "the tmpfs is full (Attached=False, NotConfigured)");
    }
}
