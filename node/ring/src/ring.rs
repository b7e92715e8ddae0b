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
    /// Entries of the submission queue. More are submitted in several batches, none is lost.
    pub submission_entries: u32,
    /// Entries of the completion queue: at least `submission_entries`, and for speed at least the sum
    /// of the depths of all queues on the ring, twice.
    pub completion_entries: u32,
    /// Slots for fixed files: at most the process's limit of open files, see
    /// [`raise_open_file_limit`](crate::raise_open_file_limit).
    pub files: u32,
    /// Slots for fixed buffers: one for each tag of each zero-copy queue on the ring, so that none are
    /// shared, at most [`RingOptions::MAX_BUFFERS`]. Zero is allowed.
    pub buffers: u16,
}

impl RingOptions {
    /// The most fixed buffers a ring can have (`IORING_MAX_REG_BUFFERS` in `io_uring/rsrc.c`).
    pub const MAX_BUFFERS: u16 = 1 << 14;
}

impl Default for RingOptions {
    fn default() -> Self {
        Self { submission_entries: 512, completion_entries: 8192, files: 8192, buffers: Self::MAX_BUFFERS }
    }
}

/// In the user data of an entry: the rest is the operation itself.
const WORD: u64 = 1 << 63;

/// One io_uring with its tables, owned by the thread that made it.
///
/// Operations are started by [`read_fixed`](Self::read_fixed) and its like or pushed as raw entries, each
/// with a value of the owner's that says what it is for;
/// [`submit_and_wait`](Self::submit_and_wait) hands out completions, [`end`](Self::end) what each was for.
pub struct Ring<T> {
    uring: IoUring,
    /// Entries the kernel would not take yet, oldest first. Empty but for moments of pressure.
    backlog: VecDeque<Entry>,
    files: FileTable,
    buffers: BufferTable,
    /// Requests whose pages the kernel did not register.
    unregistered: u64,
    groups: GroupTable,
    reminders: Vec<T>,
    /// Operations pushed since the last wait that end as they are submitted.
    immediate: usize,
    in_flight: OperationTable<T>,
    /// Operations in flight that are words.
    words: u32,
    most_operations: u32,
    waker: Waker,
    waker_armed: bool,
    enters: u64,
    /// `SINGLE_ISSUER`: only the thread that made the ring may use it.
    _thread_confined: PhantomData<*const ()>,
}

