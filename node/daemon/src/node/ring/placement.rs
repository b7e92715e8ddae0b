//! Placement of volumes on ring threads.

use crate::node::error::NodeError;
use crate::node::ring::handle::RingHandle;
use crate::node::ring::lock::EarlierRings;
use crate::node::ring::room::{ReservedPlace, RingNeed, Rooms, VOLUME_FILES, files_of_volumes};
use holdfast_serve::RingStatus;

/// The ring threads.
pub(in crate::node) struct Rings {
    handles: Vec<RingHandle>,
    rooms: Rooms,
    /// File slots that the volumes of each ring may use.
    files: u32,
    earlier: EarlierRings,
}

/// Checks that `rings` rings have room for `volumes` volumes with one queue each, in a process with this
/// limit of open files.
///
/// # Errors
/// [`NodeError::RingsFull`].
pub(in crate::node) fn check_room(rings: usize, open_files: u64, volumes: usize) -> Result<(), NodeError> {
    let volumes_of_ring = files_of_volumes(rings, open_files) / (VOLUME_FILES + 1);
    if volumes > volumes_of_ring as usize * rings {
        return Err(NodeError::RingsFull(rings));
    }
    Ok(())
}

impl Rings {
    /// Takes the ring threads of a process with this limit of open files.
    pub(in crate::node) fn new(handles: Vec<RingHandle>, open_files: u64, earlier: EarlierRings) -> Self {
        let files = files_of_volumes(handles.len(), open_files);
        let rooms = Rooms::new(handles.len(), files);
        Self { handles, rooms, files, earlier }
    }

    /// Returns the rings of earlier daemons, for which a recovery waits.
    pub(in crate::node) fn earlier(&self) -> &EarlierRings {
        &self.earlier
    }

    /// Returns the number of volumes with `queues` queues each that all rings can serve, by any transport.
    pub(in crate::node) fn max_volumes(&self, queues: u16) -> u32 {
        self.files / (VOLUME_FILES + u32::from(queues)) * u32::from(self.count())
    }

    /// Reserves a place on the ring with the fewest volumes among those with room.
    ///
    /// # Errors
    /// [`NodeError::RingsFull`].
    pub(in crate::node) fn reserve(&self, need: RingNeed) -> Result<(RingHandle, ReservedPlace), NodeError> {
        let place = self.rooms.reserve(need).ok_or(NodeError::RingsFull(self.handles.len()))?;
        Ok((self.handles[place.ring()].clone(), place))
    }

    /// Reserves places for a volume whose device has `queues` queues on the rings with the fewest volumes: on
    /// as many rings as have room for their share of the queues. `files`: file slots that the volume needs on
    /// each ring besides those of its queues.
    ///
    /// # Errors
    /// [`NodeError::RingsFull`].
    pub(in crate::node) fn reserve_shares(
        &self,
        queues: u16,
        files: u32,
    ) -> Result<Vec<(RingHandle, ReservedPlace)>, NodeError> {
        let most = self.count().min(queues);
        let shares = (1..=most).rev().find_map(|threads| {
            let need = RingNeed(u32::from(queues.div_ceil(threads)) + files);
            self.rooms.reserve_apart(need, usize::from(threads))
        });
        let places = shares.ok_or(NodeError::RingsFull(self.handles.len()))?;
        Ok(places.into_iter().map(|place| (self.handles[place.ring()].clone(), place)).collect())
    }

    /// Returns the number of ring threads.
    pub(in crate::node) fn count(&self) -> u16 {
        u16::try_from(self.handles.len()).expect("a node has few ring threads")
    }

    /// Returns the figures of each ring thread.
    pub(in crate::node) fn status(&self) -> Vec<RingStatus> {
        self.handles.iter().map(RingHandle::status).collect()
    }

    pub(in crate::node) fn iter(&self) -> impl Iterator<Item = &RingHandle> {
        self.handles.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression, found in review: a successor with fewer ring threads, or a lower limit of open files, took
    /// over more volumes than it could serve.
    #[test]
    fn room_for_the_volumes_of_a_predecessor_is_checked() {
        const PLENTY: u64 = 1 << 20;
        check_room(2, PLENTY, 2 * 1637).unwrap();
        assert!(matches!(check_room(2, PLENTY, 2 * 1637 + 1), Err(NodeError::RingsFull(2))));
        assert!(matches!(check_room(1, 1028, 1), Err(NodeError::RingsFull(1))));
        check_room(1, 1029, 1).unwrap();
    }
}
