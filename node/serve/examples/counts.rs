//! Counts the instructions, allocations and system calls of a ring thread for a request, without the ublk
//! driver. Run it under callgrind, which writes a part of its output for each row.
//!
//! The ring thread, its io_uring and its planner are the shipped ones. Fetches of requests end at once, as if
//! each request had waited in the kernel; files are `/dev/zero` where nothing is flushed. `cargo e2e play
//! counts` runs this and compares the counts with its bars.
#![allow(unsafe_code)] // a counting allocator, requests to valgrind, mmap of its own files

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use files::{in_memory, read_at_once, zeros};
use holdfast_format::manifest::Manifest;
use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{HEAD_BYTES, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};
use holdfast_serve::{Label, MemoryFiles, Message, NewMemoryVolume, PublishedMemory, QueueShare};
use holdfast_types::Epoch;
use holdfast_ublk::{FakeRequest, Operation, Transport};
use served::{FakeServed, FakeSetup, NewFake, slab_bytes};
use tokio::sync::{mpsc, oneshot};
use volume::{FakeVolume, name};

#[path = "fake/files.rs"]
mod files;
#[path = "fake/served.rs"]
mod served;
#[path = "fake/volume.rs"]
mod volume;

/// Sectors of a volume: 64 MiB.
const SECTORS: u64 = 1 << 14;
/// Longest request.
const MAX_IO_BYTES: u32 = 1 << 20;
/// Requests of a device under load.
const DEPTH: u16 = 32;
/// Number of times that all of them are counted.
const BATCHES: u32 = 16;
/// Name of the parts of callgrind's output that belong to no row: it also records system calls while nothing
/// is counted.
const SET_UP: &CStr = c"set-up";
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

/// A ring thread with one volume, whose requests are counted.
struct Counted {
    served: FakeServed,
    has_batches: bool,
    /// First sector that no single request has used.
    fresh: u64,
    /// Counted system calls of the ring.
    enters: u64,
    /// System calls of this program between counted turns.
    own_calls: u64,
}

impl Counted {
    fn new(transport: Transport, depth: u16, new: NewFake) -> io::Result<Self> {
        Self::with(transport, false, depth, new)
    }

    fn with(transport: Transport, has_batches: bool, depth: u16, new: NewFake) -> io::Result<Self> {
        let setup = FakeSetup {
            transport,
            has_batches,
            depth,
            max_io_bytes: MAX_IO_BYTES,
            sectors: SECTORS,
            first: Operation::Write,
            register: Box::new(|memory, ring| memory.register(ring)),
            slab: read_at_once(in_memory(slab_bytes(SECTORS))),
            keep: Box::new(|_, _| ()),
        };
        Ok(Self { served: FakeServed::open(setup, new)?, has_batches, fresh: 0, enters: 0, own_calls: 0 })
    }

    /// Serves the requests likewise, and counts their cost.
    fn count(&mut self) -> io::Result<()> {
        let before = self.served.thread.enters();
        self.own_calls += self.served.turns(|thread| {
            IS_COUNTING.store(true, Ordering::Relaxed);
            callgrind::toggle();
            let turned = thread.turn();
            callgrind::toggle();
            IS_COUNTING.store(false, Ordering::Relaxed);
            turned
        })?;
        self.enters += self.served.thread.enters() - before;
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
        self.served.load(operation, sectors)?;
        self.served.serve()?;
        callgrind::dump(SET_UP);
        for _ in 0..BATCHES {
            self.served.load(operation, sectors)?;
            self.own_calls += u64::from(self.has_batches);
            self.count()?;
        }
        callgrind::dump(name);
        self.row(name, BATCHES * u32::from(self.served.depth));
        Ok(())
    }

    /// Counts single requests, each after a write to the same sectors, which were unused before (`fresh`).
    fn row_of_singles(&mut self, name: &CStr, operation: Operation, sectors: u32) -> io::Result<()> {
        for _ in 0..SINGLES {
            let start_sector = self.fresh;
            self.fresh += u64::from(sectors.max(1));
            self.served.device.set(
                0,
                Some(FakeRequest { operation: Operation::Write, start_sector, sectors: sectors.max(1) }),
            );
            self.served.serve()?;
            self.served.device.set(0, Some(FakeRequest { operation, start_sector, sectors }));
            callgrind::dump(SET_UP);
            self.count()?;
            callgrind::dump(name);
        }
        self.row(name, SINGLES);
        Ok(())
    }
}

/// Returns a volume without uploaded data.
fn local(depth: u16, sides: [File; 2]) -> io::Result<NewFake> {
    let volume = FakeVolume { sectors: SECTORS, sides, manifest: Manifest::empty(name()) };
    volume.message(depth).map(|(new, _status)| new)
}

/// Returns a memory volume, to which these pages are written.
fn memory(codec: PageCodec, pages: Vec<u8>) -> io::Result<NewFake> {
    let volume = Box::new(memory_volume(codec)?);
    let (done, added) = oneshot::channel();
    // It has no background work.
    let (_to, work) = mpsc::channel(1);
    Ok(NewFake { message: Message::AddMemory { volume, done }, added, work, pages: Some(pages) })
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
        let content = local(DEPTH, [read_at_once(in_memory(bytes)), in_memory(0)])?;
        let mut reads = Counted::with(transport, has_batches, DEPTH, content)?;
        reads.served.fill(Operation::Write)?;
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
        let content = local(DEPTH, [zeros(), zeros()])?;
        let mut writes = Counted::with(transport, has_batches, DEPTH, content)?;
        writes.served.fill(Operation::Write)?;
        for &(name, sectors) in rows {
            writes.row_under_load(name, Operation::Write, sectors)?;
        }
    }
    let (stored, _status) = FakeVolume::stored(SECTORS).message(DEPTH)?;
    let mut cached = Counted::with(Transport::ZeroCopy, true, DEPTH, stored)?;
    cached.served.fill(Operation::Read)?;
    cached.row_under_load(c"cached_read4k", Operation::Read, 1)?;
    let content = local(1, [in_memory(bytes), in_memory(bytes)])?;
    let mut flushed = Counted::new(Transport::UserCopy, 1, content)?;
    flushed.served.serve()?;
    flushed
        .served
        .device
        .set(0, Some(FakeRequest { operation: Operation::Flush, start_sector: 0, sectors: 0 }));
    flushed.served.serve()?;
    flushed.row_of_singles(c"flush", Operation::Flush, 0)?;
    flushed.row_of_singles(c"discard128k", Operation::Discard, 32)?;
    for (codec, pages, write, read) in [
        (PageCodec::Lz4, mixed(), c"memory_lz4_write4k", c"memory_lz4_read4k"),
        (PageCodec::Zstd, mixed(), c"memory_zstd_write4k", c"memory_zstd_read4k"),
        (PageCodec::Lz4, vec![0; MAX_IO_BYTES as usize], c"memory_zeros_write4k", c"memory_zeros_read4k"),
    ] {
        let mut memory = Counted::new(Transport::KernelCopy, DEPTH, memory(codec, pages)?)?;
        memory.served.fill(Operation::Write)?;
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
