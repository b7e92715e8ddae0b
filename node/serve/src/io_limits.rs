//! Limits of the requests of a volume, and the delays that they caused.

/// Limits of a volume's requests; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IoLimits {
    /// Reads, writes, discards and write-zeroes in a second.
    pub iops: Option<u64>,
    /// Bytes that reads and writes move in a second.
    pub bytes_per_second: Option<u64>,
}

impl IoLimits {
    /// No limit.
    pub const NONE: Self = Self { iops: None, bytes_per_second: None };
}

/// The limits in effect, and the delays by limits since this process took the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitStatus {
    /// The limits.
    pub limits: IoLimits,
    /// Requests that wait for them now.
    pub waiting: u64,
    /// Requests that have waited for limits.
    pub delayed_requests: u64,
    /// Sum of their waiting times.
    pub delayed_ms: u64,
}
