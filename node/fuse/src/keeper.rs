//! The keeper: a process that holds connections while no daemon lives, so that the kernel keeps them.
//!
//! A connection of FUSE ends when its last file is closed. The daemon gives the keeper each file before its
//! device is bound, and takes them from it at its start. It speaks over a socket in the run directory:
//!
//! ```text
//! request   +---------+-----------+----------------+      answer  +--------+
//!           | version | operation | tag, 8 bytes   |              | status | and the answer
//!           +---------+-----------+----------------+              +--------+
//! ```
//!
//! | operation | gives |
//! |---|---|
//! | `K` keeps the file that comes with the first byte | - |
//! | `T` takes a file; the keeper keeps it too | the file, with the status |
//! | `D` drops a file | - |
//! | `L` lists the tags | their number (4 bytes), then each (8 bytes) |
//! | `W` watches the keeper: the end of the connection says that it has ended or was replaced | the status `e`, at once or later, once it was told to end |
//! | `H` hands the place over to the asking keeper | the number of files (4 bytes), with the lock; a byte, with the socket; each tag (8 bytes), with its file |
//!
//! A question or version that the keeper does not know has a status of its own. A keeper answers each version
//! from 1 to its own as that version says, and one that asks takes the keeper's own where that is lower. So
//! these ten bytes, and what is above for version 1, never change: with it a keeper hands over to one of any
//! other release. A place is handed over in
//! this order; no question is answered meanwhile, and none is lost: the socket is the same one.
//!
//! ```text
//! 1  successor: asks          3  successor: has all, and says so
//! 2  keeper: sends all        4  keeper: says so too, closes all, ends or stands by
//! ```
//!
//! A break before 3 leaves all as it was. After it the successor waits for 4, for a word that the keeper
//! serves on, or for its end; what it was sent it closes only while another keeper serves.
//!
//! *Owns*: the files, by tag. It knows nothing of what they are.
//! *Invariants*: a run directory has one keeper that serves, which holds a lock there; a question that failed
//! is an error, never the answer that nothing is kept; a process that has the only use of a file does not end
//! by itself.
//! *Runs on*: a process of its own; a thread for each connection, and none of a runtime. Only processes of
//! its own user are answered. One that a daemon started has a session of its own, ends when it holds nothing,
//! and when its place was taken. One in the foreground ends when it was told to, once it holds nothing; it
//! stands by while another one serves, and takes the place again where that one ends or is told to.
//! *On failure*: a daemon that lives notes the end of the keeper, and gives the next one all files. If both
//! end, the connections end: requests to the devices fail, and flushed data is on the disk.
#![allow(unsafe_code)] // setsid(2)

mod message;
mod place;
mod run;
mod serve;

