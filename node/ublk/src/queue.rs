//! One queue of a device: the protocol with the kernel about its requests.
//!
//! ```text
//!            arm                      kernel has a request
//! UNARMED ---------> WITH KERNEL ------------------------------> WITH OWNER
//!    ^                 |     ^                                       |
//!    |  device stops   |     '---------------------------------------'
//!    '-----------------'          complete (COMMIT_AND_FETCH)
//! ```
//!
//! With batches (`UBLK_F_BATCH_IO`) a device has few commands for many tags, not one per tag: see [`batch`].
//!
//! *Owns*: the states of the tags, the shared descriptors, the buffers of user copy and of kernel copy.
//! *Runs on*: the ring thread. A request costs no allocation and no lock. Zero copy and kernel copy add no
//! system call to the ring's own, user copy adds one for the copy.
//! *Invariants*: a tag is with the kernel or with the owner, never both; parts of a request are moved only
//! while the owner has it. With kernel copy the kernel owns the buffer of a tag while it has the tag.
#![allow(unsafe_code)] // pushes entries; each notes the memory that it names and its owner

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use holdfast_ring::{
    BufferRange, FileSlot, FixedTransfer, IoResult, KernelErrno, Ring, RingError, RingOperation,
};
use io_uring::{opcode, squeue, types};
use libublk::sys;

use crate::buffer_memory::BufferMemory;
use crate::char_device::Descriptors;
use crate::copy_buffers::{BufferPart, CopyBuffers};
use crate::queue::batch::TagBatches;
use crate::{
    CharDevice, Device, DeviceRequest, KERNEL_SECTORS_PER_SECTOR, KernelRelease, Operation, QueueError,
    SECTOR_BYTES, Transport,
};

mod batch;

pub use batch::{BatchEvent, FetchedTags};

/// A queue's own operation in the ring: a tag that the kernel has, or a command about many tags. The type of
/// the ring's operations must convert from it, and with batches to a word ([`RingOperation::to_word`]). Pass
/// its outcome to [`Queue::on_completion`] or [`Queue::on_batch_completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCommand<K> {
    /// The ring owner's value for the device: [`QueueSpec::owner`].
    pub owner: K,
    /// Number of the queue on its device.
    pub queue_id: u16,
    /// The tag; with batches, the number of the command.
    pub tag: u16,
}

/// Identity of a queue for the ring's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSpec<K> {
    /// The owner's value for the device, returned in [`QueueCommand::owner`].
    pub owner: K,
    /// Number of the queue on its device, from 0.
    pub queue_id: u16,
}

/// A part of a request and its position in a file, in multiples of 4096 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestPart {
    /// Offset of the part in the request.
    pub request_offset_bytes: u32,
    /// Its length.
    pub len_bytes: u32,
    /// The file, in the queue's ring.
    pub file: FileSlot,
    /// Offset of the part in the file.
    pub file_offset_bytes: u64,
}

/// Outcomes of a tag's command.
#[derive(Debug)]
#[must_use]
pub enum QueueEvent {
    /// The kernel has a request.
    Request(DeviceRequest),
    /// The kernel handed out a request while the queue was draining; the queue leaves it to the successor.
    Held,
    /// The queue has already failed the request: the kernel requested an operation that the device never
    /// announced.
    Refused,
    /// The kernel returned a tag, because the device is stopping or quiescing.
    Aborted,
    /// The kernel refused a fetch or a commit; the tag is lost. Cause: a bug, or another process has taken
    /// the device.
    Failed {
        /// The tag.
        tag: u16,
        /// The kernel's answer.
        errno: KernelErrno,
    },
}

/// `UBLK_AUTO_BUF_REG_FALLBACK`, at its position in a command. If the kernel cannot register a request's
/// pages (no memory, an index in use), it marks the request instead of failing it, and the data is copied.
const COPY_IF_NOT_REGISTERED: u64 = (sys::UBLK_AUTO_BUF_REG_FALLBACK as u64) << 16;

