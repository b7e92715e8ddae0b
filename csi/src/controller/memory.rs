//! Node memory for memory volumes, and disk space for their spill files: the room that a volume's node can
//! still promise.
//!
//! A node promises the maximum that a volume may use (`max_memory_bytes`, `max_spill_bytes`). The daemon
//! enforces the same limits at each attach; here they keep the scheduler from choosing a node that would
//! reject the volume.
//!
//! Invariant: the same room is not promised to two volumes for long. Creations and expansions may run in
//! different processes, because each sidecar elects its own leader. Each promise is therefore checked before
//! its write, and again afterwards with all volumes that then exist ([`NodeReport::left`]): of two concurrent
//! promises, at least the later one sees the other. A rejected promise is undone, and the sidecar retries;
//! both may be rejected.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use holdfast_crds::{
    ByteSize, FieldError, MAX_SIZE_BYTES, MEMORY_NODE, MemoryCompression, MemorySpec, MemoryUse, SpillUse,
    Volume, VolumeSpec, max_memory_bytes, max_spill_bytes,
};
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;
use tonic::Status;

use super::capacity::quantity;
use super::volumes::ClusterVolumes;

/// A memory limit is a multiple of this many bytes: a slab of the pool.
const LIMIT_STEP_BYTES: u64 = 64 << 10;
/// Minimum memory limit of a volume, and minimum spill.
const LEAST_LIMIT_BYTES: u64 = 1 << 20;
/// Volume sizes are a multiple of a sector, in bytes.
const SECTOR_BYTES: u64 = 4096;

/// Valid percentages of the size for a content limit. Incompressible content needs slightly more than 100 %
/// of the size in memory, and exactly 100 % on disk.
pub(super) const PERCENT: RangeInclusive<u8> = 1..=100;

/// StorageClass parameters of memory volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryParameters {
    /// Maximum memory for the content, in percent of the size; absent: its size and 4 MiB.
    pub(super) max_percent: Option<u8>,
    /// Maximum disk space for spilled pages, in percent of the size; absent: none.
    pub(super) spill_percent: Option<u8>,
    /// Compression codec of the pages.
    pub(super) compression: MemoryCompression,
}

impl MemoryParameters {
    /// Returns the memory limit of a volume of this size, in bytes.
    fn limit_bytes(self, size_bytes: u64) -> Option<u64> {
        let share = u64::from(self.max_percent?) * (size_bytes / 100 + 1);
        Some(share.next_multiple_of(LIMIT_STEP_BYTES).max(LEAST_LIMIT_BYTES))
    }

    /// Returns the maximum disk space for spilled pages of a volume of this size, in bytes.
    fn spill_bytes(self, size_bytes: u64) -> Option<u64> {
        let percent = u64::from(self.spill_percent?);
        let share = percent * (size_bytes / 100) + (percent * (size_bytes % 100)).div_ceil(100);
        Some(share.next_multiple_of(SECTOR_BYTES).max(LEAST_LIMIT_BYTES))
    }

    /// Returns `spec.memory` for a volume of this size.
    pub(super) fn spec(self, size_bytes: u64) -> MemorySpec {
        MemorySpec {
            limit: self.limit_bytes(size_bytes).map(quantity),
            spill: self.spill_bytes(size_bytes).map(quantity),
            compression: self.compression,
        }
    }

    /// Returns the parameters that produced the limits of a volume of this size. A limit that is not a share
    /// of the size does not come from a class, and is left out.
    fn of(memory: &MemorySpec, size_bytes: u64) -> Self {
        let compression = memory.compression;
        let share = |is_it: &dyn Fn(MemorySpec) -> bool, of: fn(u8) -> Self| {
            PERCENT.rev().find(|percent| is_it(of(*percent).spec(size_bytes)))
        };
        let max_percent = share(&|spec| spec.limit == memory.limit, |percent| Self {
            max_percent: Some(percent),
            ..Self::default()
        });
        let spill_percent = share(&|spec| spec.spill == memory.spill, |percent| Self {
            spill_percent: Some(percent),
            ..Self::default()
        });
        Self { max_percent, spill_percent, compression }
    }

    /// Returns the maximum that a volume of this size may use on its node.
    pub(super) fn most(self, size_bytes: u64) -> NodeRoom {
        NodeRoom {
            memory_bytes: max_memory_bytes(size_bytes, self.limit_bytes(size_bytes)),
            spill_bytes: max_spill_bytes(size_bytes, self.spill_bytes(size_bytes)),
        }
    }

