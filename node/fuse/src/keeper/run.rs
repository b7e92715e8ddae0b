//! The life of a keeper's process.
#![allow(unsafe_code)] // prctl(2), signals

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use holdfast_ublk::become_io_flusher;

use super::place::take_place;
use super::serve::{KeeperFiles, serve};
use super::{Keeper, KeeperEvent, START_WITHIN, is_absent};

/// Name that the process has, in place of its program's.
const PROCESS_NAME: &std::ffi::CStr = c"holdfast-keeper";
/// The longest wait for the place of a keeper that has it and does not hand it over, of one that holds
/// nothing.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Time between two tries to begin, or to watch the keeper that serves.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Becomes the keeper of a run directory, in the foreground: takes over from the one that serves, serves also
/// while it holds nothing, and stands by while another one serves. Told to end (SIGTERM, SIGINT), it ends
/// once it holds nothing; until then it serves, and says so to those that watch it. Call it while the
/// process has no other thread.
///
/// The run directory is made if there is none: the keeper may start before the daemon.
///
/// # Errors
/// The directory cannot be made, or the place not be taken, and it holds nothing.
pub fn run(run_dir: &Path) -> io::Result<()> {
    set_name();
    std::fs::create_dir_all(run_dir)?;
    // A daemon that starts waits for its answers. One that a daemon has started inherits this.
    if let Err(error) = become_io_flusher() {
        note(&format!(
            "PR_SET_IO_FLUSHER failed ({error}); it may wait for its own devices when memory is short; grant CAP_SYS_RESOURCE"
        ));
    }
    ignore(libc::SIGHUP);
    let kept = KeeperFiles::default();
    end_when_told(&kept)?;
    // Where it fails, fewer files are kept.
    drop(holdfast_ring::raise_open_file_limit());
    keep(&Keeper::of(run_dir), &kept)
}

/// Becomes the keeper that a daemon has started: it ends when no file is kept and no process is connected, or
/// another keeper has taken its place. No signal ends it.
///
/// # Errors
/// As [`run`].
pub fn run_for_daemon(run_dir: &Path) -> io::Result<()> {
    set_name();
    // A stop of the daemon's service sends these to its whole group.
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].into_iter().for_each(ignore);
    drop(holdfast_ring::raise_open_file_limit());
    let (keeper, kept) = (Keeper::of(run_dir), KeeperFiles::until_unused());
    take_and_serve(&keeper, &kept, START_WITHIN)
}

/// Serves and stands by in turns.
pub(super) fn keep(keeper: &Keeper, kept: &KeeperFiles) -> io::Result<()> {
    loop {
        take_and_serve(keeper, kept, TAKEN_WITHIN)?;
        if kept.lock().is_ending() {
            return Ok(());
        }
        note("another keeper serves; standing by");
        stand_by(keeper);
    }
}

/// Takes the place and serves it to the end. One that holds files tries until it can.
fn take_and_serve(keeper: &Keeper, kept: &KeeperFiles, within: Duration) -> io::Result<()> {
    loop {
        let place = take_place(keeper, kept, within)?;
        note(&format!("serving {} with {} connections", keeper.socket().display(), kept.lock().files.len()));
        match serve(kept, place) {
            Err(error) if !kept.lock().files.is_empty() => {
                note(&format!("the place could not be served: {error}"));
                thread::sleep(AGAIN_AFTER);
            }
            served => return served,
        }
    }
}

/// Waits until the keeper that serves is told to end, or none serves: one that is gone may have a successor,
/// from which the place is not taken.
fn stand_by(keeper: &Keeper) {
    loop {
        match keeper.watch() {
            Ok(mut watch) => {
                if watch.is_ending() || watch.await_event() == KeeperEvent::Ending {
                    return;
                }
            }
            Err(error) if is_absent(&error) => return,
            // It serves, in whatever way.
            Err(_) => thread::sleep(AGAIN_AFTER),
        }
    }
}

fn note(message: &str) {
    // Where standard error takes nothing, the message is lost, and nothing else.
    drop(writeln!(io::stderr(), "holdfast-keeper: {message}"));
}

fn set_name() {
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, PROCESS_NAME.as_ptr()) };
}

fn ignore(signal: libc::c_int) {
    // SAFETY: the disposition is one of the kernel's own, no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Blocks the signals that tell a process to end, also for the first process of a PID namespace, and has a
/// thread wait for them.
fn end_when_told(kept: &KeeperFiles) -> io::Result<()> {
    // SAFETY: zeros are a valid set, which the next call empties.
    let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigemptyset(&raw mut signals) };
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the set outlives the call, and the number is that of a signal.
        unsafe { libc::sigaddset(&raw mut signals, signal) };
    }
    // SAFETY: the set outlives the call; the old one is not asked for.
    let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut()) };
    if blocked != 0 {
        return Err(io::Error::from_raw_os_error(blocked));
    }
    let kept = kept.clone();
    let wait = move || {
        loop {
            let mut signal = 0;
            // SAFETY: both outlive the call.
            if unsafe { libc::sigwait(&raw const signals, &raw mut signal) } != 0 {
                thread::sleep(AGAIN_AFTER);
                continue;
            }
            if kept.tell_to_end() {
                std::process::exit(0);
            }
            note("told to end; it serves until it holds nothing, or another keeper takes its place");
        }
    };
    thread::Builder::new().spawn(wait).map(drop)
}
