//! Damage of the node's local files.

use holdfast_engine::durable_map::DamagedMap;
use holdfast_engine::sector_map::LiveMapError;
use holdfast_format::DecodeError;
use holdfast_memory::{HeadError, RecoverError};

/// Damage of a local structure.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalDamage {
    /// The encoding is invalid.
    #[error(transparent)]
    Bytes(#[from] DecodeError),
    /// A page of the durable map.
    #[error(transparent)]
    Page(#[from] DamagedMap),
    /// The live map.
    #[error(transparent)]
    LiveMap(#[from] LiveMapError),
    /// A record of another version of the daemon.
    #[error(
        "it has version {found}, but this daemon supports {known}: run the version that wrote it, or restart the host"
    )]
    Version {
        /// The version in the record.
        found: u32,
        /// The version that this daemon writes.
        known: u32,
    },
    /// A file of a fixed size.
    #[error(
        "it has {found} bytes, not {expected}: restore it, or remove it while the host has no ublk device"
    )]
    Length {
        /// Its length.
        found: usize,
        /// Its expected length.
        expected: usize,
    },
    /// A side of a volume.
    #[error(
        "it has {found} bytes, not {expected}, and its map names data in it that may not be in the store: restore it"
    )]
    Side {
        /// Its length.
        found: u64,
        /// Minimum length for the volume.
        expected: u64,
    },
    /// The head of a memory volume's table.
    #[error(transparent)]
    MemoryHead(#[from] HeadError),
    /// The entries of a memory volume's table.
    #[error(transparent)]
    MemoryTable(#[from] RecoverError),
    /// The spill file of a memory volume.
    #[error("{pages} pages of the volume are missing in it: restore the file, or restart the host")]
    SpillFile {
        /// Missing pages of the volume.
        pages: u64,
    },
    /// A memory volume's table.
    #[error("it does not belong to the attach that is recorded with it")]
    OtherAttach,
    /// A record in JSON.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}
