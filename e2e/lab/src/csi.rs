//! The CSI driver, asked as the sidecars and the kubelet ask it.
//!
//! Owns: the process of the Controller service on the host; requests in the words of a scenario.
//! Does not own: what an answer should be.
//! On failure: a refusal is a value ([`Refused`]); only a driver that cannot be asked is an error.

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

use crate::process::Process;
use crate::rpc::{Refused, Socket};
use crate::wait::until;

const START_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a request that is expected to succeed.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Time limit of a request that is expected to time out.
pub const SHORT: Duration = Duration::from_secs(3);

/// The answer of the driver.
pub type Answer<T> = Result<T, Refused>;

/// Offset and length in bytes.
pub type Extent = (u64, u64);

/// The answer of the SnapshotMetadata service.
#[derive(Debug, Clone)]
pub struct Told {
    /// The ranges of each message.
    pub messages: Vec<Vec<Extent>>,
    /// The size of the snapshot in bytes, as each message says it.
    pub capacities: Vec<i64>,
    /// The refusal that ended them.
    pub refused: Option<Refused>,
}

/// Use of a volume, as a pod asks for it.
#[derive(Debug, Clone)]
pub struct Use {
    capability: VolumeCapability,
}

impl Use {
    /// Mounted with this file system by any number of pods of a node (ReadWriteOnce).
    pub fn mounted(fs_type: &str) -> Self {
        Self::of(Self::mount(fs_type, &[]), Mode::SingleNodeMultiWriter)
    }

    /// The same with options of the mount.
    pub fn mounted_with(fs_type: &str, options: &[&str]) -> Self {
        Self::of(Self::mount(fs_type, options), Mode::SingleNodeMultiWriter)
    }

    /// Mounted by one pod (ReadWriteOncePod).
    pub fn mounted_by_one(fs_type: &str) -> Self {
        Self::of(Self::mount(fs_type, &[]), Mode::SingleNodeSingleWriter)
    }

    /// Mounted on several nodes at a time (ReadWriteMany).
    pub fn shared() -> Self {
        Self::of(Self::mount("ext4", &[]), Mode::MultiNodeMultiWriter)
    }

    /// A raw block device.
    pub fn block() -> Self {
        Self::of(AccessType::Block(BlockVolume {}), Mode::SingleNodeMultiWriter)
    }

    /// Mounted with this file system by any number of pods of many nodes, which only read (ReadOnlyMany).
    pub fn read(fs_type: &str) -> Self {
        Self::of(Self::mount(fs_type, &[]), Mode::MultiNodeReaderOnly)
    }

    /// The same as a raw block device.
    pub fn read_block() -> Self {
        Self::of(AccessType::Block(BlockVolume {}), Mode::MultiNodeReaderOnly)
    }

    /// As a request says it.
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
pub struct NewVolume {
    /// The request.
    pub request: v1::CreateVolumeRequest,
}

impl NewVolume {
    /// A volume of this name and size in an ObjectStore.
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

    /// A memory volume of this name and size, for the node that the scheduler chose.
    pub fn in_memory(name: &str, bytes: i64, node: &str) -> Self {
        let mut new = Self::new(name, bytes, "").parameter("backend", "memory").chosen(&on(node));
        new.request.parameters.remove("objectStore");
        new
    }

    /// With a further parameter of its StorageClass.
    #[must_use]
    pub fn parameter(mut self, key: &str, value: &str) -> Self {
        self.request.parameters.insert(key.to_owned(), value.to_owned());
        self
    }

    /// For a node of this topology, which the scheduler chose.
    #[must_use]
    pub fn chosen(mut self, node: &Topology) -> Self {
        let chosen = vec![node.clone()];
        self.request.accessibility_requirements =
            Some(TopologyRequirement { requisite: chosen.clone(), preferred: chosen });
        self
    }

    /// With these parameters of its VolumeAttributesClass.
    #[must_use]
    pub fn attributes(mut self, parameters: &[(&str, &str)]) -> Self {
        self.request.mutable_parameters = owned(parameters);
        self
    }

    /// Of at least the size of the snapshot of this id, and with its content.
    #[must_use]
    pub fn from_snapshot(self, id: &str) -> Self {
        self.from(Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() }))
    }

    /// The same of another volume.
    #[must_use]
    pub fn from_volume(self, id: &str) -> Self {
        self.from(Type::Volume(VolumeSource { volume_id: id.to_owned() }))
    }

    fn from(mut self, r#type: Type) -> Self {
        self.request.volume_content_source = Some(VolumeContentSource { r#type: Some(r#type) });
        self
    }

    /// To be used like that.
    #[must_use]
    pub fn used(mut self, how: &Use) -> Self {
        self.request.volume_capabilities = vec![how.capability.clone()];
        self
    }
}

fn owned(parameters: &[(&str, &str)]) -> HashMap<String, String> {
    parameters.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// The topology of a node, as its kubelet writes it.
fn on(node: &str) -> Topology {
    let segments = [("topology.holdfast.dev/served", "true"), ("topology.holdfast.dev/node", node)];
    Topology { segments: owned(&segments) }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|&name| name.to_owned()).collect()
}

/// A volume as the driver lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub volume: String,
    /// The nodes that it is published on.
    pub nodes: Vec<String>,
}

