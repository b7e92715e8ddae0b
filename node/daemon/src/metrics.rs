//! The daemon's metrics: one table, read from the data plane at each scrape.
//!
//! Owns: names, units and labels of all metrics.
//! Invariants: a scrape changes nothing, reads a snapshot of each volume and never blocks.

mod stores;

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use holdfast_background::OldCounts;
use holdfast_engine::settings::Durability;
use holdfast_engine::volume::Delay;
use holdfast_serve::latency::{BUCKETS, TimedOperation, bound_seconds};
use holdfast_service::logs::DroppedLines;
use holdfast_types::SECTOR_BYTES;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::kubernetes::names::VolumeNames;
use crate::node::{NodeVolumeStatus, ReadAheadFigures, RingStatus, VolumeState};
use crate::readiness::Readiness;
use crate::volumes::Volumes;
use stores::{encode_store_traffic, encode_stores};

/// Type of a metric.
#[derive(Clone, Copy, Debug)]
enum MetricKind {
    Gauge,
    Counter,
}

impl MetricKind {
    fn of(self) -> MetricType {
        match self {
            Self::Gauge => ConstGauge::new(0.0).metric_type(),
            Self::Counter => ConstCounter::new(0.0).metric_type(),
        }
    }

    fn sample(self, value: f64, sample: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Gauge => ConstGauge::new(value).encode(sample),
            Self::Counter => ConstCounter::new(value).encode(sample),
        }
    }
}

/// One metric of a volume; its label is `volume`. Absent if `value` returns `None`.
struct VolumeMetric {
    name: &'static str,
    unit: Option<Unit>,
    kind: MetricKind,
    help: &'static str,
    value: fn(&NodeVolumeStatus) -> Option<f64>,
}

const fn gauge(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&NodeVolumeStatus) -> Option<f64>,
) -> VolumeMetric {
    VolumeMetric { name, unit, kind: MetricKind::Gauge, help, value }
}

const fn counter(
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&NodeVolumeStatus) -> Option<f64>,
) -> VolumeMetric {
    VolumeMetric { name, unit, kind: MetricKind::Counter, help, value }
}

