//! A ring thread, which serves the devices of many volumes on one io_uring.
//!
//! Runs on: a thread of its own, which blocks only in the ring (and briefly while a sender is putting a
//! message into the inbox). Other threads reach it by messages and a wake.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_engine::event::Event;
use holdfast_ring::{Completion, Ended, FileSlot, IoResult, RingError, RingOptions, Waker};
use holdfast_types::Millis;
use holdfast_ublk::{Device, KernelRelease, QueueCommand};
use tokio::sync::mpsc::Receiver;

use crate::clock::now;
use crate::figures::RingFigures;
use crate::limit::RING_MESSAGES;
use crate::memory::{MemoryVolumes, is_memory};
use crate::message::{Message, NewVolume, OpenQueues, Reply, RingRefusal};
use crate::operation::{FileOperation, InFlight, VolumeKey, VolumeRing};
use crate::served::{ServedParts, ServedVolume, SharedFiles, Slots};
use crate::volume_table::VolumeTable;

/// Longest wait of a leaving thread for file operations in flight.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// A ring thread.
pub struct RingThread {
    ring: VolumeRing,
    /// Second descriptor of the ring, which keeps it open.
    ring_file: Option<OwnedFd>,
    shared: SharedFiles<FileSlot>,
    volumes: VolumeTable<ServedVolume>,
    /// Separate from `volumes`, so that memory volumes cost the other volumes nothing.
    memory: MemoryVolumes,
    figures: Arc<RingFigures>,
    /// Completions for released volumes or closed queues.
    late: u64,
    messages: Receiver<Message>,
    completions: Vec<Completion>,
    /// Time at the last message or end of a pause. A tick comes every 250 ms, and only the pace of writes and
    /// the limits of a volume need a more exact time. If the process was suspended, this is the time before
    /// the suspension, so new dirty data counts as older, never as younger.
    now: Millis,
    /// True if all volumes commit soon.
    commits_soon: bool,
    /// True if no volume has limits.
    drops_limits: bool,
    leaving: Option<Instant>,
    /// Volumes to release once no operation on their files is in flight.
    removed: Vec<(VolumeKey, Reply)>,
}

impl RingThread {
    /// Makes the calling thread a ring thread, with a ring that reads from these shared files. The ring has
    /// `lock` open until the kernel has ended its last operation, which may be after the end of the process.
    ///
    /// # Errors
    /// [`RingError`] if the ring cannot be created.
    pub fn new(
        files: &SharedFiles<File>,
        lock: &File,
        messages: Receiver<Message>,
    ) -> Result<Self, RingError> {
        let mut ring = VolumeRing::new(&RingOptions::default())?;
        ring.register_file(lock.as_fd())?;
        let shared = SharedFiles {
            slab: ring.register_file(files.slab.as_fd())?,
            memory: ring.register_file(files.memory.as_fd())?,
            zeros: ring.register_file(files.zeros.as_fd())?,
        };
        let ring_file = Some(ring.share()?);
        Ok(Self {
            ring,
            ring_file,
            shared,
            volumes: VolumeTable::new(),
            memory: MemoryVolumes::default(),
            figures: Arc::default(),
            late: 0,
            messages,
            completions: Vec::with_capacity(4096),
            now: now(),
            commits_soon: false,
            drops_limits: false,
            leaving: None,
            removed: Vec::new(),
        })
    }