    /// Returns the largest volume that fits a node with this room, in bytes; 0 if none does.
    pub(super) fn largest_bytes(self, room: NodeRoom) -> u64 {
        let (mut fits, mut too_large) = (0, MAX_SIZE_BYTES / SECTOR_BYTES + 1);
        while too_large - fits > 1 {
            let half = u64::midpoint(fits, too_large);
            if room.has(self.most(half * SECTOR_BYTES)) { fits = half } else { too_large = half }
        }
        fits * SECTOR_BYTES
    }
}

/// Room on a node: memory, and disk space for spill files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeRoom {
    /// Bytes of memory.
    pub(super) memory_bytes: u64,
    /// Bytes of disk space.
    pub(super) spill_bytes: u64,
}

impl NodeRoom {
    /// Returns the maximum that a volume may use.
    ///
    /// # Errors
    /// A field of the spec cannot be parsed.
    fn of(spec: &VolumeSpec) -> Result<Self, FieldError> {
        Ok(Self { memory_bytes: spec.max_memory_bytes()?, spill_bytes: spec.max_spill_bytes()? })
    }

    /// Returns true if this room includes `wanted`.
    fn has(self, wanted: Self) -> bool {
        wanted.memory_bytes <= self.memory_bytes && wanted.spill_bytes <= self.spill_bytes
    }
}

/// Returns the room that a node can still promise.
///
/// # Errors
/// Those of the requests.
pub(super) async fn left_room(volumes: &ClusterVolumes, node: &str) -> Result<NodeRoom, Status> {
    NodeReport::read(volumes, node).await?.left(volumes, None).await
}

/// A volume in the state before a promise is made to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promisee<'a> {
    pub(super) name: &'a str,
    /// `None`: it does not exist.
    pub(super) before: Option<&'a Volume>,
}

/// A node's report on its memory, made before a promise, which it therefore does not contain.
#[derive(Clone, Debug)]
pub(super) struct NodeReport {
    node: String,
    /// `None` for a node without memory volumes.
    memory: Option<MemoryUse>,
}

impl NodeReport {
    /// Reads the report of a node.
    ///
    /// # Errors
    /// Those of the request.
    pub(super) async fn read(volumes: &ClusterVolumes, node: &str) -> Result<Self, Status> {
        let status = volumes.node(node).await?.and_then(|found| found.status);
        Ok(Self { node: node.to_owned(), memory: status.and_then(|status| status.memory) })
    }

    /// Returns the room that the node can still promise, with the volumes that exist now, and `own` as it was
    /// before. The room is empty for a node without memory volumes; without disk space for a node that has
    /// none for them.
    ///
    /// # Errors
    /// Those of the requests.
    pub(super) async fn left(
        &self,
        volumes: &ClusterVolumes,
        own: Option<Promisee<'_>>,
    ) -> Result<NodeRoom, Status> {
        let Self { node, memory } = self;
        let Some(memory) = memory else { return Ok(NodeRoom::default()) };
        let made_for = volumes.list(&format!("{MEMORY_NODE}={node}")).await?;
        let wanted = volumes.wanted_on(node).await?;
        let of_node = made_for.into_iter().chain(wanted).filter(|volume| volume.spec.is_memory());
        let mut of_node: BTreeMap<String, Volume> =
            of_node.map(|volume| (volume.name_any(), volume)).collect();
        if let Some(Promisee { name, before }) = own {
            of_node.remove(name);
            of_node.extend(before.map(|volume| (name.to_owned(), volume.clone())));
        }
        Ok(left(memory, of_node.values(), node))
    }
}

/// Returns the remaining room of a node that reported `memory`.
fn left<'a>(memory: &MemoryUse, of_node: impl Iterator<Item = &'a Volume> + Clone, node: &str) -> NodeRoom {
    // The report does not yet contain the pending growth of a volume.
    let is_attached = |volume: &Volume| {
        let size_bytes = volume.spec.size_bytes().unwrap_or_default();
        volume.status.as_ref().is_some_and(|status| {
            let is_there = status.node.as_deref() == Some(node) && status.epoch.is_some();
            is_there && status.attached_size_bytes.is_none_or(|bytes| bytes >= size_bytes)
        })
    };
    let of_node = of_node.map(|volume| (volume, is_attached(volume)));
    let MemoryUse { limit_bytes, promised_bytes, used_bytes: _, spill } = memory;
    let memory = of_node
        .clone()
        .map(|(volume, is_there)| (volume.spec.max_memory_bytes().unwrap_or_default(), is_there));
    let disk =
        of_node.map(|(volume, is_there)| (volume.spec.max_spill_bytes().unwrap_or_default(), is_there));
    let spill = spill.clone().unwrap_or_default();
    let SpillUse { limit_bytes: spill_limit_bytes, promised_bytes: spill_promised_bytes, used_bytes: _ } =
        spill;
    NodeRoom {
        memory_bytes: unpromised(*limit_bytes, *promised_bytes, memory),
        spill_bytes: unpromised(spill_limit_bytes, spill_promised_bytes, disk),
    }
}