/// One socket of the driver.
#[derive(Debug, Clone)]
pub struct Csi(Socket);

impl Csi {
    /// The driver behind a socket.
    pub fn new(socket: Socket) -> Self {
        Self(socket)
    }

    /// Sends a request to a method such as `Identity/Probe` of CSI.
    ///
    /// # Errors
    /// If the driver cannot be asked, or its answer cannot be read.
    pub fn ask<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<Answer<A>> {
        let answer = self.0.call(&format!("/csi.v1.{method}"), &request.encode_to_vec(), limit)?;
        match answer {
            Ok(bytes) => Ok(Ok(A::decode(bytes.as_slice()).context("read the answer")?)),
            Err(refused) => Ok(Err(refused)),
        }
    }

    /// Sends a request that is answered by several messages. Returns those, and the refusal that ended them.
    ///
    /// # Errors
    /// If the driver cannot be asked, or a message cannot be read.
    pub fn ask_for_stream<A: Message + Default>(
        &self,
        method: &str,
        request: &impl Message,
        limit: Duration,
    ) -> Result<(Vec<A>, Option<Refused>)> {
        let method = format!("/csi.v1.{method}");
        let (messages, refused) = self.0.call_for_stream(&method, &request.encode_to_vec(), limit)?;
        let read = |bytes: &Vec<u8>| A::decode(bytes.as_slice()).context("read a message");
        Ok((messages.iter().map(read).collect::<Result<_>>()?, refused))
    }

    /// The ranges that differ between two snapshots from this byte on, or that `target` holds, with so many
    /// in a message.
    ///
    /// # Errors
    /// If the driver cannot be asked, or a range is none.
    pub fn changed_blocks(&self, base: Option<&str>, target: &str, from: u64, most: i32) -> Result<Told> {
        let (starting_offset, max_results) = (i64::try_from(from)?, most);
        let (told, refused): (Vec<_>, _) = match base {
            None => {
                let (snapshot_id, secrets) = (target.to_owned(), HashMap::new());
                let request =
                    v1::GetMetadataAllocatedRequest { snapshot_id, starting_offset, max_results, secrets };
                let (told, refused): (Vec<v1::GetMetadataAllocatedResponse>, _) =
                    self.ask_for_stream("SnapshotMetadata/GetMetadataAllocated", &request, LIMIT)?;
                let told = told.into_iter().map(|one| (one.volume_capacity_bytes, one.block_metadata));
                (told.collect(), refused)
            }
            Some(base) => {
                let request = v1::GetMetadataDeltaRequest {
                    base_snapshot_id: base.to_owned(),
                    target_snapshot_id: target.to_owned(),
                    starting_offset,
                    max_results,
                    secrets: HashMap::new(),
                };
                let (told, refused): (Vec<v1::GetMetadataDeltaResponse>, _) =
                    self.ask_for_stream("SnapshotMetadata/GetMetadataDelta", &request, LIMIT)?;
                let told = told.into_iter().map(|one| (one.volume_capacity_bytes, one.block_metadata));
                (told.collect(), refused)
            }
        };
        let extent = |range: &v1::BlockMetadata| {
            anyhow::Ok((u64::try_from(range.byte_offset)?, u64::try_from(range.size_bytes)?))
        };
        let messages = told.iter().map(|(_, ranges)| ranges.iter().map(extent).collect());
        let messages = messages.collect::<Result<_>>()?;
        Ok(Told { messages, capacities: told.iter().map(|(bytes, _)| *bytes).collect(), refused })
    }

