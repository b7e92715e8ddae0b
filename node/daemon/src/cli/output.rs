//! Answers of the daemon as tables and as JSON.

use std::io::{self, Write};
use std::time::Duration;

use holdfast_proto::node::v1::{
    AttachResponse, CapabilitiesResponse, CreateResponse, DetachResponse, ListResponse, StatsResponse,
    Transport, TransportCapability, Volume, VolumeState, VolumeStats,
};
use serde_json::{Value, json};

use crate::config::ByteSize;

/// An answer that can be printed.
pub(super) trait Render {
    /// For a person; ends with a newline unless there is nothing to say.
    fn text(&self) -> String;
    /// For a program. Field names are the ones of the interface.
    fn json(&self) -> Value;
}

/// Writes to standard output. A reader that has gone away is no error.
///
/// # Errors
/// When standard output cannot be written.
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
        json!({})
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
        format!("{}\n", self.device_path)
    }

    fn json(&self) -> Value {
        let Self { device_path, transport: _, epoch, size_bytes } = self;
        json!({
            "device_path": device_path,
            "transport": transport_name(self.transport()),
            "epoch": epoch,
            "size_bytes": size_bytes,
        })
    }
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
            "STORE",
            "MESSAGE",
        ];
        table(
            header,
            self.volumes.iter().map(|volume| {
                [
                    volume.volume_id.clone(),
                    state_name(volume.state()).to_owned(),
                    or_dash(volume.device_path.as_ref()),
                    ByteSize(volume.size_bytes).to_string(),
                    transport_name(volume.transport()).to_owned(),
                    volume.epoch.to_string(),
                    or_dash(volume.committed_seq.as_ref()),
                    ByteSize(volume.dirty_bytes).to_string(),
                    oldest(volume).map_or_else(|| "-".to_owned(), |age| format!("{}s", age.as_secs())),
                    volume.store.clone(),
                    or_dash(volume.message.as_ref()),
                ]
            }),
        )
    }

    fn json(&self) -> Value {
        let volumes = self.volumes.iter().map(|volume| {
            let Volume {
                volume_id,
                store,
                state: _,
                device_path,
                transport: _,
                epoch,
                size_bytes,
                committed_seq,
                dirty_bytes,
                oldest_dirty: _,
                message,
            } = volume;
            json!({
                "volume_id": volume_id,
                "store": store,
                "state": state_name(volume.state()),
                "device_path": device_path,
                "transport": transport_name(volume.transport()),
                "epoch": epoch,
                "size_bytes": size_bytes,
                "committed_seq": committed_seq,
                "dirty_bytes": dirty_bytes,
                "oldest_dirty_seconds": oldest(volume).map(|age| age.as_secs()),
                "message": message,
            })
        });
        json!({ "volumes": volumes.collect::<Vec<_>>() })
    }
}

impl Render for StatsResponse {
    fn text(&self) -> String {
        let header = [
            "VOLUME",
            "READS",
            "READ",
            "WRITES",
            "WRITTEN",
            "FLUSHES",
            "DISCARDS",
            "FAILED",
            "S3-GETS",
            "S3-PUTS",
            "S3-LISTS",
            "S3-READ",
            "S3-WRITTEN",
        ];
        table(
            header,
            self.volumes.iter().map(|stats| {
                [
                    stats.volume_id.clone(),
                    stats.read_requests.to_string(),
                    ByteSize(stats.read_bytes).to_string(),
                    stats.write_requests.to_string(),
                    ByteSize(stats.write_bytes).to_string(),
                    stats.flush_requests.to_string(),
                    stats.discard_requests.to_string(),
                    stats.failed_requests.to_string(),
                    stats.s3_gets.to_string(),
                    stats.s3_puts.to_string(),
                    stats.s3_lists.to_string(),
                    stats.s3_read_bytes.to_string(),
                    stats.s3_written_bytes.to_string(),
                ]
            }),
        )
    }

    fn json(&self) -> Value {
        let volumes = self.volumes.iter().map(|stats| {
            let VolumeStats {
                volume_id,
                read_requests,
                read_bytes,
                write_requests,
                write_bytes,
                flush_requests,
                discard_requests,
                failed_requests,
                s3_gets,
                s3_puts,
                s3_lists,
                s3_read_bytes,
                s3_written_bytes,
            } = stats;
            json!({
                "volume_id": volume_id,
                "read_requests": read_requests,
                "read_bytes": read_bytes,
                "write_requests": write_requests,
                "write_bytes": write_bytes,
                "flush_requests": flush_requests,
                "discard_requests": discard_requests,
                "failed_requests": failed_requests,
                "s3_gets": s3_gets,
                "s3_puts": s3_puts,
                "s3_lists": s3_lists,
                "s3_read_bytes": s3_read_bytes,
                "s3_written_bytes": s3_written_bytes,
            })
        });
        json!({ "volumes": volumes.collect::<Vec<_>>() })
    }
}

impl Render for CapabilitiesResponse {
    fn text(&self) -> String {
        let Self { kernel_release, daemon_version, transports } = self;
        let rows = transports.iter().map(|capability| {
            [
                transport_name(capability.transport()).to_owned(),
                if capability.available { "yes" } else { "no" }.to_owned(),
                or_dash(capability.refusal.as_ref()),
            ]
        });
        format!(
            "kernel {kernel_release}, daemon {daemon_version}\n{}",
            table(["TRANSPORT", "AVAILABLE", "REFUSAL"], rows)
        )
    }

    fn json(&self) -> Value {
        let Self { kernel_release, daemon_version, transports } = self;
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
        })
    }
}

/// The words of the Kubernetes API for the same things.
fn transport_name(transport: Transport) -> &'static str {
    match transport {
        Transport::Unspecified => "unknown",
        Transport::UblkZeroCopy => "ublk-zero-copy",
        Transport::UblkUserCopy => "ublk-user-copy",
    }
}

fn state_name(state: VolumeState) -> &'static str {
    match state {
        VolumeState::Unspecified => "Unknown",
        VolumeState::Attaching => "Attaching",
        VolumeState::Attached => "Attached",
        VolumeState::Detaching => "Detaching",
        VolumeState::Fenced => "Fenced",
    }
}

fn oldest(volume: &Volume) -> Option<Duration> {
    volume.oldest_dirty.and_then(|age| Duration::try_from(age).ok())
}

fn or_dash<T: ToString>(value: Option<&T>) -> String {
    value.map_or_else(|| "-".to_owned(), T::to_string)
}

/// Columns as wide as their widest cell, two spaces apart.
fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
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
