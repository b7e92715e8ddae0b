//! Counts the instructions, allocations and system calls of a ring thread for a request, without the ublk
//! driver. Run it under callgrind, which writes a part of its output for each row.
//!
//! The ring thread, its io_uring and its planner are the shipped ones. Fetches of requests end at once, as if
//! each request had waited in the kernel; files are `/dev/zero` where nothing is flushed. `cargo e2e play
//! counts` runs this and compares the counts with its bars.
#![allow(unsafe_code)] // a counting allocator, requests to valgrind, mmap of its own files

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::fs::{File, OpenOptions};
use std::future::{Ready, ready};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use holdfast_background::{SlabBlock, SlabSlot, SlotTable};
use holdfast_engine::durable_map::Header;
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::compose::ContentKey;
use holdfast_format::fence::Fence;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{HEAD_BYTES, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};
use holdfast_ring::RingError;
use holdfast_serve::{
    BackgroundWork, IoLimits, Label, LiveMap, MemoryFiles, Message, NewMemoryVolume, NewVolume,
    PublishedMemory, PublishedStatus, QueueShare, RingThread, SharedFiles, Start, VolumeKey,
};
use holdfast_types::{BLOCK_SECTORS, Epoch, Mask, Nonce, Place, SegmentId, Seq, VolumeId};
use holdfast_ublk::{
    Device, DeviceInfo, DeviceState, Expected, FakeDevice, FakeRequest, ForeignFeatures, Operation, Queue,
    QueueSpec, Transport,
};
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, fallocate, fcntl_setfl, memfd_create};
use tokio::sync::{mpsc, oneshot};

/// Sectors of a volume: 64 MiB.
const SECTORS: u64 = 1 << 14;
/// Longest request.
const MAX_IO_BYTES: u32 = 1 << 20;
/// Requests of a device under load.
const DEPTH: u16 = 32;
/// Number of times that all of them are counted.
const BATCHES: u32 = 16;
/// Maximum turns of the thread until requests have ended.
const MAX_TURNS: u32 = 100_000;
/// Name of the parts of callgrind's output that belong to no row: it also records system calls while nothing
/// is counted.
const SET_UP: &CStr = c"set-up";
/// Slots of the slab that its index keeps free.
const SPARE_SLOTS: u32 = 32;
/// Requests that are counted one by one.
const SINGLES: u32 = 16;

/// Allocator that counts allocations while [`IS_COUNTING`] is set.
struct Counting;

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_COUNTING.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Requests of a program to callgrind, from `valgrind/callgrind.h`.
mod callgrind {
    const TOGGLE_COLLECT: u64 = 0x4354_0002;
    const DUMP_STATS_AT: u64 = 0x4354_0003;

    fn request(number: u64, argument: u64) {
        let arguments = [number, argument, 0, 0, 0, 0];
        // SAFETY: the sequence of `valgrind/valgrind.h` for this processor, which does nothing without
        // valgrind: the rotations come to 128 bits. Valgrind reads the arguments.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            core::arch::asm!(
                "rol rdi, 3",
                "rol rdi, 13",
                "rol rdi, 61",
                "rol rdi, 51",
                "xchg rbx, rbx",
                in("rax") arguments.as_ptr(),
                inout("rdx") 0_u64 => _,
                options(nostack),
            );
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _unknown = arguments;
    }

    /// Starts or stops counting.
    pub(crate) fn toggle() {
        request(TOGGLE_COLLECT, 0);
    }

    /// Writes the counts since the last call, by this name.
    pub(crate) fn dump(name: &std::ffi::CStr) {
        request(DUMP_STATS_AT, name.as_ptr() as u64);
    }
}

/// A ring thread with one volume, on this thread.
struct Served {
    /// Never dropped: the device has requests to the end of the process.
    thread: ManuallyDrop<RingThread>,
    device: FakeDevice,
    has_batches: bool,
    depth: u16,
    /// State of the random sectors of requests.
    random: u64,
    /// First sector that no single request has used.
    fresh: u64,
    /// Counted system calls of the ring.
    enters: u64,
    /// System calls of this program between counted turns.
    own_calls: u64,
    inbox: mpsc::Sender<Message>,
    key: VolumeKey,
    work: mpsc::Receiver<BackgroundWork>,
    /// Blocks of a volume whose data is all in the store.
    slab: SlotTable,
}

fn in_memory(bytes: u64) -> File {
    let file = File::from(memfd_create("counts", MemfdFlags::CLOEXEC).expect("memory for a file"));
    file.set_len(bytes).expect("memory has no limit of a file's length");
    file
}

