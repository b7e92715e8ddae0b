//! One ring on one thread, serving files as devices.

use std::collections::VecDeque;
use std::fs::File;
#[cfg(test)]
use std::os::fd::AsRawFd;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, bail};
use holdfast_ring::{FileRange, FileSlot, IoResult, KernelErrno, RingOperation, RingOptions, Waker};
use holdfast_ublk::{
    BatchEvent, CharDevice, Device, DeviceRequest, Operation, QueueCommand, QueueEvent, QueueSpec,
    RequestPart, SECTOR_BYTES, become_io_flusher,
};

/// Purpose of an operation in the ring. `index` and `owner` are the number of the device.
enum InFlight {
    Command(QueueCommand<u16>),
    /// A part of a request, or its sync.
    Part {
        index: u16,
        tag: u16,
        expected_bytes: u32,
    },
}

impl From<QueueCommand<u16>> for InFlight {
    fn from(command: QueueCommand<u16>) -> Self {
        Self::Command(command)
    }
}

impl RingOperation for InFlight {
    /// Encodes commands only: a device has one queue.
    fn to_word(&self) -> Option<u64> {
        match self {
            Self::Command(QueueCommand { owner, queue_id: 0, tag }) => {
                Some((u64::from(*owner) << 16) | u64::from(*tag))
            }
            Self::Command(_) | Self::Part { .. } => None,
        }
    }

    fn from_word(word: u64) -> Self {
        Self::Command(QueueCommand { owner: (word >> 16) as u16, queue_id: 0, tag: word as u16 })
    }
}

type Ring = holdfast_ring::Ring<InFlight>;
type Queue = holdfast_ublk::Queue<u16>;

enum Message {
    Serve {
        index: u16,
        device: Device,
        char_device: CharDevice,
        file: File,
        reply: mpsc::Sender<Result<()>>,
    },
    Close {
        index: u16,
        reply: mpsc::Sender<Result<()>>,
    },
    Leave,
    #[cfg(test)]
    Occupy {
        buffers: u32,
        reply: mpsc::Sender<Result<()>>,
    },
    #[cfg(test)]
    Unregistered {
        reply: mpsc::Sender<u64>,
    },
}

/// The main thread's handle of the ring thread.
pub(crate) struct Worker {
    inbox: Arc<Mutex<VecDeque<Message>>>,
    waker: Waker,
    thread: JoinHandle<Option<OwnedFd>>,
}

impl Worker {
    /// Starts the thread, which moves requests in parts of at most `part_bytes`.
    pub(crate) fn spawn(part_bytes: u32) -> Result<Self> {
        Self::with_buffers(part_bytes, RingOptions::MAX_BUFFERS)
    }

    /// Starts the thread with this number of buffers for the requests of all devices.
    pub(crate) fn with_buffers(part_bytes: u32, buffers: u16) -> Result<Self> {
        let inbox = Arc::new(Mutex::new(VecDeque::new()));
        let (ready, started) = mpsc::channel();
        let messages = Arc::clone(&inbox);
        let thread = thread::spawn(move || match RingThread::new(part_bytes, buffers) {
            Ok(mut ring_thread) => {
                drop(ready.send(Ok(ring_thread.ring.waker())));
                match ring_thread.run(&messages) {
                    Ok(ring) => Some(ring),
                    Err(error) => {
                        eprintln!("the ring thread failed: {error:#}");
                        std::process::exit(1);
                    }
                }
            }
            Err(error) => {
                drop(ready.send(Err(error)));
                None
            }
        });
        Ok(Self { inbox, waker: started.recv()??, thread })
    }

    fn send(&self, message: Message) -> Result<()> {
        self.inbox.lock().map_err(|_poisoned| anyhow!("the ring thread panicked"))?.push_back(message);
        self.waker.wake();
        Ok(())
    }

    fn call<T>(&self, message: impl FnOnce(mpsc::Sender<T>) -> Message) -> Result<T> {
        let (reply, answer) = mpsc::channel();
        self.send(message(reply))?;
        Ok(answer.recv()?)
    }

    /// Opens the device's queue on the ring, arms it, and serves it from `file`.
    pub(crate) fn serve(&self, index: u16, device: &Device, file: File) -> Result<()> {
        let char_device = device.open_char()?;
        self.call(|reply| Message::Serve { index, device: *device, char_device, file, reply })?
    }

    /// Releases a stopped device.
    pub(crate) fn close(&self, index: u16) -> Result<()> {
        self.call(|reply| Message::Close { index, reply })?
    }

    /// Registers unrelated memory at the indices for the pages of requests.
    #[cfg(test)]
    pub(crate) fn occupy(&self, buffers: u32) -> Result<()> {
        self.call(|reply| Message::Occupy { buffers, reply })?
    }

    /// Returns the number of requests whose pages the kernel did not register.
    #[cfg(test)]
    pub(crate) fn unregistered(&self) -> Result<u64> {
        self.call(|reply| Message::Unregistered { reply })
    }

