//! Settings that a request to attach names, compared with those of a volume that is attached already.

use std::time::Duration;

use holdfast_crds::{ByteSize, TimeSpan};
use holdfast_engine::settings::Durability;
use holdfast_serve::IoLimits;

use super::convert::{CheckedAttach, InvalidField};
use crate::node::{NodeVolumeStatus, millis};

/// Settings that a request to attach names. An absent one agrees with any value.
#[derive(Debug, Clone, Copy)]
pub(super) struct AskedSettings {
    durability: Option<Durability>,
    max_dirty_age: Option<Duration>,
    limits: IoLimits,
    bytes: Option<u64>,
}

impl AskedSettings {
    /// Returns the settings of a request.
    pub(super) fn of(attach: &CheckedAttach) -> Self {
        let CheckedAttach { durability, max_dirty_age, limits, bytes, .. } = *attach;
        Self { durability, max_dirty_age, limits, bytes }
    }

    /// Checks that they are in effect for an attached volume.
    ///
    /// # Errors
    /// [`InvalidField::NotInEffect`] for the first that is not.
    pub(super) fn check(&self, attached: &NodeVolumeStatus) -> Result<(), InvalidField> {
        let limits = attached.delays.limits.limits;
        let [asked_ms, now_ms] = [self.max_dirty_age, attached.max_dirty_age].map(|age| age.map(millis));
        let size = attached.attached.as_ref().map(|device| device.bytes);
        // A volume never shrinks.
        let larger = self.bytes.filter(|bytes| size < Some(*bytes));
        let max_bytes = (self.limits.bytes_per_second, limits.bytes_per_second);
        let age = |ms: u64| TimeSpan(Duration::from_millis(ms)).to_string();
        let bytes = |bytes: u64| ByteSize(bytes).to_string();
        let fields = [
            ("durability", "configure", difference(self.durability, attached.durability, class)),
            ("max_dirty_age", "configure", difference(asked_ms, now_ms, age)),
            (
                "limits.iops",
                "configure",
                difference(self.limits.iops, limits.iops, |iops: u64| iops.to_string()),
            ),
            ("limits.bytes_per_second", "configure", difference(max_bytes.0, max_bytes.1, bytes)),
            ("size_bytes", "grow", difference(larger, size, bytes)),
        ];
        let mut differing =
            fields.into_iter().filter_map(|(field, command, values)| Some((field, command, values?)));
        let Some((field, command, (attached_with, asked))) = differing.next() else { return Ok(()) };
        let volume = attached.volume.clone();
        Err(InvalidField::NotInEffect { field, volume, attached: attached_with, asked, command })
    }
}

/// Returns the current and the requested value as text, if they differ.
fn difference<T: PartialEq + Copy>(
    asked: Option<T>,
    now: Option<T>,
    text: impl Fn(T) -> String,
) -> Option<(String, String)> {
    let wanted = asked.filter(|_| asked != now)?;
    Some((now.map_or_else(|| "none".to_owned(), &text), text(wanted)))
}

fn class(class: Durability) -> String {
    match class {
        Durability::Local => "local".to_owned(),
        Durability::Object => "object".to_owned(),
    }
}
