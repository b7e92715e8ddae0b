//! Stamped sectors: each one shows where and when it was written.
//!
//! A lane has [`LANE_SECTORS`] sectors, spread over the device. Groups of [`GROUP_SECTORS`] are contiguous,
//! each group in a separate map page, so that a flush has few changes in each of many pages. One writer per
//! lane advances in rounds: it writes and zeroes some ranges, flushes, and reports this. A round's changes
//! are derived from the seed, the lane and the round's number. So a later reader knows the possible contents
//! of each sector.

use crate::chance::Chance;

pub mod check;
pub mod write;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 4096;
/// Sectors of a lane.
pub const LANE_SECTORS: u32 = 256;
/// Contiguous sectors of a lane.
pub const GROUP_SECTORS: u32 = 32;
/// Distance of these groups in bytes: a map page of the volume.
pub const GROUP_DISTANCE_BYTES: u64 = 16 << 20;
/// Maximum number of ranges changed per round.
const MAX_CHANGES: u64 = 12;
/// Maximum sectors of one range.
const MAX_SECTORS: u64 = 32;
const WORDS: usize = SECTOR_BYTES / 8;

/// A round's change of one range of its lane; the ranges of a round do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The first sector, within the lane.
    pub first: u32,
    /// Number of sectors.
    pub sectors: u32,
    /// True if they are zeroed, false if they are stamped.
    pub zero: bool,
}

impl Change {
    /// Returns its contiguous parts, in order.
    fn pieces(self) -> impl Iterator<Item = Self> {
        let Self { first, sectors, zero } = self;
        let end = first + sectors;
        (first / GROUP_SECTORS..end.div_ceil(GROUP_SECTORS)).map(move |group| {
            let first = first.max(group * GROUP_SECTORS);
            Self { first, sectors: end.min((group + 1) * GROUP_SECTORS) - first, zero }
        })
    }
}

/// Returns the changes of round `round` (from 1) of a lane.
pub fn round(seed: u64, lane: u32, round: u32) -> Vec<Change> {
    let mut chance = Chance::new(mix(seed, lane, u32::MAX, round));
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..=chance.below(MAX_CHANGES) {
        let sectors = narrow(1 + chance.below(MAX_SECTORS));
        let first = narrow(chance.below(u64::from(LANE_SECTORS - sectors + 1)));
        let zero = chance.below(8) == 0;
        let apart = |other: &Change| first + sectors <= other.first || other.first + other.sectors <= first;
        if changes.iter().all(apart) {
            changes.push(Change { first, sectors, zero });
        }
    }
    changes
}

/// Returns a sector as stamped by a round.
pub fn stamp(seed: u64, lane: u32, sector: u32, round: u32) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    bytes[..4].copy_from_slice(&round.to_le_bytes());
    let mut chance = Chance::new(mix(seed, lane, sector, round));
    for word in bytes.chunks_exact_mut(8).take(WORDS).skip(1) {
        word.copy_from_slice(&chance.draw().to_le_bytes());
    }
    bytes
}

/// Returns the round of a sector's stamp, 0 for zeros; `None` if it is neither.
pub fn read_stamp(seed: u64, lane: u32, sector: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.iter().all(|&byte| byte == 0) {
        return Some(0);
    }
    let round = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
    (round > 0 && stamp(seed, lane, sector, round) == bytes).then_some(round)
}

fn mix(seed: u64, lane: u32, sector: u32, round: u32) -> u64 {
    let place = u64::from(lane) << 32 | u64::from(sector);
    let mut chance = Chance::new(seed ^ Chance::new(place).draw());
    chance.draw() ^ Chance::new(u64::from(round)).draw()
}

fn narrow(value: u64) -> u32 {
    u32::try_from(value).expect("below a lane's sectors")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_valid_only_at_its_place() {
        let bytes = stamp(7, 1, 5, 3);
        assert_eq!(read_stamp(7, 1, 5, &bytes), Some(3));
        assert_eq!(read_stamp(7, 1, 6, &bytes), None, "another sector");
        assert_eq!(read_stamp(7, 0, 5, &bytes), None, "another lane");
        let mut torn = bytes;
        torn[512..].copy_from_slice(&stamp(7, 1, 5, 2)[512..]);
        assert_eq!(read_stamp(7, 1, 5, &torn), None, "parts of two rounds");
        assert_eq!(read_stamp(7, 1, 5, &[0; SECTOR_BYTES]), Some(0));
    }

    #[test]
    fn a_change_is_split_at_the_end_of_a_group() {
        let pieces = |first, sectors| {
            let change = Change { first, sectors, zero: false };
            change.pieces().map(|piece| (piece.first, piece.sectors)).collect::<Vec<_>>()
        };
        assert_eq!(pieces(5, 27), [(5, 27)]);
        assert_eq!(pieces(31, 3), [(31, 1), (32, 2)]);
        assert_eq!(pieces(64, 32), [(64, 32)]);
    }

    #[test]
    fn the_changes_of_a_round_do_not_overlap() {
        for number in 1..200 {
            let mut touched = [false; LANE_SECTORS as usize];
            for Change { first, sectors, .. } in round(1, 2, number) {
                for sector in &mut touched[first as usize..(first + sectors) as usize] {
                    assert!(!std::mem::replace(sector, true), "round {number}");
                }
            }
        }
    }
}
