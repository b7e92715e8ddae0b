//! Sectors with stamps: what was written where and when can be read off each of them.
//!
//! A lane has [`LANE_SECTORS`] sectors, spread over the device: [`TOGETHER`] of them lie together, and each
//! such group in a map page of its own, so that a flush has little to say of many pages. In each lane one
//! writer goes from round to round: it writes and zeroes some places, flushes, and says so. What a round does
//! follows from the seed, the lane and the round's number, so a later reader of the lane knows what each
//! sector may hold.

use crate::chance::Chance;

pub mod check;
pub mod write;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 4096;
/// Sectors of a lane.
pub const LANE_SECTORS: u32 = 256;
/// Sectors of a lane that lie together.
pub const TOGETHER: u32 = 32;
/// Distance in bytes of such groups: a map page of the volume.
pub const APART: u64 = 16 << 20;
/// Most places that one round changes.
const MAX_CHANGES: u64 = 12;
/// Most sectors of one place.
const MAX_SECTORS: u64 = 32;
const WORDS: usize = SECTOR_BYTES / 8;

/// Change of a round to one place of its lane; the places of a round do not overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The first sector, within the lane.
    pub first: u32,
    /// Number of sectors.
    pub sectors: u32,
    /// True if they are zeroed; else they are stamped.
    pub zero: bool,
}

impl Change {
    /// Its parts that lie together, in order.
    fn pieces(self) -> impl Iterator<Item = Self> {
        let Self { first, sectors, zero } = self;
        let end = first + sectors;
        (first / TOGETHER..end.div_ceil(TOGETHER)).map(move |group| {
            let first = first.max(group * TOGETHER);
            Self { first, sectors: end.min((group + 1) * TOGETHER) - first, zero }
        })
    }
}

/// Changes of round `round` (from 1) of a lane.
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

/// A sector as a round stamps it.
pub fn stamp(seed: u64, lane: u32, sector: u32, round: u32) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    bytes[..4].copy_from_slice(&round.to_le_bytes());
    let mut chance = Chance::new(mix(seed, lane, sector, round));
    for word in bytes.chunks_exact_mut(8).take(WORDS).skip(1) {
        word.copy_from_slice(&chance.draw().to_le_bytes());
    }
    bytes
}

/// The round whose stamp a sector bears, 0 for zeros; nothing if it is neither.
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
    fn a_stamp_is_known_by_its_place_alone() {
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
    fn a_place_is_cut_where_a_group_ends() {
        let pieces = |first, sectors| {
            let change = Change { first, sectors, zero: false };
            change.pieces().map(|piece| (piece.first, piece.sectors)).collect::<Vec<_>>()
        };
        assert_eq!(pieces(5, 27), [(5, 27)]);
        assert_eq!(pieces(31, 3), [(31, 1), (32, 2)]);
        assert_eq!(pieces(64, 32), [(64, 32)]);
    }

    #[test]
    fn the_places_of_a_round_are_apart() {
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