/// Metrics of each volume.
const VOLUME_METRICS: [VolumeMetric; 50] = [
    gauge("holdfast_volume_attached", None, "1 while the volume's device serves requests, else 0", |v| {
        Some(f64::from(v.state == VolumeState::Attached))
    }),
    gauge("holdfast_volume_fenced", None, "1 while another writer owns the volume, else 0", |v| {
        Some(f64::from(v.state == VolumeState::Fenced))
    }),
    gauge("holdfast_volume_detaching", None, "1 while the volume is being detached, else 0", |v| {
        Some(f64::from(v.state == VolumeState::Detaching))
    }),
    gauge(
        "holdfast_volume_epoch",
        None,
        "Fencing epoch of this node's writer; it rises at each attach",
        |v| v.attached.as_ref().map(|a| a.epoch as f64),
    ),
    gauge("holdfast_volume_size", Some(Unit::Bytes), "Logical size of the device", |v| {
        v.attached.as_ref().map(|a| a.bytes as f64)
    }),
    gauge(
        "holdfast_volume_committed_seq",
        None,
        "Sequence number of the last record in the volume's log",
        |v| v.commit.seq.map(|seq| seq as f64),
    ),
    gauge(
        "holdfast_volume_dirty",
        Some(Unit::Bytes),
        "Bytes written but not yet committed to the object store",
        |v| v.commit.dirty_bytes.map(|bytes| bytes as f64),
    ),
    gauge(
        "holdfast_volume_oldest_dirty",
        Some(Unit::Seconds),
        "Age of the oldest dirty byte, 0 if no byte is dirty",
        |v| Some(v.commit.oldest_dirty.map_or(0.0, |age| age.as_secs_f64())),
    ),
    gauge(
        "holdfast_volume_durable_through_timestamp",
        Some(Unit::Seconds),
        "Unix time; every write that completed earlier is committed",
        |v| v.commit.durable_through?.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64()),
    ),
    gauge(
        "holdfast_volume_object_durability",
        None,
        "1 if a flush waits for a commit to the object store, 0 if it waits only for a sync of the local disk",
        |v| v.durability.map(|class| f64::from(class == Durability::Object)),
    ),
    gauge(
        "holdfast_volume_store_unreachable",
        Some(Unit::Seconds),
        "Duration of the current outage of the volume's store, for all requests of this node or for one kind, 0 without an outage",
        |v| {
            let outage = v.store.health.unreachable().and_then(|outage| outage.since.elapsed().ok());
            Some(outage.map_or(0.0, |outage| outage.as_secs_f64()))
        },
    ),
    gauge(
        "holdfast_volume_store_change_refused",
        None,
        "1 while the newest configuration of the volume's store is not in use, because the daemon refused or could not check it, else 0",
        |v| Some(f64::from(v.store.change_refused.is_some())),
    ),
    gauge(
        "holdfast_volume_writes_delayed",
        Some(Unit::Seconds),
        "Time for which writes have been waiting for space or a commit, 0 if no write waits",
        |v| Some(v.delays.writes.map_or(0.0, |(_, delayed)| delayed.as_secs_f64())),
    ),
    counter(
        "holdfast_volume_paced_writes",
        None,
        "Writes delayed by pacing, which slows writes to the upload rate of the store; counted when the delay ends",
        |v| Some(v.delays.pace.delayed_writes as f64),
    ),
    counter(
        "holdfast_volume_paced",
        Some(Unit::Seconds),
        "Total time for which pacing delayed writes",
        |v| Some(v.delays.pace.delayed_ms as f64 / 1000.0),
    ),
    gauge("holdfast_volume_limit_iops", None, "Limit of requests per second, absent if not set", |v| {
        v.delays.limits.limits.iops.map(|limit| limit as f64)
    }),
    gauge(
        "holdfast_volume_limit_throughput_bytes_per_second",
        None,
        "Limit of bytes read and written per second, absent if not set",
        |v| v.delays.limits.limits.bytes_per_second.map(|limit| limit as f64),
    ),
    gauge(
        "holdfast_volume_limited_requests_waiting",
        None,
        "Requests that wait now because the volume reached its request or throughput limit",
        |v| Some(v.delays.limits.waiting as f64),
    ),
    counter(
        "holdfast_volume_limited_requests",
        None,
        "Requests delayed because the volume reached its request or throughput limit; counted when the delay ends",
        |v| Some(v.delays.limits.delayed_requests as f64),
    ),
    counter(
        "holdfast_volume_limited",
        Some(Unit::Seconds),
        "Total time for which the request and throughput limits delayed requests",
        |v| Some(v.delays.limits.delayed_ms as f64 / 1000.0),
    ),
    gauge(
        "holdfast_volume_run_dir_full",
        None,
        "1 while writes wait for space in the run directory, else 0",
        |v| Some(f64::from(matches!(v.delays.writes, Some((Delay::RunDirFull, _))))),
    ),
    gauge(
        "holdfast_volume_local_disk_sync_failed",
        None,
        "1 if a sync of the local disk has failed since the attach, else 0; while 1, each flush waits for a commit",
        |v| Some(f64::from(v.disk.sync_failed)),
    ),
    gauge(
        "holdfast_volume_local_disk_writes_failing",
        Some(Unit::Seconds),
        "Time for which the local disk has been failing writes of the volume's map or log record, 0 if it fails none; meanwhile no commit completes",
        |v| Some(v.disk.unkept.map_or(0.0, |(_, failing)| failing.as_secs_f64())),
    ),
    gauge(
        "holdfast_volume_unreadable",
        Some(Unit::Bytes),
        "Dirty bytes that the local disk cannot read; while above 0, no data of the volume is uploaded",
        |v| Some(v.disk.unreadable.map_or(0.0, |lost| lost.bytes as f64)),
    ),
    gauge(
        "holdfast_volume_waiting_requests",
        None,
        "Requests that wait for the object store, memory or disk space; pacing and limits are not included",
        |v| Some(v.delays.waiting_requests as f64),
    ),
    gauge(
        "holdfast_volume_cached",
        Some(Unit::Bytes),
        "Bytes that the volume's data files occupy on the local disk, dirty and clean",
        |v| Some(v.disk.cached_bytes as f64),
    ),
    counter(
        "holdfast_volume_evicted",
        Some(Unit::Bytes),
        "Committed bytes evicted from the local disk to free space",
        |v| Some(v.disk.evicted_bytes as f64),
    ),
    gauge(
        "holdfast_volume_index_runs",
        None,
        "Index runs of the volume; a read from the object store may have to search all of them",
        |v| v.index.runs.map(|runs| runs as f64),
    ),
    gauge(
        "holdfast_volume_ancestors",
        None,
        "Ancestors of the volume in its chain of forks, at most 100; at 100, its snapshots cannot be restored or cloned",
        |v| v.index.ancestors.map(|ancestors| ancestors as f64),
    ),
    counter(
        "holdfast_volume_index_merges",
        None,
        "Merges of index runs that a commit added to the volume",
        |v| Some(v.index.merges as f64),
    ),
    counter(
        "holdfast_volume_index_merges_dropped",
        None,
        "Merges of index runs that were uploaded but discarded: they were late, or their input runs were no longer in use",
        |v| Some(v.index.merges_dropped as f64),
    ),
    counter("holdfast_volume_read_requests", None, "Read requests received, including failed ones", |v| {
        Some(v.served.reads as f64)
    }),
    counter(
        "holdfast_volume_read",
        Some(Unit::Bytes),
        "Bytes requested by reads, including failed ones",
        |v| Some(v.served.read_bytes as f64),
    ),
    counter("holdfast_volume_write_requests", None, "Write requests received, including failed ones", |v| {
        Some(v.served.writes as f64)
    }),
    counter(
        "holdfast_volume_written",
        Some(Unit::Bytes),
        "Bytes of the write requests received, including failed ones",
        |v| Some(v.served.written_bytes as f64),
    ),
    counter("holdfast_volume_flush_requests", None, "Flush requests received, including failed ones", |v| {
        Some(v.served.flushes as f64)
    }),
    counter(
        "holdfast_volume_discard_requests",
        None,
        "Discard and write-zeroes requests received, including failed ones",
        |v| Some(v.served.discards as f64),
    ),
    counter(
        "holdfast_volume_cold_reads",
        None,
        "Reads of data that was only in the object store, one per 128 KiB block of a request",
        |v| Some(v.served.cold_reads as f64),
    ),
    counter(
        "holdfast_volume_cold_read_hits",
        None,
        "Cold reads that the ring thread began to serve from the block cache itself, without a background task",
        |v| Some(v.served.slab_hits as f64),
    ),
    counter(
        "holdfast_volume_local_read_errors",
        None,
        "Failed reads of the local disk; data that is also in the object store is then read from there",
        |v| Some(v.served.local_read_errors as f64),
    ),
    counter("holdfast_volume_failed_requests", None, "Requests completed with an error", |v| {
        Some(v.served.errors as f64)
    }),
    gauge(
        "holdfast_volume_waiting_work_max",
        None,
        "Largest number of background tasks in the volume's queue at one time since this process attached or recovered it",
        |v| Some(v.served.max_waiting_work as f64),
    ),
    gauge(
        "holdfast_volume_memory_used",
        Some(Unit::Bytes),
        "Bytes of memory allocated to the content of a memory volume",
        |v| v.memory.map(|memory| memory.slab_bytes as f64),
    ),
    gauge(
        "holdfast_volume_memory_limit",
        Some(Unit::Bytes),
        "Maximum bytes of memory for the content of a memory volume",
        |v| v.memory.map(|memory| memory.limit_bytes as f64),
    ),
    gauge(
        "holdfast_volume_memory_content",
        Some(Unit::Bytes),
        "Uncompressed bytes of a memory volume's nonzero pages, including spilled pages; (content - spilled) / used is the compression ratio",
        |v| v.memory.map(|memory| (memory.content_pages() * SECTOR_BYTES) as f64),
    ),
    gauge(
        "holdfast_volume_memory_same_filled_pages",
        None,
        "Pages of a memory volume that repeat one pattern other than zeros",
        |v| v.memory.map(|memory| memory.same_filled_pages as f64),
    ),
    gauge(
        "holdfast_volume_memory_spilled",
        Some(Unit::Bytes),
        "Bytes of a memory volume's pages in its spill file on the state disk, for which memory had no space",
        |v| v.memory.map(|memory| (memory.spilled_pages * SECTOR_BYTES) as f64),
    ),
    gauge(
        "holdfast_volume_memory_spill_limit",
        Some(Unit::Bytes),
        "Maximum bytes of a memory volume's pages in its spill file on the state disk",
        |v| v.memory.map(|memory| (memory.spill_limit_pages * SECTOR_BYTES) as f64),
    ),
    counter(
        "holdfast_volume_memory_refused_pages",
        None,
        "Pages not written to a memory volume because neither memory nor a spill file had space; their write requests failed",
        |v| v.memory.map(|memory| memory.refused_pages as f64),
    ),
    counter(
        "holdfast_volume_memory_moved_pages",
        None,
        "Pages of a memory volume moved to free partly used slabs, while few slabs are left or the run directory is full",
        |v| v.memory.map(|memory| memory.moved_pages as f64),
    ),
];

