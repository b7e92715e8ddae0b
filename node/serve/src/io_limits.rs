//! Limits of the requests of a volume, and the delays that they caused.

/// Limits of a volume's requests. What has none is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct IoLimits {
    /// Reads, writes, discards and write-zeroes in a second.
    pub iops: Option<u64>,
    /// Bytes that reads and writes move in a second.
    pub bytes_per_second: Option<u64>,
}

impl IoLimits {
    /// Nothing is limited.
    pub const NONE: Self = Self { iops: None, bytes_per_second: None };
}

/// The limits in effect, and the delays that limits made since this process took the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LimitStatus {
    /// The limits.
    pub limits: IoLimits,
    /// Requests that wait for them now.
    pub waiting: u64,
    /// Requests that waited for them.
    pub delayed_requests: u64,
    /// Sum of the times that these waited.
    pub delayed_ms: u64,
}
