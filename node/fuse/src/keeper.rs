//! The keeper: a process that holds connections while no daemon lives, so that the kernel keeps them.
//!
//! A connection of FUSE ends when its last file is closed. The daemon gives the keeper each file before its
//! device is bound, and takes them from it at its start. It speaks over a socket in the run directory:
//!
//! ```text
//! request   +-----------+----------------+      answer  +--------+
//!           | operation | tag, 8 bytes   |              | status | and the answer
//!           +-----------+----------------+              +--------+
//! ```
//!
//! | operation | gives |
//! |---|---|
//! | `K` keeps the file that comes with the first byte | - |
//! | `T` takes a file; the keeper keeps it too | the file, with the status |
//! | `D` drops a file | - |
//! | `L` lists the tags | their number (4 bytes), then each (8 bytes) |
//! | `W` holds the connection: its end says that the keeper has ended | nothing more |
//!
//! *Owns*: the files, by tag. It knows nothing of what they are.
//! *Invariants*: a run directory has one keeper, which holds a lock there; a question that failed is an
//! error, never the answer that nothing is kept.
//! *Runs on*: a process of its own, in a session of its own; a thread for each connection, and none of a
//! runtime. Only processes of its own user are answered.
//! *On failure*: a daemon that lives notes the end of the keeper, starts another and gives it all files. If
//! both end, the connections end: requests to the devices fail, and flushed data is on the disk.
#![allow(unsafe_code)] // SCM_RIGHTS, SO_PEERCRED, setsid(2), prctl(2)

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// The name of its socket in the run directory.
pub const KEEPER_SOCKET: &str = "keeper.sock";
/// The file that the keeper holds locked, in the directory of its socket.
const KEEPER_LOCK: &str = "keeper.lock";
/// Name that the process has, in place of its program's.
const PROCESS_NAME: &std::ffi::CStr = c"holdfast-keeper";
/// The longest wait for a keeper that was started.
const START_WITHIN: Duration = Duration::from_secs(5);
/// The longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The most times that a question is asked whose answer was cut off, as by a keeper that ends.
const TRIES: u32 = 5;
/// Time between two tries to ask, to start, or to accept.
const AGAIN_AFTER: Duration = Duration::from_millis(5);
const REQUEST_BYTES: usize = 9;
const DONE: u8 = b'y';
const ABSENT: u8 = b'n';
const FAILED: u8 = b'f';

/// A status, the file that came with it, and the stream for more.
type KeeperAnswer = (u8, Option<OwnedFd>, UnixStream);

/// The daemon's side: finds the keeper at a socket, or starts it.
#[derive(Debug)]
pub struct Keeper {
    socket: PathBuf,
}