impl<T> Ring<T> {
    /// Makes a ring; the calling thread becomes the only one that may use it.
    ///
    /// # Errors
    /// [`RingError::Setup`] where the kernel has no io_uring with deferred task work (6.1) or forbids
    /// it; [`RingError::RegisterTable`] where a table is too large; [`RingError::Eventfd`].
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
            most_operations: 0,
            waker: Waker::new()?,
            waker_armed: false,
            enters: 0,
            _thread_confined: PhantomData,
        })
    }

    /// A handle by which other threads end this thread's wait.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// A further use of the ring's file: the ring is closed, and what is in flight cancelled, when this value
    /// and the ring have both been dropped. Any thread may drop it.
    ///
    /// # Errors
    /// [`RingError::Share`] if the process has too many files open.
    pub fn share(&self) -> Result<OwnedFd, RingError> {
        // SAFETY: the descriptor is open as long as `uring`, which outlives this borrow.
        let file = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        file.try_clone_to_owned().map_err(RingError::Share)
    }

    /// Puts a file into a free slot. The ring holds its own reference, the caller may close `file`.
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

    /// Empties a slot. Operations in flight keep the file until they end; `slot` may be given to
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

    /// Reserves adjacent slots of the buffer table, which the kernel fills itself (ublk's automatic
    /// buffer registration). Where none are free it shares those with the fewest users: the kernel registers
    /// nothing in a slot that is in use.
    ///
    /// # Errors
    /// [`RingError::BuffersExhausted`] if the table has fewer slots.
    pub fn reserve_buffers(&mut self, count: u16) -> Result<BufferRange, RingError> {
        self.buffers.take(count)
    }

    /// Returns slots that hold no buffer any more.
    pub fn release_buffers(&mut self, range: BufferRange) {
        self.buffers.give_back(range);
    }

    /// Counts a request whose pages the kernel did not register: its slot was in use, or memory was short.
    pub const fn count_unregistered(&mut self) {
        self.unregistered += 1;
    }

    /// Number of requests whose pages the kernel did not register.
    #[must_use]
    pub const fn unregistered(&self) -> u64 {
        self.unregistered
    }

    /// Makes a buffer that multishot commands fill piece by piece, in a group of its own.
    ///
    /// # Errors
    /// [`RingError::ProvideBuffer`], before Linux 6.12 always.
    pub fn provide_buffer(&mut self, len_bytes: usize) -> Result<ProvidedBuffer, RingError> {
        /// `IOU_PBUF_RING_INC` in `linux/io_uring.h`.
        const PIECE_BY_PIECE: u16 = 2;
        let mut buffer = ProvidedBuffer::new(self.groups.take(), len_bytes);
        let (page, group) = (buffer.page_address(), buffer.group());
        let submitter = self.uring.submitter();
        // SAFETY: a page of the buffer. Dropped before it is withdrawn, it stays pinned: the kernel reads
        // what is in it then only for an operation that names the group, and none does.
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

    /// Takes a buffer from the kernel that no operation fills any more.
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

    /// Has [`next_reminder`](Self::next_reminder) hand out a value: something is to be pushed before the next
    /// wait that is still being collected.
    #[inline]
    pub fn remind(&mut self, of: T) {
        self.reminders.push(of);
    }

    /// A value of [`remind`](Self::remind). The owner of the ring asks for them, until there is none, before
    /// it waits.
    #[inline]
    pub fn next_reminder(&mut self) -> Option<T> {
        self.reminders.pop()
    }

    /// # Safety
    /// As for [`push`](Self::push).
    #[inline]
    unsafe fn queue(&mut self, entry: Entry) {
        // SAFETY: what the entry names is valid by this function's contract.
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
            // A full queue: hand it to the kernel. An error shows again at the next wait.
            self.enters += 1;
            let _ = self.uring.submit();
            // SAFETY: as above.
            if unsafe { self.uring.submission().push(&entry) }.is_ok() {
                return;
            }
        }
        self.backlog.push_back(entry);
    }

    /// Hands what was pushed to the kernel without waiting. Needed only before the ring is dropped
    /// with entries that must still take effect.
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
    /// don't wait), and appends what has ended to `completions`.
    ///
    /// Returns whether a waker fired.
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
        self.most_operations = self.most_operations.max(self.operations());
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

    /// Moves the backlog into the submission queue as far as it fits; says whether all did.
    fn refill(&mut self) -> bool {
        if self.backlog.is_empty() {
            return true;
        }
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: what the entry names is valid by the contract under which it was pushed.
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

    /// Number of operations in flight.
    #[must_use]
    pub const fn operations(&self) -> u32 {
        self.in_flight.count() + self.words
    }

    /// Largest number of operations that were in flight while the thread waited.
    #[must_use]
    pub const fn max_operations(&self) -> u32 {
        self.most_operations
    }

    /// Number of calls of `io_uring_enter`.
    #[must_use]
    pub const fn enters(&self) -> u64 {
        self.enters
    }

    /// Number of completions that named an operation that had ended before.
    #[must_use]
    pub const fn late_completions(&self) -> u64 {
        self.in_flight.late()
    }
}

impl<T: RingOperation> Ring<T> {
    /// Queues one entry, for `operation`. It is submitted by the next wait, or now if the queue is full; it
    /// is never lost and never refused.
    ///
    /// # Safety
    /// Memory named by the entry must stay valid, and untouched where the kernel writes to it, until
    /// the entry's completion has been handed out or the process ends.
    #[inline(always)] // where the operation is known, so is its word
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

    /// The same for an operation that the kernel ends as it takes the entry, with success or an error, though
    /// it may block there: its completion does not end the next wait.
    ///
    /// # Safety
    /// As for [`push`](Self::push).
    #[inline]
    pub unsafe fn push_immediate(&mut self, entry: Entry, operation: T) {
        self.immediate += 1;
        // SAFETY: the same contract.
        unsafe { self.push(entry, operation) };
    }

    /// The same with memory that is lent to it.
    ///
    /// # Safety
    /// As for [`push`](Self::push), but for `buffer`.
    pub(crate) unsafe fn push_with(&mut self, entry: Entry, operation: T, buffer: HeapBuffer) {
        let key = self.in_flight.insert(operation, Some(buffer));
        // SAFETY: the same contract; the buffer stays in the table until the completion was handed out.
        unsafe { self.queue(entry.user_data(key.to_bits())) };
    }

    /// Ends the operation of a completion, unless it [continues](Completion::continues): returns its purpose
    /// and its buffer. `None`, and counted by [`late_completions`](Self::late_completions),
    /// where that operation has ended before.
    #[inline]
    pub fn end(&mut self, completion: Completion) -> Option<Ended<T>> {
        if let Some((operation, outcome)) = self.end_word(completion) {
            return Some(Ended { operation, outcome, buffer: None });
        }
        let Completion { user_data, outcome, flags: _ } = completion;
        let (operation, buffer) = self.in_flight.take(OperationKey::from_bits(user_data))?;
        Some(Ended { operation, outcome, buffer })
    }

    /// The same, for an operation that is a word; `None`, with nothing changed, for any other.
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

/// For what this type has no function for. Only the ring's own thread may use it.
impl<T> AsRawFd for Ring<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.uring.as_raw_fd()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // Closing the ring cancels operations in the background, after this returns.
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

/// Errors after which the same call may be made again: a signal, the time limit, a shortage.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

#[cfg(test)]
mod tests;
