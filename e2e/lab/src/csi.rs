//! Client of the CSI driver, with the requests of the sidecars and the kubelet.
//!
//! Owns: the process of the Controller service on the host; requests in the terms of a scenario.
//! Does not own: the expected responses.
//! On failure: a rejection is a value ([`GrpcError`]); only an unreachable driver is an error.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
pub use holdfast_proto::csi::v1::VolumeGroupSnapshot as GroupSnapshot;
use holdfast_proto::csi::v1::volume_capability::access_mode::Mode;
use holdfast_proto::csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use holdfast_proto::csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use holdfast_proto::csi::v1::{
    self, CapacityRange, Topology, TopologyRequirement, VolumeCapability, VolumeContentSource,
};
use prost::Message;

use crate::process::LoggedProcess;
use crate::rpc::{GrpcError, GrpcSocket};
use crate::wait::until;

const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a request that is expected to succeed.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a request that is expected to time out.
pub const SHORT: Duration = Duration::from_secs(3);

/// The driver's response.
pub type CsiResponse<T> = Result<T, GrpcError>;

/// Offset and length in bytes.
pub type Extent = (u64, u64);

/// The response of the SnapshotMetadata service.
#[derive(Debug, Clone)]
pub struct MetadataResponse {
    /// The ranges of each message.
    pub messages: Vec<Vec<Extent>>,
    /// The size of the snapshot in bytes, as given in each message.
    pub capacities: Vec<i64>,
    /// The error that ended them.
    pub refused: Option<GrpcError>,
}

/// Use of a volume, as requested by a pod.
#[derive(Debug, Clone)]
pub struct Use {
    capability: VolumeCapability,
}

impl Use {
    /// Returns a mount with this file system for any number of pods of one node (ReadWriteOnce).
    pub fn mounted(fs_type: &str) -> Self {
        Self::of(Self::mount(fs_type, &[]), Mode::SingleNodeMultiWriter)
    }

    /// Returns a mount with this file system and these mount options, for any number of pods of one node.
    pub fn mounted_with(fs_type: &str, options: &[&str]) -> Self {
        Self::of(Self::mount(fs_type, options), Mode::SingleNodeMultiWriter)
    }

    /// Returns a mount for one pod (ReadWriteOncePod).
    pub fn mounted_by_one(fs_type: &str) -> Self {
        Self::of(Self::mount(fs_type, &[]), Mode::SingleNodeSingleWriter)
    }

    /// Returns a mount on several nodes at a time (ReadWriteMany).
    pub fn shared() -> Self {
        Self::of(Self::mount("ext4", &[]), Mode::MultiNodeMultiWriter)
    }

    /// Returns a raw block device.
    pub fn block() -> Self {
        Self::of(AccessType::Block(BlockVolume {}), Mode::SingleNodeMultiWriter)
    }

    /// Returns a read-only mount with this file system for any number of pods of many nodes (ReadOnlyMany).
    pub fn read(fs_type: &str) -> Self {
        Self::of(Self::mount(fs_type, &[]), Mode::MultiNodeReaderOnly)
    }

    /// Returns a read-only raw block device for any number of pods of many nodes (ReadOnlyMany).
    pub fn read_block() -> Self {
        Self::of(AccessType::Block(BlockVolume {}), Mode::MultiNodeReaderOnly)
    }

    /// Converts it for a request.
    pub(crate) fn capability(&self) -> VolumeCapability {
        self.capability.clone()
    }

    fn mount(fs_type: &str, options: &[&str]) -> AccessType {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: options.iter().map(|&option| option.to_owned()).collect(),
            volume_mount_group: String::new(),
        })
    }

    fn of(access_type: AccessType, mode: Mode) -> Self {
        let capability = VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access_type),
        };
        Self { capability }
    }
}

/// A volume to create.
#[derive(Debug, Clone)]
pub struct RequestedVolume {
    /// The request.
    pub request: v1::CreateVolumeRequest,
}

