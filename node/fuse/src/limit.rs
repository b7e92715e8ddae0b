//! Bounds of the requests that a connection has in progress.

/// Requests of a connection, at most.
pub const DEPTH: u16 = 128;
/// Of these, those that are kept for requests without data: the kernel does not count them.
const WITHOUT_DATA: u16 = 16;
/// The most bytes of a READ or WRITE of the device. Memory of a program that is aligned to 512 bytes lies in
/// one page more than that, and the kernel's limit is the pages of 1 MiB: a request of 1 MiB would come in
/// pieces that are no multiple of a sector.
pub(crate) const MAX_REQUEST_BYTES: u32 = 512 << 10;
/// Requests with data that the kernel may have in progress.
pub(crate) const MAX_BACKGROUND: u16 = DEPTH - WITHOUT_DATA;
