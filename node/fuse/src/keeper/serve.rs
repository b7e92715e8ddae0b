//! The serving keeper: its place, its files, and the answers to each connection.
//!
//! *Invariants*: a keeper accepts connections and answers requests only while it has the place, so a
//! successor at the same socket loses none.
#![allow(unsafe_code)] // SO_PEERCRED, poll(2)

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::AGAIN_AFTER;
use super::message::{
    ABSENT, DONE, DROP, ENDING, FAILED, HAND_OVER, KEEP, LIST, OTHER_VERSION, REQUEST_BYTES, SpokenVersions,
    TAKE, UNKNOWN, WATCH, receive, send,
};

/// Maximum time of a hand-over, during which the keeper answers no requests.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(2);

/// The right to serve a run directory.
#[derive(Debug)]
pub(super) struct KeeperPlace {
    /// The locked file.
    pub(super) lock: File,
    /// The socket.
    pub(super) listener: UnixListener,
}

/// The files, and the state of the connections.
#[derive(Debug, Default)]
pub(super) struct KeptFiles {
    pub(super) files: BTreeMap<u64, OwnedFd>,
    /// While it serves: its place, and the stream that wakes its thread when dropped.
    place: Option<(KeeperPlace, UnixStream)>,
    connections: usize,
    watchers: Vec<Arc<UnixStream>>,
    /// Supported versions.
    pub(super) versions: SpokenVersions,
    is_ending: bool,
    /// True to exit when it holds nothing and has no connections.
    ends_unused: bool,
}

/// The files, shared by the threads of a keeper.
#[derive(Clone, Debug, Default)]
pub(super) struct KeeperFiles(Arc<Mutex<KeptFiles>>);

impl KeeperFiles {
    /// Creates the empty set of a keeper that exits when it holds no file and no process is connected.
    pub(super) fn until_unused() -> Self {
        Self(Arc::new(Mutex::new(KeptFiles { ends_unused: true, ..KeptFiles::default() })))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, KeptFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the process must exit, and notifies watchers. Returns true if it may exit at once; a
    /// serving keeper exits by itself once it holds nothing.
    pub(super) fn request_exit(&self) -> bool {
        let mut kept = self.lock();
        kept.is_ending = true;
        for mut watcher in kept.watchers.iter().map(Arc::as_ref) {
            // A watcher that does not read the message still notices the exit.
            drop(watcher.write_all(&[ENDING]));
        }
        kept.end_if_done();
        kept.place.is_none() && kept.files.is_empty()
    }

    /// Keeps a file under this tag, in place of an earlier one.
    fn keep(&self, mut stream: &UnixStream, tag: u64, file: OwnedFd) -> io::Result<()> {
        let mut kept = self.lock();
        kept.check_place()?;
        let replaced = kept.files.insert(tag, file);
        stream.write_all(&[DONE])?;
        drop(kept);
        drop(replaced);
        Ok(())
    }

    /// Sends a copy of the file with this tag, if there is one.
    fn give(&self, stream: &UnixStream, tag: u64) -> io::Result<()> {
        let kept = self.lock();
        kept.check_place()?;
        let file = kept.files.get(&tag).map(OwnedFd::try_clone).transpose()?;
        drop(kept);
        let status = if file.is_some() { DONE } else { ABSENT };
        send(stream, &[status], file.as_ref().map(AsFd::as_fd))
    }

    /// Closes the file with this tag. Without it, a keeper that must exit may be done.
    fn drop_file(&self, mut stream: &UnixStream, tag: u64) -> io::Result<()> {
        let mut kept = self.lock();
        kept.check_place()?;
        let dropped = kept.files.remove(&tag);
        stream.write_all(&[DONE])?;
        if kept.is_ending {
            kept.end_if_done();
        }
        drop(kept);
        drop(dropped);
        Ok(())
    }

    /// Sends the tags of all files.
    fn list(&self, mut stream: &UnixStream) -> io::Result<()> {
        let kept = self.lock();
        kept.check_place()?;
        let tags: Vec<u64> = kept.files.keys().copied().collect();
        drop(kept);
        let number = u32::try_from(tags.len()).map_err(io::Error::other)?;
        let mut answer = vec![DONE];
        answer.extend(number.to_ne_bytes());
        answer.extend(tags.into_iter().flat_map(u64::to_ne_bytes));
        stream.write_all(&answer)
    }

    /// Removes a connection from the reasons to keep running.
    fn leave(&self) {
        let mut kept = self.lock();
        kept.connections -= 1;
        kept.end_if_done();
    }
}

impl KeptFiles {
    /// Returns true once the process got a signal to exit.
    pub(super) const fn is_ending(&self) -> bool {
        self.is_ending
    }

    fn end_if_done(&mut self) {
        let is_unused = self.ends_unused && self.connections == 0;
        if self.files.is_empty() && (is_unused || self.is_ending) {
            self.place = None;
        }
    }

