//! A ring thread: one io_uring that carries the devices of many volumes.
//!
//! Runs on: a thread of its own, which blocks only in the ring. Other threads reach it by messages and a wake.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdfast_engine::event::{Errno, Event, Millis};
use holdfast_ring::{Completion, FileSlot, Ring, RingError, RingOptions, Waker};
use holdfast_ublk::{COMMAND_KIND, Device, QueueError};
use tokio::sync::{mpsc, oneshot};

use crate::node::clock::now;
use crate::node::device::kernel::OpenQueues;
use crate::node::ends_process::{EndsProcess, end_process};
use crate::node::error::NodeError;
use crate::node::ring::board::Board;
use crate::node::ring::label::Label;
use crate::node::ring::placement::Place;
use crate::node::ring::planned::Planned;
use crate::node::ring::served::{Made, Served, Slots};
use crate::node::store::block_cache::SlabSlot;
use crate::node::volume::background::Work;

/// How long a leaving thread waits for file operations in flight.
const LEAVE_WITHIN: Duration = Duration::from_secs(10);

/// Tells one stay of a volume on a ring thread from every other: late answers of an earlier one are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct VolumeKey {
    index: u16,
    serial: u64,
}

/// A volume for a ring thread.
pub(crate) struct NewVolume {
    pub(crate) planned: Planned,
    /// Of its log lines.
    pub(crate) label: Arc<Label>,
    /// The live map's file, for allocating chunks.
    pub(crate) live: File,
    pub(crate) sides: [File; 2],
    pub(crate) map: File,
    pub(crate) work: mpsc::UnboundedSender<Work>,
    pub(crate) board: Arc<Board>,
    /// Free again once the thread has released the volume.
    pub(crate) place: Place,
}

/// Why a volume stays on its ring.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoveError {
    /// The kernel has its queues.
    #[error("its queues are with the kernel")]
    Armed,
    #[error(transparent)]
    Ring(#[from] RingError),
}

/// What a ring thread is told.
pub(crate) enum Message {
    Add {
        volume: Box<NewVolume>,
        done: oneshot::Sender<Result<VolumeKey, RingError>>,
    },
    Open {
        key: VolumeKey,
        device: Device,
        queues: OpenQueues,
        done: oneshot::Sender<Result<(), QueueError>>,
    },
    Close {
        key: VolumeKey,
        done: oneshot::Sender<Result<(), QueueError>>,
    },
    /// Releases a volume whose queues are closed; one that was released before is no error.
    Remove {
        key: VolumeKey,
        done: oneshot::Sender<Result<(), RemoveError>>,
    },
    Event {
        key: VolumeKey,
        event: Event,
    },
    Cold {
        key: VolumeKey,
        ticket: u32,
        slot: Result<SlabSlot, Errno>,
    },
    Tick,
    Leave,
}

/// Files every volume reads from, in the ring's table.
#[derive(Clone, Copy)]
pub(crate) struct SharedFiles {
    pub(crate) slab: FileSlot,
    pub(crate) zeros: FileSlot,
}

/// A ring thread, seen from elsewhere.
#[derive(Clone)]
pub(crate) struct RingHandle {
    inbox: Sender<Message>,
    waker: Waker,
}

impl RingHandle {
    /// Sends a message; it is lost only when the thread has ended, with the process about to follow.
    pub(crate) fn send(&self, message: Message) {
        drop(self.inbox.send(message));
        self.waker.wake();
    }

    /// Sends a message that carries a reply channel, and waits for the reply.
    pub(crate) async fn call<T>(
        &self,
        message: impl FnOnce(oneshot::Sender<T>) -> Message,
    ) -> Result<T, NodeError> {
        let (done, answer) = oneshot::channel();
        self.send(message(done));
        answer.await.map_err(|_gone| NodeError::RingLost)
    }
}

/// Starts a ring thread that reads from these shared files.
///
/// # Errors
/// [`NodeError::RingLost`] after the reason was logged.
pub(crate) fn spawn(
    number: usize,
    slab: File,
    zeros: File,
) -> Result<(RingHandle, JoinHandle<()>), NodeError> {
    let (inbox, messages) = channel();
    let (ready, started) = channel();
    let thread = std::thread::Builder::new().name(format!("ring-{number}")).spawn(move || {
        let made = RingThread::new(&slab, &zeros, messages);
        match made {
            Ok(mut thread) => {
                drop(ready.send(Some(thread.ring.waker())));
                let _alone = EndsProcess("a ring thread");
                if let Err(error) = thread.run() {
                    // Devices stay quiesced; a restarted daemon takes them up.
                    tracing::error!(error = &error as &dyn std::error::Error, "the I/O ring failed");
                    end_process();
                }
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "the I/O ring could not be made");
                drop(ready.send(None));
            }
        }
    });
    let thread = thread.map_err(|_error| NodeError::RingLost)?;
    let waker = started.recv().ok().flatten().ok_or(NodeError::RingLost)?;
    Ok((RingHandle { inbox, waker }, thread))
}

static SERIALS: AtomicU64 = AtomicU64::new(0);

struct RingThread {
    ring: Ring,
    shared: SharedFiles,
    served: Vec<Option<(u64, Served)>>,
    messages: Receiver<Message>,
    leaving: Option<Instant>,
    /// Volumes to release once no operation of theirs is in flight: its answer would be taken for another's.
    removed: Vec<(VolumeKey, oneshot::Sender<Result<(), RemoveError>>)>,
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
                while let Ok(message) = self.messages.try_recv() {
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
                drop(done.send(served.release(&mut self.ring).map_err(RemoveError::from)));
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
                let Some((ring, served)) = self.find(key) else { return };
                drop(done.send(queues(ring, key.index).map(|queues| served.open(ring, device, queues))));
            }
            Message::Close { key, done } => {
                if let Some((ring, served)) = self.find(key) {
                    served.close(ring, done);
                }
            }
            Message::Remove { key, done } => match self.find(key).map(|(_, served)| served.is_open()) {
                Some(false) => self.removed.push((key, done)),
                Some(true) => drop(done.send(Err(RemoveError::Armed))),
                None => drop(done.send(Ok(()))),
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