impl RequestedVolume {
    /// Returns a volume of this name and size in an ObjectStore.
    pub fn new(name: &str, bytes: i64, store: &str) -> Self {
        let request = v1::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![Use::mounted("ext4").capability],
            parameters: HashMap::from([("objectStore".to_owned(), store.to_owned())]),
            ..v1::CreateVolumeRequest::default()
        };
        Self { request }
    }

    /// Returns a memory volume of this name and size, for the node chosen by the scheduler.
    pub fn in_memory(name: &str, bytes: i64, node: &str) -> Self {
        let mut new = Self::new(name, bytes, "").parameter("backend", "memory").chosen(&topology_of(node));
        new.request.parameters.remove("objectStore");
        new
    }

    /// Adds a parameter of its StorageClass.
    #[must_use]
    pub fn parameter(mut self, key: &str, value: &str) -> Self {
        self.request.parameters.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets the topology of the node chosen by the scheduler.
    #[must_use]
    pub fn chosen(mut self, node: &Topology) -> Self {
        let chosen = vec![node.clone()];
        self.request.accessibility_requirements =
            Some(TopologyRequirement { requisite: chosen.clone(), preferred: chosen });
        self
    }

    /// Sets parameters of its VolumeAttributesClass.
    #[must_use]
    pub fn attributes(mut self, parameters: &[(&str, &str)]) -> Self {
        self.request.mutable_parameters = owned(parameters);
        self
    }

    /// Sets the snapshot that it is created from, whose size is the minimum.
    #[must_use]
    pub fn from_snapshot(self, id: &str) -> Self {
        self.from(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }))
    }

    /// Sets the volume that it is cloned from, whose size is the minimum.
    #[must_use]
    pub fn from_volume(self, id: &str) -> Self {
        self.from(Type::Volume(VolumeSource { volume_id: id.to_owned() }))
    }

    fn from(mut self, r#type: Type) -> Self {
        self.request.volume_content_source = Some(VolumeContentSource { r#type: Some(r#type) });
        self
    }

    /// Sets its use.
    #[must_use]
    pub fn with_use(mut self, usage: &Use) -> Self {
        self.request.volume_capabilities = vec![usage.capability.clone()];
        self
    }
}

fn owned(parameters: &[(&str, &str)]) -> HashMap<String, String> {
    parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Returns the topology of a node, as written by its kubelet.
fn topology_of(node: &str) -> Topology {
    let segments = [("topology.holdfast.dev/served", "true"), ("topology.holdfast.dev/node", node)];
    Topology { segments: owned(&segments) }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|&name| name.to_owned()).collect()
}

/// A volume as listed by the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedVolume {
    /// Id of the volume.
    pub volume: String,
    /// The nodes on which it is published.
    pub nodes: Vec<String>,
}

/// One socket of the driver.
#[derive(Debug, Clone)]
pub struct Csi(GrpcSocket);

impl Csi {
    /// Creates a client of the driver at a socket.
    pub fn new(socket: GrpcSocket) -> Self {
        Self(socket)
    }

