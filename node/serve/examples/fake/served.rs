//! A ring thread with one volume, on the thread of an example, whose device has no driver.
//!
//! The ring thread, its io_uring and its planner are the shipped ones.

use std::fs::File;
use std::future::{Ready, ready};
use std::io;
use std::mem::ManuallyDrop;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use holdfast_background::{SlabBlock, SlabSlot, SlotTable, WeakSlabSlot};
use holdfast_format::compose::ContentKey;
use holdfast_ring::RingError;
use holdfast_serve::{
    BackgroundWork, Message, RingThread, SharedFiles, UsedBlocks, VolumeKey, VolumeQueue, VolumeRing,
};
use holdfast_types::{BLOCK_SECTORS, Block, Mask};
use holdfast_ublk::{
    Device, DeviceInfo, DeviceState, Expected, FakeDevice, FakeMemory, FakeRequest, ForeignFeatures,
    Operation, Queue, QueueSpec, Transport,
};
use tokio::sync::{mpsc, oneshot};

use crate::files::{in_memory, zeros};

/// Slots of the slab that its index keeps free.
const SPARE_SLOTS: u32 = 32;
/// Maximum turns of the thread until requests have ended.
const MAX_TURNS: u32 = 100_000;

/// Returns the length of a slab with the blocks of a volume of this many sectors.
pub(crate) const fn slab_bytes(sectors: u64) -> u64 {
    (sectors + SPARE_SLOTS as u64 * BLOCK_SECTORS) * 4096
}

/// Registers the memory of requests with the ring, with zero copy.
pub(crate) type Register = Box<dyn FnOnce(FakeMemory, &VolumeRing) -> io::Result<()> + Send>;
/// Writes a block of a stored volume to its slot.
pub(crate) type Keep = Box<dyn Fn(Block, &SlabSlot)>;

/// A device and the slab of its ring.
pub(crate) struct FakeSetup {
    pub(crate) transport: Transport,
    /// True if the device hands over tags in batches, false for a command per tag.
    pub(crate) has_batches: bool,
    /// Its requests.
    pub(crate) depth: u16,
    /// Its longest request.
    pub(crate) max_io_bytes: u32,
    /// Its length.
    pub(crate) sectors: u64,
    /// The kind of the first requests.
    pub(crate) first: Operation,
    pub(crate) register: Register,
    /// File of [`slab_bytes`].
    pub(crate) slab: File,
    pub(crate) keep: Keep,
}

/// A volume for the thread.
pub(crate) struct NewFake {
    /// The message that adds it.
    pub(crate) message: Message,
    /// Receives the answer.
    pub(crate) added: oneshot::Receiver<Result<VolumeKey, RingError>>,
    /// Receives its background work.
    pub(crate) work: mpsc::Receiver<BackgroundWork>,
    /// For a memory volume: the bytes of each request that is written.
    pub(crate) pages: Option<Vec<u8>>,
}

/// A ring thread with one volume, on this thread.
pub(crate) struct FakeServed {
    /// Never dropped: the device has requests to the end of the process.
    pub(crate) thread: ManuallyDrop<RingThread>,
    pub(crate) device: FakeDevice,
    pub(crate) depth: u16,
    max_io_bytes: u32,
    sectors: u64,
    /// State of the random sectors of requests.
    random: u64,
    inbox: mpsc::Sender<Message>,
    key: VolumeKey,
    work: mpsc::Receiver<BackgroundWork>,
    /// Blocks of a volume whose data is all in the store.
    slab: SlotTable,
    keep: Keep,
}

impl FakeServed {
    /// Makes the thread, and opens the device of a volume on it.
    pub(crate) fn open(setup: FakeSetup, new: NewFake) -> io::Result<Self> {
        let FakeSetup { transport, has_batches, depth, max_io_bytes, sectors, .. } = setup;
        let FakeSetup { first, register, slab, keep, .. } = setup;
        let NewFake { message, mut added, work, pages } = new;
        let (inbox, messages) = mpsc::channel(2048);
        let files = SharedFiles { slab, memory: in_memory(4096), zeros: zeros() };
        let mut thread = RingThread::new(&files, &in_memory(0), messages).map_err(io::Error::other)?;
        let device = FakeDevice::new(depth, max_io_bytes, has_batches)?;
        send(&mut thread, &inbox, message)?;
        let key = added.try_recv().expect("it was added in that turn").map_err(io::Error::other)?;
        let info = DeviceInfo {
            id: 0,
            state: DeviceState::Live,
            queues: 1,
            depth,
            max_io_bytes,
            transport: Some(transport),
            server_pid: -1,
            tag: 0,
            has_batches,
            foreign: ForeignFeatures::among(0),
        };
        let expected = Expected { tag: 0, sectors };
        let shown = Device::of(&info, 1, &expected).expect("the description is of such a device");
        let char_device = device.char_device()?;
        let fake = device.memory();
        let is_memory = pages.is_some();
        let queues = Box::new(move |ring: &mut VolumeRing, owner| {
            let spec = QueueSpec { owner, queue_id: 0 };
            let mut queue = Queue::open(ring, &shown, &char_device, spec)?;
            if transport == Transport::ZeroCopy {
                register(fake, ring).expect("the ring takes the memory");
            }
            if let Some(pages) = pages {
                queue.fill_buffers(|buffer| buffer.copy_from_slice(&pages));
            }
            Ok(vec![VolumeQueue::Ublk(queue)])
        });
        let slots = (sectors / BLOCK_SECTORS) as u32 + SPARE_SLOTS;
        let slab = SlotTable::new(slots, SPARE_SLOTS, 1);
        let thread = ManuallyDrop::new(thread);
        let random = 1;
        let mut served =
            Self { thread, device, depth, max_io_bytes, sectors, random, inbox, key, work, slab, keep };
        // The first requests arrive in the turn after the one that arms the queues.
        served.load(first, 1)?;
        let (done, mut opened) = oneshot::channel();
        served.send(Message::Open { key, device: shown, queues, done })?;
        opened.try_recv().expect("it was opened in that turn").map_err(io::Error::other)?;
        if is_memory {
            let (done, mut armed) = oneshot::channel();
            served.send(Message::Arm { key, done })?;
            armed.try_recv().expect("it was armed in that turn").map_err(io::Error::other)?;
        }
        Ok(served)
    }