    /// Ends the thread, then closes its ring, which leaves all devices to a successor. In this order: before
    /// Linux 6.15 the kernel may hand a request to a running thread whose ring is closing, and then waits
    /// permanently for the answer.
    pub(crate) fn leave(self) -> Result<()> {
        self.send(Message::Leave)?;
        let ring = self.thread.join().map_err(|_panicked| anyhow!("the ring thread panicked"))?;
        drop(ring);
        Ok(())
    }
}

struct Served {
    queue: Queue,
    file: FileSlot,
    active: Vec<Option<Active>>,
    closing: Option<mpsc::Sender<Result<()>>>,
}

/// A request with parts in flight.
struct Active {
    request: DeviceRequest,
    parts: u32,
    outcome: Result<(), KernelErrno>,
    /// True to sync the file after all parts were moved.
    sync_after: bool,
}

struct RingThread {
    ring: Ring,
    served: Vec<Option<Served>>,
    part_bytes: u32,
    is_leaving: bool,
}

impl RingThread {
    fn new(part_bytes: u32, buffers: u16) -> Result<Self> {
        become_io_flusher()?;
        Ok(Self {
            ring: Ring::new(&RingOptions { buffers, ..RingOptions::default() })?,
            served: Vec::new(),
            part_bytes,
            is_leaving: false,
        })
    }

    fn run(&mut self, inbox: &Mutex<VecDeque<Message>>) -> Result<OwnedFd> {
        let mut completions = Vec::with_capacity(1024);
        loop {
            completions.clear();
            self.commit();
            if self.ring.submit_and_wait(None, &mut completions)? {
                let messages: Vec<Message> = inbox
                    .lock()
                    .map_err(|_poisoned| anyhow!("the main thread panicked"))?
                    .drain(..)
                    .collect();
                for message in messages {
                    self.on_message(message);
                }
            }
            for &completion in &completions {
                let ended = self.ring.end(completion).context("a completion of nothing in flight")?;
                match ended.operation {
                    InFlight::Command(command) => {
                        self.on_command(command, ended.outcome, completion.continues())?;
                    }
                    InFlight::Part { index, tag, expected_bytes } => {
                        self.on_part(index, tag, ended.outcome.exactly(expected_bytes))?;
                    }
                }
            }
            let idle = self.served.iter().flatten().all(|served| served.queue.requests_with_owner() == 0);
            if idle && self.is_leaving {
                self.commit();
                self.ring.submit()?;
                self.served.clear();
                return Ok(self.ring.share()?);
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Serve { index, device, char_device, file, reply } => {
                drop(reply.send(self.serve(index, &device, &char_device, &file)));
            }
            Message::Close { index, reply } => {
                let slot = &mut self.served[usize::from(index)];
                let served = slot.as_mut().expect("a device is closed once");
                served.closing = Some(reply);
                self.close_if_idle(index);
            }
            #[cfg(test)]
            Message::Occupy { buffers, reply } => drop(reply.send(self.occupy(buffers))),
            #[cfg(test)]
            Message::Unregistered { reply } => drop(reply.send(self.ring.unregistered())),
            Message::Leave => {
                self.is_leaving = true;
                for served in self.served.iter_mut().flatten() {
                    served.queue.drain();
                }
            }
        }
    }

    #[cfg(test)]
    #[allow(unsafe_code)] // a system call that the ring has no function for
    fn occupy(&self, buffers: u32) -> Result<()> {
        const REGISTER_BUFFERS_UPDATE: libc::c_uint = 16;
        /// `struct io_uring_rsrc_update2`.
        #[repr(C)]
        struct Update {
            offset: u32,
            reserved: u32,
            vectors: *const libc::iovec,
            tags: u64,
            count: u32,
            reserved_too: u32,
        }
        let memory: &'static mut [u8] = Box::leak(vec![0xee; 4096].into_boxed_slice());
        let vectors: Vec<_> = (0..buffers)
            .map(|_| libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() })
            .collect();
        let update = Update {
            offset: 0,
            reserved: 0,
            vectors: vectors.as_ptr(),
            tags: 0,
            count: buffers,
            reserved_too: 0,
        };
        // SAFETY: the update names `vectors`, which outlives the call, and memory that is never freed.
        let updated = unsafe {
            libc::syscall(
                libc::SYS_io_uring_register,
                self.ring.as_raw_fd(),
                REGISTER_BUFFERS_UPDATE,
                &raw const update,
                size_of::<Update>(),
            )
        };
        anyhow::ensure!(updated == i64::from(buffers), "{}", std::io::Error::last_os_error());
        Ok(())
    }

    fn serve(&mut self, index: u16, device: &Device, char_device: &CharDevice, file: &File) -> Result<()> {
        let spec = QueueSpec { owner: index, queue_id: 0 };
        let mut queue = Queue::open(&mut self.ring, device, char_device, spec)?;
        let file = self.ring.register_file(file.as_fd())?;
        queue.arm(&mut self.ring);
        self.ring.submit()?;
        let active = (0..device.depth()).map(|_| None).collect();
        let at = usize::from(index);
        if self.served.len() <= at {
            self.served.resize_with(at + 1, || None);
        }
        self.served[at] = Some(Served { queue, file, active, closing: None });
        Ok(())
    }