    /// Sends a request to a method such as `Identity/Probe` of CSI.
    ///
    /// # Errors
    /// If the driver is unreachable, or its response is invalid.
    pub fn call<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<CsiResponse<A>> {
        let answer = self.0.call(&format!("/csi.v1.{method}"), &request.encode_to_vec(), limit)?;
        match answer {
            Ok(bytes) => Ok(Ok(A::decode(bytes.as_slice()).context("read the answer")?)),
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// Sends a request with a stream of responses. Returns those, and the error that ended them.
    ///
    /// # Errors
    /// If the driver is unreachable, or a message is invalid.
    pub fn call_for_stream<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<(Vec<A>, Option<GrpcError>)> {
        let method = format!("/csi.v1.{method}");
        let (messages, refused) = self.0.call_for_stream(&method, &request.encode_to_vec(), limit)?;
        let read = |bytes: &Vec<u8>| A::decode(bytes.as_slice()).context("read a message");
        Ok((messages.iter().map(read).collect::<Result<_>>()?, refused))
    }

    /// Returns the ranges that differ between two snapshots from this byte on, or all allocated ranges of
    /// `target`, with at most `max_ranges` per message.
    ///
    /// # Errors
    /// If the driver is unreachable, or a range is invalid.
    pub fn changed_blocks(
        &self,
        base: Option<&str>,
        target: &str,
        from: u64,
        max_ranges: i32,
    ) -> Result<MetadataResponse> {
        let (starting_offset, max_results) = (i64::try_from(from)?, max_ranges);
        let (responses, refused): (Vec<_>, _) = match base {
            None => {
                let (snapshot_id, secrets) = (target.to_owned(), HashMap::new());
                let request =
                    v1::GetMetadataAllocatedRequest { snapshot_id, starting_offset, max_results, secrets };
                let (responses, refused): (Vec<v1::GetMetadataAllocatedResponse>, _) =
                    self.call_for_stream("SnapshotMetadata/GetMetadataAllocated", &request, LIMIT)?;
                let responses =
                    responses.into_iter().map(|one| (one.volume_capacity_bytes, one.block_metadata));
                (responses.collect(), refused)
            }
            Some(base) => {
                let request = v1::GetMetadataDeltaRequest {
                    base_snapshot_id: base.to_owned(),
                    target_snapshot_id: target.to_owned(),
                    starting_offset,
                    max_results,
                    secrets: HashMap::new(),
                };
                let (responses, refused): (Vec<v1::GetMetadataDeltaResponse>, _) =
                    self.call_for_stream("SnapshotMetadata/GetMetadataDelta", &request, LIMIT)?;
                let responses =
                    responses.into_iter().map(|one| (one.volume_capacity_bytes, one.block_metadata));
                (responses.collect(), refused)
            }
        };
        let extent = |range: &v1::BlockMetadata| {
            anyhow::Ok((u64::try_from(range.byte_offset)?, u64::try_from(range.size_bytes)?))
        };
        let messages = responses.iter().map(|(_, ranges)| ranges.iter().map(extent).collect());
        let messages = messages.collect::<Result<_>>()?;
        Ok(MetadataResponse {
            messages,
            capacities: responses.iter().map(|(bytes, _)| *bytes).collect(),
            refused,
        })
    }

    /// `CreateVolume`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn create(&self, new: &RequestedVolume, limit: Duration) -> Result<CsiResponse<v1::Volume>> {
        let answer: CsiResponse<v1::CreateVolumeResponse> =
            self.call("Controller/CreateVolume", &new.request, limit)?;
        Ok(answer.map(|created| created.volume.unwrap_or_default()))
    }

    /// `GetCapacity`: returns the size of the largest memory volume that fits on a node, in bytes.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn memory_capacity(&self, node: &str, class: &[(&str, &str)]) -> Result<CsiResponse<i64>> {
        let of_all = [("backend", "memory"), ("csi.storage.k8s.io/fstype", "ext4")];
        let request = v1::GetCapacityRequest {
            parameters: owned(&[&of_all, class].concat()),
            accessible_topology: Some(topology_of(node)),
            ..Default::default()
        };
        let answer: CsiResponse<v1::GetCapacityResponse> =
            self.call("Controller/GetCapacity", &request, LIMIT)?;
        Ok(answer.map(|capacity| capacity.available_capacity))
    }

    /// `DeleteVolume`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn delete(&self, volume: &str, limit: Duration) -> Result<CsiResponse<()>> {
        let request = v1::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        let answer: CsiResponse<v1::DeleteVolumeResponse> =
            self.call("Controller/DeleteVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `ControllerPublishVolume`: returns the publish context.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn publish(
        &self,
        volume: &str,
        node: &str,
        limit: Duration,
    ) -> Result<CsiResponse<HashMap<String, String>>> {
        self.publish_as(volume, node, &Use::mounted("ext4"), limit)
    }

