//! Converts messages into typed values, naming invalid fields, and typed values into messages.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_crds::{IOPS_LIMITS, THROUGHPUT_LIMITS};
use holdfast_engine::settings::{Durability, RuntimeSettings};
use holdfast_format::displaced::Displaced;
use holdfast_memory::{MemoryFigures, PAGE_BYTES, PageCodec};
use holdfast_objects::RequestCounts;
use holdfast_proto::node::v1 as wire;
use holdfast_s3::S3Config;
use holdfast_serve::IoLimits;
use holdfast_types::{InvalidSnapshotName, InvalidVolumeId, SECTOR_BYTES, VolumeId};
use holdfast_ublk::Transport;
use tonic::Status;

use crate::node::{
    AttachRequest, Attached, Capabilities, CommitStatus, Content, DelayStatus, GrowTo, LimitChange,
    MemoryAttach, NodeVolumeStatus, ServedCounts, SettingsChange, StateDisk, VolumeSettings, VolumeState,
};

/// A field of a request is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidField {
    /// `volume_id` is not a volume id.
    #[error("volume_id: {0}")]
    VolumeId(#[from] InvalidVolumeId),
    /// `store` is empty.
    #[error("store: is empty; name a store of the daemon's configuration")]
    NoStore,
    /// `size_bytes` is not a valid volume size.
    #[error(
        "size_bytes: {0} is not a positive multiple of {SECTOR_BYTES}; round it up, or use a suffix such as Mi or Gi"
    )]
    Size(u64),
    /// `snapshot` is not a snapshot name.
    #[error("snapshot: {0}")]
    Snapshot(#[from] InvalidSnapshotName),
    /// `max_dirty_age` is out of range.
    #[error("max_dirty_age: is out of range; give a duration between 1s and 1h")]
    MaxDirtyAge,
    /// `durability` is not a known class.
    #[error("durability: {0} is not known; use DURABILITY_LOCAL or DURABILITY_OBJECT")]
    Durability(i32),
    /// `limits.iops` is out of range.
    #[error("limits.iops: {0} is out of range; give a number from 10 to 10000000, such as 3000, or no limit")]
    Iops(u64),
    /// `limits.bytes_per_second` is out of range.
    #[error(
        "limits.bytes_per_second: {0} is out of range; give bytes per second from 1Mi to 1Ti, such as 125Mi, or no limit"
    )]
    Throughput(u64),
    /// A field that does not apply to memory volumes.
    #[error("{0}: a memory volume has none; leave it out, or attach a volume of a store")]
    NotOfMemory(&'static str),
    /// `memory.limit_bytes` is not a valid limit.
    #[error("memory.limit_bytes: is 0; give at least one MiB, or leave it out")]
    NoLimit,
    /// `memory.spill_bytes` is not a valid limit.
    #[error("memory.spill_bytes: is 0; give a size, or leave it out: nothing spills then")]
    NoSpill,
    /// `memory.compression` is not a known codec.
    #[error("memory.compression: {0} is not known; use COMPRESSION_LZ4 or COMPRESSION_ZSTD")]
    Compression(i32),
    /// An attached volume has another value of a setting than the request.
    #[error(
        "{field}: {volume} is attached on this node with {attached}, and the request has {asked}. Nothing was changed. \
         Use `holdfast-node {command}`, or leave the option out"
    )]
    NotInEffect {
        /// The field of the request.
        field: &'static str,
        /// The volume.
        volume: VolumeId,
        /// Its current value.
        attached: String,
        /// The value of the request.
        asked: String,
        /// The command that changes it.
        command: &'static str,
    },
    /// The request changes no setting.
    #[error("durability, max_dirty_age, limits: all are absent; give at least one")]
    NoSettings,
}

impl From<InvalidField> for Status {
    fn from(error: InvalidField) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// A checked [`wire::CreateRequest`].
#[derive(Debug)]
pub(crate) struct VolumeToCreate {
    pub(crate) volume: VolumeId,
    pub(crate) store: String,
    pub(crate) content: Content,
}

impl TryFrom<wire::CreateRequest> for VolumeToCreate {
    type Error = InvalidField;

