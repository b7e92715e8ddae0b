//! Threads that send control commands, so that a command stuck in the kernel does not block others.
//!
//! A thread that waits in the kernel without limit cannot be killed. Its process cannot be killed either, and
//! the open files that it shares with the other threads stay open. Therefore each command is sent by a thread
//! with its own table of open files, which contains only the standard streams. If such a thread is stuck, all
//! others return in time. When the process exits, the kernel still releases its locks and quiesces the
//! devices whose queues were closed. The memory of the process stays mapped until the command ends.
//!
//! *Owns*: these threads, and the commands that exceeded their limit.
//! *Invariants*: while a command runs whose caller has stopped waiting, no other command about the same
//! subject is sent, except that a device may be stopped while it is starting.
#![allow(unsafe_code)] // a system call without a wrapper

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::{ControlError, KernelRelease};

/// Maximum number of device additions that run without a caller: each occupies a thread, and a caller that
/// retries uses a new tag.
const MAX_LATE_ADDITIONS: usize = 4;
/// An idle thread ends after this time.
const IDLE_FOR: Duration = Duration::from_secs(10);

/// The subject of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandSubject {
    /// An existing device.
    Device(u32),
    /// A device's description, which the kernel returns without waiting for other commands.
    Description(u32),
    /// A device's attributes in sysfs.
    Attributes(u32),
    /// A new device with this tag.
    New(u64),
}

impl CommandSubject {
    /// Returns the number of its device; `u32::MAX` before the kernel has assigned one.
    const fn id(self) -> u32 {
        match self {
            Self::Device(id) | Self::Description(id) | Self::Attributes(id) => id,
            Self::New(_) => u32::MAX,
        }
    }
}

/// Work for a thread. The job calls its argument once the thread can take the next job.
type ControlJob = Box<dyn FnOnce(&dyn Fn()) + Send>;

struct IdleThread {
    number: u64,
    jobs: Sender<ControlJob>,
}

struct Threads {
    started: u64,
    idle: Vec<IdleThread>,
    /// Commands whose caller has stopped waiting.
    late: Vec<Late>,
}

/// A command whose caller has stopped waiting.
#[derive(Clone, Copy)]
struct Late {
    number: u64,
    subject: CommandSubject,
    name: &'static str,
    sent: Instant,
}

impl Threads {
    const NONE: Self = Self { started: 0, idle: Vec::new(), late: Vec::new() };

    /// Returns the late command that blocks the command called `name` about `subject`.
    fn blocker_of(&self, subject: CommandSubject, name: &str) -> Option<Late> {
        let is_new = |late: &&Late| matches!(late.subject, CommandSubject::New(_));
        if matches!(subject, CommandSubject::New(_))
            && self.late.iter().filter(is_new).count() >= MAX_LATE_ADDITIONS
        {
            return self.late.iter().find(is_new).copied();
        }
        let about_it = |late: &&Late| late.subject == subject;
        // In the kernel a stop waits until the start has ended.
        let may_pass = |late: &Late| late.name == "START_DEV" && name == "STOP_DEV";
        self.late.iter().filter(about_it).find(|late| !may_pass(late)).copied()
    }
}

/// The threads of this process.
static THREADS: Mutex<Threads> = Mutex::new(Threads::NONE);

enum CallOutcome<T> {
    Pending,
    Ready(T),
    /// The caller has stopped waiting.
    Abandoned,
}

/// Runs `work`, which sends the command called `name` about `subject`, on its own thread, and waits at most
/// `limit`. After that, `late` receives the result on that thread.
///
/// # Errors
/// [`ControlError::NotEnded`] after `limit`, and at once while an earlier command about the subject is late;
/// [`ControlError::Channel`] if no thread can be started.
pub(crate) fn run_within<T: Send + 'static>(
    subject: CommandSubject,
    name: &'static str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<T, ControlError> {
    run_on(&THREADS, subject, name, limit, work, late)
}

