//! Memory volumes on a ring thread.
//!
//! Owns: a thread's requests and queues of memory volumes. Does not own: the location of pages
//! ([`holdfast_memory`]). Several threads may serve a volume, each its share of the queues. Runs on: the ring
//! thread. The thread answers a request in the turn of its arrival or in one of the next ([`turn`]), unless
//! pages of it are in the spill file or go there ([`spill_queue`]). No system call moves its data, except for
//! a device with user copy of an older release; allocating the memory of a slab takes one system call, once
//! in 16 pages or more. A request allocates nothing. Invariants: no other volume has the key of a memory
//! volume.

pub(crate) mod files;
mod lines;
pub(crate) mod new_volume;
mod published;
mod serve_failure;
mod served;
mod spill_queue;
mod turn;

use std::os::fd::AsFd;

use holdfast_memory::Codecs;
use holdfast_ring::{IoResult, RingError};
use holdfast_types::Millis;
use holdfast_ublk::{Device, QueueCommand};

use crate::message::{OpenQueues, Reply, RingRefusal};
use crate::operation::{FileOperation, InFlight, VolumeKey, VolumeRing};
use crate::volume_queue::VolumeQueue;
use crate::volume_table::VolumeTable;

pub use files::MemoryFiles;
pub use new_volume::{NewMemoryVolume, QueueShare};
pub use published::PublishedMemory;
use served::{RequestOfVolume, ServedMemory};
use turn::MemoryTurn;

/// Bit of [`VolumeKey::index`] that marks memory volumes. A ring has far fewer volumes than this index.
const MEMORY: u16 = 1 << 15;

/// Returns true for the key of a memory volume.
pub(crate) const fn is_memory(key: VolumeKey) -> bool {
    key.index & MEMORY != 0
}

/// The memory volumes of a ring thread.
pub(crate) struct MemoryVolumes {
    volumes: VolumeTable<ServedMemory>,
    codecs: Codecs,
    turn: MemoryTurn<RequestOfVolume>,
    /// True if requests that wait for a turn are answered before the thread ends.
    answers_waiting: bool,
}

impl Default for MemoryVolumes {
    fn default() -> Self {
        Self {
            volumes: VolumeTable::new(),
            codecs: Codecs::default(),
            turn: MemoryTurn::default(),
            answers_waiting: false,
        }
    }
}

impl MemoryVolumes {
    /// Takes a volume onto the thread.
    ///
    /// # Errors
    /// [`RingError`] if the ring has no slot for its spill file.
    pub(crate) fn add(
        &mut self,
        ring: &mut VolumeRing,
        mut new: NewMemoryVolume,
    ) -> Result<VolumeKey, RingError> {
        self.codecs.prepare(new.volume.codec()).expect("contexts of a codec take little memory");
        let spill_file = new.spill_file.take().map(|file| ring.register_file(file.as_fd())).transpose()?;
        Ok(with_mark(self.volumes.insert(|key| ServedMemory::new(new, with_mark(key), spill_file))))
    }

    /// Opens the thread's queues of a volume's device.
    pub(crate) fn open(
        &mut self,
        ring: &mut VolumeRing,
        key: VolumeKey,
        device: Device,
        queues: OpenQueues,
    ) -> Result<(), RingRefusal> {
        let served = self.find(key).ok_or(RingRefusal::Gone)?;
        if served.is_open() {
            return Err(RingRefusal::Armed);
        }
        let ublk = |queue| match queue {
            VolumeQueue::Ublk(queue) => queue,
            VolumeQueue::Fuse(_) => unreachable!("memory volumes have ublk devices"),
        };
        served.open(device, queues(ring, key)?.into_iter().map(ublk).collect());
        Ok(())
    }

    /// Offers these queues to the kernel, and starts serving them.
    pub(crate) fn arm(&mut self, ring: &mut VolumeRing, key: VolumeKey) -> Result<(), RingRefusal> {
        let served = self.find(key).ok_or(RingRefusal::Gone)?;
        // Submitted here so that, as for other volumes, all fetches of a queue go to the kernel with one
        // call.
        ring.submit().map_err(RingRefusal::from)?;
        served.arm(ring);
        Ok(())
    }

