//! The requests of one volume's connection: read, handed out, answered.
//!
//! ```text
//!            read(2)                   complete: writev(2)
//!   FREE ---------------> WITH OWNER ----------------------> FREE
//! ```
//!
//! A request is read where the kernel says that one waits (`IORING_OP_POLL_ADD`): the file cannot be asked
//! without blocking by the ring itself, which would hand each read to a worker thread. One poll is armed at
//! a time, and the requests that wait are read until there is none, so requests that come together cost one.
//!
//! A tag is a buffer, laid out so that the data of a WRITE is aligned for the local disk:
//!
//! ```text
//! 0           4016                4096                    4096 + 512 KiB
//! +-----------+-------------------+-----------------------+
//! | unused    | head of a request | data                  |
//! +-----------+-------------------+-----------------------+
//! ```
//!
//! A WRITE-ZEROES of a large range is handed out in pieces, one after the other, and answered after the last.
//!
//! *Owns*: the tags, their buffers, the numbers by which the kernel knows their requests.
//! *Runs on*: the ring thread. Two system calls for a request: its read and its answer.
//! *Invariants*: a request is answered once, by the server that read it last; one that is not answered is
//! sent again to the next server, so writes may be repeated, with the same data at the same place, before
//! the kernel has completed them.
#![allow(unsafe_code)] // one anonymous mapping, reads into it, writes from it, entries that name it

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use holdfast_ring::{Errno, FileSlot, IoResult, Ring, RingError, RingOperation};
use holdfast_types::SECTOR_BYTES;
use holdfast_ublk::{DeviceRequest, Operation, QueueError, RequestPart};
use io_uring::{opcode, types};

use crate::connection::FuseConnection;
use crate::limit::{DEPTH, MAX_ZEROES_BYTES};
use crate::protocol::{
    FileSpan, FuseFile, FuseMessage, FuseRequest, MAX_IO_BYTES, Malformed, WRITE_HEAD_BYTES, parse,
    reply_head, resend, written,
};

/// Place of the data in a buffer, in bytes.
const DATA_AT: usize = 4096;
const STRIDE: usize = DATA_AT + MAX_IO_BYTES as usize;
/// Time between a read of requests that failed and the next one.
static PAUSE: types::Timespec = types::Timespec::new().nsec(20_000_000);

/// An operation of a connection in the ring. The type of the ring's operations is made from it; give its
/// outcome to [`FuseQueue::on_completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseCommand<K> {
    /// The volume, in the ring owner's words.
    pub owner: K,
    step: FuseStep,
}

/// Meaning of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FuseStep {
    /// It waits for requests.
    Poll,
    /// It lets time pass before the next look for requests.
    Pause,
    /// It ends the wait, or has the owner look again, as for the next piece of a request.
    Look,
}

/// Faults of a connection that its queue met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseFault {
    /// A read of requests failed; they are read again after a pause. A request may have been lost with it.
    Read(Errno),
    /// The connection has ended before the queue was closed: the device was cleared, as a detach does first,
    /// or the connection aborted. No request comes any more.
    Ended,
}

/// The requests of a volume's connection, on one ring.
#[derive(Debug)]
pub struct FuseQueue<K> {
    owner: K,
    connection: FuseConnection,
    /// Has the server's lock held until the last operation of the ring has ended.
    lock: FileSlot,
    file: FuseFile,
    /// `None` only while the queue is dropped.
    buffers: Option<FuseBuffers>,
    /// The number of the request of each tag.
    uniques: Vec<u64>,
    /// The tags without a request; the last is the next to be used.
    free: Vec<u16>,
    /// The rest of the WRITE-ZEROES of each tag: first sector, number.
    rests: Vec<(u64, u32)>,
    /// The tags whose next piece is to be handed out.
    continued: Vec<u16>,
    /// Operations of the queue itself in the ring.
    with_kernel: u16,
    is_polling: bool,
    /// A read failed: the next look for requests comes after a pause.
    must_pause: bool,
    is_pausing: bool,
    /// The connection has ended, or is not listened to any more.
    is_ended: bool,
    /// Not yet reported to the owner.
    fault: Option<FuseFault>,
    draining: bool,
}

