//! The room on the rings.
//!
//! Owns: how much room each ring has left. A place is reserved before anything is sent to the thread, and is
//! free again when the thread has released the volume, so that volumes which arrive together spread and none
//! meets a full table.

use std::sync::Arc;

use holdfast_ring::RingOptions;
use parking_lot::{Mutex, MutexGuard};

/// Files of a volume in the ring's table, its queues' apart: two sides, the durable map, the live map.
pub(in crate::node) const VOLUME_FILES: u32 = 4;
/// Files that all volumes of a ring share.
const SHARED_FILES: u32 = 3;

/// Slots of a ring that a volume needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) struct RingNeed {
    /// Slots for files.
    pub(in crate::node) files: u32,
    /// Slots for the buffers of requests.
    pub(in crate::node) buffers: u32,
}

#[derive(Debug, Clone, Copy)]
struct Room {
    volumes: usize,
    files: u32,
    buffers: u32,
}

/// The room on each ring.
#[derive(Debug, Clone)]
pub(super) struct Rooms(Arc<Mutex<Vec<Room>>>);

/// A volume's reserved place on a ring; dropping it frees the place.
#[derive(Debug)]
pub(in crate::node) struct ReservedPlace {
    rooms: Rooms,
    ring: usize,
    need: RingNeed,
}

impl Rooms {
    pub(super) fn new(rings: usize, options: &RingOptions) -> Self {
        let room = Room { volumes: 0, files: options.files - SHARED_FILES, buffers: options.buffers.into() };
        Self(Arc::new(Mutex::new(vec![room; rings])))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Room>> {
        self.0.lock()
    }

    /// Reserves a place on the ring with the fewest volumes that has room.
    pub(super) fn reserve(&self, need: RingNeed) -> Option<ReservedPlace> {
        let mut rooms = self.lock();
        let (ring, room) = rooms
            .iter_mut()
            .enumerate()
            .filter(|(_, room)| room.fits(need))
            .min_by_key(|(_, room)| room.volumes)?;
        room.take(need);
        Some(ReservedPlace { rooms: self.clone(), ring, need })
    }

    /// Reserves a place on each of so many rings, those with the fewest volumes that have room.
    pub(super) fn reserve_apart(&self, need: RingNeed, rings: usize) -> Option<Vec<ReservedPlace>> {
        let mut rooms = self.lock();
        let mut fitting: Vec<usize> = (0..rooms.len()).filter(|ring| rooms[*ring].fits(need)).collect();
        if fitting.len() < rings {
            return None;
        }
        fitting.sort_by_key(|ring| rooms[*ring].volumes);
        fitting.truncate(rings);
        fitting.iter().for_each(|ring| rooms[*ring].take(need));
        Some(fitting.into_iter().map(|ring| ReservedPlace { rooms: self.clone(), ring, need }).collect())
    }
}

impl Room {
    const fn fits(&self, need: RingNeed) -> bool {
        self.files >= need.files && self.buffers >= need.buffers
    }

    const fn take(&mut self, need: RingNeed) {
        self.volumes += 1;
        self.files -= need.files;
        self.buffers -= need.buffers;
    }
}

impl ReservedPlace {
    /// The number of its ring.
    pub(super) const fn ring(&self) -> usize {
        self.ring
    }
}

impl Drop for ReservedPlace {
    fn drop(&mut self) {
        let room = &mut self.rooms.lock()[self.ring];
        room.volumes -= 1;
        room.files += self.need.files;
        room.buffers += self.need.buffers;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO_COPY: RingNeed = RingNeed { files: VOLUME_FILES + 1, buffers: 128 };
    const USER_COPY: RingNeed = RingNeed { buffers: 0, ..ZERO_COPY };

    /// All volumes of a restart chose a ring before the first of them counted: they met on one, whose table
    /// was full.
    #[test]
    fn volumes_that_arrive_together_spread_over_all_rings() {
        let rooms = Rooms::new(3, &RingOptions::default());
        let places: Vec<ReservedPlace> = (0..3 * 128).map(|_| rooms.reserve(ZERO_COPY).unwrap()).collect();
        for ring in 0..3 {
            assert_eq!(places.iter().filter(|place| place.ring == ring).count(), 128);
        }
        assert!(rooms.reserve(ZERO_COPY).is_none(), "16384 buffers are 128 devices of 128 requests");
        let copying = rooms.reserve(USER_COPY).unwrap();
        drop(copying);
        drop(places.into_iter().next());
        assert_eq!(rooms.lock().iter().map(|room| room.volumes).sum::<usize>(), 0);
        assert_eq!(rooms.reserve(ZERO_COPY).unwrap().ring, 0);
    }

    #[test]
    fn shares_of_one_volume_are_on_different_rings() {
        const COPYING: RingNeed = RingNeed { files: 1, buffers: 0 };
        let rooms = Rooms::new(3, &RingOptions::default());
        let _busy = rooms.reserve(USER_COPY).unwrap();
        let shares = rooms.reserve_apart(COPYING, 2).unwrap();
        assert_eq!(shares.iter().map(ReservedPlace::ring).collect::<Vec<_>>(), [1, 2], "the idle ones");
        let all = rooms.reserve_apart(COPYING, 3).unwrap();
        assert_eq!(all.len(), 3);
        assert!(rooms.reserve_apart(COPYING, 4).is_none(), "there are three");
        drop((shares, all));
        let full = RingNeed { files: RingOptions::default().files - SHARED_FILES, buffers: 0 };
        assert!(rooms.reserve_apart(full, 3).is_none(), "one has a volume");
        assert_eq!(rooms.lock().iter().map(|room| room.volumes).sum::<usize>(), 1, "nothing was reserved");
    }

    #[test]
    fn a_full_ring_is_passed_over() {
        let rooms = Rooms::new(2, &RingOptions { buffers: 128, ..RingOptions::default() });
        let first = rooms.reserve(ZERO_COPY).unwrap();
        let _busier = [rooms.reserve(USER_COPY).unwrap(), rooms.reserve(USER_COPY).unwrap()];
        assert_eq!(rooms.reserve(ZERO_COPY).unwrap().ring, 1);
        assert_eq!(first.ring, 0);
    }
}