    fn try_from(request: wire::CreateRequest) -> Result<Self, InvalidField> {
        let wire::CreateRequest { volume_id, store, size_bytes, snapshot } = request;
        let content = match snapshot {
            None => Content::Empty { bytes: size(size_bytes)? },
            Some(name) => {
                let bytes = (size_bytes != 0).then(|| size(size_bytes)).transpose()?;
                Content::Snapshot { snapshot: name.parse()?, bytes }
            }
        };
        Ok(Self { volume: volume_id.try_into()?, store: store_name(store)?, content })
    }
}

/// A checked [`wire::AttachRequest`], without its store's configuration.
#[derive(Debug)]
pub(crate) struct CheckedAttach {
    pub(crate) volume: VolumeId,
    pub(crate) store: String,
    pub(crate) bytes: Option<u64>,
    pub(crate) replaces: Option<u64>,
    pub(crate) max_dirty_age: Option<Duration>,
    /// Absent: local, for a volume that is not attached yet.
    pub(crate) durability: Option<Durability>,
    pub(crate) limits: IoLimits,
}

impl TryFrom<wire::AttachRequest> for CheckedAttach {
    type Error = InvalidField;

    fn try_from(request: wire::AttachRequest) -> Result<Self, InvalidField> {
        let wire::AttachRequest {
            volume_id,
            store,
            size_bytes,
            replaces_epoch,
            max_dirty_age,
            durability,
            memory: _,
            limits,
        } = request;
        Ok(Self {
            volume: volume_id.try_into()?,
            store: store_name(store)?,
            bytes: size_bytes.map(size).transpose()?,
            replaces: replaces_epoch,
            max_dirty_age: max_dirty_age.map(dirty_age).transpose()?,
            durability: flush_class(durability)?,
            limits: io_limits(limits.unwrap_or_default())?,
        })
    }
}

/// Checks a [`wire::AttachRequest`] of a memory volume.
pub(crate) fn memory_attach(
    request: wire::AttachRequest,
    memory: &wire::MemoryVolume,
) -> Result<MemoryAttach, InvalidField> {
    let wire::AttachRequest {
        volume_id,
        store,
        size_bytes,
        replaces_epoch,
        max_dirty_age,
        durability,
        memory: _,
        limits,
    } = request;
    let fields = [
        ("store", !store.is_empty()),
        ("size_bytes", size_bytes.is_some()),
        ("replaces_epoch", replaces_epoch.is_some()),
        ("max_dirty_age", max_dirty_age.is_some()),
        ("durability", durability != wire::Durability::Unspecified as i32),
        ("limits", limits.is_some()),
    ];
    if let Some((field, _)) = fields.into_iter().find(|(_, is_given)| *is_given) {
        return Err(InvalidField::NotOfMemory(field));
    }
    let &wire::MemoryVolume { size_bytes, limit_bytes, compression, spill_bytes } = memory;
    if limit_bytes == Some(0) {
        return Err(InvalidField::NoLimit);
    }
    if spill_bytes == Some(0) {
        return Err(InvalidField::NoSpill);
    }
    let codec = match wire::Compression::try_from(compression) {
        Ok(wire::Compression::Unspecified | wire::Compression::Lz4) => PageCodec::Lz4,
        Ok(wire::Compression::Zstd) => PageCodec::Zstd,
        Err(_unknown) => return Err(InvalidField::Compression(compression)),
    };
    Ok(MemoryAttach {
        volume: volume_id.try_into()?,
        bytes: size(size_bytes)?,
        limit_bytes,
        spill_bytes,
        codec,
        epoch: 0,
        owner: None,
    })
}

/// Checks a [`wire::GrowRequest`].
pub(crate) fn grow(request: wire::GrowRequest) -> Result<(VolumeId, GrowTo), InvalidField> {
    let wire::GrowRequest { volume_id, size_bytes, memory_limit_bytes, memory_spill_bytes } = request;
    let to = GrowTo { bytes: size(size_bytes)?, memory_limit_bytes, memory_spill_bytes };
    Ok((self::volume_id(volume_id)?, to))
}

fn memory_use(figures: MemoryFigures) -> wire::MemoryUse {
    let MemoryFigures { same_filled_pages, slab_bytes, limit_bytes, refused_pages, moved_pages, .. } =
        figures;
    let [spilled_bytes, spill_limit_bytes] =
        [figures.spilled_pages, figures.spill_limit_pages].map(|pages| pages * PAGE_BYTES as u64);
    let content_bytes = figures.content_pages() * PAGE_BYTES as u64;
    wire::MemoryUse {
        used_bytes: slab_bytes,
        limit_bytes,
        content_bytes,
        same_filled_pages,
        refused_pages,
        moved_pages,
        spilled_bytes,
        spill_limit_bytes,
    }
}

impl CheckedAttach {
    /// Builds the request to the data plane.
    pub(crate) fn with_store(self, config: S3Config) -> AttachRequest {
        let Self { volume, store, bytes, replaces, max_dirty_age, durability, limits } = self;
        AttachRequest {
            volume,
            store_name: store,
            store: config,
            bytes,
            replaces,
            max_dirty_age,
            durability: durability.unwrap_or(Durability::Local),
            limits,
            // No operator probed the bucket.
            probe: true,
            ublk_only: false,
        }
    }
}

/// Checks a [`wire::ConfigureRequest`].
pub(crate) fn configure(request: wire::ConfigureRequest) -> Result<(VolumeId, SettingsChange), InvalidField> {
    let wire::ConfigureRequest { volume_id, max_dirty_age, durability, limits } = request;
    let wire::Limits { iops: max_iops, bytes_per_second: max_bytes } = limits.unwrap_or_default();
    // The limits that are not removed.
    let rest = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
    io_limits(wire::Limits { iops: rest(max_iops), bytes_per_second: rest(max_bytes) })?;
    let limit = |limit: Option<u64>| limit.map_or(LimitChange::Keep, |_given| LimitChange::to(rest(limit)));
    let change = SettingsChange {
        max_dirty_age: max_dirty_age.map(dirty_age).transpose()?,
        durability: flush_class(durability)?,
        iops: limit(max_iops),
        bytes_per_second: limit(max_bytes),
    };
    if change == SettingsChange::default() {
        return Err(InvalidField::NoSettings);
    }
    Ok((volume_id.try_into()?, change))
}

/// Converts the settings in effect.
pub(crate) fn settings(settings: VolumeSettings) -> wire::ConfigureResponse {
    let VolumeSettings { planner, limits } = settings;
    let RuntimeSettings { max_age_ms, durability: class } = planner;
    let max_dirty_age = Duration::from_millis(max_age_ms).try_into().ok();
    wire::ConfigureResponse { max_dirty_age, durability: durability(class), limits: wire_limits(limits) }
}

/// Checks the limits requested for a volume.
fn io_limits(limits: wire::Limits) -> Result<IoLimits, InvalidField> {
    let wire::Limits { iops, bytes_per_second } = limits;
    match (iops, bytes_per_second) {
        (Some(iops), _) if !IOPS_LIMITS.contains(&iops) => Err(InvalidField::Iops(iops)),
        (_, Some(bytes)) if !THROUGHPUT_LIMITS.contains(&bytes) => Err(InvalidField::Throughput(bytes)),
        (iops, bytes_per_second) => Ok(IoLimits { iops, bytes_per_second }),
    }
}

fn wire_limits(limits: IoLimits) -> Option<wire::Limits> {
    let IoLimits { iops, bytes_per_second } = limits;
    (limits != IoLimits::NONE).then_some(wire::Limits { iops, bytes_per_second })
}

/// Checks a `volume_id`.
pub(crate) fn volume_id(text: String) -> Result<VolumeId, InvalidField> {
    Ok(text.try_into()?)
}

fn store_name(name: String) -> Result<String, InvalidField> {
    if name.is_empty() { Err(InvalidField::NoStore) } else { Ok(name) }
}

fn size(bytes: u64) -> Result<u64, InvalidField> {
    if bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES) { Ok(bytes) } else { Err(InvalidField::Size(bytes)) }
}