    /// `CreateVolume`.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn create(&self, new: &NewVolume, limit: Duration) -> Result<Answer<v1::Volume>> {
        let answer: Answer<v1::CreateVolumeResponse> =
            self.ask("Controller/CreateVolume", &new.request, limit)?;
        Ok(answer.map(|created| created.volume.unwrap_or_default()))
    }

    /// `GetCapacity`: the largest memory volume that a node can take, in bytes.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn memory_capacity(&self, node: &str, class: &[(&str, &str)]) -> Result<Answer<i64>> {
        let of_all = [("backend", "memory"), ("csi.storage.k8s.io/fstype", "ext4")];
        let request = v1::GetCapacityRequest {
            parameters: owned(&[&of_all, class].concat()),
            accessible_topology: Some(on(node)),
            ..Default::default()
        };
        let answer: Answer<v1::GetCapacityResponse> = self.ask("Controller/GetCapacity", &request, LIMIT)?;
        Ok(answer.map(|capacity| capacity.available_capacity))
    }

    /// `DeleteVolume`.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn delete(&self, volume: &str, limit: Duration) -> Result<Answer<()>> {
        let request = v1::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
        let answer: Answer<v1::DeleteVolumeResponse> =
            self.ask("Controller/DeleteVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `ControllerPublishVolume`: the publish context.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn publish(
        &self,
        volume: &str,
        node: &str,
        limit: Duration,
    ) -> Result<Answer<HashMap<String, String>>> {
        self.publish_as(volume, node, &Use::mounted("ext4"), limit)
    }

    /// The same for another use.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn publish_as(
        &self,
        volume: &str,
        node: &str,
        how: &Use,
        limit: Duration,
    ) -> Result<Answer<HashMap<String, String>>> {
        let request = v1::ControllerPublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            volume_capability: Some(how.capability()),
            ..Default::default()
        };
        let answer: Answer<v1::ControllerPublishVolumeResponse> =
            self.ask("Controller/ControllerPublishVolume", &request, limit)?;
        Ok(answer.map(|published| published.publish_context))
    }

    /// `ControllerUnpublishVolume`.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn unpublish(&self, volume: &str, node: &str, limit: Duration) -> Result<Answer<()>> {
        let request = v1::ControllerUnpublishVolumeRequest {
            volume_id: volume.to_owned(),
            node_id: node.to_owned(),
            ..Default::default()
        };
        let answer: Answer<v1::ControllerUnpublishVolumeResponse> =
            self.ask("Controller/ControllerUnpublishVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `ControllerExpandVolume`: the new size in bytes.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn expand(&self, volume: &str, bytes: i64) -> Result<Answer<i64>> {
        let request = v1::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        let answer: Answer<v1::ControllerExpandVolumeResponse> =
            self.ask("Controller/ControllerExpandVolume", &request, LIMIT)?;
        Ok(answer.map(|expanded| expanded.capacity_bytes))
    }

    /// `ControllerModifyVolume` with these parameters of a VolumeAttributesClass.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn modify(&self, volume: &str, parameters: &[(&str, &str)], limit: Duration) -> Result<Answer<()>> {
        let request = v1::ControllerModifyVolumeRequest {
            volume_id: volume.to_owned(),
            mutable_parameters: owned(parameters),
            ..Default::default()
        };
        let answer: Answer<v1::ControllerModifyVolumeResponse> =
            self.ask("Controller/ControllerModifyVolume", &request, limit)?;
        Ok(answer.map(drop))
    }

    /// `CreateSnapshot`.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn snapshot(&self, name: &str, volume: &str, limit: Duration) -> Result<Answer<v1::Snapshot>> {
        let request = v1::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            ..Default::default()
        };
        let answer: Answer<v1::CreateSnapshotResponse> =
            self.ask("Controller/CreateSnapshot", &request, limit)?;
        Ok(answer.map(|created| created.snapshot.unwrap_or_default()))
    }

    /// `DeleteSnapshot`.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn delete_snapshot(&self, id: &str) -> Result<Answer<()>> {
        let request = v1::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let answer: Answer<v1::DeleteSnapshotResponse> =
            self.ask("Controller/DeleteSnapshot", &request, LIMIT)?;
        Ok(answer.map(drop))
    }

    /// `ListSnapshots`: the ids of a volume's, or of all.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn snapshots(&self, volume: &str) -> Result<Answer<Vec<String>>> {
        let request = v1::ListSnapshotsRequest { source_volume_id: volume.to_owned(), ..Default::default() };
        let answer: Answer<v1::ListSnapshotsResponse> =
            self.ask("Controller/ListSnapshots", &request, LIMIT)?;
        let id = |entry: v1::list_snapshots_response::Entry| entry.snapshot.unwrap_or_default().snapshot_id;
        Ok(answer.map(|list| list.entries.into_iter().map(id).collect()))
    }

    /// `ListSnapshots`: all of them as they are told.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn all_snapshots(&self) -> Result<Answer<Vec<v1::Snapshot>>> {
        let request = v1::ListSnapshotsRequest::default();
        let answer: Answer<v1::ListSnapshotsResponse> =
            self.ask("Controller/ListSnapshots", &request, LIMIT)?;
        Ok(answer.map(|list| list.entries.into_iter().filter_map(|entry| entry.snapshot).collect()))
    }

    /// `GetSnapshot`.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn get_snapshot(&self, id: &str) -> Result<Answer<v1::Snapshot>> {
        let request = v1::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let answer: Answer<v1::GetSnapshotResponse> = self.ask("Controller/GetSnapshot", &request, LIMIT)?;
        Ok(answer.map(|found| found.snapshot.unwrap_or_default()))
    }

    /// `CreateVolumeGroupSnapshot` with these parameters of a VolumeGroupSnapshotClass.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn group_snapshot(
        &self,
        name: &str,
        volumes: &[&str],
        parameters: &[(&str, &str)],
        limit: Duration,
    ) -> Result<Answer<GroupSnapshot>> {
        let request = v1::CreateVolumeGroupSnapshotRequest {
            name: name.to_owned(),
            source_volume_ids: names(volumes),
            parameters: owned(parameters),
            ..Default::default()
        };
        let answer: Answer<v1::CreateVolumeGroupSnapshotResponse> =
            self.ask("GroupController/CreateVolumeGroupSnapshot", &request, limit)?;
        Ok(answer.map(|created| created.group_snapshot.unwrap_or_default()))
    }

    /// `GetVolumeGroupSnapshot`, of a group of these snapshots.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn get_group_snapshot(&self, id: &str, snapshots: &[&str]) -> Result<Answer<GroupSnapshot>> {
        let request = v1::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids: names(snapshots),
            ..Default::default()
        };
        let answer: Answer<v1::GetVolumeGroupSnapshotResponse> =
            self.ask("GroupController/GetVolumeGroupSnapshot", &request, LIMIT)?;
        Ok(answer.map(|found| found.group_snapshot.unwrap_or_default()))
    }

    /// `DeleteVolumeGroupSnapshot`, of a group of these snapshots.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn delete_group_snapshot(&self, id: &str, snapshots: &[&str]) -> Result<Answer<()>> {
        let request = v1::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.to_owned(),
            snapshot_ids: names(snapshots),
            ..Default::default()
        };
        let answer: Answer<v1::DeleteVolumeGroupSnapshotResponse> =
            self.ask("GroupController/DeleteVolumeGroupSnapshot", &request, LIMIT)?;
        Ok(answer.map(drop))
    }

    /// `ListVolumes`: each volume with the nodes that it is published on.
    ///
    /// # Errors
    /// If the driver cannot be asked.
    pub fn list(&self) -> Result<Answer<Vec<Listed>>> {
        let request = v1::ListVolumesRequest::default();
        let answer: Answer<v1::ListVolumesResponse> = self.ask("Controller/ListVolumes", &request, LIMIT)?;
        let listed = |entry: v1::list_volumes_response::Entry| {
            let nodes = entry.status.unwrap_or_default().published_node_ids;
            Listed { volume: entry.volume.unwrap_or_default().volume_id, nodes }
        };
        Ok(answer.map(|list| list.entries.into_iter().map(listed).collect()))
    }
}

