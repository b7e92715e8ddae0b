//! `ControllerExpandVolume`: raises `spec.size` and, if a node serves the volume, waits for its device to
//! grow.

use holdfast_crds::{ATTACHED, RESIZED, Volume, find_condition, is_true};
use holdfast_proto::csi::v1::{ControllerExpandVolumeRequest, ControllerExpandVolumeResponse};
use serde_json::json;
use tokio::time::Instant;
use tonic::{Request, Status};

use super::capacity::{Capacity, quantity, signed};
use super::memory::{PromisedGrowth, Undone};
use super::object_name::{is_object_name, volume_id};
use super::objects::TimedOut;
use super::readers;
use super::reason::first_unmet;
use super::serving_node::serving_node;
use super::volumes::{ClusterVolumes, missing};
use crate::capability::{Capability, VolumeAccess};
use crate::deadline;

/// Reason of [`ATTACHED`] for a healthy volume.
const SERVED: &str = "Attached";
/// Reason of [`ATTACHED`] if the device cannot grow while it is served.
const REFUSED: &str = "Refused";

/// The next step of an expansion.
#[derive(Debug, PartialEq, Eq)]
enum ExpansionStep {
    /// Writes this size, in bytes. It is larger than before, except for a memory volume: after a rejected
    /// growth, and while no node serves it, it may be smaller.
    Resize(u64),
    /// The volume already has this size, in bytes.
    Done(u64),
}

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    request: Request<ControllerExpandVolumeRequest>,
) -> Result<ControllerExpandVolumeResponse, Status> {
    let until = deadline::of(&request);
    let ControllerExpandVolumeRequest { volume_id: id, capacity_range, secrets: _, volume_capability } =
        request.into_inner();
    let name = volume_id(&id)?;
    if capacity_range.is_none() {
        return Err(Status::invalid_argument("capacity_range: is missing; name the new size"));
    }
    let capacity = Capacity::choose(capacity_range)?;
    let raw = match volume_capability {
        None => false,
        given @ Some(_) => Capability::try_from(given)?.access == VolumeAccess::Block,
    };
    if !is_object_name(name) {
        return Err(missing(name));
    }
    let volume = volumes.existing(name).await?;
    // Serializes requests of this process, so that the second counts the memory promised to the first.
    let alone = if volume.spec.is_memory() { Some(volumes.promising().await) } else { None };
    let volume = match plan(&volume, &capacity)? {
        ExpansionStep::Done(_) => volume,
        ExpansionStep::Resize(bytes) if volume.spec.is_memory() => {
            grow_memory(volumes, &volume, bytes, until).await?
        }
        ExpansionStep::Resize(bytes) => {
            let spec = json!({ "size": quantity(bytes) });
            volumes.change(volume, until, |_same_spec| Ok(Some(spec.clone())), &[]).await?
        }
    };
    drop(alone);
    let bytes = volume.spec.size_bytes().map_err(|error| Status::internal(error.to_string()))?;
    let answer =
        ControllerExpandVolumeResponse { capacity_bytes: signed(bytes), node_expansion_required: !raw };
    match volumes.wait(name, Some(volume), until, |now| progress(name, now, bytes)).await {
        Ok(outcome) => outcome.map(|()| answer),
        Err(TimedOut { last }) => {
            let why = last.map(|volume| describe_pending(&volume)).unwrap_or_default();
            Err(Status::aborted(format!(
                "the device of Volume {name} does not have {bytes} bytes yet: {why}"
            )))
        }
    }
}

/// Writes the size and limits of a memory volume for which its node has room.
///
/// # Errors
/// `RESOURCE_EXHAUSTED`: the node cannot promise that much; the Volume has its former size. Also the errors
/// of the API requests.
async fn grow_memory(
    volumes: &ClusterVolumes,
    volume: &Volume,
    bytes: u64,
    until: Instant,
) -> Result<Volume, Status> {
    let growth = PromisedGrowth::plan(volumes, volume, bytes).await?;
    let mut spec = json!({ "size": quantity(bytes) });
    if let Some(memory) = &growth.memory {
        spec["memory"] = json!(memory);
    }
    let grown = volumes.change(volume.clone(), until, |_same_spec| Ok(Some(spec.clone())), &[]).await?;
    // The process that creates volumes may have promised the same room meanwhile.
    let Err(refused) = growth.check(volumes).await else { return Ok(grown) };
    match growth.undo(volumes, grown, until).await? {
        Undone::Yes => Err(refused),
        Undone::No(grown) => Ok(*grown),
    }
}