use std::io::{self, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::message::{
    ABSENT, DONE, DROP, ENDING, KEEP, LIST, OTHER_VERSION, SpokenVersions, TAKE, UNKNOWN, WATCH, receive,
    request, send,
};
pub use self::run::{run, run_for_daemon};

/// The name of its socket in the run directory.
pub const KEEPER_SOCKET: &str = "keeper.sock";
/// The longest wait for a keeper that was started.
const START_WITHIN: Duration = Duration::from_secs(5);
/// The longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The most times that a question is asked whose answer was cut off, as by a keeper that ends.
const TRIES: u32 = 20;
/// Time between two tries to ask, to start, or to accept.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A status, the file that came with it, and the stream for more.
type KeeperAnswer = (u8, Option<OwnedFd>, UnixStream);

/// The daemon's side: finds the keeper at a socket, or starts it.
#[derive(Debug)]
pub struct Keeper {
    socket: PathBuf,
    versions: SpokenVersions,
}

impl Keeper {
    /// The keeper of a run directory.
    #[must_use]
    pub fn of(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(KEEPER_SOCKET), versions: SpokenVersions::default() }
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives it a file, in place of the one that it has with this tag.
    ///
    /// # Errors
    /// It is not reached ([`is_absent`]: there is none), or could not keep it.
    pub fn keep(&self, tag: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(KEEP, tag, Some(file)).and_then(done)
    }

    /// The same; where there is none, one is started: `program` becomes [`run_for_daemon`]. Returns whether
    /// it was.
    ///
    /// # Errors
    /// Those of the start, or that it does not answer.
    pub fn keep_or_start(
        &self,
        tag: u64,
        file: BorrowedFd<'_>,
        program: impl FnOnce() -> Command,
    ) -> io::Result<bool> {
        match self.keep(tag, file) {
            Err(error) if is_absent(&error) => {}
            kept => return kept.map(|()| false),
        }
        Self::start(program())?;
        let begun = Instant::now();
        loop {
            match self.keep(tag, file) {
                Err(error) if is_absent(&error) && begun.elapsed() < START_WITHIN => {
                    thread::sleep(AGAIN_AFTER);
                }
                kept => return kept.map(|()| true),
            }
        }
    }

    /// Starts a keeper, which takes the place of the one that serves: `program` becomes [`run_for_daemon`].
    ///
    /// # Errors
    /// Those of the start.
    pub fn start(mut program: Command) -> io::Result<()> {
        program.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let session = || {
            // SAFETY: it fails only for the leader of a group, which a new process is not.
            if unsafe { libc::setsid() } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
        };
        // SAFETY: setsid(2) may be called between fork and exec.
        note_end(unsafe { program.pre_exec(session) }.spawn()?);
        Ok(())
    }

    fn connect(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(ANSWER_WITHIN))?;
        stream.set_write_timeout(Some(ANSWER_WITHIN))?;
        Ok(stream)
    }

    /// Asks again where the answer was cut off: a keeper that was just ending is absent by then, and one that
    /// was just replaced has a successor at the same socket.
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

    /// Asks in the newest version that both sides speak.
    fn ask_once(&self, operation: u8, tag: u64, file: Option<BorrowedFd<'_>>) -> io::Result<KeeperAnswer> {
        let mut version = self.versions.newest;
        loop {
            let mut stream = self.connect()?;
            send(&stream, &request(version, operation, tag), file)?;
            let mut status = [0];
            let (len, file) = receive(&stream, &mut status)?;
            match (len, status[0]) {
                (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (_, UNKNOWN) => {
                    return Err(io::Error::other(
                        "the keeper of FUSE connections does not know this question; replace it by one of this version",
                    ));
                }
                (_, OTHER_VERSION) => {
                    stream.read_exact(&mut status)?;
                    let [keepers] = status;
                    version = SpokenVersions::fall_back(version, keepers).ok_or_else(|| {
                        io::Error::other(format!(
                            "the keeper of FUSE connections speaks version {keepers} of its protocol, and not {version}; \
                             replace it by one of this version"
                        ))
                    })?;
                }
                (_, status) => return Ok((status, file, stream)),
            }
        }
    }

    /// A further use of a file that it has; `None` where it has none, or there is no keeper.
    ///
    /// # Errors
    /// It is not reached though its socket is there, or it has the file and could not give it.
    pub fn take(&self, tag: u64) -> io::Result<Option<OwnedFd>> {
        match self.ask(TAKE, tag, None) {
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
        match self.ask(DROP, tag, None) {
            Err(error) if is_absent(&error) => Ok(()),
            asked => asked.and_then(done),
        }
    }

    /// The tags of its files; none where there is no keeper.
    ///
    /// # Errors
    /// It is not reached though its socket is there.
    pub fn list(&self) -> io::Result<Vec<u64>> {
        let mut stream = match self.ask(LIST, 0, None) {
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

    /// Watches the keeper that serves now.
    ///
    /// # Errors
    /// It is not reached ([`is_absent`]: there is none).
    pub fn watch(&self) -> io::Result<KeeperWatch> {
        let (status, _, stream) = self.ask(WATCH, 0, None)?;
        let is_ending = match status {
            DONE => false,
            ENDING => true,
            _ => return Err(failed()),
        };
        Ok(KeeperWatch { stream, is_ending })
    }
}

/// A look at one keeper, as long as that serves.
#[derive(Debug)]
pub struct KeeperWatch {
    stream: UnixStream,
    is_ending: bool,
}

/// Events of a keeper that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// It was told to end: it serves until it is killed, or until another one takes its place.
    Ending,
    /// It has ended, or another one has taken its place.
    Gone,
}

impl KeeperWatch {
    /// True once it was told to end.
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Waits for its next event.
    pub fn await_event(&mut self) -> KeeperEvent {
        // An error is an end too.
        if self.stream.set_read_timeout(None).is_err() {
            return KeeperEvent::Gone;
        }
        let mut event = [0];
        match self.stream.read_exact(&mut event) {
            Ok(()) if event[0] == ENDING => {
                self.is_ending = true;
                KeeperEvent::Ending
            }
            Ok(()) | Err(_) => KeeperEvent::Gone,
        }
    }

    /// True if it is gone, or will be `within`.
    pub fn ends(&mut self, within: Duration) -> bool {
        let begun = Instant::now();
        loop {
            let left = within.saturating_sub(begun.elapsed()).max(Duration::from_millis(1));
            if self.stream.set_read_timeout(Some(left)).is_err() {
                return true;
            }
            match self.stream.read(&mut [0]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(_) => return true,
            }
            if begun.elapsed() >= within {
                return false;
            }
        }
    }
}

/// Notes the end of a process, whenever that is.
pub(crate) fn note_end(mut child: Child) {
    thread::spawn(move || drop(child.wait()));
}

fn done((status, ..): KeeperAnswer) -> io::Result<()> {
    if status == DONE { Ok(()) } else { Err(failed()) }
}

fn failed() -> io::Error {
    io::Error::other("the keeper of FUSE connections could not do it; look at its limit of open files")
}

/// True where there is no keeper: nothing listens at its socket.
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// True where a keeper was there and gave no answer: it may hold any files.
fn is_cut_off(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests;
