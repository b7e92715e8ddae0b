//! A test machine with a ublk kernel, and its operations.
//!
//! Owns: one QEMU process, its disks and its console log.
//! Does not own: the programs inside; see [`crate::guest`].
//! Runs on: any thread; a [`Vm`] may be used by several at once.
//! Invariants: the state disk lives as long as the [`Vm`] and survives [`Vm::reset`]; everything else in the
//! machine is new after each boot. The host's loopback is [`HOST`] inside.
//! On failure: [`Vm::logs`] lists the available logs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{LoggedProcess, tail};
use crate::setup::boot::BootFiles;
use crate::wait::until;
use crate::wire::{AgentReply, AgentRequest, Exit, GuestProgram, log_of};
use agent::Agent;
use machine::{MachineDisk, MachineOptions, STATE_IMAGE};
use recorded::RecordedDisk;

pub mod agent;
pub mod disk;
pub mod machine;
mod nbd;
pub mod recorded;

/// Address of the host's loopback in test machines.
pub const HOST: &str = "10.0.2.2";
/// Time limit of a boot. On a quiet host it takes 4 s; emulated on a busy host ten times as long.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// Attempts to boot a machine whose kernel dies during the boot. Emulated, one boot in a hundred fails in
/// code that the kernel patches in itself.
const BOOT_TRIES: u32 = 3;
/// Time limit of one command unless the caller sets another.
const EXEC_LIMIT: Duration = Duration::from_secs(600);
/// Time limit of a clean power-off, after which the machine is killed.
const POWER_OFF_LIMIT: Duration = Duration::from_secs(60);

/// A test machine.
#[derive(Debug)]
pub struct Vm {
    name: String,
    dir: PathBuf,
    boot: BootFiles,
    options: MachineOptions,
    /// Additional variables of spawned programs.
    environment: OnceLock<BTreeMap<String, String>>,
    running: Mutex<Option<Running>>,
    // Dropped last: the machine above writes to it.
    recorded: Option<RecordedDisk>,
}

#[derive(Debug)]
struct Running {
    qemu: LoggedProcess,
    agent: Agent,
}

/// Output of a command in the machine, and its exit.
#[derive(Debug, Clone)]
pub struct ProgramOutput {
    /// Exit of the command.
    pub exit: Exit,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Vm {
    /// Creates the machine's disks in `dir` and boots it. `share` is a directory that appears at `/holdfast`;
    /// it must contain this program as `bin/holdfast-e2e`.
    ///
    /// # Errors
    /// If a disk cannot be created or the machine does not boot; the error has the end of the console.
    pub fn start(
        name: &str,
        dir: &Path,
        boot: &BootFiles,
        share: &Path,
        options: MachineOptions,
    ) -> Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        disk::share(&dir.join("share.ext4"), share)?;
        let image = dir.join(STATE_IMAGE);
        let recorded = match options.state {
            MachineDisk::Empty(size) => {
                disk::empty(&image, size)?;
                None
            }
            MachineDisk::Recorded(size) => {
                disk::empty(&image, size)?;
                Some(RecordedDisk::start(&image, options.state_block_bytes)?)
            }
            MachineDisk::Image(_) => None,
        };
        let vm = Self {
            name: name.to_owned(),
            dir: dir.to_owned(),
            boot: boot.clone(),
            options,
            environment: OnceLock::new(),
            running: Mutex::new(None),
            recorded,
        };
        vm.boot()?;
        Ok(vm)
    }

    /// Returns the machine's name, which is also its host name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the state disk of a machine that has a recorded one.
    ///
    /// # Errors
    /// If it has another type.
    pub fn recorded_disk(&self) -> Result<&RecordedDisk> {
        self.recorded.as_ref().with_context(|| format!("the state disk of {} is not recorded", self.name))
    }

    /// Returns the path of the output of kernel and agent, over all boots.
    pub fn console(&self) -> PathBuf {
        self.dir.join("console.log")
    }

    /// Runs a bash script (with `set -euo pipefail`) and returns its standard output. Starting processes is
    /// slow in an emulated machine: one longer script is better than many short ones.
    ///
    /// # Errors
    /// If its exit code is not 0; the error contains its output.
    pub fn exec(&self, script: &str) -> Result<String> {
        let done = self.run(&bash(script), EXEC_LIMIT)?;
        ensure!(
            done.exit == Exit::Code(0),
            "in {}: {:?}\n{script}\n--- stdout\n{}--- stderr\n{}",
            self.name,
            done.exit,
            done.stdout,
            done.stderr
        );
        Ok(done.stdout)
    }