/// Name of the metric of request latencies; the label `operation` distinguishes them. Its unit is seconds.
const REQUEST_TIMES: &str = "holdfast_volume_request";

/// Encodes the request latencies of each attached volume.
fn encode_request_times(encoder: &mut DescriptorEncoder<'_>, volumes: &[NodeVolumeStatus]) -> fmt::Result {
    let help = "Time from the daemon's receipt of a request to its completion; sampled: one request of 64, the first of each 250 ms, each flush and each FUA write";
    let kind = MetricType::Histogram;
    let mut family = encoder.encode_descriptor(REQUEST_TIMES, help, Some(&Unit::Seconds), kind)?;
    for volume in volumes.iter().filter(|volume| volume.attached.is_some()) {
        for operation in TimedOperation::ALL {
            let times = volume.served.latencies.of(operation);
            let bounded = (0..BUCKETS).map(|bucket| (bound_seconds(bucket), times.buckets[bucket]));
            let buckets: Vec<(f64, u64)> = bounded.chain([(f64::INFINITY, times.beyond)]).collect();
            let labels = [("volume", volume.volume.as_str()), ("operation", operation.name())];
            let sum = Duration::from_micros(times.sum_us).as_secs_f64();
            family.encode_family(&labels)?.encode_histogram::<NoLabelSet>(
                sum,
                times.count(),
                &buckets,
                None,
            )?;
        }
    }
    Ok(())
}

