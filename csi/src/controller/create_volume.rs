//! `CreateVolume`: creates a Volume object, and waits until the volume exists in its bucket.

use std::collections::{BTreeMap, HashMap};

use holdfast_crds::{
    ByteSize, CLAIM, FS_TYPE, MEMORY_NODE, NODES, PROVISIONED, STORAGE_CLASS, TRACEPARENT, Volume,
    VolumeSnapshot, VolumeSource, is_true,
};
use holdfast_proto::csi::v1::{self, CreateVolumeRequest, CreateVolumeResponse};
use holdfast_service::trace;
use kube::ResourceExt;
use tokio::time::Instant;
use tonic::{Code, Request, Status};

use super::capacity::{Capacity, signed};
use super::memory::{self, MemoryParameters, NodeReport, NodeRoom, Promisee};
use super::object_name::{CSI_NAME, ObjectName};
use super::objects::{Objects, TimedOut};
use super::parameters::{ANY_NODE, DataHome, MutableSettings, Nodes, Parameters};
use super::reason::{first_unmet, refused};
use super::volumes::ClusterVolumes;
use super::{content_source, readers, volume_id};
use crate::capability::{AccessScope, Capability, FileSystem, VolumeAccess};
use crate::{deadline, topology};

/// A requested volume.
#[derive(Debug)]
struct WantedVolume {
    name: ObjectName,
    capacity: Capacity,
    parameters: Parameters,
    /// Its initial content.
    source: VolumeSource,
    /// The requested file system; `None` for a raw device.
    file_system: Option<FileSystem>,
    /// True if many nodes read it and none writes.
    has_readers: bool,
    /// The node whose memory must hold it.
    memory_node: Option<String>,
}

pub(super) async fn answer(
    volumes: &ClusterVolumes,
    snapshots: &Objects<VolumeSnapshot>,
    request: Request<CreateVolumeRequest>,
) -> Result<CreateVolumeResponse, Status> {
    let until = deadline::of(&request);
    let mut wanted = WantedVolume::try_from(request.into_inner())?;
    // An existing volume may outlive its source.
    if let DataHome::ObjectStore(store) = &wanted.parameters.home
        && wanted.source != VolumeSource::default()
        && volumes.get(&wanted.name.object).await?.is_none()
        && let Some(bytes) =
            content_source::size(volumes, snapshots, &wanted.source, store, wanted.file_system).await?
    {
        wanted.capacity = wanted.capacity.with_source(bytes)?;
    }
    let storage_class = match wanted.parameters.claim.as_deref().and_then(|claim| claim.split_once('/')) {
        Some((namespace, name)) => volumes.storage_class(namespace, name).await?,
        None => None,
    };
    let existing = match (&wanted.parameters.home, &wanted.memory_node) {
        (&DataHome::Memory(parameters), Some(node)) => {
            wanted.create_in_memory(volumes, (parameters, node), storage_class, until).await?
        }
        _ => volumes.create(&wanted.volume(storage_class)?).await?,
    };
    if wanted.made_by_mistake(&existing) {
        let still = |now: &Volume| match wanted.made_by_mistake(now) {
            true => Ok(()),
            false => Err(Status::aborted("the Volume changed during the request; the caller retries")),
        };
        volumes.delete(existing.clone(), until, still).await?;
    }
    wanted.accept(&existing)?;
    let uid = existing.metadata.uid.clone();
    let name = wanted.name.object.clone();
    let provisioned =
        volumes.wait(&name, Some(existing), until, |volume| progress(volume, uid.as_deref())).await;
    match provisioned {
        Ok(Err(why)) => {
            wanted.delete_refused(volumes, &name, until).await;
            Err(why)
        }
        Ok(Ok(volume)) => {
            if wanted.has_readers {
                readers::prepare(snapshots, &volume, until).await?;
            }
            let host_name = match memory::node_of(&volume) {
                Some(node) => volumes.host_name(node).await?,
                None => None,
            };
            described(&volume, wanted.parameters.nodes, host_name.as_deref())
        }
        Err(TimedOut { last }) => {
            let waiting = "the operator has not reported on the Volume yet";
            let why = last.map(|volume| first_unmet(&volume, &[PROVISIONED], waiting));
            Err(Status::aborted(format!("Volume {name} is not provisioned yet: {}", why.unwrap_or_default())))
        }
    }
}

impl TryFrom<CreateVolumeRequest> for WantedVolume {
    type Error = Status;