/// Makes a file that the ring reads without a worker thread (`io_file_get_flags` in `io_uring/rsrc.c`).
fn read_at_once(bytes: u64) -> File {
    let file = in_memory(bytes);
    fcntl_setfl(&file, OFlags::NONBLOCK).expect("each file takes the flag");
    file
}

/// Opens a file that accepts writes at once. A long read of it may end early.
fn zeros() -> File {
    OpenOptions::new().read(true).write(true).open("/dev/zero").expect("each host has it")
}

/// Content of a volume to serve.
enum Content {
    /// A volume with an object store.
    Sides { sides: [File; 2], manifest: Box<Manifest> },
    /// A memory volume, to which these pages are written.
    Memory { codec: PageCodec, pages: Vec<u8> },
}

impl Served {
    fn new(transport: Transport, depth: u16, content: Content) -> io::Result<Self> {
        Self::with(transport, false, depth, content)
    }

    fn with(transport: Transport, has_batches: bool, depth: u16, content: Content) -> io::Result<Self> {
        let (inbox, messages) = mpsc::channel(2048);
        let slab = read_at_once((SECTORS + u64::from(SPARE_SLOTS) * BLOCK_SECTORS) * 4096);
        let files = SharedFiles { slab, memory: in_memory(4096), zeros: zeros() };
        let mut thread = RingThread::new(&files, messages).map_err(io::Error::other)?;
        let device = FakeDevice::new(depth, MAX_IO_BYTES, has_batches)?;
        let (work, kept) = mpsc::channel(1024);
        let waker = thread.waker();
        let send = |thread: &mut RingThread, message| {
            assert!(inbox.try_send(message).is_ok(), "the inbox has room");
            waker.wake();
            thread.turn().map_err(io::Error::other)
        };
        let (key, pages) = match content {
            Content::Sides { sides, manifest } => {
                let (done, mut added) = oneshot::channel();
                let volume = Box::new(volume(u32::from(depth), sides, *manifest, work)?);
                send(&mut thread, Message::Add { volume, done })?;
                (added.try_recv().expect("it was added in that turn").map_err(io::Error::other)?, None)
            }
            Content::Memory { codec, pages } => {
                let (done, mut added) = oneshot::channel();
                let volume = Box::new(memory_volume(codec)?);
                send(&mut thread, Message::AddMemory { volume, done })?;
                (added.try_recv().expect("it was added in that turn").map_err(io::Error::other)?, Some(pages))
            }
        };
        let info = DeviceInfo {
            id: 0,
            state: DeviceState::Live,
            queues: 1,
            depth,
            max_io_bytes: MAX_IO_BYTES,
            transport: Some(transport),
            server_pid: -1,
            tag: 0,
            has_batches,
            foreign: ForeignFeatures::among(0),
        };
        let expected = Expected { tag: 0, sectors: SECTORS };
        let shown = Device::of(&info, 1, &expected).expect("the description is of such a device");
        let char_device = device.char_device()?;
        let fake = device.memory();
        let is_memory = pages.is_some();
        let queues = Box::new(move |ring: &mut holdfast_serve::Ring, owner| {
            let spec = QueueSpec { owner, queue_id: 0 };
            let mut queue = Queue::open(ring, &shown, &char_device, spec)?;
            if transport == Transport::ZeroCopy {
                fake.register(ring).expect("the ring takes the memory");
            }
            if let Some(pages) = pages {
                queue.fill_buffers(|buffer| buffer.copy_from_slice(&pages));
            }
            Ok(vec![holdfast_serve::VolumeQueue::Ublk(queue)])
        });
        let mut served = Self {
            thread: ManuallyDrop::new(thread),
            device,
            has_batches,
            depth,
            random: 1,
            fresh: 0,
            enters: 0,
            own_calls: 0,
            inbox: inbox.clone(),
            key,
            work: kept,
            slab: SlotTable::new((SECTORS / BLOCK_SECTORS) as u32 + SPARE_SLOTS, SPARE_SLOTS, 1),
        };
        // The first requests arrive in the turn after the one that arms the queues.
        served.load(Operation::Write, 1)?;
        let (done, mut opened) = oneshot::channel();
        send(&mut served.thread, Message::Open { key, device: shown, queues, done })?;
        opened.try_recv().expect("it was opened in that turn").map_err(io::Error::other)?;
        if is_memory {
            let (done, mut armed) = oneshot::channel();
            send(&mut served.thread, Message::Arm { key, done })?;
            armed.try_recv().expect("it was armed in that turn").map_err(io::Error::other)?;
        }
        Ok(served)
    }