/// Name of the metric that joins a volume's id with its names in the cluster; its labels are `volume`,
/// `name`, `namespace` and `persistentvolumeclaim`, the last two like those of other exporters of claims.
const VOLUME_INFO: &str = "holdfast_volume_info";

/// One metric of a ring thread; its label is `ring`.
struct RingMetric {
    name: &'static str,
    kind: MetricKind,
    help: &'static str,
    value: fn(&RingStatus) -> u64,
}

/// Metrics of each ring thread.
const RING_METRICS: [RingMetric; 5] = [
    RingMetric {
        name: "holdfast_ring_waiting_messages_max",
        kind: MetricKind::Gauge,
        help: "Largest number of messages in the ring thread's inbox at one time since the process started; the inbox holds 4096",
        value: |ring| ring.max_messages,
    },
    RingMetric {
        name: "holdfast_ring_full_inbox",
        kind: MetricKind::Counter,
        help: "Messages that found the ring thread's inbox full: the sender waited, or dropped the message",
        value: |ring| ring.full_inbox,
    },
    RingMetric {
        name: "holdfast_ring_operations_max",
        kind: MetricKind::Gauge,
        help: "Largest number of io_uring operations in flight at one time since the process started",
        value: |ring| ring.max_operations,
    },
    RingMetric {
        name: "holdfast_ring_late_completions",
        kind: MetricKind::Counter,
        help: "Completions dropped because their operation, queue or volume no longer existed; each is a bug",
        value: |ring| ring.late_completions,
    },
    RingMetric {
        name: "holdfast_ring_copied_requests",
        kind: MetricKind::Counter,
        help: "Requests copied despite zero copy, because another device's request used the buffer or memory was short",
        value: |ring| ring.unregistered,
    },
];

/// Name of the metric of devices that would fail if the daemon exited.
const UNKEPT_DEVICES: &str = "holdfast_unkept_devices";

/// Name of the metric of the memory that uploads hold.
const UPLOAD_MEMORY: &str = "holdfast_upload_memory";

/// Name of the metric of the memory of cached index parts.
const INDEX_CACHE: &str = "holdfast_index_cache";

/// Name of the metric of fetched blocks that were not stored in the slab.
const UNKEPT_BLOCKS: &str = "holdfast_slab_unkept_blocks";