    /// Gives the kernel the answers of queues with batches since the last wait.
    fn commit(&mut self) {
        while let Some(InFlight::Command(command)) = self.ring.next_reminder() {
            if let Some(served) = &mut self.served[usize::from(command.owner)] {
                served.queue.commit(&mut self.ring);
            }
        }
    }

    fn on_command(&mut self, command: QueueCommand<u16>, outcome: IoResult, continues: bool) -> Result<()> {
        let QueueCommand { owner: index, queue_id: _, tag } = command;
        let served = self.served[usize::from(index)].as_mut().context("a completion of a closed device")?;
        if served.queue.has_batches() {
            match served.queue.on_batch_completion(&mut self.ring, tag, outcome, continues) {
                BatchEvent::Fetched(mut tags) => {
                    while let Some(request) = served.queue.next_fetched(&mut self.ring, &mut tags) {
                        start(&mut self.ring, served, index, request, self.part_bytes);
                    }
                }
                BatchEvent::Done | BatchEvent::Aborted => self.close_if_idle(index),
                BatchEvent::Failed { command, errno } => {
                    bail!("device {index}: command {command} failed: {errno}")
                }
            }
            return Ok(());
        }
        match served.queue.on_completion(&mut self.ring, tag, outcome) {
            QueueEvent::Request(request) => start(&mut self.ring, served, index, request, self.part_bytes),
            QueueEvent::Held | QueueEvent::Refused => {}
            QueueEvent::Aborted => self.close_if_idle(index),
            QueueEvent::Failed { tag, errno } => bail!("device {index}: tag {tag} is lost: {errno}"),
        }
        Ok(())
    }

    fn on_part(&mut self, index: u16, tag: u16, moved: Result<(), KernelErrno>) -> Result<()> {
        let served = self.served[usize::from(index)].as_mut().context("a completion of a closed device")?;
        let slot = &mut served.active[usize::from(tag)];
        let active = slot.as_mut().context("a completion of a request that has ended")?;
        active.outcome = active.outcome.and(moved);
        active.parts -= 1;
        if active.parts > 0 {
            return Ok(());
        }
        if active.outcome.is_ok() && std::mem::take(&mut active.sync_after) {
            active.parts = 1;
            self.ring.sync_data(served.file, InFlight::Part { index, tag, expected_bytes: 0 });
        } else if let Some(Active { request, outcome, .. }) = slot.take() {
            served.queue.complete(&mut self.ring, request, outcome);
        }
        Ok(())
    }

    fn close_if_idle(&mut self, index: u16) {
        let slot = &mut self.served[usize::from(index)];
        let idle = slot.as_ref().is_some_and(|served| {
            served.closing.is_some()
                && served.queue.commands_with_kernel() == 0
                && served.queue.requests_with_owner() == 0
        });
        if idle && let Some(Served { queue, file, closing: Some(reply), .. }) = slot.take() {
            let closed = queue.close(&mut self.ring).map_err(anyhow::Error::from);
            let closed = closed.and_then(|()| Ok(self.ring.unregister_file(file)?));
            drop(reply.send(closed));
        }
    }
}

fn start(ring: &mut Ring, served: &mut Served, index: u16, request: DeviceRequest, part_bytes: u32) {
    let tag = request.tag();
    let begin_bytes = request.start_sector() * SECTOR_BYTES;
    let range = FileRange { offset_bytes: begin_bytes, len_bytes: request.len_bytes() };
    let mut parts = 1;
    match request.operation() {
        operation @ (Operation::Read | Operation::Write) => {
            let len = request.len_bytes() as u32;
            parts = len.div_ceil(part_bytes);
            for number in 0..parts {
                let offset = number * part_bytes;
                let len_bytes = part_bytes.min(len - offset);
                let part = RequestPart {
                    request_offset_bytes: offset,
                    len_bytes,
                    file: served.file,
                    file_offset_bytes: begin_bytes + u64::from(offset),
                };
                let in_flight = InFlight::Part { index, tag, expected_bytes: len_bytes };
                if operation == Operation::Read {
                    served.queue.read_part(ring, &request, &part, in_flight);
                } else {
                    served.queue.write_part(ring, &request, &part, in_flight);
                }
            }
        }
        Operation::Flush => ring.sync_data(served.file, InFlight::Part { index, tag, expected_bytes: 0 }),
        Operation::Discard | Operation::WriteZeroes => {
            ring.punch_hole(served.file, range, InFlight::Part { index, tag, expected_bytes: 0 });
        }
    }
    let sync_after = request.is_fua();
    served.active[usize::from(tag)] = Some(Active { request, parts, outcome: Ok(()), sync_after });
}
