//! Bounds of the requests that a connection has in progress.

/// Requests of a connection, at most.
pub const DEPTH: u16 = 128;
/// Of these, those that are kept for requests without data: the kernel does not count them.
const WITHOUT_DATA: u16 = 16;
/// The most bytes of a WRITE-ZEROES that is handed out at once: the kernel asks for up to 4 GiB, and each
/// piece is a turn of the ring thread.
pub(crate) const MAX_ZEROES_BYTES: u64 = 1 << 30;
/// Requests with data that the kernel may have in progress.
pub(crate) const MAX_BACKGROUND: u16 = DEPTH - WITHOUT_DATA;
