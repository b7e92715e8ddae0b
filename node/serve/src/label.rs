//! Label of a volume in the log lines of the data path.
//!
//! Owns: the fields of the span of every log line about a served volume: its name, its device, the writer's
//! epoch. The volume's ring thread and its background work share it.

use std::sync::OnceLock;

use holdfast_types::{Epoch, VolumeId};
use holdfast_ublk::Device;
use tracing::field::display;

/// Label of a volume in log lines.
#[derive(Debug)]
pub struct Label {
    volume: VolumeId,
    epoch: Epoch,
    /// Set when its queues are first opened.
    device: OnceLock<Device>,
}

impl Label {
    /// Creates the label of a volume whose writer has this epoch.
    #[must_use]
    pub const fn new(volume: VolumeId, epoch: Epoch) -> Self {
        Self { volume, epoch, device: OnceLock::new() }
    }

    /// Sets the volume's device once: a volume has one device until it leaves its ring.
    pub fn set_device(&self, device: Device) {
        self.device.get_or_init(|| device);
    }

    /// Creates the span of a line or of a piece of work. Spans must be short: an exporter of traces keeps the
    /// lines of a span in memory until the span ends.
    pub fn span(&self) -> tracing::Span {
        let path = self.device.get().map(Device::block_path);
        let device = path.as_ref().map(|path| display(path.display()));
        tracing::error_span!("volume", volume = %self.volume, device, epoch = self.epoch.0)
    }
}