/// Growth of a memory volume for which its node has room.
#[derive(Debug)]
pub(super) struct PromisedGrowth<'a> {
    volume: &'a Volume,
    /// `spec.memory` of the grown volume.
    pub(super) memory: Option<MemorySpec>,
    /// The room that it needs.
    more: NodeRoom,
    /// The report of the volume's node; `None` if it has no node.
    report: Option<NodeReport>,
}

impl<'a> PromisedGrowth<'a> {
    /// Plans the growth of a memory volume to this size: limits that are a share of its size grow with it,
    /// others do not change.
    ///
    /// # Errors
    /// Those of [`Self::check`].
    pub(super) async fn plan(
        volumes: &ClusterVolumes,
        volume: &'a Volume,
        size_bytes: u64,
    ) -> Result<Self, Status> {
        let internal = |error: FieldError| Status::internal(error.to_string());
        let has = NodeRoom::of(&volume.spec).map_err(internal)?;
        let mut spec = volume.spec.clone();
        let from_bytes = spec.size_bytes().map_err(internal)?;
        if let Some(memory) = &mut spec.memory {
            let MemorySpec { limit, spill, compression: _ } =
                MemoryParameters::of(memory, from_bytes).spec(size_bytes);
            memory.limit = limit.or(memory.limit.take());
            memory.spill = spill.or(memory.spill.take());
        }
        spec.size = Some(quantity(size_bytes));
        let wanted = NodeRoom::of(&spec).map_err(internal)?;
        let more = NodeRoom {
            memory_bytes: wanted.memory_bytes.saturating_sub(has.memory_bytes),
            spill_bytes: wanted.spill_bytes.saturating_sub(has.spill_bytes),
        };
        let report = match node_of(volume).or(volume.spec.node_name.as_deref()) {
            Some(node) => Some(NodeReport::read(volumes, node).await?),
            None => None,
        };
        let growth = Self { volume, memory: spec.memory, more, report };
        growth.check(volumes).await?;
        Ok(growth)
    }

    /// Checks that the node can promise the growth, before or after it is written.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED`: the node cannot promise that much. Those of the requests.
    pub(super) async fn check(&self, volumes: &ClusterVolumes) -> Result<(), Status> {
        let Some(report) = &self.report else { return Ok(()) };
        let (node, name) = (&report.node, self.volume.name_any());
        let own = Promisee { name: &name, before: Some(self.volume) };
        let left = report.left(volumes, Some(own)).await?;
        for (more_bytes, left_bytes, of, fix) in [
            (self.more.memory_bytes, left.memory_bytes, "memory", "node.memoryVolumes"),
            (self.more.spill_bytes, left.spill_bytes, "disk for its spill file", "node.memorySpill"),
        ] {
            if more_bytes > left_bytes {
                let [more, left] = [more_bytes, left_bytes].map(|bytes| ByteSize(bytes).rounded());
                return Err(Status::resource_exhausted(format!(
                    "capacity_range.required_bytes: with that size the volume may use another {more} of {of}, \
                     but node {node} can promise only {left} more. Request less, delete other memory volumes of \
                     the node, or raise {fix} of the chart"
                )));
            }
        }
        Ok(())
    }

