//! Long-running processes of the host that never outlive the harness.
//!
//! Owns: the child process and its process group.
//! Invariants: the kernel kills the child when the harness dies for any reason (parent-death signal);
//! dropping a [`LoggedProcess`] kills its whole group and reaps it.
//! Runs on: any thread. The parent-death signal is tied to the *thread* that forked, so all children are
//! started by one thread that lives as long as the harness.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::wait::until;

/// Maximum bytes shown of a log line.
const MAX_LINE_BYTES: usize = 240;

type Started = std::io::Result<Child>;
type Order = (Command, mpsc::Sender<Started>);

/// A running process whose output goes to a log file.
#[derive(Debug)]
pub struct LoggedProcess {
    name: String,
    /// Its log, if it has a separate one.
    log: Option<PathBuf>,
    child: Child,
}

impl LoggedProcess {
    /// Starts `command`, with standard output and error appended to `log`.
    ///
    /// # Errors
    /// If the log cannot be opened or the program cannot be started.
    pub fn spawn(name: &str, command: &Command, log: &Path) -> Result<Self> {
        let out = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("open {}", log.display()))?;
        let err = out.try_clone().context("duplicate the log's descriptor")?;
        Self::launch(name, command, Some(log), out.into(), err.into())
    }

    /// Starts `command`, with standard output to `out` and standard error to `err`.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn_to(name: &str, command: &Command, out: Stdio, err: Stdio) -> Result<Self> {
        Self::launch(name, command, None, out, err)
    }

    fn launch(name: &str, command: &Command, log: Option<&Path>, out: Stdio, err: Stdio) -> Result<Self> {
        let mut wrapped = Command::new("setpriv");
        wrapped
            .args(["--pdeathsig", "KILL", "--"])
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err);
        for (key, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(key, value),
                None => wrapped.env_remove(key),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            wrapped.current_dir(directory);
        }
        std::os::unix::process::CommandExt::process_group(&mut wrapped, 0);
        let child = start(wrapped).with_context(|| format!("start {name}"))?;
        Ok(Self { name: name.to_owned(), log: log.map(Path::to_owned), child })
    }

    /// Returns the name given at the start.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a signal to the process and its group.
    ///
    /// # Errors
    /// If it has already exited.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process_group(self.group(), signal).with_context(|| format!("send {signal:?} to {}", self.name))
    }

    /// Interrupts the process and its group, as Ctrl-C does.
    ///
    /// # Errors
    /// If it has already exited.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(Signal::INT)
    }

    /// Stops the process (`SIGSTOP`) and waits until all of its threads have stopped.
    ///
    /// # Errors
    /// If it has exited.
    pub fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.group()), stopped)
            .with_context(|| format!("wait until {} stands still", self.name))
            .map(drop)
    }

    /// Returns its exit status, if it has exited.
    ///
    /// # Errors
    /// If the kernel has no record of the child.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("look at {}", self.name))
    }

    /// Fails, with the end of its log, if the process has exited.
    ///
    /// # Errors
    /// If it has exited.
    pub fn check_running(&mut self) -> Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => {
                let log = self.log.as_deref().map(|log| tail(log, 30)).unwrap_or_default();
                bail!("{} ended ({status}):\n{log}", self.name)
            }
        }
    }

    /// Waits until it has exited.
    ///
    /// # Errors
    /// If it runs longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let name = self.name.clone();
        until(&format!("{name} to end"), limit, || self.ended())
    }

    /// Waits until it has exited, without a time limit.
    ///
    /// # Errors
    /// If the kernel has no record of the child.
    pub fn end(&mut self) -> Result<ExitStatus> {
        self.child.wait().with_context(|| format!("wait for the end of {}", self.name))
    }

    fn group(&self) -> Pid {
        let raw = i32::try_from(self.child.id()).expect("a process id fits in i32");
        Pid::from_raw(raw).expect("a child's process id is not 0")
    }
}

impl Drop for LoggedProcess {
    fn drop(&mut self) {
        // Errors mean that it has already exited, which is fine.
        kill_process_group(self.group(), Signal::KILL).ok();
        drop(self.child.wait());
    }
}

/// Returns the last `lines` lines of a log file, or a note that it cannot be read.
pub fn tail(log: &Path, lines: usize) -> String {
    match std::fs::read(log) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(&bytes);
            let all: Vec<&str> = text.lines().collect();
            let last = all[all.len().saturating_sub(lines)..].iter();
            last.map(|line| line.get(..MAX_LINE_BYTES).unwrap_or(line)).collect::<Vec<_>>().join("\n")
        }
        Err(error) => format!("({}: {error})", log.display()),
    }
}

/// Forks on the permanent thread.
fn start(command: Command) -> Started {
    static STARTER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let starter = STARTER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                // The caller waits for the answer, so the send cannot fail.
                drop(answer.send(command.spawn()));
            }
        });
        Mutex::new(orders)
    });
    let (answer, started) = mpsc::channel();
    starter
        .lock()
        .expect("nothing panics while it holds this lock")
        .send((command, answer))
        .expect("the starter thread never ends");
    started.recv().expect("the starter answers every order")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_a_process_kills_its_whole_group() {
        let log = std::env::temp_dir().join(format!("holdfast-process-{}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo $!; wait"]);
        let process = LoggedProcess::spawn("group", &command, &log).unwrap();
        let grandchild = until("the grandchild's id", Duration::from_secs(10), || {
            Ok(tail(&log, 1).trim().parse::<i32>().ok())
        })
        .unwrap();
        drop(process);
        let ended = until("the grandchild to end", Duration::from_secs(10), || {
            let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat"));
            Ok(stat.map_or(true, |stat| stat.contains(") Z ")).then_some(()))
        });
        std::fs::remove_file(&log).unwrap();
        ended.unwrap();
    }
}
