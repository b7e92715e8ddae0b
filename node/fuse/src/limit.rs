//! The bounds of what a connection has in progress.

/// Requests of a connection, at most.
pub const DEPTH: u16 = 128;
/// Of these, those that are kept for requests without data: the kernel does not count them.
const WITHOUT_DATA: u16 = 16;
/// Requests with data that the kernel may have in progress.
pub(crate) const MAX_BACKGROUND: u16 = DEPTH - WITHOUT_DATA;
