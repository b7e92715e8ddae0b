//! The keeper's process.
#![allow(unsafe_code)] // prctl(2), signals

use std::io::{self, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

use holdfast_ublk::become_io_flusher;

use super::place::take_place;
use super::serve::{KeeperFiles, serve};
use super::{Keeper, KeeperEvent, START_WITHIN, is_absent};

/// Name of the process, which replaces the name of its program.
const PROCESS_NAME: &std::ffi::CStr = c"holdfast-keeper";
/// Maximum wait of a keeper without files for the place of one that does not hand it over.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);
/// Delay between two attempts to serve, or to watch the serving keeper.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Becomes the keeper of a run directory, in the foreground: takes over from the serving one, serves even
/// while it holds nothing, and stands by while another one serves. After SIGTERM or SIGINT it exits once it
/// holds nothing; until then it serves and notifies its watchers. Call it while the process has no other
/// thread.
///
/// Creates the run directory if necessary: the keeper may start before the daemon.
///
/// # Errors
/// The directory cannot be created, or the place cannot be taken while the keeper holds no files.
pub fn run(run_dir: &Path) -> io::Result<()> {
    set_name();
    std::fs::create_dir_all(run_dir)?;
    // A starting daemon waits for its answers. A keeper started by a daemon inherits the mark.
    if let Err(error) = become_io_flusher() {
        note(&format!(
            "PR_SET_IO_FLUSHER failed ({error}); it may wait for its own devices when memory is short; grant CAP_SYS_RESOURCE"
        ));
    }
    ignore(libc::SIGHUP);
    let kept = KeeperFiles::default();
    exit_on_signal(&kept)?;
    // On failure the keeper can keep fewer files.
    drop(holdfast_ring::raise_open_file_limit());
    keep(&Keeper::of(run_dir), &kept)
}

/// Becomes the keeper that a daemon has started: it exits when it holds no file and no process is connected,
/// or when another keeper has taken over. It ignores signals to exit.
///
/// # Errors
/// As [`run`].
pub fn run_for_daemon(run_dir: &Path) -> io::Result<()> {
    set_name();
    // Stopping the daemon's service sends these signals to its whole process group.
    [libc::SIGTERM, libc::SIGINT, libc::SIGHUP].into_iter().for_each(ignore);
    drop(holdfast_ring::raise_open_file_limit());
    let (keeper, kept) = (Keeper::of(run_dir), KeeperFiles::until_unused());
    take_and_serve(&keeper, &kept, START_WITHIN)
}

/// Alternates between serving and standing by.
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

/// Takes the place and serves it to the end. A keeper that holds files retries until it can.
fn take_and_serve(keeper: &Keeper, kept: &KeeperFiles, within: Duration) -> io::Result<()> {
    loop {
        let place = take_place(keeper, kept, within)?;
        note(&format!("serving {} with {} connections", keeper.socket().display(), kept.lock().files.len()));
        match serve(kept, place) {
            Err(error) if !kept.lock().files.is_empty() => {
                note(&format!("serving failed: {error}"));
                thread::sleep(AGAIN_AFTER);
            }
            served => return served,
        }
    }
}

/// Waits until the serving keeper gets a signal to exit, or no keeper serves. After a keeper's exit it checks
/// for a successor, from which it does not take over.
fn stand_by(keeper: &Keeper) {
    loop {
        match keeper.watch() {
            Ok(mut watch) => {
                if watch.is_ending() || watch.await_event() == KeeperEvent::Ending {
                    return;
                }
            }
            Err(error) if is_absent(&error) => return,
            // The keeper serves, but cannot be watched.
            Err(_) => thread::sleep(AGAIN_AFTER),
        }
    }
}

fn note(message: &str) {
    // If standard error cannot be written, only the message is lost.
    drop(writeln!(io::stderr(), "holdfast-keeper: {message}"));
}

fn set_name() {
    // SAFETY: the name is a C string.
    unsafe { libc::prctl(libc::PR_SET_NAME, PROCESS_NAME.as_ptr()) };
}

fn ignore(signal: libc::c_int) {
    // SAFETY: the disposition is SIG_IGN, not a handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Blocks the signals to exit and starts a thread that waits for them; this also works for the first process
/// of a PID namespace.
fn exit_on_signal(kept: &KeeperFiles) -> io::Result<()> {
    // SAFETY: zeros are a valid set, which the next call empties.
    let mut signals: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set outlives the call.
    unsafe { libc::sigemptyset(&raw mut signals) };
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the set outlives the call, and the number is that of a signal.
        unsafe { libc::sigaddset(&raw mut signals, signal) };
    }
    // SAFETY: the set outlives the call, which does not return the old one.
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
            if kept.request_exit() {
                std::process::exit(0);
            }
            note("got a signal to exit; serving until no file is left or another keeper takes over");
        }
    };
    thread::Builder::new().spawn(wait).map(drop)
}