/// Done once no node serves the volume, or its device has this size; `None` while the device has yet to grow.
///
/// # Errors
/// `FAILED_PRECONDITION`: the device cannot grow while it is served.
fn progress(name: &str, now: Option<&Volume>, bytes: u64) -> Option<Result<(), Status>> {
    let Some(volume) = now else { return Some(Err(missing(name))) };
    let serving = serving_node(volume);
    // The report of a force-detached node does not apply to the next device.
    let device = serving.and(volume.status.as_ref()).and_then(|status| status.attached_size_bytes);
    if device.map_or(serving.is_none(), |device| device >= bytes) {
        return Some(Ok(()));
    }
    let attached = find_condition(&volume.status.as_ref()?.conditions, ATTACHED)?;
    let is_of_this_size = attached.observed_generation == volume.metadata.generation;
    let is_refused = is_of_this_size && device.is_some() && attached.reason == REFUSED;
    is_refused.then(|| Err(Status::failed_precondition(format!("volume_id: {}", attached.message))))
}

/// Describes the pending growth of a device.
fn describe_pending(volume: &Volume) -> String {
    let conditions = volume.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let attached = find_condition(conditions, ATTACHED).filter(|attached| attached.reason != SERVED);
    match attached.filter(|_| is_true(conditions, ATTACHED)) {
        Some(attached) => attached.message.clone(),
        None => first_unmet(volume, &[RESIZED], "the node has not answered yet"),
    }
}

/// Plans an expansion.
///
/// # Errors
/// `OUT_OF_RANGE`: the volume is already too large. `INVALID_ARGUMENT`: it was created for readers
/// (ReadOnlyMany).
fn plan(volume: &Volume, capacity: &Capacity) -> Result<ExpansionStep, Status> {
    if readers::has_readers(volume) {
        return Err(Status::invalid_argument(
            "volume_id: the volume was created for readers (ReadOnlyMany), and does not grow. Create a larger claim with the \
             same dataSource",
        ));
    }
    let present = volume.spec.size_bytes().map_err(|error| Status::internal(error.to_string()))?;
    let wanted = min_bytes(volume, present).max(capacity.bytes);
    if !capacity.allows(wanted) {
        return Err(Status::out_of_range(format!(
            "capacity_range.limit_bytes: the volume has {present} bytes already, and cannot shrink"
        )));
    }
    Ok(if wanted == present { ExpansionStep::Done(present) } else { ExpansionStep::Resize(wanted) })
}

/// Returns the minimum size of a volume. If a memory volume's node rejected a growth, the size may shrink
/// again, down to that of the device; an unserved one has no content.
fn min_bytes(volume: &Volume, present: u64) -> u64 {
    if !volume.spec.is_memory() {
        return present;
    }
    if serving_node(volume).is_none() {
        return 0;
    }
    let device = volume.status.as_ref().and_then(|status| status.attached_size_bytes);
    // While the device recovers, the node does not report its size.
    device.map_or(present, |device| device.min(present))
}

#[cfg(test)]
mod tests {
    use holdfast_proto::csi::v1::CapacityRange;
    use tonic::Code;

    use super::super::memory::fake;
    use super::super::publish_volume::tests::volume;
    use super::super::serving_node::tests::cut_off;
    use super::*;

    const GIB: u64 = 1 << 30;

    fn capacity(required_bytes: i64, limit_bytes: i64) -> Capacity {
        Capacity::choose(Some(CapacityRange { required_bytes, limit_bytes })).expect("a capacity")
    }

    /// Regression, found in review: after a refusal in use, the resizer did not ask again while any pod
    /// referred to the claim, although the volume had grown at its next attach.
    #[test]
    fn the_resizer_retries_an_expansion_that_was_refused_in_use() {
        let chart = include_str!("../../../charts/holdfast/templates/csi-controller.yaml");
        let (_, resizer) = chart.split_once("- name: resizer\n").expect("the sidecar");
        let (resizer, _) = resizer.split_once("volumeMounts:").expect("its end");
        assert!(resizer.contains("- --handle-volume-inuse-error=false\n"), "{resizer}");
    }

    #[test]
    fn a_free_volume_grows_and_never_shrinks() {
        let free = volume(None, None);
        assert_eq!(plan(&free, &capacity(2 << 30, 0)).ok(), Some(ExpansionStep::Resize(2 * GIB)));
        assert_eq!(plan(&free, &capacity(1 << 29, 0)).ok(), Some(ExpansionStep::Done(GIB)));
        let smaller = plan(&free, &capacity(1 << 29, 1 << 29)).expect_err("cannot shrink");
        assert_eq!(smaller.code(), Code::OutOfRange);
    }

