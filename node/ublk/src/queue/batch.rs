//! Batches: few commands for many tags instead of one per tag (`UBLK_F_BATCH_IO`).
//!
//! ```text
//!  number  command  begins                      a completion says
//!  0       FETCH    armed, or after it ended    some tags have requests; buffer used up; the device stops
//!  1       PREPARE  armed                       the kernel has all tags
//!  2...    COMMIT   before a wait of the ring   the kernel has the answers, and their tags again
//! ```
//!
//! *Owns*: the buffer that the kernel fills with tags, and the lists of answers that are collected or in
//! flight.
//! *Invariants*: each tag is in exactly one place: a fetched and unread piece of the buffer, with the owner,
//! in a list of answers, or with the kernel. A list changes only while no command has it.
//! *Source*: `struct ublk_batch_io` in `linux/ublk_cmd.h`; `ublk_ch_batch_io_uring_cmd` in
//! `drivers/block/ublk_drv.c`.
#![allow(unsafe_code)] // entries that name the lists

use holdfast_ring::{BufferRange, IoResult, KernelErrno, ProvidedBuffer, Ring, RingError, RingOperation};
use io_uring::squeue::Entry;
use libublk::sys;

use super::{Queue, QueueCommand, QueueEvent};
#[cfg(feature = "fake")]
use crate::fake_tags::FakeTags;
use crate::{CharDevice, DeviceRequest};

/// Command numbers. The number of a list is added to the last.
const FETCH: u16 = 0;
const PREPARE: u16 = 1;
const COMMIT: u16 = 2;
/// Bytes for fetched tags: after 2,048 requests they are used up, the fetch ends and the queue sends another.
const FETCHED_BYTES: usize = 4096;
const TAG_BYTES: usize = size_of::<u16>();
const ANSWER_BYTES: usize = size_of::<sys::ublk_elem_header>();

/// Tags that one completion hands over, for [`Queue::next_fetched`].
#[derive(Debug)]
#[must_use = "requests that are not completed hang their issuers"]
pub struct FetchedTags {
    next: usize,
    end: usize,
}

/// Outcomes of a command of a queue with batches.
#[derive(Debug)]
#[must_use]
pub enum BatchEvent {
    /// The kernel has handed over tags, possibly none: [`Queue::next_fetched`] returns their requests.
    Fetched(FetchedTags),
    /// The kernel has accepted the tags or answers.
    Done,
    /// The kernel ended the fetch, because the device is stopping or quiescing.
    Aborted,
    /// The kernel refused a command; its tags are lost. Cause: a bug, or another process has taken the
    /// device.
    Failed {
        /// The number of the command.
        command: u16,
        /// The kernel's answer.
        errno: KernelErrno,
    },
}

/// Answers in the encoding of a command.
type AnswerList = Vec<sys::ublk_elem_header>;

/// The state of a queue with batches.
#[derive(Debug)]
pub(super) struct TagBatches {
    fetched: ProvidedBuffer,
    /// Index at which the kernel registers the pages of tag 0; the next tags follow. 0 with user copy.
    first_buffer: u16,
    /// Answers since the last commit.
    answers: AnswerList,
    /// The lists that commands have, by number.
    sent: Vec<AnswerList>,
    /// Numbers of the lists that no command has; they are empty.
    spare: Vec<u16>,
    depth: u16,
    /// Source of tags that replaces the driver.
    #[cfg(feature = "fake")]
    fake: Option<FakeTags>,
}

impl TagBatches {
    pub(super) fn new<T>(
        ring: &mut Ring<T>,
        depth: u16,
        registered: Option<&BufferRange>,
        device: &CharDevice,
    ) -> Result<Self, RingError> {
        #[cfg(not(feature = "fake"))]
        let _driver = device;
        Ok(Self {
            fetched: ring.provide_buffer(FETCHED_BYTES)?,
            first_buffer: registered.map_or(0, |buffers| buffers.index(0)),
            answers: Vec::with_capacity(depth.into()),
            sent: Vec::new(),
            spare: Vec::new(),
            depth,
            #[cfg(feature = "fake")]
            fake: device.fake_tags(),
        })
    }

    /// Adds an answer, which offers its tag again. Returns true if it is the first since the last commit.
    #[inline(always)] // of each request
    pub(super) fn collect(&mut self, tag: u16, result: i32) -> bool {
        let buf_index = self.first_buffer + tag;
        self.answers.push(sys::ublk_elem_header { tag, buf_index, result });
        self.answers.len() == 1
    }

    /// Releases the memory, which no command uses.
    pub(super) fn close<T>(self, ring: &mut Ring<T>) -> Result<(), RingError> {
        ring.withdraw_buffer(self.fetched)
    }

    /// Closes the list of answers. Returns its number.
    fn close_list(&mut self) -> u16 {
        let list = self.spare.pop().unwrap_or_else(|| {
            self.sent.push(Vec::with_capacity(self.depth.into()));
            u16::try_from(self.sent.len() - 1).expect("there are no more lists than tags")
        });
        std::mem::swap(&mut self.sent[usize::from(list)], &mut self.answers);
        list
    }

    /// Takes back the list of a command that ended. Returns its length.
    fn take_back(&mut self, list: u16) -> usize {
        self.spare.push(list);
        let list = &mut self.sent[usize::from(list)];
        let answers = list.len();
        list.clear();
        answers
    }

    /// Returns the outcome of a commit of `answers` answers.
    fn committed(&self, answers: usize, outcome: IoResult) -> Result<(), KernelErrno> {
        #[cfg(feature = "fake")]
        if self.fake.is_some() {
            return outcome.exactly(0);
        }
        outcome.exactly((answers * ANSWER_BYTES) as u32)
    }

