//! Growth of a volume that is served: its files, its log, its device, in this order.
//!
//! 1. the sides, the durable map and the live map are made long enough;
//! 2. the log says the new size, then the live map (`node/engine/src/volume/growth.rs`);
//! 3. the record in the tmpfs directory says it;
//! 4. the kernel is told: requests to the new sectors come from then on.
//!
//! On failure: the volume serves as before. What was done stays, and the same request continues; a daemon
//! that restarts after step 3 does step 4 by itself.

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

/// The size that a volume is to have, and the limits of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrowTo {
    /// Size.
    pub(crate) bytes: u64,
    /// The most memory that the content of a memory volume takes; absent: as before, which is as much as any
    /// content needs where it was that.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// Maximum disk space for its spilled pages; absent: as before.
    pub(crate) memory_spill_bytes: Option<u64>,
}

impl GrowTo {
    /// The growth of a volume of an object store.
    pub(crate) const fn bytes(bytes: u64) -> Self {
        Self { bytes, memory_limit_bytes: None, memory_spill_bytes: None }
    }
}

impl Node {
    /// Grows a volume that is served, and its device, to this size. Again it changes nothing. Waits while the
    /// store is unreachable.
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
