//! The keeper: a process that keeps connections open while no daemon runs.
//!
//! A FUSE connection ends when its last file is closed. The daemon gives the keeper each file before it binds
//! the device, and takes the files from it when starting. They use a socket in the run directory:
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
//! | `W` watches the keeper: the connection ends when the keeper exits or is replaced | the status `e`, at once or later, when it gets a signal to exit |
//! | `H` hands over to the asking keeper | the number of files (4 bytes), with the lock; a byte, with the socket; each tag (8 bytes), with its file |
//!
//! An unknown operation or version has its own status. A keeper answers every version from 1 to its own in
//! that version, and a client uses the keeper's version if that is lower. So these ten bytes and the table
//! above (version 1) never change, and a keeper can hand over to a keeper of any other release. The hand-over
//! follows these steps; until it ends the keeper answers no request, but none is lost, because the socket
//! stays the same.
//!
//! ```text
//! 1  successor: asks          3  successor: confirms that it has all
//! 2  keeper: sends all        4  keeper: confirms, closes all, exits or stands by
//! ```
//!
//! A failure before 3 changes nothing. After 3 the successor waits for 4, for the keeper's message that it
//! continues to serve, or for the keeper's exit; it closes the received files only while another keeper
//! serves.
//!
//! *Owns*: the files, by tag, without knowledge of their meaning.
//! *Invariants*: one keeper serves a run directory and holds a lock there; a failed request is an error,
//! never an empty answer; a process with the only reference to a file does not exit by itself.
//! *Runs on*: its own process, with a thread per connection and no async runtime. It answers only processes
//! of its own user. A keeper started by a daemon has its own session, and exits when it holds nothing or
//! after handing over. A keeper in the foreground exits after a signal, once it holds nothing. It stands by
//! while another keeper serves, and takes over again when that keeper exits or gets a signal.
//! *On failure*: a running daemon notices the exit of the keeper, and gives the next one all files. If both
//! exit, the connections end: requests to the devices fail, and flushed data is on the disk.
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

/// Name of the keeper's socket in the run directory.
pub const KEEPER_SOCKET: &str = "keeper.sock";
/// Maximum wait for a keeper to start.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Maximum wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Maximum number of attempts for a request whose answer was cut off, for example by the exit of the keeper.
const TRIES: u32 = 20;
/// Delay between two attempts to send a request, to start a keeper, or to accept a connection.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A status, the file that came with it, and the stream for further data.
type KeeperAnswer = (u8, Option<OwnedFd>, UnixStream);

/// The daemon's client: finds the keeper at a socket, or starts it.
#[derive(Debug)]
pub struct Keeper {
    socket: PathBuf,
    versions: SpokenVersions,
}

impl Keeper {
    /// Creates a client of the keeper of a run directory.
    #[must_use]
    pub fn of(run_dir: &Path) -> Self {
        Self { socket: run_dir.join(KEEPER_SOCKET), versions: SpokenVersions::default() }
    }

    /// Returns the path of its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Gives the keeper a file, which replaces one with the same tag.
    ///
    /// # Errors
    /// The keeper is unreachable ([`is_absent`]: none exists), or could not keep the file.
    pub fn keep(&self, tag: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(KEEP, tag, Some(file)).and_then(done)
    }

    /// Like [`keep`](Self::keep), but starts a keeper if none exists: `program` becomes [`run_for_daemon`].
    /// Returns true if it started one.
    ///
    /// # Errors
    /// The keeper cannot be started, or does not answer.
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

    /// Starts a keeper, which takes over from the serving one: `program` becomes [`run_for_daemon`].
    ///
    /// # Errors
    /// The keeper cannot be started.
    pub fn start(mut program: Command) -> io::Result<()> {
        program.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let session = || {
            // SAFETY: the call takes no arguments. It fails only for a group leader, which a new process is
            // not.
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

    /// Sends a request, and repeats it if the answer was cut off: by then an exiting keeper is gone, and a
    /// replaced keeper has a successor at the same socket.
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

    /// Sends a request in the newest version that both sides support.
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

    /// Gets another reference to a file of the keeper; `None` if it has no such file, or no keeper exists.
    ///
    /// # Errors
    /// The socket exists but the keeper is unreachable, or it could not send the file.
    pub fn take(&self, tag: u64) -> io::Result<Option<OwnedFd>> {
        match self.ask(TAKE, tag, None) {
            Ok((DONE, Some(file), _)) => Ok(Some(file)),
            Ok((ABSENT, None, _)) => Ok(None),
            Ok(_) => Err(failed()),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the keeper close a file.
    ///
    /// # Errors
    /// The socket exists but the keeper is unreachable.
    pub fn drop(&self, tag: u64) -> io::Result<()> {
        match self.ask(DROP, tag, None) {
            Err(error) if is_absent(&error) => Ok(()),
            asked => asked.and_then(done),
        }
    }

    /// Lists the tags of the keeper's files; empty if no keeper exists.
    ///
    /// # Errors
    /// The socket exists but the keeper is unreachable.
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

    /// Watches the serving keeper.
    ///
    /// # Errors
    /// The keeper is unreachable ([`is_absent`]: none exists).
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

/// A connection that watches one keeper until it stops serving.
#[derive(Debug)]
pub struct KeeperWatch {
    stream: UnixStream,
    is_ending: bool,
}

/// Events of a watched keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeeperEvent {
    /// The keeper got a signal to exit: it serves until it is killed or another keeper takes over.
    Ending,
    /// The keeper has exited, or another one has taken over.
    Gone,
}

impl KeeperWatch {
    /// Returns true once the keeper got a signal to exit.
    #[must_use]
    pub const fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Waits for the keeper's next event.
    pub fn await_event(&mut self) -> KeeperEvent {
        // Treats errors as an exit.
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

    /// Returns true if the keeper stops serving within this time.
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

/// Reaps a process in the background.
pub(crate) fn note_end(mut child: Child) {
    // Without a thread the process stays a zombie until this one ends.
    drop(thread::Builder::new().spawn(move || child.wait()));
}

fn done((status, ..): KeeperAnswer) -> io::Result<()> {
    if status == DONE { Ok(()) } else { Err(failed()) }
}

fn failed() -> io::Error {
    io::Error::other("the keeper of FUSE connections could not do it; look at its limit of open files")
}

/// Returns true if no keeper exists: no process listens at its socket.
#[must_use]
pub fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

/// Returns true if a keeper exists and gave no answer: it may hold any files.
fn is_cut_off(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests;