fn dirty_age(age: prost_types::Duration) -> Result<Duration, InvalidField> {
    match Duration::try_from(age) {
        Ok(age) if (1..=3600).contains(&age.as_secs()) => Ok(age),
        Ok(_) | Err(_) => Err(InvalidField::MaxDirtyAge),
    }
}

/// Returns the requested durability; `None` if it is unspecified.
fn flush_class(value: i32) -> Result<Option<Durability>, InvalidField> {
    match wire::Durability::try_from(value) {
        Ok(wire::Durability::Unspecified) => Ok(None),
        Ok(wire::Durability::Local) => Ok(Some(Durability::Local)),
        Ok(wire::Durability::Object) => Ok(Some(Durability::Object)),
        Err(_unknown) => Err(InvalidField::Durability(value)),
    }
}

fn durability(class: Durability) -> i32 {
    let class = match class {
        Durability::Local => wire::Durability::Local,
        Durability::Object => wire::Durability::Object,
    };
    class.into()
}

fn transport(transport: Transport) -> i32 {
    let transport = match transport {
        Transport::ZeroCopy => wire::Transport::UblkZeroCopy,
        Transport::UserCopy => wire::Transport::UblkUserCopy,
        Transport::KernelCopy => wire::Transport::UblkKernelCopy,
        Transport::Fuse => wire::Transport::FuseLoop,
    };
    transport.into()
}