    /// Sends a message to the thread, and runs the turn in which it arrives.
    pub(crate) fn send(&mut self, message: Message) -> io::Result<()> {
        send(&mut self.thread, &self.inbox, message)
    }

    /// Sets a request of this kind for each tag, each at a random place.
    pub(crate) fn load(&mut self, operation: Operation, sectors: u32) -> io::Result<()> {
        for tag in 0..self.depth {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let places = self.sectors / u64::from(sectors);
            let start_sector = (self.random >> 33) % places * u64::from(sectors);
            self.device.set(tag, Some(FakeRequest { operation, start_sector, sectors }));
        }
        self.hand_over(self.depth)
    }

    /// Hands over the first tags, on a device with batches.
    pub(crate) fn hand_over(&mut self, tags: u16) -> io::Result<()> {
        self.device.hand_over(&(0..tags).collect::<Vec<_>>())
    }

    /// Serves the requests of the device until all have ended. No new ones arrive meanwhile.
    pub(crate) fn serve(&mut self) -> io::Result<()> {
        self.turns(RingThread::turn).map(drop)
    }

    /// Runs turns until no request is left. Returns the number of times that it slept.
    pub(crate) fn turns(
        &mut self,
        turn: impl Fn(&mut RingThread) -> Result<(), RingError>,
    ) -> io::Result<u64> {
        let mut sleeps = 0;
        for turns in 0..MAX_TURNS {
            turn(&mut self.thread).map_err(io::Error::other)?;
            if self.thread.requests() == 0 {
                return Ok(sleeps);
            }
            (0..self.depth).for_each(|tag| self.device.set(tag, None));
            self.work();
            // Worker threads of the kernel may need the processor.
            if turns > 2 {
                std::thread::sleep(Duration::from_micros(100));
                sleeps += 1;
            }
        }
        Err(io::Error::other(format!("{} requests did not end", self.thread.requests())))
    }

    /// Does the work of the runtime: finds the blocks that reads wait for, and keeps used ones longer.
    pub(crate) fn work(&mut self) {
        while let Ok(work) = self.work.try_recv() {
            match work {
                BackgroundWork::Cold(read) => {
                    let block = read.range.start.block();
                    let slot = self.find(block);
                    (self.keep)(block, &slot);
                    let found = SlabBlock { slot, sectors: Mask::FULL };
                    let message = Message::Cold { key: self.key, read, found: Ok(found) };
                    assert!(self.inbox.try_send(message).is_ok(), "the inbox has room");
                    self.thread.waker().wake();
                }
                BackgroundWork::Used(UsedBlocks { slots, in_progress: _ }) => {
                    let held = slots.iter().filter_map(WeakSlabSlot::upgrade);
                    held.for_each(|slot| self.slab.used(slot.slot()));
                }
                BackgroundWork::Other(_) => {}
            }
        }
    }

    /// Returns the slot of a block of the slab.
    fn find(&self, block: Block) -> SlabSlot {
        let key = ContentKey::of_index("block", block.0);
        let is_proven = |_, _| -> Ready<io::Result<bool>> { unreachable!("none is old") };
        let write = |_slot, content| ready((content, Ok(())));
        let slot = pin!(self.slab.slot(&key, is_proven, ready(Ok::<_, ()>(())), write));
        let Poll::Ready(Ok(slot)) = slot.poll(&mut Context::from_waker(Waker::noop())) else {
            unreachable!("there is a slot for each block")
        };
        SlabSlot::new(slot, false)
    }

    /// Writes every sector once, or reads it.
    pub(crate) fn fill(&mut self, operation: Operation) -> io::Result<()> {
        let sectors = self.max_io_bytes / 4096;
        // The request that came with the queues waits for the map of its chunk.
        self.serve()?;
        let mut starts = (0..self.sectors).step_by(sectors as usize).peekable();
        while starts.peek().is_some() {
            let mut tags = 0;
            for (tag, start_sector) in (0..self.depth).zip(&mut starts) {
                self.device.set(tag, Some(FakeRequest { operation, start_sector, sectors }));
                tags = tag + 1;
            }
            self.hand_over(tags)?;
            self.serve()?;
        }
        Ok(())
    }
}

fn send(thread: &mut RingThread, inbox: &mpsc::Sender<Message>, message: Message) -> io::Result<()> {
    assert!(inbox.try_send(message).is_ok(), "the inbox has room");
    thread.waker().wake();
    thread.turn().map_err(io::Error::other)
}