    /// Returns a handle by which other threads end this thread's wait, after they sent a message.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.ring.waker()
    }

    /// Returns the figures that the thread publishes.
    #[must_use]
    pub fn figures(&self) -> Arc<RingFigures> {
        Arc::clone(&self.figures)
    }

    /// Returns the number of requests that the kernel handed over and that are not completed.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.volumes.iter().map(ServedVolume::requests).sum::<u32>() + self.memory.requests()
    }

    /// Returns the number of system calls with which the thread drove its ring.
    #[must_use]
    pub const fn enters(&self) -> u64 {
        self.ring.enters()
    }

    /// Serves until [`Message::Leave`]. Returns the last descriptor of the ring, which must be dropped only
    /// after the thread has ended. Before Linux 6.15 the kernel may hand a request to a running thread whose
    /// ring is being closed, and then waits for its answer permanently (`docs/kernels.md`).
    ///
    /// # Errors
    /// [`RingError::Enter`]: the ring is broken.
    pub fn run(&mut self) -> Result<OwnedFd, RingError> {
        loop {
            self.turn()?;
            if let Some(since) = self.leaving
                && (self.is_still() || since.elapsed() > LEAVE_WITHIN)
            {
                return self.leave();
            }
        }
    }

    /// Waits for completions or messages, and handles all that have arrived.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub fn turn(&mut self) -> Result<(), RingError> {
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        let timeout = self.leaving.map(|_| Duration::from_millis(10));
        self.commit();
        let woken = self.ring.submit_and_wait(timeout, &mut completions)?;
        if woken {
            self.now = now();
        }
        let now = self.now;
        for &completion in &completions {
            self.on_completion(completion, now);
        }
        self.completions = completions;
        self.memory.end_turn(&mut self.ring);
        if woken {
            // A message that arrives meanwhile wakes the thread again.
            for _ in 0..RING_MESSAGES {
                let Ok(message) = self.messages.try_recv() else { break };
                self.on_message(message, now);
            }
        }
        self.release_removed();
        Ok(())
    }

    /// Passes the end of an operation to its volume. Drops and counts a late completion, which belongs to an
    /// ended operation, a closed queue or a released volume.
    #[inline]
    fn on_completion(&mut self, completion: Completion, now: Millis) {
        match self.ring.end_word(completion) {
            Some((InFlight::Command(command), outcome)) => {
                self.on_command(command, (outcome, completion.continues()), now);
            }
            Some((InFlight::Fuse(_) | InFlight::Spill { .. }, _)) => unreachable!("the operation is no word"),
            Some((InFlight::File { volume, operation }, outcome)) => {
                let FileOperation::MoveWhole { request } = operation else {
                    unreachable!("the operation is no word")
                };
                match self.volumes.get_mut(volume) {
                    Some(served) => served.on_moved(&mut self.ring, request, outcome, now),
                    None => self.late += 1,
                }
            }
            None => self.on_entry(completion, now),
        }
    }

    /// Passes on the end of an operation that has an entry in the ring's table.
    fn on_entry(&mut self, completion: Completion, now: Millis) {
        let Some(Ended { operation, outcome, buffer }) = self.ring.end(completion) else { return };
        match operation {
            InFlight::Command(command) => self.on_command(command, (outcome, false), now),
            InFlight::Fuse(command) => {
                let served = self.volumes.get_mut(command.owner);
                let in_time =
                    served.is_some_and(|served| served.on_fuse(&mut self.ring, command, outcome, now));
                self.late += u64::from(!in_time);
            }
            InFlight::Spill { volume, run } => {
                let in_time = self.memory.on_spilled(&mut self.ring, volume, run, outcome, now);
                self.late += u64::from(!in_time);
            }
            InFlight::File { volume, operation } => {
                let is_pause = matches!(operation, FileOperation::Pause | FileOperation::LimitPause);
                let now = if is_pause { self.read_clock() } else { now };
                match self.volumes.get_mut(volume) {
                    Some(served) => served.on_file(&mut self.ring, operation, (outcome, buffer), now),
                    // Memory volumes scheduled this turn.
                    None if is_memory(volume) => self.memory.on_turn(&mut self.ring, now),
                    None => self.late += 1,
                }
            }
        }
    }

    #[cold]
    fn read_clock(&mut self) -> Millis {
        self.now = now();
        self.now
    }

    #[inline]
    fn on_command(&mut self, command: QueueCommand<VolumeKey>, outcome: (IoResult, bool), now: Millis) {
        let QueueCommand { owner, queue_id, tag } = command;
        let in_time = match self.volumes.get_mut(owner) {
            Some(served) => served.on_command(&mut self.ring, (queue_id, tag), outcome, now),
            None => self.memory.on_command(&mut self.ring, command, outcome.0, now),
        };
        self.late += u64::from(!in_time);
    }

    /// Passes to the kernel the answers of queues with batches since the last wait, except those of memory
    /// volumes.
    #[inline]
    fn commit(&mut self) {
        while let Some(InFlight::Command(QueueCommand { owner, queue_id, .. })) = self.ring.next_reminder() {
            if let Some(served) = self.volumes.get_mut(owner) {
                served.commit(&mut self.ring, queue_id);
            }
        }
    }

    fn release_removed(&mut self) {
        if self.removed.is_empty() {
            return;
        }
        let mut waiting = Vec::new();
        for (key, done) in std::mem::take(&mut self.removed) {
            if self.volumes.get_mut(key).is_none() {
                drop(done.send(Err(RingRefusal::Gone)));
            } else if let Some(served) = self.volumes.remove_if(key, ServedVolume::is_still) {
                assert!(!served.is_open(), "its queues are with the kernel");
                drop(done.send(served.release(&mut self.ring).map_err(RingRefusal::from)));
            } else {
                waiting.push((key, done));
            }
        }
        self.removed = waiting;
    }

    fn is_still(&self) -> bool {
        self.volumes.iter().all(ServedVolume::is_still) && self.memory.is_still()
    }

    fn leave(&mut self) -> Result<OwnedFd, RingError> {
        self.commit();
        self.ring.submit()?;
        for served in self.volumes.iter_mut() {
            served.leave();
        }
        self.memory.leave();
        Ok(self.ring_file.take().expect("a thread leaves once"))
    }

    /// Returns the volume of a message.
    fn find(&mut self, key: VolumeKey) -> Option<(&mut VolumeRing, &mut ServedVolume)> {
        let served = self.volumes.get_mut(key)?;
        served.wake();
        Some((&mut self.ring, served))
    }

    fn on_message(&mut self, message: Message, now: Millis) {
        match message {
            Message::Add { volume, done } => drop(done.send(self.add(*volume, now))),
            Message::AddMemory { volume, done } => {
                drop(done.send(self.memory.add(&mut self.ring, *volume)));
            }
            Message::Open { key, device, queues, done } => {
                drop(done.send(self.open(key, device, queues)));
            }
            Message::Arm { key, done } => drop(done.send(self.memory.arm(&mut self.ring, key))),
            Message::Close { key, done } if is_memory(key) => {
                self.memory.close(&mut self.ring, key, done);
            }
            Message::Remove { key, done } if is_memory(key) => {
                drop(done.send(self.memory.remove(&mut self.ring, key)));
            }
            Message::Close { key, done } => match self.find(key) {
                Some((ring, served)) => served.close(ring, done),
                None => drop(done.send(Err(RingRefusal::Gone))),
            },
            Message::Remove { key, done } => self.remove(key, done),
            Message::Configure { key, settings, limits, done } => {
                let found = self.find(key).ok_or(RingRefusal::Gone);
                drop(done.send(found.map(|(ring, served)| served.configure(ring, settings, limits, now))));
            }
            Message::Grow { key, live_map, sectors } => {
                if let Some((ring, served)) = self.find(key) {
                    served.grow(ring, *live_map, sectors, now);
                }
            }
            // A volume's share of the cache changes with the I/O of any other volume, so this event must not
            // wake idle volumes.
            Message::Event { key, event: event @ Event::Space { .. } } => {
                if let Some(served) = self.volumes.get_mut(key) {
                    served.handle(&mut self.ring, event, now);
                }
            }
            Message::Event { key, event } => {
                if let Some((ring, served)) = self.find(key) {
                    served.handle(ring, event, now);
                }
            }
            Message::Cold { key, read, found } => {
                if let Some((ring, served)) = self.find(key) {
                    served.on_cold(ring, read, found, now);
                }
            }
            Message::Tick => self.tick(now),
            Message::CommitSoon(soon) => {
                self.commits_soon = soon;
                for served in self.volumes.iter_mut() {
                    served.handle(&mut self.ring, Event::CommitSoon(soon), now);
                }
            }
            Message::DropLimits => {
                self.drops_limits = true;
                for served in self.volumes.iter_mut() {
                    served.drop_limits(&mut self.ring, now);
                }
            }
            Message::Leave => self.start_leaving(),
        }
    }

    fn remove(&mut self, key: VolumeKey, done: Reply) {
        match self.find(key).map(|(_, served)| served.is_open()) {
            Some(false) => self.removed.push((key, done)),
            Some(true) => drop(done.send(Err(RingRefusal::Armed))),
            None => drop(done.send(Err(RingRefusal::Gone))),
        }
    }

    fn start_leaving(&mut self) {
        // An older kernel notices the end of a queue late while the server has all of its tags: they are
        // answered first. If the host shuts down, there is no successor.
        let leaves_waiting =
            !self.drops_limits && KernelRelease::running().is_ok_and(|kernel| kernel.recovers_each_queue());
        for served in self.volumes.iter_mut() {
            served.drain(leaves_waiting);
        }
        self.memory.drain(leaves_waiting);
        self.leaving = Some(Instant::now());
    }

    fn tick(&mut self, now: Millis) {
        let mut is_idle = true;
        for served in self.volumes.iter_mut() {
            is_idle &= served.tick(&mut self.ring, now);
        }
        self.memory.tick(now);
        if !is_idle {
            self.figures.was_busy();
        }
        let late = self.late + self.ring.late_completions();
        self.figures.show(late, &self.ring);
    }

    fn open(&mut self, key: VolumeKey, device: Device, queues: OpenQueues) -> Result<(), RingRefusal> {
        if self.removed.iter().any(|(removed, _)| *removed == key) {
            return Err(RingRefusal::Removing);
        }
        if is_memory(key) {
            return self.memory.open(&mut self.ring, key, device, queues);
        }
        let (ring, served) = self.find(key).ok_or(RingRefusal::Gone)?;
        let queues = queues(ring, key)?;
        // Empties the submission queue, so that one call passes all fetches of a queue to the kernel: before
        // Linux 6.15 the kernel never frees a ring whose thread ended between the fetches of a queue.
        ring.submit()?;
        served.open(ring, device, queues);
        Ok(())
    }

    fn add(&mut self, new: NewVolume, now: Millis) -> Result<VolumeKey, RingError> {
        let slots = self.register(&new)?;
        let NewVolume { planned, limits, label, work, published, place, .. } = new;
        let (ring, shared) = (&mut self.ring, self.shared);
        let (commits_soon, drops_limits) = (self.commits_soon, self.drops_limits);
        Ok(self.volumes.insert(|key| {
            let made = ServedParts { key, label, slots, shared, work, published, place };
            let mut served = ServedVolume::new(planned, made);
            served.begin(ring, limits, now);
            if commits_soon {
                served.handle(ring, Event::CommitSoon(true), now);
            }
            if drops_limits {
                served.drop_limits(ring, now);
            }
            served
        }))
    }

    fn register(&mut self, new: &NewVolume) -> Result<Slots, RingError> {
        let mut taken = Vec::with_capacity(4);
        for file in [&new.sides[0], &new.sides[1], &new.map, &new.live] {
            match self.ring.register_file(file.as_fd()) {
                Ok(slot) => taken.push(slot),
                Err(error) => {
                    for slot in taken {
                        self.ring.unregister_file(slot)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(Slots { sides: [taken[0], taken[1]], map: taken[2], live: taken[3] })
    }
}

#[cfg(test)]
mod tests;