    /// `ControllerPublishVolume` for this use: returns the publish context.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn publish_as(
        &self,
        volume: &str,
        node: &str,
        usage: &Use,
        limit: Duration,
    ) -> Result<CsiResponse<HashMap<String, String>>> {
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(usage.capability()),
            ..Default::default()
        };
        let answer: CsiResponse<v1::ControllerPublishVolumeResponse> =
            self.call("Controller/ControllerPublishVolume", &request, limit)?;
        Ok(answer.map(|published| published.publish_context))
    }

    /// `ControllerUnpublishVolume`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn unpublish(&self, volume: &str, node: &str, limit: Duration) -> Result<CsiResponse<()>> {
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let answer: CsiResponse<v1::ControllerUnpublishVolumeResponse> =
            self.call("Controller/ControllerUnpublishVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `ControllerExpandVolume`: returns the new size in bytes.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn expand(&self, volume: &str, bytes: i64) -> Result<CsiResponse<i64>> {
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        let answer: CsiResponse<v1::ControllerExpandVolumeResponse> =
            self.call("Controller/ControllerExpandVolume", &request, LIMIT)?;
        Ok(answer.map(|expanded| expanded.capacity_bytes))
    }

    /// `ControllerModifyVolume` with these parameters of a VolumeAttributesClass.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn modify(
        &self,
        volume: &str,
        parameters: &[(&str, &str)],
        limit: Duration,
    ) -> Result<CsiResponse<()>> {
        let request = v1::ControllerModifyVolumeRequest {
            volume_id: volume.to_owned(),
            mutable_parameters: owned(parameters),
            ..Default::default()
        };
        let answer: CsiResponse<v1::ControllerModifyVolumeResponse> =
            self.call("Controller/ControllerModifyVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `CreateSnapshot`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn snapshot(&self, name: &str, volume: &str, limit: Duration) -> Result<CsiResponse<v1::Snapshot>> {
        let request = v1::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        let answer: CsiResponse<v1::CreateSnapshotResponse> =
            self.call("Controller/CreateSnapshot", &request, limit)?;
        Ok(answer.map(|created| created.snapshot.unwrap_or_default()))
    }

    /// `DeleteSnapshot`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn delete_snapshot(&self, id: &str) -> Result<CsiResponse<()>> {
        let request = v1::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let answer: CsiResponse<v1::DeleteSnapshotResponse> =
            self.call("Controller/DeleteSnapshot", &request, LIMIT)?;
        Ok(answer.map(drop))
    }

    /// `ListSnapshots`: returns the ids of a volume's snapshots, or of all.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn snapshots(&self, volume: &str) -> Result<CsiResponse<Vec<String>>> {
        let request = v1::ListSnapshotsRequest { source_volume_id: volume.to_owned(), ..Default::default() };
        let answer: CsiResponse<v1::ListSnapshotsResponse> =
            self.call("Controller/ListSnapshots", &request, LIMIT)?;
        let id = |entry: v1::list_snapshots_response::Entry| entry.snapshot.unwrap_or_default().snapshot_id;
        Ok(answer.map(|list| list.entries.into_iter().map(id).collect()))
    }

    /// `ListSnapshots`: returns all snapshots as received.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn all_snapshots(&self) -> Result<CsiResponse<Vec<v1::Snapshot>>> {
        let request = v1::ListSnapshotsRequest::default();
        let answer: CsiResponse<v1::ListSnapshotsResponse> =
            self.call("Controller/ListSnapshots", &request, LIMIT)?;
        Ok(answer.map(|list| list.entries.into_iter().filter_map(|entry| entry.snapshot).collect()))
    }

    /// `GetSnapshot`.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn get_snapshot(&self, id: &str) -> Result<CsiResponse<v1::Snapshot>> {
        let request = v1::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let answer: CsiResponse<v1::GetSnapshotResponse> =
            self.call("Controller/GetSnapshot", &request, LIMIT)?;
        Ok(answer.map(|found| found.snapshot.unwrap_or_default()))
    }

    /// `CreateVolumeGroupSnapshot` with these parameters of a VolumeGroupSnapshotClass.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn group_snapshot(
        &self,
        name: &str,
        volumes: &[&str],
        parameters: &[(&str, &str)],
        limit: Duration,
    ) -> Result<CsiResponse<GroupSnapshot>> {
        let request = v1::CreateVolumeGroupSnapshotRequest {
            name: name.to_owned(),
            source_volume_ids: names(volumes),
            parameters: owned(parameters),
            ..Default::default()
        };
        let answer: CsiResponse<v1::CreateVolumeGroupSnapshotResponse> =
            self.call("GroupController/CreateVolumeGroupSnapshot", &request, limit)?;
        Ok(answer.map(|created| created.group_snapshot.unwrap_or_default()))
    }

    /// `GetVolumeGroupSnapshot`, of a group of these snapshots.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn get_group_snapshot(&self, id: &str, snapshots: &[&str]) -> Result<CsiResponse<GroupSnapshot>> {
        let request = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids: names(snapshots),
            ..Default::default()
        };
        let answer: CsiResponse<v1::GetVolumeGroupSnapshotResponse> =
            self.call("GroupController/GetVolumeGroupSnapshot", &request, LIMIT)?;
        Ok(answer.map(|found| found.group_snapshot.unwrap_or_default()))
    }

    /// `DeleteVolumeGroupSnapshot`, of a group of these snapshots.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn delete_group_snapshot(&self, id: &str, snapshots: &[&str]) -> Result<CsiResponse<()>> {
        let request = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids: names(snapshots),
            ..Default::default()
        };
        let answer: CsiResponse<v1::DeleteVolumeGroupSnapshotResponse> =
            self.call("GroupController/DeleteVolumeGroupSnapshot", &request, LIMIT)?;
        Ok(answer.map(drop))
    }

    /// `ListVolumes`: returns each volume with the nodes on which it is published.
    ///
    /// # Errors
    /// If the driver is unreachable.
    pub fn list(&self) -> Result<CsiResponse<Vec<ListedVolume>>> {
        let request = v1::ListVolumesRequest::default();
        let answer: CsiResponse<v1::ListVolumesResponse> =
            self.call("Controller/ListVolumes", &request, LIMIT)?;
        let listed = |entry: v1::list_volumes_response::Entry| {
            let nodes = entry.status.unwrap_or_default().published_node_ids;
            ListedVolume { volume: entry.volume.unwrap_or_default().volume_id, nodes }
        };
        Ok(answer.map(|list| list.entries.into_iter().map(listed).collect()))
    }
}

