//! The daemon's answers as tables and as JSON.

use std::io::{self, Write};
use std::time::Duration;

use holdfast_crds::{ByteSize, TimeSpan};
use holdfast_proto::node::v1::{
    AttachResponse, CapabilitiesResponse, ConfigureResponse, CreateResponse, DetachResponse, Device,
    Displaced, Durability, GrowResponse, Limits, ListResponse, MemoryUse, StateDisk, StatsResponse,
    Transport, TransportCapability, Volume, VolumeState, VolumeStats,
};
use holdfast_types::SECTOR_BYTES;
use serde_json::{Value, json};

/// An answer that can be printed.
pub(super) trait Render {
    /// Returns the text for a user; it ends with a newline unless it is empty.
    fn text(&self) -> String;
    /// Returns the JSON for a program. Field names are those of the interface.
    fn json(&self) -> Value;
}

/// Writes to standard output. A reader that closed its end is not an error.
///
/// # Errors
/// Standard output cannot be written.
pub(super) fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

impl Render for CreateResponse {
    fn text(&self) -> String {
        String::new()
    }

    fn json(&self) -> Value {
        let Self { size_bytes } = self;
        json!({ "size_bytes": size_bytes })
    }
}

impl Render for DetachResponse {
    fn text(&self) -> String {
        String::new()
    }

    fn json(&self) -> Value {
        json!({})
    }
}

impl Render for AttachResponse {
    fn text(&self) -> String {
        self.device.as_ref().map(|device| format!("{}\n", device.path)).unwrap_or_default()
    }

    fn json(&self) -> Value {
        let Self { device, displaced } = self;
        let displaced = displaced.as_ref().map(|Displaced { epoch, node, since }| {
            json!({ "epoch": epoch, "node": node, "since": since.map(|time| time.to_string()) })
        });
        json!({ "device": device.as_ref().map(device_json), "displaced": displaced })
    }
}

impl Render for ConfigureResponse {
    fn text(&self) -> String {
        String::new()
    }

    fn json(&self) -> Value {
        let Self { max_dirty_age, durability: _, limits } = self;
        json!({
            "max_dirty_age": max_dirty_age.map(time_span),
            "durability": durability_name(self.durability()),
            "limits": limits.as_ref().map(limits_json),
        })
    }
}

impl Render for GrowResponse {
    fn text(&self) -> String {
        String::new()
    }

    fn json(&self) -> Value {
        let Self { device } = self;
        json!({ "device": device.as_ref().map(device_json) })
    }
}

/// Returns the text about the writer that an attach replaced, printed next to the answer.
pub(super) fn displaced(writer: &Displaced) -> String {
    let Displaced { epoch, node, since } = writer;
    let since = since.map(|time| format!(" since {time}")).unwrap_or_default();
    format!(
        "replaced the writer of epoch {epoch}, attached by node {node}{since}. Data that it had not uploaded is \
         not in the volume"
    )
}

impl Render for ListResponse {
    fn text(&self) -> String {
        let header = [
            "VOLUME",
            "STATE",
            "DEVICE",
            "SIZE",
            "TRANSPORT",
            "EPOCH",
            "COMMITTED",
            "DIRTY",
            "OLDEST",
            "FLUSH",
            "MAX-AGE",
            "STORE",
            "MESSAGE",
        ];
        let row = |volume: &Volume| {
            let device = volume.device.as_ref();
            [
                volume.volume_id.clone(),
                state_name(volume.state()).to_owned(),
                or_dash(device.map(|device| &device.path)),
                or_dash(device.map(|device| ByteSize(device.size_bytes))),
                or_dash(device.map(|device| transport_name(device.transport()))),
                or_dash(device.map(|device| device.epoch)),
                or_dash(volume.committed_seq),
                or_dash(volume.dirty_bytes.map(ByteSize)),
                or_dash(oldest(volume).map(|age| format!("{}s", age.as_secs()))),
                durability_name(volume.durability()).to_owned(),
                or_dash(volume.max_dirty_age.map(time_span)),
                volume.store.clone(),
                or_dash(volume.message.as_ref()),
            ]
        };
        table(header, self.volumes.iter().map(row))
    }

    fn json(&self) -> Value {
        let row = |volume: &Volume| {
            let Volume {
                volume_id,
                store,
                state: _,
                device,
                committed_seq,
                dirty_bytes,
                oldest_dirty: _,
                message,
                durability: _,
                durable_through,
                holds_data,
                max_dirty_age,
                memory,
                limits,
            } = volume;
            json!({
                "volume_id": volume_id,
                "store": store,
                "state": state_name(volume.state()),
                "device": device.as_ref().map(device_json),
                "committed_seq": committed_seq,
                "dirty_bytes": dirty_bytes,
                "oldest_dirty_seconds": oldest(volume).map(|age| age.as_secs()),
                "durability": durability_name(volume.durability()),
                "durable_through": durable_through.map(|time| time.to_string()),
                "holds_data": holds_data,
                "max_dirty_age": max_dirty_age.map(time_span),
                "message": message,
                "memory": memory.as_ref().map(memory_json),
                "limits": limits.as_ref().map(limits_json),
            })
        };
        json!({ "volumes": self.volumes.iter().map(row).collect::<Vec<_>>() })
    }
}

/// Formats a duration of the interface in the syntax of the command line and the configuration.
fn time_span(span: prost_types::Duration) -> String {
    TimeSpan(span.try_into().unwrap_or_default()).to_string()
}

