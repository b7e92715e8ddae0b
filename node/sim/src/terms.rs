//! The settings with which a world's volume is served.

use holdfast_engine::durable_map::Header;
use holdfast_engine::settings::{DirtyLimits, Durability, RuntimeSettings, Setup};

/// Maximum requests in flight on a device.
pub(crate) const DEPTH: u32 = 12;

/// Settings of the volume. Those of the engine apply from the next attach on.
pub(crate) struct Terms {
    /// Initial size of the volume, in sectors.
    pub(crate) sectors: u64,
    pub(crate) limits: DirtyLimits,
    /// Durability of a FLUSH.
    pub(crate) durability: Durability,
    /// Maximum sectors on the sides of a host; `None` is unlimited.
    pub(crate) share: Option<u64>,
    /// Size to grow the volume to at the next attach, in sectors.
    pub(crate) grow_to: Option<u64>,
    /// True if jobs take at most [`crate::lag::JOB_MS`] each, and commits are in time.
    pub(crate) timely: bool,
    /// True if fetched blocks go through a slab, even for a volume alone on its hosts.
    pub(crate) has_slab: bool,
}

impl Terms {
    pub(crate) fn new(sectors: u64, limits: DirtyLimits) -> Self {
        Self {
            sectors,
            limits,
            durability: Durability::Local,
            share: None,
            grow_to: None,
            timely: false,
            has_slab: false,
        }
    }

    /// Returns the settings of an attaching writer.
    pub(crate) fn settings(&self) -> RuntimeSettings {
        RuntimeSettings { max_age_ms: self.limits.max_age_ms, durability: self.durability }
    }

    /// Returns the setup of an engine that begins with these settings and this header.
    pub(crate) fn setup(
        &self,
        settings: RuntimeSettings,
        header: Header,
        header_generation: u64,
        unix_ms_at_zero: u64,
    ) -> Setup {
        let RuntimeSettings { max_age_ms, durability } = settings;
        let limits = DirtyLimits { max_age_ms, ..self.limits };
        Setup { requests: DEPTH, limits, durability, header, header_generation, unix_ms_at_zero }
    }
}