    /// Builds the entry of a fetch from the driver's command.
    fn fetch(&self, command: Entry) -> Entry {
        #[cfg(feature = "fake")]
        if let Some(fake) = &self.fake {
            return fake.read_of(self.fetched.group());
        }
        self.fetched.filled_by(command)
    }
}

impl<K: Copy> Queue<K> {
    /// Gives the kernel all tags and fetches requests.
    pub(super) fn arm_batch<T: From<QueueCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        let Some(batch) = &mut self.batch else { return };
        for tag in 0..self.depth {
            batch.collect(tag, 0);
        }
        let list = batch.close_list();
        self.with_kernel += 1;
        self.push_list(ring, sys::UBLK_U_IO_PREP_IO_CMDS, list, PREPARE + list);
        self.push_fetch(ring);
    }

    /// Handles a completion of a [`QueueCommand`] of this queue with batches. The command may
    /// [continue](holdfast_ring::Completion::continues).
    pub fn on_batch_completion<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        number: u16,
        outcome: IoResult,
        continues: bool,
    ) -> BatchEvent {
        let batch = self.batch.as_mut().expect("its command ended");
        if !continues {
            self.with_kernel -= 1;
        }
        let ended = match number {
            FETCH => return self.on_fetch(ring, outcome, continues),
            PREPARE => {
                batch.take_back(0);
                outcome.exactly(0)
            }
            commit => {
                let answers = batch.take_back(commit - COMMIT);
                batch.committed(answers, outcome)
            }
        };
        match ended {
            Ok(()) => BatchEvent::Done,
            Err(errno) => BatchEvent::Failed { command: number, errno },
        }
    }

    fn on_fetch<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        outcome: IoResult,
        continues: bool,
    ) -> BatchEvent {
        let batch = self.batch.as_mut().expect("its command ended");
        let piece = match outcome.result() {
            Ok(bytes) => batch.fetched.take(bytes),
            Err(KernelErrno::ENOBUFS) => {
                batch.fetched.refill();
                0..0
            }
            // The fetch is sent again: without it the queue receives no requests.
            Err(KernelErrno::ENOMEM) => 0..0,
            Err(_) if outcome.0 == sys::UBLK_IO_RES_ABORT => return BatchEvent::Aborted,
            Err(errno) => return BatchEvent::Failed { command: FETCH, errno },
        };
        if !continues && !self.draining {
            self.push_fetch(ring);
        }
        BatchEvent::Fetched(FetchedTags { next: piece.start, end: piece.end })
    }

    /// Returns the request of the next fetched tag; `None` after the last. Take all of them before the next
    /// completion. Returns none while the queue is draining: it leaves them to the successor.
    #[inline(always)] // of each request
    pub fn next_fetched<T: From<QueueCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        tags: &mut FetchedTags,
    ) -> Option<DeviceRequest> {
        while tags.next < tags.end && !self.draining {
            let tag = self.batch.as_ref()?.fetched.number_at(tags.next);
            tags.next += TAG_BYTES;
            if let QueueEvent::Request(request) = self.take_request(ring, tag) {
                return Some(request);
            }
        }
        None
    }

    /// Gives the kernel the collected answers: call it on a reminder of the ring ([`Ring::next_reminder`]).
    ///
    /// # Panics
    /// If there are none.
    pub fn commit<T: From<QueueCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        let batch = self.batch.as_mut().filter(|batch| !batch.answers.is_empty());
        let list = batch.expect("the ring reminds once of each first answer").close_list();
        self.push_list(ring, sys::UBLK_U_IO_COMMIT_IO_CMDS, list, COMMIT + list);
    }

    /// Pushes a command with a list, which its caller has counted.
    fn push_list<T: From<QueueCommand<K>> + RingOperation>(
        &self,
        ring: &mut Ring<T>,
        command: u32,
        list: u16,
        number: u16,
    ) {
        let Some(batch) = &self.batch else { return };
        let answers = &batch.sent[usize::from(list)];
        let fallback = if self.registered.is_some() { sys::UBLK_BATCH_F_AUTO_BUF_REG_FALLBACK } else { 0 };
        let about = self.about(answers.len(), ANSWER_BYTES, fallback);
        let address = answers.as_ptr().expose_provenance() as u64;
        let entry = self.command(command).cmd(about).addr(Some(address)).build();
        let in_flight = QueueCommand { owner: self.owner, queue_id: self.queue_id, tag: number };
        // SAFETY: the entry names a list, which does not change until the command has ended. If the queue is
        // dropped before, the list is leaked.
        unsafe { ring.push_immediate(entry, in_flight.into()) };
    }

    #[cold]
    fn push_fetch<T: From<QueueCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        let Some(batch) = &self.batch else { return };
        let command = self.command(sys::UBLK_U_IO_FETCH_IO_CMDS).cmd(self.about(0, TAG_BYTES, 0)).build();
        let entry = batch.fetch(command);
        let in_flight = QueueCommand { owner: self.owner, queue_id: self.queue_id, tag: FETCH };
        self.with_kernel += 1;
        // SAFETY: the entry names the group of the provided buffer. If the queue is dropped before the
        // command has ended, the buffer is leaked.
        unsafe { ring.push(entry, in_flight.into()) };
    }

    /// Encodes `struct ublk_batch_io`.
    fn about(&self, elements: usize, element_bytes: usize, flags: u32) -> [u8; 16] {
        let mut about = [0; 16];
        about[0..2].copy_from_slice(&self.queue_id.to_ne_bytes());
        about[2..4].copy_from_slice(&(flags as u16).to_ne_bytes());
        about[4..6].copy_from_slice(&(elements as u16).to_ne_bytes());
        about[6] = element_bytes as u8;
        about
    }
}
