//! Errors of a ring.

use std::io;

/// Failure to create a ring, or of a ring in use.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The kernel refused to create the ring; it may be older than 6.1 or forbid io_uring
    /// (`kernel.io_uring_disabled`, a seccomp profile).
    #[error("io_uring_setup failed; the kernel must be 6.1 or newer and allow io_uring to this process")]
    Setup(#[source] io::Error),
    /// The table of fixed files or buffers could not be registered.
    #[error(
        "io_uring could not register a table of {entries} {what}; for files the limit of open files must allow it"
    )]
    RegisterTable {
        /// "files" or "buffers".
        what: &'static str,
        /// Number of requested entries.
        entries: u32,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A file could not be put into its slot, or taken out of it.
    #[error("io_uring could not update fixed file slot {slot}")]
    UpdateFile {
        /// The slot.
        slot: u32,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// All slots for fixed files are taken.
    #[error("all {capacity} fixed file slots of the ring are taken")]
    FilesExhausted {
        /// The ring's limit.
        capacity: u32,
    },
    /// The table of fixed buffers is too small.
    #[error("{wanted} adjacent fixed buffers were requested; the ring has {capacity} in total")]
    BuffersExhausted {
        /// Number of requested adjacent buffers.
        wanted: u32,
        /// The ring's limit.
        capacity: u32,
    },
    /// A buffer could not be given to the kernel, or taken from it.
    #[error("io_uring could not register or release a group of provided buffers")]
    ProvideBuffer(#[source] io::Error),
    /// The eventfd of the waker could not be created.
    #[error("eventfd failed")]
    Eventfd(#[source] io::Error),
    /// `io_uring_enter` failed with an error that a retry does not clear.
    #[error("io_uring_enter failed")]
    Enter(#[source] io::Error),
    /// The ring's file could not be duplicated.
    #[error("the I/O ring's file could not be duplicated")]
    Share(#[source] io::Error),
}