/// A service of the driver for the whole cluster as a process of the host.
#[derive(Debug)]
pub struct CsiService {
    command: Mutex<Option<Process>>,
    /// Its command, which names it too.
    service: &'static str,
    program: PathBuf,
    /// Further variables.
    environment: BTreeMap<String, String>,
    dir: PathBuf,
}

impl CsiService {
    /// Starts `program` with the command `service`. It reaches the API by the kubeconfig of that text, and
    /// has `environment` besides its usual one.
    ///
    /// # Errors
    /// If it does not answer in time.
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

    /// Its socket.
    pub fn csi(&self) -> Csi {
        Csi::new(Socket::Host(self.socket()))
    }

    /// Kills it, as a lost node would.
    pub fn kill(&self) {
        self.lock().take();
    }

    /// Starts it again after [`CsiService::kill`].
    ///
    /// # Errors
    /// If it runs, or does not answer in time.
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
        let mut process = Process::spawn(&name, &command, &log)?;
        until("the CSI driver to answer", START_LIMIT, || {
            process.check_running()?;
            Ok(std::os::unix::net::UnixStream::connect(self.socket()).ok())
        })?;
        *running = Some(process);
        Ok(())
    }

    /// Path of the same.
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join(format!("{}.sock", self.service))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Process>> {
        self.command.lock().expect("nothing panics while it holds this lock")
    }
}

/// The value of an answer that should be one.
///
/// # Errors
/// If the driver refused.
pub fn granted<T>(what: &str, answer: Answer<T>) -> Result<T> {
    answer.map_err(|refused| anyhow::anyhow!("{what}: {}: {}", refused.code, refused.message))
}

/// The message of an answer that should be a refusal with this code, and words in its message.
///
/// # Errors
/// If the driver granted it, or refused it otherwise.
pub fn refused<T>(what: &str, answer: Answer<T>, code: &str, words: &str) -> Result<()> {
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