    /// Sets a request of this kind for each tag.
    fn load(&mut self, operation: Operation, sectors: u32) -> io::Result<()> {
        for tag in 0..self.depth {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let places = SECTORS / u64::from(sectors);
            let start_sector = (self.random >> 33) % places * u64::from(sectors);
            self.device.set(tag, Some(FakeRequest { operation, start_sector, sectors }));
        }
        self.hand_over(self.depth)
    }

    /// Hands over the first tags, on a device with batches.
    fn hand_over(&mut self, tags: u16) -> io::Result<()> {
        self.device.hand_over(&(0..tags).collect::<Vec<_>>())
    }

    /// Serves the requests of the device until all have ended. No new ones arrive meanwhile.
    fn serve(&mut self) -> io::Result<()> {
        self.turns(RingThread::turn).map(drop)
    }

    /// Serves the requests likewise, and counts their cost.
    fn count(&mut self) -> io::Result<()> {
        let before = self.thread.enters();
        self.own_calls += self.turns(|thread| {
            IS_COUNTING.store(true, Ordering::Relaxed);
            callgrind::toggle();
            let turned = thread.turn();
            callgrind::toggle();
            IS_COUNTING.store(false, Ordering::Relaxed);
            turned
        })?;
        self.enters += self.thread.enters() - before;
        Ok(())
    }

    /// Runs turns until no request is left. Returns the number of times that it slept.
    fn turns(&mut self, turn: impl Fn(&mut RingThread) -> Result<(), RingError>) -> io::Result<u64> {
        let mut sleeps = 0;
        for turns in 0..MAX_TURNS {
            turn(&mut self.thread).map_err(io::Error::other)?;
            if self.thread.requests() == 0 {
                return Ok(sleeps);
            }
            (0..self.depth).for_each(|tag| self.device.set(tag, None));
            self.fetch();
            // Worker threads of the kernel may need the processor.
            if turns > 2 {
                std::thread::sleep(Duration::from_micros(100));
                sleeps += 1;
            }
        }
        Err(io::Error::other(format!("{} requests did not end", self.thread.requests())))
    }

    /// Finds the blocks that reads wait for, as the runtime does.
    fn fetch(&mut self) {
        while let Ok(work) = self.work.try_recv() {
            let BackgroundWork::Cold(read) = work else { continue };
            let key = ContentKey::of_index("block", read.range.start.block().0);
            let is_proven = |_, _| -> Ready<io::Result<bool>> { unreachable!("none is old") };
            let write = |_slot, content| ready((content, Ok(())));
            let slot = pin!(self.slab.slot(&key, is_proven, ready(Ok::<_, ()>(())), write));
            let Poll::Ready(Ok(slot)) = slot.poll(&mut Context::from_waker(Waker::noop())) else {
                unreachable!("there is a slot for each block")
            };
            let found = SlabBlock { slot: SlabSlot::new(slot, false), sectors: Mask::FULL };
            let message = Message::Cold { key: self.key, read, found: Ok(found) };
            assert!(self.inbox.try_send(message).is_ok(), "the inbox has room");
            self.thread.waker().wake();
        }
    }

