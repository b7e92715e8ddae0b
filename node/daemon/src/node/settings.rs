//! Settings of a volume that may change while it is served.

use std::time::Duration;

use holdfast_engine::settings::{Durability, Settings};
use holdfast_serve::IoLimits;

/// The settings of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeSettings {
    /// Those of its planner.
    pub(crate) planner: Settings,
    /// Limits of its requests.
    pub(crate) limits: IoLimits,
}

/// Request to change settings of a volume that is served; what it leaves out stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SettingsChange {
    /// Age of the oldest dirty byte at which it is uploaded.
    pub(crate) max_dirty_age: Option<Duration>,
    /// Point at which a FLUSH is complete.
    pub(crate) durability: Option<Durability>,
    /// Most requests in a second.
    pub(crate) iops: LimitChange,
    /// Most bytes in a second.
    pub(crate) bytes_per_second: LimitChange,
}

/// Change of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LimitChange {
    /// It stays as it is.
    #[default]
    Keep,
    /// There is none from then on.
    Remove,
    /// It becomes this one.
    To(u64),
}

impl LimitChange {
    /// The change to this limit, or to none.
    pub(crate) fn to(limit: Option<u64>) -> Self {
        limit.map_or(Self::Remove, Self::To)
    }

    /// The limit after the change.
    pub(crate) fn after(self, before: Option<u64>) -> Option<u64> {
        match self {
            Self::Keep => before,
            Self::Remove => None,
            Self::To(limit) => Some(limit),
        }
    }
}