fn run_on<T: Send + 'static>(
    threads: &'static Mutex<Threads>,
    subject: CommandSubject,
    name: &'static str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<T, ControlError> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let blocker = threads.lock().blocker_of(subject, name);
    if let Some(late) = blocker {
        return Err(not_ended(&late));
    }
    let this = Late { number: NUMBER.fetch_add(1, Ordering::Relaxed), subject, name, sent: Instant::now() };
    let shared = Arc::new((Mutex::new(CallOutcome::Pending), Condvar::new()));
    let job = {
        let shared = Arc::clone(&shared);
        move |become_idle: &dyn Fn()| {
            let done = work();
            let (outcome, changed) = &*shared;
            let mut outcome = outcome.lock();
            if matches!(*outcome, CallOutcome::Abandoned) {
                drop(outcome);
                threads.lock().late.retain(|late| late.number != this.number);
                late(done);
                become_idle();
            } else {
                // Done first, because the caller's next command would otherwise start another thread.
                become_idle();
                *outcome = CallOutcome::Ready(done);
                changed.notify_one();
            }
        }
    };
    give(threads, Box::new(job)).map_err(ControlError::Channel)?;
    let (outcome, changed) = &*shared;
    let mut outcome = outcome.lock();
    changed.wait_while_for(&mut outcome, |outcome| matches!(outcome, CallOutcome::Pending), limit);
    match std::mem::replace(&mut *outcome, CallOutcome::Abandoned) {
        CallOutcome::Ready(done) => Ok(done),
        CallOutcome::Pending | CallOutcome::Abandoned => {
            // Recorded before the thread can see that the caller has stopped waiting.
            threads.lock().late.push(this);
            Err(not_ended(&this))
        }
    }
}

fn not_ended(late: &Late) -> ControlError {
    let &Late { number: _, subject, name: command, sent } = late;
    let kernel = KernelRelease::running().map_or_else(|_| "of this host".to_owned(), |it| it.to_string());
    ControlError::NotEnded { id: subject.id(), command, seconds: sent.elapsed().as_secs(), kernel }
}

/// Gives a job to an idle thread, or to a new one.
fn give(threads: &'static Mutex<Threads>, mut job: ControlJob) -> io::Result<()> {
    loop {
        let idle = threads.lock().idle.pop();
        let Some(idle) = idle else { break };
        match idle.jobs.send(job) {
            Ok(()) => return Ok(()),
            Err(mpsc::SendError(refused)) => job = refused,
        }
    }
    let number = {
        let mut threads = threads.lock();
        threads.started += 1;
        threads.started
    };
    let (jobs, received) = mpsc::channel();
    thread::Builder::new().name("ublk-control".to_owned()).spawn(move || {
        if let Err(error) = leave_files() {
            // The thread sends commands nevertheless, even if standard error cannot be written: this does
            // harm only if a command gets stuck.
            drop(writeln!(
                io::stderr(),
                "a thread for ublk commands still shares the open files of its process: {error}"
            ));
        }
        let become_idle = || threads.lock().idle.push(IdleThread { number, jobs: jobs.clone() });
        job(&become_idle);
        loop {
            match received.recv_timeout(IDLE_FOR) {
                Ok(job) => job(&become_idle),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    {
                        let mut threads = threads.lock();
                        if let Some(place) = threads.idle.iter().position(|idle| idle.number == number) {
                            threads.idle.swap_remove(place);
                            return;
                        }
                    }
                    // A caller has taken this thread and is about to send its job.
                    match received.recv() {
                        Ok(job) => job(&become_idle),
                        Err(mpsc::RecvError) => return,
                    }
                }
            }
        }
    })?;
    Ok(())
}