    /// Writes every sector once, or reads it.
    fn fill(&mut self, operation: Operation) -> io::Result<()> {
        let sectors = MAX_IO_BYTES / 4096;
        // The request that came with the queues waits for the map of its chunk.
        self.serve()?;
        let mut starts = (0..SECTORS).step_by(sectors as usize).peekable();
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

    /// Prints a row: its name, which its parts of callgrind's output have too, requests, allocations, system
    /// calls of the ring, and those of this program.
    #[allow(clippy::print_stdout, reason = "its output is read by its caller")]
    fn row(&mut self, name: &CStr, requests: u32) {
        let allocations = ALLOCATIONS.swap(0, Ordering::Relaxed);
        let (enters, own) = (std::mem::take(&mut self.enters), std::mem::take(&mut self.own_calls));
        println!("{} {requests} {allocations} {enters} {own}", name.to_str().expect("ASCII"));
    }

    /// Counts requests that all arrive at once.
    fn row_under_load(&mut self, name: &CStr, operation: Operation, sectors: u32) -> io::Result<()> {
        // The cost of the first requests of a kind is not counted.
        self.load(operation, sectors)?;
        self.serve()?;
        callgrind::dump(SET_UP);
        for _ in 0..BATCHES {
            self.load(operation, sectors)?;
            self.own_calls += u64::from(self.has_batches);
            self.count()?;
        }
        callgrind::dump(name);
        self.row(name, BATCHES * u32::from(self.depth));
        Ok(())
    }

    /// Counts single requests, each after a write to the same sectors, which were unused before (`fresh`).
    fn row_of_singles(&mut self, name: &CStr, operation: Operation, sectors: u32) -> io::Result<()> {
        for _ in 0..SINGLES {
            let start_sector = self.fresh;
            self.fresh += u64::from(sectors.max(1));
            self.device.set(
                0,
                Some(FakeRequest { operation: Operation::Write, start_sector, sectors: sectors.max(1) }),
            );
            self.serve()?;
            self.device.set(0, Some(FakeRequest { operation, start_sector, sectors }));
            callgrind::dump(SET_UP);
            self.count()?;
            callgrind::dump(name);
        }
        self.row(name, SINGLES);
        Ok(())
    }
}

fn name() -> VolumeId {
    "counts".parse().expect("a name")
}

/// Returns a segment that may hold each block.
fn segment() -> SegmentRef {
    SegmentRef {
        id: SegmentId::new(Place::until(Seq(3)), 1, [1; 10]),
        bytes: 10,
        index_offset: 0,
        index_bytes: 10,
        sectors: SECTORS,
        chunks: Fence::around([(0, 1)]),
    }
}

/// Returns a volume without uploaded data.
fn local(sides: [File; 2]) -> Content {
    Content::Sides { sides, manifest: Manifest::empty(name()).into() }
}

/// Returns a volume with this segment, without data on a side at first.
fn stored(segment: SegmentRef) -> Content {
    let attach = Body::Attach { sectors: SECTORS, node: "n".into(), displaced: None };
    let change = Body::Change {
        segments: vec![segment],
        chunks: ChunkSet::default(),
        invalidated: SideSet::NONE,
        generation: 1,
        merges: vec![],
        closed: Place::default(),
        snapshots: SnapshotChange::default(),
        sectors: None,
    };
    let mut manifest = Manifest::empty(name());
    for (seq, epoch, body) in [(1, 0, Body::create(SECTORS)), (2, 1, attach), (3, 1, change)] {
        let (seq, epoch, nonce) = (Seq(seq), Epoch(epoch), Nonce([7; 16]));
        let record = Record { volume: name(), seq, epoch, nonce, unix_ms: 0, body };
        manifest.apply(&record).expect("the records follow each other");
    }
    // The request that comes with the queues writes a sector, which the rows also read.
    Content::Sides { sides: [read_at_once(0), in_memory(0)], manifest: manifest.into() }
}

fn volume(
    requests: u32,
    sides: [File; 2],
    manifest: Manifest,
    work: mpsc::Sender<BackgroundWork>,
) -> io::Result<NewVolume> {
    let name = name();
    let nonce = Nonce([7; 16]);
    let header = Header {
        volume: name.clone(),
        identity: nonce,
        sectors: SECTORS,
        epoch: Epoch(1),
        writer: nonce,
        nonces: vec![nonce],
        active: Side::A,
        closed_clean: false,
        invalidated: SideSet::NONE,
        has_journal: false,
        seq: Seq(0),
        synced_generation: 0,
    };
    let setup = Setup {
        requests,
        limits: DirtyLimits { seal_bytes: 1 << 49, max_bytes: 1 << 50, max_age_ms: 1 << 40 },
        durability: Durability::Local,
        header,
        header_generation: 1,
        unix_ms_at_zero: 0,
    };
    let live = in_memory(map_bytes(SECTORS));
    fallocate(live.as_fd(), FallocateFlags::empty(), 0, map_bytes(SECTORS))?;
    // SAFETY: only this program uses the file, and all of it is allocated.
    let live_map = unsafe { LiveMap::map(&live) }?;
    let start = Start::Attach(Box::new(AttachState::in_log(manifest)));
    Ok(NewVolume {
        planned: start.make(setup, live_map).map_err(io::Error::other)?,
        limits: IoLimits::NONE,
        label: Arc::new(Label::new(name, Epoch(1))),
        live,
        sides,
        map: in_memory(1 << 30),
        work,
        published: Arc::new(PublishedStatus::new(|_| ())),
        place: Box::new(()),
    })
}

fn main() -> io::Result<()> {
    holdfast_ring::raise_open_file_limit()?;
    let bytes = SECTORS * 4096;
    for (transport, has_batches, rows) in [
        (Transport::ZeroCopy, true, &[(c"read4k", 1), (c"read128k", 32), (c"read1m", 256)][..]),
        (Transport::UserCopy, true, &[(c"user_copy_read4k", 1)]),
        (Transport::ZeroCopy, false, &[(c"single_read4k", 1)]),
        (Transport::UserCopy, false, &[(c"single_user_copy_read4k", 1)]),
    ] {
        let content = local([read_at_once(bytes), in_memory(0)]);
        let mut reads = Served::with(transport, has_batches, DEPTH, content)?;
        reads.fill(Operation::Write)?;
        for &(name, sectors) in rows {
            reads.row_under_load(name, Operation::Read, sectors)?;
        }
    }
    for (transport, has_batches, rows) in [
        (Transport::ZeroCopy, true, &[(c"write4k", 1), (c"write128k", 32), (c"write1m", 256)][..]),
        (Transport::UserCopy, true, &[(c"user_copy_write4k", 1)]),
        (Transport::ZeroCopy, false, &[(c"single_write4k", 1)]),
        (Transport::UserCopy, false, &[(c"single_user_copy_write4k", 1)]),
    ] {
        let mut writes = Served::with(transport, has_batches, DEPTH, local([zeros(), zeros()]))?;
        writes.fill(Operation::Write)?;
        for &(name, sectors) in rows {
            writes.row_under_load(name, Operation::Write, sectors)?;
        }
    }
    let mut cached = Served::with(Transport::ZeroCopy, true, DEPTH, stored(segment()))?;
    cached.fill(Operation::Read)?;
    cached.row_under_load(c"cached_read4k", Operation::Read, 1)?;
    let mut flushed = Served::new(Transport::UserCopy, 1, local([in_memory(bytes), in_memory(bytes)]))?;
    flushed.serve()?;
    flushed.device.set(0, Some(FakeRequest { operation: Operation::Flush, start_sector: 0, sectors: 0 }));
    flushed.serve()?;
    flushed.row_of_singles(c"flush", Operation::Flush, 0)?;
    flushed.row_of_singles(c"discard128k", Operation::Discard, 32)?;
    for (codec, pages, write, read) in [
        (PageCodec::Lz4, mixed(), c"memory_lz4_write4k", c"memory_lz4_read4k"),
        (PageCodec::Zstd, mixed(), c"memory_zstd_write4k", c"memory_zstd_read4k"),
        (PageCodec::Lz4, vec![0; MAX_IO_BYTES as usize], c"memory_zeros_write4k", c"memory_zeros_read4k"),
    ] {
        let mut memory = Served::new(Transport::KernelCopy, DEPTH, Content::Memory { codec, pages })?;
        memory.fill(Operation::Write)?;
        memory.row_under_load(write, Operation::Write, 1)?;
        memory.row_under_load(read, Operation::Read, 1)?;
    }
    Ok(())
}

/// Returns pages whose first half does not compress; the second half is words in lines.
fn mixed() -> Vec<u8> {
    const WORDS: [&str; 8] = ["volume ", "page ", "of ", "the ", "request ", "= slot; ", "node\n", "memory "];
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        random >> 33
    };
    let mut bytes = Vec::with_capacity(MAX_IO_BYTES as usize);
    while bytes.len() < MAX_IO_BYTES as usize {
        bytes.extend((0..PAGE_BYTES / 2).map(|_| next() as u8));
        let words = std::iter::repeat_with(|| WORDS[next() as usize % WORDS.len()].bytes());
        bytes.extend(words.flatten().take(PAGE_BYTES / 2));
    }
    bytes
}

fn memory_volume(codec: PageCodec) -> io::Result<NewMemoryVolume> {
    let slabs = (SECTORS * 4096).div_ceil(SLAB_BYTES as u64) as u32 + 64;
    let head = TableHead { pages: SECTORS, slabs, codec, nonce: 1, spill_pages: 0 };
    let table = in_memory(HEAD_BYTES as u64 + SECTORS * 8);
    // SAFETY: only this program uses the files, which are in memory.
    let files = unsafe { MemoryFiles::map(&table, in_memory(u64::from(slabs) * SLAB_BYTES as u64), slabs) }?;
    Ok(NewMemoryVolume {
        volume: Arc::new(MemoryVolume::open(files, &head).map_err(io::Error::other)?),
        share: QueueShare::ALL,
        spill_file: None,
        label: Arc::new(Label::new("counts".parse().expect("a name"), Epoch(1))),
        published: Arc::new(PublishedMemory::new(1)),
        place: Box::new(()),
    })
}
