//! Becoming the keeper of a run directory, by taking the *place* (lock and socket) if it is free or from the
//! serving keeper.
//!
//! *Invariants*: files received from a keeper are closed only while that keeper continues to serve.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::message::{DONE, HAND_OVER, receive};
use super::serve::{KeeperFiles, KeeperPlace};
use super::{AGAIN_AFTER, Keeper, KeeperWatch, START_WITHIN, is_absent, is_cut_off};

/// The keeper's lock file, in the directory of its socket.
const KEEPER_LOCK: &str = "keeper.lock";
/// Maximum time until the connections of a killed process end.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// Delay between two attempts after many attempts.
const LATER_AFTER: Duration = Duration::from_millis(500);

/// Takes the place of the keeper, with all files of the previous keeper. If another process has the place and
/// does not answer, waits at most `within`; a process that holds files waits without limit.
///
/// # Errors
/// The place is unavailable, and this process holds no files.
pub(super) fn take_place(keeper: &Keeper, kept: &KeeperFiles, within: Duration) -> io::Result<KeeperPlace> {
    let begun = Instant::now();
    loop {
        let tried = try_once(keeper, kept);
        let holds_nothing = kept.lock().files.is_empty();
        match tried {
            Ok(Some(place)) => return Ok(place),
            Ok(None) if holds_nothing && begun.elapsed() >= within => {
                let taken = "another process has the place of the keeper and does not hand it over; end it";
                return Err(io::Error::new(io::ErrorKind::WouldBlock, taken));
            }
            Err(error) if holds_nothing => return Err(error),
            Ok(None) | Err(_) => {}
        }
        thread::sleep(if begun.elapsed() < START_WITHIN { AGAIN_AFTER } else { LATER_AFTER });
    }
}

/// Tries to take the place; `None` if another process has it and is starting or exiting.
fn try_once(keeper: &Keeper, kept: &KeeperFiles) -> io::Result<Option<KeeperPlace>> {
    if let Some(lock) = try_lock(keeper.socket())? {
        return Ok(Some(KeeperPlace { lock, listener: bind(keeper.socket())? }));
    }
    match take_over(keeper, kept) {
        Err(error) if is_absent(&error) || is_cut_off(&error) => Ok(None),
        taken => taken,
    }
}

pub(super) fn try_lock(socket: &Path) -> io::Result<Option<File>> {
    let path = socket.with_file_name(KEEPER_LOCK);
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path)?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

pub(super) fn bind(socket: &Path) -> io::Result<UnixListener> {
    // The old socket belongs to an exited keeper: a running one would have the lock.
    drop(fs::remove_file(socket));
    UnixListener::bind(socket)
}

/// Takes over all files from the serving keeper. `None` if that keeper continues to serve or exited midway;
/// the files that arrived before its exit are kept.
fn take_over(keeper: &Keeper, kept: &KeeperFiles) -> io::Result<Option<KeeperPlace>> {
    // The watch ends when the keeper exits or has handed over.
    let mut watch = keeper.watch()?;
    let (status, lock, mut stream) = keeper.ask_once(HAND_OVER, 0, None)?;
    if status != DONE {
        return Ok(None);
    }
    let all = lock.ok_or_else(not_arrived).and_then(|lock| receive_all(lock, &mut stream, kept));
    let place = match all {
        Ok(place) => place,
        Err(error) => {
            drop(stream);
            release_if_served(&mut watch, kept);
            return Err(error);
        }
    };
    // No timeout is needed: the keeper waits for this byte for a limited time.
    stream.set_read_timeout(None)?;
    let mut word = [0];
    match stream.write_all(&[DONE]).and_then(|()| stream.read_exact(&mut word)) {
        Ok(()) if word[0] == DONE => Ok(Some(place)),
        Ok(()) => {
            kept.lock().files.clear();
            Ok(None)
        }
        Err(_) if release_if_served(&mut watch, kept) => Ok(None),
        // The keeper exited after it had sent all files.
        Err(_) => Ok(Some(place)),
    }
}

/// Closes the received files if the keeper, which has all of them, continues to serve. Returns true if it
/// closed them.
fn release_if_served(watch: &mut KeeperWatch, kept: &KeeperFiles) -> bool {
    let is_served = !watch.ends(ENDS_WITHIN);
    if is_served {
        kept.lock().files.clear();
    }
    is_served
}

/// Receives the place and the files, and keeps each file on arrival.
fn receive_all(lock: OwnedFd, stream: &mut UnixStream, kept: &KeeperFiles) -> io::Result<KeeperPlace> {
    let mut number = [0; 4];
    stream.read_exact(&mut number)?;
    let (_, listener) = receive(stream, &mut [0])?;
    let listener = listener.ok_or_else(not_arrived)?;
    let mut tags = Vec::new();
    for _ in 0..u32::from_ne_bytes(number) {
        let mut tag = [0; 8];
        let (len, file) = receive(stream, &mut tag)?;
        stream.read_exact(&mut tag[len..])?;
        let tag = u64::from_ne_bytes(tag);
        kept.lock().files.insert(tag, file.ok_or_else(not_arrived)?);
        tags.push(tag);
    }
    // Drops files of an earlier attempt that the keeper has closed since.
    kept.lock().files.retain(|tag, _| tags.contains(tag));
    Ok(KeeperPlace { lock: lock.into(), listener: listener.into() })
}

fn not_arrived() -> io::Error {
    io::Error::other("a file of the keeper before did not arrive; look at the limit of open files")
}
