//! A ring thread: one io_uring that carries the devices of many volumes.
//!
//! Runs on: a thread of its own, which blocks only in the ring. Other threads reach it by messages and a wake.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdfast_engine::event::Millis;
use holdfast_ring::{Completion, Ring, RingError, RingOptions};
use holdfast_ublk::COMMAND_KIND;
use tokio::sync::mpsc::{self, Receiver};

use crate::node::clock::now;
use crate::node::ends_process::{EndsProcess, end_process};
use crate::node::error::NodeError;
use crate::node::limit::RING_MESSAGES;
use crate::node::ring::handle::RingHandle;
use crate::node::ring::message::{Message, NewVolume, Reply, RingRefusal, VolumeKey};
use crate::node::ring::served::{Made, Served, SharedFiles, Slots};

/// How long a leaving thread waits for file operations in flight.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// Starts a ring thread that reads from these shared files.
///
/// # Errors
/// [`NodeError::RingThread`], [`NodeError::RingSetup`].
pub(in crate::node) fn spawn(
    number: usize,
    slab: File,
    zeros: File,
) -> Result<(RingHandle, JoinHandle<()>), NodeError> {
    let (inbox, messages) = mpsc::channel(RING_MESSAGES);
    let (ready, started) = sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("ring-{number}")).spawn(move || {
        match RingThread::new(&slab, &zeros, messages) {
            Ok(mut thread) => {
                drop(ready.send(Ok(thread.ring.waker())));
                let _alone = EndsProcess("a ring thread");
                if let Err(error) = thread.run() {
                    // Devices stay quiesced; a restarted daemon recovers them.
                    tracing::error!(error = &error as &dyn std::error::Error, "the I/O ring failed");
                    end_process();
                }
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    });
    let thread = thread.map_err(NodeError::RingThread)?;
    let made = started.recv().map_err(|_panicked| NodeError::RingLost)?;
    Ok((RingHandle::new(inbox, made.map_err(NodeError::RingSetup)?), thread))
}

static SERIALS: AtomicU32 = AtomicU32::new(0);

struct RingThread {
    ring: Ring,
    shared: SharedFiles,
    served: Vec<Option<(u32, Served)>>,
    messages: Receiver<Message>,
    leaving: Option<Instant>,
    /// Volumes to release once no operation of theirs is in flight: its answer would be taken for another's.
    removed: Vec<(VolumeKey, Reply)>,
}

impl RingThread {
    fn new(slab: &File, zeros: &File, messages: Receiver<Message>) -> Result<Self, RingError> {
        let mut ring = Ring::new(&RingOptions::default())?;
        let shared = SharedFiles {
            slab: ring.register_file(slab.as_fd())?,
            zeros: ring.register_file(zeros.as_fd())?,
        };
        Ok(Self { ring, shared, served: Vec::new(), messages, leaving: None, removed: Vec::new() })
    }

    fn run(&mut self) -> Result<(), RingError> {
        let mut completions: Vec<Completion> = Vec::with_capacity(4096);
        loop {
            completions.clear();
            let timeout = self.leaving.map(|_| Duration::from_millis(10));
            let woken = self.ring.submit_and_wait(timeout, &mut completions)?;
            let now = now();
            for completion in &completions {
                let index = usize::from(completion.user_data.device());
                let Some((_, served)) = self.served.get_mut(index).and_then(Option::as_mut) else { continue };
                if completion.user_data.kind() == COMMAND_KIND {
                    served.on_command(&mut self.ring, completion, now);
                } else {
                    served.on_operation(&mut self.ring, completion, now);
                }
            }
            if woken {
                // What comes meanwhile wakes the thread again.
                for _ in 0..RING_MESSAGES {
                    let Ok(message) = self.messages.try_recv() else { break };
                    self.on_message(message, now);
                }
            }
            self.release_removed();
            if let Some(since) = self.leaving
                && (self.is_still() || since.elapsed() > LEAVE_WITHIN)
            {
                return self.leave();
            }
        }
    }

    fn release_removed(&mut self) {
        let mut waiting = Vec::new();
        for (key, done) in std::mem::take(&mut self.removed) {
            let place = &mut self.served[usize::from(key.index)];
            if let Some((_, served)) = place.take_if(|(_, served)| served.is_still()) {
                assert!(
                    !served.is_open(),
                    "completions of its queues would reach the next volume of its index"
                );
                drop(done.send(served.release(&mut self.ring).map_err(RingRefusal::from)));
            } else {
                waiting.push((key, done));
            }
        }
        self.removed = waiting;
    }

    fn is_still(&self) -> bool {
        self.served.iter().flatten().all(|(_, served)| served.is_still())
    }

    fn leave(&mut self) -> Result<(), RingError> {
        self.ring.submit()?;
        for (_, served) in self.served.iter_mut().flatten() {
            served.leave();
        }
        Ok(())
    }

    fn find(&mut self, key: VolumeKey) -> Option<(&mut Ring, &mut Served)> {
        let (serial, served) = self.served.get_mut(usize::from(key.index))?.as_mut()?;
        (*serial == key.serial).then_some((&mut self.ring, served))
    }

    fn on_message(&mut self, message: Message, now: Millis) {
        match message {
            Message::Add { volume, done } => drop(done.send(self.add(*volume))),
            Message::Open { key, device, queues, done } => {
                let opened = match self.find(key) {
                    Some((ring, served)) => queues(ring, key.index)
                        .map(|queues| served.open(ring, device, queues))
                        .map_err(RingRefusal::from),
                    None => Err(RingRefusal::Gone),
                };
                drop(done.send(opened));
            }
            Message::Close { key, done } => match self.find(key) {
                Some((ring, served)) => served.close(ring, done),
                None => drop(done.send(Err(RingRefusal::Gone))),
            },
            Message::Remove { key, done } => match self.find(key).map(|(_, served)| served.is_open()) {
                Some(false) => self.removed.push((key, done)),
                Some(true) => drop(done.send(Err(RingRefusal::Armed))),
                None => drop(done.send(Err(RingRefusal::Gone))),
            },
            Message::Event { key, event } => {
                if let Some((ring, served)) = self.find(key) {
                    served.tell(ring, event, now);
                }
            }
            Message::Cold { key, ticket, slot } => {
                if let Some((ring, served)) = self.find(key) {
                    served.on_cold(ring, ticket, slot, now);
                }
            }
            Message::Tick => {
                for (_, served) in self.served.iter_mut().flatten() {
                    served.tick(&mut self.ring, now);
                }
            }
            Message::Leave => {
                for (_, served) in self.served.iter_mut().flatten() {
                    served.drain();
                }
                self.leaving = Some(Instant::now());
            }
        }
    }

    fn add(&mut self, new: NewVolume) -> Result<VolumeKey, RingError> {
        let free = self.served.iter().position(Option::is_none).unwrap_or_else(|| {
            self.served.push(None);
            self.served.len() - 1
        });
        let index = u16::try_from(free).expect("the table of fixed files is full long before");
        let slots = self.register(&new)?;
        let serial = SERIALS.fetch_add(1, Ordering::Relaxed);
        let NewVolume { planned, label, work, board, place, .. } = new;
        let mut served =
            Served::new(planned, Made { index, label, slots, shared: self.shared, work, board, place });
        served.begin(&mut self.ring);
        self.served[free] = Some((serial, served));
        Ok(VolumeKey { index, serial })
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