/// A counter of fetched blocks left in the slab by earlier processes. It has no label: the slab is the
/// node's.
struct OldBlocksMetric {
    name: &'static str,
    help: &'static str,
    value: fn(&OldCounts) -> u64,
}

/// Metrics of fetched blocks left in the slab by earlier processes.
const OLD_BLOCKS_METRICS: [OldBlocksMetric; 3] = [
    OldBlocksMetric {
        name: "holdfast_slab_found_blocks",
        help: "Blocks from earlier processes that the block cache contained when this process started",
        value: |counts| counts.found,
    },
    OldBlocksMetric {
        name: "holdfast_slab_found_used_blocks",
        help: "Cached blocks from earlier processes that this process verified successfully before their first use",
        value: |counts| counts.used,
    },
    OldBlocksMetric {
        name: "holdfast_slab_found_refused_blocks",
        help: "Cached blocks from earlier processes that failed verification at their first use and were discarded: other bytes, or a read error",
        value: |counts| counts.refused,
    },
];

/// A counter of read-ahead. It has no label: the cache is the node's.
struct ReadAheadMetric {
    name: &'static str,
    unit: Option<Unit>,
    help: &'static str,
    value: fn(&ReadAheadFigures) -> u64,
}

/// Metrics of read-ahead.
const READ_AHEAD_METRICS: [ReadAheadMetric; 6] = [
    ReadAheadMetric {
        name: "holdfast_read_ahead_blocks",
        unit: None,
        help: "Blocks that read-ahead fetched from object stores before a read requested them",
        value: |figures| figures.blocks.fetched,
    },
    ReadAheadMetric {
        name: "holdfast_read_ahead_used_blocks",
        unit: None,
        help: "Blocks fetched by read-ahead that a read used",
        value: |figures| figures.blocks.used,
    },
    ReadAheadMetric {
        name: "holdfast_read_ahead_unused_blocks",
        unit: None,
        help: "Blocks fetched by read-ahead that left the block cache before a read used them",
        value: |figures| figures.blocks.unused,
    },
    ReadAheadMetric {
        name: "holdfast_read_ahead_requested",
        unit: Some(Unit::Bytes),
        help: "Bytes that read-ahead requested from object stores, in stored (compressed) form",
        value: |figures| figures.requested_bytes,
    },
    ReadAheadMetric {
        name: "holdfast_prefetch_lists_used",
        unit: None,
        help: "Forks for which this node fetched blocks of their snapshot's prefetch list",
        value: |figures| figures.used_lists,
    },
    ReadAheadMetric {
        name: "holdfast_prefetch_lists_stored",
        unit: None,
        help: "Prefetch lists that this node stored for snapshots without one",
        value: |figures| figures.stored_lists,
    },
];

/// Collects the table's metrics from the volumes.
struct VolumeCollector<V>(Readiness<V>);

impl<V> fmt::Debug for VolumeCollector<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VolumeCollector")
    }
}

impl<V: Volumes> Collector for VolumeCollector<V> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let volumes = self.0.volumes();
        encode_volumes(&mut encoder, &volumes)?;
        encode_request_times(&mut encoder, &volumes)?;
        encode_names(&mut encoder, &volumes, &self.0.names())?;
        encode_store_traffic(&mut encoder, &volumes)?;
        encode_stores(&mut encoder, &volumes)?;
        encode_node(&mut encoder, &self.0)
    }
}