    /// Fails if another keeper has taken over: the connection ends without an answer, and its client repeats
    /// the request.
    fn check_place(&self) -> io::Result<()> {
        self.place.as_ref().map(drop).ok_or_else(|| io::ErrorKind::ConnectionAborted.into())
    }
}

/// Serves a place until it is handed over or no longer needed. Retries on failures, for example if file
/// descriptors or threads run out.
///
/// # Errors
/// The keeper cannot start serving.
pub(super) fn serve(kept: &KeeperFiles, place: KeeperPlace) -> io::Result<()> {
    let listener = place.listener.try_clone()?;
    listener.set_nonblocking(true)?;
    let (wakes, woken) = UnixStream::pair()?;
    let mut begins = kept.lock();
    begins.place = Some((place, wakes));
    if begins.is_ending {
        begins.end_if_done();
    }
    drop(begins);
    loop {
        wait_readable([listener.as_fd(), woken.as_fd()]);
        let mut accepts = kept.lock();
        if accepts.place.is_none() {
            return Ok(());
        }
        let accepted = listener.accept();
        accepts.connections += usize::from(accepted.is_ok());
        drop(accepts);
        let Ok((stream, _)) = accepted else {
            thread::sleep(AGAIN_AFTER);
            continue;
        };
        let shared = kept.clone();
        let answering =
            thread::Builder::new().stack_size(128 << 10).spawn(move || answer_all(stream, &shared));
        if answering.is_err() {
            // The client finds its connection closed, and repeats the request.
            kept.leave();
            thread::sleep(AGAIN_AFTER);
        }
    }
}

fn answer_all(stream: UnixStream, kept: &KeeperFiles) {
    let stream = Arc::new(stream);
    let mut is_counted = true;
    if is_own(&stream) {
        match answer(&stream, kept, &mut is_counted) {
            // An error ends only this connection.
            Err(error) if error.kind() != io::ErrorKind::ConnectionAborted => {
                drop((&*stream).write_all(&[FAILED]));
            }
            Ok(()) | Err(_) => {}
        }
        kept.lock().watchers.retain(|watcher| !Arc::ptr_eq(watcher, &stream));
    }
    drop(stream);
    if is_counted {
        kept.leave();
    }
}

fn answer(connection: &Arc<UnixStream>, kept: &KeeperFiles, is_counted: &mut bool) -> io::Result<()> {
    let mut stream: &UnixStream = connection;
    loop {
        let mut request = [0; REQUEST_BYTES];
        let (len, file) = receive(stream, &mut request)?;
        if len == 0 {
            return Ok(());
        }
        let versions = kept.lock().versions;
        if !versions.include(request[0]) {
            return stream.write_all(&[OTHER_VERSION, versions.newest]);
        }
        stream.read_exact(&mut request[len..])?;
        let [_, operation, tag @ ..] = request;
        let tag = u64::from_ne_bytes(tag);
        match (operation, file) {
            (KEEP, Some(file)) => kept.keep(stream, tag, file)?,
            (KEEP, None) => return Err(io::ErrorKind::InvalidData.into()),
            (TAKE, _) => kept.give(stream, tag)?,
            (DROP, _) => kept.drop_file(stream, tag)?,
            (LIST, _) => kept.list(stream)?,
            (WATCH, _) => {
                let mut watched = kept.lock();
                watched.check_place()?;
                stream.write_all(&[if watched.is_ending { ENDING } else { DONE }])?;
                watched.watchers.push(Arc::clone(connection));
                drop(watched);
                // A watcher does not keep the keeper running.
                if std::mem::take(is_counted) {
                    kept.leave();
                }
            }
            (HAND_OVER, _) => hand_over(stream, kept)?,
            (_, _) => stream.write_all(&[UNKNOWN])?,
        }
    }
}

/// Hands the place and all files over to a successor. On failure, the keeper continues to serve.
fn hand_over(mut stream: &UnixStream, shared: &KeeperFiles) -> io::Result<()> {
    let begun = Instant::now();
    let left = || Some(HAND_OVER_WITHIN.saturating_sub(begun.elapsed()).max(Duration::from_millis(1)));
    let mut kept = shared.lock();
    let Some((place, _)) = &kept.place else { return kept.check_place() };
    let number = u32::try_from(kept.files.len()).map_err(io::Error::other)?;
    let head = [&[DONE][..], &number.to_ne_bytes()].concat();
    stream.set_write_timeout(left())?;
    send(stream, &head, Some(place.lock.as_fd()))?;
    send(stream, &[DONE], Some(place.listener.as_fd()))?;
    for (tag, file) in &kept.files {
        stream.set_write_timeout(left())?;
        send(stream, &tag.to_ne_bytes(), Some(file.as_fd()))?;
    }
    stream.set_read_timeout(left())?;
    let mut has_all = [0];
    stream.read_exact(&mut has_all)?;
    if has_all[0] != DONE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&[DONE])?;
    // From now on the successor serves.
    kept.place = None;
    let files = std::mem::take(&mut kept.files);
    for watcher in std::mem::take(&mut kept.watchers) {
        drop(watcher.shutdown(Shutdown::Both));
    }
    drop(kept);
    drop(files);
    Ok(())
}

/// Returns true if the process at the other end has the same user.
fn is_own(stream: &UnixStream) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the pointers name a structure and its length, which outlive the call.
    let got =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, option, (&raw mut peer).cast(), &raw mut len) };
    // SAFETY: the call only reads.
    let own = unsafe { libc::geteuid() };
    got == 0 && peer.uid == own
}

/// Waits until one of these is readable or closed at its other end.
fn wait_readable(files: [BorrowedFd<'_>; 2]) {
    let mut polled =
        files.map(|file| libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 });
    // SAFETY: the pointer names two structures, which outlive the call.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), 2, -1) };
    if ready < 0 {
        // A signal, or no memory: the caller checks by itself.
        thread::sleep(AGAIN_AFTER);
    }
}