/// One queue of a device, on one ring.
pub struct Queue<K> {
    owner: K,
    queue_id: u16,
    depth: u16,
    /// The character device, registered with the ring. `None` on kernels that would keep it after the queue
    /// is closed, because commands of other devices on the ring wait for requests without limit.
    char_file: Option<FileSlot>,
    descriptors: Descriptors,
    /// Indices at which the kernel registers the pages of requests; `None` without zero copy. Other queues
    /// may share them: of two requests with the same tag, the first gets the buffer.
    registered: Option<BufferRange>,
    /// Buffers for requests whose pages are not registered; with user copy, for all requests. `None` with
    /// kernel copy, and while the queue is dropped.
    copies: Option<CopyBuffers>,
    /// The character device. It must not outlive the queue, unlike the memory.
    file: File,
    with_kernel: u16,
    with_owner: u16,
    draining: bool,
    /// Address of the first byte of each registered buffer.
    buffers_at: u32,
    /// With kernel copy: one buffer per tag.
    kernel_copied: Option<BufferMemory>,
    /// The commands about many tags; `None` if each tag has its own.
    batch: Option<TagBatches>,
}

impl<K: Copy> Queue<K> {
    /// Opens a queue of an added or quiesced device on a ring. Next: [`arm`](Self::arm).
    ///
    /// # Errors
    /// [`QueueError::Ring`] if the ring's tables are full, [`QueueError::Map`].
    ///
    /// # Panics
    /// If the device has no queue of this number.
    pub fn open<T>(
        ring: &mut Ring<T>,
        device: &Device,
        char_device: &CharDevice,
        spec: QueueSpec<K>,
    ) -> Result<Self, QueueError> {
        let QueueSpec { owner, queue_id } = spec;
        assert!(queue_id < device.queues(), "the device has {} queues", device.queues());
        let depth = device.depth();
        let map = |what| move |source| QueueError::Map { what, queue_id, source };
        let descriptors =
            char_device.map_descriptors(queue_id, depth).map_err(map("the request descriptors"))?;
        let stride_bytes = device.max_io_bytes();
        let copies = match device.transport() {
            Transport::KernelCopy => None,
            Transport::ZeroCopy | Transport::UserCopy | Transport::Fuse => {
                Some(CopyBuffers::map(depth, stride_bytes).map_err(map("the copy buffers"))?)
            }
        };
        let file = char_device.share().map_err(map("the character device"))?;
        let kernel_copied = match device.transport() {
            Transport::KernelCopy => {
                let buffers = BufferMemory::map(depth, stride_bytes).map_err(map("the copy buffers"))?;
                Some(buffers.lock())
            }
            Transport::ZeroCopy | Transport::UserCopy | Transport::Fuse => None,
        };
        let registered = match device.transport() {
            Transport::ZeroCopy => Some(ring.reserve_buffers(depth)?),
            Transport::UserCopy | Transport::KernelCopy | Transport::Fuse => None,
        };
        let opened = register(ring, char_device).and_then(|char_file| {
            let batch = device
                .has_batches()
                .then(|| TagBatches::new(ring, depth, registered.as_ref(), char_device))
                .transpose();
            match batch {
                Ok(batch) => Ok((char_file, batch)),
                Err(error) => {
                    char_file.map_or(Ok(()), |slot| ring.unregister_file(slot))?;
                    Err(error)
                }
            }
        });
        let (char_file, batch) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if let Some(buffers) = registered {
                    ring.release_buffers(buffers);
                }
                return Err(error.into());
            }
        };
        Ok(Self {
            owner,
            queue_id,
            depth,
            char_file,
            descriptors,
            registered,
            copies,
            file,
            with_kernel: 0,
            with_owner: 0,
            draining: false,
            buffers_at: char_device.buffers_at(),
            kernel_copied,
            batch,
        })
    }

    /// Offers every tag to the kernel. The start or recovery of the device completes once all of its queues
    /// are armed and the ring has submitted the commands.
    ///
    /// # Panics
    /// If the queue was armed before.
    pub fn arm<T: From<QueueCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        assert!(self.with_kernel == 0 && self.with_owner == 0, "a queue is armed once");
        if self.batch.is_some() {
            return self.arm_batch(ring);
        }
        for tag in 0..self.depth {
            self.push_command(ring, sys::UBLK_U_IO_FETCH_REQ, tag, -1);
        }
    }

    /// Handles the outcome of a [`QueueCommand`] of this queue, which has no batches: for those see
    /// [`on_batch_completion`](Self::on_batch_completion).
    #[inline(always)] // of each request
    pub fn on_completion<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        tag: u16,
        outcome: IoResult,
    ) -> QueueEvent {
        debug_assert!(self.batch.is_none(), "no command is about a single tag");
        self.with_kernel -= 1;
        match outcome.0 {
            0 if self.draining => QueueEvent::Held,
            0 => self.take_request(ring, tag),
            sys::UBLK_IO_RES_ABORT => QueueEvent::Aborted,
            _ => QueueEvent::Failed { tag, errno: outcome.result().err().unwrap_or(KernelErrno::EINVAL) },
        }
    }

    /// Reads a part of a read request from a file: `operation` completes with the number of bytes moved.
    /// Check it with [`IoResult::exactly`].
    ///
    /// # Panics
    /// If the request is not a read, or the part is not inside it.
    #[inline(always)] // so that the compiler knows the operation's word
    pub fn read_part<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        assert_eq!(request.operation(), Operation::Read, "only a read receives data");
        Self::check(request, part);
        let Some(copies) = self.copies_of(request) else {
            return match &self.registered {
                Some(buffers) => ring.read_fixed(&self.transfer(buffers, request, part), operation),
                None => self.read_into_buffer(ring, request, part, operation),
            };
        };
        Self::read_to(copies.address(Self::buffer_part(request, part)), ring, part, operation);
    }

    /// Like [`read_part`](Self::read_part), for kernel copy only. For an owner that rarely uses it: it is not
    /// inlined, so that `read_part` keeps a single caller, into which the compiler inlines it.
    ///
    /// # Panics
    /// As for `read_part`; also with another transport.
    #[cold]
    #[inline(never)]
    pub fn read_into_buffer<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        assert_eq!(request.operation(), Operation::Read, "only a read receives data");
        Self::check(request, part);
        Self::read_to(self.kernel_copied_at(Self::buffer_part(request, part)), ring, part, operation);
    }

    /// Reads a part of a file to its position in the buffer of a request.
    #[inline(always)]
    fn read_to<T: RingOperation>(address: *mut u8, ring: &mut Ring<T>, part: &RequestPart, operation: T) {
        let fill = opcode::Read::new(part.file.fixed(), address, part.len_bytes)
            .offset(part.file_offset_bytes)
            .build();
        // SAFETY: the entry names a range of the request's buffer. The buffers are unmapped only when the
        // owner has no request, else leaked.
        unsafe { ring.push(fill, operation) };
    }

    /// Writes a part of a write request to a file; otherwise like [`read_part`](Self::read_part).
    ///
    /// # Panics
    /// If the request is not a write, or the part is not inside it.
    #[inline(always)] // as for `read_part`
    pub fn write_part<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        assert_eq!(request.operation(), Operation::Write, "only a write provides data");
        Self::check(request, part);
        let Some(copies) = self.copies_of(request) else {
            return match &self.registered {
                Some(buffers) => ring.write_fixed(&self.transfer(buffers, request, part), operation),
                None => self.write_from_buffer(ring, request, part, operation),
            };
        };
        let buffer = Self::buffer_part(request, part);
        let position = copy_position(self.queue_id, buffer.tag, buffer.offset_bytes);
        let entry = if copies.copy_in(&self.file, buffer, position) {
            Self::write_of(copies.address(buffer), part)
        } else {
            // Its completion reports that no byte was moved.
            opcode::Nop::new().build()
        };
        // SAFETY: as for `read_to`.
        unsafe { ring.push(entry, operation) };
    }

    /// Like [`write_part`](Self::write_part), for kernel copy only: the buffer already has the data. Like
    /// [`read_into_buffer`](Self::read_into_buffer), for an owner that rarely uses it.
    ///
    /// # Panics
    /// As for `write_part`; also with another transport.
    #[cold]
    #[inline(never)]
    pub fn write_from_buffer<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        assert_eq!(request.operation(), Operation::Write, "only a write provides data");
        Self::check(request, part);
        let entry = Self::write_of(self.kernel_copied_at(Self::buffer_part(request, part)), part);
        // SAFETY: as for `read_to`.
        unsafe { ring.push(entry, operation) };
    }

    /// Builds the entry that writes a part to its file from the buffer of a request.
    #[inline(always)]
    fn write_of(address: *mut u8, part: &RequestPart) -> squeue::Entry {
        opcode::Write::new(part.file.fixed(), address, part.len_bytes).offset(part.file_offset_bytes).build()
    }

    /// Returns the data of a write request, for an owner that moves it itself. With user copy, copies it
    /// first.
    ///
    /// # Errors
    /// `EIO` if the kernel did not copy all of it.
    ///
    /// # Panics
    /// If the request is not a write, or its pages are registered, which zero copy allows.
    pub fn data_of_write(&self, request: &DeviceRequest) -> Result<&[u8], KernelErrno> {
        assert_eq!(request.operation(), Operation::Write, "only a write provides data");
        let whole = Self::whole(request);
        if let Some(buffers) = &self.kernel_copied {
            return Ok(buffers.bytes(whole.tag, whole.len_bytes as usize));
        }
        let copies = self.copies_of(request).expect("its pages are not registered");
        if copies.copy_in(&self.file, whole, copy_position(self.queue_id, whole.tag, 0)) {
            Ok(copies.part(whole))
        } else {
            Err(KernelErrno::EIO)
        }
    }

    /// Returns the buffer of a read request, for an owner that fills it itself. [`complete`](Self::complete)
    /// copies its contents into the pages of the request, with kernel copy by the command that it pushes.
    /// Initially the buffer contains data of an earlier request.
    ///
    /// # Panics
    /// As for [`data_of_write`](Self::data_of_write), with a read.
    pub fn buffer_of_read(&mut self, request: &DeviceRequest) -> &mut [u8] {
        assert_eq!(request.operation(), Operation::Read, "only a read receives data");
        let whole = Self::whole(request);
        if let Some(buffers) = &mut self.kernel_copied {
            return buffers.bytes_mut(whole.tag, whole.len_bytes as usize);
        }
        let copies = self.copies.as_mut().expect("there are buffers until the queue is dropped");
        assert!(copies.has(request.tag()), "its pages are not registered");
        copies.part_mut(whole)
    }

    /// Fills the buffers of kernel copy, as the kernel does for writes.
    ///
    /// # Panics
    /// With another transport.
    #[cfg(feature = "fake")]
    pub fn fill_buffers(&mut self, mut fill: impl FnMut(&mut [u8])) {
        let buffers = self.kernel_copied.as_mut().expect("it has kernel copy");
        (0..self.depth).for_each(|tag| fill(buffers.whole_mut(tag)));
    }

    /// Answers a request, as a whole or with an error, and offers its tag again. All its parts must have
    /// completed. With batches the answer waits for [`commit`](Self::commit); the ring
    /// [reminds](Ring::next_reminder) the owner of it.
    #[inline(always)] // of each request
    pub fn complete<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        request: DeviceRequest,
        outcome: Result<(), KernelErrno>,
    ) {
        let (tag, operation, sectors) = request.disarm();
        let len_bytes = sectors * SECTOR_BYTES as u32;
        let mut outcome = outcome;
        if let Some(copies) = self.copies.as_mut().filter(|copies| copies.has(tag)) {
            let position = copy_position(self.queue_id, tag, 0);
            if operation == Operation::Read
                && outcome.is_ok()
                && !copies.copy_out(&self.file, tag, len_bytes, position)
            {
                outcome = Err(KernelErrno::EIO);
            }
            copies.take_back(tag);
        }
        let result = match (outcome, operation) {
            (Ok(()), Operation::Read | Operation::Write) => len_bytes.cast_signed(),
            (Ok(()), Operation::Flush | Operation::Discard | Operation::WriteZeroes) => 0,
            (Err(errno), _) => -errno.number(),
        };
        self.with_owner -= 1;
        if let Some(batch) = &mut self.batch {
            if batch.collect(tag, result) {
                self.with_kernel += 1;
                ring.remind(QueueCommand { owner: self.owner, queue_id: self.queue_id, tag: 0 }.into());
            }
        } else {
            self.push_command(ring, sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ, tag, result);
        }
    }

    /// Leaves all further requests to the successor ([`QueueEvent::Held`]). When
    /// [`requests_with_owner`](Self::requests_with_owner) is zero, [`commit`](Self::commit) on each reminder
    /// of the ring, call [`Ring::submit`] and drop the ring: the kernel keeps the held requests and hands
    /// them out again after recovery.
    pub const fn drain(&mut self) {
        self.draining = true;
    }

    /// Leaves a request to the successor: the kernel hands it to the server that recovers the device. Call it
    /// only just before the ring is closed, and while no part of the request is in flight.
    pub fn leave(&mut self, request: DeviceRequest) {
        if let Some(buffers) = &mut self.copies {
            buffers.take_back(request.tag());
        }
        self.with_owner -= 1;
        request.leave_to_successor();
    }

    /// Returns true if its commands are about many tags.
    #[must_use]
    pub const fn has_batches(&self) -> bool {
        self.batch.is_some()
    }

    /// Returns the number of requests handed out and not completed.
    #[must_use]
    pub const fn requests_with_owner(&self) -> u16 {
        self.with_owner
    }

    /// Returns the number of the queue's commands that the kernel has: one per tag, or few with batches.
    #[must_use]
    pub const fn commands_with_kernel(&self) -> u16 {
        self.with_kernel
    }

    /// Releases the device after it was stopped and all tags have come back, so that it can be deleted while
    /// the ring stays in use. To leave the device to a successor, drop the ring instead.
    ///
    /// # Errors
    /// [`QueueError::Ring`]: the ring still holds the character device.
    ///
    /// # Panics
    /// If a tag is with the kernel or a request with the owner, or the queue was draining: its held requests
    /// are still registered with the ring.
    pub fn close<T>(mut self, ring: &mut Ring<T>) -> Result<(), QueueError> {
        assert!(!self.draining, "a draining queue is closed by dropping its ring");
        assert!(self.with_kernel == 0 && self.with_owner == 0, "all tags have come back");
        if let Some(buffers) = self.registered.take() {
            ring.release_buffers(buffers);
        }
        if let Some(batch) = self.batch.take() {
            batch.close(ring)?;
        }
        self.char_file.map_or(Ok(()), |slot| ring.unregister_file(slot))?;
        Ok(())
    }

    #[inline(always)] // as for `on_completion`
    fn take_request<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        tag: u16,
    ) -> QueueEvent {
        let descriptor = self.descriptors.read(tag);
        self.with_owner += 1;
        let operation = match descriptor.op_flags & 0xff {
            sys::UBLK_IO_OP_READ => Operation::Read,
            sys::UBLK_IO_OP_WRITE => Operation::Write,
            sys::UBLK_IO_OP_FLUSH => Operation::Flush,
            sys::UBLK_IO_OP_DISCARD => Operation::Discard,
            sys::UBLK_IO_OP_WRITE_ZEROES => Operation::WriteZeroes,
            _ => {
                let request = DeviceRequest::new(tag, Operation::Flush, 0, 0);
                self.complete(ring, request, Err(KernelErrno::EOPNOTSUPP));
                return QueueEvent::Refused;
            }
        };
        if operation == Operation::Flush {
            return QueueEvent::Request(DeviceRequest::new(tag, operation, 0, 0));
        }
        let is_registered =
            self.registered.is_some() && descriptor.op_flags & sys::UBLK_IO_F_NEED_REG_BUF == 0;
        if let (Operation::Read | Operation::Write, false, Some(copies)) =
            (operation, is_registered, &mut self.copies)
        {
            copies.lend(tag);
            if self.registered.is_some() {
                ring.count_unregistered();
            }
        }
        let (start, count) = (descriptor.start_sector, u64::from(descriptor.nr_sectors));
        debug_assert!(
            (start | count).is_multiple_of(KERNEL_SECTORS_PER_SECTOR),
            "logical blocks have 4096 bytes"
        );
        let sectors = descriptor.nr_sectors / KERNEL_SECTORS_PER_SECTOR as u32;
        let request = DeviceRequest::new(tag, operation, start / KERNEL_SECTORS_PER_SECTOR, sectors);
        // The block layer sets FUA on writes only.
        let is_forced = operation == Operation::Write && descriptor.op_flags & sys::UBLK_IO_F_FUA != 0;
        QueueEvent::Request(if is_forced { request.forced() } else { request })
    }

    #[inline(always)] // the command of each request
    fn push_command<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        command: u32,
        tag: u16,
        result: i32,
    ) {
        let mut argument = [0; 16];
        argument[0..2].copy_from_slice(&self.queue_id.to_ne_bytes());
        argument[2..4].copy_from_slice(&tag.to_ne_bytes());
        argument[4..8].copy_from_slice(&result.to_ne_bytes());
        let mut entry = self.command(command).cmd(argument);
        if let Some(buffers) = &self.registered {
            // `struct ublk_auto_buf_reg`: bits 0 to 15 are the index, 16 to 23 the flags, the rest is zero.
            entry = entry.addr(Some(u64::from(buffers.index(tag)) | COPY_IF_NOT_REGISTERED));
        } else if let Some(buffers) = &self.kernel_copied {
            // `addr` of `struct ublksrv_io_cmd`: the kernel empties the buffer if the command commits a read,
            // and fills it if the next request of the tag is a write.
            let address = buffers.address(tag, 0, 0).expose_provenance() as u64;
            argument[8..16].copy_from_slice(&address.to_ne_bytes());
            entry = entry.cmd(argument);
        }
        let in_flight = QueueCommand { owner: self.owner, queue_id: self.queue_id, tag };
        self.with_kernel += 1;
        // SAFETY: the argument is copied into the entry, and its address field is an index into the ring's
        // buffer table or zero. With kernel copy the argument names the tag's buffer, which is unmapped only
        // when the kernel has no tag and the owner no request, else leaked.
        unsafe { ring.push(entry.build(), in_flight.into()) };
    }

    /// Begins a command to the driver.
    #[inline(always)] // as for `push_command`
    fn command(&self, code: u32) -> opcode::UringCmd16 {
        match self.char_file {
            Some(slot) => opcode::UringCmd16::new(slot.fixed(), code),
            None => opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), code),
        }
    }

    #[inline]
    fn check(request: &DeviceRequest, part: &RequestPart) {
        let end = u64::from(part.request_offset_bytes) + u64::from(part.len_bytes);
        assert!(part.len_bytes > 0 && end <= request.len_bytes(), "the part lies inside the request");
    }

    /// Returns the position of a part of a request in its copy buffer.
    #[inline]
    const fn buffer_part(request: &DeviceRequest, part: &RequestPart) -> BufferPart {
        let &RequestPart { request_offset_bytes: offset_bytes, len_bytes, .. } = part;
        BufferPart { tag: request.tag(), offset_bytes, len_bytes }
    }

    /// Returns the position of a whole request in its copy buffer.
    fn whole(request: &DeviceRequest) -> BufferPart {
        let len_bytes = u32::try_from(request.len_bytes()).expect("a request is smaller than 4 GiB");
        BufferPart { tag: request.tag(), offset_bytes: 0, len_bytes }
    }

    /// Returns the copy buffers, for a request that has one.
    #[inline]
    fn copies_of(&self, request: &DeviceRequest) -> Option<&CopyBuffers> {
        self.copies.as_ref().filter(|copies| copies.has(request.tag()))
    }

    /// Returns the address of a part of a request with kernel copy.
    fn kernel_copied_at(&self, part: BufferPart) -> *mut u8 {
        let BufferPart { tag, offset_bytes, len_bytes } = part;
        let buffers = self.kernel_copied.as_ref().expect("its pages are registered, or it has a buffer");
        buffers.address(tag, offset_bytes as usize, len_bytes as usize)
    }

    #[inline]
    fn transfer(&self, buffers: &BufferRange, request: &DeviceRequest, part: &RequestPart) -> FixedTransfer {
        FixedTransfer {
            file: part.file,
            file_offset_bytes: part.file_offset_bytes,
            buffer_index: buffers.index(request.tag()),
            buffer_offset_bytes: self.buffers_at + part.request_offset_bytes,
            len_bytes: part.len_bytes,
        }
    }
}

