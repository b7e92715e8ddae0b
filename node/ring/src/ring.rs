//! The ring: pushing entries, waiting, handing out completions.
#![allow(unsafe_code)] // entries of the submission queue name memory the kernel will touch

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use crate::operation_table::{OperationKey, OperationTable};
use crate::slot::{BufferTable, FileTable, GroupTable};
use crate::{
    BufferRange, Completion, Ended, FileSlot, HeapBuffer, IoResult, ProvidedBuffer, RingError, RingOperation,
    Waker,
};

/// Sizes of a ring and its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingOptions {
    /// Entries of the submission queue. The ring submits more of them in several batches, and loses none.
    pub submission_entries: u32,
    /// Entries of the completion queue: at least `submission_entries`, and for speed at least twice the sum
    /// of the depths of all queues on the ring.
    pub completion_entries: u32,
    /// Slots for fixed files: at most the process's limit of open files, see
    /// [`raise_open_file_limit`](crate::raise_open_file_limit).
    pub files: u32,
    /// Slots for fixed buffers, at most [`RingOptions::MAX_BUFFERS`]; zero is allowed. With one for each tag
    /// of each zero-copy queue on the ring, no slot is shared.
    pub buffers: u16,
}

impl RingOptions {
    /// Maximum number of fixed buffers of a ring (`IORING_MAX_REG_BUFFERS` in `io_uring/rsrc.c`).
    pub const MAX_BUFFERS: u16 = 1 << 14;
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { submission_entries: 512, completion_entries: 8192, files: 8192, buffers: Self::MAX_BUFFERS }
    }
}

/// Bit of an entry's user data; if set, the other bits are the operation itself.
const WORD: u64 = 1 << 63;

/// One io_uring with its tables, owned by the thread that made it.
///
/// The owner starts operations with [`read_fixed`](Self::read_fixed) and similar methods, or pushes raw
/// entries, each with a value that names its purpose. [`submit_and_wait`](Self::submit_and_wait) hands out
/// completions, and [`end`](Self::end) returns the purpose of each.
pub struct Ring<T> {
    uring: IoUring,
    /// Entries that the kernel has not accepted yet, oldest first. Empty except under pressure.
    backlog: VecDeque<Entry>,
    files: FileTable,
    buffers: BufferTable,
    /// Requests whose pages the kernel did not register.
    unregistered: u64,
    groups: GroupTable,
    reminders: Vec<T>,
    /// Operations pushed since the last wait that end during their submission.
    immediate: usize,
    in_flight: OperationTable<T>,
    /// Operations in flight that are words.
    words: u32,
    max_operations: u32,
    waker: Waker,
    waker_armed: bool,
    enters: u64,
    /// `SINGLE_ISSUER`: only the thread that made the ring may use it.
    _thread_confined: PhantomData<*const ()>,
}

impl<T> Ring<T> {
    /// Creates a ring; the calling thread becomes the only one that may use it.
    ///
    /// # Errors
    /// [`RingError::Setup`] if the kernel has no io_uring with deferred task work (6.1) or forbids it;
    /// [`RingError::RegisterTable`] if a table is too large; [`RingError::Eventfd`].
    pub fn new(options: &RingOptions) -> Result<Self, RingError> {
        let uring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(options.completion_entries.max(options.submission_entries))
            .build(options.submission_entries)
            .map_err(RingError::Setup)?;
        let table = |what, entries| move |source| RingError::RegisterTable { what, entries, source };
        uring.submitter().register_files_sparse(options.files).map_err(table("files", options.files))?;
        if options.buffers > 0 {
            let entries = options.buffers.into();
            uring.submitter().register_buffers_sparse(entries).map_err(table("buffers", entries))?;
        }
        Ok(Self {
            uring,
            backlog: VecDeque::new(),
            files: FileTable::new(options.files),
            buffers: BufferTable::new(options.buffers),
            unregistered: 0,
            groups: GroupTable::default(),
            reminders: Vec::new(),
            immediate: 0,
            in_flight: OperationTable::default(),
            words: 0,
            max_operations: 0,
            waker: Waker::new()?,
            waker_armed: false,
            enters: 0,
            _thread_confined: PhantomData,
        })
    }