/// A cluster-wide service of the driver as a process of the host.
#[derive(Debug)]
pub struct CsiService {
    command: Mutex<Option<LoggedProcess>>,
    /// Its subcommand, also used as its name.
    service: &'static str,
    program: PathBuf,
    /// Additional variables.
    environment: BTreeMap<String, String>,
    dir: PathBuf,
}

impl CsiService {
    /// Starts `program` with the subcommand `service`. It reaches the API with the kubeconfig of this text,
    /// and gets `environment` in addition to its usual one.
    ///
    /// # Errors
    /// If it does not respond in time.
    pub fn start(
        program: &Path,
        service: &'static str,
        kubeconfig: &str,
        environment: BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        fs::write(dir.join(format!("{service}.kubeconfig")), kubeconfig)
            .context("write the driver's kubeconfig")?;
        let (command, program, dir) = (Mutex::new(None), program.to_owned(), dir.to_owned());
        let started = Self { command, service, program, environment, dir };
        started.restart()?;
        Ok(started)
    }

    /// Returns a client of its socket.
    pub fn csi(&self) -> Csi {
        Csi::new(GrpcSocket::Host(self.socket()))
    }

    /// Kills it, like the loss of its node.
    pub fn kill(&self) {
        self.lock().take();
    }

    /// Restarts it after [`CsiService::kill`].
    ///
    /// # Errors
    /// If it is running, or does not respond in time.
    pub fn restart(&self) -> Result<()> {
        let mut running = self.lock();
        ensure!(running.is_none(), "the CSI {} runs already", self.service);
        let endpoint = format!("--endpoint=unix://{}", self.socket().display());
        let mut command = Command::new(&self.program);
        command
            .env("KUBECONFIG", self.dir.join(format!("{}.kubeconfig", self.service)))
            .env("RUST_LOG", "info")
            .envs(&self.environment)
            // Several may run on the host.
            .args([self.service, &endpoint, "--metrics-address=127.0.0.1:0"]);
        let name = format!("csi-{}", self.service);
        let log = self.dir.join(format!("{}.log", self.service));
        let mut process = LoggedProcess::spawn(&name, &command, &log)?;
        until("the CSI driver to answer", START_LIMIT, || {
            process.check_running()?;
            Ok(std::os::unix::net::UnixStream::connect(self.socket()).ok())
        })?;
        *running = Some(process);
        Ok(())
    }

    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.service))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<LoggedProcess>> {
        self.command.lock().expect("nothing panics while it holds this lock")
    }
}

/// Returns the value of a response that should be a success.
///
/// # Errors
/// If the driver rejected the request.
pub fn expect_granted<T>(what: &str, answer: CsiResponse<T>) -> Result<T> {
    answer.map_err(|refused| anyhow::anyhow!("{what}: {}: {}", refused.code, refused.message))
}

/// Checks that a response is a rejection with this code, and with words in its message.
///
/// # Errors
/// If the driver granted it, or rejected it for another reason.
pub fn expect_refused<T>(what: &str, answer: CsiResponse<T>, code: &str, words: &str) -> Result<()> {
    match answer {
        Ok(_) => bail!("{what}: was granted"),
        Err(refused) => {
            ensure!(
                refused.code == code && refused.message.contains(words),
                "{what}: not {code} with {words:?} but {}: {}",
                refused.code,
                refused.message
            );
            Ok(())
        }
    }
}
