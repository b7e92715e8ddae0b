//! The programs run by the agent, and their exits.
//!
//! Owns: every child of process 1. Orphans of the test become its children, too, and must be reaped, so one
//! thread waits for *any* child and records its exit; no other thread waits.
//! Invariants: programs are started under the lock under which exits are recorded. So no exit is lost, or
//! mistaken for that of an older process with the same id.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, kill_process_group, wait};

use crate::wire::{Exit, GuestProgram, log_of};

/// Search path of programs.
pub(super) const PATH: &str = "/holdfast/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// All programs of the machine.
#[derive(Debug)]
pub(super) struct Programs {
    state: Mutex<ProgramsState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct ProgramsState {
    /// Exits by process id. Those of orphans stay; there are few.
    exits: HashMap<i32, Exit>,
    /// Spawned programs by name.
    named: BTreeMap<String, i32>,
}

impl Programs {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(ProgramsState::default()), changed: Condvar::new() }
    }

    /// Records every child that exits. Never returns.
    pub(super) fn reap(&self) -> ! {
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) => {
                    if let Some(exit) = exit_of(status) {
                        self.lock().exits.insert(pid.as_raw_nonzero().get(), exit);
                        self.changed.notify_all();
                    }
                }
                // There are no children: the next start wakes this thread.
                Ok(None) | Err(_) => {
                    let state = self.lock();
                    drop(
                        self.changed
                            .wait_timeout(state, Duration::from_millis(100))
                            .expect("nothing panics while it holds this lock"),
                    );
                }
            }
        }
    }

    /// Starts a program in a separate process group, with its output in pipes.
    pub(super) fn start(&self, program: &GuestProgram) -> Result<Child> {
        let mut command = command(program)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut state = self.lock();
        self.launch(&mut state, &mut command, program)
    }

    /// Starts a program that keeps running, under a name.
    pub(super) fn spawn(&self, name: &str, program: &GuestProgram) -> Result<i32> {
        let log = log_of(name);
        let out =
            File::options().create(true).append(true).open(&log).with_context(|| format!("open {log}"))?;
        let mut command = command(program)?;
        command
            .stdin(Stdio::null())
            .stdout(out.try_clone().context("duplicate the log's descriptor")?)
            .stderr(out);
        let mut state = self.lock();
        if let Some(pid) = state.named.get(name) {
            ensure!(state.exits.contains_key(pid), "{name} runs already");
        }
        let pid = raw_pid(&self.launch(&mut state, &mut command, program)?);
        state.named.insert(name.to_owned(), pid);
        Ok(pid)
    }

    /// Sends a signal to a spawned program.
    pub(super) fn signal(&self, name: &str, signal: i32) -> Result<()> {
        let state = self.lock();
        let pid = state.pid(name)?;
        ensure!(!state.exits.contains_key(&pid), "{name} has ended");
        let signal = Signal::from_named_raw(signal).context("no such signal")?;
        let pid = Pid::from_raw(pid).context("process id 0")?;
        kill_process(pid, signal).with_context(|| format!("signal {name}"))
    }

    /// Kills the remaining processes of a program's process group.
    pub(super) fn kill_group(&self, pid: i32) {
        if let Some(pid) = Pid::from_raw(pid) {
            // The group may be empty already.
            kill_process_group(pid, Signal::KILL).ok();
        }
    }

    /// Returns the exit of a spawned program, if it has exited.
    pub(super) fn status(&self, name: &str) -> Result<Option<Exit>> {
        let state = self.lock();
        let pid = state.pid(name)?;
        Ok(state.exits.get(&pid).copied())
    }

    /// Waits for a spawned program to exit.
    pub(super) fn wait_named(&self, name: &str, limit: Duration) -> Result<Exit> {
        let pid = self.lock().pid(name)?;
        match self.wait_for(pid, Some(limit)) {
            Some(exit) => Ok(exit),
            None => bail!("{name} still runs after {} ms", limit.as_millis()),
        }
    }

    /// Waits for a process to exit; without a limit, it always returns an exit.
    pub(super) fn wait_for(&self, pid: i32, limit: Option<Duration>) -> Option<Exit> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.lock();
        loop {
            if let Some(exit) = state.exits.get(&pid) {
                return Some(*exit);
            }
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.checked_duration_since(Instant::now())?,
            };
            (state, _) =
                self.changed.wait_timeout(state, left).expect("nothing panics while it holds this lock");
        }
    }

    fn launch(
        &self,
        state: &mut MutexGuard<'_, ProgramsState>,
        command: &mut Command,
        program: &GuestProgram,
    ) -> Result<Child> {
        let child = command.spawn().with_context(|| format!("start {}", program.argv.join(" ")))?;
        state.exits.remove(&raw_pid(&child));
        self.changed.notify_all();
        Ok(child)
    }

    fn lock(&self) -> MutexGuard<'_, ProgramsState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

impl ProgramsState {
    fn pid(&self, name: &str) -> Result<i32> {
        self.named.get(name).copied().with_context(|| format!("no program was spawned as {name:?}"))
    }
}

/// Returns the child's process id in the kernel's type.
pub(super) fn raw_pid(child: &Child) -> i32 {
    i32::try_from(child.id()).expect("a process id fits in i32")
}

fn command(program: &GuestProgram) -> Result<Command> {
    let (first, arguments) = program.argv.split_first().context("an empty command line")?;
    let mut command = Command::new(resolve(first)?);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("LANG", "C.UTF-8")
        .envs(&program.env)
        .current_dir("/root")
        .process_group(0);
    Ok(command)
}

/// Finds a program. The standard library would fork to look it up. If it found nothing, its wait for the
/// child would race with the reaper.
fn resolve(program: &str) -> Result<PathBuf> {
    if program.contains('/') {
        ensure!(Path::new(program).is_file(), "{program} is not a file");
        return Ok(PathBuf::from(program));
    }
    PATH.split(':')
        .map(|dir| Path::new(dir).join(program))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("no {program} in {PATH}"))
}

fn exit_of(status: WaitStatus) -> Option<Exit> {
    if let Some(code) = status.exit_status() {
        Some(Exit::Code(code))
    } else {
        status.terminating_signal().map(Exit::Signal)
    }
}

/// Copies a stream to its end, in the pieces received.
pub(super) fn pump(
    from: &mut impl io::Read,
    mut each: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => each(&buffer[..read])?,
        }
    }
}