    fn try_from(request: CreateVolumeRequest) -> Result<Self, Status> {
        let CreateVolumeRequest {
            name,
            capacity_range,
            volume_capabilities,
            parameters,
            // A bucket's credentials are in its ObjectStore.
            secrets: _,
            volume_content_source,
            accessibility_requirements,
            mutable_parameters,
        } = request;
        let name = ObjectName::of(&name)?;
        if volume_capabilities.is_empty() {
            return Err(Status::invalid_argument("volume_capabilities: is empty; name at least one"));
        }
        let (mut least, mut file_system, mut scopes) = (Vec::new(), None, Vec::new());
        for capability in volume_capabilities {
            let capability = Capability::try_from(Some(capability))?;
            least.extend(capability.min_bytes());
            scopes.push(capability.scope);
            if let VolumeAccess::Mount { file_system: named, .. } = capability.access {
                file_system = Some(named);
            }
        }
        let source = content_source::read(volume_content_source)?;
        let parameters = Parameters::read(parameters, MutableSettings::read(mutable_parameters)?)?;
        topology::check(accessibility_requirements.as_ref(), parameters.needs_ublk())?;
        let memory_node = match parameters.home {
            DataHome::ObjectStore(_) => None,
            DataHome::Memory(_) => {
                check_memory(&scopes, &source)?;
                Some(topology::first_node(accessibility_requirements.as_ref())?)
            }
        };
        let has_readers = are_readers(&scopes, &source)?;
        let capacity = least
            .into_iter()
            .try_fold(Capacity::choose(capacity_range)?, |capacity, (bytes, file_system)| {
                capacity.with_room(bytes, file_system)
            })?;
        Ok(Self { name, capacity, parameters, source, file_system, has_readers, memory_node })
    }
}

/// Checks that a volume can be in memory.
///
/// # Errors
/// `INVALID_ARGUMENT`: it has initial content, or many nodes would read it.
fn check_memory(scopes: &[AccessScope], source: &VolumeSource) -> Result<(), Status> {
    if *source != VolumeSource::default() {
        return Err(Status::invalid_argument(
            "volume_content_source: a memory volume (backend `memory`) starts empty. Remove the dataSource of \
             the claim, and copy the files",
        ));
    }
    if scopes.contains(&AccessScope::ManyReaders) {
        return Err(Status::invalid_argument(
            "volume_capabilities: MULTI_NODE_READER_ONLY is not possible with backend `memory`, whose content is on one node. \
             Write accessModes [ReadWriteOnce] or [ReadWriteOncePod]",
        ));
    }
    Ok(())
}

/// Checks that a node with this room can promise the volume's maximum.
///
/// # Errors
/// `RESOURCE_EXHAUSTED`: the scheduler then chooses another node.
fn has_room(parameters: MemoryParameters, size_bytes: u64, node: &str, left: NodeRoom) -> Result<(), Status> {
    let most = parameters.most(size_bytes);
    let spill_fix = "node.memorySpill of the chart, or free space on its disk where that has less";
    for (max_bytes, left_bytes, of, percent, fix) in [
        (
            most.memory_bytes,
            left.memory_bytes,
            "memory",
            "maxMemoryPercent",
            "node.memoryVolumes of the chart. A node without ublk has no room",
        ),
        (most.spill_bytes, left.spill_bytes, "disk for its spill file", "spillPercent", spill_fix),
    ] {
        if max_bytes > left_bytes {
            let [most, left] = [max_bytes, left_bytes].map(|bytes| ByteSize(bytes).rounded());
            return Err(Status::resource_exhausted(format!(
                "capacity_range.required_bytes: the volume may use {most} of {of}, but node {node} can promise \
                 only {left} more. Request less, lower {percent} of the StorageClass, or raise {fix}"
            )));
        }
    }
    Ok(())
}

/// Returns true if the users of a volume are readers on many nodes.
///
/// # Errors
/// `INVALID_ARGUMENT`: it has other users, too, or no source.
fn are_readers(scopes: &[AccessScope], source: &VolumeSource) -> Result<bool, Status> {
    if !scopes.contains(&AccessScope::ManyReaders) {
        return Ok(false);
    }
    if scopes.iter().any(|one| *one != AccessScope::ManyReaders) {
        return Err(Status::invalid_argument(
            "volume_capabilities: MULTI_NODE_READER_ONLY is not supported together with another mode; write \
             accessModes [ReadOnlyMany] alone",
        ));
    }
    if *source == VolumeSource::default() {
        return Err(Status::invalid_argument(
            "volume_content_source: is missing. A volume for readers (ReadOnlyMany) is never written; name a VolumeSnapshot or \
             a claim in the dataSource of its claim",
        ));
    }
    Ok(true)
}