impl<K: Copy> FuseQueue<K> {
    /// Makes the requests of a connection ready on a ring, and has the kernel send again what an earlier
    /// server read and did not answer. Next: [`poll`](Self::poll).
    ///
    /// # Errors
    /// [`QueueError::Ring`] if the ring's table of files is full; [`QueueError::Map`];
    /// [`QueueError::Connection`] where the connection has ended, or the kernel is older than 6.9.
    pub fn open<T>(ring: &mut Ring<T>, connection: FuseConnection, owner: K) -> Result<Self, QueueError> {
        let map = |source| QueueError::Map { what: "the buffers", queue_id: 0, source };
        let buffers = FuseBuffers::map().map_err(map)?;
        connection.write(&[&resend()]).map_err(QueueError::Connection)?;
        let lock = ring.register_file(connection.lock())?;
        Ok(Self {
            owner,
            lock,
            file: connection.description(),
            connection,
            buffers: Some(buffers),
            uniques: vec![0; DEPTH.into()],
            free: (0..DEPTH).rev().collect(),
            rests: vec![(0, 0); DEPTH.into()],
            continued: Vec::with_capacity(DEPTH.into()),
            with_kernel: 0,
            is_polling: false,
            must_pause: false,
            is_pausing: false,
            is_ended: false,
            fault: None,
            draining: false,
        })
    }

    /// Takes in the outcome of a [`FuseCommand`] of this queue. Next:
    /// [`next_request`](Self::next_request), then [`poll`](Self::poll).
    pub fn on_completion(&mut self, command: FuseCommand<K>, outcome: IoResult) {
        self.with_kernel -= 1;
        match command.step {
            FuseStep::Poll => {
                self.is_polling = false;
                if outcome.0 < 0 && !self.is_ended {
                    self.fail(Errno::new(-outcome.0));
                }
            }
            FuseStep::Pause => (self.is_pausing, self.must_pause) = (false, false),
            FuseStep::Look => {}
        }
    }

    /// The fault that the connection had since the last call.
    pub const fn take_fault(&mut self) -> Option<FuseFault> {
        self.fault.take()
    }

    /// The next look for requests comes after a pause.
    const fn fail(&mut self, errno: Errno) {
        self.must_pause = true;
        self.fault = Some(FuseFault::Read(errno));
    }

    const fn has_ended(&mut self) {
        self.is_ended = true;
        self.fault = Some(FuseFault::Ended);
    }