    /// Runs a program to completion, with any exit status.
    ///
    /// # Errors
    /// If it cannot be started or runs longer than `limit`; it is killed in that case.
    pub fn run(&self, program: &GuestProgram, limit: Duration) -> Result<ProgramOutput> {
        self.agent()?.exec(program, limit)
    }

    /// Sets variables for programs that are spawned from now on. Only the first call has an effect.
    pub fn set_environment(&self, variables: BTreeMap<String, String>) {
        self.environment.get_or_init(|| variables);
    }

    /// Starts a program that keeps running; see [`Vm::wait`] and [`Vm::signal`]. Its output goes to a log
    /// that [`Vm::log`] reads. Returns its process id.
    ///
    /// # Errors
    /// If it cannot be started or a program of that name is still running.
    pub fn spawn(&self, name: &str, program: &GuestProgram) -> Result<i32> {
        let mut program = program.clone();
        program.env.extend(self.environment.get().cloned().unwrap_or_default());
        let request = AgentRequest::Spawn { name: name.to_owned(), program };
        match self.agent()?.request(&request, EXEC_LIMIT)? {
            AgentReply::Started(pid) => Ok(pid),
            other @ (AgentReply::Done | AgentReply::Exit(_) | AgentReply::Failed(_)) => unexpected(&other),
        }
    }

    /// Sends a signal, by number, to a spawned program.
    ///
    /// # Errors
    /// If it has exited.
    pub fn signal(&self, name: &str, signal: i32) -> Result<()> {
        let name = name.to_owned();
        self.done(&AgentRequest::Signal { name, signal })
    }

    /// Waits until a spawned program has exited, for at most `limit` of the machine's time.
    ///
    /// # Errors
    /// If it is still running then.
    pub fn wait(&self, name: &str, limit: Duration) -> Result<Exit> {
        let request = AgentRequest::Wait { name: name.to_owned(), limit_ms: milliseconds(limit) };
        match self.agent()?.request(&request, limit * 10)? {
            AgentReply::Exit(Some(exit)) => Ok(exit),
            other @ (AgentReply::Done
            | AgentReply::Started(_)
            | AgentReply::Exit(None)
            | AgentReply::Failed(_)) => unexpected(&other),
        }
    }

    /// Returns the exit of a spawned program; `None` while it is running.
    ///
    /// # Errors
    /// If no program of that name was spawned since the last boot.
    pub fn status(&self, name: &str) -> Result<Option<Exit>> {
        let name = name.to_owned();
        match self.agent()?.request(&AgentRequest::Status { name }, EXEC_LIMIT)? {
            AgentReply::Exit(exit) => Ok(exit),
            other @ (AgentReply::Done | AgentReply::Started(_) | AgentReply::Failed(_)) => unexpected(&other),
        }
    }

    /// Writes a small file, and creates its parent directories.
    ///
    /// # Errors
    /// If the machine cannot write it.
    pub fn put_file(&self, path: &str, mode: u32, contents: &[u8]) -> Result<()> {
        self.agent()?.put_file(path, mode, contents)
    }

    /// Reads a small file.
    ///
    /// # Errors
    /// If the machine cannot read it.
    pub fn get(&self, path: &str) -> Result<Vec<u8>> {
        self.agent()?.get(path)
    }

    /// Returns the log of a spawned program, from its first start on, across resets.
    ///
    /// # Errors
    /// If no program of that name was ever spawned.
    pub fn log(&self, name: &str) -> Result<String> {
        Ok(String::from_utf8_lossy(&self.get(&log_of(name))?).into_owned())
    }

    /// Waits until the log of a spawned program has a line that contains `text`, and returns the line.
    ///
    /// # Errors
    /// If the program has exited, or `limit` has passed, without this line; the error has the log's end.
    pub fn wait_log(&self, name: &str, text: &str, limit: Duration) -> Result<String> {
        let found = until(&format!("{text:?} in the log of {name}"), limit, || {
            // Queried first: output written before the exit is in the log by then.
            let ended = self.status(name)?;
            let log = self.log(name)?;
            let line = log.lines().find(|line| line.contains(text)).map(str::to_owned);
            ensure!(line.is_some() || ended.is_none(), "{name} ended: {ended:?}");
            Ok(line)
        });
        found.with_context(|| format!("log of {name}:\n{}", self.log(name).unwrap_or_default()))
    }

    /// Waits until `path` is a block device, for at most `limit` of the machine's time.
    ///
    /// # Errors
    /// If it is not one by then.
    pub fn wait_block_device(&self, path: &str, limit: Duration) -> Result<()> {
        self.agent()?.done(
            &AgentRequest::WaitBlockDevice { path: path.to_owned(), limit_ms: milliseconds(limit) },
            limit * 10,
        )
    }