impl WantedVolume {
    /// Creates a volume in the memory of a node that has room, or returns the existing one.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: the node has no room. Those of the requests.
    async fn create_in_memory(
        &self,
        volumes: &ClusterVolumes,
        (parameters, node): (MemoryParameters, &str),
        storage_class: Option<String>,
        until: Instant,
    ) -> Result<Volume, Status> {
        let (name, wanted) = (&self.name.object, self.volume(storage_class)?);
        // Serializes requests of this process, so that the second counts the memory promised to the first.
        let _alone = volumes.promising().await;
        if let Some(found) = volumes.get(name).await? {
            return Ok(found);
        }
        let report = NodeReport::read(volumes, node).await?;
        let own = Promisee { name, before: None };
        let check = async || {
            let left = report.left(volumes, Some(own)).await?;
            has_room(parameters, self.capacity.bytes, node, left)
        };
        check().await?;
        let created = volumes.create(&wanted).await?;
        if created.spec.volume_id != wanted.spec.volume_id {
            return Ok(created);
        }
        // The process that expands volumes may have promised the same room meanwhile.
        match check().await {
            Ok(()) => Ok(created),
            Err(refused) if refused.code() == Code::ResourceExhausted => {
                volumes.delete(created, until, check_unused).await?;
                Err(refused)
            }
            // The room is unknown. Another process may have answered with this Volume meanwhile.
            Err(unknown) => Err(unknown),
        }
    }