/// Encodes the table's metrics of each volume.
fn encode_volumes(encoder: &mut DescriptorEncoder<'_>, volumes: &[NodeVolumeStatus]) -> fmt::Result {
    for metric in &VOLUME_METRICS {
        let (unit, kind) = (metric.unit.as_ref(), metric.kind.of());
        let mut family = encoder.encode_descriptor(metric.name, metric.help, unit, kind)?;
        for volume in volumes {
            let Some(value) = (metric.value)(volume) else { continue };
            let labels = [("volume", volume.volume.as_str())];
            metric.kind.sample(value, family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// Encodes the names of each volume in the cluster.
fn encode_names(
    encoder: &mut DescriptorEncoder<'_>,
    volumes: &[NodeVolumeStatus],
    names: &VolumeNames,
) -> fmt::Result {
    let names = names.all();
    let help = "Always 1; the labels map the volume's id to its names in the cluster";
    let kind = ConstGauge::new(0.0).metric_type();
    let mut family = encoder.encode_descriptor(VOLUME_INFO, help, None, kind)?;
    for (volume, name) in volumes.iter().filter_map(|v| Some((&v.volume, names.get(&v.volume)?))) {
        let labels = [
            ("volume", volume.as_str()),
            ("name", &name.volume),
            ("namespace", &name.claim_namespace),
            ("persistentvolumeclaim", &name.claim),
        ];
        ConstGauge::new(1.0).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Encodes the metrics that have no label: those of the node.
fn encode_node<V: Volumes>(encoder: &mut DescriptorEncoder<'_>, node: &Readiness<V>) -> fmt::Result {
    let kind = MetricKind::Counter.of();
    let help = "Devices without ublk whose FUSE connection no keeper holds now; an exit of the daemon fails their requests";
    let devices = encoder.encode_descriptor(UNKEPT_DEVICES, help, None, MetricKind::Gauge.of())?;
    ConstGauge::new(node.unkept_devices() as f64).encode(devices)?;
    let help = "Memory that the uploads of all volumes hold, at most `data.upload_memory`";
    let held = encoder.encode_descriptor(UPLOAD_MEMORY, help, Some(&Unit::Bytes), MetricKind::Gauge.of())?;
    ConstGauge::new(node.upload_memory_bytes() as f64).encode(held)?;
    let help = "Memory of cached parts of segment indexes, at most 256 MiB";
    let bytes = Some(&Unit::Bytes);
    let cached = encoder.encode_descriptor(INDEX_CACHE, help, bytes, MetricKind::Gauge.of())?;
    ConstGauge::new(node.index_cache_bytes() as f64).encode(cached)?;
    let help = "Fetched blocks served from memory because the local disk failed to store or read them";
    let unkept = encoder.encode_descriptor(UNKEPT_BLOCKS, help, None, kind)?;
    ConstCounter::new(node.unkept_blocks() as f64).encode(unkept)?;
    let old = node.old_blocks();
    for metric in &OLD_BLOCKS_METRICS {
        let sample = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
        ConstCounter::new((metric.value)(&old) as f64).encode(sample)?;
    }
    let figures = node.read_ahead();
    for metric in &READ_AHEAD_METRICS {
        let sample = encoder.encode_descriptor(metric.name, metric.help, metric.unit.as_ref(), kind)?;
        ConstCounter::new((metric.value)(&figures) as f64).encode(sample)?;
    }
    Ok(())
}

/// Collects the figures of the ring threads.
struct RingCollector<V>(Readiness<V>);

impl<V> fmt::Debug for RingCollector<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RingCollector")
    }
}

impl<V: Volumes> Collector for RingCollector<V> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let rings = self.0.rings();
        for metric in &RING_METRICS {
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, metric.kind.of())?;
            for (number, ring) in rings.iter().enumerate() {
                let (number, value) = (number.to_string(), (metric.value)(ring) as f64);
                metric.kind.sample(value, family.encode_family(&[("ring", number.as_str())])?)?;
            }
        }
        Ok(())
    }
}

/// Renders the metrics as OpenMetrics text.
pub(crate) fn render<V: Volumes>(volumes: Readiness<V>) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_with_unit(
        "holdfast_attach_step",
        "Duration of a step of an attach",
        Unit::Seconds,
        volumes.attach_times().histograms(),
    );
    registry.register_collector(Box::new(RingCollector(volumes.clone())));
    registry.register_collector(Box::new(VolumeCollector(volumes)));
    registry.register_collector(Box::new(DroppedLines));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use holdfast_engine::event::Errno;
    use holdfast_objects::Verb;
    use holdfast_s3::StoreAdaptation;

    use super::*;
    use crate::kubernetes::names::tests::show;
    use crate::node::{CommitStatus, StoreStatus};
    use crate::volumes::tests::{Fake, attached};

    pub(super) fn serving(fake: Fake) -> Readiness<Fake> {
        let readiness = Readiness::new();
        readiness.serves(fake);
        readiness
    }

    #[test]
    fn a_volume_has_metrics_with_units_and_its_label() {
        let fake = Fake::default();
        let mut volume = attached("vol-1");
        volume.store.refused_deletes.count = 3;
        volume.store.of_volume.requests.get = 4;
        volume.store.of_volume.body_bytes[Verb::Get as usize] = 8192;
        volume.store.adaptation = Some(StoreAdaptation { max_in_flight: 48, hedged_reads: 6 });
        volume.store.change_refused = Some("another bucket".to_owned());
        volume.disk.unkept = Some((Errno::EIO, Duration::from_secs(90)));
        fake.put(volume);
        fake.set_unkept_devices(2);
        let text = render(serving(fake)).unwrap();
        for line in [
            "holdfast_unkept_devices 2.0",
            "holdfast_index_cache_bytes 65536.0",
            "holdfast_upload_memory_bytes 1048576.0",
            "# TYPE holdfast_volume_dirty_bytes gauge",
            "# UNIT holdfast_volume_dirty_bytes bytes",
            "holdfast_ring_waiting_messages_max{ring=\"1\"} 4.0",
            "holdfast_ring_full_inbox_total{ring=\"1\"} 2.0",
            "holdfast_ring_copied_requests_total{ring=\"1\"} 5.0",
            "holdfast_volume_attached{volume=\"vol-1\"} 1.0",
            "holdfast_volume_dirty_bytes{volume=\"vol-1\"} 8192.0",
            "holdfast_volume_cached_bytes{volume=\"vol-1\"} 12288.0",
            "holdfast_volume_evicted_bytes_total{volume=\"vol-1\"} 4096.0",
            "holdfast_volume_committed_seq{volume=\"vol-1\"} 7.0",
            "holdfast_volume_ancestors{volume=\"vol-1\"} 2.0",
            "holdfast_store_requests_total{store=\"main\",operation=\"put\"} 2.0",
            "holdfast_volume_store_requests_total{volume=\"vol-1\",operation=\"get\"} 4.0",
            "holdfast_volume_store_bytes_total{volume=\"vol-1\",operation=\"get\"} 8192.0",
            "holdfast_volume_store_change_refused{volume=\"vol-1\"} 1.0",
            "holdfast_volume_local_disk_writes_failing_seconds{volume=\"vol-1\"} 90.0",
            "holdfast_store_in_flight_limit{store=\"main\"} 48.0",
            "holdfast_store_hedged_reads_total{store=\"main\"} 6.0",
            "holdfast_store_refused_deletes_total{store=\"main\"} 3.0",
            "holdfast_slab_unkept_blocks_total 5.0",
            "holdfast_slab_found_blocks_total 8.0",
            "holdfast_slab_found_used_blocks_total 7.0",
            "holdfast_slab_found_refused_blocks_total 1.0",
            "holdfast_read_ahead_blocks_total 9.0",
            "holdfast_read_ahead_used_blocks_total 6.0",
            "holdfast_read_ahead_unused_blocks_total 1.0",
            "holdfast_read_ahead_requested_bytes_total 4096.0",
            "holdfast_prefetch_lists_used_total 3.0",
            "holdfast_prefetch_lists_stored_total 2.0",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn the_times_of_requests_are_a_histogram_of_a_volume_and_an_operation() {
        let fake = Fake::default();
        fake.put(attached("vol-1"));
        let text = render(serving(fake)).unwrap();
        for line in [
            "# TYPE holdfast_volume_request_seconds histogram",
            "holdfast_volume_request_seconds_count{volume=\"vol-1\",operation=\"flush\"} 3",
            "holdfast_volume_request_seconds_sum{volume=\"vol-1\",operation=\"flush\"} 9.000048",
            "holdfast_volume_request_seconds_bucket{le=\"0.000016\",volume=\"vol-1\",operation=\"flush\"} 1",
            "holdfast_volume_request_seconds_bucket{le=\"8.388608\",volume=\"vol-1\",operation=\"flush\"} 2",
            "holdfast_volume_request_seconds_bucket{le=\"+Inf\",volume=\"vol-1\",operation=\"flush\"} 3",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is not in\n{text}");
        }
        let none = "holdfast_volume_request_seconds_count{volume=\"vol-1\",operation=\"read\"} 0";
        assert!(text.contains(none), "a rate begins with zero: {text}");
    }

    /// Alerts and dashboards identify a volume by its id, the claim's owner by the claim.
    #[test]
    fn a_volume_is_joined_with_its_claim() {
        let fake = Fake::default();
        ["id-1", "id-2", "id-3"].into_iter().for_each(|id| fake.put(attached(id)));
        let volumes = [
            ("pvc-1", Some("id-1"), Some("shop/data")),
            ("disk", Some("id-2"), None),
            ("gone", Some("id-4"), Some("shop/gone")),
        ];
        let readiness = serving(fake);
        show(&readiness.names(), &volumes);
        let text = render(readiness).unwrap();
        let mut lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("holdfast_volume_info{")).collect();
        lines.sort_unstable();
        assert_eq!(
            lines,
            [
                r#"holdfast_volume_info{volume="id-1",name="pvc-1",namespace="shop",persistentvolumeclaim="data"} 1.0"#,
                r#"holdfast_volume_info{volume="id-2",name="disk",namespace="",persistentvolumeclaim=""} 1.0"#,
            ]
        );
    }

    #[test]
    fn without_kubernetes_a_volume_has_no_names() {
        let fake = Fake::default();
        fake.put(attached("vol-1"));
        let text = render(serving(fake)).unwrap();
        assert!(text.contains("# TYPE holdfast_volume_info gauge"), "{text}");
        assert!(!text.contains("holdfast_volume_info{"), "{text}");
    }

    /// Regression, found in review: while one volume was attaching, its store's counts were 0 for all others.
    #[test]
    fn a_volume_that_is_being_attached_knows_nothing_yet() {
        let fake = Fake::default();
        fake.put(attached("vol-1"));
        let unknown = NodeVolumeStatus {
            commit: CommitStatus::default(),
            durability: None,
            max_dirty_age: None,
            attached: None,
            ..attached("a")
        };
        let store = StoreStatus { name: "main".to_owned(), ..StoreStatus::default() };
        fake.put(NodeVolumeStatus { state: VolumeState::Attaching, store, ..unknown });
        let text = render(serving(fake)).unwrap();
        let has = |line: &str| text.lines().any(|have| have == line);
        assert!(has("holdfast_store_requests_total{store=\"main\",operation=\"put\"} 2.0"), "{text}");
        assert!(has("holdfast_volume_attached{volume=\"a\"} 0.0"), "{text}");
        assert!(!text.contains("holdfast_volume_dirty_bytes{volume=\"a\"}"), "{text}");
    }

    /// The list has every metric with its kind, unit and meaning.
    #[test]
    fn the_list_of_metrics_is_complete() {
        let fake = Fake::default();
        fake.put(attached("vol-1"));
        let text = render(serving(fake)).unwrap();
        let page = crate::documented::page("docs/metrics.md");
        let described = |what, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {what} {name} ")));
            line.map(|line| line.trim_end_matches('.').to_owned())
        };
        let names = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let missing: Vec<String> = names
            .map(|name| {
                let [kind, unit, help] = ["TYPE", "UNIT", "HELP"].map(|what| described(what, name));
                let [kind, help] = [kind, help].map(Option::unwrap);
                format!("| `{name}` | {kind} | {} | {help} |", unit.unwrap_or_else(|| "-".to_owned()))
            })
            .filter(|row| !page.lines().any(|line| line == row))
            .collect();
        assert!(missing.is_empty(), "docs/metrics.md lacks\n{}", missing.join("\n"));
    }

    #[test]
    fn the_pages_for_users_name_metrics_that_there_are() {
        let fake = Fake::default();
        fake.put(attached("vol-1"));
        let text = render(serving(fake)).unwrap();
        for (path, page) in crate::documented::pages() {
            let words = page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            // Metrics of the other programs are checked by their own tests.
            let is_other = |word: &str| {
                let others = ["holdfast_csi_", "holdfast_operator_", "holdfast_sweep_"];
                others.iter().any(|program| word.starts_with(program))
            };
            let words = words.filter(|word| word.starts_with("holdfast_") && !is_other(word));
            // Targets of the daemon's log lines.
            let words = words.filter(|word| !["holdfast_node", "holdfast_serve"].contains(word));
            let has = |word: &str, kind: &str| text.contains(&format!("# TYPE {word} {kind}"));
            for word in words {
                let samples = ["_bucket", "_count", "_sum"];
                let histogram = samples.iter().find_map(|sample| word.strip_suffix(sample));
                let is_sample = histogram.is_some_and(|histogram| has(histogram, "histogram"));
                assert!(has(word, "") || is_sample, "{path} names {word}, which is no metric");
            }
        }
    }
}