    /// Waits for requests, after a failed read first for a while, unless that is done already, no tag is
    /// free, or the connection has ended.
    pub fn poll<T: From<FuseCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        if self.is_polling || self.is_pausing || self.is_ended || self.draining || self.free.is_empty() {
            return;
        }
        if self.must_pause {
            self.is_pausing = true;
            self.with_kernel += 1;
            let pause = opcode::Timeout::new(&raw const PAUSE).build();
            // SAFETY: the entry names the time of the pause, which is never freed.
            unsafe { ring.push(pause, FuseCommand { owner: self.owner, step: FuseStep::Pause }.into()) };
            return;
        }
        self.is_polling = true;
        self.with_kernel += 1;
        let events = u32::from(libc::POLLIN.cast_unsigned());
        let poll = opcode::PollAdd::new(types::Fd(self.connection.file().as_raw_fd()), events).build();
        // SAFETY: the entry names no memory.
        unsafe { ring.push(poll, FuseCommand { owner: self.owner, step: FuseStep::Poll }.into()) };
    }

    /// Reads the next request that waits, and answers by itself what needs no data. `None`: none waits, no
    /// tag is free, the connection has ended, or a read failed ([`take_fault`](Self::take_fault)).
    pub fn next_request(&mut self) -> Option<DeviceRequest> {
        while !self.is_ended && !self.draining && !self.must_pause {
            if let Some(tag) = self.continued.pop() {
                let (start_sector, sectors) = self.rests[usize::from(tag)];
                return Some(self.zeroes_piece(tag, start_sector, sectors));
            }
            let &tag = self.free.last()?;
            let buffers = self.buffers.as_mut().expect("there are buffers until the queue is dropped");
            buffers.prepare(tag);
            let message = buffers.message_mut(tag);
            let len = match self.connection.read(message) {
                // The end of a file.
                Ok(0) => {
                    self.has_ended();
                    return None;
                }
                Ok(len) => len,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return None,
                    // A request whose program was killed before it was read.
                    Some(libc::ENOENT | libc::EINTR) => continue,
                    Some(libc::ENODEV | libc::ECONNABORTED) => {
                        self.has_ended();
                        return None;
                    }
                    other => {
                        self.fail(other.map_or(Errno::EIO, Errno::new));
                        return None;
                    }
                },
            };
            // It grows while it is served.
            self.file.len_bytes = self.connection.len_bytes();
            let taken = take(&self.file, &message[..len]);
            match taken {
                TakenMessage::Request { unique, operation, start_sector, sectors } => {
                    self.free.pop();
                    self.uniques[usize::from(tag)] = unique;
                    if operation == Operation::WriteZeroes {
                        return Some(self.zeroes_piece(tag, start_sector, sectors));
                    }
                    return Some(DeviceRequest::new(tag, operation, start_sector, sectors));
                }
                TakenMessage::Answer(answer) => self.connection.answer(&[&answer]),
                TakenMessage::Nothing => {}
            }
        }
        None
    }

    /// The first piece of what is left of a WRITE-ZEROES.
    fn zeroes_piece(&mut self, tag: u16, start_sector: u64, sectors: u32) -> DeviceRequest {
        let piece = sectors.min((MAX_ZEROES_BYTES / SECTOR_BYTES) as u32);
        self.rests[usize::from(tag)] = (start_sector + u64::from(piece), sectors - piece);
        DeviceRequest::new(tag, Operation::WriteZeroes, start_sector, piece)
    }

    /// Moves a part of a read request's memory out of a file: `operation` ends with the number of bytes
    /// moved.
    ///
    /// # Panics
    /// If the part does not lie inside a request's memory.
    #[inline(never)] // inlined into a match with ublk, it makes requests of ublk dearer
    pub fn read_part<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        let entry = opcode::Read::new(part.file.fixed(), self.address(request, part), part.len_bytes)
            .offset(part.file_offset_bytes)
            .build();
        // SAFETY: the entry names a range of this request's buffer. The buffers are unmapped only when no
        // request is with the owner, else leaked.
        unsafe { ring.push(entry, operation) };
    }

    /// Moves a part of a write request's memory into a file; otherwise as [`read_part`](Self::read_part).
    ///
    /// # Panics
    /// If the part does not lie inside a request's memory.
    #[inline(never)] // inlined into a match with ublk, it makes requests of ublk dearer
    pub fn write_part<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        let entry = opcode::Write::new(part.file.fixed(), self.address(request, part), part.len_bytes)
            .offset(part.file_offset_bytes)
            .build();
        // SAFETY: as for `read_part`.
        unsafe { ring.push(entry, operation) };
    }

    fn address(&self, request: &DeviceRequest, part: &RequestPart) -> *mut u8 {
        let end = u64::from(part.request_offset_bytes) + u64::from(part.len_bytes);
        assert!(part.len_bytes > 0 && end <= request.len_bytes(), "the part lies inside the request");
        let buffers = self.buffers.as_ref().expect("there are buffers until the queue is dropped");
        buffers.data_address(request.tag(), part.request_offset_bytes, part.len_bytes)
    }

    /// Answers a request, all of it or with an error, and waits for requests again where no tag was free.
    /// All its parts must have completed.
    #[inline(never)] // inlined into a match with ublk, it makes requests of ublk dearer
    pub fn complete<T: From<FuseCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        request: DeviceRequest,
        outcome: Result<(), Errno>,
    ) {
        let len_bytes = u32::try_from(request.len_bytes()).unwrap_or(u32::MAX);
        let (tag, operation, _sectors) = request.disarm();
        let unique = self.uniques[usize::from(tag)];
        match (outcome, operation) {
            (Err(errno), _) => self.connection.answer(&[&reply_head(unique, errno.number(), 0)]),
            (Ok(()), Operation::Read) => {
                let buffers = self.buffers.as_ref().expect("there are buffers until the queue is dropped");
                let data = buffers.data(tag, len_bytes);
                self.connection.answer(&[&reply_head(unique, 0, len_bytes), data]);
            }
            (Ok(()), Operation::Write) => {
                let body = written(len_bytes);
                self.connection.answer(&[&reply_head(unique, 0, body.len() as u32), &body]);
            }
            (Ok(()), Operation::WriteZeroes) if self.rests[usize::from(tag)].1 > 0 => {
                // A successor is sent all of it again.
                if !self.draining && !self.is_ended {
                    self.continued.push(tag);
                    return self.look_again(ring);
                }
            }
            (Ok(()), Operation::Flush | Operation::Discard | Operation::WriteZeroes) => {
                self.connection.answer(&[&reply_head(unique, 0, 0)]);
            }
        }
        self.free.push(tag);
        if self.is_ended {
            // Has all come back?
            self.look_again(ring);
        }
        self.poll(ring);
    }

    /// Has the owner look again.
    fn look_again<T: From<FuseCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        self.with_kernel += 1;
        let nothing = opcode::Nop::new().build();
        // SAFETY: the entry names no memory.
        unsafe { ring.push(nothing, FuseCommand { owner: self.owner, step: FuseStep::Look }.into()) };
    }

    /// From now on requests are left to the successor.
    pub fn drain(&mut self) {
        self.draining = true;
        self.free.append(&mut self.continued);
    }

    /// Leaves a request to the successor, which is sent it again. Right only while no part of it is in
    /// flight.
    pub fn leave(&mut self, request: DeviceRequest) {
        self.free.push(request.tag());
        request.leave_to_successor();
    }

    /// Number of requests that were handed out and not completed.
    #[must_use]
    pub fn requests_with_owner(&self) -> u16 {
        DEPTH - u16::try_from(self.free.len()).expect("there are fewer tags than 2^16")
    }

    /// Number of operations of the queue itself in the ring.
    #[must_use]
    pub const fn with_kernel(&self) -> u16 {
        self.with_kernel
    }

    /// Ends the wait for requests; its completion comes later.
    pub fn end<T: From<FuseCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        self.free.append(&mut self.continued);
        if std::mem::replace(&mut self.is_ended, true) || !self.is_polling {
            return;
        }
        self.with_kernel += 1;
        let wait = types::CancelBuilder::fd(types::Fd(self.connection.file().as_raw_fd())).all();
        let cancel = opcode::AsyncCancel2::new(wait).build();
        // SAFETY: the entry names no memory.
        unsafe { ring.push(cancel, FuseCommand { owner: self.owner, step: FuseStep::Look }.into()) };
    }

    /// Releases the connection after [`end`](Self::end), while the ring lives on.
    ///
    /// # Errors
    /// [`RingError`]: the ring still holds the server's lock.
    ///
    /// # Panics
    /// If an operation is with the kernel or a request with the owner.
    pub fn close<T>(self, ring: &mut Ring<T>) -> Result<(), RingError> {
        assert!(self.with_kernel == 0 && self.requests_with_owner() == 0, "all have come back");
        ring.unregister_file(self.lock)
    }
}

