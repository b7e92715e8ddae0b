//! Settings of a volume that may change while it is served.

use std::time::Duration;

use holdfast_engine::settings::{Durability, RuntimeSettings};
use holdfast_serve::IoLimits;

/// The settings of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeSettings {
    /// Settings of its planner.
    pub(crate) planner: RuntimeSettings,
    /// Limits of its I/O.
    pub(crate) limits: IoLimits,
}

/// Request to change settings of a served volume; omitted ones stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SettingsChange {
    /// Age of the oldest dirty byte at which it is uploaded.
    pub(crate) max_dirty_age: Option<Duration>,
    /// Point at which a FLUSH is complete.
    pub(crate) durability: Option<Durability>,
    /// Maximum requests per second.
    pub(crate) iops: LimitChange,
    /// Maximum bytes per second.
    pub(crate) bytes_per_second: LimitChange,
}

/// Change of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LimitChange {
    /// No change.
    #[default]
    Keep,
    /// The limit is removed.
    Remove,
    /// The limit is set to this value.
    To(u64),
}

impl LimitChange {
    /// Returns the change to this limit, or to none.
    pub(crate) fn to(limit: Option<u64>) -> Self {
        limit.map_or(Self::Remove, Self::To)
    }

    /// Returns the limit after the change.
    pub(crate) fn after(self, before: Option<u64>) -> Option<u64> {
        match self {
            Self::Keep => before,
            Self::Remove => None,
            Self::To(limit) => Some(limit),
        }
    }
}