    /// Returns a handle by which other threads end this thread's wait.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Duplicates the ring's descriptor. The kernel closes the ring, and cancels the operations in flight,
    /// when the duplicate and the ring have both been dropped. Any thread may drop the duplicate.
    ///
    /// # Errors
    /// [`RingError::Share`] if the process has too many files open.
    pub fn share(&self) -> Result<OwnedFd, RingError> {
        // SAFETY: the descriptor stays open until `uring` is dropped, after this borrow.
        let file = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        file.try_clone_to_owned().map_err(RingError::Share)
    }

    /// Puts a file into a free slot. The ring has its own reference, so the caller may close `file`.
    ///
    /// # Errors
    /// [`RingError::FilesExhausted`], [`RingError::UpdateFile`].
    pub fn register_file(&mut self, file: BorrowedFd<'_>) -> Result<FileSlot, RingError> {
        let slot = self.files.take()?;
        match self.uring.submitter().register_files_update(slot.0, &[file.as_raw_fd()]) {
            Ok(_) => Ok(slot),
            Err(source) => {
                self.files.give_back(slot);
                Err(RingError::UpdateFile { slot: slot.0, source })
            }
        }
    }

    /// Empties a slot. Operations in flight keep the file until they end; the ring may give the slot to
    /// another file afterwards.
    ///
    /// # Errors
    /// [`RingError::UpdateFile`]; the slot is then lost until the ring is dropped.
    pub fn unregister_file(&mut self, slot: FileSlot) -> Result<(), RingError> {
        self.uring
            .submitter()
            .register_files_update(slot.0, &[-1])
            .map_err(|source| RingError::UpdateFile { slot: slot.0, source })?;
        self.files.give_back(slot);
        Ok(())
    }

    /// Reserves adjacent slots of the buffer table, which the kernel fills itself (ublk's automatic buffer
    /// registration). If none are free, the range shares those with the fewest users: the kernel registers
    /// nothing in a slot that is in use.
    ///
    /// # Errors
    /// [`RingError::BuffersExhausted`] if the table has fewer slots.
    pub fn reserve_buffers(&mut self, count: u16) -> Result<BufferRange, RingError> {
        self.buffers.take(count)
    }

    /// Releases slots that hold no buffer any more.
    pub fn release_buffers(&mut self, range: BufferRange) {
        self.buffers.give_back(range);
    }

    /// Counts a request whose pages the kernel did not register: its slot was in use, or memory was short.
    pub const fn count_unregistered(&mut self) {
        self.unregistered += 1;
    }

    /// Returns the number of requests whose pages the kernel did not register.
    #[must_use]
    pub const fn unregistered(&self) -> u64 {
        self.unregistered
    }

    /// Creates a buffer that multishot commands fill piece by piece, in a group of its own.
    ///
    /// # Errors
    /// [`RingError::ProvideBuffer`], always before Linux 6.12.
    pub fn provide_buffer(&mut self, len_bytes: usize) -> Result<ProvidedBuffer, RingError> {
        /// `IOU_PBUF_RING_INC` in `linux/io_uring.h`.
        const PIECE_BY_PIECE: u16 = 2;
        let mut buffer = ProvidedBuffer::new(self.groups.take(), len_bytes);
        let (page, group) = (buffer.page_address(), buffer.group());
        let submitter = self.uring.submitter();
        // SAFETY: `page` is a page of the buffer. If the buffer is dropped before it is withdrawn, the page
        // stays pinned: the kernel then reads it only for an operation that names the group, and none does.
        match unsafe { submitter.register_buf_ring_with_flags(page, 1, group, PIECE_BY_PIECE) } {
            Ok(()) => {
                buffer.provide();
                Ok(buffer)
            }
            Err(source) => {
                self.groups.give_back(group);
                Err(RingError::ProvideBuffer(source))
            }
        }
    }

    /// Withdraws a buffer from the kernel. No operation may be filling it.
    ///
    /// # Errors
    /// [`RingError::ProvideBuffer`]; the group is then lost until the ring is dropped.
    pub fn withdraw_buffer(&mut self, buffer: ProvidedBuffer) -> Result<(), RingError> {
        let group = buffer.group();
        match self.uring.submitter().unregister_buf_ring(group) {
            Ok(()) => {
                self.groups.give_back(group);
                Ok(())
            }
            Err(source) => {
                // The kernel may still read its page.
                std::mem::forget(buffer);
                Err(RingError::ProvideBuffer(source))
            }
        }
    }