    /// Builds the object to create.
    fn volume(&self, storage_class: Option<String>) -> Result<Volume, Status> {
        let mut volume = Volume::new(&self.name.object, self.parameters.spec(self.capacity.bytes)?);
        volume.spec.volume_id = Some(volume_id::fresh());
        volume.spec.source = self.source.clone();
        let annotations: BTreeMap<String, String> = [
            (CSI_NAME, self.name.csi.clone()),
            (CLAIM, self.parameters.claim.clone()),
            (STORAGE_CLASS, storage_class),
            (FS_TYPE, self.file_system.map(|named| named.name().to_owned())),
            (TRACEPARENT, trace::current()),
            (NODES, (self.parameters.nodes == Nodes::Any).then(|| ANY_NODE.to_owned())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect();
        volume.metadata.annotations = (!annotations.is_empty()).then_some(annotations);
        if self.has_readers {
            readers::mark(&mut volume);
        }
        if let Some(node) = &self.memory_node {
            volume.labels_mut().insert(MEMORY_NODE.to_owned(), node.clone());
        }
        Ok(volume)
    }

    /// Checks that the existing volume of this name matches the request.
    fn accept(&self, found: &Volume) -> Result<(), Status> {
        let name = &self.name.object;
        if found.metadata.deletion_timestamp.is_some() {
            return Err(Status::aborted(format!(
                "Volume {name} is being deleted; a later attempt creates it again"
            )));
        }
        let Some(difference) = self.difference(found) else { return Ok(()) };
        if self.made_by_mistake(found) {
            return Err(Status::aborted(format!(
                "Volume {name} was created with {difference} and never used. It is deleted and created again"
            )));
        }
        Err(Status::already_exists(format!(
            "name: Volume {name} exists with {difference}. Delete it (kubectl delete volume {name}) if it is \
             empty, or request another name"
        )))
    }

    /// Returns true if the volume was created for the same claim with other parameters, before the
    /// StorageClass was corrected, and does not exist in a bucket; or in the memory of another node, before
    /// the scheduler chose again, and was never attached.
    fn made_by_mistake(&self, found: &Volume) -> bool {
        let claim = self.parameters.claim.as_ref();
        let is_of_claim = claim.is_some() && found.annotations().get(CLAIM) == claim;
        let is_nowhere = found
            .status
            .as_ref()
            .is_none_or(|status| status.volume_id.is_none() && !is_true(&status.conditions, PROVISIONED));
        let is_elsewhere = self.is_elsewhere(found) && is_unused(found);
        is_of_claim
            && (is_nowhere || is_elsewhere)
            && found.metadata.deletion_timestamp.is_none()
            && self.difference(found).is_some()
    }

    /// Deletes the Volume that the operator refused for this claim, which holds nothing: after this response,
    /// a deletion of the claim would leave it. The next request creates another one. A failure is ignored,
    /// because that request finds the Volume refused.
    async fn delete_refused(&self, volumes: &ClusterVolumes, name: &str, until: Instant) {
        let still = |now: &Volume| match self.is_refused(now) {
            true => Ok(()),
            false => Err(Status::aborted("the Volume changed during the request")),
        };
        if let Ok(Some(found)) = volumes.get(name).await
            && still(&found).is_ok()
            && let Err(error) = volumes.delete(found, until, still).await
        {
            tracing::debug!(volume = name, error = error.message(), "a refused Volume was not deleted");
        }
    }

    /// Returns true if the operator refused the volume of this claim, and no node ever had it.
    fn is_refused(&self, found: &Volume) -> bool {
        let claim = self.parameters.claim.as_ref();
        claim.is_some()
            && found.annotations().get(CLAIM) == claim
            && refused(found).is_some()
            && is_unused(found)
            && found.metadata.deletion_timestamp.is_none()
    }

    /// Returns true if a memory volume was created for another node.
    fn is_elsewhere(&self, found: &Volume) -> bool {
        let wanted = self.memory_node.as_deref();
        wanted.is_some() && found.spec.is_memory() && memory::node_of(found) != wanted
    }

    /// Describes the first difference between a volume and the request.
    fn difference(&self, found: &Volume) -> Option<String> {
        let Ok(bytes) = found.spec.size_bytes() else {
            return Some(format!("size `{}`", found.spec.size.as_deref().unwrap_or_default()));
        };
        if found.annotations().get(CSI_NAME) != self.name.csi.as_ref() {
            Some("another name in CSI".to_owned())
        } else if !self.capacity.allows(bytes) {
            Some(format!("{bytes} bytes"))
        } else if found.spec.source != self.source {
            Some("another initial content".to_owned())
        } else if readers::has_readers(found) != self.has_readers {
            Some("another access mode".to_owned())
        } else if self.is_elsewhere(found) {
            let of_node = |node: &str| format!("the memory of node {node}");
            Some(memory::node_of(found).map_or_else(|| "the memory of any node".to_owned(), of_node))
        } else if found.metadata.generation.is_some_and(|generation| generation > 1) {
            // The spec was changed since, which may explain different settings.
            self.parameters.difference(&found.spec)
        } else {
            self.parameters.difference_of_new(&found.spec)
        }
    }
}

/// Returns true if no node has attached a volume, or may attach it now.
fn is_unused(volume: &Volume) -> bool {
    let is_used = volume.status.as_ref().is_some_and(|status| {
        let nodes = [&status.node, &status.assigned_node];
        let is_named = nodes.into_iter().flatten().any(|node| !node.is_empty());
        is_named || status.epoch.is_some() || status.last_epoch.is_some()
    });
    !is_used && volume.spec.desired_node().is_none()
}

/// Checks that a volume is unused.
///
/// # Errors
/// `ABORTED`: a node may use it.
fn check_unused(volume: &Volume) -> Result<(), Status> {
    if is_unused(volume) {
        return Ok(());
    }
    Err(Status::aborted("the Volume was attached during the request; the caller retries"))
}

/// Returns the volume once it is provisioned, or the reason why it never will be; `None` while in progress.
fn progress(volume: Option<&Volume>, uid: Option<&str>) -> Option<Result<Volume, Status>> {
    let Some(volume) = volume.filter(|volume| volume.metadata.uid.as_deref() == uid) else {
        return Some(Err(Status::aborted(
            "the Volume was deleted in the meantime; the next attempt creates it again",
        )));
    };
    let status = volume.status.as_ref()?;
    if is_true(&status.conditions, PROVISIONED) {
        return Some(Ok(volume.clone()));
    }
    refused(volume).map(Err)
}

/// Returns the response for a volume. `host_name` is the host name of a memory volume's node.
fn described(volume: &Volume, nodes: Nodes, host_name: Option<&str>) -> Result<CreateVolumeResponse, Status> {
    let bytes = volume.spec.size_bytes().map_err(|error| Status::internal(error.to_string()))?;
    let volume_id = volume.status.as_ref().and_then(|status| status.volume_id.clone());
    let context = [("volumeID", volume_id), ("objectStore", volume.spec.object_store.clone())];
    let context: HashMap<String, String> =
        context.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    Ok(CreateVolumeResponse {
        volume: Some(v1::Volume {
            capacity_bytes: signed(bytes),
            volume_id: volume.name_any(),
            volume_context: context,
            content_source: content_source::described(&volume.spec.source),
            accessible_topology: match (memory::node_of(volume), nodes) {
                (Some(node), _) => vec![topology::of_volume_on(node, host_name)],
                (None, Nodes::Served) => vec![topology::of_volume(volume.spec.needs_ublk())],
                (None, Nodes::Any) => Vec::new(),
            },
        }),
    })
}

#[cfg(test)]
mod tests;