/// Returns the position of a byte of a request in the character device (`UBLKSRV_IO_BUF_OFFSET` in
/// `linux/ublk_cmd.h`).
#[inline]
fn copy_position(queue_id: u16, tag: u16, offset_bytes: u32) -> u64 {
    u64::from(sys::UBLKSRV_IO_BUF_OFFSET)
        + (u64::from(queue_id) << sys::UBLK_QID_OFF)
        + (u64::from(tag) << sys::UBLK_TAG_OFF)
        + u64::from(offset_bytes)
}

impl<K> Drop for Queue<K> {
    fn drop(&mut self) {
        if self.with_owner > 0 {
            // Copies may be in flight, so leak their memory. Close the character device, or the kernel would
            // not quiesce the device before this process exits.
            std::mem::forget(self.copies.take());
        }
        if self.with_owner > 0 || self.with_kernel > 0 {
            // Also leaked: the kernel may fill the buffer of a tag that it has, or of a batch.
            std::mem::forget(self.kernel_copied.take());
            std::mem::forget(self.batch.take());
        }
    }
}

impl<K: std::fmt::Debug> std::fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("owner", &self.owner)
            .field("queue_id", &self.queue_id)
            .field("with_kernel", &self.with_kernel)
            .field("with_owner", &self.with_owner)
            .field("draining", &self.draining)
            .finish_non_exhaustive()
    }
}

/// Registers a character device, if the kernel releases it in time.
fn register<T>(ring: &mut Ring<T>, char_device: &CharDevice) -> Result<Option<FileSlot>, RingError> {
    static KEEPS: LazyLock<bool> =
        LazyLock::new(|| KernelRelease::running().is_ok_and(|kernel| kernel.keeps_registered_files()));
    if *KEEPS && !char_device.is_fake() {
        return Ok(None);
    }
    ring.register_file(char_device.file()).map(Some)
}

#[cfg(test)]
mod tests;
