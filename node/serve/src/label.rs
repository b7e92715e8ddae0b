//! Label of the volume that a log line of the data path is about.
//!
//! Owns: the fields of the span that every log line about a served volume is written in: its name, its
//! device, the writer's epoch. Shared by the volume's ring thread and its background work.

use std::sync::OnceLock;

use holdfast_types::{Epoch, VolumeId};
use holdfast_ublk::Device;
use tracing::field::display;

/// A volume in log lines.
#[derive(Debug)]
pub struct Label {
    volume: VolumeId,
    epoch: Epoch,
    /// Known from the first time that its queues are opened.
    device: OnceLock<Device>,
}

impl Label {
    /// The label of a volume whose writer has this epoch.
    #[must_use]
    pub const fn new(volume: VolumeId, epoch: Epoch) -> Self {
        Self { volume, epoch, device: OnceLock::new() }
    }

    /// Names the volume's device from now on. A volume has one device for as long as it is on its ring.
    pub fn set_device(&self, device: Device) {
        self.device.get_or_init(|| device);
    }

    /// Makes the span of a line, or of a piece of work. Each is short: an exporter of traces keeps the lines
    /// of a span in memory until the span ends.
    pub fn span(&self) -> tracing::Span {
        let path = self.device.get().map(Device::block_path);
        let device = path.as_ref().map(|path| display(path.display()));
        tracing::error_span!("volume", volume = %self.volume, device, epoch = self.epoch.0)
    }
}