    /// Cuts the power and boots again: everything outside the state disk is lost.
    ///
    /// # Errors
    /// If the machine does not boot again.
    pub fn reset(&self) -> Result<()> {
        self.lock().take();
        self.boot()
    }

    /// Cuts the power.
    pub fn cut_power(&self) {
        self.lock().take();
    }

    /// Boots a machine that is powered off.
    ///
    /// # Errors
    /// If it does not boot.
    pub fn boot(&self) -> Result<()> {
        let mut running = self.lock();
        ensure!(running.is_none(), "{} runs already", self.name);
        let mut tries = 1;
        let started = loop {
            let (qemu, port) =
                machine::launch(&self.name, &self.dir, &self.boot, &self.options, self.recorded.as_ref())?;
            let mut started = Running { qemu, agent: Agent::new(&self.name, port) };
            let up = started.agent.wait_ready(&mut started.qemu, BOOT_LIMIT);
            match up.with_context(|| format!("boot {}:\n{}", self.name, tail(&self.console(), 30))) {
                Ok(()) => break started,
                Err(_) if tries < BOOT_TRIES && started.qemu.ended()?.is_some() => tries += 1,
                Err(error) => return Err(error),
            }
        };
        *running = Some(started);
        Ok(())
    }

    /// Powers the machine off cleanly (but does not unmount volumes).
    ///
    /// # Errors
    /// If it is already off or does not power itself off; its power is then cut.
    pub fn power_off(&self) -> Result<()> {
        let mut running = self.lock();
        let mut stopping = running.take().with_context(|| format!("{} is off", self.name))?;
        stopping.agent.done(&AgentRequest::PowerOff, POWER_OFF_LIMIT)?;
        stopping.qemu.wait(POWER_OFF_LIMIT).map(drop)
    }

    /// Shuts the machine down in order: asks its programs to exit, and unmounts file systems on volumes.
    /// Returns the duration.
    ///
    /// # Errors
    /// If it is already off or does not power itself off within the limit; its power is then cut.
    pub fn shut_down(&self, limit: Duration) -> Result<Duration> {
        let mut running = self.lock();
        let mut stopping = running.take().with_context(|| format!("{} is off", self.name))?;
        let begun = Instant::now();
        stopping.agent.done(&AgentRequest::ShutDown, POWER_OFF_LIMIT)?;
        let ended = stopping.qemu.wait(limit);
        ended.with_context(|| format!("the shutdown did not end:\n{}", tail(&self.console(), 30)))?;
        Ok(begun.elapsed())
    }

    /// Returns the ends of the console and of the spawned programs' logs, for troubleshooting.
    pub fn logs(&self, lines: usize) -> String {
        let console = tail(&self.console(), lines);
        let script = format!(
            "shopt -s nullglob; for log in /var/log/holdfast/*.log /var/log/pods/*/*/*.log; do echo \"--- $log\"; tail -n {lines} $log; done"
        );
        let programs = self
            .run(&bash(&script), Duration::from_secs(60))
            .map_or_else(|error| format!("({error:#})"), |done| done.stdout);
        format!("--- {} console\n{console}\n{programs}", self.name)
    }

    /// Returns the host port that is forwarded to the machine's agent.
    ///
    /// # Errors
    /// If the machine is off.
    pub fn agent_port(&self) -> Result<u16> {
        Ok(self.agent()?.port())
    }

    fn done(&self, request: &AgentRequest) -> Result<()> {
        self.agent()?.done(request, EXEC_LIMIT)
    }

    fn agent(&self) -> Result<Agent> {
        match self.lock().as_ref() {
            Some(running) => Ok(running.agent.clone()),
            None => bail!("{} is off", self.name),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().expect("nothing panics while it holds this lock")
    }
}

/// Returns a bash script as a program.
pub fn bash(script: &str) -> GuestProgram {
    GuestProgram {
        argv: ["bash", "-euo", "pipefail", "-c", script].map(str::to_owned).to_vec(),
        ..GuestProgram::default()
    }
}

fn unexpected<T>(reply: &AgentReply) -> Result<T> {
    match reply {
        AgentReply::Failed(why) => bail!("{why}"),
        AgentReply::Done | AgentReply::Started(_) | AgentReply::Exit(_) => {
            bail!("unexpected reply {reply:?}")
        }
    }
}

fn milliseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_millis()).unwrap_or(u64::MAX)
}
