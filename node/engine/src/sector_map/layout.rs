//! The bytes of a live map.
//!
//! ```text
//! 0      4096  head: "HFLM", u32 version, u64 sectors, u8[16] hash of the volume id, u64 generation, u8 active side,
//!              u8 commit scope (0 one side, 1 both before serving, 2 both while serving), u8 sides covered by a flush, at 48 u64[2] since when each side is
//!              dirty, milliseconds since the host started, u64 epoch, u64 seq of the newest record known
//! 4096   ..    groups of 1024 chunks (128 GiB of volume, 4 KiB + 16 MiB), each of them:
//!    0   2048  two bits a map page: which of its two durable slots was synced last
//!              (0 neither: it was never written, 1 slot 0, 2 slot 1)
//! 2048   128   one bit a chunk: its part of the map is allocated
//! 4096   16Mi  four bits a sector, 16 KiB a chunk: bit 2 dirty in A, bit 3 dirty in B, bits 0-1 newest (0 remote, 1 A, 2 B);
//!              a dirty newest copy that is zeros: 7 in A, 11 in B, 15 in A and dirty in B too, 12 in B and dirty in A too
//! ```
//!
//! Offsets do not depend on the volume's size: growth moves nothing, and a map created for a smaller size can
//! be opened. The magic number is written last, so a map whose creation was interrupted cannot be opened.

use holdfast_format::side::Side;
use holdfast_format::wire;
use holdfast_types::{BLOCK_SECTORS, CHUNK_SECTORS, Chunk, VolumeId};

/// Sectors of one map page, the unit in which the map is made durable (16 MiB of volume).
pub const PAGE_SECTORS: u64 = 4096;
/// Bytes of one map page.
pub const PAGE_BYTES: usize = (PAGE_SECTORS / 2) as usize;
/// Bytes of the map for one block.
pub(crate) const BLOCK_MAP_BYTES: usize = (BLOCK_SECTORS / 2) as usize;
const PAGES_PER_CHUNK: u64 = CHUNK_SECTORS / PAGE_SECTORS;
const CHUNK_BYTES: u64 = CHUNK_SECTORS / 2;
/// Chunks per group.
pub(super) const GROUP_CHUNKS: u64 = 1024;
pub(super) const GROUP_SECTORS: u64 = GROUP_CHUNKS * CHUNK_SECTORS;
/// Bytes of a group before its sectors.
const GROUP_FIXED_BYTES: u64 = 4096;
const GROUP_BYTES: u64 = GROUP_FIXED_BYTES + GROUP_CHUNKS * CHUNK_BYTES;
/// Offset in a group of the bits for allocated chunks.
const PREPARED_AT: u64 = GROUP_CHUNKS * PAGES_PER_CHUNK / 4;
/// Bytes of a map that identify its volume and format.
pub const HEAD_BYTES: u64 = 4096;
pub(super) const SECTORS_AT: usize = 8;
pub(super) const ACTIVE_AT: usize = 40;
pub(super) const EPOCH_AT: usize = 64;
pub(super) const SEQ_AT: usize = 72;
pub(super) const MAGIC: [u8; 4] = *b"HFLM";
pub(super) const VERSION: u32 = 2;

/// Reason why a predecessor's live map is unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LiveMapError {
    /// Not a live map, or one whose creation was interrupted.
    #[error("the live map does not begin with its magic number")]
    Head,
    /// Written by another version.
    #[error(
        "the live map has version {found}, this daemon knows {VERSION}: run the version that wrote it, or restart the host"
    )]
    Version {
        /// The version found.
        found: u32,
    },
    /// It belongs to another volume.
    #[error("the live map belongs to another volume")]
    Volume,
    /// It is shorter than the volume needs.
    #[error("the live map has {found} bytes, a volume of {sectors} sectors needs {needed}")]
    Size {
        /// Its bytes.
        found: u64,
        /// Sectors of the volume.
        sectors: u64,
        /// Bytes needed for them.
        needed: u64,
    },
}

