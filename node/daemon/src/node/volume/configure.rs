//! Changes settings of a served volume: its record, then its planner.
//!
//! 1. the new settings are written to the record in the tmpfs directory;
//! 2. the planner on the ring thread applies them, the limits apply to all later requests, and both are shown
//!    as in effect.
//!
//! In this order, a restarted daemon never serves with weaker settings than those reported as in effect.
//! On failure: the volume serves with the settings in its status; the same request may be retried.

use holdfast_engine::settings::RuntimeSettings;
use holdfast_serve::{IoLimits, Message};
use holdfast_types::VolumeId;

use crate::node::error::NodeError;
use crate::node::volume::state::{State, WriterState};
use crate::node::volume::table::refusal;
use crate::node::{Node, SettingsChange, VolumeSettings, millis};

impl Node {
    /// Changes the settings of a served volume, which are in effect when this returns. Repeating it is a
    /// no-op. Does not wait for a store.
    ///
    /// # Errors
    /// [`NodeError::NotAttached`], [`NodeError::Busy`], [`NodeError::Fenced`], [`NodeError::NotOnRing`]; the
    /// record could not be written.
    #[tracing::instrument(name = "configure", skip_all, fields(volume = %volume))]
    pub(crate) async fn configure(
        &self,
        volume: &VolumeId,
        change: SettingsChange,
    ) -> Result<VolumeSettings, NodeError> {
        let present = self.0.volumes.present(volume)?;
        let _one_at_a_time = present.configuring.lock().await;
        let state = present.state.get();
        let State::Serving { writer: WriterState::Ready, .. } = state else {
            return Err(refusal(volume, &state));
        };
        let SettingsChange { max_dirty_age, durability, iops, bytes_per_second } = change;
        let before = present.settings();
        let VolumeSettings { planner, limits } = before;
        let planner = RuntimeSettings {
            max_age_ms: max_dirty_age.map_or(planner.max_age_ms, millis),
            durability: durability.unwrap_or(planner.durability),
        };
        let limits = IoLimits {
            iops: iops.after(limits.iops),
            bytes_per_second: bytes_per_second.after(limits.bytes_per_second),
        };
        let settings = VolumeSettings { planner, limits };
        present.remember_settings(settings)?;
        let configured = present.ring.call(|done| Message::Configure {
            key: present.key,
            settings: planner,
            limits,
            done,
        });
        configured.await?.map_err(present.refused())?;
        if settings != before {
            tracing::info!(%volume, ?before, ?settings, "the settings of the volume changed");
        }
        Ok(settings)
    }
}
