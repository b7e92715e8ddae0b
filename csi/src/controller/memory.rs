//! Memory of nodes for memory volumes: what the node of a volume can still promise.
//!
//! A node promises the most that a volume may take (`most_memory_bytes`). The daemon enforces the same limit
//! at each attach; here it keeps the scheduler from choosing a node that would refuse.

use std::collections::BTreeMap;

use holdfast_crds::{
    MAX_SIZE_BYTES, MEMORY_NODE, MemoryCompression, MemorySpec, MemoryUse, Volume, most_memory_bytes,
};
use kube::ResourceExt;
use tonic::Status;

use super::capacity::quantity;
use super::volumes::ClusterVolumes;

/// A memory limit is a multiple of this many bytes: a slab of the pool.
const LIMIT_STEP_BYTES: u64 = 64 << 10;
/// Least memory limit of a volume.
const LEAST_LIMIT_BYTES: u64 = 1 << 20;
/// Sizes of volumes are multiples of it.
const SECTOR_BYTES: u64 = 4096;

/// Parameters of a StorageClass of memory volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryParameters {
    /// The most memory that the content may take, in percent of the size; absent: as much as any content
    /// needs.
    pub(super) max_percent: Option<u8>,
    /// Codec of the pages.
    pub(super) compression: MemoryCompression,
}

impl MemoryParameters {
    /// Memory limit of a volume of this size, in bytes.
    fn limit_bytes(self, size_bytes: u64) -> Option<u64> {
        let share = u64::from(self.max_percent?) * (size_bytes / 100 + 1);
        Some(share.next_multiple_of(LIMIT_STEP_BYTES).max(LEAST_LIMIT_BYTES))
    }

    /// `spec.memory` of a volume of this size.
    pub(super) fn spec(self, size_bytes: u64) -> MemorySpec {
        MemorySpec { limit: self.limit_bytes(size_bytes).map(quantity), compression: self.compression }
    }

    /// The most memory that a volume of this size may take, in bytes.
    pub(super) fn most_bytes(self, size_bytes: u64) -> u64 {
        most_memory_bytes(size_bytes, self.limit_bytes(size_bytes))
    }

    /// The largest volume that may take so much memory, in bytes; 0 if none may.
    pub(super) fn largest_bytes(self, memory_bytes: u64) -> u64 {
        let (mut fits, mut too_large) = (0, MAX_SIZE_BYTES / SECTOR_BYTES + 1);
        while too_large - fits > 1 {
            let half = u64::midpoint(fits, too_large);
            if self.most_bytes(half * SECTOR_BYTES) <= memory_bytes { fits = half } else { too_large = half }
        }
        fits * SECTOR_BYTES
    }
}

/// Memory that a node can still promise, in bytes. 0 of a node that makes no memory volumes.
///
/// # Errors
/// Those of the requests.
pub(super) async fn left_bytes(volumes: &ClusterVolumes, node: &str) -> Result<u64, Status> {
    let Some(found) = volumes.node(node).await? else { return Ok(0) };
    let Some(memory) = found.status.and_then(|status| status.memory) else { return Ok(0) };
    let made_for = volumes.list(&format!("{MEMORY_NODE}={node}")).await?;
    let wanted = volumes.wanted_on(node).await?;
    let of_node = made_for.into_iter().chain(wanted).filter(|volume| volume.spec.is_memory());
    let of_node: BTreeMap<String, Volume> = of_node.map(|volume| (volume.name_any(), volume)).collect();
    Ok(left(&memory, of_node.values(), node))
}

/// The same, of a node that reported `memory`. A volume that is there, served or not, is in its report; of
/// one that was attached or detached since the report the larger sum counts.
fn left<'a>(memory: &MemoryUse, of_node: impl Iterator<Item = &'a Volume>, node: &str) -> u64 {
    let is_attached = |volume: &Volume| {
        let status = volume.status.as_ref();
        status.is_some_and(|status| status.node.as_deref() == Some(node) && status.epoch.is_some())
    };
    let (mut all, mut absent) = (0_u64, 0_u64);
    for volume in of_node {
        let most = volume.spec.most_memory_bytes().unwrap_or_default();
        all = all.saturating_add(most);
        absent = absent.saturating_add(if is_attached(volume) { 0 } else { most });
    }
    memory.limit_bytes.saturating_sub(all.max(memory.promised_bytes.saturating_add(absent)))
}

/// The node that a volume was made for.
pub(super) fn node_of(volume: &Volume) -> Option<&str> {
    volume.labels().get(MEMORY_NODE).map(String::as_str)
}

/// Refuses what a memory volume does not have.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is one.
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
mod tests {
    use serde_json::json;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn half() -> MemoryParameters {
        MemoryParameters { max_percent: Some(50), ..MemoryParameters::default() }
    }

    /// A memory volume of 1 GiB that is made for node `a`, and attached there.
    fn volume(is_attached: bool) -> Volume {
        let mut volume = Volume::new(
            "v",
            serde_json::from_value(json!({ "size": "1Gi", "backend": "memory" })).expect("a spec"),
        );
        // A volume that recovers has no device to use; its memory is taken all the same.
        let status = json!({ "node": "a", "epoch": 1_800_000_000 });
        volume.status = is_attached.then(|| serde_json::from_value(status).expect("a status"));
        volume
    }

    #[test]
    fn a_limit_is_a_share_of_the_size() {
        assert_eq!(half().spec(8 * GIB).limit.as_deref(), Some("4194368Ki"), "rounded up to a slab");
        assert_eq!(half().spec(4096).limit.as_deref(), Some("1Mi"));
        assert_eq!(MemoryParameters::default().spec(GIB), MemorySpec::default());
    }

    #[test]
    fn the_largest_volume_fits_and_the_next_does_not() {
        for parameters in [half(), MemoryParameters::default()] {
            for memory in [16 << 20, GIB, 100 * GIB] {
                let largest = parameters.largest_bytes(memory);
                assert!(parameters.most_bytes(largest) <= memory);
                assert!(parameters.most_bytes(largest + SECTOR_BYTES) > memory, "{parameters:?} {memory}");
            }
            assert_eq!(parameters.largest_bytes(0), 0);
        }
        assert!(half().largest_bytes(GIB) > GIB, "half of it is memory");
    }

    /// The scheduler chose a node whose memory was promised to volumes that were not attached yet.
    #[test]
    fn memory_is_left_that_no_volume_may_take() {
        let most = volume(true).spec.most_memory_bytes().expect("a size");
        let memory = |promised_bytes| MemoryUse { limit_bytes: 10 * GIB, promised_bytes, used_bytes: 0 };
        let left = |promised, of_node: &[Volume]| 10 * GIB - left(&memory(promised), of_node.iter(), "a");
        assert_eq!(left(0, &[]), 0);
        assert_eq!(left(0, &[volume(false)]), most, "it is yet to be attached");
        assert_eq!(left(most, &[volume(true)]), most, "it is in the report");
        assert_eq!(left(0, &[volume(true)]), most, "it is not in the report yet");
        assert_eq!(left(most, &[]), most, "a person attached it");
        assert_eq!(left(most, &[volume(false)]), 2 * most);
        let full = memory(11 * GIB);
        assert_eq!(super::left(&full, [].into_iter(), "a"), 0);
    }
}
