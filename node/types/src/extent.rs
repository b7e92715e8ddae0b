//! Positions and lengths on a volume: sector (4 KiB), block (128 KiB), chunk (128 MiB).

/// Bytes of a sector: the unit of coverage and of every map.
pub const SECTOR_BYTES: u64 = 4096;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = 32;
/// Bytes of a block: the unit of compression and of object reads.
pub const BLOCK_BYTES: u64 = BLOCK_SECTORS * SECTOR_BYTES;
/// Blocks of a chunk: the unit of presence of data.
pub const CHUNK_BLOCKS: u64 = 1024;
/// Sectors of a chunk.
pub const CHUNK_SECTORS: u64 = CHUNK_BLOCKS * BLOCK_SECTORS;

/// A sector's number on its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sector(pub u64);

impl Sector {
    /// Returns the byte offset of the sector's first byte.
    #[inline]
    pub const fn byte_offset(self) -> u64 {
        self.0 * SECTOR_BYTES
    }

    /// Returns the block of the sector.
    #[inline]
    pub const fn block(self) -> Block {
        Block(self.0 / BLOCK_SECTORS)
    }

    /// Returns the chunk of the sector.
    #[inline]
    pub const fn chunk(self) -> Chunk {
        Chunk(self.0 / CHUNK_SECTORS)
    }

    /// Returns the sector's position in its block, `0..32`.
    #[inline]
    pub const fn in_block(self) -> u32 {
        (self.0 % BLOCK_SECTORS) as u32
    }
}

/// A block's number on its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u64);

impl Block {
    /// Returns the block's first sector.
    #[inline]
    pub const fn first_sector(self) -> Sector {
        Sector(self.0 * BLOCK_SECTORS)
    }

    /// Returns the chunk of the block.
    #[inline]
    pub const fn chunk(self) -> Chunk {
        Chunk(self.0 / CHUNK_BLOCKS)
    }
}

/// A chunk's number on its volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chunk(pub u64);

impl Chunk {
    /// Returns the chunk's first sector.
    #[inline]
    pub const fn first_sector(self) -> Sector {
        Sector(self.0 * CHUNK_SECTORS)
    }
}

/// A run of sectors: `start .. start + sectors`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SectorRange {
    /// First sector.
    pub start: Sector,
    /// Number of sectors.
    pub sectors: u64,
}

impl SectorRange {
    /// Creates the run of `sectors` sectors from `start`.
    #[inline]
    pub const fn new(start: u64, sectors: u64) -> Self {
        Self { start: Sector(start), sectors }
    }

    /// Returns the sector number after the last sector.
    #[inline]
    pub const fn end(self) -> u64 {
        self.start.0 + self.sectors
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    /// Returns the part of this run that is also in `other`, if any.
    #[inline]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let start = self.start.0.max(other.start.0);
        let end = self.end().min(other.end());
        (start < end).then(|| Self::new(start, end - start))
    }

    /// Splits the run at multiples of `unit` sectors.
    #[inline]
    pub fn split_at_multiples(self, unit: u64) -> impl Iterator<Item = Self> {
        let (mut at, end) = (self.start.0, self.end());
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let stop = ((at / unit + 1) * unit).min(end);
            let piece = Self::new(at, stop - at);
            at = stop;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_at_block_borders_and_loses_nothing() {
        let run = SectorRange::new(30, 70);
        let pieces: Vec<_> = run.split_at_multiples(BLOCK_SECTORS).collect();
        assert_eq!(
            pieces,
            [
                SectorRange::new(30, 2),
                SectorRange::new(32, 32),
                SectorRange::new(64, 32),
                SectorRange::new(96, 4)
            ]
        );
        assert_eq!(pieces.iter().map(|p| p.sectors).sum::<u64>(), run.sectors);
    }

    #[test]
    fn runs_that_only_touch_do_not_intersect() {
        assert_eq!(SectorRange::new(0, 4).intersect(SectorRange::new(4, 4)), None);
        assert_eq!(SectorRange::new(0, 5).intersect(SectorRange::new(4, 4)), Some(SectorRange::new(4, 1)));
    }
}
