//! The operator, as a process of the host.
//!
//! Owns: one `holdfast-operator`, which can be killed and restarted.
//! Invariants: its log continues across restarts; its metrics port stays the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::process::LoggedProcess;
use crate::vm::machine::free_port;
use crate::wait::until;

/// The namespace of all Holdfast components.
pub const NAMESPACE: &str = "holdfast-system";

/// Name of its pod: after a restart it is the same instance, like a restarted container of a pod.
const POD: &str = "holdfast-operator-0";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    program: PathBuf,
    dir: PathBuf,
    kubeconfig: PathBuf,
    /// Additional variables.
    environment: BTreeMap<String, String>,
    port: u16,
    process: Mutex<Option<LoggedProcess>>,
}

impl Operator {
    /// Starts `program`, which reaches the API with `kubeconfig`, with `environment` added to its own.
    ///
    /// # Errors
    /// If its metrics are not available in time.
    pub fn start(
        program: &Path,
        kubeconfig: &Path,
        environment: BTreeMap<String, String>,
        dir: &Path,
    ) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        let operator = Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            environment,
            port: free_port()?,
            process: Mutex::new(None),
        };
        operator.restart()?;
        Ok(operator)
    }

    /// Returns the address of its `/metrics` and `/healthz`.
    pub fn metrics_address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it, like the kernel when memory is exhausted.
    pub fn kill(&self) {
        self.lock().take();
    }

    /// Asks it to exit, like Kubernetes.
    ///
    /// # Errors
    /// If it does not exit in time, or its exit code is not 0.
    pub fn stop(&self) -> Result<()> {
        let Some(mut process) = self.lock().take() else {
            bail!("the operator does not run");
        };
        process.signal(Signal::TERM)?;
        let status = process.wait(STOP_LIMIT)?;
        ensure!(status.success(), "the operator ended with {status}");
        Ok(())
    }

    /// Waits until it exits by itself.
    ///
    /// # Errors
    /// If it is not running, or does not exit in time.
    pub fn wait_end(&self, limit: Duration) -> Result<()> {
        let mut running = self.lock();
        running.as_mut().context("the operator does not run")?.wait(limit)?;
        running.take();
        Ok(())
    }

    /// Freezes it in the middle of its work, until [`Operator::thaw`].
    ///
    /// # Errors
    /// If it is not running.
    pub fn freeze(&self) -> Result<()> {
        self.lock().as_ref().context("the operator does not run")?.freeze()
    }

    /// Resumes it.
    ///
    /// # Errors
    /// If it is not running.
    pub fn thaw(&self) -> Result<()> {
        self.lock().as_ref().context("the operator does not run")?.signal(Signal::CONT)
    }

    /// Restarts it after [`Operator::kill`] or [`Operator::stop`].
    ///
    /// # Errors
    /// If it is running, or its metrics are not available in time.
    pub fn restart(&self) -> Result<()> {
        let mut running = self.lock();
        ensure!(running.is_none(), "the operator runs already");
        let mut command = Command::new(&self.program);
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("RUST_LOG", "info")
            .env("POD_NAME", POD)
            .envs(&self.environment)
            .args(["--metrics-address", &self.metrics_address(), "--namespace", NAMESPACE]);
        let mut process = LoggedProcess::spawn("operator", &command, &self.dir.join("operator.log"))?;
        until("the operator to serve its metrics", START_LIMIT, || {
            process.check_running()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", self.port)).ok())
        })?;
        *running = Some(process);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<LoggedProcess>> {
        self.process.lock().expect("nothing panics while it holds this lock")
    }
}
