//! The processes: a parent, in the role of the machine's service manager, restarts keeper and server whenever
//! one of them exits.
#![allow(unsafe_code)] // inherited files

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::classic;
use crate::connection::{connect, open_disk};
use crate::memory::SharedMemory;
use crate::ring::{Ring, Submitter};
use crate::server::{FILES, RingServer};

/// Directory with the process ids, and a link to the memory.
const RUN_DIR: &str = "/run/uring";

/// Ways to receive and answer requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// With `read(2)` and `writev(2)`.
    Classic,
    /// Over a ring.
    Uring { submitter: Submitter, zero_copy: bool },
}

impl Way {
    pub(crate) fn of(name: &str) -> Option<Self> {
        if name == "classic" {
            return Some(Self::Classic);
        }
        let (submitter, copy) = name.split_once('-')?;
        let submitter = match submitter {
            "own" => Submitter::Writer,
            "kernel" => Submitter::Kernel,
            "keeper" => Submitter::Keeper,
            _ => return None,
        };
        matches!(copy, "copy" | "zero").then(|| Self::Uring { submitter, zero_copy: copy == "zero" })
    }
}

/// Files that keepers and servers inherit.
struct Inherited {
    connection: File,
    memory: File,
    wake: File,
    ring: OwnedFd,
}

impl Inherited {
    fn numbers(&self) -> io::Result<[String; 4]> {
        let Self { connection, memory, wake, ring } = self;
        let files = [connection.as_fd(), memory.as_fd(), wake.as_fd(), ring.as_fd()];
        for file in files {
            // SAFETY: the call takes integers.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(files.map(|file: BorrowedFd<'_>| file.as_raw_fd().to_string()))
    }

    fn of(numbers: [&str; 4]) -> io::Result<Self> {
        let mut files = Vec::new();
        for number in numbers {
            let number = number.parse().map_err(io::Error::other)?;
            // SAFETY: this process inherited the file from its parent, and nothing else owns it.
            files.push(unsafe { OwnedFd::from_raw_fd(number) });
        }
        let [connection, memory, wake, ring] = <[OwnedFd; 4]>::try_from(files)
            .map_err(|files| io::Error::other(format!("{} files", files.len())))?;
        Ok(Self { connection: connection.into(), memory: memory.into(), wake: wake.into(), ring })
    }

    /// Makes a server on the inherited ring, to which `submitter` submits.
    fn server(
        self,
        disk: &str,
        submitter: Submitter,
        zero_copy: bool,
    ) -> io::Result<(RingServer, File, File)> {
        let (disk, file) = open_disk(disk)?;
        let memory = SharedMemory::open(&self.memory)?;
        let ring = Ring::map(self.ring, memory.params(), submitter, self.wake)?;
        Ok((RingServer::new(ring, memory, file, zero_copy), disk, self.connection))
    }
}

/// Mounts the file system and keeps its processes running.
pub(crate) fn run(name: &str, way: Way, disk: &str, directory: &str) -> io::Result<()> {
    fs::create_dir_all(RUN_DIR)?;
    let (_, file) = open_disk(disk)?;
    let connection = connect(&file, directory, way != Way::Classic)?;
    // SAFETY: the call takes an integer.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let (memory, shared) = SharedMemory::create(usize::try_from(processors).map_err(io::Error::other)?)?;
    let wake = eventfd()?;
    let submitter = if let Way::Uring { submitter, .. } = way { submitter } else { Submitter::Writer };
    let ring = Ring::new(memory.entries(), submitter, wake.try_clone()?)?;
    ring.make_tables(FILES, memory.entries())?;
    memory.set_params(ring.params());
    let inherited = Inherited { connection, memory: shared, wake, ring: ring.file()? };
    let numbers = inherited.numbers()?;
    let start = |part: &str| -> io::Result<Child> {
        let child = Command::new(std::env::current_exe()?).args([part, name, disk]).args(&numbers).spawn()?;
        fs::write(format!("{RUN_DIR}/{part}"), child.id().to_string())?;
        Ok(child)
    };
    let mut keeper = None;
    if let Way::Uring { submitter, zero_copy } = way {
        match submitter {
            Submitter::Keeper => {
                keeper = Some(start("keeper")?);
                while memory.head().ready.load(Ordering::SeqCst) == 0 {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Submitter::Kernel => {
                let server = RingServer::new(ring, memory, file, zero_copy);
                server.introduce(&inherited.connection)?;
            }
            Submitter::Writer => (),
        }
    }
    let mut server = start("server")?;
    loop {
        let ended = wait()?;
        if ended == server.id() {
            server = start("server")?;
        } else if keeper.as_ref().is_some_and(|keeper| keeper.id() == ended) {
            keeper = Some(start("keeper")?);
        }
    }
}

/// Submits for servers until the process is killed. The first keeper gives the entries to the kernel.
pub(crate) fn keep(way: Way, disk: &str, numbers: [&str; 4]) -> io::Result<()> {
    let Way::Uring { zero_copy, .. } = way else { return Err(io::Error::other("this way has no keeper")) };
    let (server, _, connection) = Inherited::of(numbers)?.server(disk, Submitter::Writer, zero_copy)?;
    let _cancelled = cancelled_at_end()?;
    let ready = &server.memory.head().ready;
    if ready.load(Ordering::SeqCst) == 0 {
        server.introduce(&connection)?;
        ready.store(1, Ordering::SeqCst);
    }
    server.ring.submit_for_servers()
}

/// Makes the kernel cancel the commands of this thread at the begin of its exit, while the thread can still
/// run their task work. The kernel does so for a thread with a request in flight on a file of io_uring; here
/// that is a poll that never ends. Without it the kernel leaves the commands alone, and each request that
/// reaches one of them fails.
fn cancelled_at_end() -> io::Result<io_uring::IoUring> {
    let mut ring = io_uring::IoUring::new(1)?;
    let own = io_uring::types::Fd(ring.as_raw_fd());
    let poll = io_uring::opcode::PollAdd::new(own, libc::POLLPRI as u32).build();
    // SAFETY: the entry names no memory.
    unsafe { ring.submission().push(&poll) }.map_err(io::Error::other)?;
    ring.submit()?;
    Ok(ring)
}

/// Serves until the process is killed.
pub(crate) fn serve(way: Way, disk: &str, numbers: [&str; 4]) -> io::Result<()> {
    let inherited = Inherited::of(numbers)?;
    match way {
        Way::Classic => {
            let (disk, file) = open_disk(disk)?;
            classic::serve(inherited.connection, &disk, &file)
        }
        Way::Uring { submitter, zero_copy } => {
            let (mut server, disk, connection) = inherited.server(disk, submitter, zero_copy)?;
            if submitter == Submitter::Writer {
                // Makes the ring here: the kernel binds it to the task that first uses it.
                server.ring = Ring::new(server.memory.entries(), submitter, eventfd()?)?;
                server.ring.make_tables(FILES, server.memory.entries())?;
                server.introduce(&connection)?;
            }
            server.serve(&disk, &connection)
        }
    }
}

/// Waits for a child to exit and returns its process id.
fn wait() -> io::Result<u32> {
    // SAFETY: the call writes no status.
    let ended = unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) };
    if ended < 0 { Err(io::Error::last_os_error()) } else { Ok(ended.unsigned_abs()) }
}

fn eventfd() -> io::Result<File> {
    // SAFETY: the call takes integers.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a file descriptor that was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(raw) })
}