/// Returns the size in sectors of the map with these first bytes.
///
/// # Errors
/// [`LiveMapError`] if it is not the volume's, or has another version.
pub fn sectors_of(map: &[u8], volume: &VolumeId) -> Result<u64, LiveMapError> {
    let head = map.get(..HEAD_BYTES as usize).ok_or(LiveMapError::Head)?;
    if head[..4] != MAGIC {
        return Err(LiveMapError::Head);
    }
    let version = u32::from_le_bytes(head[4..8].try_into().expect("4 bytes"));
    if version != VERSION {
        return Err(LiveMapError::Version { found: version });
    }
    if head[16..32] != volume_hash(volume) {
        return Err(LiveMapError::Volume);
    }
    Ok(u64::from_le_bytes(head[8..16].try_into().expect("8 bytes")))
}

/// Returns the bytes that must be allocated before a map of `sectors` sectors is created or opened, as
/// `(offset, length)`: all but the bits of the sectors.
pub fn fixed_extents(sectors: u64) -> impl Iterator<Item = (u64, u64)> {
    let groups = (0..sectors.div_ceil(GROUP_SECTORS)).map(|group| group_at(Chunk(group * GROUP_CHUNKS)));
    std::iter::once((0, HEAD_BYTES)).chain(groups.map(|at| (at, GROUP_FIXED_BYTES)))
}

/// Returns the length of the map of a volume of `sectors` sectors, in bytes.
pub fn map_bytes(sectors: u64) -> u64 {
    sectors.div_ceil(CHUNK_SECTORS).checked_sub(1).map_or(HEAD_BYTES, |last| {
        let (offset, length) = chunk_extent(Chunk(last));
        offset + length
    })
}

/// Returns the bytes of the map that describe `chunk`: `(offset, length)`.
pub fn chunk_extent(chunk: Chunk) -> (u64, u64) {
    (nibble_at(chunk.first_sector().0), CHUNK_BYTES)
}

/// Returns the byte offset of the group of `chunk`.
#[inline]
fn group_at(chunk: Chunk) -> u64 {
    HEAD_BYTES + chunk.0 / GROUP_CHUNKS * GROUP_BYTES
}

/// Returns the offset of the byte that has the four bits of `sector` in one half.
#[inline]
pub(super) fn nibble_at(sector: u64) -> u64 {
    HEAD_BYTES + (sector / GROUP_SECTORS + 1) * GROUP_FIXED_BYTES + sector / 2
}

/// Returns the byte offset of the two bits of `page`.
pub(super) fn slot_at(page: u64) -> u64 {
    group_at(Chunk(page / PAGES_PER_CHUNK)) + page % (GROUP_CHUNKS * PAGES_PER_CHUNK) / 4
}

/// Returns the byte offset of the bit of `chunk`.
#[inline]
pub(super) fn prepared_at(chunk: Chunk) -> u64 {
    group_at(chunk) + PREPARED_AT + chunk.0 % GROUP_CHUNKS / 8
}

/// Returns `offset` as an index: the memory is mapped, so it fits.
#[allow(clippy::cast_possible_truncation, reason = "the offset lies within memory of this process")]
#[inline]
pub(super) const fn index(offset: u64) -> usize {
    offset as usize
}

pub(super) fn since_at(side: Side) -> usize {
    48 + 8 * side as usize
}

/// Returns the active side stored in a map.
pub(super) fn side_at(memory: &[u8]) -> Side {
    if memory[ACTIVE_AT] == 0 { Side::A } else { Side::B }
}

pub(super) fn volume_hash(volume: &VolumeId) -> [u8; 16] {
    wire::checksum(volume.as_str().as_bytes())
}

/// Returns the map pages of a chunk.
pub(crate) fn chunk_pages(chunk: Chunk) -> std::ops::Range<u64> {
    chunk.0 * PAGES_PER_CHUNK..(chunk.0 + 1) * PAGES_PER_CHUNK
}