    /// Writes the former size and limits of a volume that was grown, unless its device has grown already:
    /// then the node had the room. Returns the resulting Volume.
    ///
    /// # Errors
    /// Those of [`ClusterVolumes::change`](super::objects::Objects::change).
    pub(super) async fn undo(
        &self,
        volumes: &ClusterVolumes,
        grown: Volume,
        until: Instant,
    ) -> Result<Undone, Status> {
        let size_bytes = grown.spec.size_bytes().unwrap_or(u64::MAX);
        let former = json!({ "size": self.volume.spec.size, "memory": self.volume.spec.memory });
        let has_grown = |now: &Volume| {
            let device = now.status.as_ref().and_then(|status| status.attached_size_bytes);
            device.is_some_and(|device| device >= size_bytes)
        };
        let plan = |now: &Volume| Ok((!has_grown(now)).then(|| former.clone()));
        let now = volumes.change(grown, until, plan, &[]).await?;
        Ok(if has_grown(&now) { Undone::No(Box::new(now)) } else { Undone::Yes })
    }
}

/// Outcome of [`PromisedGrowth::undo`].
#[derive(Debug)]
pub(super) enum Undone {
    /// The Volume has its former size.
    Yes,
    /// The device has grown already.
    No(Box<Volume>),
}

/// Returns the bytes that a node with this limit can still promise after reporting `promised_bytes`. `most`:
/// each volume's maximum, and true if it is attached. The report includes attached volumes, served or not; if
/// one was attached or detached since, the larger sum counts.
fn unpromised(limit_bytes: u64, promised_bytes: u64, most: impl Iterator<Item = (u64, bool)>) -> u64 {
    let (mut all, mut absent) = (0_u64, 0_u64);
    for (most, is_attached) in most {
        all = all.saturating_add(most);
        absent = absent.saturating_add(if is_attached { 0 } else { most });
    }
    limit_bytes.saturating_sub(all.max(promised_bytes.saturating_add(absent)))
}

/// Returns the node that a volume was created for.
pub(super) fn node_of(volume: &Volume) -> Option<&str> {
    volume.labels().get(MEMORY_NODE).map(String::as_str)
}

/// Rejects a feature that memory volumes lack.
///
/// # Errors
/// `INVALID_ARGUMENT`: the volume is a memory volume.
pub(super) fn refuse(volume: &Volume, field: &str, what: &str, fix: &str) -> Result<(), Status> {
    if !volume.spec.is_memory() {
        return Ok(());
    }
    let name = volume.name_any();
    Err(Status::invalid_argument(format!(
        "{field}: Volume {name} is a memory volume, which has no {what}. {fix}"
    )))
}