impl Keeper {
    /// The keeper of a run directory.
    #[must_use]
    pub fn of(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(KEEPER_SOCKET) }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives it a file, in place of the one that it has with this tag. Where none answers, one is started:
    /// `program` becomes [`run`], and is returned with its answer.
    ///
    /// # Errors
    /// Those of the start, or that it does not answer.
    pub fn keep(
        &self,
        tag: u64,
        file: BorrowedFd<'_>,
        program: impl FnOnce() -> Command,
    ) -> io::Result<Option<Child>> {
        let asked = self.ask(b'K', tag, Some(file));
        if !asked.as_ref().is_err_and(is_absent) {
            return asked.and_then(kept).map(|()| None);
        }
        let mut program = program();
        program.arg(&self.socket).current_dir("/");
        program.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let session = || {
            // SAFETY: it fails only for the leader of a group, which a new process is not.
            if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: setsid(2) may be called between fork and exec.
        let started = unsafe { program.pre_exec(session) }.spawn()?;
        let begun = Instant::now();
        loop {
            match self.ask(b'K', tag, Some(file)) {
                Err(error) if is_absent(&error) && begun.elapsed() < START_WITHIN => {
                    thread::sleep(AGAIN_AFTER);
                }
                asked => {
                    return match asked.and_then(kept) {
                        Ok(()) => Ok(Some(started)),
                        Err(error) => {
                            note_end(started);
                            Err(error)
                        }
                    };
                }
            }
        }
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(stream)
    }

    /// Asks again where the answer was cut off: a keeper that was just ending is absent by then.
    fn ask(&self, operation: u8, tag: u64, file: Option<BorrowedFd<'_>>) -> io::Result<KeeperAnswer> {
        let mut tries = 1;
        loop {
            match self.ask_once(operation, tag, file) {
                Err(error) if is_cut_off(&error) && tries < TRIES => {
                    tries += 1;
                    thread::sleep(AGAIN_AFTER);
                }
                asked => return asked,
            }
        }
    }

    fn ask_once(&self, operation: u8, tag: u64, file: Option<BorrowedFd<'_>>) -> io::Result<KeeperAnswer> {
        let stream = self.connect()?;
        let mut request = [operation; REQUEST_BYTES];
        request[1..].copy_from_slice(&tag.to_ne_bytes());
        send(&stream, &request, file)?;
        let mut status = [0];
        match receive(&stream, &mut status)? {
            (0, _) => Err(io::ErrorKind::UnexpectedEof.into()),
            (_, file) => Ok((status[0], file, stream)),
        }
    }

    /// A further use of a file that it has; `None` where it has none, or there is no keeper.
    ///
    /// # Errors
    /// It is not reached though its socket is there, or it has the file and could not give it.
    pub fn take(&self, tag: u64) -> io::Result<Option<OwnedFd>> {
        match self.ask(b'T', tag, None) {
            Ok((DONE, Some(file), _)) => Ok(Some(file)),
            Ok((ABSENT, None, _)) => Ok(None),
            Ok(_) => Err(failed()),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has it close a file.
    ///
    /// # Errors
    /// It is not reached though its socket is there.
    pub fn drop(&self, tag: u64) -> io::Result<()> {
        match self.ask(b'D', tag, None) {
            Ok(answer) => kept(answer),
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The tags of its files; none where there is no keeper.
    ///
    /// # Errors
    /// It is not reached though its socket is there.
    pub fn list(&self) -> io::Result<Vec<u64>> {
        let mut stream = match self.ask(b'L', 0, None) {
            Ok((DONE, _, stream)) => stream,
            Ok(_) => return Err(failed()),
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut number = [0; 4];
        stream.read_exact(&mut number)?;
        let tag = |_| {
            let mut tag = [0; 8];
            stream.read_exact(&mut tag).map(|()| u64::from_ne_bytes(tag))
        };
        (0..u32::from_ne_bytes(number)).map(tag).collect()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// It is not reached.
    pub fn await_end(&self) -> io::Result<()> {
        let (_, _, mut stream) = self.ask(b'W', 0, None)?;
        stream.set_read_timeout(None)?;
        // It sends nothing more.
        drop(stream.read(&mut [0]));
        Ok(())
    }
}

/// Notes the end of a process, whenever that is.
pub(crate) fn note_end(mut child: Child) {
    thread::spawn(move || drop(child.wait()));
}

fn kept((status, ..): KeeperAnswer) -> io::Result<()> {
    if status == DONE { Ok(()) } else { Err(failed()) }
}

fn failed() -> io::Error {
    io::Error::other("the keeper of FUSE connections could not do it; look at its limit of open files")
}

/// True where there is no keeper: nothing listens at its socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// True where a keeper was there and gave no answer: it may hold any files.
fn is_cut_off(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

/// The files, and the connections that are served.
#[derive(Debug, Default)]
struct KeptFiles {
    files: BTreeMap<u64, OwnedFd>,
    connections: usize,
}

type SharedFds = Arc<Mutex<KeptFiles>>;

fn lock(kept: &SharedFds) -> MutexGuard<'_, KeptFiles> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Becomes the keeper: serves the socket until no file is kept and no process is connected.
///
/// # Errors
/// Another keeper has the run directory; the socket cannot be made.
pub fn run(socket: &Path) -> io::Result<()> {
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, PROCESS_NAME.as_ptr()) };
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // A stop of the daemon's service sends these to its whole group.
        // SAFETY: the disposition is one of the kernel's own, no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    let (_lock, listener) = listen(socket, START_WITHIN)?;
    serve(&listener)
}

/// Takes the place of the keeper: its lock, which one that ends may still have for at most `within`, then its
/// socket.
fn listen(socket: &Path, within: Duration) -> io::Result<(fs::File, UnixListener)> {
    let path = socket.with_file_name(KEEPER_LOCK);
    let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    let begun = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(fs::TryLockError::WouldBlock) if begun.elapsed() < within => thread::sleep(AGAIN_AFTER),
            Err(error) => return Err(error.into()),
        }
    }
    // That of a keeper which has ended: one that lives has the lock.
    drop(fs::remove_file(socket));
    Ok((lock, UnixListener::bind(socket)?))
}

/// Serves without an end: what fails, as where file descriptors or threads run out, is tried again.
fn serve(listener: &UnixListener) -> ! {
    let kept = SharedFds::default();
    loop {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(AGAIN_AFTER);
            continue;
        };
        if !is_own(&stream) {
            continue;
        }
        lock(&kept).connections += 1;
        let shared = Arc::clone(&kept);
        let answering = thread::Builder::new().stack_size(128 << 10).spawn(move || {
            let mut is_counted = true;
            if answer(&stream, &shared, &mut is_counted).is_err() {
                // A connection that breaks ends, and no other one.
                drop((&stream).write_all(&[FAILED]));
            }
            if is_counted {
                leave(&shared);
            }
        });
        if answering.is_err() {
            // The other end finds its connection closed, and asks again.
            leave(&kept);
            thread::sleep(AGAIN_AFTER);
        }
    }
}

/// A connection needs the keeper no more: with the last one it ends, unless it keeps files.
fn leave(kept: &SharedFds) {
    let mut kept = lock(kept);
    kept.connections -= 1;
    if kept.connections == 0 && kept.files.is_empty() {
        std::process::exit(0);
    }
}

fn answer(mut stream: &UnixStream, kept: &SharedFds, is_counted: &mut bool) -> io::Result<()> {
    loop {
        let mut request = [0; REQUEST_BYTES];
        let (len, file) = receive(stream, &mut request)?;
        if len == 0 {
            return Ok(());
        }
        stream.read_exact(&mut request[len..])?;
        let [operation, tag @ ..] = request;
        let tag = u64::from_ne_bytes(tag);
        match (operation, file) {
            (b'K', Some(file)) => {
                lock(kept).files.insert(tag, file);
                stream.write_all(&[DONE])?;
            }
            (b'T', _) => {
                let file = lock(kept).files.get(&tag).map(OwnedFd::try_clone).transpose()?;
                let status = if file.is_some() { DONE } else { ABSENT };
                send(stream, &[status], file.as_ref().map(AsFd::as_fd))?;
            }
            (b'D', _) => {
                let dropped = lock(kept).files.remove(&tag);
                drop(dropped);
                stream.write_all(&[DONE])?;
            }
            (b'L', _) => {
                let tags: Vec<u64> = lock(kept).files.keys().copied().collect();
                let number = u32::try_from(tags.len()).map_err(io::Error::other)?;
                let mut answer = vec![DONE];
                answer.extend(number.to_ne_bytes());
                answer.extend(tags.into_iter().flat_map(u64::to_ne_bytes));
                stream.write_all(&answer)?;
            }
            (b'W', _) => {
                stream.write_all(&[DONE])?;
                // One that waits for the end of the keeper does not keep it from ending.
                if std::mem::take(is_counted) {
                    leave(kept);
                }
            }
            (_, _) => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// True if the process at the other end has the user of this one.
fn is_own(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the pointers name a structure and its length, which outlive the call.
    let got =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut len) };
    // SAFETY: it only reads.
    let own = unsafe { libc::geteuid() };
    got == 0 && peer.uid == own
}

/// Room for the head of a control message and one file, aligned for it.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Sends bytes, with a file at the first.
fn send(stream: &UnixStream, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut room = Ancillary([0; 64]);
    // SAFETY: zeros are a valid message: no name, no parts, no control message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    if let Some(file) = file {
        let len = size_of::<libc::c_int>() as libc::c_uint;
        message.msg_control = (&raw mut room).cast();
        // SAFETY: it only computes.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(len) } as _;
        // SAFETY: the message has room for a head.
        let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: it only computes.
        let head_len = unsafe { libc::CMSG_LEN(len) } as _;
        let filled =
            libc::cmsghdr { cmsg_len: head_len, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
        // SAFETY: the head lies in `room`, aligned.
        unsafe { head.write(filled) };
        // SAFETY: the head lies in `room`, with its data behind it.
        let data = unsafe { libc::CMSG_DATA(head) };
        // SAFETY: the data has room for one number; it need not be aligned.
        unsafe { data.cast::<libc::c_int>().write_unaligned(file.as_raw_fd()) };
    }
    // SAFETY: all that the message names outlives the call.
    let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(sent) => (&*stream).write_all(&bytes[sent..]),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives bytes, at least one unless the other end has closed the stream, and the file that comes with
/// them.
fn receive(stream: &UnixStream, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut room = Ancillary([0; 64]);
    // SAFETY: as in `send`.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut room).cast(), size_of::<Ancillary>() as _);
    // SAFETY: all that the message names outlives the call.
    let received = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_negative| io::Error::last_os_error())?;
    // SAFETY: the message has what the kernel filled in.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if head.is_null() {
        return Ok((received, None));
    }
    // SAFETY: it is not null, so it points at a head in `room`.
    let filled = unsafe { head.read() };
    if (filled.cmsg_level, filled.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
        return Ok((received, None));
    }
    // SAFETY: a head with SCM_RIGHTS has at least one number behind it.
    let data = unsafe { libc::CMSG_DATA(head) };
    // SAFETY: as above; it need not be aligned.
    let raw = unsafe { data.cast::<libc::c_int>().read_unaligned() };
    // SAFETY: the kernel has just made this file descriptor for this process.
    Ok((received, Some(unsafe { OwnedFd::from_raw_fd(raw) })))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn started(dir: &Path) -> Keeper {
        let keeper = Keeper::of(dir);
        let listener = UnixListener::bind(keeper.socket()).unwrap();
        thread::spawn(move || serve(&listener));
        keeper
    }

    fn inode(file: &OwnedFd) -> u64 {
        fs::File::from(file.try_clone().unwrap()).metadata().unwrap().ino()
    }

    #[test]
    fn a_file_is_kept_taken_and_dropped_by_its_tag() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = started(dir.path());
        // Without it the keeper would end with the process of this test.
        let held: OwnedFd = tempfile::tempfile().unwrap().into();
        let started = || panic!("one answers");
        assert!(keeper.keep(1, held.as_fd(), started).unwrap().is_none());
        let files: Vec<OwnedFd> = (0..3).map(|_| tempfile::tempfile().unwrap().into()).collect();
        for (tag, file) in (10..).zip(&files) {
            keeper.keep(tag, file.as_fd(), started).unwrap();
        }
        assert_eq!(keeper.list().unwrap(), [1, 10, 11, 12]);
        for (tag, file) in (10..).zip(&files) {
            assert_eq!(inode(&keeper.take(tag).unwrap().unwrap()), inode(file));
            assert_eq!(inode(&keeper.take(tag).unwrap().unwrap()), inode(file), "it keeps what it gives");
        }
        keeper.drop(11).unwrap();
        assert!(keeper.take(11).unwrap().is_none());
        assert_eq!(keeper.list().unwrap(), [1, 10, 12]);
    }

    /// Two attaches at once had started two keepers: the second one took the first one's socket away.
    #[test]
    fn a_run_directory_has_one_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::of(dir.path());
        let (lock, listener) = listen(keeper.socket(), Duration::ZERO).unwrap();
        thread::spawn(move || serve(&listener));
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        keeper.keep(1, file.as_fd(), || panic!("one answers")).unwrap();
        let second = listen(keeper.socket(), Duration::from_millis(20));
        assert_eq!(second.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(keeper.list().unwrap(), [1], "the first one is reached");
        drop(lock);
        listen(keeper.socket(), Duration::ZERO).unwrap();
    }

    /// An answer that was cut off had counted as "nothing is kept": mounted devices were cleared.
    #[test]
    fn a_failed_question_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::of(dir.path());
        let listener = UnixListener::bind(keeper.socket()).unwrap();
        thread::spawn(move || while listener.accept().is_ok() {});
        assert!(keeper.list().is_err() && keeper.take(1).is_err() && keeper.drop(1).is_err());
    }

    #[test]
    fn an_answer_without_its_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::of(dir.path());
        let listener = UnixListener::bind(keeper.socket()).unwrap();
        thread::spawn(move || {
            for status in [FAILED, DONE] {
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
                stream.write_all(&[status]).unwrap();
            }
        });
        assert!(keeper.take(1).is_err(), "the keeper could not give it");
        assert!(keeper.take(1).is_err(), "it did not arrive");
    }

    #[test]
    fn a_question_that_fails_has_a_status() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = started(dir.path());
        // Without it the keeper would end with the process of this test.
        let held: OwnedFd = tempfile::tempfile().unwrap().into();
        keeper.keep(1, held.as_fd(), || panic!("one answers")).unwrap();
        let (status, ..) = keeper.ask(b'K', 1, None).unwrap();
        assert_eq!(status, FAILED);
    }

    #[test]
    fn without_a_keeper_nothing_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::of(dir.path());
        assert!(keeper.take(1).unwrap().is_none() && keeper.list().unwrap().is_empty());
        keeper.drop(1).unwrap();
    }
}
