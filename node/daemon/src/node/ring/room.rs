//! The room on the rings.
//!
//! Owns: the number of free file slots of each ring. The daemon reserves a place before it sends anything to
//! the thread, and the place is free again when the thread has released the volume: volumes that arrive
//! together spread over the rings, and none finds a full table.
//! Does not own: the buffers of requests. Devices share them where a ring has none left (`node/ring`): they
//! do not limit the number of devices.

use std::sync::Arc;

use holdfast_ring::RingOptions;
use parking_lot::{Mutex, MutexGuard};

/// Files of a volume in the ring's table, without its queues: two sides, the durable map, the live map.
pub(in crate::node) const VOLUME_FILES: u32 = 4;
/// Files of a ring that belong to no volume: those that all volumes share, and the lock of the ring.
const SHARED_FILES: u32 = 4;
/// Open files of a process that belong to no volume: connections, rings, logs, and files that a command opens
/// briefly.
const OTHER_FILES: u64 = 1024;

/// File slots that a volume needs on a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::node) struct RingNeed(pub(in crate::node) u32);

#[derive(Debug, Clone, Copy)]
struct Room {
    volumes: usize,
    files: u32,
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

/// Returns the number of file slots that the volumes of each of `rings` rings may use, in a process with this
/// limit of open files: a volume has no more open files than slots.
pub(super) fn files_of_volumes(rings: usize, open_files: u64) -> u32 {
    let of_table = RingOptions::default().files - SHARED_FILES;
    let of_process = open_files.saturating_sub(OTHER_FILES) / rings.max(1) as u64;
    of_process.try_into().unwrap_or(u32::MAX).min(of_table)
}

impl Rooms {
    /// Creates the rooms of `rings` rings, each with `files` file slots.
    pub(super) fn new(rings: usize, files: u32) -> Self {
        Self(Arc::new(Mutex::new(vec![Room { volumes: 0, files }; rings])))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Room>> {
        self.0.lock()
    }

    /// Reserves a place on the ring with the fewest volumes among those with room.
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

    /// Reserves a place on each of `rings` rings: those with the fewest volumes among those with room.
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
        self.files >= need.0
    }

    const fn take(&mut self, need: RingNeed) {
        self.volumes += 1;
        self.files -= need.0;
    }
}

impl ReservedPlace {
    /// Returns the number of its ring.
    pub(super) const fn ring(&self) -> usize {
        self.ring
    }
}

impl Drop for ReservedPlace {
    fn drop(&mut self) {
        let room = &mut self.rooms.lock()[self.ring];
        room.volumes -= 1;
        room.files += self.need.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: RingNeed = RingNeed(VOLUME_FILES + 1);
    const PLENTY: u64 = 1 << 20;

    /// At a restart each volume chose a ring before any other was counted: all chose the same one, and its
    /// table was full.
    #[test]
    fn volumes_that_arrive_together_spread_over_all_rings() {
        let rooms = Rooms::new(3, files_of_volumes(3, PLENTY));
        let places: Vec<ReservedPlace> = (0..3 * 1637).map(|_| rooms.reserve(VOLUME).unwrap()).collect();
        for ring in 0..3 {
            assert_eq!(places.iter().filter(|place| place.ring == ring).count(), 1637);
        }
        assert!(rooms.reserve(VOLUME).is_none(), "8192 files are 1637 volumes, and four files of the ring");
        drop(places.into_iter().next());
        assert_eq!(rooms.lock().iter().map(|room| room.volumes).sum::<usize>(), 0);
        assert_eq!(rooms.reserve(VOLUME).unwrap().ring, 0);
    }

    /// A ring of a predecessor carried devices of any depth; its successor refused those that came last.
    #[test]
    fn the_room_of_a_volume_does_not_follow_from_its_depth() {
        use crate::node::ring::shape::DeviceShape;
        use holdfast_ublk::Transport;

        let files = files_of_volumes(1, PLENTY);
        let devices = |depth: u16| DeviceShape {
            transport: Transport::ZeroCopy,
            queues: 1,
            depth,
            max_io_bytes: 1 << 20,
        };
        for predecessor in [[128, 128, 128], [16, 4096, 32], [1, 64, 2048]] {
            let rooms = Rooms::new(1, files);
            let served = predecessor.iter().cycle().take(1637);
            let recovered = served.map(|depth| rooms.reserve(devices(*depth).need()));
            assert_eq!(recovered.collect::<Vec<_>>().iter().flatten().count(), 1637, "{predecessor:?}");
        }
    }

    #[test]
    fn the_limit_of_open_files_is_shared_by_the_rings() {
        assert_eq!(files_of_volumes(2, PLENTY), 8188, "the table of a ring");
        assert_eq!(files_of_volumes(2, 8192), 3584);
        assert_eq!((files_of_volumes(2, 100), files_of_volumes(0, u64::MAX)), (0, 8188));
    }

    #[test]
    fn shares_of_one_volume_are_on_different_rings() {
        const COPYING: RingNeed = RingNeed(1);
        let files = files_of_volumes(3, PLENTY);
        let rooms = Rooms::new(3, files);
        let _busy = rooms.reserve(VOLUME).unwrap();
        let shares = rooms.reserve_apart(COPYING, 2).unwrap();
        assert_eq!(shares.iter().map(ReservedPlace::ring).collect::<Vec<_>>(), [1, 2], "the idle ones");
        let all = rooms.reserve_apart(COPYING, 3).unwrap();
        assert_eq!(all.len(), 3);
        assert!(rooms.reserve_apart(COPYING, 4).is_none(), "there are three");
        drop((shares, all));
        assert!(rooms.reserve_apart(RingNeed(files), 3).is_none(), "one has a volume");
        assert_eq!(rooms.lock().iter().map(|room| room.volumes).sum::<usize>(), 1, "nothing was reserved");
    }

    #[test]
    fn a_full_ring_is_passed_over() {
        let rooms = Rooms::new(2, VOLUME.0 + 2);
        let first = rooms.reserve(VOLUME).unwrap();
        let _busier = [rooms.reserve(RingNeed(1)).unwrap(), rooms.reserve(RingNeed(1)).unwrap()];
        assert_eq!(rooms.reserve(VOLUME).unwrap().ring, 1);
        assert_eq!(first.ring, 0);
    }
}