#[cfg(test)]
pub(super) mod fake;

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn half() -> MemoryParameters {
        MemoryParameters { max_percent: Some(50), ..MemoryParameters::default() }
    }

    /// Half of the size in memory, and three quarters on disk.
    fn spilling() -> MemoryParameters {
        MemoryParameters { spill_percent: Some(75), ..half() }
    }

    fn room(memory_bytes: u64, spill_bytes: u64) -> NodeRoom {
        NodeRoom { memory_bytes, spill_bytes }
    }

    /// A memory volume of 1 GiB that was created for node `a`, and is attached there if `is_attached`.
    fn volume(is_attached: bool) -> Volume {
        let mut volume = Volume::new(
            "v",
            serde_json::from_value(json!({ "size": "1Gi", "backend": "memory" })).expect("a spec"),
        );
        // A recovering volume has no usable device, but its memory is in use.
        let status = json!({ "node": "a", "epoch": 1_800_000_000 });
        volume.status = is_attached.then(|| serde_json::from_value(status).expect("a status"));
        volume
    }

    #[test]
    fn a_limit_is_a_share_of_the_size() {
        assert_eq!(half().spec(8 * GIB).limit.as_deref(), Some("4194368Ki"), "rounded up to a slab");
        assert_eq!(half().spec(4096).limit.as_deref(), Some("1Mi"));
        assert_eq!(spilling().spec(8 * GIB).spill.as_deref(), Some("6Gi"));
        assert_eq!(spilling().spec(GIB + 4096).spill.as_deref(), Some("786436Ki"), "rounded up to a page");
        assert_eq!(spilling().spec(4096).spill.as_deref(), Some("1Mi"));
        let whole = MemoryParameters { spill_percent: Some(100), ..half() };
        assert_eq!(whole.spec(MAX_SIZE_BYTES).spill.as_deref(), Some("64Ti"));
        assert_eq!(MemoryParameters::default().spec(GIB), MemorySpec::default());
    }

    /// A volume records its limits, not the class that they came from.
    #[test]
    fn limits_keep_their_share_of_a_size_that_grows() {
        let grows = |memory: &MemorySpec| MemoryParameters::of(memory, GIB).spec(3 * GIB);
        for parameters in [half(), spilling(), MemoryParameters::default()] {
            assert_eq!(grows(&parameters.spec(GIB)), parameters.spec(3 * GIB));
        }
        for percent in PERCENT {
            let parameters = MemoryParameters { spill_percent: Some(percent), ..MemoryParameters::default() };
            assert_eq!(grows(&parameters.spec(GIB)), parameters.spec(3 * GIB), "{percent}");
        }
        // A user wrote it.
        let memory = MemorySpec { limit: Some("300Mi".to_owned()), ..spilling().spec(GIB) };
        let grown = grows(&memory);
        assert_eq!((grown.limit, grown.spill.as_deref()), (None, Some("2304Mi")));
    }

    #[test]
    fn the_largest_volume_fits_and_the_next_does_not() {
        for parameters in [half(), MemoryParameters::default()] {
            for memory in [16 << 20, GIB, 100 * GIB] {
                let largest = parameters.largest_bytes(room(memory, 0));
                let most = |bytes| parameters.most(bytes).memory_bytes;
                assert!(most(largest) <= memory);
                assert!(most(largest + SECTOR_BYTES) > memory, "{parameters:?} {memory}");
            }
            assert_eq!(parameters.largest_bytes(room(0, GIB)), 0);
        }
        assert!(half().largest_bytes(room(GIB, 0)) > GIB, "half of it is memory");
    }

    /// Regression: the scheduler chose a node by its memory that had no disk space for the spill file.
    #[test]
    fn the_largest_volume_fits_the_disk_too() {
        let largest = |memory, disk| spilling().largest_bytes(room(memory, disk));
        assert_eq!(largest(100 * GIB, 3 * GIB), 4 * GIB, "the disk has room for less");
        assert_eq!(largest(GIB, 3 * GIB), half().largest_bytes(room(GIB, 0)), "the memory has");
        assert_eq!(largest(100 * GIB, 0), 0);
    }

    /// Regression: the scheduler chose a node whose memory was promised to volumes not attached yet.
    #[test]
    fn memory_is_left_that_no_volume_may_take() {
        let most = volume(true).spec.max_memory_bytes().expect("a size");
        let memory =
            |promised_bytes| MemoryUse { limit_bytes: 10 * GIB, promised_bytes, ..MemoryUse::default() };
        let left = |promised, of_node: &[Volume]| {
            let left = left(&memory(promised), of_node.iter(), "a");
            assert_eq!(left.spill_bytes, 0, "the node has no disk for them");
            10 * GIB - left.memory_bytes
        };
        assert_eq!(left(0, &[]), 0);
        assert_eq!(left(0, &[volume(false)]), most, "it is yet to be attached");
        assert_eq!(left(most, &[volume(true)]), most, "it is in the report");
        assert_eq!(left(0, &[volume(true)]), most, "it is not in the report yet");
        assert_eq!(left(most, &[]), most, "a person attached it");
        assert_eq!(left(most, &[volume(false)]), 2 * most);
        // Found by review: for a volume with a pending growth, the node's promise was lower than its spec.
        let mut grows = volume(true);
        grows.status.as_mut().expect("a status").attached_size_bytes = Some(GIB / 2);
        assert_eq!(left(most, &[grows]), 2 * most);
        let full = memory(11 * GIB);
        assert_eq!(super::left(&full, [].into_iter(), "a"), NodeRoom::default());
    }

    #[test]
    fn disk_is_left_that_no_volume_may_take() {
        let spill = |promised_bytes| SpillUse { limit_bytes: 10 * GIB, promised_bytes, used_bytes: 0 };
        let memory = |promised| MemoryUse { spill: Some(spill(promised)), ..MemoryUse::default() };
        let of_spec = |is_attached| {
            let mut volume = volume(is_attached);
            volume.spec.memory = Some(MemorySpec { spill: Some("2Gi".to_owned()), ..MemorySpec::default() });
            volume
        };
        let left = |promised, of_node: &[Volume]| {
            10 * GIB - left(&memory(promised), of_node.iter(), "a").spill_bytes
        };
        assert_eq!(left(0, &[of_spec(false)]), GIB, "no more than the size");
        assert_eq!(left(GIB, &[of_spec(true)]), GIB, "it is in the report");
        assert_eq!(left(GIB, &[of_spec(false)]), 2 * GIB);
        assert_eq!(left(GIB, &[volume(false)]), GIB, "it has no spill file");
        assert_eq!(left(10 * GIB, &[of_spec(false)]), 10 * GIB);
    }
}