/// Gives this thread its own table of open files, with only the standard streams.
fn leave_files() -> io::Result<()> {
    let first_other = libc::STDERR_FILENO + 1;
    // SAFETY: the call takes integers only. It closes numbers of this thread alone: others keep theirs, and
    // this thread has just started, so it uses none.
    let left = unsafe {
        libc::syscall(libc::SYS_close_range, first_other, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE)
    };
    if left < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::sync::mpsc;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);
    const AT_ONCE: Duration = Duration::from_millis(20);

    /// Found by reading: a GET_PARAMS or an ADD_DEV that never ended blocked its caller, and so the node's
    /// next daemon.
    #[test]
    fn a_command_that_does_not_end_is_named_and_not_sent_twice() {
        let (end, ends) = mpsc::channel::<()>();
        let (late, was_late) = mpsc::channel();
        let subject = CommandSubject::Device(70_000);
        let stuck = move || ends.recv().is_err();
        let error = run_within(subject, "GET_PARAMS", AT_ONCE, stuck, move |done| late.send(done).unwrap())
            .unwrap_err();
        assert!(
            matches!(&error, ControlError::NotEnded { id: 70_000, command: "GET_PARAMS", .. }),
            "{error}"
        );
        let message = error.to_string();
        for part in ["ublk device 70000", "GET_PARAMS", "kernel", "restart this host"] {
            assert!(message.contains(part), "{message}");
        }
        // The next command is not sent, but one about another device is.
        let again = run_within(subject, "STOP_DEV", SOON, || panic!("it is sent"), |()| {}).unwrap_err();
        assert!(matches!(again, ControlError::NotEnded { command: "GET_PARAMS", .. }), "{again}");
        assert_eq!(run_within(CommandSubject::Device(70_001), "STOP_DEV", SOON, || 7, |_| {}).unwrap(), 7);

        drop(end);
        assert!(was_late.recv_timeout(SOON).unwrap(), "what ends late is cleared up");
        let begun = Instant::now();
        while run_within(subject, "STOP_DEV", SOON, || (), |()| {}).is_err() {
            assert!(begun.elapsed() < SOON, "the device takes commands again");
        }
    }

    /// Found on a slow machine: a caller with its answer sent its next command before the thread was idle
    /// again, which started one more thread.
    #[test]
    fn commands_in_turn_use_one_thread() {
        static THREADS: Mutex<Threads> = Mutex::new(Threads::NONE);
        for _ in 0..1000 {
            run_on(&THREADS, CommandSubject::Device(1), "GET_PARAMS", SOON, || (), |()| {}).unwrap();
        }
        assert_eq!(THREADS.lock().started, 1);
    }

    /// Found by reading: each retry of an attach had a new tag, so it left one more thread.
    #[test]
    fn additions_that_do_not_end_are_few() {
        let ends: Vec<_> = (0..MAX_LATE_ADDITIONS as u64)
            .map(|tag| {
                let (end, ends) = mpsc::channel::<()>();
                let stuck = move || ends.recv().is_err();
                run_within(CommandSubject::New(tag), "ADD_DEV", AT_ONCE, stuck, |_| {}).unwrap_err();
                end
            })
            .collect();
        let refused = run_within(CommandSubject::New(99), "ADD_DEV", SOON, || panic!("it is sent"), |()| {});
        assert!(matches!(refused, Err(ControlError::NotEnded { command: "ADD_DEV", .. })));
        drop(ends);
        let begun = Instant::now();
        while run_within(CommandSubject::New(99), "ADD_DEV", SOON, || (), |()| {}).is_err() {
            assert!(begun.elapsed() < SOON, "devices are added again");
        }
    }

    #[test]
    fn a_device_is_stopped_although_its_start_has_not_ended() {
        let (end, ends) = mpsc::channel::<()>();
        let subject = CommandSubject::Device(70_002);
        run_within(subject, "START_DEV", AT_ONCE, move || ends.recv().is_err(), |_| {}).unwrap_err();
        run_within(subject, "GET_PARAMS", SOON, || panic!("it is sent"), |()| {}).unwrap_err();
        assert_eq!(run_within(subject, "STOP_DEV", SOON, || 3, |_| {}).unwrap(), 3);
        drop(end);
    }

    /// A stuck thread keeps no file of its process open: neither the node's lock nor a device.
    #[test]
    fn the_threads_hold_no_file_of_the_process() {
        let file = File::open("/dev/null").unwrap();
        let number = file.as_raw_fd();
        let open = run_within(
            CommandSubject::Device(70_003),
            "GET_PARAMS",
            SOON,
            move || std::fs::read_link(format!("/proc/thread-self/fd/{number}")).is_ok(),
            |_| {},
        );
        assert!(!open.unwrap(), "the thread has the file of another one");
        assert!(std::fs::read_link(format!("/proc/thread-self/fd/{number}")).is_ok());
    }
}