    /// Found by review: a claim whose expansion was rejected by its node could not be made smaller again.
    #[test]
    fn a_memory_volume_that_did_not_grow_takes_a_smaller_size() {
        let mut memory = volume(Some("a"), Some("a"));
        let spec = json!({ "size": "8Gi", "backend": "memory", "nodeName": "a" });
        memory.spec = serde_json::from_value(spec).expect("a spec");
        memory.status.as_mut().expect("a status").attached_size_bytes = Some(GIB);
        assert_eq!(plan(&memory, &capacity(2 << 30, 0)).ok(), Some(ExpansionStep::Resize(2 * GIB)));
        assert_eq!(
            plan(&memory, &capacity(1 << 29, 0)).ok(),
            Some(ExpansionStep::Resize(GIB)),
            "what its device has"
        );
        assert_eq!(plan(&memory, &capacity(8 << 30, 0)).ok(), Some(ExpansionStep::Done(8 * GIB)));
        memory.status.as_mut().expect("a status").attached_size_bytes = Some(8 * GIB);
        assert_eq!(
            plan(&memory, &capacity(2 << 30, 0)).ok(),
            Some(ExpansionStep::Done(8 * GIB)),
            "it has grown"
        );
        memory.status.as_mut().expect("a status").attached_size_bytes = None;
        assert_eq!(
            plan(&memory, &capacity(2 << 30, 0)).ok(),
            Some(ExpansionStep::Done(8 * GIB)),
            "it recovers"
        );
    }

    /// Regression, found in review: the resizer and the provisioner, in different processes, promised the
    /// same memory.
    #[tokio::test]
    async fn a_growth_that_another_process_overtook_is_undone() {
        let grown = async |limit_bytes, meanwhile| {
            let before = fake::volume("v", "1Gi");
            let (volumes, server) = fake::FakeApi::start(vec![before.clone()], limit_bytes, meanwhile);
            let volume = serde_json::from_value(before).expect("a Volume");
            let until = Instant::now() + std::time::Duration::from_secs(20);
            let outcome = grow_memory(&volumes, &volume, 2 * GIB, until).await;
            (outcome.map(|grown| grown.spec.size).map_err(|refused| refused.code()), server.volumes())
        };
        let named = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(name, size)| ((*name).to_owned(), (*size).to_owned())).collect()
        };
        let two = Ok(Some("2Gi".to_owned()));
        let (room, enough) = (5 * GIB / 2, 4 * GIB);
        assert_eq!(grown(room, |_| {}).await, (two.clone(), named(&[("v", "2Gi")])));
        assert_eq!(grown(3 * GIB / 2, |_| {}).await, (Err(Code::ResourceExhausted), named(&[("v", "1Gi")])));
        let rival = |volumes: &mut Vec<serde_json::Value>| volumes.push(fake::volume("rival", "1Gi"));
        let both = named(&[("v", "2Gi"), ("rival", "1Gi")]);
        assert_eq!(grown(enough, rival).await, (two.clone(), both.clone()));
        let undone = named(&[("v", "1Gi"), ("rival", "1Gi")]);
        assert_eq!(grown(room, rival).await, (Err(Code::ResourceExhausted), undone));
        // A device does not shrink.
        let device_grows = |volumes: &mut Vec<serde_json::Value>| {
            volumes[0]["status"] = json!({ "node": "a", "epoch": 1, "attachedSizeBytes": 2 * GIB });
            volumes[0]["metadata"]["resourceVersion"] = json!("2");
            volumes.push(fake::volume("rival", "1Gi"));
        };
        assert_eq!(grown(room, device_grows).await, (two, both));
    }

    /// Regression: it was rejected while the volume was attached.
    #[test]
    fn an_expansion_waits_for_the_device_of_a_volume_that_is_served() {
        let has = |volume: &Volume| progress("v", Some(volume), 2 * GIB).map(|ended| ended.is_ok());
        let mut served = volume(Some("a"), Some("a"));
        assert_eq!(has(&served), None, "the node says nothing of its device yet");
        for (bytes, expected) in [(GIB, None), (2 * GIB, Some(true)), (3 * GIB, Some(true))] {
            served.status.as_mut().expect("a status").attached_size_bytes = Some(bytes);
            assert_eq!(has(&served), expected, "{bytes}");
        }
        for free in [volume(None, None), volume(Some("a"), None), cut_off(Some(3))] {
            assert_eq!(has(&free), Some(true), "its next device has the size");
        }
        assert_eq!(has(&cut_off(Some(2))), None, "it attached again");
        let gone = progress("v", None, GIB).expect("it ended").expect_err("it is gone");
        assert_eq!(gone.code(), Code::NotFound);
    }

    #[test]
    fn a_device_that_cannot_grow_is_named_with_the_fix() {
        let mut served = volume(Some("a"), Some("a"));
        served.metadata.generation = Some(2);
        let status = served.status.as_mut().expect("a status");
        status.attached_size_bytes = Some(GIB);
        let attached = &mut status.conditions[0];
        (attached.reason, attached.message) = (REFUSED.to_owned(), "detach it".to_owned());
        attached.observed_generation = Some(1);
        assert!(progress("v", Some(&served), 2 * GIB).is_none(), "that is about an earlier size");
        assert_eq!(describe_pending(&served), "detach it");
        served.status.as_mut().expect("a status").conditions[0].observed_generation = Some(2);
        let refused = progress("v", Some(&served), 2 * GIB).expect("it ended").expect_err("it is refused");
        assert_eq!((refused.code(), refused.message()), (Code::FailedPrecondition, "volume_id: detach it"));
    }
}
