//! The operator, as a process of the host.
//!
//! Owns: one `holdfast-operator`, which can be killed and started again.
//! Invariants: its log continues over restarts; its metrics port stays the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use crate::process::Process;
use crate::vm::machine::free_port;
use crate::wait::until;

/// The namespace everything of Holdfast lives in.
pub const NAMESPACE: &str = "holdfast-system";

/// Name of its pod: one that is started again is the same instance, as a container of a pod is.
const POD: &str = "holdfast-operator-0";
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    program: PathBuf,
    dir: PathBuf,
    kubeconfig: PathBuf,
    /// Further variables.
    environment: BTreeMap<String, String>,
    port: u16,
    process: Mutex<Option<Process>>,
}

impl Operator {
    /// Starts `program`, which reaches the API by `kubeconfig`, with `environment` besides its usual one.
    ///
    /// # Errors
    /// If it does not serve its metrics in time.
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

    /// Address of its `/metrics` and `/healthz`.
    pub fn metrics_address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Kills it, as the kernel would for want of memory.
    pub fn kill(&self) {
        self.lock().take();
    }

    /// Asks it to end, as Kubernetes does.
    ///
    /// # Errors
    /// If it does not end in time, or not with exit code 0.
    pub fn stop(&self) -> Result<()> {
        let Some(mut process) = self.lock().take() else {
            bail!("the operator does not run");
        };
        process.signal(Signal::TERM)?;
        let status = process.wait(STOP_LIMIT)?;
        ensure!(status.success(), "the operator ended with {status}");
        Ok(())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Errors
    /// If it does not run, or not end in time.
    pub fn wait_end(&self, limit: Duration) -> Result<()> {
        let mut running = self.lock();
        running.as_mut().context("the operator does not run")?.wait(limit)?;
        running.take();
        Ok(())
    }

    /// Stops it in the middle of what it does, until [`Operator::thaw`].
    ///
    /// # Errors
    /// If it does not run.
    pub fn freeze(&self) -> Result<()> {
        self.lock().as_ref().context("the operator does not run")?.freeze()
    }

    /// Lets it continue.
    ///
    /// # Errors
    /// If it does not run.
    pub fn thaw(&self) -> Result<()> {
        self.lock().as_ref().context("the operator does not run")?.signal(Signal::CONT)
    }

    /// Starts it again after [`Operator::kill`] or [`Operator::stop`].
    ///
    /// # Errors
    /// If it runs, or does not serve its metrics in time.
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
        let mut process = Process::spawn("operator", &command, &self.dir.join("operator.log"))?;
        until("the operator to serve its metrics", START_LIMIT, || {
            process.check_running()?;
            Ok(std::net::TcpStream::connect(("127.0.0.1", self.port)).ok())
        })?;
        *running = Some(process);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Process>> {
        self.process.lock().expect("nothing panics while it holds this lock")
    }
}
