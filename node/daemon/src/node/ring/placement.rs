//! Placement of volumes on ring threads.

use holdfast_ring::RingOptions;

use crate::node::error::NodeError;
use crate::node::ring::handle::RingHandle;
use crate::node::ring::room::{ReservedPlace, RingNeed, Rooms};
use holdfast_serve::RingStatus;

/// The ring threads.
pub(in crate::node) struct Rings {
    handles: Vec<RingHandle>,
    rooms: Rooms,
}

impl Rings {
    pub(in crate::node) fn new(handles: Vec<RingHandle>) -> Self {
        let rooms = Rooms::new(handles.len(), &RingOptions::default());
        Self { handles, rooms }
    }

    /// Volumes with devices of so many queues of this depth that all rings can carry. A volume whose requests
    /// are copied needs fewer slots.
    pub(in crate::node) fn max_volumes(&self, queues: u16, depth: u16) -> u32 {
        let of_one = u32::from(RingOptions::default().buffers) / (u32::from(queues) * u32::from(depth));
        of_one * u32::try_from(self.handles.len()).expect("a node has few ring threads")
    }

    /// Reserves a place on the ring with the fewest volumes that has room.
    ///
    /// # Errors
    /// [`NodeError::RingsFull`].
    pub(in crate::node) fn reserve(&self, need: RingNeed) -> Result<(RingHandle, ReservedPlace), NodeError> {
        let place = self.rooms.reserve(need).ok_or(NodeError::RingsFull(self.handles.len()))?;
        Ok((self.handles[place.ring()].clone(), place))
    }

    /// Figures of each ring thread.
    pub(in crate::node) fn status(&self) -> Vec<RingStatus> {
        self.handles.iter().map(RingHandle::status).collect()
    }

    pub(in crate::node) fn iter(&self) -> impl Iterator<Item = &RingHandle> {
        self.handles.iter()
    }
}
