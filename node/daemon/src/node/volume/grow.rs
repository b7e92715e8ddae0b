//! Growth of a served volume: its files, its log, its device, in this order.
//!
//! 1. the sides, the durable map and the live map are extended;
//! 2. the new size is written to the log, then to the live map (`node/engine/src/volume/growth.rs`);
//! 3. it is written to the record in the tmpfs directory;
//! 4. the kernel resizes the device: requests to the new sectors may arrive from then on.
//!
//! On failure: the volume serves as before. Completed steps stay, and the same request resumes; a daemon that
//! restarts after step 3 performs step 4 by itself.

use std::sync::Arc;

use holdfast_engine::attach::AttachRefused;
use holdfast_format::limit::MAX_SECTORS;
use holdfast_types::VolumeId;

use crate::node::error::NodeError;
use crate::node::local::live_map;
use crate::node::run_blocking::blocking;
use crate::node::volume::state::{State, WriterState};
use crate::node::volume::table::refusal;
use crate::node::{Attached, Node, sectors_of};
use holdfast_serve::Message;

/// The new size of a volume, and the limits of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrowTo {
    /// Size.
    pub(crate) bytes: u64,
    /// Memory limit for a memory volume's content; `None`: unchanged, or still enough for any content if it
    /// was so.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// Maximum disk space for its spilled pages; `None`: unchanged.
    pub(crate) memory_spill_bytes: Option<u64>,
}

impl GrowTo {
    /// Returns the growth of a volume of an object store.
    pub(crate) const fn bytes(bytes: u64) -> Self {
        Self { bytes, memory_limit_bytes: None, memory_spill_bytes: None }
    }
}

impl Node {
    /// Grows a served volume, and its device, to this size. Repeating it is a no-op. Waits while the store is
    /// unreachable.
    ///
    /// # Errors
    /// [`NodeError::Size`], [`AttachRefused::TooLarge`], [`AttachRefused::Shrinks`],
    /// [`NodeError::DeviceCannotGrow`], [`NodeError::TooLarge`], [`NodeError::NotAttached`],
    /// [`NodeError::Busy`], [`NodeError::Fenced`].
    #[tracing::instrument(name = "grow", skip_all, fields(volume = %volume, bytes))]
    pub(crate) async fn grow(&self, volume: &VolumeId, bytes: u64) -> Result<Attached, NodeError> {
        let sectors = sectors_of(bytes)?;
        if sectors > MAX_SECTORS {
            return Err(AttachRefused::TooLarge(sectors).into());
        }
        let present = self.0.volumes.present(volume)?;
        let one_at_a_time = Arc::clone(&present.growing).lock_owned().await;
        let state = present.state.get();
        let State::Serving { device, writer: WriterState::Ready } = state else {
            return Err(refusal(volume, &state));
        };
        let from = present.sectors();
        if sectors < from {
            return Err(AttachRefused::Shrinks { volume: volume.clone(), from, to: sectors }.into());
        }
        self.0.devices.check_growth(volume, device).await?;
        if sectors > from {
            let local = present.local.clone();
            let live_map = blocking(move || {
                local.open_files(sectors)?;
                live_map::open(&local.live_map_path(), sectors)
            });
            let live_map = Box::new(live_map.await?);
            present.ring.send(Message::Grow { key: present.key, live_map, sectors }).await;
            let grown = tokio::select! {
                grown = present.published.reach_sectors(sectors) => grown,
                state = present.state.reach(|state| state.has_ended() || state.is_detaching()) => {
                    return Err(refusal(volume, &state));
                }
            };
            present.remember_sectors(grown)?;
        }
        self.0.devices.grow(&present, device, one_at_a_time).await?;
        tracing::info!(%volume, from, sectors, "the volume grew");
        Ok(present.attached_by(device))
    }
}