impl<K> Drop for FuseQueue<K> {
    fn drop(&mut self) {
        if self.free.len() < usize::from(DEPTH) {
            // Parts of requests may be in flight: their memory stays.
            std::mem::forget(self.buffers.take());
        }
    }
}

/// Meaning of a message for the queue.
#[derive(Debug)]
enum TakenMessage {
    Request { unique: u64, operation: Operation, start_sector: u64, sectors: u32 },
    Answer(Vec<u8>),
    Nothing,
}

fn take(file: &FuseFile, bytes: &[u8]) -> TakenMessage {
    let message = match parse(bytes) {
        Ok(message) => message,
        Err(Malformed::Head) => return TakenMessage::Nothing,
        Err(Malformed::Body { unique }) => return error(unique, libc::EIO),
    };
    if let Some(answer) = file.answer(&message) {
        return TakenMessage::Answer(answer);
    }
    let FuseMessage { unique, request, .. } = message;
    let ranged = |operation, offset_bytes: u64, len_bytes: u64| {
        let end = offset_bytes.checked_add(len_bytes);
        let is_whole = (offset_bytes | len_bytes).is_multiple_of(SECTOR_BYTES) && len_bytes > 0;
        match u32::try_from(len_bytes / SECTOR_BYTES) {
            Ok(sectors) if is_whole && end.is_some_and(|end| end <= file.len_bytes) => {
                TakenMessage::Request {
                    unique,
                    operation,
                    start_sector: offset_bytes / SECTOR_BYTES,
                    sectors,
                }
            }
            Ok(_) | Err(_) => error(unique, libc::EINVAL),
        }
    };
    match request {
        FuseRequest::Read(FileSpan { offset_bytes, len_bytes }) => {
            ranged(Operation::Read, offset_bytes, len_bytes.into())
        }
        FuseRequest::Write(FileSpan { offset_bytes, len_bytes }) => {
            ranged(Operation::Write, offset_bytes, len_bytes.into())
        }
        FuseRequest::Sync => {
            TakenMessage::Request { unique, operation: Operation::Flush, start_sector: 0, sectors: 0 }
        }
        // The loop driver asks for this alone where zeros are to be written, so what is punched must read as
        // zeros.
        FuseRequest::Allocate { offset_bytes, len_bytes, mode } => match mode.cast_signed() {
            PUNCH | ZERO | ZERO_KEEP => ranged(Operation::WriteZeroes, offset_bytes, len_bytes),
            _ => error(unique, libc::EOPNOTSUPP),
        },
        FuseRequest::Init { .. }
        | FuseRequest::Lookup { .. }
        | FuseRequest::GetAttributes
        | FuseRequest::SetAttributes
        | FuseRequest::Open
        | FuseRequest::StatFs
        | FuseRequest::Acknowledge
        | FuseRequest::Silent
        | FuseRequest::Unknown => TakenMessage::Nothing,
    }
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

fn error(unique: u64, errno: i32) -> TakenMessage {
    TakenMessage::Answer(reply_head(unique, errno, 0).to_vec())
}

/// One anonymous mapping, a buffer for each tag. The pages of a tag come into being before it is first used.
#[derive(Debug)]
struct FuseBuffers {
    memory: NonNull<u8>,
    prepared: Box<[bool]>,
}

impl FuseBuffers {
    const BYTES: usize = STRIDE * DEPTH as usize;

    fn map() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping made above; if the advice is not taken nothing is wrong.
        unsafe { libc::madvise(address, Self::BYTES, libc::MADV_NOHUGEPAGE) };
        let memory = NonNull::new(address.cast()).expect("mmap does not return null");
        Ok(Self { memory, prepared: vec![false; DEPTH.into()].into() })
    }

    /// Has the pages of a tag there before a request is read into them, and stay. Of a process that is killed
    /// while a read waits for a page the read fails, and then the kernel fails the request: it is lost to the
    /// next server.
    fn prepare(&mut self, tag: u16) {
        if std::mem::replace(&mut self.prepared[usize::from(tag)], true) {
            return;
        }
        let address = self.at(tag, 0, STRIDE);
        // SAFETY: the range lies in the mapping, and only its pages are touched, not their contents.
        let locked = unsafe { libc::mlock(address.cast(), STRIDE) };
        if locked != 0 {
            // Without the right to lock memory the pages are there at least. If that fails too, the read
            // makes them. SAFETY: as above.
            unsafe { libc::madvise(address.cast(), STRIDE, libc::MADV_POPULATE_WRITE) };
        }
    }

    fn at(&self, tag: u16, offset: usize, len: usize) -> *mut u8 {
        assert!(tag < DEPTH && offset + len <= STRIDE, "the range lies in the buffer of a tag");
        self.memory.as_ptr().wrapping_add(usize::from(tag) * STRIDE + offset)
    }

    /// The place of a message of a tag that has no request.
    fn message_mut(&mut self, tag: u16) -> &mut [u8] {
        let (offset, len) = (DATA_AT - WRITE_HEAD_BYTES, WRITE_HEAD_BYTES + MAX_IO_BYTES as usize);
        let address = self.at(tag, offset, len);
        // SAFETY: the range lies in the mapping, which is initialised (zeros at first), and is borrowed for
        // as long as the slice lives. A tag without a request has no operation in flight.
        unsafe { std::slice::from_raw_parts_mut(address, len) }
    }

    fn data_address(&self, tag: u16, offset_bytes: u32, len_bytes: u32) -> *mut u8 {
        self.at(tag, DATA_AT + offset_bytes as usize, len_bytes as usize)
    }

    /// The data of a tag of whose request all parts have completed.
    fn data(&self, tag: u16, len_bytes: u32) -> &[u8] {
        let address = self.data_address(tag, 0, len_bytes);
        // SAFETY: the range lies in the mapping, which is initialised. No operation on it is in flight.
        unsafe { std::slice::from_raw_parts(address, len_bytes as usize) }
    }
}

impl Drop for FuseBuffers {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`. The queue drops it only when no request is with its
        // owner, so no operation that names this memory is in flight.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests;