    /// Handles the end of a queue's command. Returns false if its volume was released or its queue closed.
    pub(crate) fn on_command(
        &mut self,
        ring: &mut VolumeRing,
        command: QueueCommand<VolumeKey>,
        outcome: IoResult,
        now: Millis,
    ) -> bool {
        let Self { volumes, codecs, turn, .. } = self;
        is_memory(command.owner)
            && volumes
                .get_mut(without_mark(command.owner))
                .is_some_and(|served| served.on_command(ring, (codecs, turn), command, outcome, now))
    }

    /// Ends a turn of the thread, and schedules the next one if requests wait.
    #[inline]
    pub(crate) fn end_turn(&mut self, ring: &mut VolumeRing) {
        if let Some(&(volume, _)) = self.turn.end() {
            ring.no_operation(InFlight::File { volume, operation: FileOperation::NextTurn });
        }
    }

    /// Serves waiting requests, up to the bytes of a turn.
    pub(crate) fn on_turn(&mut self, ring: &mut VolumeRing, now: Millis) {
        let Self { volumes, codecs, turn, .. } = self;
        turn.called();
        while let Some((volume, request)) = turn.next() {
            let served = volumes.get_mut(without_mark(volume));
            served.expect("a volume with requests is not removed").serve(ring, codecs, request, now);
        }
    }

    /// Handles the end of a run on a spill file. Returns false if its volume was released.
    #[cold]
    pub(crate) fn on_spilled(
        &mut self,
        ring: &mut VolumeRing,
        key: VolumeKey,
        run: u32,
        outcome: IoResult,
        now: Millis,
    ) -> bool {
        let Self { volumes, codecs, .. } = self;
        let Some(served) = volumes.get_mut(without_mark(key)) else { return false };
        served.on_spilled(ring, codecs, run, outcome, now);
        true
    }

    /// Returns true if no request waits for the disk, or for a turn that [`drain`](Self::drain) requires.
    pub(crate) fn is_still(&self) -> bool {
        let waits = self.answers_waiting && !self.turn.is_empty();
        !waits && self.volumes.iter().all(ServedMemory::is_still)
    }

    /// Leaves every request to the successor, before the process ends: the kernel hands them to it.
    pub(crate) fn leave(&mut self) {
        for (volume, request) in self.turn.leave() {
            let served = self.volumes.get_mut(without_mark(volume));
            served.expect("a volume with requests is not removed").leave_waiting(request);
        }
        for served in self.volumes.iter_mut() {
            served.leave();
        }
    }

    /// Releases a stopped device, once the kernel has returned all its tags.
    pub(crate) fn close(&mut self, ring: &mut VolumeRing, key: VolumeKey, done: Reply) {
        match self.find(key) {
            Some(served) => served.close(ring, done),
            None => drop(done.send(Err(RingRefusal::Gone))),
        }
    }

    /// Releases a volume whose queues are closed.
    pub(crate) fn remove(&mut self, ring: &mut VolumeRing, key: VolumeKey) -> Result<(), RingRefusal> {
        if self.find(key).ok_or(RingRefusal::Gone)?.is_open() {
            return Err(RingRefusal::Armed);
        }
        let removed = self.volumes.remove_if(without_mark(key), |_served| true);
        removed.map_or(Ok(()), |served| served.release(ring)).map_err(RingRefusal::from)
    }

    /// Publishes the figures of all volumes.
    pub(crate) fn tick(&mut self, now: Millis) {
        for served in self.volumes.iter_mut() {
            served.tick(now);
        }
    }

    /// Leaves further requests to the successor. If `leaves_waiting`, also those that wait for a turn.
    pub(crate) fn drain(&mut self, leaves_waiting: bool) {
        self.answers_waiting = !leaves_waiting;
        for served in self.volumes.iter_mut() {
            served.drain();
        }
    }

    /// Returns the number of requests that are not completed.
    pub(crate) fn requests(&self) -> u32 {
        self.volumes.iter().map(ServedMemory::requests).sum()
    }

    fn find(&mut self, key: VolumeKey) -> Option<&mut ServedMemory> {
        self.volumes.get_mut(without_mark(key))
    }
}

/// Returns the volume's key from its key in the table of memory volumes.
const fn with_mark(key: VolumeKey) -> VolumeKey {
    VolumeKey { index: key.index | MEMORY, serial: key.serial }
}

/// Returns the key in the table of memory volumes.
const fn without_mark(key: VolumeKey) -> VolumeKey {
    VolumeKey { index: key.index & !MEMORY, serial: key.serial }
}

#[cfg(test)]
mod tests;