fn state(state: VolumeState) -> i32 {
    let state = match state {
        VolumeState::Attaching => wire::VolumeState::Attaching,
        VolumeState::Attached => wire::VolumeState::Attached,
        VolumeState::Detaching => wire::VolumeState::Detaching,
        VolumeState::Fenced => wire::VolumeState::Fenced,
        VolumeState::Recovering => wire::VolumeState::Recovering,
        VolumeState::Quiesced => wire::VolumeState::Quiesced,
        VolumeState::Unserved => wire::VolumeState::Unserved,
    };
    state.into()
}

impl From<Attached> for wire::AttachResponse {
    fn from(attached: Attached) -> Self {
        let displaced = attached.displaced.clone().map(|Displaced { epoch, node, since_unix_ms }| {
            let since = UNIX_EPOCH + Duration::from_millis(since_unix_ms);
            wire::Displaced { epoch: epoch.0, node, since: Some(since.into()) }
        });
        Self { device: Some(attached.into()), displaced }
    }
}

impl From<Attached> for wire::Device {
    fn from(attached: Attached) -> Self {
        let Attached { device_path, transport: by, epoch, bytes, displaced: _ } = attached;
        Self {
            path: device_path.to_string_lossy().into_owned(),
            transport: transport(by),
            epoch,
            size_bytes: bytes,
        }
    }
}

impl From<NodeVolumeStatus> for wire::Volume {
    fn from(status: NodeVolumeStatus) -> Self {
        let NodeVolumeStatus {
            volume,
            state: stands,
            message,
            attached,
            commit: CommitStatus { seq: committed_seq, dirty_bytes, oldest_dirty, durable_through },
            holds_data,
            durability: class,
            max_dirty_age,
            store,
            delays: DelayStatus { writes: _, pace: _, limits, waiting_requests: _ },
            disk: _,
            served: _,
            index: _,
            memory,
            memory_identity: _,
        } = status;
        Self {
            volume_id: volume.to_string(),
            store: store.name,
            state: state(stands),
            device: attached.map(Into::into),
            committed_seq,
            dirty_bytes,
            // An age beyond the range of the message cannot occur: 292 billion years.
            oldest_dirty: oldest_dirty.and_then(|age| age.try_into().ok()),
            message,
            durability: class.map_or(wire::Durability::Unspecified.into(), durability),
            durable_through: durable_through.map(SystemTime::into),
            holds_data,
            max_dirty_age: max_dirty_age.and_then(|age| age.try_into().ok()),
            memory: memory.map(memory_use),
            limits: wire_limits(limits.limits),
        }
    }
}

/// Converts a volume's I/O counters.
pub(crate) fn stats(status: &NodeVolumeStatus) -> wire::VolumeStats {
    let ServedCounts {
        reads,
        writes,
        flushes,
        discards,
        read_bytes,
        written_bytes,
        cold_reads,
        slab_hits: _,
        local_read_errors: _,
        errors,
        max_waiting_work: _,
        latencies: _,
    } = status.served;
    wire::VolumeStats {
        volume_id: status.volume.to_string(),
        read_requests: reads,
        read_bytes,
        write_requests: writes,
        written_bytes,
        flush_requests: flushes,
        discard_requests: discards,
        cold_reads,
        failed_requests: errors,
        // A queue holds far fewer than 2^64.
        waiting_requests: u64::try_from(status.delays.waiting_requests).unwrap_or(u64::MAX),
        store_requests: status.store.requests.map(store_requests),
    }
}

fn store_requests(counts: RequestCounts) -> wire::StoreRequests {
    let RequestCounts { get, put, list, delete, start_upload, upload_part, complete_upload, abort_upload } =
        counts;
    wire::StoreRequests { get, put, list, delete, start_upload, upload_part, complete_upload, abort_upload }
}

impl From<Capabilities> for wire::CapabilitiesResponse {
    fn from(capabilities: Capabilities) -> Self {
        let Capabilities { kernel_release, transports, transport: chosen, state_disk, max_volumes } =
            capabilities;
        let transports = transports.into_iter().map(|(by, usable)| wire::TransportCapability {
            transport: transport(by),
            available: usable.is_ok(),
            refusal: usable.err(),
        });
        Self {
            kernel_release,
            daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
            transports: transports.collect(),
            state_disk: state_disk.map(|StateDisk { device, physical_block_bytes }| wire::StateDisk {
                device,
                physical_block_bytes,
            }),
            max_volumes,
            transport: chosen.ok().map(transport),
        }
    }
}