    /// Adds a value that [`next_reminder`](Self::next_reminder) returns. It names entries that are still
    /// being collected and must be pushed before the next wait.
    #[inline]
    pub fn remind(&mut self, of: T) {
        self.reminders.push(of);
    }

    /// Returns a value of [`remind`](Self::remind). Before a wait, the owner of the ring calls this until it
    /// returns `None`.
    #[inline]
    pub fn next_reminder(&mut self) -> Option<T> {
        self.reminders.pop()
    }

    /// # Safety
    /// As for [`push`](Self::push).
    #[inline]
    unsafe fn queue(&mut self, entry: Entry) {
        // SAFETY: the memory of the entry is valid by this function's contract.
        if !self.backlog.is_empty() || unsafe { self.uring.submission().push(&entry) }.is_err() {
            // SAFETY: the same contract.
            unsafe { self.queue_when_full(entry) };
        }
    }

    /// # Safety
    /// As for [`push`](Self::push).
    #[cold]
    unsafe fn queue_when_full(&mut self, entry: Entry) {
        if self.backlog.is_empty() {
            // The queue is full: submit it. The next wait reports an error again.
            self.enters += 1;
            let _ = self.uring.submit();
            // SAFETY: as above.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Submits all pushed entries without waiting. Needed before the ring is dropped with entries that must
    /// still take effect, and before the queues of a device are opened, so that its fetches need one call.
    ///
    /// # Errors
    /// [`RingError::Enter`]: drop the ring.
    pub fn submit(&mut self) -> Result<(), RingError> {
        loop {
            let all_queued = self.refill();
            self.enters += 1;
            match self.uring.submit() {
                Ok(_) if all_queued => return Ok(()),
                Ok(_) => {}
                Err(error) if is_transient(&error) => {}
                Err(error) => return Err(RingError::Enter(error)),
            }
        }
    }

    /// Submits everything, waits until at least one operation has ended that is not
    /// [immediate](Self::push_immediate), a [`Waker`] fired or `timeout` passed (`None`: no limit; zero:
    /// don't wait), and appends the completions to `completions`.
    ///
    /// Returns true if a waker fired.
    ///
    /// # Errors
    /// [`RingError::Enter`]: the ring is broken, drop it.
    pub fn submit_and_wait(
        &mut self,
        timeout: Option<Duration>,
        completions: &mut Vec<Completion>,
    ) -> Result<bool, RingError> {
        if !self.waker_armed {
            self.arm_waker();
        }
        let all_queued = self.refill();
        self.max_operations = self.max_operations.max(self.operations());
        let immediate = std::mem::take(&mut self.immediate);
        let wait_for = if all_queued && timeout != Some(Duration::ZERO) { 1 + immediate } else { 0 };
        self.enters += 1;
        let entered = match timeout {
            Some(limit) if wait_for > 0 => {
                let limit = Timespec::from(limit);
                self.uring.submitter().submit_with_args(wait_for, &SubmitArgs::new().timespec(&limit))
            }
            Some(_) | None => self.uring.submit_and_wait(wait_for),
        };
        match entered {
            Ok(_) => {}
            Err(error) if is_transient(&error) => {}
            Err(error) => return Err(RingError::Enter(error)),
        }
        Ok(self.drain(completions))
    }

    /// Moves the backlog into the submission queue as far as it fits. Returns true if all of it fitted.
    fn refill(&mut self) -> bool {
        if self.backlog.is_empty() {
            return true;
        }
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the memory of the entry is valid by the contract under which it was pushed.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }

    fn drain(&mut self, completions: &mut Vec<Completion>) -> bool {
        let mut woken = false;
        for entry in self.uring.completion() {
            let (user_data, outcome) = (entry.user_data(), IoResult(entry.result()));
            let completion = Completion { user_data, outcome, flags: entry.flags() };
            if user_data == OperationKey::WAKE.to_bits() {
                woken = true;
                self.waker_armed = completion.continues();
            } else {
                completions.push(completion);
            }
        }
        if woken {
            self.waker.acknowledge();
        }
        woken
    }

    fn arm_waker(&mut self) {
        let events = u32::try_from(libc::POLLIN).expect("a small positive constant");
        let poll = opcode::PollAdd::new(Fd(self.waker.raw_fd()), events).multi(true).build();
        // SAFETY: the entry names no memory.
        unsafe { self.queue(poll.user_data(OperationKey::WAKE.to_bits())) };
        self.waker_armed = true;
    }

    /// Returns the number of operations in flight.
    #[must_use]
    pub const fn operations(&self) -> u32 {
        self.in_flight.count() + self.words
    }

    /// Returns the largest number of operations that were in flight while the thread waited.
    #[must_use]
    pub const fn max_operations(&self) -> u32 {
        self.max_operations
    }

    /// Returns the number of calls of `io_uring_enter`.
    #[must_use]
    pub const fn enters(&self) -> u64 {
        self.enters
    }

    /// Returns the number of completions whose operation had ended before.
    #[must_use]
    pub const fn late_completions(&self) -> u64 {
        self.in_flight.late()
    }
}

impl<T: RingOperation> Ring<T> {
    /// Queues the entry of `operation`. The next wait submits it, or this call if the queue is full; it is
    /// never lost and never refused.
    ///
    /// # Safety
    /// Memory named by the entry must stay valid, and untouched where the kernel writes to it, until
    /// the entry's completion has been handed out or the process ends.
    #[inline(always)] // a constant operation has a constant word
    pub unsafe fn push(&mut self, entry: Entry, operation: T) {
        let user_data = match operation.to_word() {
            Some(word) => {
                debug_assert!(word & WORD == 0, "a word has 63 bits");
                self.words += 1;
                WORD | word
            }
            None => self.in_flight.insert(operation, None).to_bits(),
        };
        // SAFETY: the same contract.
        unsafe { self.queue(entry.user_data(user_data)) };
    }

    /// Queues an entry as [`push`](Self::push) does, for an operation that the kernel ends during the
    /// submission, even if it blocks there. Its completion, success or error, does not end the next wait.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    #[inline]
    pub unsafe fn push_immediate(&mut self, entry: Entry, operation: T) {
        self.immediate += 1;
        // SAFETY: the same contract.
        unsafe { self.push(entry, operation) };
    }

    /// Queues an entry as [`push`](Self::push) does, with memory that is lent to the operation.
    ///
    /// # Safety
    /// As for [`push`](Self::push), except for `buffer`, which the table keeps.
    pub(crate) unsafe fn push_with(&mut self, entry: Entry, operation: T, buffer: HeapBuffer) {
        let key = self.in_flight.insert(operation, Some(buffer));
        // SAFETY: the same contract; the buffer stays in the table until the completion was handed out.
        unsafe { self.queue(entry.user_data(key.to_bits())) };
    }

    /// Ends the operation of a completion, and returns its purpose and its buffer. An operation that
    /// [continues](Completion::continues) stays in flight: only words may do so. Returns `None`, counted by
    /// [`late_completions`](Self::late_completions), if that operation has ended before.
    #[inline]
    pub fn end(&mut self, completion: Completion) -> Option<Ended<T>> {
        if let Some((operation, outcome)) = self.end_word(completion) {
            return Some(Ended { operation, outcome, buffer: None });
        }
        let Completion { user_data, outcome, flags: _ } = completion;
        let (operation, buffer) = self.in_flight.take(OperationKey::from_bits(user_data))?;
        Some(Ended { operation, outcome, buffer })
    }

    /// Does the same as [`end`](Self::end) for a word. Does nothing and returns `None` for other operations.
    #[inline]
    pub fn end_word(&mut self, completion: Completion) -> Option<(T, IoResult)> {
        let Completion { user_data, outcome, flags: _ } = completion;
        if user_data & WORD == 0 {
            return None;
        }
        self.words -= u32::from(!completion.continues());
        Some((T::from_word(user_data & !WORD), outcome))
    }
}

/// Descriptor for calls that this type does not offer. Only the ring's own thread may use it.
impl<T> AsRawFd for Ring<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // The kernel cancels operations in the background, after this returns.
        self.in_flight.leak_buffers();
    }
}

impl<T> std::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("files", &self.files)
            .field("buffers", &self.buffers)
            .field("backlog", &self.backlog.len())
            .field("operations", &self.operations())
            .finish_non_exhaustive()
    }
}

/// Returns true for an error after which the call may be repeated: a signal, the time limit, a shortage.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

#[cfg(test)]
mod tests;