fn limits_json(limits: &Limits) -> Value {
    let Limits { iops, bytes_per_second } = limits;
    json!({ "iops": iops, "bytes_per_second": bytes_per_second })
}

fn memory_json(memory: &MemoryUse) -> Value {
    let MemoryUse {
        used_bytes,
        limit_bytes,
        content_bytes,
        same_filled_pages,
        refused_pages,
        spilled_bytes,
        spill_limit_bytes,
        moved_pages,
    } = memory;
    json!({
        "used_bytes": used_bytes,
        "limit_bytes": limit_bytes,
        "content_bytes": content_bytes,
        "same_filled_pages": same_filled_pages,
        "refused_pages": refused_pages,
        "spilled_bytes": spilled_bytes,
        "spill_limit_bytes": spill_limit_bytes,
        "moved_pages": moved_pages,
    })
}

fn device_json(device: &Device) -> Value {
    let Device { path, transport: _, epoch, size_bytes } = device;
    json!({
        "path": path,
        "transport": transport_name(device.transport()),
        "epoch": epoch,
        "size_bytes": size_bytes,
    })
}

impl Render for StatsResponse {
    fn text(&self) -> String {
        let header = [
            "VOLUME", "READS", "READ", "WRITES", "WRITTEN", "FLUSHES", "DISCARDS", "COLD", "FAILED",
            "WAITING", "GETS", "PUTS", "LISTS",
        ];
        let row = |stats: &VolumeStats| {
            let store = stats.store_requests.unwrap_or_default();
            [
                stats.volume_id.clone(),
                stats.read_requests.to_string(),
                ByteSize(stats.read_bytes).to_string(),
                stats.write_requests.to_string(),
                ByteSize(stats.written_bytes).to_string(),
                stats.flush_requests.to_string(),
                stats.discard_requests.to_string(),
                stats.cold_reads.to_string(),
                stats.failed_requests.to_string(),
                stats.waiting_requests.to_string(),
                store.get.to_string(),
                store.put.to_string(),
                store.list.to_string(),
            ]
        };
        table(header, self.volumes.iter().map(row))
    }

    fn json(&self) -> Value {
        let row = |stats: &VolumeStats| {
            let store_requests = Some(stats.store_requests.unwrap_or_default());
            VolumeStats { store_requests, ..stats.clone() }
        };
        json!({ "volumes": self.volumes.iter().map(row).collect::<Vec<_>>() })
    }
}

impl Render for CapabilitiesResponse {
    fn text(&self) -> String {
        let Self { kernel_release, daemon_version, transports, state_disk, max_volumes, transport: _ } = self;
        let rows = transports.iter().map(|capability| {
            [
                transport_name(capability.transport()).to_owned(),
                if capability.available { "yes" } else { "no" }.to_owned(),
                or_dash(capability.refusal.as_ref()),
            ]
        });
        format!(
            "kernel {kernel_release}, daemon {daemon_version}, at most {max_volumes} volumes\ntransport of new devices: \
             {}\nstate disk: {}\n{}",
            self.transport.map_or("none", |_| transport_name(self.transport())),
            state_disk.as_ref().map_or_else(|| "not known".to_owned(), state_disk_text),
            table(["TRANSPORT", "AVAILABLE", "REFUSAL"], rows)
        )
    }

    fn json(&self) -> Value {
        let Self { kernel_release, daemon_version, transports, state_disk, max_volumes, transport } = self;
        let transports = transports.iter().map(|capability| {
            let TransportCapability { transport: _, available, refusal } = capability;
            json!({
                "transport": transport_name(capability.transport()),
                "available": available,
                "refusal": refusal,
            })
        });
        json!({
            "kernel_release": kernel_release,
            "daemon_version": daemon_version,
            "transports": transports.collect::<Vec<_>>(),
            "transport": transport.map(|_| transport_name(self.transport())),
            "state_disk": state_disk.as_ref().map(|StateDisk { device, physical_block_bytes }| json!({
                "device": device,
                "physical_block_bytes": physical_block_bytes,
            })),
            "max_volumes": max_volumes,
        })
    }
}

fn state_disk_text(disk: &StateDisk) -> String {
    let StateDisk { device, physical_block_bytes } = disk;
    let tears = if *physical_block_bytes < SECTOR_BYTES {
        ": a power cut may tear sectors that were not flushed"
    } else {
        ""
    };
    format!("{device}, physical blocks of {physical_block_bytes} bytes{tears}")
}

/// Names used by the Kubernetes API for the same values.
fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Unspecified => "unknown",
        Transport::UblkZeroCopy => "ublk-zero-copy",
        Transport::UblkUserCopy => "ublk-user-copy",
        Transport::UblkKernelCopy => "ublk-kernel-copy",
        Transport::FuseLoop => "fuse-loop",
    }
}

fn state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Unspecified => "Unknown",
        VolumeState::Attaching => "Attaching",
        VolumeState::Attached => "Attached",
        VolumeState::Detaching => "Detaching",
        VolumeState::Fenced => "Fenced",
        VolumeState::Recovering => "Recovering",
        VolumeState::Quiesced => "Quiesced",
        VolumeState::Unserved => "Unserved",
    }
}

fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::Unspecified => "unknown",
        Durability::Local => "local",
        Durability::Object => "object",
    }
}

fn oldest(volume: &Volume) -> Option<Duration> {
    volume.oldest_dirty.and_then(|age| Duration::try_from(age).ok())
}

pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// Formats columns as wide as their widest cell, two spaces apart.
pub(super) fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = std::iter::once(header.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}
