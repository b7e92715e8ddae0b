//! Limits of the requests that a connection has in progress.

/// Maximum number of requests of a connection.
pub const DEPTH: u16 = 128;
/// Tags reserved for requests without data, which the kernel does not count.
const WITHOUT_DATA: u16 = 16;
/// Maximum length of a piece of a WRITE-ZEROES: the kernel requests up to 4 GiB, and each piece is one turn
/// of the ring thread.
pub(crate) const MAX_ZEROES_BYTES: u64 = 1 << 30;
/// Maximum number of requests with data in progress.
pub(crate) const MAX_BACKGROUND: u16 = DEPTH - WITHOUT_DATA;
